"""`dspp info`: a description of a model file."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspp.cli import show
from dspp.cli.files import check_model, file_size
from dspp.cli.options import flag
from dspp.cli.session import Session

if TYPE_CHECKING:
    from dspp.fitted import Fitted, Member

EXAMPLES = """Examples:

dspp info model.dspp

dspp info model.dspp --json"""


def info(
    ctx: typer.Context,
    model: Annotated[Path, typer.Argument(help="The model file.", metavar="MODEL")],
    as_json: Annotated[bool, flag("--json", "Print a single JSON object.")] = False,
) -> None:
    """Describe a model: its targets and columns, its training, its settings and its scores."""
    check_model(model)
    from dspp import modelfile  # here and not before, as it imports torch, which takes seconds

    fitted = modelfile.load(model)
    session: Session = ctx.obj
    if as_json:
        print(json.dumps(facts(fitted, model), indent=2))
    else:
        session.say(*_describe(fitted, model))


def facts(fitted: "Fitted", path: Path) -> dict[str, Any]:
    """Return a description of the model as JSON values; several members are described in a list."""
    members = [_member_facts(member) for member in fitted.members]
    weighted = [{"weight": weight} | values for weight, values in zip(fitted.weights, members, strict=True)]
    return {
        "file": str(path),
        "bytes": path.stat().st_size,
        **(members[0] if len(members) == 1 else {"members": weighted}),
        "targets": list(fitted.target_names),
        "columns": [] if fitted.encoder is None else fitted.encoder.describe(),
        "inputs": fitted.num_inputs,
        "rows": fitted.num_rows,
        "validation": show.plain(fitted.metrics),
        "conformal_rows": 0 if fitted.conformal is None else len(fitted.conformal),
        "versions": fitted.versions,
        "notes": [str(note) for note in fitted.notes],
    }


def _member_facts(member: "Member") -> dict[str, Any]:
    return {
        "model": member.spec.name,
        "parameters": sum(parameter.numel() for parameter in member.model.parameters()),
        "epochs": len(member.history),
        "best_epoch": member.best_epoch,
        "seconds": member.seconds,
        "settings": {
            "model": asdict(member.spec.model),
            "objective": asdict(member.spec.objective),
            "training": asdict(member.train),
        },
    }


def _describe(fitted: "Fitted", path: Path) -> list[Any]:
    known = facts(fitted, path)
    members = list(zip(fitted.members, fitted.weights, known.get("members", [known]), strict=True))
    source = f"{fitted.num_inputs} numbers without names"
    if fitted.encoder is not None:
        source = f"{len(fitted.encoder.column_names)} of {len(known['columns'])} columns"
    lines: list[Any] = [f"{path} ({file_size(path)}): predicts {', '.join(fitted.target_names)} from {source}"]
    for member, weight, values in members:
        share = "" if len(members) == 1 else f", weight {weight:.3g}"
        lines += [
            f"  model     {show.settings_line(member.spec)}; {values['parameters']:,} parameters{share}",
            f"  trained   on {fitted.num_rows:,} rows, {show.training_line(member)}",
        ]
    lines += [
        f"  versions  {', '.join(f'{name} {version}' for name, version in fitted.versions.items())}",
    ]
    if known["conformal_rows"]:
        lines.append(f"  intervals recalibrated on {known['conformal_rows']:,} held-out rows")
    lines += [f"note: {note}" for note in fitted.notes]
    if known["columns"]:
        rows = [(column["column"], column["kind"], column["how"]) for column in known["columns"]]
        lines += ["", *show.table("Columns", ("column", "kind", "how the model reads it"), rows)]
    if fitted.metrics:
        lines += show.score_table(f"Scores on {fitted.scored or 'validation rows'}", fitted.metrics, "evaluate")
    for k, (_, _, values) in enumerate(members, start=1):
        title = "Settings" if len(members) == 1 else f"Settings of member {k}"
        settings = [(name, _format_values(part)) for name, part in values["settings"].items()]
        lines += show.table(title, ("of", "values"), settings)
    return lines


def _format_values(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())

"""`dspp info`: a description of a model file."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from dspp.cli import show
from dspp.cli.files import check_model, file_size
from dspp.cli.options import ModelFile, flag
from dspp.cli.session import Session

if TYPE_CHECKING:
    from dspp.fitted import Fitted

EXAMPLES = """Examples:

dspp info model.dspp

dspp info model.dspp --json"""


@dataclass(frozen=True, kw_only=True)
class Info:
    """Describe a model: its targets and columns, its training, its settings and its scores."""

    model: ModelFile
    as_json: Annotated[bool, flag("--json", "Print a single JSON object.")] = False

    def run(self, session: Session) -> None:
        """Print the description."""
        check_model(self.model)
        from dspp import modelfile  # here and not before, as it imports torch, which takes seconds

        fitted = modelfile.load(self.model)
        if self.as_json:
            print(json.dumps(facts(fitted, self.model), indent=2))
        else:
            session.say(*_describe(fitted, self.model))


def facts(fitted: "Fitted", path: Path) -> dict[str, Any]:
    """Return a description of the model as JSON values; several members are described in a list."""
    members: list[dict[str, Any]] = [
        {
            "model": member.spec.name,
            "parameters": sum(parameter.numel() for parameter in member.model.parameters()),
            "epochs": len(member.history) or None,
            "best_epoch": member.best_epoch,
            "seconds": member.seconds,
            "settings": member.settings,
        }
        for member in fitted.members
    ]
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


def _describe(fitted: "Fitted", path: Path) -> list[Any]:
    from dspp.report.members import members_table, settings_table

    known, members = facts(fitted, path), fitted.members
    parameters = sum(values["parameters"] for values in known.get("members", [known]))
    source = f"{fitted.num_inputs} numbers without names"
    if fitted.encoder is not None:
        source = f"{len(fitted.encoder.column_names)} of {len(known['columns'])} columns"
    lines: list[Any] = [f"{path} ({file_size(path)}): predicts {', '.join(fitted.target_names)} from {source}"]
    model, trained = f"{len(members)} members", f" in {show.seconds(fitted.seconds)} of one core"
    if len(members) == 1:
        model, trained = show.settings_line(members[0].spec), f", {show.training_line(members[0])}"
    lines += [
        f"  model     {model}; {parameters:,} parameters",
        f"  trained   on {fitted.num_rows:,} rows{trained}",
        f"  versions  {', '.join(f'{name} {version}' for name, version in fitted.versions.items())}",
    ]
    if known["conformal_rows"]:
        lines.append(f"  intervals recalibrated on {known['conformal_rows']:,} held-out rows")
    lines += [f"note: {note}" for note in fitted.notes]
    lines.append("")
    if len(members) > 1:
        lines += show.text_table("Members", members_table(fitted))
    if known["columns"]:
        rows = [(column["column"], column["kind"], column["description"]) for column in known["columns"]]
        lines += show.table("Columns", ("column", "kind", "how the model reads it"), rows)
    if fitted.metrics:
        lines += show.score_table(f"Scores on {fitted.scored or 'validation rows'}", fitted.metrics, "evaluate")
    return lines + show.text_table("Settings", settings_table(fitted))

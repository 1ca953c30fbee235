"""`dspp evaluate`: how good a model is on rows it has not seen, and whether its intervals can be trusted."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspp.cli import show
from dspp.cli.files import Unseen, check_columns, check_output
from dspp.cli.options import flag, option
from dspp.cli.session import Session

if TYPE_CHECKING:
    from dspp.fitted import Evaluation, Fitted

EXAMPLES = """Examples:

dspp evaluate model.dspp test.csv

dspp evaluate model.dspp test.csv --report report.html

dspp evaluate model.dspp test.csv --json > scores.json"""


@dataclass(frozen=True)
class EvaluateOptions:
    """What `evaluate` can be told."""

    model: Annotated[Path, typer.Argument(help="The model that `dspp fit` wrote.", metavar="MODEL")]
    test: Annotated[Path, typer.Argument(help="Rows with their targets, not those it was trained on.", metavar="TABLE")]
    report: Annotated[Path | None, option("Write a page about the model, such as report.html.", "FILE")] = None
    as_json: Annotated[bool, flag("--json", "Print one JSON object and nothing else.")] = False
    overwrite: Annotated[bool, flag("--overwrite", "Replace the report that is there already.")] = False


def run(options: EvaluateOptions, session: Session) -> None:
    """Score, and say what the scores mean."""
    if options.report is not None:
        check_output(options.report, options.overwrite, options.model, options.test)
    from dspp import modelfile

    fitted = modelfile.load(options.model)
    with session.working(f"evaluating {options.model} on {options.test}"):
        evaluation, warnings = evaluate(fitted, options.test)
        if options.report is not None:
            from dspp.report import write_evaluation_report

            write_evaluation_report(evaluation, options.report, str(options.test))
    for warning in warnings:
        session.warn(warning)
    if options.as_json:
        print(json.dumps(_as_json(evaluation, warnings, options), indent=2))
        return
    title = f"{options.model} on {len(evaluation.table):,} rows of {options.test}"
    session.say(*show.score_table(title, evaluation.scores, "evaluate"))
    session.say(evaluation.calibration.verdict())
    if options.report is not None:
        session.say(f"Report: {options.report}")


def evaluate(fitted: "Fitted", path: Path) -> tuple["Evaluation", list[str]]:
    """The rows of a file that have a target beside what the model predicts for them, and what to warn of."""
    import numpy as np

    from dspp.table.files import open_table
    from dspp.table.memory import split_targets

    file = open_table(path)
    check_columns(path, file.names, fitted.target_names, "--target")
    rows = file.read(None if fitted.encoder is None else fitted.encoder.arrow_types())
    labelled = split_targets(rows, fitted.target_names, every_target=False)
    evaluation = fitted.evaluate(labelled)
    unseen = Unseen(fitted.encoder)
    unseen.look(rows)
    empty = np.isnan(labelled.targets).all(axis=0)
    names = [name for name, nothing in zip(fitted.target_names, empty, strict=True) if nothing]
    nothing_there = [f"column {name!r} has no values; scores are of the others" for name in names]
    return evaluation, [*map(str, labelled.notes), *unseen.warnings(), *nothing_there]


def _as_json(evaluation: "Evaluation", warnings: list[str], options: EvaluateOptions) -> dict[str, Any]:
    report = {"report": str(options.report)} if options.report is not None else {}
    return {
        "model": str(options.model),
        "data": str(options.test),
        "rows": len(evaluation.table),
        **show.plain(evaluation.scores),
        "verdict": evaluation.calibration.verdict(),
        "warnings": warnings,
        **report,
    }

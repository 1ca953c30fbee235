"""`dspp evaluate`: scores of a model on new rows, and whether its intervals can be trusted."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspp.cli import show
from dspp.cli.files import UnseenLevels, check_columns, check_model, check_output
from dspp.cli.options import flag, option
from dspp.cli.session import Session
from dspp.table.messages import check_exists

if TYPE_CHECKING:
    from dspp.fitted import Evaluation, Fitted
    from dspp.table.table import FileTable

EXAMPLES = """Examples:

dspp evaluate model.dspp test.csv

dspp evaluate model.dspp test.csv --report report.html

dspp evaluate model.dspp test.csv --json > scores.json"""


@dataclass(frozen=True)
class EvaluateOptions:
    """The options of `dspp evaluate`."""

    model: Annotated[Path, typer.Argument(help="The model file.", metavar="MODEL")]
    test: Annotated[Path, typer.Argument(help="Rows with targets, other than the training rows.", metavar="TABLE")]
    report: Annotated[Path | None, option("Write an HTML report, such as report.html.", "FILE")] = None
    as_json: Annotated[bool, flag("--json", "Print a single JSON object.")] = False
    overwrite: Annotated[bool, flag("--overwrite", "Replace an existing report.")] = False


def run(options: EvaluateOptions, session: Session) -> None:
    """Print the scores and a verdict on the intervals."""
    for path in (options.model, options.test):
        check_exists(path)
    if options.report is not None:
        check_output(options.report, options.overwrite, options.model, options.test)
    from dspp.table.files import open_table

    check_model(options.model)
    file = open_table(options.test)
    from dspp import modelfile  # here and not before, as it imports torch, which takes seconds

    fitted = modelfile.load(options.model)
    with session.working(f"evaluating {options.model} on {options.test}"):
        evaluation, warnings = evaluate(fitted, file)
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


def evaluate(fitted: "Fitted", file: "FileTable") -> tuple["Evaluation", list[str]]:
    """Evaluate the rows of a file that have a target; return the evaluation and warnings."""
    import numpy as np

    from dspp.table.memory import split_targets

    check_columns(file.path, file.names, fitted.target_names, "--target")
    rows = file.read(None if fitted.encoder is None else fitted.encoder.arrow_types())
    labelled = split_targets(rows, fitted.target_names, every_target=False)
    evaluation = fitted.evaluate(labelled)
    unseen = UnseenLevels(fitted.encoder)
    unseen.count(rows)
    empty = np.isnan(labelled.targets).all(axis=0)
    names = [name for name, nothing in zip(fitted.target_names, empty, strict=True) if nothing]
    nothing_there = [f"column {name!r} has no values; the scores are of the other targets" for name in names]
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

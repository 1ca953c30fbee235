"""`dspp evaluate`: how good a model is on rows it has not seen, and whether its intervals can be trusted."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from dspp.cli import show
from dspp.cli.files import Unseen, check_output, columns_of, located, read_labelled
from dspp.cli.options import flag, option
from dspp.cli.predict import encoded
from dspp.cli.session import Session

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


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on a table."""

    rows: int
    scores: dict[str, float]
    verdict: str
    warnings: list[str]


def run(options: EvaluateOptions, session: Session) -> None:
    """Score, and say what the scores mean."""
    if options.report is not None:
        check_output(options.report, options.overwrite, options.model, options.test)
    from dspp.estimators import load

    estimator = load(options.model)
    with session.working(f"evaluating {options.model} on {options.test}"):
        found = evaluated(estimator, options)
    for warning in found.warnings:
        session.warn(warning)
    if options.as_json:
        print(json.dumps(_as_json(found, options), indent=2))
        return
    title = f"{options.model} on {found.rows:,} rows of {options.test}"
    session.say(*show.score_table(title, found.scores, "evaluate"))
    session.say(found.verdict)
    if options.report is not None:
        session.say(f"Report: {options.report}")


def evaluated(estimator: Any, options: EvaluateOptions) -> Evaluation:
    """Score the rows that have a target, and write the report if one was asked for."""
    from dspp.calibration import calibration_of
    from dspp.metrics import Comparison

    fitted = estimator.fitted_
    types = None if fitted.encoder is None else fitted.encoder.arrow_types()
    data = read_labelled(options.test, fitted.target_names, types, every_target=False)
    with located(data.file):
        rows = encoded(fitted, data.table, options.test)[data.observed]
    y = data.y[data.observed]
    y = y[:, 0] if fitted.num_outputs == 1 else y
    mixture = fitted.distribution(rows, where=f"{options.test}, rows with a target")
    unseen = Unseen(fitted.encoder)
    for batch in data.table.to_batches():
        unseen.look(batch)
    if options.report is not None:
        _report(estimator, data, y, options)
    warnings = [*data.file.notes, *filter(None, [data.left_out]), *unseen.warnings()]
    warnings += [f"column {name!r} has no values; scores are of the others" for name in data.empty]
    compared = Comparison(mixture, y)
    verdict = calibration_of(compared, fitted.target_names, fitted.recalibration).verdict()
    return Evaluation(len(rows), compared.scores(), verdict, warnings)


def _report(estimator: Any, data: Any, y: Any, options: EvaluateOptions) -> None:
    from dspp.report import write_model_report

    names = getattr(estimator, "feature_names_in_", None)
    table = data.table.filter(data.observed)
    X = encoded(estimator.fitted_, table, options.test) if names is None else columns_of(table, names)
    assert options.report is not None
    numbers = data.numbers.tolist()
    write_model_report(estimator, X, y, options.report, title="", rows=str(options.test), row_labels=numbers)


def _as_json(found: Evaluation, options: EvaluateOptions) -> dict[str, Any]:
    report = {"report": str(options.report)} if options.report is not None else {}
    return {
        "model": str(options.model),
        "data": str(options.test),
        "rows": found.rows,
        **show.plain(found.scores),
        "verdict": found.verdict,
        "warnings": found.warnings,
        **report,
    }

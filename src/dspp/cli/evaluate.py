"""`dspp evaluate`: scores of a model on new rows, and whether its intervals can be trusted."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspp.cli import show
from dspp.cli.files import (
    check_columns,
    check_inputs,
    check_model,
    check_report,
    open_input,
    source_name,
    stdin_as_file,
)
from dspp.cli.options import BLANKS, DECIMAL, ENCODING, SEPARATOR, csv_format, flag, option, refuse_or_impute
from dspp.cli.session import Session
from dspp.extras import require

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
    test: Annotated[
        Path,
        typer.Argument(
            help="Rows with targets, other than the training rows; - reads CSV from standard input.", metavar="TABLE"
        ),
    ]
    report: Annotated[Path | None, option("Write an HTML report, such as report.html.", "FILE")] = None
    weight: Annotated[str | None, option("A column that says how much each row counts.", "COLUMN")] = None
    missing: Annotated[str, option(BLANKS, "WORD", choices=("refuse", "impute")), refuse_or_impute] = "refuse"
    sep: Annotated[str | None, option(SEPARATOR, "CHAR")] = None
    decimal: Annotated[str, option(DECIMAL, "CHAR")] = "."
    encoding: Annotated[str, option(ENCODING, "NAME")] = "utf-8"
    as_json: Annotated[bool, flag("--json", "Print a single JSON object.")] = False
    overwrite: Annotated[bool, flag("--overwrite", "Replace an existing report.")] = False


def run(options: EvaluateOptions, session: Session) -> None:
    """Print the scores and a verdict on the intervals."""
    check_inputs(options.model, options.test)
    if options.report is not None:
        require("report", "--report")
        check_report(options.report, options.overwrite, options.model, options.test)
    check_model(options.model)
    written = csv_format(options.sep, options.decimal, options.encoding)
    with stdin_as_file(options.test) as (path,):
        assert path is not None
        _run(options, session, open_input(path, written))


def _run(options: EvaluateOptions, session: Session, file: "FileTable") -> None:
    from dspp import modelfile

    source = source_name(options.test)
    fitted = modelfile.load(options.model)
    with session.working(f"evaluating {options.model} on {source}"):
        evaluation, warnings = evaluate(fitted, file, options.missing == "impute", options.weight)
        if options.report is not None:
            from dspp.report import write_evaluation_report

            write_evaluation_report(evaluation, options.report, source)
    for warning in warnings:
        session.warn(warning)
    if options.as_json:
        print(json.dumps(_as_json(evaluation, warnings, options), indent=2))
        return
    title = f"{options.model} on {len(evaluation.table):,} rows of {source}"
    session.say(*show.score_table(title, evaluation.scores, "evaluate"))
    session.say(evaluation.calibration.verdict())
    if options.report is not None:
        session.say(f"Report: {options.report}")


def evaluate(
    fitted: "Fitted", file: "FileTable", impute: bool = False, weight: str | None = None
) -> tuple["Evaluation", list[str]]:
    """Evaluate the rows of a file that have a target, by a column of weights; return the evaluation and warnings."""
    import numpy as np

    from dspp.novelty import Novelty
    from dspp.table.memory import split_targets
    from dspp.table.roles import drop_weightless, split_roles

    check_columns(file.path, file.names, fitted.target_names, "--target")
    check_columns(file.path, file.names, [weight] if weight else [], "--weight")
    rows = file.read(None if fitted.encoder is None else fitted.encoder.arrow_types())
    labelled = split_targets(split_roles(rows, weight=weight), fitted.target_names, every_target=False)
    labelled = drop_weightless(labelled, every_output=False)
    evaluation = fitted.evaluate(labelled, impute)
    novelty = Novelty(fitted, impute)
    novelty.count(labelled)
    empty = np.isnan(labelled.targets).all(axis=0)
    names = [name for name, nothing in zip(fitted.target_names, empty, strict=True) if nothing]
    nothing_there = [f"column {name!r} has no values; the scores are of the other targets" for name in names]
    return evaluation, [*map(str, labelled.notes), *novelty.warnings(), *nothing_there]


def _as_json(evaluation: "Evaluation", warnings: list[str], options: EvaluateOptions) -> dict[str, Any]:
    report = {"report": str(options.report)} if options.report is not None else {}
    return {
        "model": str(options.model),
        "data": source_name(options.test),
        "rows": len(evaluation.table),
        **show.plain(evaluation.scores),
        "verdict": evaluation.calibration.verdict(),
        "warnings": warnings,
        **report,
    }

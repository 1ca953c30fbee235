"""`dspp evaluate`: scores of a model on new rows, and whether its intervals can be trusted."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from dspp.errors import InputError
from dspp.extras import require

if TYPE_CHECKING:
    from dspp.evaluate import Evaluation
    from dspp.fitted import Fitted
    from dspp.table.table import FileTable, Table

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
        evaluation = evaluate(fitted, file, options.missing == "impute", options.weight)
        if options.report is not None:
            from dspp.report import write_evaluation_report

            write_evaluation_report(evaluation, options.report, source)
    for warning in evaluation.notes:
        session.warn(warning)
    if options.as_json:
        print(json.dumps(_as_json(evaluation, options), indent=2))
        return
    title = f"{options.model} on {evaluation.num_rows:,} rows of {source}"
    session.say(*show.score_table(title, evaluation.scores, "evaluate"))
    session.say(evaluation.calibration.verdict())
    if options.report is not None:
        session.say(f"Report: {options.report}")


def evaluate(fitted: "Fitted", file: "FileTable", impute: bool = False, weight: str | None = None) -> "Evaluation":
    """Evaluate the rows of a file that have a target, by a column of weights."""
    check_columns(file.path, file.names, fitted.target_names, "--target")
    check_columns(file.path, file.names, [weight] if weight else [], "--weight")
    if fitted.encoder is not None and (both := set(fitted.target_names) & set(fitted.encoder.column_names)):
        raise InputError(
            f"{file.path}: column {min(both)!r} is the target and, of another table, an input of the model; call "
            "evaluate in Python, which takes them apart"
        )
    from dspp.evaluate import evaluate_batches

    rows = LabelledRows(fitted, file, impute, weight)
    evaluation = evaluate_batches(fitted, rows.batches, impute)
    return replace(evaluation, notes=tuple(rows.warnings))


class LabelledRows:
    """The rows of a file that have a target and a positive weight, batch by batch.

    Attributes:
        warnings: Sentences for the user, known when all rows have been read.
    """

    def __init__(self, fitted: "Fitted", file: "FileTable", impute: bool, weight: str | None) -> None:
        self._fitted, self._file, self._impute, self._weight = fitted, file, impute, weight
        self.warnings: list[str] = []

    def batches(self) -> Iterator["Table"]:
        """Yield batches that are not empty.

        Raises:
            InputError: A target is not a number, or no row has a target and a positive weight.
        """
        import numpy as np

        from dspp.notes import note_missing_targets
        from dspp.novelty import Novelty
        from dspp.sample import SCORED_ROWS
        from dspp.table.memory import column_weights, note_weightless

        fitted, file, names = self._fitted, self._file, self._fitted.target_names
        novelty = Novelty(fitted, self._impute)
        missing, weightless, values = 0, 0, np.zeros(len(names), int)
        for rows in file.batches(SCORED_ROWS, {} if fitted.encoder is None else fitted.encoder.arrow_types()):
            assert rows.arrow is not None
            y = fitted.outcome.read(rows.arrow.select(list(names)), rows.place)
            observed = ~np.isnan(y).all(axis=1)
            counts = observed.copy()
            if self._weight is not None:
                weights = column_weights(rows.arrow.column(self._weight).combine_chunks(), rows.place.of(self._weight))
                rows, counts = replace(rows, weights=weights), observed & (weights > 0.0)
            inputs = rows.select(name for name in rows.names if name not in (*names, self._weight))
            kept = inputs.with_targets(y, names)
            kept = kept if counts.all() else kept.take(np.flatnonzero(counts))
            missing += int((~observed).sum())
            weightless += int((observed & ~counts).sum())
            values += (~np.isnan(kept.targets)).sum(axis=0)
            if len(kept):
                kept = fitted.inputs(kept)
                yield kept
                novelty.count(kept)
        empty = [name for name, count in zip(names, values, strict=True) if not count]
        if len(empty) == len(names):
            what = "numbers, got no values" if not weightless else "values in rows of positive weight, got none"
            raise InputError(f"{file.where}: column {empty[0]!r}: expected {what}")
        notes = (*file.notes, *note_missing_targets(missing), *note_weightless(weightless))
        nothing_there = [f"column {name!r} has no values; the scores are of the other targets" for name in empty]
        self.warnings = [*map(str, notes), *novelty.warnings(), *nothing_there]


def _as_json(evaluation: "Evaluation", options: EvaluateOptions) -> dict[str, Any]:
    report = {"report": str(options.report)} if options.report is not None else {}
    return {
        "model": str(options.model),
        "data": source_name(options.test),
        "rows": evaluation.num_rows,
        **show.plain(evaluation.scores),
        "verdict": evaluation.calibration.verdict(),
        "warnings": evaluation.notes,
        **report,
    }

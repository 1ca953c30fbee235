"""`dspp evaluate`: scores of a model on new rows, and whether its intervals can be trusted."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
from dspp.cli.options import Decimal, Encoding, Missing, ModelFile, Separator, csv_format, flag, option
from dspp.cli.session import Session
from dspp.errors import InputError

if TYPE_CHECKING:
    from dspp.evaluate import Evaluation
    from dspp.fitted import Fitted
    from dspp.table.table import FileTable, Table

EXAMPLES = """Examples:

dspp evaluate model.dspp test.csv

dspp evaluate model.dspp test.csv --report report.html

dspp evaluate model.dspp test.csv --json > scores.json"""


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Score a model on new rows, and check whether its intervals can be trusted."""

    model: ModelFile
    test: Annotated[
        Path,
        typer.Argument(
            help="Rows with targets, other than the training rows; - reads CSV from standard input.", metavar="TABLE"
        ),
    ]
    report: Annotated[Path | None, option("Write an HTML report, such as report.html.", "FILE")] = None
    weight: Annotated[str | None, option("A column that says how much each row counts.", "COLUMN")] = None
    missing: Missing = "refuse"
    as_json: Annotated[bool, flag("--json", "Print a single JSON object.")] = False
    overwrite: Annotated[bool, flag("--overwrite", "Replace an existing report.")] = False
    sep: Separator = None
    decimal: Decimal = "."
    encoding: Encoding = "utf-8"

    def run(self, session: Session) -> None:
        """Print the scores and a verdict on the intervals."""
        check_inputs(self.model, self.test)
        check_report(self.report, self.overwrite, self.model, self.test)
        check_model(self.model)
        written = csv_format(self.sep, self.decimal, self.encoding)
        with stdin_as_file(self.test) as path:
            self._run(session, open_input(path, written))

    def _run(self, session: Session, file: "FileTable") -> None:
        from dspp import modelfile

        source = source_name(self.test)
        fitted = modelfile.load(self.model)
        with session.working(f"evaluating {self.model} on {source}"):
            evaluation = self._evaluate(fitted, file)
            if self.report is not None:
                from dspp.report import write_evaluation_report

                write_evaluation_report(evaluation, self.report, source)
        for warning in evaluation.notes:
            session.warn(warning)
        verdict = evaluation.calibration.verdict()
        if self.as_json:
            facts = {"model": str(self.model), "data": source, "rows": evaluation.num_rows}
            more = {"verdict": verdict, "warnings": evaluation.notes}
            report = {} if self.report is None else {"report": str(self.report)}
            print(json.dumps(facts | show.plain(evaluation.scores) | more | report, indent=2))
            return
        title = f"{self.model} on {evaluation.num_rows:,} rows of {source}"
        session.say(*show.score_table(title, evaluation.scores, "evaluate"), verdict)
        if self.report is not None:
            session.say(f"Report: {self.report}")

    def _evaluate(self, fitted: "Fitted", file: "FileTable") -> "Evaluation":
        """Evaluate the rows of a file that have a target."""
        from dspp.evaluate import evaluate_batches

        check_columns(file.path, file.names, fitted.target_names, "--target")
        check_columns(file.path, file.names, [self.weight] if self.weight else [], "--weight")
        if fitted.encoder is not None and (both := set(fitted.target_names) & set(fitted.encoder.column_names)):
            raise InputError(
                f"{file.path}: column {min(both)!r} is the target and, of another table, an input of the model; call "
                "evaluate in Python, which takes them apart"
            )
        impute, warnings = self.missing == "impute", list[str]()
        evaluation = evaluate_batches(fitted, lambda: _read(fitted, file, impute, self.weight, warnings), impute)
        return replace(evaluation, notes=tuple(warnings))


def _read(
    fitted: "Fitted", file: "FileTable", impute: bool, weight: str | None, warnings: list[str]
) -> Iterator["Table"]:
    """Yield the rows that have a target and a positive weight, in batches that are not empty.

    Args:
        fitted: The model.
        file: The table.
        impute: Whether blank cells are filled in where training had none.
        weight: The column of weights, if there is one.
        warnings: Replaced by sentences for the user when all rows have been read.

    Raises:
        InputError: A target is not a number, or no row has a target and a positive weight.
    """
    import numpy as np

    from dspp.evaluate import SCORED_ROWS
    from dspp.notes import note_missing_targets
    from dspp.novelty import Novelty
    from dspp.table.memory import column_weights, note_weightless

    novelty, names = Novelty(fitted, impute), fitted.target_names
    missing, weightless, values = 0, 0, np.zeros(len(names), int)
    for rows in file.batches(SCORED_ROWS, {} if fitted.encoder is None else fitted.encoder.arrow_types()):
        assert rows.arrow is not None
        y = fitted.outcome.read(rows.arrow.select(list(names)), rows.place)
        observed = ~np.isnan(y).all(axis=1)
        counts = observed.copy()
        if weight is not None:
            weights = column_weights(rows.arrow.column(weight).combine_chunks(), rows.place.of(weight))
            rows, counts = replace(rows, weights=weights), observed & (weights > 0.0)
        inputs = rows.select(name for name in rows.names if name not in (*names, weight))
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
    warnings[:] = [*map(str, notes), *novelty.warnings(), *nothing_there]

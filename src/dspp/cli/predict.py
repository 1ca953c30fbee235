"""`dspp predict`: predictions for a table that may be larger than memory, batch by batch."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspp.cli.files import check_columns, check_inputs, check_model, check_output, file_size, open_input, stdin_as_file
from dspp.cli.options import (
    Decimal,
    Encoding,
    Missing,
    ModelFile,
    Separator,
    csv_format,
    finite,
    flag,
    option,
    probabilities,
    share,
    whole,
)
from dspp.cli.session import Session

if TYPE_CHECKING:
    import pyarrow as pa

    from dspp.fitted import Fitted
    from dspp.novelty import Novelty
    from dspp.progress import ProgressBar
    from dspp.table.table import FileTable

STDOUT = Path("-")
EXAMPLES = """Examples:

dspp predict model.dspp new.csv --out predictions.csv

dspp predict model.dspp new.parquet --out predictions.parquet --quantiles 0.01,0.5,0.99 --keep id

dspp predict model.dspp new.csv --out predictions.csv --above 30 --above 60

cat new.csv | dspp predict model.dspp - --out - --sep ';' --decimal , --interval 0.9 | head

Columns: TARGET_mean, TARGET_std, TARGET_q0.05 and so on for each quantile; TARGET_lower and TARGET_upper with \
--interval; with --above 30, TARGET_above_30, the probability that TARGET > 30; TARGET_weight_0, TARGET_mean_0, \
TARGET_std_0 and so on with --mixture; TARGET_sample_0 and so on with --samples."""


@dataclass(frozen=True, kw_only=True)
class Predict:
    """Predict the distribution of each row of a table."""

    model: ModelFile
    new: Annotated[
        Path,
        typer.Argument(
            help="The rows to predict, which may be larger than memory; - reads CSV from standard input.",
            metavar="TABLE",
        ),
    ]
    out: Annotated[Path, option("Output file: .csv, .parquet, .feather or .arrow; - prints CSV.", "FILE")]
    quantiles: Annotated[
        Any, option("Probabilities of quantiles to write, such as 0.05,0.5,0.95.", "LIST", parser=probabilities)
    ] = ""
    interval: Annotated[
        float | None,
        option("Coverage of a central interval to write, such as 0.9.", "SHARE", parser=share("--interval", "0.9")),
    ] = None
    above: Annotated[
        list[float] | None,
        option("A value of the target, to write the probability of larger ones; repeatable.", "NUMBER", parser=finite),
    ] = None
    mixture: Annotated[bool, flag("--mixture", "Write weight, mean and std of each component.")] = False
    samples: Annotated[int, option("Number of samples to write per row.", "N", parser=whole(0))] = 0
    seed: Annotated[
        int,
        option(
            "Seed of the samples, reproducible for equal --batch-rows.",
            "N",
            parser=whole(-(2**63), 2**64 - 1),  # as torch requires
        ),
    ] = 0
    keep: Annotated[list[str] | None, option("An input column to copy; repeatable.", "COLUMN")] = None
    missing: Missing = "refuse"
    batch_rows: Annotated[int, option("Rows per batch.", "N", parser=whole(1))] = 65_536
    overwrite: Annotated[bool, flag("--overwrite", "Replace an existing file.")] = False
    sep: Separator = None
    decimal: Decimal = "."
    encoding: Encoding = "utf-8"

    def run(self, session: Session) -> None:
        """Predict batch by batch; the output file is renamed into place when complete."""
        from dspp.table.files import check_suffix

        check_inputs(self.model, self.new)
        if self.out != STDOUT:
            check_output(self.out, self.overwrite, self.model, self.new)
        written = csv_format(self.sep, self.decimal, self.encoding)
        if self.out != STDOUT:
            check_suffix(self.out)
        check_model(self.model)
        with stdin_as_file(self.new) as path:
            file = open_input(path, written, may_be_empty=True)
            check_columns(path, file.names, self.keep or (), "--keep")
            self._run(session, file)

    def _run(self, session: Session, file: "FileTable") -> None:
        from dspp import modelfile  # here and not before, as it imports torch, which takes seconds
        from dspp.novelty import Novelty
        from dspp.progress import ProgressBar

        fitted = modelfile.load(self.model)
        novelty = Novelty(fitted, self.missing == "impute")
        is_on_screen = self.out == STDOUT and sys.stdout.isatty()
        with ProgressBar(file.num_rows, session.bars and not is_on_screen) as bar:
            rows = _write(self.out, self._predict(fitted, file, novelty, bar))
        for warning in (*map(str, file.notes), *novelty.warnings(), fitted.why_infinite(self.interval)):
            if warning:
                session.warn(warning)
        if self.out != STDOUT:
            session.say(f"Predicted {rows:,} rows: {self.out} ({file_size(self.out)})")

    def _predict(
        self, fitted: "Fitted", file: "FileTable", novelty: "Novelty", bar: "ProgressBar"
    ) -> Iterator["pa.RecordBatch"]:
        """Yield kept columns and predictions, batch by batch."""
        import pyarrow as pa
        import torch

        from dspp.table.arrays import decode

        generator, done = torch.Generator().manual_seed(self.seed), 0
        types = {} if fitted.encoder is None else fitted.encoder.arrow_types()
        batches = file.batches(self.batch_rows, types, verbatim=self.keep or ())
        for rows in [file.read(types)] if file.num_rows == 0 else batches:
            inputs = fitted.inputs(rows)
            new = fitted.predictions(
                inputs,
                self.quantiles,
                self.interval,
                self.mixture,
                self.samples,
                generator,
                impute=self.missing == "impute",
                above=self.above or (),
            )
            novelty.count(inputs)
            assert rows.arrow is not None
            columns = {name: decode(rows.arrow.column(name).combine_chunks()) for name in self.keep or []}
            arrays = [*columns.values(), *map(pa.array, new.values())]
            yield pa.RecordBatch.from_arrays(arrays, [*columns, *new])
            done += len(rows)
            bar.update(done, "predicting", rows=len(rows))


def _write(out: Path, batches: Iterator["pa.RecordBatch"]) -> int:
    """Write the batches, and return how many rows they have."""
    from dspp.table.files import write_table
    from dspp.table.messages import check_names

    first = next(batches)
    check_names(first.schema.names, str(out))
    if out != STDOUT:
        return write_table(out, chain([first], batches), first.schema)
    import pyarrow.csv

    rows = 0
    with pyarrow.csv.CSVWriter(sys.stdout.buffer, first.schema) as writer:
        for batch in chain([first], batches):
            writer.write_batch(batch)
            rows += len(batch)
    return rows

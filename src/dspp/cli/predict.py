"""`dspp predict`: predictions for a table that may be larger than memory, batch by batch."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspp.cli.files import (
    check_columns,
    check_inputs,
    check_model,
    check_output,
    file_size,
    open_input,
    stdin_as_file,
)
from dspp.cli.options import (
    BLANKS,
    DECIMAL,
    ENCODING,
    SEPARATOR,
    at_least,
    csv_format,
    finite_numbers,
    flag,
    option,
    probabilities,
    refuse_or_impute,
    share,
)
from dspp.cli.session import Session

if TYPE_CHECKING:
    import pyarrow as pa

    from dspp.fitted import Fitted
    from dspp.novelty import Novelty
    from dspp.progress import ProgressBar
    from dspp.table.csvfile import CsvFormat
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


@dataclass(frozen=True)
class PredictOptions:
    """The options of `dspp predict`."""

    model: Annotated[Path, typer.Argument(help="The model file.", metavar="MODEL")]
    new: Annotated[
        Path,
        typer.Argument(
            help="The rows to predict, which may be larger than memory; - reads CSV from standard input.",
            metavar="TABLE",
        ),
    ]
    out: Annotated[Path, option("Output file: .csv, .parquet, .feather or .arrow; - prints CSV.", "FILE")]
    quantiles: Annotated[str, option("Probabilities of quantiles to write, such as 0.05,0.5,0.95.", "LIST")] = ""
    interval: Annotated[
        float | None, option("Coverage of a central interval to write, such as 0.9.", "SHARE"), share
    ] = None
    above: Annotated[
        list[float] | None,
        option("A value of the target, to write the probability of larger ones; repeatable.", "NUMBER"),
        finite_numbers,
    ] = None
    mixture: Annotated[bool, flag("--mixture", "Write weight, mean and std of each component.")] = False
    samples: Annotated[int, option("Number of samples to write per row.", "N"), at_least(0)] = 0
    seed: Annotated[
        int,
        option("Seed of the samples, reproducible for equal --batch-rows.", "N"),
        at_least(-(2**63), 2**64 - 1),  # as torch requires
    ] = 0
    keep: Annotated[list[str] | None, option("An input column to copy; repeatable.", "COLUMN")] = None
    missing: Annotated[str, option(BLANKS, "WORD", choices=("refuse", "impute")), refuse_or_impute] = "refuse"
    sep: Annotated[str | None, option(SEPARATOR, "CHAR")] = None
    decimal: Annotated[str, option(DECIMAL, "CHAR")] = "."
    encoding: Annotated[str, option(ENCODING, "NAME")] = "utf-8"
    batch_rows: Annotated[int, option("Rows per batch.", "N"), at_least(1)] = 65_536
    overwrite: Annotated[bool, flag("--overwrite", "Replace an existing file.")] = False


def run(options: PredictOptions, session: Session) -> None:
    """Predict batch by batch; the output file is renamed into place when complete."""
    check_inputs(options.model, options.new)
    levels = probabilities(options.quantiles, "--quantiles")
    if options.out != STDOUT:
        check_output(options.out, options.overwrite, options.model, options.new)
    written = csv_format(options.sep, options.decimal, options.encoding)
    with stdin_as_file(options.new) as (path,):
        assert path is not None
        _run(options, session, levels, _open(options, path, written))


def _run(options: PredictOptions, session: Session, levels: tuple[float, ...], file: "FileTable") -> None:
    from dspp import modelfile  # here and not before, as it imports torch, which takes seconds
    from dspp.novelty import Novelty
    from dspp.progress import ProgressBar

    fitted = modelfile.load(options.model)
    novelty = Novelty(fitted, options.missing == "impute")
    hide_bar = session.quiet or (options.out == STDOUT and sys.stdout.isatty())
    with ProgressBar(file.num_rows, not hide_bar) as bar:
        batches = _predict_batches(fitted, file, options, levels, novelty, bar)
        rows = _write(options.out, batches)
    for warning in (*map(str, file.notes), *novelty.warnings(), fitted.why_infinite(options.interval)):
        if warning:
            session.warn(warning)
    if options.out != STDOUT:
        session.say(f"Predicted {rows:,} rows: {options.out} ({file_size(options.out)})")


def _open(options: PredictOptions, path: Path, written: "CsvFormat") -> "FileTable":
    """Check the model file and open the table, without importing torch."""
    from dspp.table.files import check_suffix

    if options.out != STDOUT:
        check_suffix(options.out)
    check_model(options.model)
    file = open_input(path, written, may_be_empty=True)
    check_columns(path, file.names, options.keep or (), "--keep")
    return file


def _write(out: Path, batches: Iterator["pa.RecordBatch"]) -> int:
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


def _predict_batches(
    fitted: "Fitted",
    file: "FileTable",
    options: PredictOptions,
    levels: tuple[float, ...],
    novelty: "Novelty",
    bar: "ProgressBar",
) -> Iterator["pa.RecordBatch"]:
    """Yield kept columns and predictions, batch by batch."""
    import pyarrow as pa
    import torch

    from dspp.table.arrays import decode

    generator = torch.Generator().manual_seed(options.seed)
    done = 0
    types = {} if fitted.encoder is None else fitted.encoder.arrow_types()
    batches = file.batches(options.batch_rows, types, verbatim=options.keep or ())
    for rows in [file.read(types)] if file.num_rows == 0 else batches:
        how = levels, options.interval, options.mixture, options.samples, generator
        inputs = fitted.inputs(rows)
        new = fitted.predictions(inputs, *how, impute=options.missing == "impute", above=options.above or ())
        novelty.count(inputs)
        assert rows.arrow is not None
        columns = {name: decode(rows.arrow.column(name).combine_chunks()) for name in options.keep or []}
        names, arrays = [*columns, *new], [*columns.values(), *(pa.array(values) for values in new.values())]
        yield pa.RecordBatch.from_arrays(arrays, names)
        done += len(rows)
        bar.update(done, "predicting", rows=len(rows))

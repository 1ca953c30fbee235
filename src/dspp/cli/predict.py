"""`dspp predict`: a stream of rows in, a stream of distributions out."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspp.cli.files import Unseen, check_columns, check_output, file_size
from dspp.cli.options import flag, option, probabilities
from dspp.cli.session import Session

if TYPE_CHECKING:
    import pyarrow as pa

    from dspp.fitted import Fitted
    from dspp.progress import ProgressBar
    from dspp.table.table import FileTable

STDOUT = Path("-")
EXAMPLES = """Examples:

dspp predict model.dspp new.csv --out predictions.csv

dspp predict model.dspp new.parquet --out predictions.parquet --quantiles 0.01,0.5,0.99 --keep id

dspp predict model.dspp new.csv --out - --interval 0.9 | head

Columns: TARGET_mean, TARGET_std, TARGET_q0.05 and so on for each quantile; TARGET_lower and TARGET_upper with \
--interval; TARGET_weight_0, TARGET_mean_0, TARGET_std_0 and so on with --mixture; TARGET_sample_0 and so on with \
--samples."""


@dataclass(frozen=True)
class PredictOptions:
    """What `predict` can be told."""

    model: Annotated[Path, typer.Argument(help="The model that `dspp fit` wrote.", metavar="MODEL")]
    new: Annotated[Path, typer.Argument(help="The rows to predict; it may be larger than memory.", metavar="TABLE")]
    out: Annotated[Path, option("Where predictions go: .csv, .parquet, .feather or .arrow; - prints CSV.", "FILE")]
    quantiles: Annotated[str, option("Probabilities to give quantiles for, such as 0.05,0.5,0.95.", "LIST")] = ""
    interval: Annotated[
        float | None, option("Give the central interval that holds this share, such as 0.9.", "SHARE")
    ] = None
    mixture: Annotated[bool, flag("--mixture", "Give weight, mean and spread of each component.")] = False
    samples: Annotated[int, option("Give so many draws for each row.", "N", min=0)] = 0
    seed: Annotated[
        int, option("Of the draws; the same seed and --batch-rows give the same.", "N", min=-(2**63), max=2**64 - 1)
    ] = 0
    keep: Annotated[list[str] | None, option("A column of the input to copy; repeatable.", "COLUMN")] = None
    batch_rows: Annotated[int, option("Rows in memory at a time.", "N", min=1)] = 65_536
    overwrite: Annotated[bool, flag("--overwrite", "Replace the file that is there already.")] = False


def run(options: PredictOptions, session: Session) -> None:
    """Predict batch by batch; the file takes its name when it is complete."""
    levels = probabilities(options.quantiles, "--quantiles")
    if options.interval is not None:
        probabilities(str(options.interval), "--interval")
    if options.out != STDOUT:
        check_output(options.out, options.overwrite, options.model, options.new)
    from dspp import modelfile
    from dspp.progress import ProgressBar
    from dspp.table.csvfile import CsvFile
    from dspp.table.files import open_table

    fitted = modelfile.load(options.model)
    file = open_table(options.new)
    check_columns(options.new, file.names, options.keep or (), "--keep")
    if isinstance(file, CsvFile):  # which has no types to keep: what is copied stays as it was typed
        file = file.as_typed(options.keep or ())
    unseen = Unseen(fitted.encoder)
    nobody_looks = session.quiet or (options.out == STDOUT and sys.stdout.isatty())
    with ProgressBar(file.num_rows, False if nobody_looks else None) as bar:
        batches = _predictions(fitted, file, options, levels, unseen, bar)
        rows = _write(options.out, batches)
    for warning in (*map(str, file.notes), *unseen.warnings(), fitted.why_infinite(options.interval)):
        if warning:
            session.warn(warning)
    if options.out != STDOUT:
        session.say(f"{rows:,} rows predicted: {options.out} ({file_size(options.out)})")


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


def _predictions(
    fitted: "Fitted",
    file: "FileTable",
    options: PredictOptions,
    levels: tuple[float, ...],
    unseen: Unseen,
    bar: "ProgressBar",
) -> Iterator["pa.RecordBatch"]:
    """Yield kept columns and predictions, batch by batch."""
    import pyarrow as pa
    import torch

    from dspp.table.arrays import decoded

    generator = torch.Generator().manual_seed(options.seed)
    done = 0
    types = {} if fitted.encoder is None else fitted.encoder.arrow_types()
    for rows in file.batches(options.batch_rows, types):
        new = fitted.predictions(rows, levels, options.interval, options.mixture, options.samples, generator)
        unseen.look(rows)
        assert rows.arrow is not None
        columns = {name: decoded(rows.arrow.column(name).combine_chunks()) for name in options.keep or []}
        names, arrays = [*columns, *new], [*columns.values(), *(pa.array(values) for values in new.values())]
        yield pa.RecordBatch.from_arrays(arrays, names)
        done += len(rows)
        bar.update(done, "predicting", rows=len(rows))

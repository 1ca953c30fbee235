"""`dspp predict`: a stream of rows in, a stream of distributions out."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dspp.cli.files import Unseen, check_columns, check_output, file_size, located
from dspp.cli.options import flag, option, probabilities
from dspp.cli.session import Session
from dspp.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import torch

    from dspp.data.files import TableFile
    from dspp.fitted import Fitted
    from dspp.predictive import Predictive
    from dspp.progress import ProgressBar

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
    from dspp.data.csvfile import CsvFile
    from dspp.data.files import open_table
    from dspp.progress import ProgressBar

    fitted = modelfile.load(options.model)
    file = open_table(options.new)
    check_columns(options.new, file.names, options.keep or (), "--keep")
    if isinstance(file, CsvFile):  # which has no types to keep: what is copied stays as it was typed
        file = file.as_typed(options.keep or ())
    unseen = Unseen(fitted.encoder)
    nobody_looks = session.quiet or (options.out == STDOUT and sys.stdout.isatty())
    with located(file), ProgressBar(file.num_rows, False if nobody_looks else None) as bar:
        batches = _predicted(fitted, file, options, levels, unseen, bar)
        rows = _write(options.out, batches)
    for warning in (*file.notes, *unseen.warnings(), *_infinite(fitted, options.interval)):
        session.warn(warning)
    if options.out != STDOUT:
        session.say(f"{rows:,} rows predicted: {options.out} ({file_size(options.out)})")


def _write(out: Path, batches: Iterator["pa.RecordBatch"]) -> int:
    from dspp.data.files import write_table
    from dspp.data.messages import check_names

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


def _predicted(
    fitted: "Fitted",
    file: "TableFile",
    options: PredictOptions,
    levels: tuple[float, ...],
    unseen: Unseen,
    bar: "ProgressBar",
) -> Iterator["pa.RecordBatch"]:
    """Yield kept columns and predictions, batch by batch."""
    import pyarrow as pa
    import torch

    from dspp.data.arrays import decoded

    generator = torch.Generator().manual_seed(options.seed)
    kept = options.keep or []
    types = {} if fitted.encoder is None else fitted.encoder.arrow_types()
    row = 0
    for batch in file.batches(options.batch_rows, types):
        mixture = fitted.distribution(encoded(fitted, batch, file.path, row), row, str(file.path))
        unseen.look(batch)
        columns = {name: decoded(batch.column(name)) for name in kept}
        new = predictions(fitted, mixture, levels, options.interval, options.mixture, options.samples, generator)
        names, arrays = [*columns, *new], [*columns.values(), *(pa.array(values) for values in new.values())]
        yield pa.RecordBatch.from_arrays(arrays, names)
        row += len(batch)
        bar.update(row, "predicting", rows=len(batch))


def encoded(fitted: "Fitted", batch: Any, path: Path, first_row: int = 0) -> "np.ndarray":
    """The rows of a table or batch as the model reads them.

    Raises:
        InputError: A column is missing, or a value does not read as what training had there.
    """
    import pyarrow as pa

    from dspp.data.inputs import Inputs

    if fitted.encoder is not None:
        return fitted.encoder.transform(batch, first_row=first_row, where=str(path))
    table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
    names = [name for name in table.column_names if name not in fitted.target_names]
    if len(names) != fitted.num_inputs:
        raise InputError(
            f"{path}: got {len(names)} columns, expected {fitted.num_inputs}: this model was trained on an array, "
            "whose columns have no names, so that it takes them in order"
        )
    return Inputs.of(table.select(names)).encode(None, first_row, str(path))


def predictions(
    fitted: "Fitted",
    mixture: "Predictive",
    levels: tuple[float, ...],
    interval: float | None,
    components: bool,
    samples: int,
    generator: "torch.Generator",
) -> dict[str, "np.ndarray"]:
    """The columns of predictions, output by output."""
    import torch

    from dspp.data.columns import quantile_name

    draws = mixture.sample(samples, generator).reshape(samples, len(mixture), -1) if samples else None
    ends = _interval(fitted, mixture, interval) if interval is not None else None
    columns: dict[str, torch.Tensor] = {}
    for t, (name, one) in enumerate(zip(fitted.target_names, mixture.outputs(), strict=True)):
        columns |= {f"{name}_mean": one.mean, f"{name}_std": one.std}
        if levels:
            quantiles = one.quantile(torch.tensor(levels, dtype=torch.float64))
            columns |= {f"{name}_{quantile_name(level)}": row for level, row in zip(levels, quantiles, strict=True)}
        if ends is not None:
            columns |= {f"{name}_{end}": v[:, t] for end, v in zip(("lower", "upper"), ends, strict=True)}
        if components:
            columns |= _components(name, one)
        if draws is not None:
            columns |= {f"{name}_sample_{k}": draws[k, :, t] for k in range(samples)}
    return {name: column.contiguous().numpy() for name, column in columns.items()}


def _infinite(fitted: "Fitted", coverage: float | None) -> list[str]:
    """Why recalibrated intervals are infinite, if they are."""
    if coverage is None or fitted.recalibration is None:
        return []
    why = fitted.recalibration.why_infinite(coverage, fitted.target_names)
    return [f"at a coverage of {coverage:g} intervals are infinite: {why}"] if why else []


def _interval(fitted: "Fitted", mixture: "Predictive", coverage: float) -> tuple["torch.Tensor", "torch.Tensor"]:
    """The ends (N, T) of the central intervals, recalibrated where the model has calibration scores."""
    import torch

    if fitted.recalibration is not None:
        lower, upper = fitted.recalibration.interval(mixture, coverage)
        return lower.reshape(len(mixture), -1), upper.reshape(len(mixture), -1)
    parts = [one.interval(coverage) for one in mixture.outputs()]
    lower, upper = (torch.stack(ends, dim=1) for ends in zip(*parts, strict=True))
    return lower, upper


def _components(name: str, one: Any) -> dict[str, "torch.Tensor"]:
    """Weight, mean and standard deviation of each component."""
    columns: dict[str, torch.Tensor] = {}
    std = one.component_var.sqrt()
    for k, weight in enumerate(one.weights):
        columns |= {
            f"{name}_weight_{k}": weight.expand(len(one)),
            f"{name}_mean_{k}": one.component_mean[k],
            f"{name}_std_{k}": std[k],
        }
    return columns

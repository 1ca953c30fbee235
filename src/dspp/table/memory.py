"""Conversion of X and y, whatever library they come from, to a table in memory."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from numbers import Real
from types import NoneType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float
from pyarrow import types

from dspp.errors import InputError
from dspp.notes import note_missing_targets
from dspp.table import arrays
from dspp.table.checks import check_X, check_y
from dspp.table.frames import has_string_names, is_frame, to_arrow
from dspp.table.messages import Place
from dspp.table.table import Table

Reader = Callable[[pa.Table, Place], Float[np.ndarray, "N C"]]

BLOCK: Final = 16_384  # rows converted at once, so that the block stays in the CPU cache


def to_table(X: Any, name: str = "X", may_be_empty: bool = False) -> Table:
    """Return a data frame with string names as a table of columns, anything else as an array; X is not modified.

    Args:
        X: The rows.
        name: The name used in errors.
        may_be_empty: Whether X may have no rows, as in predictions.

    Raises:
        InputError: X is neither.
    """
    if not is_frame(X) or not has_string_names(X, name):
        return Table(name, array=check_X(_objects_to_numbers(X), name, may_be_empty))
    arrow = to_arrow(X, name)
    if (arrow.num_rows == 0 and not may_be_empty) or arrow.num_columns == 0:
        raise InputError(
            f"{name}: got {arrow.num_rows} sample(s) and {arrow.num_columns} feature(s) "
            f"(shape={arrow.shape}) while a minimum of 1 is required; check the filter it came from"
        )
    table = Table(name, arrow=arrow)
    check_no_inf(table)  # here, before rows are split off
    return table


def attach_targets(table: Table, y: Any, name: str = "y", every_output: bool = True) -> Table:
    """Return the table with targets that were passed separately; see `targets`."""
    names = target_names(y)
    values = targets(y, len(table), name, every_output)
    values = values.reshape(len(values), -1)
    several = values.shape[1] > 1
    return table.with_targets(values, names or tuple(f"y{t}" if several else "y" for t in range(values.shape[1])))


def split_targets(table: Table, names: Sequence[str], drop: Sequence[str] = (), read: Reader | None = None) -> Table:
    """Return the rows that have a target, with the columns `names` as targets and without the columns `drop`.

    Args:
        table: Rows with named columns.
        names: The columns to predict.
        drop: Columns to leave out.
        read: Returns the values of target columns, NaN where not observed; None: they are numbers.

    Raises:
        InputError: A target is not valid, or has no values.
    """
    assert table.arrow is not None
    y = (read or read_numbers)(table.arrow.select(list(names)), table.place)
    empty = [name for name, column in zip(names, y.T, strict=True) if np.isnan(column).all()]
    if empty:
        raise InputError(f"{table.where}: column {empty[0]!r}: expected numbers, got no values")
    observed = ~np.isnan(y).all(axis=1)
    inputs = table.select([name for name in table.names if name not in (*names, *drop)]).with_targets(y, names)
    if observed.all():
        return inputs
    notes = (*table.notes, *note_missing_targets(int((~observed).sum())))
    return replace(inputs.take(np.flatnonzero(observed)), notes=notes)


def read_numbers(columns: pa.Table, place: Place) -> Float[np.ndarray, "N T"]:
    """Return columns of targets as float64, NaN where missing.

    Raises:
        InputError: A column contains anything but finite numbers.
    """
    return np.column_stack([_read_numbers(columns.column(name), place.of(name)) for name in columns.column_names])


def _read_numbers(column: pa.ChunkedArray, place: Place) -> Float[np.ndarray, " N"]:
    column = column.combine_chunks()
    kind = column.type
    arrays.check_no_classes(column, place)
    if not any(test(kind) for test in (arrays.is_number, arrays.is_text, types.is_boolean, types.is_null)):
        raise place.error(f"expected numbers to predict, got {kind}; convert the column to numbers")
    if arrays.is_text(kind) and not arrays.can_cast(column, pa.float64()) and arrays.can_cast(column, pa.bool_()):
        column = column.cast(pa.bool_())  # a batch of a text file
    values = arrays.numbers(column, place)
    arrays.check_finite(values, place)
    return values


def target_names(y: Any) -> tuple[str, ...] | None:
    """Return the names of the targets, or None if they have none."""
    if not is_frame(y) or not has_string_names(y, "y"):
        return None
    return tuple(to_arrow(y, "y").column_names)


def targets(y: Any, num_rows: int, name: str = "y", every_output: bool = True) -> Float[np.ndarray, " N *T"]:
    """Return the targets as float64: (N,), or (N, T) with NaN where an output was not observed.

    Args:
        y: The targets.
        num_rows: The number of rows of X.
        name: The name used in errors.
        every_output: Whether each output must be observed in at least one row, as in training rows.

    Raises:
        InputError: y has the wrong number of rows, or contains anything but finite numbers (with one output, NaN).
    """
    if is_frame(y) and has_string_names(y, name):
        table, place = to_arrow(y, name), Place(name)
        for label in table.column_names:
            arrays.check_no_classes(table.column(label).combine_chunks(), place.of(label))
        columns = number_columns(table, place)
        y = columns if hasattr(y, "columns") or hasattr(y, "column_names") else columns[:, 0]
    return check_y(_objects_to_numbers(y), num_rows, name, missing=True, every_output=every_output)


def number_columns(table: pa.Table, place: Place) -> Float[np.ndarray, "N K"]:
    """Return a table of numbers as an array, NaN where missing, filled in blocks that stay in the CPU cache."""
    out = np.empty(table.shape)
    start = 0
    for batch in table.to_batches(max_chunksize=BLOCK):
        for k, label in enumerate(table.column_names):
            out[start : start + len(batch), k] = arrays.numbers(batch.column(k), place.of(label, start))
        start += len(batch)
    return out


def check_no_inf(table: Table) -> None:
    """Raise `InputError` for the first infinite number."""
    assert table.arrow is not None
    for label, column in zip(table.names, table.arrow.columns, strict=True):
        if types.is_floating(column.type) and pc.any(pc.is_inf(column)).as_py():
            arrays.check_finite(np.asarray(column), table.place.of(label))


def _objects_to_numbers(data: Any) -> Any:
    """Convert an array of objects that are all numbers or None; return anything else unchanged, for the checks."""
    if (
        not isinstance(data, np.ndarray)
        or data.dtype != object
        or not all(map(_is_numeric_type, set(map(type, data.flat))))
    ):
        return data
    try:
        return data.astype(np.float64)
    except (OverflowError, ValueError):  # 10⁴⁰⁰, or a signalling decimal
        return data


def _is_numeric_type(kind: type) -> bool:
    """Return whether values of this type are numbers or None; timedelta64 is an np.integer, but has a unit."""
    return issubclass(kind, Real | Decimal | np.bool_ | NoneType) and not issubclass(kind, np.timedelta64)

"""Tables in memory from what users pass, with targets, weights, groups and times of the rows.

These come beside X, from any library, or are columns of the table. Weights are numbers ≥ 0, kept with mean one over the
rows that count. Groups are integers from 0. Times are numbers that only their order matters of: seconds, microseconds
or the user's own.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from numbers import Real
from types import NoneType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float, Int, Shaped
from pyarrow import types

from dspp.errors import InputError
from dspp.notes import Note, note_missing_targets
from dspp.table import arrays
from dspp.table.checks import advice, check_not_negative, check_weights, check_X, check_y, normalise_weights
from dspp.table.frames import check_zones, has_string_names, is_frame, to_arrow
from dspp.table.messages import Place
from dspp.table.table import Table

Reader = Callable[[pa.Table, Place], Float[np.ndarray, "N C"]]
Column = tuple[pa.Array, Place]


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
    table.check_no_inf()  # here, before rows are split off
    return table


def _objects_to_numbers(data: Any) -> Any:
    """Convert an array of objects that are all numbers or None; return anything else unchanged, for the checks."""
    if not (isinstance(data, np.ndarray) and data.dtype == object):
        return data
    if not all(map(_is_numeric_type, set(map(type, data.flat)))):
        return data
    try:
        return data.astype(np.float64)
    except (OverflowError, ValueError):  # 10⁴⁰⁰, or a signalling decimal
        return data


def _is_numeric_type(kind: type) -> bool:
    """Return whether values of this type are numbers or None; timedelta64 is an np.integer, but has a unit."""
    return issubclass(kind, Real | Decimal | np.bool_ | NoneType) and not issubclass(kind, np.timedelta64)


# ---------------------------------------------------------------- what was passed beside X


def attach_targets(table: Table, y: Any, name: str = "y") -> Table:
    """Return the table with targets (N, T) from any library, NaN where one of several outputs was not observed.

    Raises:
        InputError: y has the wrong number of rows, or contains anything but finite numbers (with one output, NaN).
    """
    names: list[str] = []
    if is_frame(y) and has_string_names(y, name):
        frame, place = to_arrow(y, name), Place(name)
        names = frame.column_names
        for label in names:
            arrays.check_no_classes(frame.column(label).combine_chunks(), place.of(label))
        columns = arrays.number_columns(frame, place)
        y = columns if hasattr(y, "columns") or hasattr(y, "column_names") else columns[:, 0]  # a series has no axis
    values = check_y(_objects_to_numbers(y), len(table), name, missing=True)
    values = values.reshape(len(values), -1)
    several = values.shape[1] > 1
    return table.with_targets(values, names or [f"y{t}" if several else "y" for t in range(values.shape[1])])


def attach_roles(
    table: Table, weights: Any = None, groups: Any = None, times: Any = None, weights_name: str = "sample_weight"
) -> Table:
    """Return the table with what was passed separately, one valid value per row each, or raise `InputError`."""
    checked = None if weights is None else check_weights(weights, len(table), weights_name)
    return _with_roles(table, checked, _to_column(groups, table, "groups"), _to_column(times, table, "time"))


def _to_column(values: Any, table: Table, name: str) -> Column | None:
    if values is None:
        return None
    columns = to_columns(values, len(table), name)
    if columns.num_columns != 1:
        raise _other_rows(columns, len(table), name)
    return columns.column(0).combine_chunks(), Place(name)


def to_columns(values: Any, num_rows: int, name: str) -> pa.Table:
    """Return values of any type, from any library, as columns with one value per row, or raise `InputError`."""
    try:
        if is_frame(values) and has_string_names(values, name):
            table = to_arrow(values, name)
        else:
            array = np.asarray(values)
            if array.dtype == object:
                check_zones(array.flat, Place(name))
            columns = [pa.array(part, from_pandas=True) for part in array.reshape(len(array), -1).T]
            several = len(columns) > 1
            table = pa.table({f"{name}{k}" if several else name: column for k, column in enumerate(columns)})
    except InputError:
        raise
    except (pa.ArrowException, TypeError, ValueError):
        what_to_do = advice(values) or "use values of one type"
        raise InputError(f"{name}: expected one value per row, got {values!r:.60}; {what_to_do}") from None
    if table.num_rows != num_rows or not table.num_columns:
        raise _other_rows(table, num_rows, name)
    return table


def _other_rows(table: pa.Table, num_rows: int, name: str) -> InputError:
    return InputError(
        f"{name}: expected {num_rows} values, one per row of X, got {table.num_rows} rows of {table.num_columns} "
        f"columns; pass {name} with the rows of X in the same order"
    )


# ---------------------------------------------------------------- what columns of the table say


def label_rows(
    table: Table,
    targets: Sequence[str],
    drop: Sequence[str] = (),
    weight: str | None = None,
    group: str | None = None,
    time: str | None = None,
    read: Reader | None = None,
) -> Table:
    """Return the rows that have a target, with what columns of the table say of them; the other columns are inputs.

    Args:
        table: Rows with named columns.
        targets: The columns to predict.
        drop: Columns to leave out.
        weight: The column of weights.
        group: The column of groups.
        time: The column of times, which is also an input.
        read: Returns the values of target columns, NaN where not observed; None: they are numbers.

    Raises:
        InputError: A target or one of the other columns has a value that is not valid, a target has no values, or no
            input is left.
    """
    assert table.arrow is not None
    arrow, place = table.arrow, table.place

    def column(name: str) -> Column:
        return arrow.column(name).combine_chunks(), place.of(name)

    weights = None if weight is None else normalise_weights(column_weights(*column(weight)), place.of(weight))
    groups, times = (None if name is None else column(name) for name in (group, time))
    found = _with_roles(table, weights, groups, times)
    y = (read or read_numbers)(arrow.select(list(targets)), place)
    empty = [name for name, values in zip(targets, y.T, strict=True) if np.isnan(values).all()]
    if empty:
        raise place.of(empty[0]).error("expected numbers, got no values")
    inputs = [name for name in table.names if name not in (*targets, *drop, weight, group)]
    if not inputs:
        raise place.error("expected at least one input column, got none; drop fewer columns")
    found = replace(found.select(inputs).with_targets(y, targets), table_rows=table.num_table_rows)
    observed = ~np.isnan(y).all(axis=1)
    if observed.all():
        return found
    notes = (*table.notes, *note_missing_targets(int((~observed).sum())))
    return replace(found.take(np.flatnonzero(observed)), notes=notes)


def read_numbers(columns: pa.Table, place: Place) -> Float[np.ndarray, "N T"]:
    """Return columns of finite numbers as float64, NaN where missing, or raise `InputError`."""
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


# ---------------------------------------------------------------- weights, groups and times


def _with_roles(
    table: Table, weights: Float[np.ndarray, " N"] | None, group: Column | None, time: Column | None
) -> Table:
    if group is not None and time is not None:
        raise InputError(
            "expected groups or times, got both: a group may have rows before and after any time; pass one of them"
        )
    groups = None if group is None else _group_codes(*group)
    times = None if time is None else _time_keys(*time)
    return replace(table, weights=weights, groups=groups, times=times)


def drop_weightless(table: Table) -> Table:
    """Return the rows whose weight is positive."""
    if table.weights is None or table.weights.all():
        return table
    kept = table.take(np.flatnonzero(table.weights))
    return replace(kept, notes=(*table.notes, *note_weightless(len(table) - len(kept))))


def note_weightless(count: int) -> list[Note]:
    """Return a note on rows of weight 0; none without such rows."""
    what = f"{count:,} row{'' if count == 1 else 's'} of weight 0 {'is' if count == 1 else 'are'} left out"
    return [Note("", what)] if count else []


def column_weights(column: pa.Array, place: Place) -> Float[np.ndarray, " N"]:
    """Return the weights in a column as they are, or raise `InputError` if one is negative, not finite or missing."""
    found = arrays.numbers(column, place)
    arrays.check_finite(found, place)
    return check_not_negative(found, place)


def _group_codes(column: pa.Array, place: Place) -> Int[np.ndarray, " N"]:
    """Return the group of each row as a number, from labels of any type."""
    labels = arrays.decode(column)
    labels = arrays.clean(labels) if arrays.is_text(labels.type) else labels
    if types.is_nested(labels.type):
        raise place.error(f"expected labels of groups, got {labels.type}; pass text or numbers")
    _check_complete(labels, place, "a group")
    return np.asarray(labels.dictionary_encode().indices.to_numpy(zero_copy_only=False), dtype=np.int64)


def _time_keys(column: pa.Array, place: Place) -> Shaped[np.ndarray, " N"]:
    """Return numbers in the order of the times, from numbers, dates, timestamps or texts of either."""
    values = arrays.decode(column)
    if arrays.is_text(values.type):
        text = arrays.clean(values)
        values = text.cast(pa.float64()) if arrays.can_cast(text, pa.float64()) else arrays.parse_datetimes(text, place)
    if not (arrays.is_number(values.type) or arrays.is_datetime(values.type)):
        raise place.error(f"expected dates, timestamps or numbers, got {values.type}")
    _check_complete(values, place, "a time")
    if arrays.is_datetime(values.type):
        return arrays.datetimes(values, place)[0]
    keys = arrays.numbers(values, place)
    arrays.check_finite(keys, place)
    return keys


def _check_complete(column: pa.Array, place: Place, what: str) -> None:
    missing = np.flatnonzero(pc.is_null(column, nan_is_null=True).to_numpy(zero_copy_only=False))
    if len(missing):
        raise place.error(f"expected {what} in every row, got none; fill it in, or remove the row", int(missing[0]))

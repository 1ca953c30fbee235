"""What is known of rows besides inputs and targets: how much they count, which belong together, and when they occurred.

Weights are numbers ≥ 0, returned with mean one over the rows that count. Groups are integers from 0. Times are numbers
that only their order matters of: seconds, microseconds or the user's own.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float, Int, Shaped
from pyarrow import types

from dspp.errors import InputError
from dspp.notes import Note
from dspp.table import arrays
from dspp.table.checks import Array, advice, check_y
from dspp.table.frames import check_zones, has_string_names, is_frame, to_arrow
from dspp.table.memory import Reader, split_targets
from dspp.table.messages import Place
from dspp.table.table import Table

_ROUNDING = 1e-12  # of weights: those that are normalised stay as they are, to the bit


def attach_roles(
    table: Table, weights: Any = None, groups: Any = None, times: Any = None, weights_name: str = "sample_weight"
) -> Table:
    """Return the table with what was passed separately, one value per row each; None: not given.

    Raises:
        InputError: A value is missing or not valid, their number is not that of the rows, or both groups and times are
            given.
    """
    count = len(table)
    return _with_roles(
        table,
        None if weights is None else check_weights(weights, count, weights_name),
        None if groups is None else group_codes(_to_column(groups, count, "groups"), Place("groups")),
        None if times is None else time_keys(_to_column(times, count, "time"), Place("time")),
    )


def split_roles(table: Table, weight: str | None = None, group: str | None = None, time: str | None = None) -> Table:
    """Return the table with what columns of it say; those of weights and groups are no inputs, that of times still is.

    Raises:
        InputError: As for `attach_roles`.
    """
    if weight is None and group is None and time is None:
        return table
    assert table.arrow is not None

    def column(name: str) -> tuple[pa.Array, Place]:
        assert table.arrow is not None
        return table.arrow.column(name).combine_chunks(), table.place.of(name)

    found = _with_roles(
        table,
        None if weight is None else _normalise(column_weights(*column(weight)), f"{table.where}: column {weight!r}"),
        None if group is None else group_codes(*column(group)),
        None if time is None else time_keys(*column(time)),
    )
    return found.select(name for name in found.names if name not in (weight, group))


def label_rows(
    rows: Table,
    targets: Sequence[str],
    drop: Sequence[str] = (),
    weight: str | None = None,
    group: str | None = None,
    time: str | None = None,
    read: Reader | None = None,
) -> Table:
    """Return the rows that have a target, with what columns of the table say of them; see `prepare`.

    Raises:
        InputError: A target or one of the other columns has a value that is not valid, or no input is left.
    """
    found = split_targets(split_roles(rows, weight, group, time), targets, drop, read)
    if not found.names:
        raise InputError(f"{rows.where}: expected at least one input column, got none; drop fewer columns")
    return replace(found, table_rows=rows.num_table_rows)


def drop_weightless(table: Table, every_output: bool = True) -> Table:
    """Return the rows whose weight is positive.

    Raises:
        InputError: With `every_output`, as in training rows: none of them has a value of some output.
    """
    if table.weights is None or table.weights.all():
        return table
    kept = table.take(np.flatnonzero(table.weights))
    empty = [] if kept.y is None or not every_output else np.flatnonzero(np.isnan(kept.y).all(axis=0)).tolist()
    if empty:
        name = table.target_names[empty[0]]
        raise InputError(f"{table.where}: output {name!r}: expected values in rows of positive weight, got none")
    return replace(kept, notes=(*table.notes, *note_weightless(len(table) - len(kept))))


def note_weightless(count: int) -> list[Note]:
    """Return a note on rows of weight 0; none without such rows."""
    what = f"{count:,} row{'' if count == 1 else 's'} of weight 0 {'is' if count == 1 else 'are'} left out"
    return [Note("", what)] if count else []


# ---------------------------------------------------------------- weights


def check_weights(weights: Array, num_rows: int, name: str = "sample_weight") -> Float[np.ndarray, " N"]:
    """Return one weight per row, with mean one over the positive ones.

    Raises:
        InputError: A weight is negative or not finite, all are zero, or their number is not that of the rows.
    """
    found = check_y(weights, num_rows, name)
    if found[:1].size != 1:
        raise InputError(f"{name}: expected shape ({num_rows},), got {found.shape}; pass one weight per row")
    found = found.reshape(-1)
    negative = np.flatnonzero(found < 0)
    if len(negative):
        raise InputError(
            f"{name}: row {negative[0]}: expected a weight ≥ 0, got {found[negative[0]]:g}; use 0 to leave a row out"
        )
    return _normalise(found, name)


def column_weights(column: pa.Array, place: Place) -> Float[np.ndarray, " N"]:
    """Return the weights in a column as they are.

    Raises:
        InputError: A weight is negative, not finite or missing.
    """
    found = arrays.numbers(column, place)
    arrays.check_finite(found, place)
    bad = np.flatnonzero(~(found >= 0))
    if len(bad):
        got = "no value" if np.isnan(found[bad[0]]) else f"{found[bad[0]]:g}"
        raise place.error(f"expected a weight ≥ 0, got {got}; use 0 to leave a row out", int(bad[0]))
    return found


def _normalise(weights: Float[np.ndarray, " N"], name: str) -> Float[np.ndarray, " N"]:
    if not weights.any():
        raise InputError(f"{name}: expected some positive weights, got only zeros; leave the weights out")
    shares = weights / weights.max()  # the sum of large weights may overflow
    found = np.asarray(shares / shares[shares > 0].mean())
    return weights if np.allclose(found, weights, _ROUNDING, 0.0) else found


# ---------------------------------------------------------------- groups and times


def group_codes(column: pa.Array, place: Place) -> Int[np.ndarray, " N"]:
    """Return the group of each row as a number, from labels of any type.

    Raises:
        InputError: A row has no label.
    """
    labels = arrays.decode(column)
    labels = arrays.clean(labels) if arrays.is_text(labels.type) else labels
    if types.is_nested(labels.type):
        raise place.error(f"expected labels of groups, got {labels.type}; pass text or numbers")
    _check_complete(labels, place, "a group")
    return np.asarray(labels.dictionary_encode().indices.to_numpy(zero_copy_only=False), dtype=np.int64)


def time_keys(column: pa.Array, place: Place) -> Shaped[np.ndarray, " N"]:
    """Return numbers in the order of the times, from numbers, dates, timestamps or texts of either.

    Raises:
        InputError: A row has no time, or something else than a time.
    """
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


def to_columns(values: Any, num_rows: int, name: str) -> pa.Table:
    """Return values of any type, from any library, as columns with one value per row.

    Raises:
        InputError: They are no table, or their number is not that of the rows.
    """
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
    except (pa.ArrowException, TypeError, ValueError) as problem:
        if isinstance(problem, InputError):
            raise
        what_to_do = advice(values) or "use values of one type"
        raise InputError(f"{name}: expected one value per row, got {values!r:.60}; {what_to_do}") from None
    if table.num_rows != num_rows or not table.num_columns:
        raise _other_rows(table, num_rows, name)
    return table


def _to_column(values: Any, num_rows: int, name: str) -> pa.Array:
    """Return one value per row as an Arrow column."""
    table = to_columns(values, num_rows, name)
    if table.num_columns != 1:
        raise _other_rows(table, num_rows, name)
    return table.column(0).combine_chunks()


def _other_rows(table: pa.Table, num_rows: int, name: str) -> InputError:
    return InputError(
        f"{name}: expected {num_rows} values, one per row of X, got {table.num_rows} rows of {table.num_columns} "
        f"columns; pass {name} with the rows of X in the same order"
    )


def _with_roles(
    table: Table,
    weights: Float[np.ndarray, " N"] | None,
    groups: Int[np.ndarray, " N"] | None,
    times: Shaped[np.ndarray, " N"] | None,
) -> Table:
    if groups is not None and times is not None:
        raise InputError(
            "expected groups or times, got both: a group may have rows before and after any time; pass one of them"
        )
    return replace(table, weights=weights, groups=groups, times=times)

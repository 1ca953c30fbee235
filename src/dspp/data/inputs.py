"""What a user passes as X and y, whatever library it comes from, as rows that can be picked and encoded."""

from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from types import NoneType
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float, Int
from pyarrow import types

from dspp.data.arrays import numbers
from dspp.data.checks import check_width, check_X, check_y
from dspp.data.columns import check_finite
from dspp.data.encoding import BLOCK, TableEncoder
from dspp.data.frames import has_string_names, is_frame, to_arrow
from dspp.data.messages import Place
from dspp.errors import InputError


@dataclass(frozen=True)
class Inputs:
    """The rows of X: columns of any kind with names, or plain numbers."""

    table: pa.Table | None
    array: Float[np.ndarray, "N D"] | None

    @classmethod
    def of(cls, X: Any, name: str = "X") -> Self:
        """Take a data frame with string names as a table, anything else as numbers; X itself is never changed.

        Raises:
            InputError: It is neither.
        """
        if is_frame(X) and has_string_names(X, name):
            table = to_arrow(X, name)
            if table.num_rows == 0 or table.num_columns == 0:
                raise InputError(
                    f"{name}: got {table.num_rows} sample(s) and {table.num_columns} feature(s) "
                    f"(shape={table.shape}) while a minimum of 1 is required. Look at the filter this came from."
                )
            check_no_inf(table, name)  # here, before rows are split off: the error names the row of the user's table
            return cls(table, None)
        return cls(None, check_X(_numbers(X), name))

    def __len__(self) -> int:
        return self.table.num_rows if self.table is not None else len(self._numbers)

    @property
    def _numbers(self) -> Float[np.ndarray, "N D"]:
        assert self.array is not None
        return self.array

    def take(self, rows: Int[np.ndarray, " K"]) -> Self:
        """Some of the rows."""
        if self.table is not None:
            return type(self)(self.table.take(rows), None)
        return type(self)(None, self._numbers[rows])

    def learn(self, *others: "Inputs") -> TableEncoder | None:
        """How these rows are to be encoded; None for plain numbers, which are taken as they are.

        Columns may have gaps where these rows or `others` have some.
        """
        if self.table is None:
            return None
        encoder = TableEncoder.fit(self.table)
        for other in others:
            encoder = encoder if other.table is None or not len(other) else encoder.marking(other.table)
        return encoder

    def encode(self, encoder: TableEncoder | None, first_row: int = 0, where: str = "X") -> Float[np.ndarray, "N D"]:
        """The rows as numbers, the way `encoder` was taught; a table is copied once, numbers not at all.

        Raises:
            InputError: A value is not what training had in its column, or is not finite; the error names it.
        """
        if encoder is not None:
            table = self.table if self.table is not None else _named(self._numbers, encoder)
            return encoder.transform(table, first_row=first_row, where=where)
        if self.table is None:
            return self._numbers
        return _finite(_columns(self.table, where, first_row), self.table.column_names, where, first_row)


def target_names(y: Any) -> tuple[str, ...] | None:
    """The names of the targets, where they have any."""
    if not is_frame(y) or not has_string_names(y, "y"):
        return None
    return tuple(to_arrow(y, "y").column_names)


def targets(y: Any, num_rows: int, name: str = "y", every_output: bool = True) -> Float[np.ndarray, " N *T"]:
    """The targets as float64: (N,), or (N, T) with NaN where an output was not observed.

    Args:
        y: The targets.
        num_rows: Of the inputs they belong to.
        name: What to call them in an error.
        every_output: Whether each output must be observed in some row, as in rows to learn from.

    Raises:
        InputError: They are not numbers, not as many as rows, or hold inf, or NaN in the only output.
    """
    if is_frame(y) and has_string_names(y, name):
        columns = _columns(to_arrow(y, name), name)
        y = columns if hasattr(y, "columns") or hasattr(y, "column_names") else columns[:, 0]
    return check_y(_numbers(y), num_rows, name, missing=True, every_output=every_output)


def _numbers(data: Any) -> Any:
    """An array of objects that are all numbers or None, as numbers; anything else as it is: the check names the odd."""
    if not isinstance(data, np.ndarray) or data.dtype != object or not all(map(_counts, set(map(type, data.flat)))):
        return data
    try:
        return data.astype(np.float64)
    except (OverflowError, ValueError):  # 10⁴⁰⁰, or a decimal that is a signal
        return data


def _counts(kind: type) -> bool:
    """Whether values of this type are numbers or missing; a length of time is numpy's integer, but has a unit."""
    return issubclass(kind, Real | Decimal | np.bool_ | NoneType) and not issubclass(kind, np.timedelta64)


def _columns(table: pa.Table, name: str, first_row: int = 0) -> Float[np.ndarray, "N K"]:
    """A table of numbers as an array, filled in pieces that stay in the cache; NaN where a value is missing."""
    out = np.empty(table.shape)
    start = 0
    for batch in table.to_batches(max_chunksize=BLOCK):
        for k, label in enumerate(table.column_names):
            out[start : start + len(batch), k] = numbers(batch.column(k), Place(name, label, first_row + start))
        start += len(batch)
    return out


def check_no_inf(table: pa.Table | pa.RecordBatch, name: str, first_row: int = 0) -> None:
    """Raise `InputError` for the first infinite number of a column."""
    for label, column in zip(table.column_names, table.columns, strict=True):
        if types.is_floating(column.type) and pc.any(pc.is_inf(column)).as_py():
            check_finite(np.asarray(column), Place(name, label, first_row))


def _finite(array: Float[np.ndarray, "N K"], names: list[str], where: str, first_row: int) -> Float[np.ndarray, "N K"]:
    """The same array, in which every number is finite."""
    finite = np.isfinite(array)
    if not finite.all():
        row, k = np.argwhere(~finite)[0]
        got = "NaN, or no value" if np.isnan(array[row, k]) else f"{array[row, k]}"
        problem = f"got {got}, expected a finite number; fill it in or remove the row"
        raise Place(where, names[k], first_row).error(problem, int(row))
    return array


def _named(array: Float[np.ndarray, "N D"], encoder: TableEncoder) -> pa.Table:
    """Numbers without names, given the names they had in training."""
    names = [column.name for column in encoder.columns]
    check_width(array, len(names))
    return pa.table(dict(zip(names, array.T, strict=True)))

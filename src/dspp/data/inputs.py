"""What a user passes as X and y, whatever library it comes from, as rows that can be picked and encoded."""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int

from dspp.data.checks import check_X, check_y
from dspp.data.encoding import TableEncoder
from dspp.data.frames import Place, has_string_names, is_frame, numbers, to_arrow
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
        if is_frame(X) and has_string_names(X):
            table = to_arrow(X, name)
            if table.num_rows == 0 or table.num_columns == 0:
                raise InputError(
                    f"{name}: got {table.num_rows} sample(s) and {table.num_columns} feature(s) "
                    f"(shape={table.shape}) while a minimum of 1 is required. Look at the filter this came from."
                )
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

    def learn(self) -> TableEncoder | None:
        """How these rows are to be encoded; None for plain numbers, which are taken as they are."""
        return None if self.table is None else TableEncoder.fit(self.table)

    def encode(self, encoder: TableEncoder | None, first_row: int = 0, where: str = "X") -> Float[np.ndarray, "N D"]:
        """The rows as numbers, the way `encoder` was taught."""
        if encoder is None:
            return self._numbers if self.table is None else check_X(_columns(self.table, where), where)
        table = self.table if self.table is not None else _named(self._numbers, encoder)
        return encoder.transform(table, first_row=first_row, where=where)


def target_names(y: Any) -> tuple[str, ...] | None:
    """The names of the targets, where they have any."""
    if not is_frame(y) or not has_string_names(y, "y"):
        return None
    return tuple(to_arrow(y, "y").column_names)


def targets(y: Any, num_rows: int, name: str = "y") -> Float[np.ndarray, " N *T"]:
    """The targets as float64: (N,), or (N, T) with NaN where an output was not observed.

    Raises:
        InputError: They are not numbers, not as many as rows, or hold inf, or NaN in the only output.
    """
    if is_frame(y) and has_string_names(y, name):
        columns = _columns(to_arrow(y, name), name)
        y = columns if hasattr(y, "columns") or hasattr(y, "column_names") else columns[:, 0]
    return check_y(_numbers(y), num_rows, name, missing=True)


def _numbers(data: Any) -> Any:
    """An array of objects that are all numbers, as numbers; anything else as it is."""
    if not isinstance(data, np.ndarray) or data.dtype != object:
        return data
    try:
        return data.astype(np.float64)
    except (TypeError, ValueError):
        return data  # the check that follows names the row and the column


def _columns(table: pa.Table, name: str) -> Float[np.ndarray, "N K"]:
    """A table of numbers as an array; NaN where a value is missing."""
    whole = table.combine_chunks()
    columns = [numbers(_one_chunk(whole.column(label)), Place(name, label)) for label in table.column_names]
    return np.column_stack(columns)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _named(array: Float[np.ndarray, "N D"], encoder: TableEncoder) -> pa.Table:
    """Numbers without names, given the names they had in training."""
    names = [column.name for column in encoder.columns]
    return pa.table(dict(zip(names, array.T, strict=True)))

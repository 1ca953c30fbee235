"""What every table in a file can do, whatever its format: say its columns, be read whole, be streamed in batches."""

import contextlib
import csv
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa

from dspp.data.messages import first_line
from dspp.errors import InputError

BATCH_ROWS: Final = 65_536


@dataclass(frozen=True)
class TableFile(ABC):
    """A table in a file that was there, and looked sound, when it was opened; each reading opens it anew.

    Attributes:
        path: The file.
        names: The names of its columns.
        num_rows: How many rows it has, where that is known without reading it.
        notes: What a user should know, such as which columns are left out.
    """

    path: Path
    names: tuple[str, ...]
    num_rows: int | None = None
    notes: tuple[str, ...] = ()

    @abstractmethod
    def read(self) -> pa.Table:
        """Return the whole table.

        Raises:
            InputError: The file is damaged; the error says where, if it can.
        """

    def batches(
        self, rows: int = BATCH_ROWS, column_types: Mapping[str, pa.DataType] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield the table as batches of `rows` rows, the last one shorter, in memory that does not grow.

        Args:
            rows: The number of rows of a batch.
            column_types: For CSV, the types of some columns (`TableEncoder.arrow_types`); the others are text.
                Files that have types keep their own.

        Raises:
            InputError: The file is damaged, or a cell does not read as the type of its column.
        """
        if rows < 1:
            raise InputError(f"rows: expected at least 1, got {rows}. Try {BATCH_ROWS}.")
        return _regrouped(self._stream(rows, column_types or {}), rows)

    @abstractmethod
    def _stream(self, rows: int, column_types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        """Yield batches of any size, near `rows` where the file leaves a choice."""


@contextlib.contextmanager
def problems_with(path: Path) -> Iterator[None]:
    """Turn what a damaged file makes the libraries raise into one line that names it."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, csv.Error, zlib.error, UnicodeDecodeError) as problem:
        reason = first_line(problem)
        raise InputError(f"{path} cannot be read, it may be damaged or of another kind ({reason})") from None


def _regrouped(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in batches of `rows`."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        while sum(map(len, held)) >= rows:
            joined = _joined(held)
            yield joined[:rows]
            held = [joined[rows:]]
    if sum(map(len, held)):
        yield _joined(held)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    (batch,) = batches if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch

"""Tables, wherever their rows are: in memory, in a file, in several files, or in an Arrow dataset."""

import contextlib
import csv
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float, Int, Shaped
from pyarrow import types

from dspp.errors import InputError
from dspp.notes import Note
from dspp.table import arrays
from dspp.table.messages import Place, first_line

BATCH_ROWS: Final = 65_536

Types = Mapping[str, pa.DataType]


@dataclass(frozen=True, eq=False)
class Table:
    """Rows in memory: named columns of any kind, or an array of numbers; optionally with targets.

    Attributes:
        where: The name used in errors.
        arrow: The columns.
        array: The numbers, if the columns have no names.
        y: The targets, NaN where missing.
        target_names: Their names.
        weights: How much each row counts, if they differ; see `dspp.table.memory` for this and the next two.
        groups: The group of each row, which must stay together.
        times: Numbers in the order in which the rows occurred.
        numbers: The number of each row in the table that this is a part of; None: these are all rows.
        label_of: What to call the row of a number; None: its number.
        line_of: The line of the row of a number, in a text file.
        table_rows: The number of rows of the table that this is a part or a sample of; None: all are here.
        parsed: The values of the columns that a model reads, one number per row each, once they are parsed.
    """

    where: str
    arrow: pa.Table | None = None
    array: Float[np.ndarray, "N D"] | None = None
    y: Float[np.ndarray, "N T"] | None = None
    target_names: tuple[str, ...] = ()
    weights: Float[np.ndarray, " N"] | None = None
    groups: Int[np.ndarray, " N"] | None = None
    times: Shaped[np.ndarray, " N"] | None = None
    numbers: Int[np.ndarray, " N"] | None = None
    label_of: Callable[[int], object] | None = None
    line_of: Callable[[int], int] | None = None
    table_rows: int | None = None
    parsed: Mapping[str, Shaped[np.ndarray, " N"]] | None = None
    notes: tuple[Note, ...] = ()

    def __len__(self) -> int:
        return len(self._content)

    @property
    def num_table_rows(self) -> int:
        """The number of rows of the whole table."""
        return len(self) if self.table_rows is None else self.table_rows

    @property
    def schema(self) -> pa.Schema:
        """The columns; empty if they have no names."""
        return pa.schema([]) if self.arrow is None else self.arrow.schema

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.schema.names)

    @property
    def _content(self) -> Any:
        content = self.arrow if self.arrow is not None else self.array
        assert content is not None
        return content

    @property
    def place(self) -> Place:
        """The place of the first row, for errors."""
        return Place(self.where, label_of=self.label, line_of=self.line_of)

    @property
    def row_numbers(self) -> Int[np.ndarray, " N"]:
        """The number of each row in the whole table."""
        return np.arange(len(self)) if self.numbers is None else self.numbers

    def label(self, row: int) -> object:
        """Return what to call a row, by default its number in the whole table."""
        number = row if self.numbers is None else int(self.numbers[row])
        return number if self.label_of is None else self.label_of(number)

    @property
    def targets(self) -> Float[np.ndarray, "N T"]:
        """The targets, which must not be None."""
        assert self.y is not None
        return self.y

    def batches(self, rows: int = BATCH_ROWS) -> Iterator[Self]:
        """Yield `rows` rows at a time."""
        for start in range(0, len(self), rows):
            yield self.take(np.arange(start, min(start + rows, len(self))))

    def take(self, index: Int[np.ndarray, " K"]) -> Self:
        """Return the rows at `index`, with their labels."""
        by_row = self._by_row.items()
        found: dict[str, Any] = {name: None if values is None else values[index] for name, values in by_row}
        arrow = None if self.arrow is None else self.arrow.take(pa.array(index))
        parsed = None if self.parsed is None else {name: part[index] for name, part in self.parsed.items()}
        return replace(self, arrow=arrow, numbers=self.row_numbers[index], parsed=parsed, **found)

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Return the rows of parts of the same table, which are no longer parsed."""
        first, arrow = parts[0], [part.arrow for part in parts if part.arrow is not None]
        found: dict[str, Any] = {
            name: None if values is None else np.concatenate([part._by_row[name] for part in parts])
            for name, values in first._by_row.items()
        }
        numbers = np.concatenate([part.row_numbers for part in parts])
        return replace(first, arrow=pa.concat_tables(arrow) if arrow else None, numbers=numbers, parsed=None, **found)

    @property
    def _by_row(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("array", "y", "weights", "groups", "times")}

    def check_no_inf(self) -> None:
        """Raise `InputError` for the first infinite number."""
        assert self.arrow is not None
        for label, column in zip(self.names, self.arrow.columns, strict=True):
            if types.is_floating(column.type) and pc.any(pc.is_inf(column)).as_py():
                arrays.check_finite(np.asarray(column), self.place.of(label))

    def select(self, names: Iterable[str]) -> Self:
        """Return the columns `names`."""
        return replace(self, arrow=self._content.select(list(names)))

    def with_targets(self, y: Float[np.ndarray, "N T"], names: Sequence[str]) -> Self:
        """Return the same rows with these targets."""
        return replace(self, y=y, target_names=tuple(names))


@dataclass(frozen=True)
class FileTable(ABC):
    """A table in files, which are opened anew for each reading.

    Attributes:
        path: The file.
        schema: The names and types of the columns; all are text in a text file.
        num_rows: The number of rows, or None if unknown before reading.
        notes: Notes to the user, such as which columns are left out.
    """

    path: Path
    schema: pa.Schema
    num_rows: int | None = None
    notes: tuple[Note, ...] = ()

    @property
    def where(self) -> str:
        """The path as text, for errors."""
        return str(self.path)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(self.schema.names)

    @property
    @abstractmethod
    def files(self) -> tuple[Path, ...]:
        """The files."""

    @property
    @abstractmethod
    def most_rows(self) -> float:
        """A number that the rows cannot exceed."""

    @abstractmethod
    def read(self, column_types: Types | None = None) -> Table:
        """Return the whole table; for `column_types` see `batches`, the types of other columns of text are inferred."""

    def batches(
        self, rows: int = BATCH_ROWS, column_types: Types | None = None, verbatim: Collection[str] = ()
    ) -> Iterator[Table]:
        """Yield the rows in order, `rows` at a time, in bounded memory.

        Args:
            rows: The number of rows per batch; the last one may be smaller.
            column_types: For text files, the types of some columns (`TableEncoder.arrow_types`); the others are text.
                Other tables keep their own types.
            verbatim: Columns of text files exactly as typed: neither stripped nor with missing values replaced.

        Raises:
            InputError: A file is damaged or has changed, or a cell cannot be parsed as the type of its column.
        """
        if rows < 1:
            raise InputError(f"rows: expected at least 1, got {rows}; try {BATCH_ROWS}")
        return self._batches(self._stream(rows, column_types or {}, verbatim), rows)

    def _batches(self, stream: Iterable[pa.RecordBatch], rows: int) -> Iterator[Table]:
        done = 0
        for batch in _regroup(stream, rows):
            yield self._place(pa.Table.from_batches([batch]), np.arange(done, done + len(batch)))
            done += len(batch)

    @abstractmethod
    def _stream(self, rows: int, column_types: Types, verbatim: Collection[str]) -> Iterator[pa.RecordBatch]:
        """Yield batches of any size, close to `rows` if the file format allows it."""

    def to_memory(self, rows: pa.Table, numbers: Int[np.ndarray, " N"] | None = None) -> Table:
        """Return rows of verbatim batches in the types of `read`, with their numbers unless they are all rows."""
        return self._place(rows, numbers)

    @abstractmethod
    def _place(self, rows: pa.Table, numbers: Int[np.ndarray, " N"] | None) -> Table:
        """Return rows of this table with what they are called in errors."""


@contextlib.contextmanager
def name_file_in_errors(path: Path) -> Iterator[None]:
    """Convert the errors that libraries raise for a damaged file to an `InputError` that names the file."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, csv.Error, zlib.error, UnicodeError) as problem:
        reason = first_line(problem)
        raise InputError(
            f"{path}: cannot read the file, which may be damaged or in another format ({reason})"
        ) from None


def _regroup(batches: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the same rows, `rows` at a time."""
    pending: list[pa.RecordBatch] = []
    for batch in batches:
        pending.append(batch)
        while sum(map(len, pending)) >= rows:
            whole = _join_batches(pending)
            yield whole[:rows]
            pending = [whole[rows:]]
    if sum(map(len, pending)):
        yield _join_batches(pending)


def _join_batches(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    (batch,) = batches if len(batches) == 1 else pa.Table.from_batches(batches).combine_chunks().to_batches()
    return batch

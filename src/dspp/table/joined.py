"""Tables that may be larger than memory: several files, or the parts of an Arrow dataset, one after the other."""

import glob
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from dspp.errors import InputError
from dspp.notes import Note
from dspp.table.arrays import kind_of, plain_schema
from dspp.table.files import TYPED, open_file
from dspp.table.messages import check_names, first_line, listed
from dspp.table.table import BATCH_ROWS, FileTable, MemoryTable, Table, Types, join, problems_with

if TYPE_CHECKING:
    import pyarrow.dataset


@dataclass(frozen=True)
class JoinedTable(Table):
    """Tables with the same columns, one after the other; they are read anew each time.

    Attributes:
        parts: The tables, each of which has rows.
        schema: Their columns; a type may differ between files that hold the same kind of values.
    """

    where: str
    parts: tuple[FileTable, ...]
    schema: pa.Schema
    notes: tuple[Note, ...] = ()

    @property
    def num_rows(self) -> int:  # type: ignore[override]
        """How many rows there are."""
        return sum(part.num_rows or 0 for part in self.parts)

    @property
    def can_be_found_again(self) -> bool:
        """Whether another process would know the rows by their stamps: they are in files, not in memory."""
        return all(part.is_file for part in self.parts)

    def stamps(self) -> list[list[Any]]:
        """Path, size and time of change of each file, as they are now."""
        return [part.stamp() for part in self.parts]

    def read(self, column_types: Types | None = None) -> MemoryTable:
        """Return all rows."""
        parts = [batch.with_targets(np.empty((len(batch), 0)), ()) for batch in self.batches()]
        return join(parts, self.where, self.schema, ())

    def batches(self, rows: int = BATCH_ROWS, column_types: Types | None = None) -> Iterator[MemoryTable]:
        """Yield `rows` rows at a time; each batch is called by the file that it comes from."""
        names = [part.path.name for part in self.parts]
        for part in self.parts:
            name = part.where if names.count(part.path.name) > 1 else part.path.name
            seen = 0
            for batch in part.batches(rows):
                yield replace(batch, source=name if len(self.parts) > 1 else "")
                seen += len(batch)
            if seen != part.num_rows:
                raise InputError(
                    f"{part.path} changed while it was read: it has {seen:,} rows and had {part.num_rows:,}; start "
                    "again when it is complete"
                )


def open_tables(path: Path) -> JoinedTable:
    """Open a file, the Parquet files of a folder, or those that a pattern such as data/*.parquet finds.

    Raises:
        InputError: There are none, one of them is damaged, or they have different columns.
    """
    files = [open_file(file) for file in _paths(path)]
    filled = [file for file in files if file.num_rows]  # writers such as Spark leave empty files beside full ones
    if not filled:
        raise InputError(f"{path} has no rows, expected at least one")
    return JoinedTable(str(path), tuple(filled), _common(filled))


def from_dataset(dataset: "pa.dataset.Dataset") -> JoinedTable:
    """The rows of an Arrow dataset, whose schema and partitions hold for all its files.

    Raises:
        InputError: It has no rows, is filtered, or one of its files is damaged.
    """
    check_names(dataset.schema.names, "dataset")
    try:
        fragments = list(dataset.get_fragments())
    except ValueError as problem:
        raise InputError(
            f"this dataset cannot be read piece by piece ({first_line(problem)}); write its rows to Parquet files"
        ) from None
    schema = plain_schema(dataset.schema)
    parts = [FragmentFile.open(fragment, schema, k) for k, fragment in enumerate(fragments)]
    filled = tuple(part for part in parts if part.num_rows)
    if not filled:
        raise InputError("the dataset has no rows, expected at least one")
    return JoinedTable("dataset", filled, schema)


def is_dataset(X: Any) -> bool:
    """Whether this is an Arrow dataset."""
    module = sys.modules.get("pyarrow.dataset")  # not imported here: no dataset exists before it is
    return module is not None and isinstance(X, module.Dataset)


def is_many(path: Path) -> bool:
    """Whether a path is a folder or a pattern."""
    return path.is_dir() or (glob.has_magic(str(path)) and not path.exists())


# ---------------------------------------------------------------- files


def _paths(path: Path) -> list[Path]:
    if path.is_dir():
        found = [p for p in sorted(path.rglob("*.parquet")) if p.is_file() and not _is_hidden(p.relative_to(path))]
        if not found:
            raise InputError(f"{path}: there are no Parquet files in this folder, expected names that end in .parquet")
        _check_folders(path, found)
        return found
    if not is_many(path):
        found = [path]
    else:
        found = [Path(p) for p in sorted(glob.glob(str(path), recursive=True)) if Path(p).is_file()]
    if not found:
        raise InputError(f"{path}: no file has such a name; check the pattern")
    _check_folders(path, found)
    for file in found:
        if file.suffix.lower() not in TYPED:
            raise InputError(f"{file}: only {', '.join(TYPED)} can be read a piece at a time; convert it to Parquet")
    return found


def _check_folders(path: Path, found: list[Path]) -> None:
    """Raise `InputError` for values in the names of folders, unless `path` itself has them: they would be lost."""
    folders = {part for file in found for part in file.parts[:-1]} - set(path.parts)
    keys = {folder.partition("=")[0] for folder in folders if "=" in folder}
    if keys:
        raise InputError(
            f"{path}: its folders hold values of {listed(sorted(keys))} in their names, which are read from Python "
            "only: fit(pyarrow.dataset.dataset(folder, partitioning='hive'), target)"
        )


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _common(files: Sequence[FileTable]) -> pa.Schema:
    """The columns of the first file, each with a type that holds its values in all files.

    Raises:
        InputError: A file has other columns, or other kinds of values in one.
    """
    first, columns = files[0].where, files[0].names
    known = {name: (first, pa.null()) for name in columns}
    for file in files:
        for names, others, has in ((columns, file.names, "has no"), (file.names, columns, "has a")):
            if odd := [name for name in names if name not in others]:
                raise InputError(
                    f"{file.where} {has} column {odd[0]!r}, unlike {first}; give files with the same columns"
                )
        for field in file.schema:
            where, kind = known[field.name]
            both = _wider(kind, field.type)
            if both is None:
                raise InputError(
                    f"{file.where}: column {field.name!r} is {field.type}, but {kind} in {where}; give both the same "
                    "type"
                )
            known[field.name] = (file.where if types.is_null(kind) else where, both)
    return pa.schema([(name, kind) for name, (_, kind) in known.items()])


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """A type for values of both, if they are of one kind; a column without values has no type."""
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    kinds = {kind_of(one), kind_of(other)}
    if kinds == {"number"} and not types.is_duration(one) and not types.is_duration(other):
        return pa.float64()
    return pa.string() if kinds == {"category"} else None


# ---------------------------------------------------------------- datasets


@dataclass(frozen=True)
class FragmentFile(FileTable):
    """One file, or other part, of an Arrow dataset."""

    fragment: Any = None

    @classmethod
    def open(cls, fragment: Any, schema: pa.Schema, number: int) -> "FragmentFile":
        """Count its rows."""
        path = Path(getattr(fragment, "path", None) or f"part {number} of the dataset")
        with problems_with(path):
            return cls(path, schema, fragment.count_rows(), (), fragment)

    def _read(self, column_types: Types) -> pa.Table:
        with problems_with(self.path):
            return self.fragment.to_table(schema=self.schema)

    def _stream(self, rows: int, column_types: Types) -> Iterator[pa.RecordBatch]:
        groups = getattr(self.fragment, "split_by_row_group", lambda: [self.fragment])
        with problems_with(self.path):
            for part in groups():  # all groups at once would keep what has been read of each
                yield from part.to_batches(schema=self.schema, batch_size=rows, batch_readahead=1, use_threads=False)

    @property
    def is_file(self) -> bool:
        """Whether it is a file, which has a size and a time of change."""
        return getattr(self.fragment, "filesystem", None) is not None and bool(getattr(self.fragment, "path", None))

    @cached_property
    def _token(self) -> str:
        """What tells it from others where it is no file."""
        return secrets.token_hex(8)

    def stamp(self) -> list[Any]:
        """Path, size and time of change, as they are now; what is in memory has a token."""
        if not self.is_file:
            return [str(self.path), self.num_rows, self._token]
        with problems_with(self.path):
            info = self.fragment.filesystem.get_file_info(self.fragment.path)
        return [str(self.path), info.size, info.mtime_ns]

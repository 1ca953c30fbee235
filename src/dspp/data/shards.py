"""Tables larger than memory: the rows of one or more files, or of an Arrow dataset, read a piece at a time."""

import glob
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset
from pyarrow import types

from dspp.data.arrays import plain_schema
from dspp.data.files import open_table
from dspp.data.learning import kind_of
from dspp.data.messages import check_names, first_line, listed
from dspp.data.tablefile import BATCH_ROWS, TableFile, problems_with
from dspp.errors import InputError

FORMATS: Final = {".parquet": "parquet", ".feather": "ipc", ".arrow": "ipc"}  # files whose columns have types


@dataclass(frozen=True)
class Piece:
    """Some rows in order.

    Attributes:
        batch: The rows.
        where: The file they are in.
        first_row: The number of the first of them in that file.
        number: The number of the first of them in all files.
    """

    batch: pa.RecordBatch
    where: str
    first_row: int
    number: int


@dataclass(frozen=True)
class Shards:
    """Rows of files with the same columns, which are read anew each time.

    Attributes:
        name: What errors call all of them together.
        files: The files that have rows, in order.
        schema: Their columns; a type may differ between files that hold the same kind of values.
    """

    name: str
    files: tuple[TableFile, ...]
    schema: pa.Schema

    @classmethod
    def at(cls, path: Path) -> "Shards":
        """Open a file, the Parquet files of a folder, or those that a pattern such as data/*.parquet finds.

        Raises:
            InputError: There are none, one of them is damaged, or they have different columns.
        """
        found = [(file, _schema(file)) for file in _paths(path)]
        filled = [(open_table(file), schema) for file, schema in found if _has_rows(file)]
        if not filled:
            raise InputError(f"{path} has no rows, expected at least one")
        return cls(str(path), tuple(file for file, _ in filled), _common([(str(f.path), s) for f, s in filled]))

    @classmethod
    def of(cls, dataset: pa.dataset.Dataset) -> "Shards":
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
        files = [FragmentFile.open(fragment, schema, k) for k, fragment in enumerate(fragments)]
        filled = tuple(file for file in files if file.num_rows)
        if not filled:
            raise InputError("the dataset has no rows, expected at least one")
        return cls("dataset", filled, schema)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return sum(file.num_rows or 0 for file in self.files)

    @property
    def can_be_found_again(self) -> bool:
        """Whether another process would know the rows by their stamps: they are in files, not in memory."""
        return all(not isinstance(file, FragmentFile) or file.is_file for file in self.files)

    def stamps(self) -> list[list[Any]]:
        """Path, size and time of change of each file, as they are now."""
        return [_stamp(file) for file in self.files]

    def pieces(self, rows: int = BATCH_ROWS) -> Iterator[Piece]:
        """Yield all rows in order, in memory that does not grow.

        Raises:
            InputError: A file is damaged, or has changed since it was opened.
        """
        number = 0
        for file in self.files:
            seen = 0
            for batch in file.batches(rows):
                yield Piece(batch, str(file.path), seen, number + seen)
                seen += len(batch)
            if seen != file.num_rows:
                raise InputError(
                    f"{file.path} changed while it was read: it has {seen:,} rows and had {file.num_rows:,}; start "
                    "again when it is complete"
                )
            number += seen


def is_dataset(X: Any) -> bool:
    """Whether this is an Arrow dataset."""
    return isinstance(X, pa.dataset.Dataset)


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
        if file.suffix.lower() not in FORMATS:
            raise InputError(f"{file}: only {', '.join(FORMATS)} can be read a piece at a time; convert it to Parquet")
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


def _schema(path: Path) -> pa.Schema:
    if not path.is_file():
        raise InputError(f"{path} does not exist; check the path")
    with problems_with(path):
        return plain_schema(pa.dataset.dataset(path, format=FORMATS[path.suffix.lower()]).schema)


def _has_rows(path: Path) -> bool:
    """Whether there are any; writers such as Spark leave empty files beside full ones."""
    with problems_with(path):
        return bool(pa.dataset.dataset(path, format=FORMATS[path.suffix.lower()]).count_rows())


def _common(schemas: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
    """The columns of the first file, each with a type that holds its values in all files.

    Raises:
        InputError: A file has other columns, or other kinds of values in one.
    """
    first, columns = schemas[0]
    known = {name: (first, pa.null()) for name in columns.names}
    for path, schema in schemas:
        check_names(schema.names, path)
        for names, others, has in ((columns.names, schema.names, "has no"), (schema.names, columns.names, "has a")):
            if odd := [name for name in names if name not in others]:
                raise InputError(f"{path} {has} column {odd[0]!r}, unlike {first}; give files with the same columns")
        for field in schema:
            where, kind = known[field.name]
            both = _wider(kind, field.type)
            if both is None:
                raise InputError(
                    f"{path}: column {field.name!r} is {field.type}, but {kind} in {where}; give both the same type"
                )
            known[field.name] = (path if types.is_null(kind) else where, both)
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
class FragmentFile(TableFile):
    """One file, or other part, of an Arrow dataset."""

    fragment: Any = None
    schema: Any = None

    @classmethod
    def open(cls, fragment: Any, schema: pa.Schema, number: int) -> "FragmentFile":
        """Count its rows."""
        path = Path(getattr(fragment, "path", None) or f"part {number} of the dataset")
        with problems_with(path):
            return cls(path, tuple(schema.names), fragment.count_rows(), (), fragment, schema)

    def read(self) -> pa.Table:
        """Return the whole part."""
        with problems_with(self.path):
            return self.fragment.to_table(schema=self.schema)

    def _stream(self, rows: int, column_types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        groups = getattr(self.fragment, "split_by_row_group", lambda: [self.fragment])
        with problems_with(self.path):
            for part in groups():  # all groups at once would keep what has been read of each
                yield from part.to_batches(schema=self.schema, batch_size=rows, batch_readahead=1, use_threads=False)

    @property
    def is_file(self) -> bool:
        """Whether it is a file, which has a size and a time of change."""
        return getattr(self.fragment, "filesystem", None) is not None and bool(getattr(self.fragment, "path", None))

    @cached_property
    def token(self) -> str:
        """What tells it from others where it is no file."""
        return secrets.token_hex(8)


def _stamp(file: TableFile) -> list[Any]:
    if not isinstance(file, FragmentFile):
        with problems_with(file.path):
            status = file.path.stat()
        return [str(file.path), status.st_size, status.st_mtime_ns]
    if not file.is_file:
        return [str(file.path), file.num_rows, file.token]
    with problems_with(file.path):
        info = file.fragment.filesystem.get_file_info(file.fragment.path)
    return [str(file.path), info.size, info.mtime_ns]

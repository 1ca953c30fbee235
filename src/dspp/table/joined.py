"""Tables in several files, or in the fragments of an Arrow dataset, concatenated."""

import glob
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from jaxtyping import Int
from pyarrow import types

from dspp.errors import InputError
from dspp.table.arrays import kind_of, simplify_schema
from dspp.table.files import TYPED_SUFFIXES, open_file
from dspp.table.messages import check_names, first_line, join_names
from dspp.table.table import BATCH_ROWS, FileLabels, FileTable, Table, Types, name_file_in_errors

if TYPE_CHECKING:
    import pyarrow.dataset


@dataclass(frozen=True)
class JoinedTable(FileTable):
    """The concatenation of tables with the same columns; the types may differ where the kind of values is the same.

    Attributes:
        parts: The tables, none of them empty.
    """

    parts: tuple[FileTable, ...] = ()

    @classmethod
    def of(cls, path: Path, parts: Sequence[FileTable], schema: pa.Schema) -> "JoinedTable":
        """Return the concatenation of these tables, in the types of `schema`."""
        return cls(path, schema, sum(part.num_rows or 0 for part in parts), (), tuple(parts))

    def to_memory(self, rows: pa.Table, numbers: Int[np.ndarray, " N"] | None = None) -> Table:
        """Return rows of this table, whose labels begin with the file."""
        table = super().to_memory(rows, numbers)
        return self._name(table, np.arange(len(rows)) if numbers is None else numbers)

    def _name(self, table: Table, numbers: Int[np.ndarray, " N"]) -> Table:
        """Return rows with their labels, if there are several files."""
        return table if len(self.parts) == 1 else replace(table, labels=replace(self._labels, rows=numbers))

    @cached_property
    def _labels(self) -> FileLabels:
        """The labels of no rows."""
        names = [part.path.name for part in self.parts]
        names = [part.where if names.count(part.path.name) > 1 else part.path.name for part in self.parts]
        return FileLabels(tuple(names), np.cumsum([part.num_rows for part in self.parts]), np.arange(0))

    def _batches(self, rows: int, column_types: Types) -> Iterator[Table]:
        for batch in super()._batches(rows, column_types):
            yield self._name(batch, np.arange(batch.first_row, batch.first_row + len(batch)))

    def _read(self, column_types: Types) -> pa.Table:
        return pa.Table.from_batches(self._stream(BATCH_ROWS, column_types), self.schema).combine_chunks()

    def _stream(self, rows: int, column_types: Types) -> Iterator[pa.RecordBatch]:
        for part in self.parts:
            seen = 0
            for batch in part._stream(rows, column_types):
                columns = [batch.column(field.name).cast(field.type, safe=False) for field in self.schema]
                yield pa.RecordBatch.from_arrays(columns, schema=self.schema)
                seen += len(batch)
            if seen != part.num_rows:
                raise InputError(
                    f"{part.path}: expected {part.num_rows:,} rows, got {seen:,}: the file changed while it was read; "
                    "start again when it is complete"
                )


def open_tables(path: Path) -> JoinedTable:
    """Open a file, the Parquet files of a folder, or the files that match a pattern such as data/*.parquet.

    Raises:
        InputError: No file is found, a file is damaged, or the files have different columns.
    """
    files = [open_file(file) for file in _paths(path)]
    filled = [file for file in files if file.num_rows]  # writers such as Spark also write empty files
    if not filled:
        raise InputError(f"{path}: expected at least one row, got none")
    return JoinedTable.of(path, filled, _common_schema(filled))


def from_dataset(dataset: "pa.dataset.Dataset") -> JoinedTable:
    """The rows of an Arrow dataset, whose schema and partitions hold for all its files.

    Raises:
        InputError: The dataset has no rows, is filtered, or contains a damaged file.
    """
    check_names(dataset.schema.names, "dataset")
    try:
        fragments = list(dataset.get_fragments())
    except ValueError as problem:
        raise InputError(
            f"dataset: cannot read it in batches ({first_line(problem)}); write its rows to Parquet files"
        ) from None
    schema = simplify_schema(dataset.schema)
    parts = [FragmentFile.open(fragment, schema, k) for k, fragment in enumerate(fragments)]
    filled = tuple(part for part in parts if part.num_rows)
    if not filled:
        raise InputError("dataset: expected at least one row, got none")
    return JoinedTable.of(Path("dataset"), filled, schema)


def is_dataset(X: Any) -> bool:
    """Return whether X is an Arrow dataset."""
    module = sys.modules.get("pyarrow.dataset")  # whoever passes a dataset has imported it
    return module is not None and isinstance(X, module.Dataset)


def dataset_columns(
    names: Sequence[str], y: Any, sample_weight: Any = None, groups: Any = None, time: Any = None
) -> dict[str, Any]:
    """Return targets and roles of the columns `names` of a dataset, as keyword arguments of `prepare`.

    Args:
        names: The columns.
        y: The name of the target, or a list of names.
        sample_weight: The name of the column of weights; None: there are none.
        groups: Likewise.
        time: Likewise.

    Raises:
        InputError: One of them is not the name of a column.
    """
    found = join_names(names, 10)
    targets = [y] if isinstance(y, str) else list(y) if isinstance(y, list | tuple) else []
    if not targets or not all(name in names for name in targets) or len(set(targets)) < len(targets):
        raise InputError(f"y: expected the name of a column of the dataset ({found}), or several, got {y!r:.100}")
    for role, name in {"sample_weight": sample_weight, "groups": groups, "time": time}.items():
        if name is not None and (not isinstance(name, str) or name not in names or name in targets):
            raise InputError(f"{role}: expected the name of another column of the dataset ({found}), got {name!r:.100}")
    return {"targets": targets, "weight": sample_weight, "group": groups, "time": time}


def is_folder_or_pattern(path: Path) -> bool:
    """Return whether a path is a folder or a glob pattern."""
    return path.is_dir() or (glob.has_magic(str(path)) and not path.exists())


# ---------------------------------------------------------------- files


def _paths(path: Path) -> list[Path]:
    if path.is_dir():
        found = [p for p in sorted(path.rglob("*.parquet")) if p.is_file() and not _is_hidden(p.relative_to(path))]
        if not found:
            raise InputError(f"{path}: expected a folder with .parquet files, got none; check the path")
        _check_folders(path, found)
        return found
    if not is_folder_or_pattern(path):
        found = [path]
    else:
        found = [Path(p) for p in sorted(glob.glob(str(path), recursive=True)) if Path(p).is_file()]
    if not found:
        raise InputError(f"{path}: no file matches; check the pattern")
    _check_folders(path, found)
    for file in found:
        if file.suffix.lower() not in TYPED_SUFFIXES:
            raise InputError(
                f"{file}: expected one of {', '.join(TYPED_SUFFIXES)} to read in batches; convert it to Parquet"
            )
    return found


def _check_folders(path: Path, found: list[Path]) -> None:
    """Raise `InputError` if folder names below `path` contain values (key=value), which would be lost."""
    folders = {part for file in found for part in file.parts[:-1]} - set(path.parts)
    keys = {folder.partition("=")[0] for folder in folders if "=" in folder}
    if keys:
        raise InputError(
            f"{path}: the folder names contain values of {join_names(sorted(keys))}, which only the Python interface "
            "reads; use fit(pyarrow.dataset.dataset(folder, partitioning='hive'), target)"
        )


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def _common_schema(files: Sequence[FileTable]) -> pa.Schema:
    """Return the columns of the first file, each with a type that fits its values in all files.

    Raises:
        InputError: The files have different columns, or a column has different kinds of values.
    """
    first, columns = files[0].where, files[0].names
    known = {name: (first, pa.null()) for name in columns}
    for file in files:
        for names, others, has in ((columns, file.names, "has no"), (file.names, columns, "has a")):
            if odd := [name for name in names if name not in others]:
                raise InputError(
                    f"{file.where} {has} column {odd[0]!r}, unlike {first}; pass files with the same columns"
                )
        for field in file.schema:
            where, kind = known[field.name]
            both = _common_type(kind, field.type)
            if both is None:
                raise InputError(
                    f"{file.where}: column {field.name!r}: expected {kind} as in {where}, got {field.type}; convert "
                    "one of them"
                )
            known[field.name] = (file.where if types.is_null(kind) else where, both)
    return pa.schema([(name, kind) for name, (_, kind) in known.items()])


def _common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type for the values of both if they are of one kind, or None."""
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
    """A fragment of an Arrow dataset, usually a file."""

    fragment: Any = None

    @classmethod
    def open(cls, fragment: Any, schema: pa.Schema, number: int) -> "FragmentFile":
        """Open a fragment and count its rows."""
        path = Path(getattr(fragment, "path", None) or f"part {number} of the dataset")
        with name_file_in_errors(path):
            return cls(path, schema, fragment.count_rows(), (), fragment)

    def _read(self, column_types: Types) -> pa.Table:
        with name_file_in_errors(self.path):
            return self.fragment.to_table(schema=self.schema)

    def _stream(self, rows: int, column_types: Types) -> Iterator[pa.RecordBatch]:
        groups = getattr(self.fragment, "split_by_row_group", lambda: [self.fragment])
        with name_file_in_errors(self.path):
            for part in groups():  # iterating over all groups at once would keep them all in memory
                yield from part.to_batches(schema=self.schema, batch_size=rows, batch_readahead=1, use_threads=False)

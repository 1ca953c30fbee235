"""Tables in files and Arrow datasets: opened to be read whole or in batches, and written atomically."""

import contextlib
import glob
import gzip
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
from jaxtyping import Int
from pyarrow import types

from dspp.errors import InputError
from dspp.storage import open_atomic
from dspp.table.arrays import kind_of, simplify_schema, simplify_types
from dspp.table.csvfile import CsvFile, CsvFormat
from dspp.table.messages import check_names, first_line, join_names
from dspp.table.table import BATCH_ROWS, FileTable, Table, Types, name_file_in_errors

if TYPE_CHECKING:
    import pyarrow.dataset

_CSV: Final = (".csv", ".tsv", ".csv.gz", ".tsv.gz")
_TYPED: Final = (".parquet", ".feather", ".arrow")  # files whose columns have types
_SPREADSHEETS: Final = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods")


def open_table(
    path: str | os.PathLike[str],
    csv: CsvFormat = CsvFormat(),  # noqa: B008 - frozen
    may_be_empty: bool = False,
) -> FileTable:
    """Open a table file in the format of its suffix: .csv, .tsv (also with .gz), .parquet, .feather or .arrow.

    Args:
        path: The file.
        csv: The separator, the decimal mark and the encoding of CSV files.
        may_be_empty: Whether it may have no rows.

    Raises:
        InputError: The file does not exist, its suffix is unknown, or it has no table or no rows.
    """
    path = Path(path)
    if path.name.lower().endswith(_SPREADSHEETS):
        raise InputError(
            f"{path}: expected a CSV, Parquet or Arrow file, got a spreadsheet; export it as CSV, or convert it in "
            f"Python with pandas.read_excel({path.name!r}).to_parquet({path.with_suffix('.parquet').name!r})"
        )
    if path.is_dir():
        raise InputError(f"{path}: expected a file, got a folder; pass one of its files")
    is_csv = check_suffix(path) in _CSV
    if not path.is_file():
        raise InputError(f"{path}: the file does not exist; check the path")
    with name_file_in_errors(path):
        if path.stat().st_size == 0:
            raise InputError(f"{path}: expected a table, got an empty file")
        table = CsvFile.open(path, csv) if is_csv else TypedFiles.open(path)
    if table.num_rows == 0 and not may_be_empty:
        raise InputError(f"{path}: expected at least one row, got only a header")
    return table


def open_tables(path: Path) -> "TypedFiles":
    """Open a file, the Parquet files of a folder, or the files that match a pattern such as data/*.parquet.

    Raises:
        InputError: No file is found, a file is damaged, or the files have different columns.
    """
    files = [open_table(file, may_be_empty=True) for file in _find_files(path)]
    return TypedFiles.of(path, [part for file in files if isinstance(file, TypedFiles) for part in file.parts])


def from_dataset(dataset: "pyarrow.dataset.Dataset") -> "TypedFiles":
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
    paths = [Path(getattr(one, "path", None) or f"part {k} of the dataset") for k, one in enumerate(fragments)]
    parts = [Part.of_fragment(path, fragment, schema) for path, fragment in zip(paths, fragments, strict=True)]
    return TypedFiles.of(Path("dataset"), parts)


def is_dataset(X: Any) -> bool:
    """Return whether X is an Arrow dataset."""
    module = sys.modules.get("pyarrow.dataset")  # whoever passes a dataset has imported it
    return module is not None and isinstance(X, module.Dataset)


def dataset_columns(
    names: Sequence[str], y: Any, sample_weight: Any = None, groups: Any = None, time: Any = None
) -> dict[str, Any]:
    """Return the columns of targets (a name, or a list of names) and roles of a dataset as arguments of `prepare`.

    Raises:
        InputError: One of them is not among `names`.
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


def check_suffix(path: Path) -> str:
    """Return the suffix of a file of this name, or raise `InputError` if it cannot be read or written as a table."""
    for suffix in (*_CSV, *_TYPED):
        if path.name.lower().endswith(suffix):
            return suffix
    raise InputError(
        f"{path}: expected a file name ending in one of {', '.join((*_CSV, *_TYPED))}; rename or convert it"
    )


# ---------------------------------------------------------------- files whose columns have types


class Part(NamedTuple):
    """A file, or another fragment of an Arrow dataset.

    Attributes:
        path: The file, or what to call the fragment.
        schema: The types in which it is read.
        num_rows: The number of its rows.
        stream: Yields its rows in batches of about this size.
    """

    path: Path
    schema: pa.Schema
    num_rows: int
    stream: Callable[[int], Iterator[pa.RecordBatch]]

    @classmethod
    def of_parquet(cls, path: Path) -> "Part":
        """Read the footer of a Parquet file; faster than `of_fragment`, which imports another library."""
        from pyarrow import parquet  # imported here, as it is slow and arrays do not need it

        with name_file_in_errors(path), parquet.ParquetFile(path) as file:
            return cls(path, file.schema_arrow, file.metadata.num_rows, partial(_stream_parquet, path))

    @classmethod
    def of_arrow(cls, path: Path) -> "Part":
        """Read the footer of an Arrow or Feather file, which have the same format."""
        from pyarrow import dataset

        with name_file_in_errors(path):
            (fragment,) = dataset.dataset(path, format="ipc").get_fragments()
            return cls.of_fragment(path, fragment, fragment.physical_schema)

    @classmethod
    def of_fragment(cls, path: Path, fragment: Any, schema: pa.Schema) -> "Part":
        """Count the rows of a fragment."""
        with name_file_in_errors(path):
            return cls(path, schema, fragment.count_rows(), partial(_stream_fragment, fragment, schema))

    def check_count(self, found: int) -> None:
        """Raise `InputError` unless so many rows were read."""
        if found != self.num_rows:
            raise InputError(
                f"{self.path}: expected {self.num_rows:,} rows, got {found:,}: the file changed while it was read; "
                "start again when it is complete"
            )


@dataclass(frozen=True)
class TypedFiles(FileTable):
    """Parquet and Arrow files, or fragments of a dataset, with the same columns, one after the other.

    The types of a column may differ between files where the kind of its values is the same.

    Attributes:
        parts: The files.
    """

    parts: tuple[Part, ...] = ()

    @classmethod
    def open(cls, path: Path) -> "TypedFiles":
        """Open a single file, which may have no rows."""
        part = Part.of_parquet(path) if check_suffix(path) == ".parquet" else Part.of_arrow(path)
        check_names(part.schema.names, str(path))
        return cls(path, simplify_schema(part.schema), part.num_rows, (), (part,))

    @classmethod
    def of(cls, path: Path, parts: Iterable[Part]) -> "TypedFiles":
        """Return the rows of files of which some may have none, as writers such as Spark leave them."""
        filled = tuple(part for part in parts if part.num_rows)
        if not filled:
            raise InputError(f"{path}: expected at least one row, got none")
        return cls(path, _common_schema(filled), sum(part.num_rows for part in filled), (), filled)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files."""
        return tuple(part.path for part in self.parts)

    @property
    def most_rows(self) -> float:
        """The number of rows."""
        assert self.num_rows is not None
        return self.num_rows

    def read(self, column_types: Types | None = None) -> Table:
        """Return the whole table."""
        batches = self._stream(BATCH_ROWS, {}, ())
        return self._place(pa.Table.from_batches(batches, self.schema).combine_chunks(), None)

    def _stream(self, rows: int, column_types: Types, verbatim: Collection[str]) -> Iterator[pa.RecordBatch]:
        for part in self.parts:
            count = 0
            with name_file_in_errors(part.path):
                for batch in map(self._convert, part.stream(rows)):
                    yield batch
                    count += len(batch)
            part.check_count(count)

    def _convert(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Validate offsets and text, which Arrow's readers take on trust, and return the columns in common types."""
        rows.validate(full=True)
        return simplify_types(rows).select(list(self.names)).cast(self.schema, safe=False)

    def _place(self, rows: pa.Table, numbers: Int[np.ndarray, " N"] | None) -> Table:
        return Table(self.where, arrow=rows, numbers=numbers, label_of=self._label_of, notes=self.notes)

    @cached_property
    def _label_of(self) -> Callable[[int], str] | None:
        """What to call the row of a number: "part-1.parquet, 17", if there are several files."""
        if len(self.parts) == 1:
            return None
        names = [path.name for path in self.files]
        unique = [str(path) if names.count(path.name) > 1 else path.name for path in self.files]
        return partial(_label, unique, np.cumsum([part.num_rows for part in self.parts]))


def _stream_parquet(path: Path, rows: int) -> Iterator[pa.RecordBatch]:
    from pyarrow import parquet

    with parquet.ParquetFile(path, pre_buffer=False) as file:
        for group in range(file.num_row_groups):  # iterating over all groups at once would keep them all in memory
            yield from file.iter_batches(batch_size=rows, row_groups=[group])


def _stream_fragment(fragment: Any, schema: pa.Schema, rows: int) -> Iterator[pa.RecordBatch]:
    groups = fragment.split_by_row_group() if hasattr(fragment, "split_by_row_group") else [fragment]
    for group in groups:
        yield from group.to_batches(schema, batch_size=rows, batch_readahead=1, use_threads=False)


def _label(names: Sequence[str], ends: Int[np.ndarray, " F"], number: int) -> str:
    file = int(np.searchsorted(ends, number, side="right"))
    return f"{names[file]}, {number - (int(ends[file - 1]) if file else 0)}"


# ---------------------------------------------------------------- several files


def _find_files(path: Path) -> list[Path]:
    if path.is_dir():
        inside = [(file, file.relative_to(path).parts) for file in sorted(path.rglob("*.parquet")) if file.is_file()]
        found = [file for file, parts in inside if not any(part.startswith((".", "_")) for part in parts)]
        nothing = "expected a folder with .parquet files, got none; check the path"
    else:
        matches = sorted(glob.glob(str(path), recursive=True)) if is_folder_or_pattern(path) else [str(path)]
        found = [Path(file) for file in matches if not Path(file).is_dir()]
        nothing = "no file matches; check the pattern"
    if not found:
        raise InputError(f"{path}: {nothing}")
    folders = {part for file in found for part in file.parts[:-1]} - set(path.parts)
    if keys := {folder.partition("=")[0] for folder in folders if "=" in folder}:  # their values would be lost
        raise InputError(
            f"{path}: the folder names contain values of {join_names(sorted(keys))}, which only the Python interface "
            "reads; use fit(pyarrow.dataset.dataset(folder, partitioning='hive'), target)"
        )
    for file in found:
        if file.suffix.lower() not in _TYPED:
            raise InputError(f"{file}: expected one of {', '.join(_TYPED)} to read in batches; convert it to Parquet")
    return found


def _common_schema(parts: Sequence[Part]) -> pa.Schema:
    """Return the columns of the first file, each with a type that fits its values in all files, or raise."""
    first, columns = parts[0].path, parts[0].schema.names
    known = {name: (first, pa.null()) for name in columns}
    for part in parts:
        for names, others, has in ((columns, part.schema.names, "has no"), (part.schema.names, columns, "has a")):
            if odd := [name for name in names if name not in others]:
                raise InputError(
                    f"{part.path} {has} column {odd[0]!r}, unlike {first}; pass files with the same columns"
                )
        for field in simplify_schema(part.schema):
            where, kind = known[field.name]
            both = _common_type(kind, field.type)
            if both is None:
                raise InputError(
                    f"{part.path}: column {field.name!r}: expected {kind} as in {where}, got {field.type}; convert "
                    "one of them"
                )
            known[field.name] = (part.path if types.is_null(kind) else where, both)
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


# ---------------------------------------------------------------- writing


def write_table(path: str | os.PathLike[str], batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write batches of rows in the format of the suffix, and return the number of rows.

    The file is renamed into place when complete: after an error, the previous file is unchanged.

    Raises:
        InputError: The suffix is unknown, the file cannot be written, or the format does not support a column.
    """
    path = Path(path)
    check_suffix(path)
    try:
        with open_atomic(path) as file:
            return _write(file, path, batches, schema)
    except OSError as problem:
        raise InputError(f"{path}: cannot write the file: {problem.strerror or first_line(problem)}") from None
    except pa.ArrowException as problem:
        raise InputError(f"{path}: cannot write the table in this format: {first_line(problem)}") from None


def _write(file: IO[bytes], path: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    rows = 0
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(_writer(file, check_suffix(path), schema, stack))
        for batch in batches:
            if not batch.schema.equals(schema):
                got, wanted = (", ".join(f"{field.name}: {field.type}" for field in s) for s in (batch.schema, schema))
                raise InputError(f"{path}: expected batches with the columns {wanted}, got {got}")
            writer.write_batch(batch)
            rows += len(batch)
    return rows


def _writer(file: IO[bytes], suffix: str, schema: pa.Schema, stack: contextlib.ExitStack) -> Any:
    if suffix == ".parquet":
        from pyarrow import parquet  # imported here, as it is slow

        return parquet.ParquetWriter(file, schema)
    if suffix in _TYPED:
        return pa.ipc.new_file(file, schema)
    sink = stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0)) if suffix.endswith(".gz") else file
    options = pa.csv.WriteOptions(delimiter="\t" if suffix.startswith(".tsv") else ",")
    return pa.csv.CSVWriter(sink, schema, write_options=options)

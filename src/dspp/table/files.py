"""Tables in files: CSV, Parquet and Arrow, read whole or as a stream of batches, written whole or not at all."""

import contextlib
import gzip
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.csv

from dspp.errors import InputError
from dspp.storage import open_atomic
from dspp.table.arrays import plain, plain_schema
from dspp.table.csvfile import CsvFile
from dspp.table.messages import check_names, first_line
from dspp.table.table import FileTable, Types, problems_with

TYPED: Final = (".parquet", ".feather", ".arrow")  # files whose columns have types


def open_table(path: str | os.PathLike[str]) -> FileTable:
    """Open a table in a file; its suffix says how: .csv, .tsv (also with .gz), .parquet, .feather, .arrow.

    Raises:
        InputError: There is no such file, its suffix is unknown, or it holds no table or no rows.
    """
    table = open_file(Path(path))
    if table.num_rows == 0:
        raise InputError(f"{path} has no rows, expected at least one")
    return table


def open_file(path: Path) -> FileTable:
    """Open a table in a file that may have no rows."""
    open_it = _OPENERS[_suffix(path)]
    if not path.is_file():
        raise InputError(f"{path} {'is a folder, not a file' if path.is_dir() else 'does not exist'}; check the path")
    with problems_with(path):
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty, expected a table")
        return open_it(path)


def _suffix(path: Path) -> str:
    for suffix in _OPENERS:
        if path.name.lower().endswith(suffix):
            return suffix
    raise InputError(f"{path}: unknown kind of file; expected a name that ends in one of {', '.join(_OPENERS)}")


# ---------------------------------------------------------------- Parquet and Arrow


@dataclass(frozen=True)
class ParquetFile(FileTable):
    """A Parquet file."""

    @classmethod
    def open(cls, path: Path) -> "ParquetFile":
        """Read the footer."""
        with _parquet().ParquetFile(path) as file:
            check_names(file.schema_arrow.names, str(path))
            return cls(path, plain_schema(file.schema_arrow), file.metadata.num_rows)

    def _read(self, column_types: Types) -> pa.Table:
        with problems_with(self.path), _parquet().ParquetFile(self.path) as file:
            return _sound(file.read())

    def _stream(self, rows: int, column_types: Types) -> Iterator[pa.RecordBatch]:
        with problems_with(self.path), _parquet().ParquetFile(self.path, pre_buffer=False) as file:
            for group in range(file.num_row_groups):  # all groups at once would keep what has been read of each
                yield from map(_sound, file.iter_batches(batch_size=rows, row_groups=[group]))


@dataclass(frozen=True)
class ArrowFile(FileTable):
    """An Arrow file, which is also what Feather is."""

    @classmethod
    def open(cls, path: Path) -> "ArrowFile":
        """Read the footer."""
        from pyarrow import dataset  # here: it takes long to import, and most processes need none

        file = dataset.dataset(path, format="ipc")
        check_names(file.schema.names, str(path))
        return cls(path, plain_schema(file.schema), file.count_rows())

    def _read(self, column_types: Types) -> pa.Table:
        with problems_with(self.path), pa.OSFile(str(self.path)) as source:
            return _sound(pa.ipc.open_file(source).read_all())

    def _stream(self, rows: int, column_types: Types) -> Iterator[pa.RecordBatch]:
        with problems_with(self.path), pa.OSFile(str(self.path)) as source:
            file = pa.ipc.open_file(source)
            for i in range(file.num_record_batches):
                yield _sound(file.get_batch(i))


def _parquet() -> Any:
    from pyarrow import parquet  # here: it takes long to import, and estimators on arrays need none

    return parquet


def _sound(table: Any) -> Any:
    """Return a table or batch made `plain`, its inner pointers and text in order: readers trust what the file says."""
    table.validate(full=True)
    return plain(table)


_OPENERS: Final[dict[str, Callable[[Path], FileTable]]] = {
    ".csv": CsvFile.open,
    ".tsv": CsvFile.open,
    ".csv.gz": CsvFile.open,
    ".tsv.gz": CsvFile.open,
    ".parquet": ParquetFile.open,
    ".feather": ArrowFile.open,
    ".arrow": ArrowFile.open,
}


# ---------------------------------------------------------------- writing


def write_table(path: str | os.PathLike[str], batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write batches of rows as they come, in the format of the suffix, and return the number of rows.

    The file takes its name when it is complete: on any error what was there before is still there.

    Raises:
        InputError: The suffix is unknown, the file cannot be written, or a column has no place in the format.
    """
    path = Path(path)
    suffix = _suffix(path)
    try:
        with open_atomic(path) as file:
            return _write(file, suffix, _matching(batches, schema, path), schema)
    except OSError as problem:
        raise InputError(f"cannot write {path}: {problem.strerror or first_line(problem)}") from None
    except pa.ArrowException as problem:
        raise InputError(f"cannot write this table to {path}: {first_line(problem)}") from None


def _matching(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if not batch.schema.equals(schema):
            got, expected = (", ".join(f"{field.name}: {field.type}" for field in s) for s in (batch.schema, schema))
            raise InputError(f"cannot write {path}: got a batch with the columns {got}; expected {expected}")
        yield batch


def _write(file: IO[bytes], suffix: str, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    rows = 0
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(_writer(file, suffix, schema, stack))
        for batch in batches:
            writer.write_batch(batch)
            rows += len(batch)
    return rows


def _writer(file: IO[bytes], suffix: str, schema: pa.Schema, stack: contextlib.ExitStack) -> Any:
    if suffix == ".parquet":
        return _parquet().ParquetWriter(file, schema)
    if suffix in (".feather", ".arrow"):
        return pa.ipc.new_file(file, schema)
    sink = stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0)) if suffix.endswith(".gz") else file
    options = pa.csv.WriteOptions(delimiter="\t" if suffix.startswith(".tsv") else ",")
    return pa.csv.CSVWriter(sink, schema, write_options=options)

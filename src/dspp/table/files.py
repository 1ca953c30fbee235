"""Tables in CSV, Parquet and Arrow files: read whole or in batches, written atomically."""

import contextlib
import gzip
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
import pyarrow.csv

from dspp.errors import InputError
from dspp.storage import open_atomic
from dspp.table.arrays import simplify_schema, simplify_types
from dspp.table.csvfile import CsvFile, CsvFormat
from dspp.table.messages import check_names, first_line
from dspp.table.table import FileTable, Types, name_file_in_errors

TYPED_SUFFIXES: Final = (".parquet", ".feather", ".arrow")  # files whose columns have types


def open_table(path: str | os.PathLike[str], csv: CsvFormat = CsvFormat()) -> FileTable:  # noqa: B008 - frozen
    """Open a table file in the format of its suffix: .csv, .tsv (also with .gz), .parquet, .feather or .arrow.

    Args:
        path: The file.
        csv: The separator, the decimal mark and the encoding of CSV files.

    Raises:
        InputError: The file does not exist, its suffix is unknown, or it has no table or no rows.
    """
    table = open_file(Path(path), csv)
    if table.num_rows == 0:
        raise InputError(f"{path}: expected at least one row, got only a header")
    return table


def open_file(path: Path, csv: CsvFormat = CsvFormat()) -> FileTable:  # noqa: B008 - frozen
    """Open a table file that may have no rows."""
    if path.name.lower().endswith(_SPREADSHEETS):
        raise InputError(
            f"{path}: expected a CSV, Parquet or Arrow file, got a spreadsheet; export it as CSV, or convert it in "
            f"Python with pandas.read_excel({path.name!r}).to_parquet({path.with_suffix('.parquet').name!r})"
        )
    if path.is_dir():
        raise InputError(f"{path}: expected a file, got a folder; pass one of its files")
    kind = _KINDS[_suffix(path)]
    if not path.is_file():
        raise InputError(f"{path}: the file does not exist; check the path")
    with name_file_in_errors(path):
        if path.stat().st_size == 0:
            raise InputError(f"{path}: expected a table, got an empty file")
        return CsvFile.open(path, csv) if kind is CsvFile else kind.open(path)


def check_suffix(path: Path) -> None:
    """Raise `InputError` unless a file of this name can be written as a table."""
    _suffix(path)


def _suffix(path: Path) -> str:
    for suffix in _KINDS:
        if path.name.lower().endswith(suffix):
            return suffix
    raise InputError(f"{path}: expected a file name ending in one of {', '.join(_KINDS)}; rename or convert it")


# ---------------------------------------------------------------- Parquet and Arrow


@dataclass(frozen=True)
class ParquetFile(FileTable):
    """A Parquet file."""

    @classmethod
    def open(cls, path: Path) -> "ParquetFile":
        """Read the footer."""
        with _parquet().ParquetFile(path) as file:
            check_names(file.schema_arrow.names, str(path))
            return cls(path, simplify_schema(file.schema_arrow), file.metadata.num_rows)

    def _read(self, column_types: Types) -> pa.Table:
        with name_file_in_errors(self.path), _parquet().ParquetFile(self.path) as file:
            return _validate(file.read())

    def _stream(self, rows: int, column_types: Types) -> Iterator[pa.RecordBatch]:
        with name_file_in_errors(self.path), _parquet().ParquetFile(self.path, pre_buffer=False) as file:
            for group in range(file.num_row_groups):  # iterating over all groups at once would keep them all in memory
                yield from map(_validate, file.iter_batches(batch_size=rows, row_groups=[group]))


@dataclass(frozen=True)
class ArrowFile(FileTable):
    """An Arrow or Feather file, which have the same format."""

    @classmethod
    def open(cls, path: Path) -> "ArrowFile":
        """Read the footer."""
        from pyarrow import dataset  # imported here, as it is slow and rarely needed

        file = dataset.dataset(path, format="ipc")
        check_names(file.schema.names, str(path))
        return cls(path, simplify_schema(file.schema), file.count_rows())

    def _read(self, column_types: Types) -> pa.Table:
        with name_file_in_errors(self.path), pa.OSFile(str(self.path)) as source:
            return _validate(pa.ipc.open_file(source).read_all())

    def _stream(self, rows: int, column_types: Types) -> Iterator[pa.RecordBatch]:
        with name_file_in_errors(self.path), pa.OSFile(str(self.path)) as source:
            file = pa.ipc.open_file(source)
            for i in range(file.num_record_batches):
                yield _validate(file.get_batch(i))


def _parquet() -> Any:
    from pyarrow import parquet  # imported here, as it is slow and arrays do not need it

    return parquet


def _validate(table: Any) -> Any:
    """Validate offsets and text, which Arrow's readers take on trust, and simplify the types."""
    table.validate(full=True)
    return simplify_types(table)


_KINDS: Final[dict[str, Any]] = {
    ".csv": CsvFile,
    ".tsv": CsvFile,
    ".csv.gz": CsvFile,
    ".tsv.gz": CsvFile,
    ".parquet": ParquetFile,
    ".feather": ArrowFile,
    ".arrow": ArrowFile,
}
_SPREADSHEETS: Final = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods")


# ---------------------------------------------------------------- writing


def write_table(path: str | os.PathLike[str], batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write batches of rows in the format of the suffix, and return the number of rows.

    The file is renamed into place when complete: after an error, the previous file is unchanged.

    Raises:
        InputError: The suffix is unknown, the file cannot be written, or the format does not support a column.
    """
    path = Path(path)
    suffix = _suffix(path)
    try:
        with open_atomic(path) as file:
            return _write(file, suffix, _check_schema(batches, schema, path), schema)
    except OSError as problem:
        raise InputError(f"{path}: cannot write the file: {problem.strerror or first_line(problem)}") from None
    except pa.ArrowException as problem:
        raise InputError(f"{path}: cannot write the table in this format: {first_line(problem)}") from None


def _check_schema(batches: Iterable[pa.RecordBatch], schema: pa.Schema, path: Path) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if not batch.schema.equals(schema):
            got, expected = (", ".join(f"{field.name}: {field.type}" for field in s) for s in (batch.schema, schema))
            raise InputError(f"{path}: expected batches with the columns {expected}, got {got}")
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

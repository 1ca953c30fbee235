"""Tables in files: CSV, Parquet and Arrow, read whole or as a stream of batches, written whole or not at all.

A CSV file has no types. Its cells are read as text; `read` then finds the type that every cell of a column has, and
`batches`, which cannot know what is to come, leaves them as text unless told the types. Either way the encoder of the
model (`dspp.data.encoding`) makes the same numbers of them.
"""

import contextlib
import csv
import gzip
import os
import secrets
import shutil
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final, TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.dataset
import pyarrow.parquet
from pyarrow import types

from dspp.data import frames
from dspp.data.frames import MISSING, Place
from dspp.errors import InputError

BATCH_ROWS: Final = 65_536
_BLOCK_BYTES: Final = 4 << 20  # of a CSV file at once; a longer line is refused
_ZIP, _UTF16 = b"PK\x03\x04", (b"\xff\xfe", b"\xfe\xff")

# In this order a column of text is tried; what reads as none of them stays text.
_GUESSES: Final = [pa.int64(), pa.float64(), pa.bool_(), pa.date32()]


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


def open_table(path: str | os.PathLike[str]) -> TableFile:
    """Open a table in a file; its suffix says how: .csv, .tsv (also with .gz), .parquet, .feather, .arrow.

    Raises:
        InputError: There is no such file, its suffix is unknown, or it holds no table.
    """
    path = Path(path)
    open_it = _OPENERS[_suffix(path)]
    if not path.is_file():
        raise InputError(f"{path} {'is a folder, not a file' if path.is_dir() else 'does not exist'}; check the path")
    with _problems_with(path):
        if path.stat().st_size == 0:
            raise InputError(f"{path} is empty, expected a table")
        return open_it(path)


def _suffix(path: Path) -> str:
    for suffix in _OPENERS:
        if path.name.lower().endswith(suffix):
            return suffix
    raise InputError(f"{path}: unknown kind of file; expected a name that ends in one of {', '.join(_OPENERS)}")


@contextlib.contextmanager
def _problems_with(path: Path) -> Iterator[None]:
    """Turn what a damaged file makes the libraries raise into one line that names it."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, csv.Error, zlib.error, UnicodeDecodeError) as problem:
        reason = frames.first_line(problem)
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


# ---------------------------------------------------------------- CSV


@dataclass(frozen=True)
class CsvFile(TableFile):
    """A table as text. Cells that say that they are missing (`MISSING`) are, and space around cells is cut off.

    Columns without a name are left out: they are row numbers, or the traces of deleted columns.

    Attributes:
        header: All names in the header, also the empty ones.
        header_lines: How many lines come before the first row.
        separator: What stands between cells.
    """

    header: tuple[str, ...] = ()
    header_lines: int = 1
    separator: str = ","

    @classmethod
    def open(cls, path: Path) -> "CsvFile":
        """Read the header, and make sure that something follows it."""
        _check_is_text(path)
        separator = "\t" if ".tsv" in _suffix(path) else ","
        try:
            with _text(path) as stream:
                reader = csv.reader(stream, delimiter=separator)
                header = tuple(name.strip() for name in next((record for record in reader if record), []))
                has_rows = any(line.strip() for line in stream)
        except UnicodeDecodeError:
            raise _not_utf8(path) from None
        names = [name for name in header if name]
        _check_header(path, names, has_rows, separator)
        return cls(path, tuple(names), None, _header_notes(header), header, reader.line_num, separator)

    def read(self) -> pa.Table:
        """Return the whole table, each column of the type that all its cells have."""
        with self._parsing():
            options = self._options()
            text = pa.csv.read_csv(self._input(), **options).rename_columns(self.names)
        return pa.table({name: _guessed([frames.clean(c) for c in text.column(name).chunks]) for name in self.names})

    def line_of(self, row: int) -> int:
        """Return the line of the file on which a row (the first is 0) ends."""
        with _text(self.path) as stream:
            return next(islice(self._records(stream), row + 1, None))[0]

    def _stream(self, rows: int, column_types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        row = 0
        with self._parsing():
            for batch in pa.csv.open_csv(self._input(), **self._options()):
                cells = zip(self.names, batch.columns, strict=True)
                columns = [self._typed(name, frames.clean(text), column_types.get(name), row) for name, text in cells]
                yield pa.RecordBatch.from_arrays(columns, self.names)
                row += len(batch)

    def _typed(self, name: str, text: pa.Array, kind: pa.DataType | None, row: int) -> pa.Array:
        if kind is None or frames.is_text(kind):
            return text
        place = Place(str(self.path), name, row, self.line_of)
        if types.is_timestamp(kind):
            return frames.parse_datetimes(text, place).cast(kind, safe=False)
        return frames.parse(text, kind, place)

    def _input(self) -> pa.NativeFile:
        return pa.input_stream(str(self.path), compression="gzip" if _is_gzip(self.path) else None)

    def _options(self) -> dict[str, Any]:
        """Return the options of the reader: columns are numbered, so that two may lack a name, and are all text."""
        numbers = [str(i) for i in range(len(self.header))]
        return {
            "read_options": pa.csv.ReadOptions(
                column_names=numbers, skip_rows=self.header_lines, block_size=_BLOCK_BYTES
            ),
            "parse_options": pa.csv.ParseOptions(
                delimiter=self.separator, newlines_in_values=True, ignore_empty_lines=len(self.header) > 1
            ),
            "convert_options": pa.csv.ConvertOptions(
                column_types={number: pa.string() for number in numbers},
                include_columns=[number for number, name in zip(numbers, self.header, strict=True) if name],
                null_values=MISSING,
                strings_can_be_null=True,
            ),
        }

    @contextlib.contextmanager
    def _parsing(self) -> Iterator[None]:
        """Look for the cause of a failure line by line: the reader does not know the line."""
        try:
            yield
        except (pa.ArrowException, OSError, EOFError) as problem:
            with _problems_with(self.path):
                self._diagnose()
                raise problem

    def _diagnose(self) -> None:
        """Raise `InputError` for the first line that is not UTF-8 or has too few or too many cells, if there is one."""
        try:
            with _text(self.path) as stream:
                for line, cells in self._records(stream):
                    if len(cells) != len(self.header) and cells:
                        raise InputError(
                            f"{self.path}, line {line}: got {len(cells)} columns, expected {len(self.header)} as in "
                            'the header; put cells that contain the separator in "quotes"'
                        )
        except UnicodeDecodeError:
            raise _not_utf8(self.path) from None

    def _records(self, stream: TextIO) -> Iterator[tuple[int, list[str]]]:
        """Yield each record, the header included, and the line it ends on."""
        reader = csv.reader(stream, delimiter=self.separator)
        for cells in reader:
            if cells or (len(self.header) == 1 and reader.line_num > self.header_lines):
                yield reader.line_num, cells


def _is_gzip(path: Path) -> bool:
    return path.name.lower().endswith(".gz")


def _bytes(path: Path) -> IO[bytes] | gzip.GzipFile:
    return gzip.open(path) if _is_gzip(path) else path.open("rb")


@contextlib.contextmanager
def _text(path: Path) -> Iterator[TextIO]:
    opener: Any = gzip.open if _is_gzip(path) else open
    with opener(path, "rt", encoding="utf-8-sig", newline="") as stream:
        yield stream


def _check_is_text(path: Path) -> None:
    with _bytes(path) as stream:
        start = stream.read(65_536)
    if start.startswith(_UTF16):
        raise InputError(f"{path} is encoded as UTF-16, expected UTF-8; save it as UTF-8")
    if b"\0" in start:
        kind = "an Excel or zip file" if start.startswith(_ZIP) else "binary data"
        raise InputError(f"{path} is {kind}, expected text; save the table as CSV, or correct the suffix")
    if not start.strip(b"\xef\xbb\xbf\r\n\t ,"):
        raise InputError(f"{path} is empty, expected a table")


def _not_utf8(path: Path) -> InputError:
    """Return the error for the first line that is not UTF-8."""
    with _bytes(path) as stream:
        for number, line in enumerate(stream, 1):
            try:
                line.decode()
            except UnicodeDecodeError as problem:
                byte = line[problem.start]
                return InputError(f"{path}, line {number}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8")
    return InputError(f"{path} is not UTF-8; save the file as UTF-8")


def _check_header(path: Path, names: list[str], has_rows: bool, separator: str) -> None:
    others = [mark for mark in ";\t|," if mark != separator and len(names) == 1 and mark in names[0]]
    if not names:
        raise InputError(f"{path}: no column has a name; put the names on the first line")
    if others:
        raise InputError(
            f"{path}: the cells seem to be separated by {others[0]!r}, expected {separator!r}; "
            "save it with commas as .csv, or with tabs as .tsv"
        )
    frames.check_names(names, str(path))
    if not has_rows:
        raise InputError(f"{path} has a header but no rows, expected at least one")


def _header_notes(header: tuple[str, ...]) -> tuple[str, ...]:
    notes = []
    if unnamed := header.count(""):
        notes.append(f"{unnamed} column{'s' * (unnamed > 1)} without a name left out")
    if frames.casts(pa.array([name for name in header if name]), pa.float64()):
        notes.append("all column names are numbers: if the first line is data, put a line of names above it")
    return tuple(notes)


def _guessed(chunks: list[pa.Array]) -> pa.ChunkedArray:
    """Return a column of text in the first type that every cell has."""
    if all(chunk.null_count == len(chunk) for chunk in chunks):
        return pa.chunked_array([pa.nulls(len(chunk)) for chunk in chunks], pa.null())
    for kind in _GUESSES:
        if all(frames.casts(chunk, kind) for chunk in chunks):
            return pa.chunked_array([chunk.cast(kind) for chunk in chunks])
    if any(frames.casts(reading, kind) for reading, kind in frames.datetime_readings(chunks[0])):
        with contextlib.suppress(InputError, pa.ArrowInvalid):  # a later cell is no date, or there are 2 GB of text
            return pa.chunked_array([_moments(pa.concat_arrays(chunks))])
    return pa.chunked_array(chunks)


def _moments(text: pa.Array) -> pa.Array:
    """Return text as timestamps or, where no cell has a date, as times of day."""
    moments = frames.parse_datetimes(text, Place("", ""))
    is_clock = pc.all(pc.match_substring_regex(text, "^[0-9:.]+$")).as_py()
    return moments.cast(pa.time64("us"), safe=False) if is_clock else moments


# ---------------------------------------------------------------- Parquet and Arrow


@dataclass(frozen=True)
class ParquetFile(TableFile):
    """A Parquet file."""

    @classmethod
    def open(cls, path: Path) -> "ParquetFile":
        """Read the footer."""
        with pa.parquet.ParquetFile(path) as file:
            return cls(path, _checked(path, file.schema_arrow.names, file.metadata.num_rows), file.metadata.num_rows)

    def read(self) -> pa.Table:
        """Return the whole table."""
        with _problems_with(self.path), pa.parquet.ParquetFile(self.path) as file:
            return _sound(file.read())

    def _stream(self, rows: int, column_types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        with _problems_with(self.path), pa.parquet.ParquetFile(self.path) as file:
            yield from map(_sound, file.iter_batches(batch_size=rows))


@dataclass(frozen=True)
class ArrowFile(TableFile):
    """An Arrow file, which is also what Feather is."""

    @classmethod
    def open(cls, path: Path) -> "ArrowFile":
        """Read the footer."""
        file = pa.dataset.dataset(path, format="ipc")
        num_rows = file.count_rows()
        return cls(path, _checked(path, file.schema.names, num_rows), num_rows)

    def read(self) -> pa.Table:
        """Return the whole table."""
        with _problems_with(self.path), pa.OSFile(str(self.path)) as source:
            return _sound(pa.ipc.open_file(source).read_all())

    def _stream(self, rows: int, column_types: Mapping[str, pa.DataType]) -> Iterator[pa.RecordBatch]:
        with _problems_with(self.path), pa.OSFile(str(self.path)) as source:
            file = pa.ipc.open_file(source)
            for i in range(file.num_record_batches):
                yield _sound(file.get_batch(i))


def _sound(table: Any) -> Any:
    """Return a table or batch whose inner pointers and text are in order: the readers trust what the file says."""
    table.validate(full=True)
    return table


def _checked(path: Path, names: list[str], num_rows: int) -> tuple[str, ...]:
    frames.check_names(names, str(path))
    if num_rows == 0:
        raise InputError(f"{path} has no rows, expected at least one")
    return tuple(names)


_OPENERS: Final[dict[str, Callable[[Path], TableFile]]] = {
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
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            rows = _write(file, suffix, _matching(batches, schema, path), schema)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except OSError as problem:
        raise InputError(f"cannot write {path}: {problem.strerror or frames.first_line(problem)}") from None
    except pa.ArrowException as problem:
        raise InputError(f"cannot write this table to {path}: {frames.first_line(problem)}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return rows


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
        return pa.parquet.ParquetWriter(file, schema)
    if suffix in (".feather", ".arrow"):
        return pa.ipc.new_file(file, schema)
    sink = stack.enter_context(gzip.GzipFile("", "wb", fileobj=file, mtime=0)) if suffix.endswith(".gz") else file
    options = pa.csv.WriteOptions(delimiter="\t" if suffix.startswith(".tsv") else ",")
    return pa.csv.CSVWriter(sink, schema, write_options=options)

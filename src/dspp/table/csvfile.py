"""Tables in CSV files, which have no types.

Cells are read as text; `read` then finds the type that every cell of a column has, and `batches`, which cannot know
what is to come, leaves them as text; both can be told the types. Either way the encoder of the model
(`dspp.encoding.encoder`) makes the same numbers of them. Rows for a model that already exists are read in the types of
its training rows: guessed anew, the text "01" is the number 1 where no other cell happens to be text.
"""

import contextlib
import csv
import gzip
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import IO, Any, Final, TextIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from pyarrow import types

from dspp.errors import InputError
from dspp.notes import Note
from dspp.table import arrays
from dspp.table.messages import Place, check_names
from dspp.table.table import FileTable, Types, problems_with

_BLOCK_BYTES: Final = 4 << 20  # of a file at once; a longer line is refused
_ZIP, _UTF16 = b"PK\x03\x04", (b"\xff\xfe", b"\xfe\xff")

# In this order a column of text is tried; what reads as none of them stays text. A whole number is also a number: to
# Arrow, 0xd8 is only the one, and the encoder would refuse it.
_GUESSES: Final = [(pa.int64(), pa.float64()), (pa.float64(),), (pa.bool_(),), (pa.date32(),)]


@dataclass(frozen=True)
class CsvFile(FileTable):
    """A table as text. Cells that say that they are missing (`arrays.MISSING`) are, and space around cells is cut off.

    Columns without a name are left out: they are row numbers, or the traces of deleted columns.

    Attributes:
        header: All names in the header, also the empty ones.
        header_lines: How many lines come before the first row.
        separator: What stands between cells.
        verbatim: Columns that `batches` gives as they were typed: text, with the space and the marks of missing values.
    """

    header: tuple[str, ...] = ()
    header_lines: int = 1
    separator: str = ","
    verbatim: frozenset[str] = frozenset()

    @classmethod
    def open(cls, path: Path) -> "CsvFile":
        """Read the header, and make sure that something follows it."""
        _check_is_text(path)
        separator = "\t" if path.name.lower().endswith((".tsv", ".tsv.gz")) else ","
        try:
            with _text(path) as stream:
                reader = csv.reader(stream, delimiter=separator)
                header = tuple(name.strip() for name in next((record for record in reader if record), []))
                has_rows = any(line.strip() for line in stream)
        except UnicodeDecodeError:
            raise _not_utf8(path) from None
        names = [name for name in header if name]
        _check_header(path, names, has_rows, separator)
        schema = pa.schema([(name, pa.string()) for name in names])
        return cls(path, schema, None, _header_notes(header), header, reader.line_num, separator)

    def as_typed(self, names: Iterable[str]) -> "CsvFile":
        """Return the same file with these columns `verbatim`."""
        return replace(self, verbatim=frozenset(names))

    def _read(self, column_types: Types) -> pa.Table:
        with self._parsing():
            text = pa.csv.read_csv(self._input(), **self._options()).rename_columns(self.names)
        return pa.table({name: self._column(name, text.column(name), column_types.get(name)) for name in self.names})

    def _column(self, name: str, text: pa.ChunkedArray, kind: pa.DataType | None) -> pa.ChunkedArray:
        chunks = [arrays.clean(chunk) for chunk in text.chunks]
        if kind is None:
            return _guessed(chunks)
        starts = accumulate(map(len, chunks[:-1]), initial=0)
        typed = [self._typed(name, chunk, kind, row) for chunk, row in zip(chunks, starts, strict=True)]
        return pa.chunked_array(typed)

    @property
    def line_of(self) -> Callable[[int], int]:
        """The line of the file on which a row (the first is 0) ends."""
        return self._line_of

    def _line_of(self, row: int) -> int:
        with _text(self.path) as stream:
            return next(islice(self._records(stream), row + 1, None))[0]

    def _stream(self, rows: int, column_types: Types) -> Iterator[pa.RecordBatch]:
        row = 0
        with self._parsing():
            for batch in pa.csv.open_csv(self._input(), **self._options()):
                columns = [
                    text
                    if name in self.verbatim
                    else self._typed(name, arrays.clean(text), column_types.get(name), row)
                    for name, text in zip(self.names, batch.columns, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, self.names)
                row += len(batch)

    def _typed(self, name: str, text: pa.Array, kind: pa.DataType | None, row: int) -> pa.Array:
        if kind is None or arrays.is_text(kind):
            return text
        place = Place(self.where, name, row, self.line_of)
        if types.is_timestamp(kind):
            return arrays.parse_datetimes(text, place).cast(kind, safe=False)
        return arrays.parse(text, kind, place)

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
                null_values=[""],
                strings_can_be_null=True,
            ),
        }

    @contextlib.contextmanager
    def _parsing(self) -> Iterator[None]:
        """Look for the cause of a failure line by line: the reader does not know the line."""
        try:
            yield
        except (pa.ArrowException, OSError, EOFError) as problem:
            with problems_with(self.path):
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
    check_names(names, str(path))
    if not has_rows:
        raise InputError(f"{path} has a header but no rows, expected at least one")


def _header_notes(header: tuple[str, ...]) -> tuple[Note, ...]:
    notes = []
    if unnamed := header.count(""):
        notes.append(Note("", f"{unnamed} column{'s' * (unnamed > 1)} without a name left out"))
    if arrays.casts(pa.array([name for name in header if name]), pa.float64()):
        hint = "if the first line is data, put a line of names above it"
        notes.append(Note("all column names are numbers", hint))
    return tuple(notes)


def _guessed(chunks: list[pa.Array]) -> pa.ChunkedArray:
    """Return a column of text in the first type that every cell has."""
    if all(chunk.null_count == len(chunk) for chunk in chunks):
        return pa.chunked_array([pa.nulls(len(chunk)) for chunk in chunks], pa.null())
    for kinds in _GUESSES:
        if all(arrays.casts(chunk, kind) for kind in kinds for chunk in chunks):
            return pa.chunked_array([chunk.cast(kinds[0]) for chunk in chunks])
    if any(arrays.casts(reading, kind) for reading, kind in arrays.datetime_readings(chunks[0])):
        with contextlib.suppress(InputError, pa.ArrowInvalid):  # a later cell is no date, or there are 2 GB of text
            return pa.chunked_array([_moments(pa.concat_arrays(chunks))])
    return pa.chunked_array(chunks)


def _moments(text: pa.Array) -> pa.Array:
    """Return text as timestamps or, where no cell has a date, as times of day."""
    moments = arrays.parse_datetimes(text, Place("", ""))
    is_clock = pc.all(pc.match_substring_regex(text, "^[0-9:.]+$")).as_py()
    return moments.cast(pa.time64("us"), safe=False) if is_clock else moments

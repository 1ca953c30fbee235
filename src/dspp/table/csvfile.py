"""Tables in CSV files, which have no types.

Cells are read as text. `read` then infers the type that fits every cell of a column; `batches` cannot see later rows
and leaves columns as text; both accept explicit types. Either way the encoder of the model (`dspp.encoding.encoder`)
turns them into the same numbers. Rows for an existing model are read with the types of its training rows: inferred
anew, the text "01" would become the number 1 if no other cell happened to be text.
"""

import codecs
import contextlib
import csv
import gzip
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Final, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from jaxtyping import Int
from pyarrow import types

from dspp.errors import InputError
from dspp.notes import Note
from dspp.table import arrays
from dspp.table.messages import Place, check_encoding, check_names, first_line
from dspp.table.table import FileTable, Table, Types, name_file_in_errors

_BLOCK_BYTES: Final = 4 << 20  # read at once; longer rows are rejected
_UTF8: Final = "utf-8-sig"  # a byte order mark is left out
_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")
_MAGIC: Final = {b"PK\x03\x04": "an Excel or zip file", b"PAR1": "a Parquet file", b"\x1f\x8b": "a gzip file"}

# Types to try, in this order; a column that fits none stays text. Integers must also parse as floats: Arrow reads 0xd8
# as an integer only, and the encoder would reject it.
_GUESSES: Final = [(pa.int64(), pa.float64()), (pa.float64(),), (pa.bool_(),), (pa.date32(),)]


@dataclass(frozen=True)
class CsvFormat:
    """How CSV files are written, where that differs between countries and programs."""

    separator: str | None = None  # the character between cells; None: a tab in .tsv files, otherwise a comma
    decimal: str = "."  # the decimal mark, a point or a comma
    encoding: str = "utf-8"  # of the text, as Python calls it

    def __post_init__(self) -> None:
        check_encoding(self.encoding, "encoding")


@dataclass(frozen=True)
class CsvFile(FileTable):
    """A CSV or TSV file. Cells are stripped, and those in `arrays.MISSING` are missing.

    Columns without a name are left out: they are row numbers, or remnants of deleted columns.

    Attributes:
        header: All names in the header, including empty ones.
        header_lines: The number of lines before the first row.
        separator: The character between cells.
        decimal: The decimal mark; numbers with the other mark, or with thousands separators, are text.
        encoding: The encoding of the text, converted block by block.
    """

    header: tuple[str, ...] = ()
    header_lines: int = 1
    separator: str = ","
    decimal: str = "."
    encoding: str = _UTF8

    @classmethod
    def open(cls, path: Path, written: CsvFormat) -> "CsvFile":
        """Read the header and whether rows follow."""
        encoding = check_encoding(written.encoding, "encoding")
        encoding = _UTF8 if encoding == "utf-8" else encoding
        _check_is_text(path, encoding)
        separator = written.separator or ("\t" if path.name.lower().endswith((".tsv", ".tsv.gz")) else ",")
        if separator == written.decimal:
            raise InputError(f"{path}: expected a decimal mark that does not separate cells, got ','; add --sep ';'")
        try:
            with _open_text(path, encoding) as stream:
                records = _records(path, stream, separator)
                _, end, cells = next((record for record in records if record[2]), (1, 1, []))
                has_rows = any(line.strip() for line in stream)
        except UnicodeError:
            raise _not_decodable(path, encoding) from None
        header = tuple(name.strip() for name in cells)
        names = [name for name in header if name]
        _check_header(path, names, separator)
        schema, num_rows = pa.schema([(name, pa.string()) for name in names]), None if has_rows else 0
        return cls(path, schema, num_rows, _header_notes(header), header, end, separator, written.decimal, encoding)

    @property
    def files(self) -> tuple[Path, ...]:
        """The file."""
        return (self.path,)

    @property
    def most_rows(self) -> float:
        """A number that the rows cannot exceed: each has at least as many bytes as columns, unless compressed."""
        return math.inf if _is_gzip(self.path) else self.path.stat().st_size / len(self.header)

    def read(self, column_types: Types | None = None) -> Table:
        """Return the whole table, with notes on columns that would be numbers with another decimal mark."""
        with self._diagnose_failure():
            text = pa.csv.read_csv(self._input(), **self._options()).rename_columns(self.names)
            self._check_end(text)
        return self._parse(text.slice(0, self.num_rows), column_types or {})  # of one column, blank lines are rows

    def to_memory(self, rows: pa.Table, numbers: Int[np.ndarray, " N"] | None = None) -> Table:
        """Return rows of verbatim batches, with columns of the types that fit all of their cells."""
        return self._parse(rows, {}, numbers)

    def _parse(self, text: pa.Table, column_types: Types, numbers: Int[np.ndarray, " N"] | None = None) -> Table:
        columns = {}
        for name in text.column_names:
            cells, kind = [arrays.clean(chunk) for chunk in text.column(name).chunks], column_types.get(name)
            starts = accumulate(map(len, cells[:-1]), initial=0)
            if kind is None:
                columns[name] = _guess_type(cells, self.decimal)
            else:
                typed = [self._parse_cells(name, chunk, kind, row) for chunk, row in zip(cells, starts, strict=True)]
                columns[name] = pa.chunked_array(typed, kind)
        guessed = {name: column for name, column in columns.items() if name not in column_types}
        notes = [_note_on_marks(name, column, self.decimal) for name, column in guessed.items()]
        table = self._place(pa.table(columns), numbers)
        return replace(table, notes=(*table.notes, *filter(None, notes)))

    def _place(self, rows: pa.Table, numbers: Int[np.ndarray, " N"] | None) -> Table:
        return Table(self.where, arrow=rows, numbers=numbers, line_of=self.line_of, notes=self.notes)

    def line_of(self, row: int) -> int:
        """Return the line on which a row begins, whose number starts at 0."""
        with _open_text(self.path, self.encoding) as stream:
            return next(islice(self._records(stream), row + 1, None))[0]

    def _stream(self, rows: int, column_types: Types, verbatim: Collection[str]) -> Iterator[pa.RecordBatch]:
        row = 0
        with self._diagnose_failure():
            for batch in pa.csv.open_csv(self._input(), **self._options()):
                columns = [
                    text
                    if name in verbatim
                    else self._parse_cells(name, arrays.clean(text), column_types.get(name), row)
                    for name, text in zip(self.names, batch.columns, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, self.names)
                row += len(batch)
            if row:
                self._check_end(batch)

    def _parse_cells(self, name: str, text: pa.Array, kind: pa.DataType | None, row: int) -> pa.Array:
        if kind is not None and arrays.is_text(kind):
            return text
        place = Place(self.where, name, row, line_of=self.line_of)
        if self.decimal == "," and (kind is None or arrays.is_number(kind)):
            text = _parse_commas(text, kind, place)
        if kind is None:
            return text
        if types.is_timestamp(kind):
            moments = arrays.parse_datetimes(text, place)
            arrays.check_zone(moments, arrays.has_zone(kind), place)
            return moments.cast(kind, safe=False)
        return arrays.parse(text, kind, place)

    def _input(self) -> pa.NativeFile:
        return pa.input_stream(str(self.path), compression="gzip" if _is_gzip(self.path) else None)

    def _options(self) -> dict[str, Any]:
        """Return the reader options. Columns are numbered, as several may lack a name, and read as text."""
        numbers = [str(i) for i in range(len(self.header))]
        return {
            "read_options": pa.csv.ReadOptions(
                column_names=numbers,
                skip_rows=self.header_lines,
                block_size=_BLOCK_BYTES,
                encoding="utf-8" if self.encoding == _UTF8 else self.encoding,
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
    def _diagnose_failure(self) -> Iterator[None]:
        """Find the line at which the reader failed, which it does not report."""
        try:
            yield
        except (pa.ArrowException, OSError, EOFError, UnicodeError) as problem:
            with name_file_in_errors(self.path):
                self._diagnose()
                raise problem

    def _check_end(self, text: pa.Table | pa.RecordBatch) -> None:
        """Raise `InputError` if a quote is not closed: to Arrow's reader, all that follows is the last cell."""
        last = text.slice(text.num_rows - 1).to_pylist() if text.num_rows else []
        if any("\n" in (cell or "") for row in last for cell in row.values()):
            self._diagnose()

    def _diagnose(self) -> None:
        """Raise `InputError` for the first record that cannot be decoded or has the wrong cells, if any."""
        try:
            with _open_text(self.path, self.encoding) as stream:
                for line, cells in self._records(stream):
                    if len(cells) != len(self.header) and cells:
                        count = f"{len(self.header)} column{'s' * (len(self.header) > 1)}"
                        raise InputError(
                            f"{self.path}, line {line}: expected {count} as in the header, got {len(cells)}; put cells "
                            'that contain the separator in "quotes"'
                        )
                    if len(self.separator.join(cells).encode()) >= _BLOCK_BYTES:
                        raise _too_long(self.path, line, "row")
        except UnicodeError:
            raise _not_decodable(self.path, self.encoding) from None

    def _records(self, stream: TextIO) -> Iterator[tuple[int, list[str]]]:
        """Yield the line on which each record begins, including the header, and its cells."""
        for begin, end, cells in _records(self.path, stream, self.separator):
            if cells or (len(self.header) == 1 and end > self.header_lines):
                yield begin, cells


def _records(path: Path, stream: TextIO, separator: str) -> Iterator[tuple[int, int, list[str]]]:
    """Yield the lines on which each record begins and ends, and its cells, of which a blank line has none."""
    at_end = False

    def lines() -> Iterator[str]:
        nonlocal at_end
        yield from stream
        at_end = True
        yield ""  # continues the last record, if a quote is open

    begin, limit = 1, csv.field_size_limit()
    csv.field_size_limit(max(limit, _BLOCK_BYTES))  # as for Arrow's reader
    try:
        reader = csv.reader(lines(), delimiter=separator)
        for cells in reader:
            if at_end:
                if cells:
                    raise InputError(
                        f"{path}, line {begin}: a quote that opens in this row is never closed; close it, or double "
                        "quotes inside of quoted cells"
                    )
                return
            yield begin, reader.line_num, cells
            begin = reader.line_num + 1
    except csv.Error:
        raise _too_long(path, begin, "cell") from None
    finally:
        csv.field_size_limit(limit)


def _too_long(path: Path, line: int, what: str) -> InputError:
    return InputError(
        f"{path}, line {line}: a {what} that begins here has more than {_BLOCK_BYTES:,} bytes; close its quote if one "
        "is open, or leave out the column"
    )


def _is_gzip(path: Path) -> bool:
    return path.name.lower().endswith(".gz")


def _open_text(path: Path, encoding: str) -> TextIO:
    opener: Any = gzip.open if _is_gzip(path) else open
    return opener(path, "rt", encoding=encoding, newline="")  # type: ignore[no-any-return]


def _check_is_text(path: Path, encoding: str) -> None:
    with gzip.open(path) if _is_gzip(path) else path.open("rb") as stream:
        start = stream.read(65_536)
    if encoding == _UTF8 and start.startswith(_UTF16):
        raise InputError(f"{path}: expected UTF-8, got UTF-16; pass --encoding utf-16, or save the file as UTF-8")
    binary = "binary data" if b"\0" in start and b"\0" not in " ".encode(encoding) else ""
    if kind := next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), binary):
        raise InputError(f"{path}: expected text, got {kind}; save the table as CSV, or correct the suffix")
    if not start.strip(b"\xef\xbb\xbf\r\n\t ,"):
        raise InputError(f"{path}: expected a table, got an empty file")


def _not_decodable(path: Path, encoding: str) -> InputError:
    """Return the error for the first byte that is not text in this encoding."""
    name, other = ("UTF-8", "latin-1") if encoding == _UTF8 else (encoding, "NAME")
    decoder, line, got = codecs.getincrementaldecoder(encoding)(), 1, ""
    with gzip.open(path) if _is_gzip(path) else path.open("rb") as stream:
        while not got and (block := stream.read(65_536)):
            try:
                line += decoder.decode(block).count("\n")
            except UnicodeDecodeError as problem:
                got = f"byte 0x{problem.object[problem.start : problem.start + 1].hex()}"
                held_back = len(decoder.getstate()[0])
                line += decoder.decode(problem.object[held_back : problem.start]).count("\n")
            except UnicodeError as problem:  # such as UTF-16 without a byte order mark
                reason = f"{first_line(problem)}; pass another --encoding, or leave it out"
                return InputError(f"{path}: expected {name}: {reason}")
    got = got or "an incomplete character at the end"
    return InputError(
        f"{path}, line {line}: expected {name}, got {got}; pass the encoding of the file, as in --encoding {other}, or "
        "save it as UTF-8"
    )


def _check_header(path: Path, names: list[str], separator: str) -> None:
    others = [mark for mark in ";\t|," if mark != separator and len(names) == 1 and mark in names[0]]
    if not names:
        raise InputError(f"{path}: expected column names on the first line, got none; add a header")
    if others:
        used = "tab" if others[0] == "\t" else repr(others[0])
        raise InputError(f"{path}: expected cells separated by {separator!r}, got {others[0]!r}; pass --sep {used}")
    check_names(names, str(path))


def _header_notes(header: tuple[str, ...]) -> tuple[Note, ...]:
    notes = []
    if unnamed := header.count(""):
        notes.append(Note("", f"{unnamed} column{'s' * (unnamed > 1)} without a name left out"))
    if arrays.can_cast(pa.array([name for name in header if name]), pa.float64()):
        hint = "if the first line is data, insert a line of names above it"
        notes.append(Note("all column names are numbers", hint))
    return tuple(notes)


# Cells of a column that would be numbers with another decimal mark or without thousands separators.
_OTHER_MARKS: Final = {
    ".": (r"^[+-]?[0-9]*(,[0-9]+)*(\.[0-9]+)?([eE][+-]?[0-9]+)?$", ","),
    ",": (r"^[+-]?[0-9]*(\.[0-9]{3})*(\.[0-9]+)?(,[0-9]+)?([eE][+-]?[0-9]+)?$", "."),
}


def _note_on_marks(name: str, column: pa.ChunkedArray, decimal: str) -> Note | None:
    """Return a note on a text column in which all cells look like numbers and some have the other mark."""
    pattern, other = _OTHER_MARKS[decimal]
    if not arrays.is_text(column.type) or not pc.all(pc.match_substring_regex(column, pattern)).as_py():
        return None
    marked = column.filter(pc.match_substring(column, other))
    if not len(marked):
        return None
    example = marked[0].as_py()
    if decimal == ".":
        hint = "if the comma is the decimal mark, pass --decimal ','; if it separates thousands, remove it"
    else:
        hint = "if the point separates thousands, remove it; if it is the decimal mark, leave out --decimal ','"
    return Note(f"column {name!r} is text such as {example!r:.40}", hint)


def _parse_commas(text: pa.Array, kind: pa.DataType | None, place: Place) -> pa.Array:
    """Return numbers that have a decimal comma with a point; text in a column of unknown type stays as it is."""
    numbers = _swap_marks(text)
    if arrays.can_cast(numbers, kind or pa.float64()):
        return numbers
    if kind is None:
        return text
    row = arrays.first_failure(numbers, kind)
    raise place.error(f"expected a number with a decimal comma, got {text[row].as_py()!r:.60}", row)


def _swap_marks(text: pa.Array) -> pa.Array:
    """Replace commas by points; cells that have a point become something that is not a number."""
    return pc.replace_substring(pc.replace_substring(text, ".", ";"), ",", ".")


def _guess_type(chunks: list[pa.Array], decimal: str) -> pa.ChunkedArray:
    """Return a text column in the first type that fits every cell."""
    if all(chunk.null_count == len(chunk) for chunk in chunks):
        return pa.chunked_array([pa.nulls(len(chunk)) for chunk in chunks], pa.null())
    plain = chunks if decimal == "." else [_swap_marks(chunk) for chunk in chunks]
    for kinds in _GUESSES:
        if all(arrays.can_cast(chunk, kind) for kind in kinds for chunk in plain):
            return pa.chunked_array([chunk.cast(kinds[0]) for chunk in plain])
    if any(arrays.can_cast(reading, kind) for reading, kind in arrays.datetime_readings(chunks[0])):
        with contextlib.suppress(InputError, pa.ArrowInvalid):  # a later cell is not a date, or the text exceeds 2 GB
            return pa.chunked_array([_parse_times(pa.concat_arrays(chunks))])
    return pa.chunked_array(chunks)


def _parse_times(text: pa.Array) -> pa.Array:
    """Parse text as timestamps or, if no cell has a date, as times of day."""
    moments = arrays.parse_datetimes(text, Place("", ""))
    is_clock = pc.all(pc.match_substring_regex(text, "^[0-9:.]+$")).as_py()
    return moments.cast(pa.time64("us"), safe=False) if is_clock else moments

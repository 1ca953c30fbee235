"""Tables in files: what is written is read, streams agree with the whole, a damaged file gets one clear line."""

import datetime
import errno
import gzip
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dspp.encoding.encoder import TableEncoder
from dspp.errors import InputError
from dspp.notes import Note
from dspp.table import csvfile
from dspp.table.arrays import MISSING
from dspp.table.csvfile import CsvFormat
from dspp.table.files import open_table, write_table
from dspp.table.messages import Place
from dspp.table.table import FileTable

SUFFIXES = [".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".feather", ".arrow"]
TABLE = pa.table(
    {
        "n": [1, 2, None],
        "x": [1.5, None, -1e300],
        "s": ["red, or so", 'a "quoted"\nline', None],
        "b": [True, False, None],
        "d": pa.array([datetime.date(2024, 1, d) for d in (1, 2, 3)]),
        "t": pa.array([datetime.datetime(2024, 1, d, 12, 30) for d in (1, 2, 3)]),
        "clock": pa.array([datetime.time(h, 30) for h in (1, 2, 3)]),
    }
)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def csv(folder: Path, content: str | bytes) -> FileTable:
    return open_table(write(folder / "data.csv", content))


def refusal(path: Path, late: bool = False) -> str:
    """The message of the error on opening a file or, if it may come `late`, on reading it, whole and in batches."""
    with pytest.raises(InputError) as caught:
        open_table(path).read() if late else open_table(path)
    if late:
        with pytest.raises(InputError) as streamed:
            list(open_table(path).batches())
        assert str(streamed.value) == str(caught.value)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


# ---------------------------------------------------------------- every format


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_is_written_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"table{suffix}"
    assert write_table(path, TABLE.to_batches(max_chunksize=2), TABLE.schema) == 3
    file = open_table(str(path))
    assert file.names == tuple(TABLE.column_names)
    assert file.num_rows == (None if "sv" in suffix else 3)
    assert file.notes == ()
    assert file.read().arrow == TABLE
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("rows", [1, 700, 1000, 100_000])
def test_batches_have_the_rows_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, rows: int
) -> None:
    monkeypatch.setattr(csvfile, "_BLOCK_BYTES", 1_000)  # many blocks, as in a large file
    num = 20 if rows == 1 else 2_000
    table = pa.table({"a": np.arange(num), "c": np.array(["x", "y"] * (num // 2)), "z": np.arange(num) / 7})
    path = tmp_path / f"table{suffix}"
    write_table(path, table.to_batches(max_chunksize=300), table.schema)
    file = open_table(path)
    batches = list(file.batches(rows, {"a": pa.int64(), "z": pa.float64()}))
    assert [len(batch) for batch in batches] == [rows] * (num // rows) + [num % rows] * (num % rows > 0)
    joined = pa.concat_tables(batch.arrow for batch in batches).combine_chunks()
    assert joined == file.read().arrow.combine_chunks() == table


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_encoder_makes_the_same_numbers_of_a_stream(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"table{suffix}"
    write_table(path, TABLE.to_batches(), TABLE.schema)
    file = open_table(path)
    encoder = TableEncoder.fit(file.read().arrow)
    whole = encoder.transform(file.read().arrow)
    for types in (None, encoder.arrow_types()):
        parts = [encoder.transform(batch.arrow) for batch in file.batches(2, types)]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


CELL = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=5)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(CELL, st.floats(allow_infinity=False) | st.none()), min_size=1, max_size=8))
def test_any_text_survives_a_csv_file(tmp_path: Path, rows: list[tuple[str | None, float | None]]) -> None:
    # What is lost on purpose: space around cells, marks of missing values, and NaN, which is one.
    def kept(cell: str | None) -> str | None:
        trimmed = pa.compute.utf8_trim_whitespace(pa.array([cell], pa.string()))[0].as_py()
        return None if trimmed in MISSING else trimmed

    table = pa.table(
        {"a": pa.array([a for a, _ in rows], pa.string()), "b": pa.array([b for _, b in rows], pa.float64())}
    )
    write_table(tmp_path / "t.csv", table.to_batches(), table.schema)
    (batch,) = open_table(tmp_path / "t.csv").batches(100, {"b": pa.float64()})
    assert batch.arrow.column("a").to_pylist() == [kept(a) for a, _ in rows]
    assert batch.arrow.column("b").to_pylist() == [None if b is None or b != b else b for _, b in rows]


# ---------------------------------------------------------------- CSV


def test_types_are_those_that_every_cell_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csvfile, "_BLOCK_BYTES", 200)
    early, late = "1,1,true,2024-01-01,2024-01-01 10:00,12:30,2024-01-01T10:00Z,\n" * 50, "2,1.5,x,x,x,x,x,\n"
    header = "int,float,bool,date,time,clock,zoned,empty\n"
    before = csv(tmp_path, header + early).read().arrow
    kinds = [str(kind) for kind in before.schema.types]
    assert kinds == [
        "int64",
        "int64",
        "bool",
        "date32[day]",
        "timestamp[us]",
        "time64[us]",
        "timestamp[us, tz=UTC]",
        "null",
    ]
    after = csv(tmp_path, header + early + late).read().arrow
    assert [str(kind) for kind in after.schema.types] == ["int64", "double", *["string"] * 5, "null"]
    assert after.column("bool").to_pylist() == ["true"] * 50 + ["x"]


def test_types_that_are_told_are_not_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csvfile, "_BLOCK_BYTES", 200)
    file = csv(tmp_path, "code,x,when,y\n" + "01,1,2024-01-01,5\n" * 50 + "NA,2,2024-01-02,\n")
    assert isinstance(file, csvfile.CsvFile)
    told = {"code": pa.string(), "x": pa.float64(), "when": pa.timestamp("us")}
    table = file.read(told).arrow
    assert [str(kind) for kind in table.schema.types] == ["string", "double", "timestamp[us]", "int64"]
    assert table.column("code").to_pylist() == ["01"] * 50 + [None]
    (batch,) = file.batches(100, told)
    assert batch.arrow.select(list(told)).to_pydict() == table.select(list(told)).to_pydict()
    write(file.path, file.path.read_bytes().replace(b"NA", b"one"))
    with pytest.raises(InputError, match=r"column 'code', row 50 \(line 52\): expected a number, got 'one'"):
        file.read({"code": pa.float64()})


def test_whole_numbers_are_numbers(tmp_path: Path) -> None:
    """Arrow takes 0xd8 for a whole number, but for no number: the encoder would refuse what `read` had guessed."""
    table = csv(tmp_path, "hex,whole\n0xd8,12\n0x1f,-3\n").read().arrow
    assert [str(kind) for kind in table.schema.types] == ["string", "int64"]


def test_columns_can_be_had_as_they_were_typed(tmp_path: Path) -> None:
    file = csv(tmp_path, "a,b\n NA ,NA\n 01,01\n,\n")
    assert isinstance(file, csvfile.CsvFile)
    (batch,) = file.batches(10, {"a": pa.float64(), "b": pa.float64()}, verbatim=["a"])
    assert batch.arrow.to_pydict() == {"a": [" NA ", " 01", None], "b": [None, 1.0, None]}


def test_marks_of_missing_values(tmp_path: Path) -> None:
    marks = ["", "NA", " NA ", "NaN", "null", "None", "?", '"NA"']
    rows = "".join(f"{mark},{mark},{mark}\n" for mark in marks)
    table = csv(tmp_path, f"s,n,d\nred,1.5,2024-01-01\n{rows}none, 2 ,2024-01-02\n").read().arrow
    missing = [None] * len(marks)
    assert table.column("s").to_pylist() == ["red", *missing, "none"]
    assert table.column("n").to_pylist() == [1.5, *missing, 2.0]
    assert table.column("d").null_count == len(marks)


@pytest.mark.parametrize(
    "content",
    [
        "\ufeffa,b\n1,x\n2,y\n",
        "a,b\r\n1,x\r\n2,y\r\n",
        "\n\na,b\n\n1,x\n\n2,y\n\n",
        ' a , "b" \n1,x\n2, y\n',
        '"a","b"\n"1","x"\n"2","y"',
        ",a,b\n0,1,x\n1,2,y\n",
        "a,b,,\n1,x,,\n2,y,,\n",
    ],
    ids=["byte order mark", "windows", "blank lines", "space", "quotes", "row numbers", "trailing commas"],
)
def test_the_same_table_however_it_is_written(tmp_path: Path, content: str) -> None:
    if content.startswith(" a"):
        content = content.replace(' "b" ', " b ")
    file = csv(tmp_path, content)
    assert file.read().arrow.to_pydict() == {"a": [1, 2], "b": ["x", "y"]}
    assert pa.concat_tables(batch.arrow for batch in file.batches()).to_pydict() == {"a": ["1", "2"], "b": ["x", "y"]}


def test_columns_without_a_name_are_noted(tmp_path: Path) -> None:
    assert csv(tmp_path, ",a\n0,5\n").notes == (Note("", "1 column without a name left out"),)
    assert csv(tmp_path, "a,,\n0,5,6\n").notes == (Note("", "2 columns without a name left out"),)
    assert "if the first line is data" in str(csv(tmp_path, "1.5,2\n3,4\n").notes[0])


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le", "cp1252"])
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_other_encodings_are_read_block_by_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, encoding: str
) -> None:
    monkeypatch.setattr(csvfile, "_BLOCK_BYTES", 1_000)
    text = "café,b\n" + "Liège,1\n" * 2_000 + "Gênes,x\n"
    content = text.encode(encoding)
    path = write(tmp_path / f"t{suffix}", gzip.compress(content) if suffix.endswith("gz") else content)
    file = open_table(path, CsvFormat(encoding=encoding))
    whole = file.read().arrow
    assert whole.column("café").to_pylist() == ["Liège"] * 2_000 + ["Gênes"]
    assert pa.concat_tables(batch.arrow for batch in file.batches(700)).to_pydict() == whole.to_pydict()
    with pytest.raises(InputError, match=r"row 2000 \(line 2002\): expected a number, got 'x'"):
        list(file.batches(700, {"b": pa.float64()}))


def test_text_that_is_not_of_the_given_encoding_is_named(tmp_path: Path) -> None:
    for content, encoding, message in (
        ("a,b\n1,2\n3,é\n".encode("latin-1"), "ascii", "line 3: expected ascii, got byte 0xe9"),
        (b"a,b\n1,2\n", "utf-16", "expected utf-16: UTF-16 stream does not start with BOM; pass another --encoding"),
        (b"a,b\n1,2\n3,\x81\n", "cp1252", "line 3: expected cp1252, got byte 0x81"),
        ("a,b\n1,2\n3,4\n".encode("utf-16")[:-1], "utf-16", "line 3: expected utf-16, got an incomplete character"),
    ):
        path = write(tmp_path / "t.csv", content)
        with pytest.raises(InputError, match=message):
            open_table(path, CsvFormat(encoding=encoding)).read()
    for name in ("klingon", "base64", ""):
        with pytest.raises(InputError, match="encoding: expected a text encoding such as utf-8, latin-1 or utf-16"):
            CsvFormat(encoding=name)


def test_one_column_keeps_its_empty_lines(tmp_path: Path) -> None:
    table = pa.table({"a": [1, None, 3]})
    write_table(tmp_path / "a.csv", table.to_batches(), table.schema)
    assert open_table(tmp_path / "a.csv").read().arrow == table


def test_pandas_writes_what_is_read(tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"a": [1.5, np.nan], "when": pd.date_range("2024-01-01", periods=2, freq="h"), "s": ["x", "y"]}
    )
    frame.to_csv(tmp_path / "f.csv.gz")
    table = open_table(tmp_path / "f.csv.gz").read().arrow
    assert table.column_names == ["a", "when", "s"]
    assert table.column("when").to_pylist() == list(frame["when"])


def test_a_cell_that_is_not_of_its_type_is_named_with_row_and_line(tmp_path: Path) -> None:
    content = 'a,s\n1,x\n\n2,"two\nlines"\nthree,y\n'
    file = csv(tmp_path, content)
    with pytest.raises(InputError, match=r"data.csv: column 'a', row 2 \(line 6\): expected a number, got 'three'$"):
        list(file.batches(1, {"a": pa.float64()}))
    with pytest.raises(InputError, match=r"column 's', row 0 \(line 2\): expected a date or time"):
        list(file.batches(1, {"s": pa.timestamp("us")}))
    assert [batch.arrow.column("a")[0].as_py() for batch in file.batches(1)] == ["1", "2", "three"]
    assert file.read().arrow.column("a").to_pylist() == ["1", "2", "three"]


def test_no_row_is_read_before_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csvfile, "_BLOCK_BYTES", 1_000)
    file = csv(tmp_path, "a,b\n" + "1,2\n" * 5_000 + "1,2,3\n")
    stream = file.batches(10)
    assert len(next(stream)) == 10  # the damage at the end is not met yet
    with pytest.raises(InputError, match="line 5002"):
        list(stream)
    with pytest.raises(InputError, match="rows: expected at least 1, got 0"):
        file.batches(0)


# ---------------------------------------------------------------- files that cannot be read


def test_paths_that_are_no_tables(tmp_path: Path) -> None:
    assert "does not exist" in refusal(tmp_path / "absent.csv")
    (tmp_path / "folder.csv").mkdir()
    assert "got a folder" in refusal(tmp_path / "folder.csv")
    message = refusal(write(tmp_path / "table.txt", "a"))
    assert all(suffix in message for suffix in SUFFIXES)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_empty_files(tmp_path: Path, suffix: str) -> None:
    assert "got an empty file" in refusal(write(tmp_path / f"t{suffix}", b""))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_tables_without_rows(tmp_path: Path, suffix: str) -> None:
    write_table(tmp_path / f"t{suffix}", [], TABLE.schema)
    assert "expected at least one row" in refusal(tmp_path / f"t{suffix}")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n \n", "got an empty file"),
        (b"a,b\n\n \n", "expected at least one row, got only a header"),
        (b"PK\x03\x04\0\0\0", "got an Excel or zip file"),
        (bytes(range(256)), "got binary data"),
        (b"PAR1" + bytes(9), "got a Parquet file"),
        (gzip.compress(b"a,b\n1,2\n", mtime=0), "got a gzip file"),
        ("a,b\n1,2".encode("utf-16"), "UTF-16"),
        (b"a,b,a,b\n1,2,3,4\n", "got 'a', 'b' more than once"),
        (b"a,b, a\n1,2,3\n", "got 'a' more than once"),
        (b",,\n1,2,3\n", "expected column names on the first line"),
        (b"a;b\n1;2\n", "separated by ',', got ';'"),
        (b"a\tb\n1\t2\n", r"separated by ',', got '\\t'"),
        (
            b"caf\xe9,b\n1,2\n",
            "line 1: expected UTF-8, got byte 0xe9; pass the encoding of the file, as in --encoding latin-1",
        ),
        (b'\n"a,b\n1,2\n', "line 2: a quote that opens in this row is never closed"),
        (b'"a,b\n' + b"1,2\n" * 2_000_000, "line 1: a cell that begins here has more than 4,194,304"),
    ],
)
def test_csv_files_that_do_not_open(tmp_path: Path, content: bytes, message: str) -> None:
    assert message.replace("\\\\", "\\") in refusal(write(tmp_path / "t.csv", content))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2\n1,2,3\n", "line 3: expected 2 columns as in the header, got 3"),
        (b"a,b\n\n1,2\n1\n1,2,3\n", "line 4: expected 2 columns as in the header, got 1"),
        (b"a\n1\n1,2\n", "line 3: expected 1 column as in the header, got 2"),
        (b"a,b\n1,x\n2,\xe9\n", "line 3: expected UTF-8, got byte 0xe9"),
        (b"a,b\n" + b"1,2\n" * 40_000 + b"\xff,2\n", "line 40002: expected UTF-8, got byte 0xff"),
        (b'a,b\n1,2\n3,"x\ny"\n"4\n5"\n', "line 5: expected 2 columns as in the header, got 1"),
        (b'a,b\n1,2\n"3,4\n5,6\n', "line 3: a quote that opens in this row is never closed"),
        (b'a,b\n1,2\n3,"4\n5,6\n7,8\n', "line 3: a quote that opens in this row is never closed"),
        (b'a,b\n1,2\n3,"4\n' + b"5,6\n" * 60_000, "line 3: a quote that opens in this row is never closed"),
        (b'a,b\n1,2\n3,"4\n' + b"5,6\n" * 2_000_000, "line 3: a cell that begins here has more than 4,194,304"),
        (b'a,b\n1,2\n"' + b"x\n" * 100_000 + b'",2\n1,2,3\n', "line 100004: expected 2 columns as in the header"),
        (b'a,b\n1,"\n2"\n' + (b"x" * 3_000_000 + b",") * 2 + b"\n", "line 4: expected 2 columns"),
        (b"a,b,c\n1,2,3\n" + b",".join([b"x" * 3_500_000] * 3) + b"\n", "line 3: a row that begins here has more than"),
    ],
)
@pytest.mark.parametrize("suffix", [".csv", ".csv.gz"])
def test_csv_files_that_go_wrong_later(tmp_path: Path, suffix: str, content: bytes, message: str) -> None:
    path = write(tmp_path / f"t{suffix}", gzip.compress(content) if suffix.endswith("gz") else content)
    assert message in refusal(path, late=True)


@pytest.mark.parametrize("suffix", [".csv.gz", ".parquet", ".feather", ".arrow"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_truncated_files(tmp_path: Path, suffix: str, share: float) -> None:
    path = tmp_path / f"t{suffix}"
    table = pa.table({"a": np.random.default_rng(0).normal(size=20_000)})
    write_table(path, table.to_batches(), table.schema)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    assert "cannot read the file" in refusal(path, late=suffix == ".csv.gz")


@pytest.mark.parametrize("suffix", [".parquet", ".feather", ".csv.gz"])
def test_files_of_another_kind(tmp_path: Path, suffix: str) -> None:
    assert "cannot read the file" in refusal(write(tmp_path / f"t{suffix}", "a,b\n1,2\n" * 100))


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(SUFFIXES), st.integers(0, 10_000), st.binary(min_size=1, max_size=8))
def test_a_damaged_file_is_read_or_refused(tmp_path: Path, suffix: str, position: int, damage: bytes) -> None:
    path = tmp_path / f"t{suffix}"
    write_table(path, TABLE.to_batches(), TABLE.schema)
    content = bytearray(path.read_bytes())
    position %= len(content)
    content[position : position + len(damage)] = damage
    path.write_bytes(content)
    try:
        list(open_table(path).batches())
        TableEncoder.fit(open_table(path).read().arrow, Place(str(path)))
    except InputError as problem:
        assert str(path) in str(problem)  # noqa: PT017 - both ends are allowed
        assert "\n" not in str(problem)  # noqa: PT017


# ---------------------------------------------------------------- writing


def failing() -> Iterator[pa.RecordBatch]:
    yield from TABLE.to_batches()
    raise InputError("no more")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("existed", [True, False])
def test_a_failed_write_leaves_what_was_there(tmp_path: Path, suffix: str, existed: bool) -> None:
    path = tmp_path / f"t{suffix}"
    if existed:
        path.write_text("before")
    with pytest.raises(InputError, match=r"^no more$"):
        write_table(path, failing(), TABLE.schema)
    assert [p.read_text() for p in tmp_path.iterdir()] == ["before"] * existed


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_full_disk(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"t{suffix}", "before")
    table = pa.table({"a": np.random.default_rng(0).normal(size=20_000)})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # a write beyond it fails, as on a full disk
    try:
        with pytest.raises(InputError, match=f"^{path}: cannot write the file: {os.strerror(errno.EFBIG)}$"):
            write_table(path, table.to_batches(max_chunksize=1_000), table.schema)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [p.read_text() for p in tmp_path.iterdir()] == ["before"]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent/t.csv: cannot write the file: No such file or directory"):
        write_table(tmp_path / "absent" / "t.csv", TABLE.to_batches(), TABLE.schema)
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(InputError, match=r"t.csv: cannot write the file: expected a regular file, got a folder"):
        write_table(tmp_path / "t.csv", TABLE.to_batches(), TABLE.schema)
    with pytest.raises(InputError, match="expected a file name ending in"):
        write_table(tmp_path / "t.xlsx", TABLE.to_batches(), TABLE.schema)
    nested = pa.table({"a": [[1, 2]]})
    with pytest.raises(InputError, match=r"u.csv: cannot write the table in this format: Unsupported Type:list"):
        write_table(tmp_path / "u.csv", nested.to_batches(), nested.schema)
    for suffix in SUFFIXES:
        with pytest.raises(InputError, match=rf"u{suffix}: expected batches with the columns a: .*, got a: list"):
            write_table(tmp_path / f"u{suffix}", nested.to_batches(), pa.schema({"a": pa.int64()}))
    assert [p.name for p in tmp_path.iterdir()] == ["t.csv"]


def test_permissions_are_those_of_a_new_file_or_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write_table(path, TABLE.to_batches(), TABLE.schema)
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask
    path.chmod(0o600)
    write_table(path, TABLE.to_batches(), TABLE.schema)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_written_file_is_the_same_every_time(tmp_path: Path) -> None:
    def content(name: str) -> bytes:
        write_table(tmp_path / name, TABLE.to_batches(), TABLE.schema)
        return (tmp_path / name).read_bytes()

    for suffix in SUFFIXES:
        assert content(f"t{suffix}") == content(f"t{suffix}")


def test_any_column_a_frame_can_have(tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "c": pa.array(["a", "b"]).dictionary_encode(),
        "empty": pa.nulls(2),
        "took": pa.array([1, 2], pa.duration("s")),
    }
    table = pa.table(columns)
    for suffix in SUFFIXES:
        assert write_table(tmp_path / f"t{suffix}", table.to_batches(), table.schema) == 2
        assert open_table(tmp_path / f"t{suffix}").read().arrow.column("c").to_pylist() == ["a", "b"]


def test_streaming_parquet_keeps_one_row_group_in_memory(tmp_path: Path) -> None:
    table = pa.table({f"x{d}": np.random.default_rng(d).normal(size=400_000) for d in range(5)})  # 16 MB
    pa.parquet.write_table(table, tmp_path / "t.parquet", row_group_size=20_000)
    del table
    before = pa.total_allocated_bytes()
    most = rows = 0
    for batch in open_table(tmp_path / "t.parquet").batches(5000):
        rows += len(batch)
        most = max(most, pa.total_allocated_bytes() - before)
    assert rows == 400_000
    assert most < 4_000_000

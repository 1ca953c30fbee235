"""CSV files as other countries and programs write them, tables from a pipe, and spreadsheets."""

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dspp.cli import app
from dspp.cli.options import csv_format
from dspp.errors import InputError
from dspp.table.csvfile import CsvFormat
from dspp.table.files import open_table, write_table

TINY = ["--members", "1", "--inducing", "8", "--width", "2", "--epochs", "2", "--restarts", "1"]
GERMAN = ("--sep", ";", "--decimal", ",")


def dspp(*args: object, stdin: bytes | None = None) -> Any:
    return CliRunner().invoke(app, [str(arg) for arg in args], input=stdin, catch_exceptions=False)


def done(*args: object, stdin: bytes | None = None) -> str:
    result = dspp(*args, stdin=stdin)
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    return str(result.stdout)


def refused(*args: object, stdin: bytes | None = None) -> str:
    result = dspp(*args, stdin=stdin)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


def lines(separator: str, decimal: str, rows: int = 60) -> str:
    """One table, whatever it is written with."""
    rng = np.random.default_rng(0)
    out = [separator.join(["town", "size", "rooms", "code", "price"])]
    for i in range(rows):
        size = rng.normal(50, 10)
        cells = [["Gent", "Namur"][i % 2], f"{size:.2f}", str(i % 4), f"{i % 3}.{i % 2}x", f"{2 * size + i % 4:.3f}"]
        out.append(separator.join(cell.replace(".", decimal) if j in (1, 4) else cell for j, cell in enumerate(cells)))
    return "\n".join(out) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("csv")
    (folder / "english.csv").write_text(lines(",", "."))
    (folder / "german.csv").write_text(lines(";", ","))
    (folder / "pipes.csv").write_text(lines("|", "."))
    (folder / "tabs.csv").write_text(lines("\t", "."))
    done("fit", folder / "english.csv", "--target", "price", "--out", folder / "m.dspp", *TINY)
    return folder


WRITTEN = {"german.csv": GERMAN, "pipes.csv": ("--sep", "|"), "tabs.csv": ("--sep", "tab")}


@pytest.mark.parametrize("name", WRITTEN)
def test_all_commands_read_the_same_numbers_however_they_are_written(name: str, folder: Path, tmp_path: Path) -> None:
    marks, english, table, model = WRITTEN[name], folder / "english.csv", folder / name, folder / "m.dspp"
    done("fit", table, "--target", "price", "--out", tmp_path / "m.dspp", *marks, *TINY)
    for path, how in ((english, ()), (table, marks)):
        for which in (model, tmp_path / "m.dspp"):
            done("predict", which, path, "--out", tmp_path / f"{path.stem}-{which.parent.name}.csv", *how)
    texts = {path.read_text() for path in tmp_path.glob("*.csv")}
    assert len(texts) == 1, "two models that read two files predict the same"
    assert done("evaluate", model, table, *marks, "--json").replace(str(table), str(english)) == done(
        "evaluate", model, english, "--json"
    )


def test_validation_rows_are_written_like_training_rows(folder: Path, tmp_path: Path) -> None:
    how = ("--target", "price", "--validation", folder / "german.csv", *GERMAN, *TINY)
    text = done("fit", folder / "german.csv", "--out", tmp_path / "m.dspp", *how)
    assert f"Scores on 60 rows ({folder / 'german.csv'})" in text


def test_numbers_with_a_decimal_comma(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b;c;d;e\n1,5;1;-,5;1,5 x;NA\n-2,25;2;1e3;2.5;3\n")
    arrow = open_table(path, CsvFormat(";", ",")).read().arrow
    assert arrow is not None
    assert arrow.to_pydict() == {
        "a": [1.5, -2.25],
        "b": [1, 2],
        "c": [-0.5, 1000.0],
        "d": ["1,5 x", "2.5"],  # text stays as it was typed
        "e": [None, 3],
    }
    file = open_table(path, CsvFormat(";", ","))
    (batch,) = file.batches(column_types={"a": pa.float64(), "d": pa.string()})
    assert batch.arrow is not None
    assert batch.arrow["a"].to_pylist() == [1.5, -2.25]
    assert batch.arrow["d"].to_pylist() == ["1,5 x", "2.5"]


def test_a_point_is_no_decimal_mark_where_the_comma_is(tmp_path: Path) -> None:
    """1.234 is 1234 in such a file, so that to read it as 1.234 would be wrong and silent."""
    path = tmp_path / "t.csv"
    path.write_text("a;b\n1,5;1.234\n2,5;2.345,5\n")
    table = open_table(path, CsvFormat(";", ",")).read()
    assert table.arrow is not None
    assert table.arrow["b"].to_pylist() == ["1.234", "2.345,5"]
    assert [str(note) for note in table.notes] == [
        "column 'b' is text such as '1.234': if the point separates thousands, remove it; if it is the decimal mark, "
        "leave out --decimal ','"
    ]
    file = open_table(path, CsvFormat(";", ","))
    with pytest.raises(InputError, match=r"column 'b', row 0 \(line 2\): expected a number with a decimal comma, got"):
        list(file.batches(column_types={"b": pa.float64()}))


def test_columns_that_would_be_numbers_are_noted(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b;c;d;e\n1,5;1,234.5;x;2024-01-01;+\n2;2,000;1,5;2024-01-02;-\n")
    table = open_table(path, CsvFormat(";")).read()
    hint = "if the comma is the decimal mark, pass --decimal ','; if it separates thousands, remove it"
    assert [str(note) for note in table.notes] == [
        f"column 'a' is text such as '1,5': {hint}",
        f"column 'b' is text such as '1,234.5': {hint}",
    ]
    known = open_table(path, CsvFormat(";")).read({"a": pa.string(), "b": pa.string()})
    assert known.notes == ()  # as the model has learned them as text


MISTAKES = {
    ("--sep", ";;"): "--sep: expected one character such as ';', or the word tab, got ';;'",
    ("--sep", "x"): "--sep: expected one character such as ';', or the word tab, got 'x'",
    ("--sep", '"'): "--sep: expected one character",
    ("--sep", "é"): "--sep: expected one character",
    ("--decimal", ";"): "--decimal: expected '.' or ',', got ';'",
    ("--sep", ",", "--decimal", ","): "--sep and --decimal: expected different characters, got ',' for both",
    ("--encoding", "klingon"): "--encoding: expected a text encoding such as utf-8, latin-1 or utf-16, got 'klingon'",
    ("--encoding", "gzip"): "--encoding: expected a text encoding such as utf-8, latin-1 or utf-16, got 'gzip'",
    ("--decimal", ","): "expected a decimal mark that does not separate cells, got ','; add --sep ';'",
    (): "german.csv: expected cells separated by ',', got ';'; pass --sep ';'",
    ("--sep", "|"): "german.csv: expected cells separated by '|', got ';'; pass --sep ';'",
}


@pytest.mark.parametrize("marks", MISTAKES)
def test_marks_that_cannot_be_are_refused(marks: tuple[str, ...], folder: Path, tmp_path: Path) -> None:
    table, model = folder / "german.csv", folder / "m.dspp"
    fit = ("fit", table, "--target", "price", "--out", tmp_path / "m.dspp")
    for command in (fit, ("predict", model, table, "--out", tmp_path / "p.csv"), ("evaluate", model, table)):
        assert MISTAKES[marks] in refused(*command, *marks)


def test_a_tab_may_be_written_in_two_ways() -> None:
    for tab in ("tab", "\\t", "\t"):
        assert csv_format(tab, ".", "utf-8") == CsvFormat("\t")
    assert csv_format(None, ".", "UTF8") == CsvFormat()


def test_marks_apply_to_csv_files_only(folder: Path, tmp_path: Path) -> None:
    pq.write_table(pa.table({"size": [1.0], "price": [2.0]}), tmp_path / "t.parquet")
    for more in (GERMAN, ("--encoding", "latin-1")):
        line = refused("fit", tmp_path / "t.parquet", "--target", "price", "--out", tmp_path / "m", *more)
        assert "t.parquet: --sep, --decimal and --encoding apply to CSV files; leave them out" in line


# ---------------------------------------------------------------- encodings


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-16-be", "UTF-8"])
def test_all_commands_read_text_in_other_encodings(encoding: str, tmp_path: Path) -> None:
    text = lines(",", ".").replace("town,", "café,").replace("Gent", "Liège")
    (tmp_path / "utf8.csv").write_text(text, encoding="utf-8")
    (tmp_path / "t.csv").write_text(text, encoding=encoding)
    models = tmp_path / "a.dspp", tmp_path / "b.dspp"
    for model, table, how in zip(models, ("utf8.csv", "t.csv"), ((), ("--encoding", encoding)), strict=True):
        done("fit", tmp_path / table, "--target", "price", "--out", model, *TINY, *how)
    expected = done("predict", models[0], tmp_path / "utf8.csv", "--keep", "café", "--out", "-")
    found = done("predict", models[1], tmp_path / "t.csv", "--keep", "café", "--out", "-", "--encoding", encoding)
    assert found == expected
    assert "Liège" in found
    scores = done("evaluate", models[1], tmp_path / "t.csv", "--json", "--encoding", encoding)
    assert scores.replace("t.csv", "utf8.csv").replace("b.dspp", "a.dspp") == done(
        "evaluate", models[0], tmp_path / "utf8.csv", "--json"
    )


def test_text_in_another_encoding_is_named_with_line_and_byte(folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_bytes(lines(",", ".").replace("Namur", "Liège", 1).encode("latin-1"))
    problem = "t.csv, line 3: expected UTF-8, got byte 0xe8; pass the encoding of the file, as in --encoding latin-1"
    assert problem in refused("fit", table, "--target", "price", "--out", tmp_path / "m.dspp")
    assert problem in refused("evaluate", folder / "m.dspp", table)
    assert problem in refused("predict", folder / "m.dspp", table, "--out", tmp_path / "p.csv")


# ---------------------------------------------------------------- tables without rows


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".parquet", ".arrow"])
def test_no_rows_are_predicted_as_no_rows(suffix: str, folder: Path, tmp_path: Path) -> None:
    table, whole = tmp_path / f"t{suffix}", open_table(folder / "english.csv").read().arrow
    assert whole is not None
    write_table(table, [], whole.schema)
    how = ("--quantiles", "0.1", "--interval", "0.9", "--samples", "2", "--mixture", "--keep", "town")
    text = done("predict", folder / "m.dspp", table, "--out", tmp_path / "p.csv", *how)
    assert text.startswith("Predicted 0 rows: ")
    done("predict", folder / "m.dspp", folder / "english.csv", "--out", tmp_path / "all.csv", *how)
    header = (tmp_path / "all.csv").read_text().splitlines()[0]
    assert (tmp_path / "p.csv").read_text() == header + "\n"
    assert done("predict", folder / "m.dspp", table, "--out", "-", *how) == header + "\n"
    done("predict", folder / "m.dspp", table, "--out", tmp_path / "p.parquet", *how)
    assert pq.read_table(tmp_path / "p.parquet").num_rows == 0
    assert "expected at least one row, got only a header" in refused("evaluate", folder / "m.dspp", table)
    assert "only a header" in refused("fit", table, "--target", "price", "--out", tmp_path / "m.dspp")


# ---------------------------------------------------------------- time zones


@pytest.mark.parametrize("zone", ["", "Z"])
def test_times_are_predicted_with_a_zone_only_if_they_had_one_in_training(zone: str, tmp_path: Path) -> None:
    moments = [f"2024-01-{1 + i // 24:02} {i % 24:02}:00:00" for i in range(60)]
    for name, mark in (("same", zone), ("other", "Z" if zone == "" else "")):
        rows = [f"{moment}{mark},{i % 24 + i / 60}" for i, moment in enumerate(moments)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["when,price", *rows]) + "\n")
    model = tmp_path / "m.dspp"
    done("fit", tmp_path / "same.csv", "--target", "price", "--out", model, *TINY)
    done("predict", model, tmp_path / "same.csv", "--out", tmp_path / "p.csv")
    expected = "with a time zone, as in training, got none" if zone else "without a time zone, as in training, got some"
    problem = f"column 'when': expected times {expected}"
    assert problem in refused("predict", model, tmp_path / "other.csv", "--out", "-")
    assert problem in refused("evaluate", model, tmp_path / "other.csv")
    validation = ("--target", "price", "--validation", tmp_path / "other.csv", "--out", tmp_path / "n.dspp")
    assert problem in refused("fit", tmp_path / "same.csv", *validation, *TINY)


# ---------------------------------------------------------------- standard input


def test_a_dash_reads_standard_input(folder: Path, tmp_path: Path) -> None:
    english = (folder / "english.csv").read_bytes()
    german = (folder / "german.csv").read_bytes()
    text = done("fit", "-", "--target", "price", "--out", tmp_path / "m.dspp", *TINY, stdin=english)
    assert "standard input: 60 rows, 5 columns" in text
    assert "(held out of standard input)" in text
    expected = done("predict", folder / "m.dspp", folder / "english.csv", "--out", "-")
    assert done("predict", tmp_path / "m.dspp", "-", "--out", "-", stdin=english) == expected
    assert done("predict", folder / "m.dspp", "-", "--out", "-", *GERMAN, stdin=german) == expected
    report = tmp_path / "r.html"
    assert "rows of standard input" in done("evaluate", folder / "m.dspp", "-", "--report", report, stdin=english)
    assert "standard input" in report.read_text()
    assert '"data": "standard input"' in done("evaluate", folder / "m.dspp", "-", "--json", stdin=english)
    validation = ("--validation", "-", "--out", tmp_path / "n.dspp")
    text = done("fit", folder / "english.csv", "--target", "price", *validation, *TINY, stdin=english)
    assert "(standard input)" in text


def test_standard_input_may_be_compressed_or_parquet(folder: Path) -> None:
    expected = done("predict", folder / "m.dspp", folder / "english.csv", "--out", "-")
    table, sink = open_table(folder / "english.csv").read().arrow, io.BytesIO()
    pq.write_table(table, sink)
    for content in (gzip.compress((folder / "english.csv").read_bytes()), sink.getvalue()):
        assert done("predict", folder / "m.dspp", "-", "--out", "-", stdin=content) == expected


def test_errors_name_standard_input_and_leave_nothing_behind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    fit = ("fit", "-", "--target", "price", "--out", tmp_path / "m.dspp")
    predict = ("predict", folder / "m.dspp", "-", "--out", tmp_path / "p.csv")
    bad = lines(",", ".").replace("Namur,", "Namur,big", 1).encode()
    assert refused(*fit, stdin=b"").startswith("dspp: standard input: expected a table, got an empty file")
    assert refused(*fit, stdin=b"size,Price\n1,2\n").startswith("dspp: standard input: expected a column 'price'")
    line = refused(*predict, stdin=bad)
    assert line.startswith("dspp: standard input: column 'size', row 1 (line 3): expected a number, got 'big")
    assert "got - twice" in refused(*fit, "--validation", "-", stdin=b"size,price\n1,2\n")
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_is_no_table(monkeypatch: pytest.MonkeyPatch) -> None:
    from dspp.cli.files import STDIN, stdin_as_file

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    with pytest.raises(InputError, match="expected a table, got a terminal; pipe one"), stdin_as_file(STDIN):
        pass


# ---------------------------------------------------------------- spreadsheets


@pytest.mark.parametrize("suffix", ["xlsx", "xls", "ods"])
def test_spreadsheets_are_named_with_what_to_do(suffix: str, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / f"My Houses.{suffix}"
    path.write_bytes(b"PK\x03\x04")
    line = refused("fit", path, "--target", "price", "--out", tmp_path / "m.dspp")
    assert "got a spreadsheet; export it as CSV, or convert it in Python with" in line
    assert f"pandas.read_excel('My Houses.{suffix}').to_parquet('My Houses.parquet')" in line
    assert "got a spreadsheet" in refused("evaluate", folder / "m.dspp", path)

"""Folders, patterns and datasets are one table, and whatever is wrong with one of their files is said in one line."""

import os
import re
import shlex
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dspp import DSPPRegressor, InputError, PPGPRRegressor, load
from dspp.cli import app
from dspp.prepare import prepare
from dspp.table.files import from_dataset, open_tables

SMALL = {"members": 1, "inducing": 8, "epochs": 3, "restarts": 1, "batch_size": 100, "progress": False}


def messy(num_rows: int, seed: int = 0) -> pa.Table:
    """Every kind of column, most with gaps; a constant one, an empty one, and text that is different in every row."""
    rng = np.random.default_rng(seed)
    gap = rng.random((6, num_rows)) < 0.1
    a, b = rng.normal(1e6, 3.0, num_rows), rng.normal(size=num_rows)
    start = datetime(2020, 1, 5)
    moments = [start + timedelta(minutes=int(m)) for m in rng.integers(0, 500_000, num_rows)]
    return pa.table(
        {
            "a": a,
            "b": pa.array(b, mask=gap[0]),
            "count": pa.array(rng.integers(0, 9, num_rows), pa.int32(), mask=gap[1]),
            "flag": pa.array(rng.random(num_rows) < 0.3, mask=gap[2]),
            "town": pa.array(rng.choice(["Oslo", "Rome", "Paris", "Lima"], num_rows, p=[0.5, 0.3, 0.15, 0.05])),
            "rare": pa.array([f"r{int(k)}" for k in rng.exponential(9.0, num_rows)], mask=gap[3]),
            "when": pa.array(moments, pa.timestamp("us"), mask=gap[4]),
            "name": [f"house {k}" for k in range(num_rows)],
            "same": np.ones(num_rows),
            "empty": pa.nulls(num_rows),
            "y": pa.array(np.sin(a - 1e6) + 0.3 * b + 0.1 * rng.normal(size=num_rows), mask=gap[5]),
        }
    )


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return messy(600)


@pytest.fixture(scope="module")
def folder(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tables") / "houses"
    folder.mkdir()
    for k in range(3):
        pq.write_table(table.slice(200 * k, 200), folder / f"part-{k}.parquet", row_group_size=80)
    return folder


def refused(table: Path, *options: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in ("fit", table, *options)], catch_exceptions=False)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    return str(result.stderr)


def test_several_files_are_the_rows_of_one(folder: Path, table: pa.Table) -> None:
    settings = DSPPRegressor(progress=False, members=1).settings()
    whole = prepare(from_dataset(ds.dataset(table)), settings, targets=["y"])
    for tables in (open_tables(folder), open_tables(folder / "part-*.parquet"), from_dataset(ds.dataset(folder))):
        parts = prepare(tables, settings, targets=["y"])
        assert parts.train.x.numpy().tobytes() == whole.train.x.numpy().tobytes()
        assert parts.notes == whole.notes
        assert parts.table_rows == 600


@pytest.mark.parametrize("several", [False, True])
def test_held_out_rows_are_called_by_file_and_number(folder: Path, several: bool) -> None:
    files = {path.name: pq.read_table(path) for path in sorted(folder.glob("*.parquet"))}
    tables = open_tables(folder if several else folder / "part-1.parquet")
    held_out = prepare(tables, DSPPRegressor(members=1).settings(), targets=["y"]).validation_table
    assert len(held_out) > 10
    for row, y in enumerate(held_out.targets[:, 0]):
        label = str(held_out.label(row))
        file, number = label.split(", ") if several else ("part-1.parquet", label)
        assert files[file]["y"][int(number)].as_py() == y


@pytest.mark.filterwarnings("ignore::dspp.DsppWarning")
def test_a_dataset_is_fitted_like_a_table(table: pa.Table, folder: Path) -> None:
    inputs = table.drop_columns(["y"])
    model = DSPPRegressor(**SMALL, conformal=True).fit(ds.dataset(folder), "y")
    assert model.feature_names_in_.tolist() == inputs.column_names
    assert model.fitted_.target_names == ("y",)
    assert model.fitted_.metrics["nll"] < 1.5, "better than knowing nothing, 1.42 + log 0.8"
    np.testing.assert_array_equal(model.predict(inputs), model.predict(inputs.to_pandas()))
    assert np.asarray(model.predict_interval(inputs)).shape == (600, 2)
    in_memory = DSPPRegressor(**SMALL).fit(ds.dataset(table), "y", X_val=inputs.slice(0, 50), y_val=np.zeros(50))
    assert in_memory.fitted_.num_rows == 600 - table["y"].null_count
    two = PPGPRRegressor(**SMALL).fit(ds.dataset(folder), ["y", "b"])
    assert two.fitted_.target_names == ("y", "b")
    assert two.predict(inputs.drop_columns(["b"]).to_pandas()).shape == (600, 2)
    for y in ("Y", ["y", "Y"], ["y", "y"], table["y"], 3):
        with pytest.raises(InputError, match="expected the name of a column of the dataset"):
            DSPPRegressor().fit(ds.dataset(folder), y)
    for role, name in {"sample_weight": "w", "groups": table["town"], "time": "y"}.items():
        with pytest.raises(InputError, match=f"{role}: expected the name of another column of the dataset"):
            DSPPRegressor().fit(ds.dataset(folder), "y", **{role: name})


def test_partitions_are_columns_and_filters_are_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    part = np.where(rng.random(300) < 0.5, "left", "right")
    whole = pa.table({"x": x, "side": part, "y": x + 3 * (part == "left")})
    pq.write_to_dataset(whole, tmp_path / "d", partition_cols=["side"])
    dataset = ds.dataset(tmp_path / "d", partitioning="hive")
    model = PPGPRRegressor(**SMALL | {"epochs": 20}).fit(dataset, "y")
    assert set(model.feature_names_in_) == {"x", "side"}
    assert model.score(whole.drop_columns(["y"]), whole["y"]) > 0.5
    with pytest.raises(InputError, match="cannot read it in batches"):
        PPGPRRegressor().fit(dataset.filter(ds.field("x") > 0), "y")
    for path in ("d", "d/*/*.parquet", "d/**/*.parquet", "d/side=l*/*.parquet"):
        with pytest.raises(InputError, match=r"values of 'side'.*partitioning='hive'"):
            open_tables(tmp_path / path)
    one = open_tables(tmp_path / "d/side=left/*.parquet")
    assert one.num_rows == np.count_nonzero(part == "left"), "whoever writes the value out knows it"


def test_a_file_that_is_cut_off_is_named(folder: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(folder, tmp_path / "broken")
    part, out = broken / "part-1.parquet", tmp_path / "m.dspp"
    content = part.read_bytes()
    where = pq.ParquetFile(part).metadata.row_group(1).column(0)
    page = where.dictionary_page_offset or where.data_page_offset
    end = page + where.total_compressed_size
    spliced = content[:page] + bytes(255 - c for c in content[page:end]) + content[end:]
    for damaged in (content[: len(content) // 2], content[:3], b"", spliced):
        part.write_bytes(damaged)
        assert f"{part}: " in refused(broken, "--target", "y", "--out", out)
        assert os.listdir(tmp_path) == ["broken"]
        with pytest.raises(InputError, match=r"part-1\.parquet"):
            DSPPRegressor(progress=False).fit(ds.dataset(broken), "y")


def test_a_file_that_becomes_shorter_is_noticed(folder: Path, tmp_path: Path) -> None:
    moving = shutil.copytree(folder, tmp_path / "moving")
    tables, part = open_tables(moving), moving / "part-2.parquet"
    pq.write_table(pq.read_table(part).slice(7), part)
    with pytest.raises(InputError, match=r"part-2\.parquet: expected 200 rows, got 193: .*changed while it was read"):
        tables.read()


def test_folders_and_files_that_cannot_be_used(folder: Path, table: pa.Table, tmp_path: Path) -> None:
    out = ["--target", "y", "--out", tmp_path / "m.dspp"]
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "table.csv").write_text("a,y\n1,2\n")
    assert "expected a folder with .parquet files" in refused(empty, *out)
    assert "no file matches" in refused(empty / "*.parquet", *out)
    assert "to read in batches; convert it to Parquet" in refused(empty / "*.csv", *out)
    part = folder / "part-0.parquet"
    assert f"{part}: cannot overwrite an input" in refused(folder, "--target", "y", "--out", part, "--overwrite")
    assert f"{part}: expected a file name ending in .html" in refused(folder, *out, "--report", part, "--overwrite")
    assert "expected a column 'z' (--drop)" in refused(folder, *out, "--drop", "z")
    assert "expected a column 'Y' (--target); did you mean 'y'?" in refused(folder, "--target", "Y", *out[2:])
    assert "column 'name': expected numbers to predict, got text such as 'house 0'" in refused(
        folder, "--target", "name", *out[2:]
    )
    others = {
        "has no column 'a', unlike": table.drop_columns(["a"]),
        "has a column 'new', unlike": table.append_column("new", pa.nulls(600)),
        "column 'a': expected double as in": table.set_column(0, "a", pa.array(["x"] * 600)),
        "column 'a', row part-9.parquet, 9: expected a finite number, got inf": table.set_column(
            0, "a", pa.array([*[1.0] * 9, np.inf, *[2.0] * 590])
        ),
    }
    for expected, other in others.items():
        mixed = shutil.copytree(folder, tmp_path / "mixed")
        pq.write_table(other, mixed / "part-9.parquet")
        line = refused(mixed, *out)
        assert expected in line
        assert str(mixed) in line
        assert "part-9.parquet" in line
        shutil.rmtree(mixed)
    assert sorted(os.listdir(tmp_path)) == ["empty"]


def test_files_may_differ_in_what_does_not_matter(table: pa.Table, tmp_path: Path) -> None:
    """The order of columns, the width of numbers, categories or text, a column without values, and no rows at all."""
    folder = tmp_path / "d"
    folder.mkdir()
    small = table.select(["a", "count", "town", "y"]).slice(0, 60)
    as_others = {
        "a": pa.float32(),
        "count": pa.int64(),
        "town": pa.dictionary(pa.int32(), pa.string()),
        "y": pa.float32(),
    }
    others = pa.table({name: small[name].cast(as_others[name]) for name in ("y", "town", "count", "a")})
    empty = small.set_column(1, "count", pa.nulls(60))
    for k, part in enumerate((empty, small, others, small.slice(0, 0))):
        pq.write_table(part, folder / f"{k}.parquet")
    (folder / "_temporary.parquet").write_bytes(b"not one")
    tables = open_tables(folder)
    assert (len(tables.parts), tables.num_rows) == (3, 180)
    made = prepare(tables, DSPPRegressor(progress=False).settings(), targets=["y"])
    assert made.encoder is not None
    assert [column.kind for column in made.encoder.columns] == ["number", "number", "category"]
    assert made.num_rows + len(made.validation) + table["y"].slice(0, 60).null_count * 3 == 180


def test_fit_reads_folders_and_patterns(folder: Path, tmp_path: Path) -> None:
    options = shlex.split("--target y --drop name --model ppgpr --inducing 8 --epochs 2 --restarts 1")

    def printed(table: Path, *more: object) -> str:
        command = ["fit", table, "--out", tmp_path / "m.dspp", *options, "--overwrite", *more]
        result = CliRunner().invoke(app, [str(word) for word in command], catch_exceptions=False)
        assert (result.exit_code, result.stderr) == (0, "")
        return str(result.stdout)

    said = printed(folder, "--report", tmp_path / "r.html")
    assert f"{folder}: 600 rows in 3 files, 11 columns" in said
    assert "for choosing the best epoch" in said
    assert "without a target left out" in said
    assert "Scores on" in said
    report = (tmp_path / "r.html").read_text()
    assert "held out" in report
    assert len(re.findall(r"part-\d\.parquet, \d+<", report)) >= 5, "surprising rows are called by file and number"
    one = printed(folder / "part-0.parquet", "--conformal", "--validation", folder / "part-1.parquet")
    assert "200 rows, 11 columns" in one
    assert load(tmp_path / "m.dspp").fitted_.conformal is not None
    assert "rows in 3 files" in printed(folder / "part-*.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.dspp", "r.html"]

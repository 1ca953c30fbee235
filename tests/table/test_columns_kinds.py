"""Columns of types that Arrow itself cannot pick rows from or join: views of text, and categories numbered in int8."""

import shlex
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dspp import InputError, PPGPRRegressor
from dspp.cli import app
from dspp.encoding.encoder import TableEncoder
from dspp.prepare import prepare
from dspp.table.files import from_dataset, open_table, open_tables
from dspp.table.frames import to_arrow
from dspp.table.memory import to_table
from dspp.table.table import Table

SMALL = {"members": 1, "inducing": 4, "epochs": 1, "restarts": 1, "progress": False}
RNG = np.random.default_rng(0)


def run(*words: object) -> None:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert (result.exit_code, result.stderr) == (0, "")


def joined(pieces: Iterable[Table]) -> pa.Table:
    return pa.concat_tables(piece.arrow for piece in pieces).combine_chunks()


# ---------------------------------------------------------------- views

TOWNS = pl.DataFrame(
    {
        "town": [["Oslo", "Rome", None][k % 3] for k in range(60)],
        "class": pl.Series([["low", "high"][k % 2] for k in range(60)], dtype=pl.Categorical),
        "y": np.sin(np.arange(60.0)),
    }
)


@pytest.fixture
def towns(tmp_path: Path) -> Path:
    path = tmp_path / "towns.arrow"
    TOWNS.write_ipc(path)
    kinds = pa.ipc.open_file(path).schema.types
    assert kinds[0] == pa.string_view(), "or this tests nothing"
    assert kinds[1].value_type == pa.string_view()
    return path


def test_views_become_text_wherever_they_come_from(towns: Path) -> None:
    kinds = [pa.large_string(), pa.dictionary(pa.int32(), pa.large_string()), pa.float64()]
    file, raw = open_table(towns), pa.ipc.open_file(towns).read_all()
    shards = [open_tables(towns), from_dataset(ds.dataset(towns, format="ipc")), from_dataset(ds.dataset(raw))]
    streams = [joined(s.batches(7)) for s in shards]
    assert [s.schema.types for s in shards] == [kinds] * 3
    for table in (file.read().arrow, joined(file.batches(7)), to_arrow(raw), shards[1].read().arrow, *streams):
        assert table.schema.types == kinds
        assert table.to_pylist() == raw.to_pylist()
        assert TableEncoder.fit(table) == TableEncoder.fit(TOWNS.to_arrow()), "which polars gives as large strings"
        assert table.take([59, 2]).to_pylist() == [raw.to_pylist()[k] for k in (59, 2)]


def test_tables_with_views_are_fitted_and_predicted(towns: Path, tmp_path: Path) -> None:
    model, out = tmp_path / "m.dspp", tmp_path / "p.csv"
    raw = pa.ipc.open_file(towns).read_all()
    PPGPRRegressor(**SMALL).fit(raw.select(["town", "class"]), raw["y"].to_numpy()).predict(raw.select([0, 1]))
    PPGPRRegressor(**SMALL).fit(ds.dataset(towns, format="ipc"), "y")
    run("fit", towns, *shlex.split("--target y --inducing 4 --epochs 1 --restarts 1 --overwrite --out"), model)
    run("predict", model, towns, "--keep", "town", "--keep", "class", "--out", out)
    assert pd.read_csv(out)["town"].tolist()[:2] == ["Oslo", "Rome"]


@pytest.mark.parametrize(
    "value", [["Oslo"], {"name": "Oslo"}, {"names": ["Oslo"]}, b"Oslo"], ids=["list", "struct", "both", "bytes"]
)
def test_views_inside_other_values_are_refused_in_words(value: object) -> None:
    X = pa.table(pl.DataFrame({"odd": [value] * 30, "x": np.arange(30.0)}))
    assert "view" in str(X.schema)
    with pytest.raises(InputError, match=r"column 'odd': expected numbers, text, dates or Booleans, got"):
        PPGPRRegressor(**SMALL).fit(X, np.arange(30.0))


# ---------------------------------------------------------------- categories


def shops(first: int, count: int = 100) -> pd.DataFrame:
    """Rows of so many shops, each there six times."""
    names = np.repeat([f"shop{first + k:03d}" for k in range(count)], 6)
    return pd.DataFrame({"shop": pd.Categorical(names), "y": RNG.normal(size=len(names))})


@pytest.fixture
def two_files(tmp_path: Path) -> Path:
    """Categories that fit int8 in the first file, but not in both together."""
    folder = tmp_path / "shops"
    folder.mkdir()
    shops(0).to_parquet(folder / "0.parquet", index=False)
    shops(100).to_parquet(folder / "1.parquet", index=False)
    assert pq.read_schema(folder / "1.parquet").field("shop").type == pa.dictionary(pa.int8(), pa.string())
    return folder


def all_shops(folder: Path) -> list[str]:
    return [name for file in sorted(folder.iterdir()) for name in pq.read_table(file)["shop"].to_pylist()]


def test_categories_of_several_files_are_held_out_together(two_files: Path) -> None:
    settings = PPGPRRegressor(**SMALL, validation_fraction=0.5)
    for shards in (open_tables(two_files), open_tables(two_files / "*.parquet"), from_dataset(ds.dataset(two_files))):
        assert shards.schema.field("shop").type == pa.dictionary(pa.int32(), pa.string())
        held_out = prepare(shards, settings.settings(), targets=["y"]).validation_table
        names, where = held_out.arrow["shop"].to_pylist(), [str(held_out.label(k)).split(", ") for k in range(600)]
        assert len(names) == 600
        assert names == [all_shops(two_files)[600 * int(file[0]) + int(row)] for file, row in where]


def test_a_dataset_may_have_a_file_with_more_categories_than_its_first(two_files: Path) -> None:
    shops(200, 300).to_parquet(two_files / "2.parquet", index=False)
    shards = from_dataset(ds.dataset(two_files))
    streamed = joined(shards.batches(1000))
    assert streamed["shop"].to_pylist() == all_shops(two_files)


def test_categories_in_memory_and_in_row_groups_are_joined(two_files: Path, tmp_path: Path) -> None:
    whole = ds.dataset(two_files).to_table()
    assert to_table(whole).take(np.array([1199, 0])).arrow["shop"].to_pylist() == ["shop199", "shop000"]
    PPGPRRegressor(**SMALL).fit(whole.select(["shop"]), whole["y"].to_numpy())
    path = tmp_path / "groups.parquet"
    with pq.ParquetWriter(path, whole.schema) as writer:
        for batch in whole.to_batches():
            writer.write_batch(batch)
    (batch,) = open_table(path).batches(1200)
    assert batch.arrow["shop"].to_pylist() == all_shops(two_files)
    expected = TableEncoder.fit(pa.table({"shop": pa.array(all_shops(two_files)).dictionary_encode()}))
    assert TableEncoder.fit(batch.arrow.select(["shop"])) == expected


@pytest.mark.parametrize("suffix", ["csv", "parquet", "feather", "arrow"])
def test_categories_that_differ_between_row_groups_are_kept(two_files: Path, tmp_path: Path, suffix: str) -> None:
    new, model, out = tmp_path / "new.parquet", tmp_path / "m.dspp", tmp_path / f"p.{suffix}"
    x = pa.table({"x": np.arange(600.0)})
    PPGPRRegressor(**SMALL).fit(x, np.arange(600.0)).save(model)
    parts = [pq.read_table(file).select(["shop"]).append_column("x", x["x"]) for file in sorted(two_files.iterdir())]
    with pq.ParquetWriter(new, parts[0].schema) as writer:
        for part in parts:
            writer.write_table(part)
    run("predict", model, new, "--keep", "shop", "--batch-rows", 600, "--out", out)
    assert open_table(out).read().arrow["shop"].to_pylist() == all_shops(two_files)

"""Tables larger than memory: they teach what they would teach in memory, every row is seen once an epoch in an order
that follows from (seed, epoch), a killed run goes on exactly, and whatever is wrong with a file or a disk is one line.
"""

import contextlib
import errno
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
import torch
from typer.testing import CliRunner

from dspp import DSPPRegressor, InputError, PPGPRRegressor, TrainConfig, load, preset, storage
from dspp.cli import app, sources
from dspp.encoding import learning
from dspp.encoding.columns import Category
from dspp.encoding.encoder import TableEncoder, TableLearner
from dspp.encoding.scaling import RunningScale, Standardizer
from dspp.errors import CheckpointError, TrainingInterrupted
from dspp.estimators import Regressor
from dspp.fitting import train
from dspp.notes import note_missing_targets
from dspp.prepare import OnDisk, Prepared, prepare
from dspp.prepare import disk as ondisk
from dspp.prepare.disk import draw_held_out_rows
from dspp.table.joined import JoinedTable, from_dataset, open_tables
from dspp.training import cache as cache_module
from dspp.training import fit
from dspp.training.cache import RowCache, find_cache, write_cache
from dspp.training.disk import DiskRows
from dspp.training.rows import Rows

SPEC = preset("ppgpr", inducing=10)
CONFIG = TrainConfig(epochs=2, batch_size=70, restarts=2, threads=1, seed=5, learning_rate=0.02)
SMALL = {"members": 1, "inducing": 8, "epochs": 3, "restarts": 1, "batch_size": 100, "progress": False}


def stored(
    table: JoinedTable, targets: list[str], estimator: Regressor, *, cache: Path, keep_cache: bool = False, **more: Any
) -> Prepared:
    """A table made ready on disk."""
    return prepare(table, estimator.settings(), targets=targets, disk=OnDisk(cache, keep_cache), **more)


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


def write_folder(folder: Path, table: pa.Table, files: int = 3) -> Path:
    folder.mkdir()
    for k, rows in enumerate(np.array_split(np.arange(len(table)), files)):
        part = table.slice(int(rows[0]), len(rows))
        pq.write_table(part, folder / f"part-{k}.parquet", row_group_size=max(1, len(table) // 7))
    return folder


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return messy(600)


@pytest.fixture(scope="module")
def folder(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("tables") / "houses", table)


# ---------------------------------------------------------------- what is held out


@pytest.mark.parametrize("several", [False, True])
def test_rows_held_out_are_called_by_where_they_stand(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several: bool
) -> None:
    batches = JoinedTable.batches
    monkeypatch.setattr(JoinedTable, "batches", lambda table, rows: batches(table, 30))  # several of each file
    files = {path.name: pq.read_table(path) for path in sorted(folder.glob("*.parquet"))}
    path = folder if several else folder / "part-1.parquet"
    with stored(open_tables(path), ["y"], DSPPRegressor(progress=False), cache=tmp_path) as made:
        held = made.validation_table
        assert len(held.labels) == len(held) > 10
        for label, row, y in zip(held.labels, held.arrow.to_pylist(), held.y[:, 0], strict=True):
            file, number = str(label).split(", ") if several else ("part-1.parquet", label)
            (there,) = files[file].slice(int(number), 1).to_pylist()
            assert there["y"] == y
            assert all(there[name] == value or value != value for name, value in row.items())


def few_targets(path: Path, kept: np.ndarray) -> Path:
    """A table of 300 rows with a target y in all of them, and z in these only."""
    x = np.arange(300.0)
    z = pa.array(x, mask=~np.isin(np.arange(300), kept))
    pq.write_table(pa.table({"x": x, "y": x, "z": z}), path)
    return path


def test_calibration_rows_without_a_target_are_refused(tmp_path: Path) -> None:
    _, chosen = draw_held_out_rows(300, (0.1, 0.1), 0)
    table = few_targets(tmp_path / "t.parquet", np.setdiff1d(np.arange(300), chosen)[:12])
    with pytest.raises(InputError, match=r"expected targets in the 30 of 300 rows drawn .* only 12 rows have a target"):
        PPGPRRegressor(**SMALL, conformal=True).fit(ds.dataset(table), "z", cache=tmp_path)
    assert os.listdir(tmp_path) == ["t.parquet"]


def test_validation_rows_without_a_target_are_noted(tmp_path: Path) -> None:
    chosen, _ = draw_held_out_rows(300, (0.1, 0), 0)
    table = few_targets(tmp_path / "t.parquet", np.setdiff1d(np.arange(300), chosen)[:12])
    for target, noted in (("z", True), ("y", False)):
        with stored(open_tables(table), [target], PPGPRRegressor(**SMALL), drop=["y", "z"], cache=tmp_path) as made:
            assert (
                any("none of the rows drawn for validation has a target" in str(note) for note in made.notes) == noted
            )


def test_an_output_with_values_in_held_out_rows_only_is_told_so(tmp_path: Path) -> None:
    chosen, _ = draw_held_out_rows(300, (0.1, 0), 0)
    for rows, why in ((chosen[:3], ": all its values are in held-out rows"), (chosen[:0], "$")):
        table = few_targets(tmp_path / "t.parquet", rows)
        with pytest.raises(InputError, match=f"column 'z': expected values to train on, got none{why}"):
            PPGPRRegressor(**SMALL).fit(ds.dataset(table), ["y", "z"], cache=tmp_path)


# ---------------------------------------------------------------- what is learned


@pytest.mark.parametrize("rows", [1, 7, 100, 1000])
def test_a_stream_teaches_the_encoder_of_the_whole_table(table: pa.Table, rows: int) -> None:
    inputs = table.drop_columns(["y"])
    learner = TableLearner(inputs.schema)
    for batch in inputs.to_batches(max_chunksize=rows):
        learner.add(pa.Table.from_batches([batch]))
    assert learner.encoder("X") == TableEncoder.fit(inputs), "fill values, levels, cycles and notes are the same"


def test_long_streams_are_learned_from_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The median comes from a random sample; levels too many to count are forgotten, but the frequent ones stay."""
    monkeypatch.setattr(learning, "MOST_VALUES", 500)
    monkeypatch.setattr(learning, "MOST_COUNTED", 200)
    rng = np.random.default_rng(1)
    levels = np.where(rng.random(20_000) < 0.7, rng.integers(0, 10, 20_000), rng.integers(10, 4000, 20_000))
    whole = pa.table(
        {
            "x": pa.array(np.arange(20_000.0), mask=rng.random(20_000) < 0.01),  # sorted: the worst order
            "id": [f"id {k}" for k in range(20_000)],
            "level": pa.array([f"{int(k)}!" for k in levels]),
        }
    )
    learner = TableLearner(whole.schema)
    for batch in whole.to_batches(max_chunksize=333):
        learner.add(pa.Table.from_batches([batch]))
        number, identity, category = learner._learners
        assert len(number.sample._values) * 333 + 500 >= number.sample._size <= 1000 + 333
        assert max(len(identity.counts), len(category.counts)) <= 200 + 333
    streamed, exact = learner.encoder("X").columns, TableEncoder.fit(whole).columns
    assert streamed[0].fill == pytest.approx(exact[0].fill, abs=5 * 20_000 / (2 * 500**0.5)), "five standard errors"
    assert streamed[0].fill != exact[0].fill, "or the bound was not met"
    assert "is text with" in streamed[1].how
    assert "is text with" in exact[1].how
    assert isinstance(streamed[2], Category)
    assert streamed[2].other
    assert set(streamed[2].levels) >= {f"{k}!" for k in range(10)} <= set(exact[2].levels)


def test_the_running_scale_is_the_scale_of_all_rows() -> None:
    """Up to rounding: for spreads of 1e-3 around 1e8, numbers whose squares overflow, constants, gaps, any pieces."""
    rng = np.random.default_rng(2)
    array = rng.normal(size=(1000, 6)) * [1, 1e-3, 1e200, 0, 1e-200, 5] + [0, 1e8, 0, 0.1, 0, -3]
    array[:500, 4] *= 1e-60
    expected = Standardizer.fit(array)
    for cuts in ([], [1, 2, 500], list(range(10, 1000, 10))):
        running = RunningScale(6)
        for piece in np.split(array, cuts):
            running.add(piece)
        np.testing.assert_allclose(running.result().mean, expected.mean, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(running.result().scale, expected.scale, rtol=1e-9, err_msg=str(cuts))
    assert expected.scale[3] == running.result().scale[3] == 1
    with_gaps = np.where(rng.random(array.shape) < 0.4, np.nan, array)
    with_gaps[:20, 0] = np.nan
    running = RunningScale(6)
    for piece in np.array_split(with_gaps, 100):
        running.add(piece)
    for column, mean, scale in zip(with_gaps.T, running.result().mean, running.result().scale, strict=True):
        known = Standardizer.fit(column[~np.isnan(column)])
        np.testing.assert_allclose([mean, scale], [known.mean, known.scale], rtol=1e-9, atol=1e-15)


def read_all(cache: RowCache) -> np.ndarray:
    (rows,) = safetensors.numpy.load_file(cache.path).values()
    assert rows.shape == (cache.num_rows, cache.num_inputs + cache.num_outputs)
    return rows


@pytest.mark.parametrize("targets", [["y"], ["y", "b"]])
def test_the_cache_holds_what_memory_would_hold(
    table: pa.Table, folder: Path, tmp_path: Path, targets: list[str]
) -> None:
    """Rows are standardised in float64 and rounded to float32 once, as in memory."""
    settings = DSPPRegressor(conformal=True, progress=False)
    val, held = draw_held_out_rows(600, (0.1, 0.1), 0)
    y = np.column_stack([table[name].to_numpy() for name in targets])
    observed = ~np.isnan(y).all(axis=1)
    train = observed.copy()
    train[[*val, *held]] = False
    inputs = table.drop_columns(targets)
    with stored(open_tables(folder), targets, settings, cache=tmp_path) as made:
        assert (made.table_rows, made.num_rows) == (600, train.sum())
        assert list(made.notes[: len(made.notes) - len(made.encoder.notes)]) == note_missing_targets(
            600 - observed.sum()
        )
        encoder = (
            TableEncoder.fit(inputs.filter(train))
            .allow_missing_in(inputs.take(val))
            .allow_missing_in(inputs.take(held))
        )
        assert made.encoder == encoder
        encoded = encoder.transform(inputs.filter(train))
        scale = Standardizer.fit(encoded)
        np.testing.assert_allclose(made.scale_X.mean, scale.mean, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(made.scale_X.scale, scale.scale, rtol=1e-12)
        content = read_all(made.train)
        width = encoded.shape[1]
        np.testing.assert_array_equal(content[:, :width], made.scale_X.transform(encoded).astype("f4"))
        expected_y = made.outcome.scale.transform(y[train]).astype("f4")
        np.testing.assert_array_equal(content[:, width:], expected_y.reshape(len(content), -1))
        for part, chosen in ((made.validation_table, val), (made.calibration_table, held)):
            assert part.arrow.equals(inputs.take([k for k in chosen if observed[k]]).combine_chunks())
    assert os.listdir(tmp_path) == []


def test_held_out_rows_are_a_function_of_the_seed_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    val, held = draw_held_out_rows(1_000_000_000, (0.1, 0.05), 3)
    assert len(val) == len(held) == ondisk.MOST_HELD_OUT
    assert not set(val) & set(held)
    np.testing.assert_array_equal(draw_held_out_rows(1_000_000_000, (0.1, 0.05), 3)[0], val)
    assert not np.array_equal(draw_held_out_rows(1_000_000_000, (0.1, 0.05), 4)[0], val)
    assert abs(val.mean() / 1e9 - 0.5) < 5 / (12 * len(val)) ** 0.5, "from all over the table"


# ---------------------------------------------------------------- the order of an epoch


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> RowCache:
    """1,003 rows whose inputs and target are functions of the row's number, which is the first input."""
    x = np.arange(1003, dtype="f4")
    rows = np.column_stack([x, np.cos(x), np.sin(x / 100)]).astype("f4")
    return write_cache(tmp_path_factory.mktemp("cache") / "rows", np.array_split(rows, 5), 1003, 2, 1, {})


def disk(cache: RowCache, **how: Any) -> DiskRows:
    return DiskRows(cache, SPEC, CONFIG, **{"block_rows": 16, "group_bytes": 16 * 12 * 10, **how})


def numbers(batch: Rows) -> list[int]:
    return batch.x[:, 0].int().tolist()


def order_of(batches: Any) -> list[int]:
    return [number for batch in batches for number in numbers(batch)]


def test_every_row_comes_once_an_epoch(numbered: RowCache) -> None:
    with disk(numbered) as rows:
        for batch_size in (1, 70, 161, 700, 5000):
            batches = list(rows.batches(batch_size, 1, 0))
            sizes = [len(batch) for batch in batches]
            assert len(batches) == -(-1003 // batch_size)
            assert max(sizes) - min(sizes) <= 1
            assert sorted(order_of(batches)) == list(range(1003))
        for batch in rows.batches(70, 1, 0):
            assert torch.equal(batch.x[:, 1], torch.from_numpy(np.cos(batch.x[:, 0].numpy())))
            assert torch.equal(batch.y[:, 0], torch.from_numpy(np.sin(batch.x[:, 0].numpy() / 100)))


def test_the_order_is_a_function_of_seed_and_epoch(numbered: RowCache) -> None:
    with disk(numbered) as rows, disk(numbered) as again:
        orders = {(s, e): order_of(rows.batches(70, s, e)) for s in (0, 1) for e in (0, 1, 2)}
        assert len({tuple(order) for order in orders.values()}) == 6
        for (seed, epoch), order in orders.items():
            assert order_of(again.batches(70, seed, epoch)) == order
        blocks = [len({n // 16 for n in numbers(batch)}) for batch in rows.batches(70, 0, 0)]
        assert min(blocks) >= 8, "a batch has rows of nearly all ten blocks of its group"
        firsts = np.array([order_of(rows.batches(70, s, 0))[:70] for s in range(40)])
        assert abs(firsts.mean() - 501) < 4 * 290 / (40 * 8) ** 0.5, "from all over the table"


def test_rows_are_read_as_they_were_written_whatever_the_default_dtype(numbered: RowCache) -> None:
    with disk(numbered) as rows:
        batches, start = [batch.x for batch in rows.batches(70, 1, 0)], rows.start.x
    torch.set_default_dtype(torch.float64)
    try:
        with disk(numbered) as rows:
            assert torch.equal(rows.start.x, start)
            assert all(torch.equal(batch.x, x) for batch, x in zip(rows.batches(70, 1, 0), batches, strict=True))
    finally:
        torch.set_default_dtype(torch.float32)


def test_any_batch_can_be_asked_for_first(numbered: RowCache) -> None:
    """As a run does that goes on in the middle of an epoch, or goes back to a good state."""
    with disk(numbered) as rows:
        whole = [numbers(batch) for batch in rows.batches(70, 3, 4)]
        for number in np.random.default_rng(0).permutation(len(whole)).tolist():
            assert numbers(rows.batches(70, 3, 4)[number]) == whole[number]
        one = rows.batches(70, 3, 4)
        for number in (14, 0, 7, 7, 3, 13):
            assert numbers(one[number]) == whole[number]
        with pytest.raises(IndexError):
            one[15]


def test_models_start_on_a_random_part(numbered: RowCache) -> None:
    with disk(numbered) as rows:
        everything = numbers(rows.start)
        assert sorted(everything) == list(range(1003))
        assert everything != sorted(everything), "restarts are compared on the first ones"
    with disk(numbered, start_rows=100) as rows, disk(numbered, start_rows=100) as again:
        some = numbers(rows.start)
        assert len(set(some)) == 100
        assert numbers(again.start) == some
        assert abs(np.mean(some) - 501) < 4 * 290 / 10
        assert rows.content["cache"].tolist() == list(bytes.fromhex(numbered.sha256))


class InMemory(Rows):
    """Rows in memory, in the order that a disk has."""

    def of(self, rows: DiskRows) -> "InMemory":
        self.__dict__["disk"] = rows
        return self

    @property
    def start(self) -> Rows:
        return self[torch.tensor(numbers(self.__dict__["disk"].start))]

    def batches(self, batch_size: int, seed: int, epoch: int) -> Any:
        return [self[torch.tensor(numbers(batch))] for batch in self.__dict__["disk"].batches(batch_size, seed, epoch)]


def untimed(result: Any) -> tuple[Any, ...]:
    weights = {name: value.numpy().tobytes() for name, value in result.model.state_dict().items()}
    return weights, repr([replace(epoch, seconds=0.0) for epoch in result.history]), result.restart_nll


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_training_from_the_disk_is_training_from_memory(numbered: RowCache, dtype: str) -> None:
    """The same bits, given the same order: the rows are those of the cache, which are float32."""
    spec = preset("ppgpr", inducing=10, dtype=dtype)
    content = torch.from_numpy(read_all(numbered)).to(getattr(torch, dtype))
    val = {"X_val": content[:50, :2], "y_val": content[:50, 2]}
    with DiskRows(numbered, spec, CONFIG, 16, 16 * 12 * 10) as rows:
        memory = InMemory(content[:, :2].contiguous(), content[:, 2:].contiguous()).of(rows)
        assert untimed(fit(spec, rows, config=CONFIG, **val)) == untimed(fit(spec, memory, config=CONFIG, **val))


def test_a_table_without_targets_is_no_source() -> None:
    with pytest.raises(InputError, match="expected targets y, got none"):
        fit(SPEC, np.zeros((5, 2)))


# ---------------------------------------------------------------- Python


class StopAfter:
    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self) -> bool:
        self.left -= 1
        return self.left == 0


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
    for y in ("Y", ["y", "Y"], table["y"], 3):
        with pytest.raises(InputError, match="expected the name of a column of the dataset"):
            DSPPRegressor().fit(ds.dataset(folder), y)
    with pytest.raises(InputError, match=r"cache applies to a pyarrow\.dataset"):
        DSPPRegressor().fit(np.zeros((5, 2)), np.zeros(5), cache=folder)


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


def test_a_run_stopped_anywhere_goes_on_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    """Stopped in the passes and in the middle of epochs; the cache is found again, and gone in the end."""
    settings, reused = {**SMALL, "restarts": 2}, []

    def fit_on_disk(model: PPGPRRegressor, stop: StopAfter, cache: Path | None = None) -> None:
        """In several groups of blocks, with states to return to within epochs."""
        with stored(from_dataset(ds.dataset(folder)), ["y"], model, cache=cache, should_stop=stop) as made:
            reused.append(made.reused)
            reading = {"block_rows": 16, "group_bytes": 16 * 100 * 8}
            model.fitted_, _ = train(made, model.settings(), should_stop=stop, reading=reading, snapshot_steps=2)

    whole = PPGPRRegressor(**settings)
    fit_on_disk(whole, StopAfter(-1), tmp_path)
    assert os.listdir(tmp_path) == []
    model, seen = PPGPRRegressor(**settings, checkpoint=tmp_path / "run"), []
    reused.clear()
    for calls in range(6, 100, 5):
        try:
            fit_on_disk(model, StopAfter(calls))
            break
        except TrainingInterrupted:
            seen.append(sorted(path.suffix for path in tmp_path.iterdir()))
    assert seen[0] == [], "stopped before training began"
    assert ["", ".rows"] in seen
    assert reused == [False] + [True] * (len(reused) - 1), "the rows were written once"
    assert len(reused) > 2
    assert os.listdir(tmp_path) == ["run"]
    for name, value in whole.fitted_.members[0].model.state_dict().items():
        assert torch.equal(model.fitted_.members[0].model.state_dict()[name], value), name
    assert [e.val_nll for e in model.fitted_.members[0].history] == [
        e.val_nll for e in whole.fitted_.members[0].history
    ]


def test_a_cache_that_is_kept_is_used_again_unless_it_is_damaged(folder: Path, tmp_path: Path) -> None:
    settings = DSPPRegressor(progress=False)

    def made(**how: Any) -> Any:
        with stored(open_tables(folder), ["y"], settings, cache=tmp_path, keep_cache=True, **how) as result:
            return result

    first = made()
    (path,) = tmp_path.iterdir()
    before, second = path.read_bytes(), made()
    assert (first.reused, second.reused) == (False, True)
    assert second.encoder == first.encoder
    np.testing.assert_array_equal(second.scale_X.scale, first.scale_X.scale)
    np.testing.assert_array_equal(second.outcome.scale.mean, first.outcome.scale.mean)
    for damaged in (before[:100] + b"?" + before[101:], before[:-40], b"", b"short", before + b"more"):
        path.write_bytes(damaged)
        assert not made().reused
        assert path.read_bytes() == before
    assert made(drop=["a"]).train.path != path
    about = json.loads(json.dumps(first.train.about))
    assert find_cache(path, about) == first.train
    assert find_cache(path, about | {"key": "another"}) is None
    changed = tmp_path / "again"
    shutil.copytree(folder, changed)
    with stored(open_tables(changed), ["y"], settings, cache=tmp_path) as result:
        assert not result.reused, "other files"
    assert path.stat().st_mode & 0o077 == 0, "nobody else's business"


def test_a_cache_stays_if_a_run_was_told_to_keep_it(folder: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "run"
    checkpoint.touch()
    settings = DSPPRegressor(progress=False, checkpoint=checkpoint)

    def made(keep: bool, stop: bool = False) -> tuple[bool, int]:
        """Whether a run found a cache, and how many it left."""
        with (
            contextlib.suppress(TrainingInterrupted),
            stored(open_tables(folder), ["y"], settings, cache=tmp_path, keep_cache=keep) as result,
        ):
            if stop:
                raise TrainingInterrupted("so it was")
        return result.reused, len(list(tmp_path.glob("*.rows")))

    assert made(keep=False) == (False, 0)
    assert made(keep=False, stop=True) == (False, 1), "it can go on"
    assert made(keep=False) == (True, 0), "it has"
    assert made(keep=False, stop=True) == (False, 1)
    assert made(keep=True)[1] == 1
    assert made(keep=False) == (True, 1), "a run that only uses it does not remove it"
    assert made(keep=True) == (True, 1)


def test_rows_in_memory_leave_no_cache_that_nobody_finds(table: pa.Table, tmp_path: Path) -> None:
    model = PPGPRRegressor(**SMALL, checkpoint=tmp_path / "run")
    for _ in range(2):
        with pytest.raises(TrainingInterrupted):
            model.fit(ds.dataset(table), "y", should_stop=StopAfter(7))
        assert os.listdir(tmp_path) == ["run"]
    model.fit(ds.dataset(table), "y")
    assert os.listdir(tmp_path) == ["run"]


# ---------------------------------------------------------------- what can be wrong


def refused(*args: object) -> str:
    """The one line with which `dspp fit` refuses what it was given."""
    result = CliRunner().invoke(app, ["fit", *map(str, args)], catch_exceptions=False)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    return str(result.stderr)


def test_a_file_that_is_cut_off_is_named(folder: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(folder, tmp_path / "broken")
    part, out = broken / "part-1.parquet", tmp_path / "m.dspp"
    content = part.read_bytes()
    where = pq.ParquetFile(part).metadata.row_group(1).column(0)
    page = where.dictionary_page_offset or where.data_page_offset
    bad = bytes(255 - c for c in content[page : page + where.total_compressed_size])
    for damaged in (content[: len(content) // 2], content[:3], b"", _spliced(content, page, bad)):
        part.write_bytes(damaged)
        line = refused(broken, "--target", "y", "--out", out)
        assert f"{part}: " in line
        assert os.listdir(tmp_path) == ["broken"]
        with pytest.raises(InputError, match=r"part-1\.parquet"):
            from_dataset(ds.dataset(broken)) and DSPPRegressor(progress=False).fit(
                ds.dataset(broken), "y", cache=tmp_path
            )
        assert os.listdir(tmp_path) == ["broken"]


def _spliced(content: bytes, at: int, what: bytes) -> bytes:
    return content[:at] + what + content[at + len(what) :]


def test_a_full_disk_is_one_line_and_nothing_is_left(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, original, left = tmp_path / "m.dspp", os.write, [2]

    def full(handle: int, content: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(handle, content[:1000])  # a write may be cut short

    monkeypatch.setattr(cache_module.os, "write", full)
    line = refused(folder, "--target", "y", "--out", out)
    monkeypatch.undo()
    assert f"{tmp_path}/dspp-" in line
    assert ".rows needs " in line
    assert "bytes, more than its disk has free (No space left on device)" in line
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 10))
    with stored_refused("bytes, more than its disk has free"):
        DSPPRegressor(progress=False).fit(ds.dataset(folder), "y", cache=tmp_path)
    monkeypatch.undo()
    with stored_refused("No such file or directory; choose another cache folder"):
        DSPPRegressor(progress=False).fit(ds.dataset(folder), "y", cache=tmp_path / "nowhere")
    assert os.listdir(tmp_path) == []


def stored_refused(what: str) -> Any:
    return pytest.raises(InputError, match=what)


def test_what_a_killed_writer_left_is_cleared_away(numbered: RowCache, tmp_path: Path) -> None:
    left = tmp_path / ".rows.0123abcd.tmp"
    left.write_bytes(b"half")
    write_cache(tmp_path / "rows", [np.zeros((2, 3), "f4")], 2, 2, 1, {})
    assert os.listdir(tmp_path) == ["rows"]


def test_any_damage_to_a_cache_is_noticed_its_header_included(tmp_path: Path) -> None:
    path, about = tmp_path / "rows", {"scale": [1.5, 2.5], "key": "abc"}
    cache = write_cache(path, [np.arange(12, dtype="f4").reshape(4, 3)], 4, 2, 1, about)
    content = path.read_bytes()
    assert find_cache(path, {}) == cache
    for place in range(len(content)):
        path.write_bytes(_spliced(content, place, bytes([content[place] ^ 1])))
        found = find_cache(path, {})
        assert found is None or content[place : place + 1] == b" ", "blanks between the parts of the header say nothing"
    path.write_bytes(content)
    assert find_cache(path, about) == cache


def test_a_cache_that_another_process_is_writing_too_is_written(tmp_path: Path) -> None:
    """Both write the same rows; what the other has not finished is left alone."""
    (tmp_path / ".rows.0123abcd.tmp").touch()
    with storage.lock(tmp_path / "rows"):
        (tmp_path / ".rows.4567abcd.tmp").touch()
        write_cache(tmp_path / "rows", [np.zeros((2, 3), "f4")], 2, 2, 1, {})
        assert (tmp_path / ".rows.4567abcd.tmp").exists()
    assert find_cache(tmp_path / "rows", {}) is not None


def test_a_table_that_changes_while_it_is_read_is_noticed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moving = shutil.copytree(folder, tmp_path / "moving")
    part, original = moving / "part-2.parquet", ondisk.find_cache

    def change_first(*given: Any) -> Any:  # between the passes
        pq.write_table(pq.read_table(part).slice(shorter.pop()), part)
        return original(*given)

    monkeypatch.setattr(ondisk, "find_cache", change_first)
    shorter = [0, 7]
    while shorter:
        with (
            stored_refused(r"part-2\.parquet: .*changed while it was read"),
            stored(open_tables(moving), ["y"], DSPPRegressor(progress=False), cache=tmp_path),
        ):
            pass
        assert os.listdir(tmp_path) == ["moving"]


def test_folders_and_files_that_cannot_be_used(folder: Path, table: pa.Table, tmp_path: Path) -> None:
    out = ["--target", "y", "--out", tmp_path / "m.dspp"]
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "table.csv").write_text("a,y\n1,2\n")
    assert "expected a folder with .parquet files" in refused(empty, *out)
    assert "no file matches" in refused(empty / "*.parquet", *out)
    assert "to read in batches; convert it to Parquet" in refused(empty / "*.csv", *out)
    assert "to read in batches" in refused(empty / "table.csv", "--on-disk", *out)
    assert "--tune needs a table in memory" in refused(folder, *out, "--tune")
    part = folder / "part-0.parquet"
    assert f"{part}: cannot overwrite an input" in refused(folder, "--target", "y", "--out", part, "--overwrite")
    assert f"{part}: expected a file name ending in .html" in refused(folder, *out, "--report", part, "--overwrite")
    assert "add --on-disk" in refused(folder / "part-0.parquet", *out, "--cache", tmp_path)
    assert "held-out rows" in refused(folder, *out, "--validation-fraction", 0, "--report", tmp_path / "r.html")
    assert "expected a column 'z' (--drop)" in refused(folder, *out, "--drop", "z")
    assert "expected a column 'Y' (--target); did you mean 'y'?" in refused(folder, "--target", "Y", *out[2:])
    assert "column 'name': expected numbers to predict, got text such as 'house 0'" in refused(
        folder, "--target", "name", *out[2:]
    )
    others = {
        "has no column 'a', unlike": table.drop_columns(["a"]),
        "has a column 'new', unlike": table.append_column("new", pa.nulls(600)),
        "column 'a': expected double as in": table.set_column(0, "a", pa.array(["x"] * 600)),
        "column 'a', row 9: expected a finite number, got inf": table.set_column(
            0, "a", pa.array([*[1.0] * 9, np.inf, *[2.0] * 590])
        ),
    }
    for expected, other in others.items():
        mixed = shutil.copytree(folder, tmp_path / "mixed")
        pq.write_table(other, mixed / "part-9.parquet")
        line = refused(mixed, *out)
        assert expected in line
        assert str(mixed / "part-9.parquet") in line
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
    shards = open_tables(folder)
    assert (len(shards.parts), shards.num_rows) == (3, 180)
    with stored(shards, ["y"], DSPPRegressor(progress=False), cache=tmp_path) as made:
        assert [column.kind for column in made.encoder.columns] == ["number", "number", "category"]
        assert made.num_rows + len(made.validation) + table["y"].slice(0, 60).null_count * 3 == 180


# ---------------------------------------------------------------- the command line


def test_fit_reads_folders_patterns_and_large_files_from_the_disk(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = shlex.split("--target y --drop name --model ppgpr --inducing 8 --epochs 2 --restarts 1")

    def printed(table: Path, *more: object) -> str:
        command = ["fit", table, "--out", tmp_path / "m.dspp", *options, "--overwrite", *more]
        result = CliRunner().invoke(app, [str(word) for word in command], catch_exceptions=False)
        assert (result.exit_code, result.stderr) == (0, "")
        return str(result.stdout)

    said = printed(folder, "--report", tmp_path / "r.html", "--cache", tmp_path, "--keep-cache")
    (cache,) = tmp_path.glob("*.rows")
    assert f"{folder}: 600 rows in 3 files, 11 columns" in said
    assert f"read from   {cache} (" in said
    assert "for choosing the best epoch" in said
    assert "without a target left out" in said
    assert "Scores on" in said
    report = (tmp_path / "r.html").read_text()
    assert "held out" in report
    assert len(re.findall(r"part-\d\.parquet, \d+<", report)) >= 5, "surprising rows are called by file and number"
    assert ", reused" in printed(folder, "--cache", tmp_path)
    cache.unlink()
    one = printed(folder / "part-0.parquet", "--conformal", "--validation", folder / "part-1.parquet", "--on-disk")
    assert "200 rows, 11 columns" in one
    assert load(tmp_path / "m.dspp").fitted_.conformal is not None
    assert "rows in 3 files" in printed(folder / "part-*.parquet")
    assert "read from" not in printed(folder / "part-0.parquet")
    monkeypatch.setattr(sources, "memory_bytes", lambda: 8 * 200 * 11 * sources.MEMORY_SHARE - 1)
    assert "read from" in printed(folder / "part-0.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.dspp", "r.html"]


# Whoever looks at the clock finds that a minute has passed, so that there are checkpoints in the middle; the kill comes
# at a step, not at a time.
KILLED = """
import itertools, os, signal, time
import dspp.cli
from dspp.objectives import OBJECTIVES
time.monotonic = itertools.count(0, 61).__next__
objective, calls = OBJECTIVES["predictive"], itertools.count(1)
def objective_and_die(*given, **options):
    if next(calls) == 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return objective(*given, **options)
with OBJECTIVES.temporarily("predictive", objective_and_die):
    dspp.cli.main()
"""


def test_a_fit_that_is_killed_goes_on_from_its_cache(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "m.dspp"
    settings = shlex.split("--model ppgpr --inducing 8 --epochs 30 --batch-size 100 --restarts 1 --threads 1")
    command = [str(word) for word in ("fit", folder, "--target", "y", *settings, "--out")]
    main = [sys.executable, "-c", KILLED, *command, str(out)]
    killed = subprocess.run(main, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("*.rows"))) == 1
    (checkpoint,) = tmp_path.glob("*.checkpoint")
    assert 0 < storage.read(checkpoint, CheckpointError)[1]["run"]["current"]["step"] < 20, "in the middle"
    again = CliRunner().invoke(app, [*command, str(out), "--resume"], catch_exceptions=False)
    assert ", reused" in again.stdout
    assert CliRunner().invoke(app, [*command, str(tmp_path / "whole.dspp")]).exit_code == 0
    resumed, whole = (load(path).fitted_.members[0].model.state_dict() for path in (out, tmp_path / "whole.dspp"))
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
    assert sorted(os.listdir(tmp_path)) == ["m.dspp", "whole.dspp"]


# ---------------------------------------------------------------- memory

FLAT = """
import json, resource, sys
from pathlib import Path
import numpy, pyarrow.dataset, torch
from dspp.estimators import PPGPRRegressor
torch.set_num_threads(1)
model = PPGPRRegressor(inducing=8, epochs=1, restarts=1, batch_size=20_000, progress=False)
model.fit(numpy.arange(100.0).reshape(50, 2), numpy.arange(50.0))  # what is imported at first use is not the table's
status = lambda field: next(int(l.split()[1]) << 10 for l in open("/proc/self/status") if l.startswith(field))
before = status("VmRSS")
limit = status("VmSize") + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
model.fit(pyarrow.dataset.dataset(sys.argv[1]), "y", cache=sys.argv[1] + "/..")
print(json.dumps({"grown": status("VmHWM") - before, "rows": model.fitted_.num_rows}))
"""


def test_memory_does_not_grow_with_the_table(tmp_path: Path) -> None:
    """1,000,000 rows of 20 numbers are 168 MB as float64, of which memory would hold three copies or more: raw, encoded
    and standardised. The address space may grow by less than that; resident memory by 300 MB (found: 187 to 224),
    of which 82 are the two groups of rows that are shuffled.
    """
    folder, rng = tmp_path / "d", np.random.default_rng(0)
    folder.mkdir()
    names = [*(f"x{k}" for k in range(20)), "y"]
    block = rng.normal(size=(250_000, 21)).astype("f4")
    for k in range(4):
        pq.write_table(pa.table(dict(zip(names, block.T, strict=True))), folder / f"{k}.parquet", row_group_size=50_000)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
    command = [sys.executable, "-c", FLAT, str(folder), str(480 << 20)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result["rows"] == 980_000
    assert result["grown"] < 300 << 20, f"{result['grown'] >> 20} MB"
    assert os.listdir(tmp_path) == ["d"]

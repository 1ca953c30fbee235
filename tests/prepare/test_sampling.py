"""Tables larger than memory are sampled: what is kept follows from the table, the seed and the limit, and is said."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import dspp
from dspp import DSPPRegressor, InputError, PPGPRRegressor
from dspp.cli import app
from dspp.encoding.sampling import (
    FIXED_BYTES,
    MIN_ROWS,
    PROCESS_BYTES,
    format_size,
    parse_size,
    read_table,
    row_bytes,
    rows_within,
)
from dspp.prepare import Prepared, prepare
from dspp.settings import Settings
from dspp.table.files import from_dataset, open_table, open_tables
from dspp.table.table import FileTable, Table

ROWS, ROOM = 12_000, 2_500
INPUTS = ["a", "b", "day", "town"]
TINY = {"inducing": 4, "epochs": 1, "batch_size": 250, "restarts": 1, "jobs": 1, "progress": False}


def rows_of(count: int = ROWS) -> pa.Table:
    """A target, weights, groups and times; `town` has five levels, which become five columns."""
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, count))
    return pa.table(
        {
            "a": a,
            "b": b,
            "day": rng.integers(0, 400, count),
            "town": rng.choice(["Ghent", "Lima", "Oslo", "Pisa", "Rome"], count),
            "who": [f"p{k}" for k in rng.integers(0, 300, count)],
            "w": rng.integers(0, 3, count).astype(float),
            "y": a + np.sin(3 * b) + 0.1 * rng.normal(size=count),
        }
    )


TABLE = rows_of()


def limit_of(rows: int, processes: int = 0, width: int = 11) -> float:
    """A limit with room for so many rows of these columns: 8 of inputs, `who`, `w` and `y`."""
    return FIXED_BYTES + processes * PROCESS_BYTES + (rows + 0.5) * row_bytes(width, processes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table in one file with row groups of one size, in several of another, and as text."""
    folder = tmp_path_factory.mktemp("tables")
    pq.write_table(TABLE, folder / "one.parquet", row_group_size=5_000)
    (folder / "many").mkdir()
    for k, first in enumerate(range(0, ROWS, 1_700)):
        pq.write_table(TABLE.slice(first, 1_700), folder / "many" / f"{k}.parquet", row_group_size=400)
    pyarrow.csv.write_csv(TABLE, folder / "one.csv")
    return folder


def read(table: FileTable, rows: int = ROOM, **more: Any) -> Table:
    return read_table(table, inputs=INPUTS, limit=limit_of(rows), **more)


def content(rows: Table) -> list[dict[str, Any]]:
    assert rows.arrow is not None
    return rows.arrow.to_pylist()


def labels(rows: Table) -> list[str]:
    return [str(rows.label(i)) for i in range(len(rows))]


# ---------------------------------------------------------------- which rows


@pytest.mark.parametrize("group", [None, "who"])
def test_the_sample_depends_neither_on_files_nor_on_batches(
    folder: Path, group: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = open_table(folder / "one.parquet")
    expected = content(read(one, group=group))
    assert 0 < ROOM - len(expected) < 100 if group else len(expected) == ROOM
    for other in (open_tables(folder / "many"), from_dataset(ds.dataset(folder / "many"))):
        assert content(read(other, group=group)) == expected
    text = content(read(open_table(folder / "one.csv"), group=group))
    assert [row["y"] for row in text] == [row["y"] for row in expected]
    batches = FileTable.batches
    for size in (97, 3_001):
        monkeypatch.setattr(FileTable, "batches", lambda table, size=size, **more: batches(table, size, **more))
        assert content(read(one, group=group)) == expected
    assert content(read(one, group=group, seed=1)) != expected


def test_rows_keep_their_order_and_their_names(folder: Path) -> None:
    sample = read(open_tables(folder / "many"))
    numbers = [1_700 * int(label.split(".")[0]) + int(label.split()[1]) for label in labels(sample)]
    assert numbers == sorted(numbers)
    assert content(sample) == TABLE.take(pa.array(numbers)).to_pylist()
    text = read(open_table(folder / "one.csv"))
    assert text.row_numbers.tolist() == numbers
    with pytest.raises(InputError, match=rf"row {numbers[5]} \(line {numbers[5] + 2}\): odd"):
        raise text.place.error("odd", 5)


def test_categories_that_differ_between_files_are_sampled(tmp_path: Path) -> None:
    for k, first in enumerate(range(0, ROWS, 3_000)):
        towns = [f"{town} {k}" for town in TABLE["town"].slice(first, 3_000).to_pylist()]
        part = TABLE.slice(first, 3_000).set_column(3, "town", pa.array(towns).dictionary_encode())
        pq.write_table(part, tmp_path / f"{k}.parquet", row_group_size=1_000)
    found = content(read(open_tables(tmp_path)))
    town_of = dict(zip(TABLE["y"].to_pylist(), TABLE["town"].to_pylist(), strict=True))
    assert len({row["town"].split()[1] for row in found}) == 4
    assert [row["town"].split()[0] for row in found] == [town_of[row["y"]] for row in found]


def test_a_larger_limit_adds_rows_and_drops_none(folder: Path) -> None:
    table = open_table(folder / "one.parquet")
    few, more = ({row["y"] for row in content(read(table, rows))} for rows in (1_200, 4_000))
    assert len(few) == 1_200
    assert len(more) == 4_000
    assert few < more


def test_the_sample_is_uniform(folder: Path) -> None:
    sample = read(open_table(folder / "one.parquet"))
    numbers = sample.row_numbers
    spread = np.sqrt(ROOM * 0.1 * 0.9)
    assert np.abs(np.bincount(numbers * 10 // ROWS) - ROOM / 10).max() < 4 * spread  # tenths of the table
    assert np.abs(np.bincount(numbers % 10) - ROOM / 10).max() < 4 * spread


def test_groups_are_whole(folder: Path) -> None:
    sample = read(open_table(folder / "one.parquet"), group="who")
    assert sample.arrow is not None
    kept = set(sample.arrow["who"].to_pylist())
    assert 40 < len(kept) < 80
    assert sum(who in kept for who in TABLE["who"].to_pylist()) == len(sample)


def test_a_group_that_does_not_fit_is_an_error(folder: Path) -> None:
    with pytest.raises(InputError, match=r"column 'town': expected groups of at most 1,572 rows.*raise memory"):
        read(open_table(folder / "one.parquet"), 1_000, group="town")


def test_a_row_without_a_group_is_found(tmp_path: Path) -> None:
    who = [None if k == 11_000 else name for k, name in enumerate(TABLE["who"].to_pylist())]
    pq.write_table(TABLE.set_column(4, "who", pa.array(who)), tmp_path / "t.parquet")
    model = PPGPRRegressor(**TINY, memory=limit_of(ROOM))
    with pytest.raises(InputError, match=r"column 'who', row 11000: expected a group in every row"):
        model.fit(ds.dataset(tmp_path / "t.parquet"), "y", groups="who")


# ---------------------------------------------------------------- what is said, and what fits


def test_the_note_says_how_many_rows_of_how_many(folder: Path) -> None:
    (note,) = read(open_table(folder / "one.parquet")).notes
    size = format_size(limit_of(ROOM))
    assert str(note) == f"2,500 of 12,000 rows are used: drawn at random, as many as memory={size} has room for"
    whole = read(open_table(folder / "one.parquet"), group="who")
    assert str(whole.notes[0]).startswith(
        f"{len(whole):,} of 12,000 rows are used: all rows of groups (column 'who') drawn at random"
    )


@pytest.mark.parametrize("file", ["one.parquet", "many", "one.csv"])
def test_a_table_that_fits_is_read_as_it_is(folder: Path, file: str) -> None:
    table = open_tables(folder / file) if file == "many" else open_table(folder / file)
    whole = table.read()
    for found in (read(table, ROWS), read_table(table, inputs=INPUTS)):
        assert content(found) == content(whole)
        assert (found.notes, found.table_rows) == (whole.notes, None)
        assert labels(found) == labels(whole)
    assert read_table(whole, inputs=INPUTS, limit=0.0) is whole, "rows in memory are not copied"


def test_dropped_columns_take_no_room(folder: Path) -> None:
    table = open_table(folder / "one.parquet")
    more = read_table(table, inputs=INPUTS[:3], drop=["town"], limit=limit_of(ROOM))
    assert len(more) == rows_within(limit_of(ROOM), 6, 0) > ROOM
    assert "town" not in more.names


def test_small_tables_are_never_sampled(tmp_path: Path) -> None:
    pq.write_table(TABLE.slice(0, MIN_ROWS), tmp_path / "t.parquet")
    assert len(read_table(open_table(tmp_path / "t.parquet"), inputs=INPUTS, limit=1.0)) == MIN_ROWS


def test_a_limit_without_room_is_an_error_that_names_one_that_has(folder: Path) -> None:
    table = open_table(folder / "one.parquet")
    with pytest.raises(InputError, match=r"memory: expected at least (\S+) for a sample of .*, got 600MB") as problem:
        read_table(table, inputs=INPUTS, limit=6e8, processes=4)
    enough = parse_size(str(problem.value).split("at least ")[1].split()[0])
    assert len(read_table(table, inputs=INPUTS, limit=enough, processes=4)) >= MIN_ROWS


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GB", 4e9), ("500MB", 5e8), ("1.5 gb", 1.5e9), ("2t", 2e12), ("7e9", None), (7e9, 7e9), (123, 123.0)],
)
def test_sizes(text: object, size: float | None) -> None:
    if size is None:
        with pytest.raises(InputError, match="memory: expected a size such as 4GB or 500MB"):
            parse_size(text)
    else:
        assert parse_size(text) == size
    assert parse_size(None) is None


@pytest.mark.parametrize("text", ["", "much", "-1GB", "0", "4GiB", "GB", True, [4], float("nan"), float("inf")])
def test_what_is_no_size_is_refused(text: object, folder: Path) -> None:
    with pytest.raises(InputError, match="memory: expected a size such as 4GB or 500MB, got"):
        DSPPRegressor(memory=text).fit(ds.dataset(folder / "many"), "y")


# ---------------------------------------------------------------- fits


def prepared(folder: Path, settings: Settings, **roles: str) -> Prepared:
    limit = limit_of(ROOM, settings.max_processes)
    drop = [name for name in ("who", "w") if name not in roles.values()]
    return prepare(open_tables(folder / "many"), replace(settings, memory=limit), targets=["y"], drop=drop, **roles)


@pytest.mark.parametrize("members", ["auto", 1])
def test_times_weights_and_groups_of_a_sample(folder: Path, members: int | str) -> None:
    settings = Settings(members=members, likelihood="gaussian")
    found = prepared(folder, settings, time="day")
    assert found.table_rows == ROWS
    assert len(found.table) > ROOM
    assert found.table.times is not None
    if members == 1:
        assert found.validation_table.times is not None
        assert (
            found.validation_table.times.min()
            > np.delete(
                found.table.times, np.flatnonzero(np.isin(found.table.times, found.validation_table.times))
            ).max()
        ), "the latest are held out"
    else:
        assert found.split.forward or found.split.num_folds == 1
        latest = found.table.times[found.split.fold == 0]
        assert latest.min() > found.table.times[found.split.fold != 0].max()
    weighted = prepared(folder, settings, weight="w")
    assert weighted.train.weights is not None
    assert any("of weight 0 are left out" in str(note) for note in weighted.notes)
    grouped = prepared(folder, settings, group="who")
    assert grouped.table.groups is not None
    parts = grouped.split.fold
    if members == 1:
        assert grouped.validation_table.groups is not None
        assert np.isin(grouped.table.groups, grouped.validation_table.groups).sum() == len(grouped.validation)
    else:
        assert all(len(set(parts[grouped.table.groups == g])) == 1 for g in np.unique(grouped.table.groups))
    for one in (found, weighted, grouped):
        assert f"of {ROWS:,} rows are used" in str(one.notes[0])


def test_a_dataset_is_sampled_with_its_roles_and_its_own_likelihood(folder: Path, tmp_path: Path) -> None:
    positive = TABLE.set_column(6, "y", pa.array(np.exp(TABLE["y"].to_numpy()))).drop_columns(["w"])
    pq.write_table(positive, tmp_path / "t.parquet")
    model = DSPPRegressor(**TINY, members=2, layers=1, memory=limit_of(ROOM, 2, 10))
    with pytest.warns(dspp.DsppWarning, match="of 12,000 rows are used: all rows of groups"):
        model.fit(
            ds.dataset(tmp_path / "t.parquet"), "y", groups="who", X_val=TABLE.select(INPUTS)[:50], y_val=np.ones(50)
        )
    assert list(model.feature_names_in_) == INPUTS
    assert model.fitted_.members[0].spec.model.likelihood == "log-normal"
    assert ROOM - 100 < model.fitted_.num_rows < ROOM
    with pytest.raises(InputError, match="expected groups or times, got both"):
        model.fit(ds.dataset(tmp_path / "t.parquet"), "y", groups="who", time="day")


def test_a_dataset_is_tuned(folder: Path) -> None:
    result = dspp.tune(
        ds.dataset(folder / "many"),
        "y",
        sample_weight="w",
        time="day",
        models=["ppgpr"],
        trials=1,
        base={"inducing": 4, "epochs": 1, "memory": limit_of(ROOM), "progress": False},
    )
    assert f"of {ROWS:,} rows are used" in str(result.best_estimator.fitted_.notes[0])


def test_the_command_line_samples_the_same_rows(folder: Path, tmp_path: Path) -> None:
    def fit(*words: object) -> str:
        out = ("--out", tmp_path / "m.dspp", "--overwrite", "--target", "y", "--model", "ppgpr", "--inducing", 4)
        given = ("fit", folder / "many", *out, "--epochs", 1, "--restarts", 1, "--weight", "w", "--drop", "who", *words)
        result = CliRunner().invoke(app, [str(word) for word in given], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return str(result.stdout)

    size = f"{limit_of(ROOM, 0, 10) / 1e6:.6f}MB"
    said = fit("--memory", size, "--time", "day")
    assert f"{folder / 'many'}: 12,000 rows in 8 files, 7 columns" in said
    assert "note: 2,500 of 12,000 rows are used: drawn at random, as many as memory=" in said
    model = PPGPRRegressor(**TINY | {"batch_size": None}, memory=size).fit(
        from_columns(folder, ["who"]), "y", sample_weight="w", time="day"
    )
    X = TABLE.select(INPUTS)
    np.testing.assert_array_equal(dspp.load(tmp_path / "m.dspp").predict(X), model.predict(X))
    assert "are used" not in fit()


def from_columns(folder: Path, without: Sequence[str]) -> ds.Dataset:
    """The dataset of the folder without some columns."""
    whole = ds.dataset(folder / "many")
    return ds.dataset(folder / "many", schema=pa.schema([f for f in whole.schema if f.name not in without]))


# ---------------------------------------------------------------- memory

FIT = """
import json, os, sys, threading, time
from pathlib import Path
import pyarrow.dataset as ds

peak, done = 0, False


def tree(process):
    yield process
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from tree(int(child))


def watch():
    global peak
    while not done:
        total = 0
        try:
            for number in tree(os.getpid()):
                lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
                total += 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except OSError:
            pass
        peak = max(peak, total)
        time.sleep(0.05)


if __name__ == "__main__":
    import dspp

    watcher = threading.Thread(target=watch)
    watcher.start()
    given = {"memory": sys.argv[2], "time_budget": 16.0, "jobs": 4, "progress": False, "likelihood": "gaussian"}
    model = dspp.DSPPRegressor(**given).fit(ds.dataset(sys.argv[1]), "y")
    done = True
    watcher.join()
    print(json.dumps({"peak": peak, "rows": model.fitted_.num_rows, "notes": str(model.fitted_.notes[0])}))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs the memory of processes")
def test_a_fit_stays_within_its_limit(tmp_path: Path) -> None:
    """Of 1,000,000 rows of 20 numbers as many are used as four processes have room for."""
    rng = np.random.default_rng(0)
    (tmp_path / "d").mkdir()
    for k in range(4):
        block = rng.normal(size=(250_000, 21)).astype("f4")
        names = [*(f"x{d}" for d in range(20)), "y"]
        pq.write_table(pa.table(dict(zip(names, block.T, strict=True))), tmp_path / "d" / f"{k}.parquet")
    (tmp_path / "fit.py").write_text(FIT)
    limit = 2_400_000_000
    command = [sys.executable, "-W", "ignore", str(tmp_path / "fit.py"), str(tmp_path / "d"), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["rows"] == rows_within(limit, 21, 4) < 1_000_000
    assert found["notes"].startswith(f"{found['rows']:,} of 1,000,000 rows are used")
    assert 0.4 * limit < found["peak"] < limit

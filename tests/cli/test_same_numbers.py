"""Promise 33: the command line and Python give the same numbers under the same names, to the last bit."""

import json
import shlex
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import dspp
from dspp import DSPPRegressor
from dspp.cli import app

TINY = shlex.split("--members 1 --inducing 8 --width 2 --epochs 3 --restarts 1 --conformal")


def houses(num_rows: int, seed: int) -> pa.Table:
    """Numbers, text and gaps; the second target is not always observed."""
    rng = np.random.default_rng(seed)
    size, town = rng.normal(100, 20, num_rows), rng.choice(["Oslo", "Rome", "Paris"], num_rows)
    price = 2 * size + 50 * (town == "Oslo") + rng.normal(0, 5, num_rows)
    rent = pa.array(price / 30 + rng.normal(0, 1, num_rows), mask=rng.random(num_rows) < 0.2)
    return pa.table(
        {"size": pa.array(size, mask=rng.random(num_rows) < 0.1), "town": town, "price": price, "rent": rent}
    )


def run(*words: object) -> Any:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module", params=[("price",), ("price", "rent")], ids=["one output", "two outputs"])
def fitted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[str, ...]]:
    """A folder with tables and a model that `dspp fit` made of one of them, and its targets."""
    folder, targets = tmp_path_factory.mktemp("same"), request.param
    for name, table in (("train", houses(150, 0)), ("new", houses(60, 1))):
        pq.write_table(table.select(["size", "town", *targets]), folder / f"{name}.parquet")
    named = [word for target in targets for word in ("--target", target)]
    run("fit", folder / "train.parquet", *named, "--out", folder / "m.dspp", *TINY)
    return folder, targets


def test_a_fit_is_the_same_in_both(fitted: tuple[Path, tuple[str, ...]]) -> None:
    folder, targets = fitted
    table, model = pq.read_table(folder / "train.parquet"), dspp.load(folder / "m.dspp")
    own = DSPPRegressor(members=1, inducing=8, width=2, epochs=3, restarts=1, conformal=True)
    own.fit(table.drop_columns(list(targets)), table.select(list(targets)))
    assert own.fitted_.metrics == model.fitted_.metrics
    assert own.get_params() == model.get_params()
    for (name, value), other in zip(
        own.fitted_.members[0].model.state_dict().items(),
        model.fitted_.members[0].model.state_dict().values(),
        strict=True,
    ):
        assert value.numpy().tobytes() == other.numpy().tobytes(), name


@pytest.mark.filterwarnings("ignore:at a coverage of")
def test_predictions_have_the_same_columns_and_bits(fitted: tuple[Path, tuple[str, ...]]) -> None:
    folder, targets = fitted
    more = shlex.split(
        "--quantiles 0.05,0.5,0.95 --interval 0.8 --above 120 --above 2.5 --mixture --samples 2 --seed 3 --overwrite"
    )
    run("predict", folder / "m.dspp", folder / "new.parquet", "--out", folder / "p.parquet", *more)
    table, model = pq.read_table(folder / "new.parquet"), dspp.load(folder / "m.dspp")
    X = table.drop_columns(list(targets))
    expected = pq.read_table(folder / "p.parquet")
    how = {"above": (120, 2.5), "components": True, "samples": 2, "random_state": 3}
    found = model.predict_table(X, (0.05, 0.5, 0.95), 0.8, **how)
    assert found.column_names == expected.column_names
    parts = {**frame(model.predict_interval(X, 0.8)), **frame(model.predict_quantiles(X, (0.05, 0.5, 0.95)))}
    assert set(parts) < set(expected.column_names)
    for name in expected.column_names:
        assert expected[name].to_numpy().tobytes() == found[name].to_numpy().tobytes(), name
        assert name not in parts or parts[name].tobytes() == expected[name].to_numpy().tobytes(), name


def frame(table: pa.Table) -> dict[str, np.ndarray]:
    return {name: table[name].to_numpy() for name in table.column_names}


def test_evaluations_have_the_same_scores_rows_and_verdict(fitted: tuple[Path, tuple[str, ...]]) -> None:
    folder, targets = fitted
    found = json.loads(run("evaluate", folder / "m.dspp", folder / "new.parquet", "--json").stdout)
    table, model = pq.read_table(folder / "new.parquet"), dspp.load(folder / "m.dspp")
    X, y = table.drop_columns(list(targets)), table.select(list(targets))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores, verdict = model.evaluate(X, y), model.calibration(X, y).verdict()
    assert {name: found[name] for name in scores} == scores
    assert (found["rows"], found["verdict"]) == (len(table), verdict)

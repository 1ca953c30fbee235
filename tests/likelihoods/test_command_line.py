"""Likelihoods on the command line."""

import json
import shlex
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dspp import load
from dspp.cli import app

TINY = shlex.split("--members 1 --inducing 8 --width 2 --epochs 3 --restarts 1")


def run(*args: object):
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def done(*args: object) -> str:
    result = run(*args)
    assert result.exit_code == 0, result.output
    return str(result.stdout)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random = np.random.default_rng(0)
    size = random.normal(size=200)
    price = np.exp(size + 0.2 * random.normal(size=200))
    path = tmp_path_factory.mktemp("tables") / "table.parquet"
    pq.write_table(pa.table({"size": size, "price": price}), path)
    return path


@pytest.mark.parametrize("likelihood", ["student-t", "log-normal"])
def test_fit_info_predict_evaluate_and_report(table: Path, likelihood: str, tmp_path) -> None:
    model, report = tmp_path / "model.dspp", tmp_path / "report.html"
    given = ("--target", "price", "--out", model, "--likelihood", likelihood, "--report", report, *TINY)
    done("fit", table, *given)
    assert json.loads(done("info", model, "--json"))["settings"]["model"]["likelihood"] == likelihood
    assert f"likelihood {likelihood}" in " ".join(done("info", model).split())
    assert likelihood in report.read_text()
    out = tmp_path / "out.csv"
    done(
        "predict", model, table, "--out", out, "--interval", "0.9", "--mixture", "--samples", "2", "--quantiles", "0.5"
    )
    rows = np.genfromtxt(out, delimiter=",", names=True)
    assert np.isfinite(rows["price_mean"]).all()
    assert bool((rows["price_lower"] < rows["price_upper"]).all())
    assert likelihood != "log-normal" or bool((rows["price_lower"] > 0).all())
    assert "NLL" in done("evaluate", model, table) or "nll" in done("evaluate", model, table)
    np.testing.assert_allclose(load(model).predict(pq.read_table(table, columns=["size"])), rows["price_mean"])


def test_a_target_that_is_not_positive_is_refused(tmp_path: Path) -> None:
    values = np.ones(60)
    values[[7, 30]] = -3.0
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"size": np.arange(60.0), "price": values}), path)
    given = ("--target", "price", "--out", tmp_path / "m.dspp", "--likelihood", "log-normal", *TINY)
    result = run("fit", path, *given)
    assert result.exit_code == 2
    assert "expected a positive number for the outcome 'positive', got -3" in result.output.replace("\n", " ")
    assert "'price', row 7" in result.output.replace("\n", " ")

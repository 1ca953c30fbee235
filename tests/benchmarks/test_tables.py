"""The suite of everyday tables: splits, scores, resuming, and what the report makes of the results."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import check_grad
from scipy.stats import norm

pytest.importorskip("lightgbm", reason="lightgbm is absent: `make test` installs it")

from benchmarks.tables import exact_gp, mlps, records, report
from benchmarks.tables import run as runs
from benchmarks.tables.__main__ import main
from benchmarks.tables.inputs import Inputs
from benchmarks.tables.methods import METHODS, Fit, method
from benchmarks.tables.scores import score
from benchmarks.tables.sets import Split, load
from dspp.errors import InputError
from dspp.predictive import NormalMixture
from dspp.predictive.lognormal import LogNormalMixture


def frame(num: int = 200) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (num, 2))
    y = 5 + 3 * np.sin(3 * X[:, 0]) + 0.1 * rng.standard_normal(num)
    return pd.DataFrame({"x0": X[:, 0], "x1": X[:, 1], "y": y, "fold": np.arange(num) % 10})


@pytest.fixture
def data(tmp_path):
    """A data folder with a small table under the name of a real one."""
    (tmp_path / "tables").mkdir()
    frame().to_parquet(tmp_path / "tables" / "concrete.parquet")
    return tmp_path


def normals(mean: np.ndarray, std: np.ndarray) -> NormalMixture:
    centre, var = torch.from_numpy(mean)[None], torch.from_numpy(std**2)[None]
    return NormalMixture(torch.zeros(1, dtype=torch.float64), centre, torch.zeros_like(centre), var)


def record(table: str, fold: int, name: str, nll: float, crps: float = 1.0, rmse: float = 1.0) -> records.Record:
    metrics = {"nll": nll, "crps": crps, "rmse": rmse, "coverage90": 0.9, "worst_surprise": 5.0}
    return {"set": table, "fold": fold, "method": name, "metrics": metrics, "seconds": {"fit": 1.0, "fit_cpu": 0.9}}


# ---------------------------------------------------------------- sets


def test_a_fold_is_the_test_rows_and_not_an_input(data):
    rows, table = load("concrete", 3, data), frame()
    assert list(rows.X.columns) == ["x0", "x1"]
    assert rows.y_test.tolist() == table["y"][table["fold"] == 3].tolist()
    assert sorted([*rows.y, *rows.y_test]) == sorted(table["y"])
    with pytest.raises(InputError, match="expected a fold from 0 to 9, got 10"):
        load("concrete", 10, data)


def test_rows_without_a_target_are_left_out_and_seeds_give_other_splits(tmp_path):
    (tmp_path / "tables").mkdir()
    price = [None, *range(1, 101)]
    pd.DataFrame({"carat": range(101), "price": price}).to_parquet(tmp_path / "tables" / "diamonds.parquet")
    first, other = load("diamonds", 0, tmp_path), load("diamonds", 1, tmp_path)
    assert (len(first.y), len(first.y_test)) == (80, 20)
    assert (first.X_test["carat"] == first.y_test).all()
    assert set(first.y_test) != set(other.y_test)


def test_validation_rows_of_the_paper_are_training_rows(tmp_path):
    X = np.random.default_rng(0).standard_normal((100, 3)).astype(np.float32)
    np.savez(tmp_path / "pol.npz", X=X, y=np.arange(100.0))
    rows = load("pol", 0, tmp_path)
    assert (len(rows.y), len(rows.y_test)) == (85, 15)
    assert sorted([*rows.y, *rows.y_test]) == list(range(100))


def test_text_of_many_levels_also_gets_its_place_in_order():
    names = [f"level {k:02}" for k in range(30)] * 4
    X = pd.DataFrame({"name": names, "x": np.arange(120.0)})
    rows = Split(X, np.arange(120.0), X, np.arange(120.0))
    plain, ordinal = (Inputs.learn(rows, ordinal=on) for on in (False, True))
    new = pd.DataFrame({"name": ["level 00", "level 07", "level 29", None], "x": 0.0})
    with pytest.raises(InputError, match="name"):  # no training row lacks it
        ordinal.numbers(new)
    codes = ordinal.numbers(new[:3])[:, -1] * ordinal.scale.scale[-1] + ordinal.scale.mean[-1]
    assert codes == pytest.approx([0, 7, 29])
    assert ordinal.numbers(X).shape[1] == plain.numbers(X).shape[1] + 1


# ---------------------------------------------------------------- scores


def test_scores_agree_with_scipy_in_any_units():
    rng = np.random.default_rng(1)
    mean, std, y = rng.standard_normal(500), rng.uniform(0.5, 2.0, 500), 1.5 * rng.standard_normal(500)
    found = score(normals(mean, std), y)
    surprise, z = -norm.logpdf(y, mean, std), (y - mean) / std
    inside = np.abs(norm.cdf(z) - 0.5) * 2
    crps = std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / math.sqrt(math.pi))
    expected = {
        "nll": surprise.mean(),
        "crps": crps.mean(),
        "rmse": np.sqrt(np.mean((y - mean) ** 2)),
        **{f"coverage{p}": np.mean(inside <= p / 100) for p in (50, 90, 95)},
        "worst_surprise": surprise.max(),
        "median_surprise": np.median(surprise),
    }
    assert found == pytest.approx(expected, rel=1e-9)
    unit = 40.0  # the same predictions in units of the target
    assert score(normals(7 + unit * mean, unit * std), 7 + unit * y, unit) == pytest.approx(expected, rel=1e-9)


def test_other_distributions_are_scored_in_standardised_units_too():
    rng = np.random.default_rng(2)
    y = rng.lognormal(1.0, 0.5, 200)
    log = normals(np.full(200, 1.0), np.full(200, 0.5))
    found = score(LogNormalMixture(log), y, unit=2.0)
    expected = np.mean(-norm.logpdf(np.log(y), 1.0, 0.5) + np.log(y)) - math.log(2.0)
    assert found["nll"] == pytest.approx(expected, rel=1e-9)


# ---------------------------------------------------------------- methods


def test_the_gradient_of_the_marginal_likelihood_is_right():
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((30, 3)), rng.standard_normal(30)
    theta = np.array([0.1, -0.3, 0.5, 0.2, -1.0])

    def value(theta: np.ndarray) -> float:
        return exact_gp.negative_log_marginal(theta, X, y, 1e-4)[0]

    def gradient(theta: np.ndarray) -> np.ndarray:
        return exact_gp.negative_log_marginal(theta, X, y, 1e-4)[1]

    assert check_grad(value, gradient, theta) < 1e-6


def test_the_exact_gp_and_the_networks_learn_a_curve(monkeypatch):
    monkeypatch.setattr(mlps, "STEPS", (150, 150))
    monkeypatch.setattr(mlps, "EPOCHS", 1)
    monkeypatch.setattr(exact_gp, "START_ROWS", 50)
    monkeypatch.setattr(exact_gp, "LEARNING_ROWS", 100)
    rng = np.random.default_rng(4)
    X = rng.uniform(-2, 2, (300, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(300)
    for learn, nll in ((exact_gp.fit, -0.75), (mlps.fit, -0.2)):  # the noise alone: -0.88; no inputs: 1.1
        predict, _ = learn(X[:200], y[:200], floor=1e-4, seed=0)
        assert score(predict(X[200:]), y[200:])["nll"] < nll


def test_settings_name_a_variant_and_reach_the_estimator(data, monkeypatch):
    seen = []
    monkeypatch.setattr("benchmarks.tables.methods.DSPPRegressor", lambda **given: seen.append(given) or Tiny())
    variant = method("dspp", {"inducing": 64, "kernel": "rbf"})
    assert variant.name == "dspp[inducing=64,kernel=rbf]"
    assert method("dspp", {"inducing": 64}, "wide").name == "dspp[wide]"
    assert method("lightgbm", {"inducing": 64}).name == "lightgbm"
    found = runs.fit(runs.Task("concrete", 0, variant), data, {"versions": {}, "commit": None})
    assert seen == [{"inducing": 64, "kernel": "rbf"}]
    assert found["settings"] == seen[0]
    rows = load("concrete", 0, data)
    assert found["metrics"]["rmse"] == pytest.approx(np.sqrt(np.mean((rows.y_test - 5) ** 2)) / rows.y.std())


class Tiny:
    """Predicts N(5, 2²) in the units of the target."""

    fitted_ = SimpleNamespace(members=())

    def fit(self, X, y):
        return self

    def predict_dist(self, X):
        return normals(np.full(len(X), 5.0), np.full(len(X), 2.0))


def test_a_table_too_large_for_a_method_is_not_fitted(data, monkeypatch):
    monkeypatch.setitem(runs.Method.check.__globals__["LIMITS"], "exact-gp", 100)
    with pytest.raises(InputError, match="expected at most 100 training rows, got 180"):
        method("exact-gp").check(load("concrete", 0, data))


# ---------------------------------------------------------------- runs


def test_finished_fits_are_skipped_and_failures_do_not_end_the_run(data, monkeypatch, capsys):
    path, calls = data / "results" / "tables.jsonl", []

    def fails(rows: Split, seed: int) -> Fit:
        calls.append(seed)
        if seed == 1:
            raise ZeroDivisionError("no luck")
        return Fit(lambda X: normals(np.zeros(len(X)), np.ones(len(X))))

    monkeypatch.setitem(METHODS, "mlps", fails)
    command = ["--sets", "concrete", "--methods", "mlps,lightgbm", "--folds", "0,1"]
    command += ["--data", str(data), "--results", str(path)]
    assert main(command) == 1
    assert "ZeroDivisionError: no luck" in capsys.readouterr().err
    first = path.read_text()
    assert [records.key(r) for r in records.read(path)] == [
        ("concrete", 0, "mlps"),
        ("concrete", 0, "lightgbm"),
        ("concrete", 1, "lightgbm"),
    ]
    assert main(command) == 1
    assert calls == [0, 1, 1]
    assert path.read_text() == first
    line = json.loads(first.splitlines()[1])
    assert line["threads"] == 1
    assert line["rows"] == {"train": 180, "test": 20}
    assert {"dspp", "lightgbm"} <= line["versions"].keys()
    assert line["metrics"]["nll"] < 0.5  # a Normal that ignores the inputs has 1.42


def test_infinite_scores_survive_the_file_and_a_torn_line_is_left_out(tmp_path):
    path = tmp_path / "tables.jsonl"
    records.add(path, record("wine", 0, "dspp", math.inf))
    path.write_text(path.read_text() + '{"set": "wi')
    records.add(path, record("wine", 0, "dspp", 1.0))  # already known
    assert [r["metrics"]["nll"] for r in records.read(path)] == [math.inf]


def test_unknown_names_are_reported(data, capsys):
    for wrong, message in (
        (["--sets", "mars"], "no set mars"),
        (["--methods", "magic"], "no method magic"),
        (["--setting", "members"], "expected NAME=VALUE"),
        (["--methods", "lightgbm", "--setting", "members=4"], "apply to the method dspp"),
        (["--tag", "wide"], "pass --setting"),
    ):
        with pytest.raises(SystemExit):
            main([*wrong, "--data", str(data)])
        assert message in capsys.readouterr().err


# ---------------------------------------------------------------- report


def test_ranks_wins_and_closeness():
    found = [
        *(record("concrete", f, "dspp", 0.0 + f, crps=0.2, rmse=0.4) for f in (0, 1)),
        *(record("concrete", f, "lightgbm", 0.02 + f, crps=0.1, rmse=0.2) for f in (0, 1)),
        record("concrete", 2, "dspp", -50.0),  # a fold that the others lack
        record("energy", 0, "dspp", -1.0, crps=0.1, rmse=0.1),
        record("energy", 0, "lightgbm", 2.0, crps=0.3, rmse=0.1),
        record("energy", 0, "exact-gp", math.inf, crps=0.2, rmse=0.2),
        record("wine", 0, "dspp", 0.0),
        record("wine", 1, "lightgbm", 0.0),
    ]
    means, folds = report.average(found)
    assert folds == {"concrete": 2, "energy": 1}
    assert means["concrete"]["dspp"]["nll"] == 0.5
    found_summary = report.summarise(means)
    assert found_summary["dspp"] == pytest.approx(
        {
            **{"sets": 2, "nll_rank": 1.0, "crps_rank": 1.5, "nll_wins": 2, "crps_wins": 1, "close": 2},
            "rmse": math.sqrt(2),
        }
    )
    assert found_summary["lightgbm"]["nll_rank"] == 2.0
    assert found_summary["lightgbm"]["close"] == 1
    assert found_summary["exact-gp"]["nll_rank"] == 3.0
    text = report.write(found)
    assert "| concrete | 2 | **0.500** | 0.520 | – |" in text
    assert "left out: wine" in text


def test_the_report_is_printed_and_written(tmp_path, capsys):
    path = tmp_path / "tables.jsonl"
    for name in ("dspp", "lightgbm"):
        records.add(path, record("wine", 0, name, 1.0))
    assert main(["report", "--results", str(path)]) == 0
    assert capsys.readouterr().out.strip() == path.with_suffix(".md").read_text().strip()
    assert main(["report", "--results", str(path), "--sets", "energy"]) == 1

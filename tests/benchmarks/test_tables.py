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

from benchmarks import records
from benchmarks.tables import coverage, exact_gp, mlps
from benchmarks.tables import run as runs
from benchmarks.tables.__main__ import main, report
from benchmarks.tables.inputs import Inputs
from benchmarks.tables.methods import LIMITS, METHODS, Fit, method
from benchmarks.tables.scores import score
from benchmarks.tables.sets import SETS, Split, load
from dspp.errors import InputError
from dspp.predictive import NormalMixture
from dspp.predictive.lognormal import LogNormalMixture
from experiments.data.files import store
from experiments.data.sources import SOURCES
from experiments.report import markdown, suite
from experiments.report.criteria import criteria
from experiments.report.everyday import everyday_section
from experiments.report.suite import Suite, read_suite


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


def record(table: str, fold: int, name: str, nll: float, rows: int = 100, **metrics: float) -> records.Record:
    scores = {"nll": nll, "crps": 1.0, "rmse": 1.0, "coverage50": 0.5, "coverage90": 0.9, "coverage95": 0.95}
    seconds = {"fit": 1.0, "fit_cpu": 0.9, "predict_per_1000": 0.25}
    return {
        **{"set": table, "fold": fold, "method": name, "seconds": seconds, "rows": {"train": 900, "test": rows}},
        "metrics": {**scores, "worst_surprise": 5.0, **metrics},
    }


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
    X = np.random.default_rng(0).standard_normal((100, SOURCES["pol"].inputs)).astype(np.float32)
    store(tmp_path / "pol.npz", {"X": X, "y": np.arange(100.0)})
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


@pytest.mark.parametrize(
    ("values", "if_right"),
    [(np.linspace(-9, 9, 4001), 0.9), (np.array([-8.0, 0.0, 8.0]), 1.0), (np.array([-2.0, 2.0]), 0.0)],
)
def test_what_a_model_that_is_right_would_cover(values, if_right):
    """Standard Normals: 0.9 of a target without gaps, all if one value has nearly all of the probability, or none."""
    zeros = torch.zeros(1, 20_000, dtype=torch.float64)
    normals = NormalMixture(zeros[:, 0], zeros, zeros + 1.0, torch.tensor(0.0).double())
    y = np.linspace(-2, 2, 20_000)
    found = coverage.shares(normals, y, values, floor=0.5)
    assert found["if_right"] == pytest.approx(if_right, abs=0.01)
    assert found["observed"] == pytest.approx(1.645 / 2, abs=1e-3)
    assert found["within_floor"] == pytest.approx(0.5 * 1.645 / 2, abs=1e-3)


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
    monkeypatch.setitem(LIMITS, "exact-gp", 100)
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


def test_the_report_expects_what_is_run():
    assert suite.SETS == SETS
    assert tuple(METHODS) == suite.METHODS


def test_ranks_wins_and_closeness_on_sets_that_a_group_shares():
    found = Suite.of(
        [
            *(record("concrete", f, "dspp", 0.0 + f, crps=0.2, rmse=0.4) for f in (0, 1)),
            *(record("concrete", f, "lightgbm", 0.02 + f, crps=0.1, rmse=0.2) for f in (0, 1)),
            record("concrete", 2, "dspp", -50.0),  # a fold that the others lack
            record("energy", 0, "dspp", -1.0, crps=0.1, rmse=0.1),
            record("energy", 0, "lightgbm", 2.0, crps=0.3, rmse=0.1),
            record("energy", 0, "exact-gp", math.inf, crps=0.2, rmse=0.2),
            record("wine", 0, "dspp", 0.0),  # no fold in common
            record("wine", 1, "lightgbm", 0.0),
        ]
    )
    three, two = suite.groups(found, found.methods)
    assert (three.methods, three.sets) == (("dspp", "lightgbm", "exact-gp"), ("energy",))
    assert [three.summary[name]["nll_rank"] for name in three.methods] == [1.0, 2.0, 3.0]
    assert (two.methods, two.sets) == (("dspp", "lightgbm"), ("concrete", "energy"))
    assert two.summary["dspp"] == pytest.approx(
        {
            **{"nll_rank": 1.0, "crps_rank": 1.5, "nll_wins": 2, "crps_wins": 1, "close": 2},
            "rmse": math.sqrt(2),
        }
    )
    assert two.summary["lightgbm"]["close"] == 1
    assert two.order("nll") == ["dspp", "lightgbm"]


def test_a_method_with_few_folds_takes_none_from_the_others():
    each = {"dspp": range(6), "lightgbm": range(6), "catboost": range(1, 6), "mlps": (0,), "dspp[wide]": (7,)}
    found = Suite.of(record("wine", fold, name, float(fold)) for name, folds in each.items() for fold in folds)
    assert found.row_folds("wine") == {1, 2, 3, 4, 5}  # 3 × 5 cells; 4 × 1 or 2 × 6 are fewer
    assert found.row_methods("wine") == ("dspp", "lightgbm", "catboost")
    assert found.peers == ("lightgbm", "catboost", "mlps")
    assert [found.pairs("wine")[peer][0]["nll"] for peer in found.peers] == [2.5, 3.0, 0.0]
    text = markdown.section_text(everyday_section(found))
    assert "| wine | 5 | **3.000** | **3.000** | **3.000** | (0.000) | (7.000) |" in text
    assert "In parentheses: over other folds" in text


def test_criteria_are_judged_on_what_was_run():
    names, fine = ("concrete", "energy", "airfoil", "wine", "protein"), {"coverage90": 0.9}
    ours = {
        "concrete": {"nll": 0.04, "rmse": 1.02},  # close enough
        "energy": {"nll": 0.06, "rmse": 1.04},
        "airfoil": {"nll": -1.0, "worst_surprise": 12.5},
        "wine": {"nll": -1.0, "coverage90": 0.95},  # too few rows to count
        "protein": {"nll": -1.0, "coverage90": 0.869, "rows": 600},
    }
    found = Suite.of(
        [
            *(record(name, 0, "dspp", **{**fine, **ours[name]}) for name in names),
            *(record(name, 0, "lightgbm", 0.0) for name in names),
            record("wine", 0, "mlps", 5.0),
            record("wine", 1, "mlps", -9.0),
        ]
    )
    nll, crps, first, rmse, per_fold, in_all, surprise = criteria(found)
    assert (nll.met, nll.found) == (True, "1.00 (3 methods on 1 set); 1.40 (2 methods on 5 sets)")
    assert (crps.met, crps.exceptions) == (True, ())  # ties are not behind
    assert (first.met, first.found) == (True, "4 of 5 sets (80 %), first on 3")
    assert first.exceptions == ("energy: lightgbm by 0.060",)
    assert (rmse.met, rmse.exceptions) == (False, ("energy: 1.040 of lightgbm's",))
    assert (per_fold.met, per_fold.exceptions) == (False, ("protein: 0.8690",))
    assert (in_all.extra, in_all.found) == (True, "0 of 1 set (0 %)")
    assert (surprise.met, surprise.exceptions) == (False, ("airfoil: 12.5",))
    text = markdown.section_text(everyday_section(found))
    assert "On the 5 of 15 sets with results, `dspp` meets 3 of 6 criteria; missed: RMSE" in text
    assert "| lightgbm | 5 | 3–2 | 0–0 |" in text  # wins and losses
    assert "| mlps | 1 | 1–0 |" in text


def test_folds_that_defaults_were_chosen_on_are_apart_from_later_ones():
    found = [record("wine", fold, "dspp", 0.0 if fold < 3 else 1.0) for fold in range(6)]
    found += [record("wine", fold, "lightgbm", 0.5) for fold in range(6)]
    found += [record("wine", fold, "mlps", 0.75) for fold in range(3)]
    text = report(found)
    assert "| wine | 0.000 | 0.500 (lightgbm) | **−0.500** | 1.000 | 0.500 (lightgbm) | +0.500 |" in text
    assert "First: folds 0–2, 1 of 1 set; folds 3–5, 0 of 1 set." in text


def test_the_worst_row_is_that_of_all_folds_and_every_score_has_a_table():
    found = [record("wine", fold, "dspp", 0.0, worst_surprise=3.0 + fold) for fold in range(3)]
    text = report(found)
    assert "| wine | 3 | 5.0 |" in text
    assert "no results of `dspp` beside those of a peer" in text
    for title in ("50 % intervals", "90 % intervals", "95 % intervals", "Seconds to predict 1,000 rows"):
        assert f"{title}, by set**" in text


def test_lines_that_are_not_results_are_left_out(tmp_path):
    path = tmp_path / "tables.jsonl"
    records.add(path, record("wine", 0, "dspp", math.inf))
    path.write_text(path.read_text() + '{"set": "wi\n[1]\n{"set": 1, "metrics": 2}\n')
    assert read_suite(path).fits["wine"]["dspp"][0]["nll"] == math.inf
    assert read_suite(tmp_path / "none.jsonl").sets == ()


def test_the_report_is_printed_and_written(tmp_path, capsys):
    path = tmp_path / "tables.jsonl"
    for name in ("dspp", "lightgbm"):
        records.add(path, record("wine", 0, name, 1.0))
    assert main(["report", "--results", str(path)]) == 0
    assert capsys.readouterr().out.strip() == path.with_suffix(".md").read_text().strip()
    assert main(["report", "--results", str(path), "--sets", "energy"]) == 1

"""A kind of target of one's own is one file beside a likelihood, and no other is edited.

One sketch has classes, so that a target is no number and a score is no density; the other has two columns with open
ends, so that a target is wider than the number of outputs, and a score may be a mass or a density.
"""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm
from sklearn.base import clone, is_classifier

import dspp
from dspp.errors import InputError
from dspp.likelihoods import LIKELIHOODS
from dspp.metrics import METRICS
from dspp.objectives import OBJECTIVES
from dspp.outcomes import OUTCOMES
from dspp.predictive import LatentMixture
from dspp.prepare import prepare
from dspp.registry import restored
from dspp.report.model import write_model_report
from dspp.table.memory import to_table

SKETCHES = Path(__file__).parent / "sketches"
RNG = np.random.default_rng(0)
N, NEW = 240, 60
X = pd.DataFrame({"a": RNG.normal(size=N + NEW), "b": RNG.normal(size=N + NEW)})
X["city"] = RNG.choice(["Bonn", "Rome", "Oslo"], size=N + NEW)
F = np.sin(2 * X["a"].to_numpy()) + 0.5 * X["b"].to_numpy()
Y = F + 0.2 * RNG.normal(size=N + NEW)
KINDS = pd.Series(np.array(["low", "middle", "top"])[np.digitize(Y, [-0.5, 0.5])], name="kind")
QUICK: dict[str, Any] = {"inducing": 10, "epochs": 8, "batch_size": 60, "progress": False, "jobs": 1}
ONE = {**QUICK, "members": 1, "restarts": 1}


def intervals() -> pd.DataFrame:
    """A fifth each exact, rounded down to halves, known to be larger, or smaller; the others are cells of 0.01."""
    how, low, high = np.arange(N + NEW) % 5, Y.copy(), Y.copy()
    low[how == 1] = np.floor(2 * Y[how == 1]) / 2
    high[how == 1] = low[how == 1] + 0.5
    low[how == 2] -= 0.3
    high[how == 2] = math.nan
    low[how == 3] = math.nan
    high[how == 3] += 0.3
    low[how == 4] = np.floor(100 * Y[how == 4]) / 100
    high[how == 4] = low[how == 4] + 0.01
    return pd.DataFrame({"from": low, "to": high})


ENDS = intervals()
WEIGHTS = RNG.uniform(0.5, 2.0, size=N + NEW)
TARGETS: dict[str, Any] = {"labels": KINDS, "interval": ENDS}


@pytest.fixture(scope="module", autouse=True)
def sketches() -> Iterator[None]:
    """The files, imported as a user does; other tests of this process do not see their parts."""
    with restored(LIKELIHOODS, OUTCOMES, METRICS), pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(SKETCHES))
        for name in ("labels_outcome", "interval_outcome", "labels_likelihood", "interval_likelihood"):
            __import__(name)
        yield
        for name in ("labels_outcome", "interval_outcome", "labels_likelihood", "interval_likelihood"):
            sys.modules.pop(name)


def weights_of(name: str, rows: slice) -> np.ndarray | None:
    return WEIGHTS[rows] if name == "interval" else None


def train(name: str, **settings: Any) -> dspp.DSPPRegressor:
    y = TARGETS[name][:N]
    model = dspp.DSPPRegressor(outcome=name, **{**QUICK, **settings})
    return model.fit(X[:N], y, sample_weight=weights_of(name, slice(N)))


def constant_nll(model: dspp.DSPPRegressor, X: pd.DataFrame, y: Any, weights: np.ndarray | None = None) -> float:
    """The NLL of a prediction that is the same for all rows."""
    outcome, values = model.fitted_.outcome, model.evaluation(X, y, weights).table.targets
    constant = outcome.constant(len(values))
    return math.log(3) if constant is None else outcome.compare(constant[1], values, weights).nll()


@pytest.fixture(scope="module", params=["labels", "interval"])
def single(request: pytest.FixtureRequest) -> tuple[str, dspp.DSPPRegressor]:
    return request.param, train(request.param, **ONE)


@pytest.fixture(scope="module", params=["labels", "interval"])
def ensemble(request: pytest.FixtureRequest) -> tuple[str, dspp.DSPPRegressor]:
    return request.param, train(request.param)


def test_a_target_may_be_wider_or_narrower_than_the_outputs(single: tuple[str, dspp.DSPPRegressor]) -> None:
    name, model = single
    outcome = model.fitted_.outcome
    sizes = len(outcome.names), len(outcome.scale.mean), outcome.num_outputs
    assert sizes == {"labels": (1, 1, 3), "interval": (2, 3, 1)}[name]


def test_predictions_are_of_their_own_kind(single: tuple[str, dspp.DSPPRegressor]) -> None:
    name, model = single
    table = model.predict_table(X[N:], samples=2)
    if name == "labels":
        assert is_classifier(model)
        assert model.classes_.tolist() == ["low", "middle", "top"]
        assert set(model.predict(X[N:])) <= set(model.classes_)
        names = ["kind", "kind_p_low", "kind_p_middle", "kind_p_top", "kind_sample_0", "kind_sample_1"]
        assert list(table.columns) == names
        np.testing.assert_allclose(table[names[1:4]].sum(axis=1), 1.0, atol=1e-6)
        assert (table["kind"] == KINDS[N:].to_numpy()).mean() > 0.6
        with pytest.raises(InputError, match="got quantiles or intervals of 'kind'"):
            model.predict_interval(X[N:])
        with pytest.raises(InputError, match="conformal=True: expected a target with intervals"):
            train(name, **ONE, conformal=True)
    else:
        assert list(table.columns) == [f"from_to_to_{end}" for end in ("mean", "std", "sample_0", "sample_1")]
        assert np.corrcoef(model.predict(X[N:]), Y[N:])[0, 1] > 0.8
        assert model.predict_interval(X[N:], 0.9).shape == (NEW, 2)


def test_scores_are_those_that_apply(single: tuple[str, dspp.DSPPRegressor]) -> None:
    name, model = single
    rows = X[N:], TARGETS[name][N:], weights_of(name, slice(N, None))
    found = model.evaluate(*rows)
    assert list(found) == {"labels": ["nll", "accuracy"], "interval": ["nll", "coverage90"]}[name]
    logs = model.predict_dist(X[N:]).torch.log_prob(model.evaluation(*rows).y).numpy()
    assert found["nll"] == pytest.approx(-np.average(logs, weights=rows[2]))
    assert found["nll"] < constant_nll(model, *rows) - 0.1
    assert model.score(*rows) == pytest.approx(found[model.fitted_.outcome.score])
    assert model.score_nll(*rows) == pytest.approx(found["nll"])
    with pytest.raises(InputError, match="crps: expected one of"):
        model.score_crps(*rows)
    assert "%" in model.calibration(*rows).verdict()
    assert model.fitted_.metrics.keys() == found.keys()


def test_scores_of_many_rows_are_those_of_few(
    single: tuple[str, dspp.DSPPRegressor], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, model = single
    rows = X[N:], TARGETS[name][N:], weights_of(name, slice(N, None))
    at_once = model.evaluation(*rows)
    monkeypatch.setattr("dspp.evaluate.SCORED_ROWS", 7)
    batches = model.evaluation(*rows)
    assert batches.scores == pytest.approx(at_once.scores, rel=1e-12)
    assert batches.calibration.verdict() == at_once.calibration.verdict()


def test_a_model_file_keeps_it(single: tuple[str, dspp.DSPPRegressor], tmp_path: Path) -> None:
    name, model = single
    model.save(tmp_path / "m.dspp")
    loaded = dspp.load(tmp_path / "m.dspp")
    pd.testing.assert_frame_equal(loaded.predict_table(X[N:]), model.predict_table(X[N:]))
    assert loaded.fitted_.outcome.names == model.fitted_.outcome.names
    assert loaded.get_params()["outcome"] == name
    assert vars(loaded).keys() == vars(model).keys()


def test_the_default_ensemble_mixes_it(ensemble: tuple[str, dspp.DSPPRegressor], tmp_path: Path) -> None:
    name, model = ensemble
    fitted = model.fitted_
    kinds = {member.kind for member in fitted.members}
    assert kinds <= set(fitted.outcome.member_kinds)
    assert len(fitted.members) > 1
    assert fitted.guard is not None
    assert math.isfinite(fitted.metrics["nll"])
    rows = X[N:], TARGETS[name][N:]
    assert model.evaluate(*rows)["nll"] < constant_nll(model, *rows) - 0.1
    model.save(tmp_path / "m.dspp")
    pd.testing.assert_frame_equal(dspp.load(tmp_path / "m.dspp").predict_table(X[N:]), model.predict_table(X[N:]))
    write_model_report(model, *rows, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "NLL" in page
    assert ("How often each class was observed" in page) == (name == "labels")


def test_trees_are_read_where_the_outcome_says_so(ensemble: tuple[str, dspp.DSPPRegressor]) -> None:
    name, model = ensemble
    fitted, columns = model.fitted_, {"labels": 2, "interval": 1}[name]
    reading = [member for member in fitted.members if member.kind == "trees"]
    assert reading
    assert {member.model.num_inputs for member in reading} == {fitted.num_inputs + columns}
    assert len(fitted.trees) == columns


@pytest.mark.parametrize("name", ["labels", "interval"])
def test_a_search_tunes_it(name: str) -> None:
    base = {"outcome": name, "inducing": 8, "epochs": 2, "batch_size": 60, "progress": False}
    how = {"sample_weight": weights_of(name, slice(N)), "base": base}
    result = dspp.tune(X[:N], TARGETS[name][:N], trials=2, space={"beta": [0.1, 0.2]}, **how)
    assert {trial.state for trial in result.trials} <= {"finished", "pruned"}, result.trials
    assert result.best_nll == result.best_estimator.fitted_.metrics["nll"]


def test_folds_and_parts_have_their_share_of_each_class() -> None:
    shares = {}
    for members in (1, "auto"):
        model = dspp.DSPPRegressor(outcome="labels", members=members, random_state=3)
        outcome, table = OUTCOMES["labels"].start(to_table(X[:N]), KINDS[:N], "categorical")
        made = prepare(table, model.settings(), outcome=outcome)
        codes = np.concatenate([made.train.y.numpy()[:, 0], made.validation.y.numpy()[:, 0]]).astype(int)
        fold = made.split.fold
        shares[members] = [np.bincount(codes[fold == k], minlength=3) for k in range(made.split.num_folds)]
    counts = np.bincount(np.unique(KINDS[:N], return_inverse=True)[1])
    assert len(shares["auto"]) > 1
    for found in (shares["auto"], shares[1]):
        rows = sum(map(sum, found)) / len(found)
        np.testing.assert_allclose(found, np.tile(counts * rows / N, (len(found), 1)), atol=1.5)


def test_mlflow_serves_its_columns(single: tuple[str, dspp.DSPPRegressor]) -> None:
    pytest.importorskip("mlflow")
    from dspp.mlflow import PyfuncModel

    name, model = single
    served = PyfuncModel(model).predict(X[N:])
    assert list(served.columns) == {"labels": ["kind"], "interval": ["from_to_to_mean"]}[name]
    assert served.iloc[:, 0].tolist() == model.predict(X[N:]).tolist()


def test_errors_name_row_and_column() -> None:
    crossed = ENDS[:N].copy()
    crossed.loc[7, ["from", "to"]] = 2.0, 1.0
    with pytest.raises(InputError, match=r"y: column 'to', row 7: expected an end of at least 2"):
        dspp.DSPPRegressor(outcome="interval", **ONE).fit(X[:N], crossed)
    model = train("labels", **ONE)
    with pytest.raises(InputError, match=r"y: column 'kind', row 1: expected one of low, middle, top, got 'best'"):
        model.evaluate(X[:2], pd.Series(["low", "best"], name="kind"))
    with pytest.raises(InputError, match="unknown outcome 'nonsense'; choose one of: interval, labels, positive, real"):
        dspp.DSPPRegressor(outcome="nonsense", **ONE).fit(X[:N], Y[:N])
    with pytest.raises(InputError, match="expected one for the outcome 'labels', got 'student-t'"):
        dspp.DSPPRegressor(outcome="labels", likelihood="student-t", **ONE).fit(X[:N], KINDS[:N])


def test_estimators_can_be_cloned() -> None:
    model = dspp.DSPPRegressor(outcome="labels", **ONE)
    assert clone(model).get_params() == model.get_params()


# ---------------------------------------------------------------- the likelihoods


def test_an_interval_has_the_mass_of_scipy_and_a_narrow_one_its_density() -> None:
    from interval_likelihood import interval_log_mass

    z = torch.tensor([-30.0, -8.0, -1.0, 0.0, 0.5, 3.0, 12.0], dtype=torch.float64, requires_grad=True)
    for width in (2.0, 0.3, 0.04, 1e-7):
        w = torch.full_like(z, width)
        found = interval_log_mass(z, w, torch.zeros_like(z))
        m = -np.abs(z.detach().numpy())
        high, low = norm.logcdf(m + width / 2), norm.logcdf(m - width / 2)
        exact = high + np.log(-np.expm1(low - high)) if width > 1e-3 else norm.logpdf(m) + math.log(width)
        np.testing.assert_allclose(
            found.detach().numpy(), exact, rtol=0, atol=2e-3 * width**2 * (1 + m**2).max() + 1e-6
        )
        (slope,) = torch.autograd.grad(found.sum(), z)
        assert slope.isfinite().all()
    for side, tail in ((1.0, norm.logsf), (-1.0, norm.logcdf)):
        found = interval_log_mass(z, torch.zeros_like(z), torch.full_like(z, side))
        np.testing.assert_allclose(found.detach().numpy(), tail(z.detach().numpy()), rtol=1e-9)


def test_classes_are_normalised_and_finite_far_out() -> None:
    from labels_likelihood import Categorical

    likelihood = Categorical(3, dspp.ModelConfig())
    latent = LatentMixture(torch.zeros(1), 1e4 * torch.randn(1, 50, 3), torch.ones(1, 50, 3))
    found = likelihood(latent)
    assert found.log_probabilities.isfinite().all()
    torch.testing.assert_close(found.log_probabilities.logsumexp(1), torch.zeros(50), rtol=0, atol=1e-5)
    wide = found.to(torch.float64).widen(1e8)
    torch.testing.assert_close(wide.log_probabilities.logsumexp(1), torch.zeros(50, dtype=torch.float64))


@pytest.mark.parametrize("preset", ["dspp", "ppgpr", "dgp", "svgp", "gamma-dgp"])
def test_classes_train_by_every_objective(preset: str) -> None:
    x, y = X[["a", "b"]].to_numpy(), pd.factorize(KINDS, sort=True)[0].astype(float)
    spec = replace(
        dspp.preset(preset, likelihood="categorical", inducing=12, width=2, sites=3, test_sites=4), outputs=3
    )
    config = dspp.TrainConfig(epochs=8, batch_size=60, restarts=1)
    result = dspp.fit(spec, dspp.Rows.of(x[:N], y[:N, None]), dspp.Rows.of(x[N:], y[N:, None]), config=config)
    probabilities = result.model.predictor()(x[N:]).probabilities
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(NEW), rtol=0, atol=1e-5)
    assert (probabilities.argmax(1).numpy() == y[N:]).mean() > 0.6
    assert min(epoch.val_nll for epoch in result.history) < 0.8 * math.log(3)


def test_the_elbo_of_classes_is_below_the_log_of_their_average() -> None:
    from labels_likelihood import Categorical

    latent = LatentMixture(torch.tensor([0.4, 0.6]).log(), torch.randn(2, 5, 3), torch.rand(2, 5, 3))
    likelihood, y = Categorical(3, dspp.ModelConfig()), torch.tensor([[0.0], [1.0], [2.0], [0.0], [1.0]])
    likelihood.sites.data = torch.special.ndtri((torch.arange(5) + 0.5) / 5)[:, None].expand(5, 3)
    values = {name: OBJECTIVES[name](likelihood, latent, y, torch.zeros(()), 5).item() for name in OBJECTIVES}
    assert values["elbo"] < values["predictive"] < 0


# ---------------------------------------------------------------- the command line

COMMANDS = """
import contextlib, io, json, sys
from dspp.cli import app
done = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app(words)
        except SystemExit as end:
            done.append([end.code, out.getvalue(), err.getvalue()])
print(json.dumps(done))
"""


@pytest.mark.parametrize("name", ["labels", "interval"])
def test_the_command_line_imports_it(name: str, tmp_path: Path) -> None:
    table = pd.concat([X, TARGETS[name]], axis=1).assign(weight=WEIGHTS)
    table[:N].to_csv(tmp_path / "train.csv", index=False)
    table[N:].to_csv(tmp_path / "test.csv", index=False)
    for file in SKETCHES.glob("*.py"):
        (tmp_path / file.name).write_text(file.read_text())
    targets = [word for column in pd.DataFrame(TARGETS[name]) for word in ("--target", column)]
    weight = ["--weight", "weight"] if name == "interval" else ["--drop", "weight"]
    imports = ["--import", f"{name}_outcome"]
    fit = ["fit", "train.csv", *targets, *weight, "--out", "m.dspp", "--outcome", name, "--report", "fit.html"]
    fit += ["--members", "1", "--inducing", "8", "--epochs", "3", "--restarts", "1", "--quiet"]
    weigh = weight if name == "interval" else []
    commands = [
        [*fit, *imports],
        ["evaluate", "m.dspp", "test.csv", "--json", *weigh, "--report", "test.html", *imports],
        ["predict", "m.dspp", "test.csv", "--out", "p.csv", *imports],
        ["info", "m.dspp", "--json", *imports],
    ]
    run = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(commands)], capture_output=True, text=True, cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    done = json.loads(run.stdout)
    assert [code for code, *_ in done] == [0] * 4, done
    assert math.isfinite(json.loads(done[1][1])["nll"])
    assert len((tmp_path / "p.csv").read_text().splitlines()) == NEW + 1
    assert json.loads(done[3][1])["targets"] == list(pd.DataFrame(TARGETS[name]))

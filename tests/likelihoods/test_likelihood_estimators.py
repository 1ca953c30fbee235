"""Likelihoods through the estimators: fit, save, load, predict; outliers; log y."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

import dspp
from dspp.errors import InputError
from dspp.likelihoods import LIKELIHOODS
from dspp.outcomes import choice
from dspp.predictive import LogNormalMixture, NormalMixture, StudentTMixture
from dspp.trees import fit_trees
from dspp.trees.ensemble import MAX_TREES

KINDS = {"gaussian": NormalMixture, "student-t": StudentTMixture, "log-normal": LogNormalMixture}
GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(240, 3))
LOG_Y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * GENERATOR.normal(size=240)
Y = 100 * np.exp(LOG_Y)
TINY = {"members": 1, "inducing": 10, "epochs": 12, "restarts": 1, "batch_size": 60, "progress": False}
MODELS = {"dspp": dspp.DSPPRegressor, "ppgpr": dspp.PPGPRRegressor, "bpdgp": dspp.BPDGPRegressor}


def arrays(distribution) -> list[np.ndarray]:
    y = torch.from_numpy(Y[:40])
    numbers = distribution.mean, distribution.std, distribution.log_prob(y), distribution.crps(y), distribution.cdf(y)
    return [n.numpy() for n in (*numbers, *distribution.interval(0.8))]


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("name", MODELS)
def test_fit_save_load_and_predict_the_same_bits(name: str, likelihood: str, tmp_path: Path) -> None:
    sizes = {} if name == "ppgpr" else {"width": 2, "sites": 4}
    model = MODELS[name](likelihood=likelihood, **sizes, **TINY).fit(X[:200], Y[:200])
    distribution = model.predict_dist(X[200:]).torch
    assert isinstance(distribution, KINDS[likelihood])
    assert all(np.isfinite(numbers).all() for numbers in arrays(distribution))
    model.save(tmp_path / "m.dspp")
    loaded = dspp.load(tmp_path / "m.dspp")
    assert (loaded.likelihood, loaded.fitted_.members[0].spec) == (likelihood, model.fitted_.members[0].spec)
    for before, after in zip(arrays(distribution), arrays(loaded.predict_dist(X[200:]).torch), strict=True):
        np.testing.assert_array_equal(before, after)
    again = MODELS[name](likelihood=likelihood, **sizes, **TINY).fit(X[:200], Y[:200])
    np.testing.assert_array_equal(again.predict(X[200:]), model.predict(X[200:]))
    scores = model.evaluate(X[200:], Y[200:])
    assert all(math.isfinite(value) for value in scores.values()), scores
    assert model.predict_quantiles(X[:5]).shape == (5, 3)
    assert model.sample(X[:5], 7).shape == (7, 5)


def test_conformal_intervals_of_any_likelihood() -> None:
    for likelihood in LIKELIHOODS:
        model = dspp.PPGPRRegressor(likelihood=likelihood, conformal=True, **TINY).fit(X, Y)
        lower, upper = model.predict_interval(X, 0.8).T
        assert bool((lower < upper).all())


def test_a_log_normal_fit_is_a_gaussian_fit_of_log_y_with_the_jacobian() -> None:
    settings = TINY | {"model_settings": {"dtype": "float64"}, "width": 2, "sites": 4}
    positive = dspp.DSPPRegressor(likelihood="log-normal", **settings).fit(X[:200], Y[:200])
    log_normal = positive.predict_dist(X[200:]).torch
    gaussian = dspp.DSPPRegressor(**settings).fit(X[:200], np.log(Y[:200])).predict_dist(X[200:]).torch
    y = torch.from_numpy(Y[200:])
    torch.testing.assert_close(log_normal.log_prob(y), gaussian.log_prob(y.log()) - y.log(), rtol=0, atol=1e-10)
    p = torch.tensor([0.01, 0.5, 0.9], dtype=torch.float64)
    assert torch.equal(log_normal.quantile(p), gaussian.quantile(p).exp())
    torch.testing.assert_close(log_normal.cdf(y), gaussian.cdf(y.log()), rtol=0, atol=0)


def test_a_target_that_is_not_positive_is_an_error_that_names_its_row() -> None:
    y = Y.copy()
    y[[17, 90]] = -2.0, 0.0
    with pytest.raises(InputError, match=r"y: column 'y', row 17: expected a positive number .*got -2"):
        dspp.PPGPRRegressor(likelihood="log-normal", **TINY).fit(X, y)
    with pytest.raises(InputError, match=r"y_val: column 'y', row 17: .*got -2"):
        dspp.PPGPRRegressor(likelihood="log-normal", **TINY).fit(X, Y, X, y)


@pytest.mark.parametrize("likelihood", ["student-t", "log-normal"])
def test_several_outputs_and_unknown_names_are_refused(likelihood: str) -> None:
    with pytest.raises(InputError, match=f"'{likelihood}' expected 1 output, got 2"):
        dspp.DSPPRegressor(likelihood=likelihood, **TINY).fit(X, np.stack([Y, Y], axis=1))
    with pytest.raises(
        InputError, match=r"unknown likelihood 'cauchy'; choose one of: gaussian, log-normal, student-t"
    ):
        dspp.DSPPRegressor(likelihood="cauchy", **TINY).fit(X, Y)


@pytest.mark.parametrize("name", ["dspp", "ppgpr"])
def test_student_t_is_better_where_there_are_outliers(name: str) -> None:
    """Noise whose variance is infinite, in training and in test rows."""
    random = np.random.default_rng(1)
    x = random.normal(size=(900, 2))
    y = np.sin(2 * x[:, 0]) + 0.1 * random.standard_t(1.5, 900)
    sizes = {"members": 1, "inducing": 30, "epochs": 40, "restarts": 1, "batch_size": 150, "progress": False}
    nll = {
        likelihood: MODELS[name](likelihood=likelihood, **sizes).fit(x[:600], y[:600]).score_nll(x[600:], y[600:])
        for likelihood in ("gaussian", "student-t")
    }
    assert nll["student-t"] < nll["gaussian"] - 0.3, nll


def test_a_short_time_budget_chooses_a_likelihood_with_few_trees(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def grow(*args, max_rounds: int, **options):
        asked.append(max_rounds)
        return fit_trees(*args, max_rounds=max_rounds, **options)

    monkeypatch.setattr(choice, "fit_trees", grow)
    for budget in (None, 1e6, 10.0, 1.0):
        assert choice.choose_outcome(X, Y, 0, time_budget=budget)[0] == "positive"
    assert asked == [MAX_TREES] * 12 + [80] * 6 + [choice.MIN_TREES] * 6

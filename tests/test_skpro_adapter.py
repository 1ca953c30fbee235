"""skpro's own conformance suite, and that the adapters say what dspp says."""

import subprocess
import sys
from functools import partial

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from dspp import Distribution, DSPPRegressor, InputError, PPGPRRegressor
from dspp.predictive import LogNormalMixture

pytest.importorskip("skpro", reason="run make test-integrations")

from skpro.metrics import CRPS, LogLoss
from skpro.regression.base import BaseProbaRegressor
from skpro.utils import check_estimator

from dspp.skpro import DSPPDistribution, DSPPProbaRegressor

QUICK = {"members": 1, "inducing": 6, "epochs": 3, "restarts": 1, "progress": False}
NORMAL, BOTH, LOG_NORMAL, STUDENT, SCALAR = (case["distribution"] for case in DSPPDistribution.get_test_params())
ONE_OUTPUT = pytest.mark.parametrize("inner", [NORMAL, LOG_NORMAL, STUDENT], ids=["normal", "log-normal", "student-t"])


def rows(count: int = 50) -> tuple[pd.DataFrame, pd.DataFrame]:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"size": rng.normal(50, 10, count), "town": rng.choice(["Ghent", "Namur"], count)})
    X.loc[3, "size"] = np.nan
    noise = rng.normal(size=count)
    y = pd.DataFrame({"price": X["size"].fillna(50.0) + noise, "rent": X["size"].fillna(50.0) - noise})
    labels = np.arange(count) * 7 + 3
    return X.set_axis(labels), y.set_axis(labels)


@pytest.mark.filterwarnings("ignore:.*'pdfnorm' method, it is filled in by approximating")  # by skpro, from samples
@pytest.mark.parametrize("adapter", [DSPPDistribution, DSPPProbaRegressor])
def test_skpro_s_conformance_suite_passes(adapter: type) -> None:
    results = check_estimator(adapter, raise_exceptions=False, verbose=False)
    assert len(results) > 50
    assert {name: found for name, found in results.items() if found != "PASSED"} == {}


# ---------------------------------------------------------------- the distribution


@ONE_OUTPUT
def test_every_method_says_what_dspp_says(inner: Distribution) -> None:
    wrapped, y = DSPPDistribution(inner), np.array([[0.3], [1.0], [0.6]])
    for found, expected in [
        (wrapped.mean(), inner.mean),
        (wrapped.var(), inner.std**2),
        (wrapped.log_pdf(y), inner.log_prob(y[:, 0])),
        (wrapped.pdf(y), np.exp(inner.log_prob(y[:, 0]))),
        (wrapped.cdf(y), inner.cdf(y[:, 0])),
        (wrapped.ppf(0.3), inner.quantile(0.3)),
    ]:
        assert found.shape == (3, 1)
        np.testing.assert_allclose(found.to_numpy()[:, 0], expected, rtol=1e-12)


@ONE_OUTPUT
def test_energy_is_exact(inner: Distribution) -> None:
    """skpro's CRPS is energy(y) − ½ energy(), and ours is in closed form."""
    wrapped, y = DSPPDistribution(inner), np.array([[0.3], [1.0], [0.6]])
    crps = wrapped.energy(y).to_numpy() - 0.5 * wrapped.energy().to_numpy()
    np.testing.assert_allclose(crps[:, 0], inner.crps(y[:, 0]), rtol=1e-6)
    draws = inner.sample(200_000, random_state=0)
    np.testing.assert_allclose(wrapped.energy(y).to_numpy()[:, 0], np.abs(draws - y[:, 0]).mean(0), rtol=0.05)
    np.testing.assert_allclose(wrapped.energy().to_numpy()[:, 0], np.abs(draws[::2] - draws[1::2]).mean(0), rtol=0.05)


@ONE_OUTPUT
def test_each_row_has_its_own_probability(inner: Distribution) -> None:
    many = Distribution(inner.torch.rows(torch.arange(90) % 3))  # more than a block
    p = np.random.default_rng(0).uniform(size=(90, 1))
    found = DSPPDistribution(many).ppf(p).to_numpy()[:, 0]
    np.testing.assert_allclose(many.cdf(found), p[:, 0], atol=1e-8)
    lowest = 0.0 if isinstance(inner.torch, LogNormalMixture) else -np.inf
    ends = DSPPDistribution(inner).ppf(np.array([[0.0], [1.0], [0.5]])).to_numpy()[:, 0]
    np.testing.assert_allclose(ends, [lowest, np.inf, inner.quantile(0.5)[2]], rtol=1e-10)


def test_samples_of_several_outputs_are_joint_and_follow_numpy_s_seed() -> None:
    wrapped = DSPPDistribution(BOTH, columns=["a", "b"])
    np.random.seed(0)  # noqa: NPY002 - which is what skpro documents
    draws = wrapped.sample(4000)
    assert draws.shape == (12_000, 2)
    covariance = BOTH.cov[0]
    np.testing.assert_allclose(np.cov(draws.xs(0, level=1).to_numpy().T), covariance, atol=0.15)
    assert abs(covariance[0, 1]) > 0.3, "or the test could not tell"
    np.random.seed(0)  # noqa: NPY002
    pd.testing.assert_frame_equal(wrapped.sample(4000), draws)


def test_rows_and_columns_are_selected_by_label() -> None:
    wrapped = DSPPDistribution(BOTH, index=["x", "y", "z"], columns=["a", "b"])
    part = wrapped.loc[["z", "x"], ["b", "a"]]
    assert part.index.tolist() == ["z", "x"]
    np.testing.assert_allclose(part.mean().to_numpy(), BOTH.mean[[2, 0]][:, [1, 0]])
    one = wrapped.loc["y", "b"]
    assert one.shape == ()
    assert one.mean() == pytest.approx(BOTH.mean[1, 1])
    assert one.cdf(one.ppf(0.2)) == pytest.approx(0.2)
    assert wrapped.iloc[:, 1].shape == (3, 1)
    assert wrapped.head(2).shape == (2, 2)
    with pytest.raises(KeyError, match="expected labels of this distribution, got others among"):
        wrapped.loc[["x", "w"]]
    with pytest.raises(KeyError, match="expected labels of this distribution"):
        wrapped.cdf(pd.DataFrame({"a": [0.1], "b": [0.2]}, index=["w"]))


def test_a_scalar_has_numbers() -> None:
    scalar = DSPPDistribution(SCALAR)
    assert scalar.shape == ()
    assert [type(value) for value in (scalar.mean(), scalar.pdf(0.5), scalar.sample(), scalar.energy())] == [float] * 4


def test_labels_must_fit() -> None:
    with pytest.raises(InputError, match="expected 3 labels of rows and 1 of columns, got 2 and 1"):
        DSPPDistribution(NORMAL, index=[0, 1])


def test_rows_of_different_models_are_selected_like_others() -> None:
    inner = BOTH.torch
    wrapped = DSPPDistribution(Distribution(type(inner).concat([inner.widen(2.0).rows([0]), inner.rows([1, 2])])))
    np.testing.assert_allclose(wrapped.iloc[:, [1, 0]].mean().to_numpy(), BOTH.mean[:, [1, 0]])


# ---------------------------------------------------------------- the regressor


def test_predictions_are_those_of_the_estimator() -> None:
    X, y = rows()
    model = DSPPProbaRegressor(PPGPRRegressor(**QUICK)).fit(X, y[["price"]])
    plain = PPGPRRegressor(**QUICK).fit(X, y["price"])
    assert isinstance(model, BaseProbaRegressor)
    np.testing.assert_allclose(model.predict(X)["price"], plain.predict(X), rtol=1e-12)
    np.testing.assert_allclose(model.predict_var(X)["price"], plain.predict(X, return_std=True)[1] ** 2, rtol=1e-12)
    pd.testing.assert_frame_equal(
        model.predict_interval(X, [0.5, 0.9]).set_axis(range(4), axis=1),
        pd.concat([plain.predict_interval(X, 0.5), plain.predict_interval(X, 0.9)], axis=1).set_axis(range(4), axis=1),
    )
    quantiles = model.predict_quantiles(X, [0.1, 0.7])
    assert quantiles.columns.tolist() == [("price", 0.1), ("price", 0.7)]
    np.testing.assert_array_equal(quantiles.to_numpy(), plain.predict_quantiles(X, [0.1, 0.7]).to_numpy())


def test_skpro_s_metrics_agree_with_ours() -> None:
    X, y = rows()
    model = DSPPProbaRegressor(PPGPRRegressor(**QUICK)).fit(X, y[["price"]])
    scores, found = model.estimator_.evaluate(X, y["price"]), model.predict_proba(X)
    assert CRPS()(y[["price"]], found) == pytest.approx(scores["crps"], rel=1e-9)
    assert LogLoss()(y[["price"]], found) == pytest.approx(scores["nll"], rel=1e-9)


def test_several_outputs_keep_their_names() -> None:
    X, y = rows()
    model = DSPPProbaRegressor(PPGPRRegressor(**QUICK)).fit(X, y)
    found = model.predict_proba(X[:4])
    assert found.columns.tolist() == ["price", "rent"]
    np.testing.assert_allclose(found.mean().to_numpy(), model.estimator_.predict(X[:4]), rtol=1e-12)
    interval = model.predict_interval(X[:4], [0.5, 0.9])
    np.testing.assert_array_equal(
        interval["rent"][0.9].to_numpy(), model.estimator_.predict_interval(X[:4], 0.9)[["rent_lower", "rent_upper"]]
    )


def test_recalibrated_intervals_stay_recalibrated() -> None:
    X, y = rows(120)
    model = DSPPProbaRegressor(PPGPRRegressor(**QUICK, conformal=True)).fit(X, y[["price"]])
    interval, quantiles = model.predict_interval(X, 0.5), model.predict_quantiles(X, [0.25, 0.75])
    np.testing.assert_array_equal(interval.to_numpy(), model.estimator_.predict_interval(X, 0.5).to_numpy())
    assert not np.allclose(interval.to_numpy(), quantiles.to_numpy())


@pytest.mark.parametrize("kind", ["numpy", "polars", "labels that are not text"])
def test_other_tables(kind: str) -> None:
    X, y = rows()
    X = X[["size"]].fillna(50.0).assign(other=1.0)
    if kind == "numpy":
        X, y = X.to_numpy(), y["price"].to_numpy()
    elif kind == "polars":
        X, y = pl.from_pandas(X), pl.from_pandas(y[["price"]])
    else:
        X, y = X.set_axis([0, "b"], axis=1), y[["price"]].set_axis([0], axis=1)
    model = DSPPProbaRegressor(PPGPRRegressor(**QUICK)).fit(X, y)
    assert model.predict_proba(X).shape == (50, 1)
    assert len(model.predict(X)) == 50


def test_parameters_of_the_estimator_can_be_searched() -> None:
    model = DSPPProbaRegressor(DSPPRegressor(epochs=1, inducing=4, members=2, jobs=1))
    assert set(model.get_params()) >= {"estimator", "estimator__beta", "estimator__members"}
    X, y = rows()
    model.set_params(estimator__inducing=5).fit(X, y[["price"]])
    assert len(model.estimator_.fitted_.members) == 2
    assert model.estimator_.inducing == 5


def test_without_an_estimator_it_is_the_default_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dspp.skpro.DSPPRegressor", partial(DSPPRegressor, **QUICK))
    X, y = rows()
    assert type(DSPPProbaRegressor().fit(X, y[["price"]]).estimator_) is DSPPRegressor


def test_without_skpro_one_line_names_the_extra() -> None:
    program = "import sys; sys.modules['skpro'] = None\nimport dspp.skpro"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "MissingExtraError: dspp.skpro needs skpro, which is not installed" in done.stderr.splitlines()[-1]
    assert done.stderr.endswith("run pip install 'dspp[skpro]'\n")

"""The distribution that `predict_dist` returns: arrays in and out, rows by index, one line when printed."""

import copy
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from torch import Tensor

import dspp
from dspp import Distribution, LogNormalMixture, MultivariateNormalMixture, NormalMixture, StudentTMixture, metrics
from dspp.calibration import Conformal, check_calibration
from dspp.errors import InputError

N, S, T = 6, 3, 2
GENERATOR = torch.Generator().manual_seed(0)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


LOG_WEIGHTS = torch.log_softmax(numbers(S), 0)
NORMAL = NormalMixture(LOG_WEIGHTS, numbers(S, N), numbers(S, N).exp(), torch.tensor(0.1, dtype=torch.float64))
ROOT = numbers(S, N, T, T)
KINDS = {
    "normal": NORMAL,
    "student-t": StudentTMixture(
        LOG_WEIGHTS, numbers(S, N), numbers(S, N).exp(), torch.tensor(4.0, dtype=torch.float64)
    ),
    "log-normal": LogNormalMixture(NORMAL),
    "several outputs": MultivariateNormalMixture(
        LOG_WEIGHTS, numbers(S, N, T), ROOT @ ROOT.mT, torch.ones(T, dtype=torch.float64)
    ),
}
ONE = [name for name in KINDS if name != "several outputs"]
Y = np.linspace(0.5, 2.0, N)


def same(mine: Any, inner: Tensor) -> None:
    assert type(mine) is np.ndarray
    np.testing.assert_array_equal(mine, inner.numpy(), strict=True)


# ---------------------------------------------------------------- arrays in and out


@pytest.mark.parametrize("kind", KINDS)
def test_the_median_and_the_density(kind: str) -> None:
    mine = Distribution(KINDS[kind])
    assert mine.median.shape == mine.mean.shape
    medians = mine.median.reshape(N, -1).T
    for one, median in zip(mine.outputs(), medians, strict=True):
        np.testing.assert_allclose(one.cdf(median), 0.5, rtol=1e-8)
    y = Y if kind in ONE else np.column_stack([Y, np.where(Y > 1, np.nan, -Y)])
    np.testing.assert_array_equal(np.log(mine.pdf(y)), np.log(np.exp(mine.log_prob(y))))
    if kind in ONE:
        step = 1e-5
        slope = (mine.cdf(Y + step) - mine.cdf(Y - step)) / (2 * step)
        np.testing.assert_allclose(mine.pdf(Y), slope, rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_fields_are_arrays(kind: str) -> None:
    inner = KINDS[kind]
    mine = Distribution(inner)
    assert mine.torch is inner
    for name in ("mean", "median", "std", "var", "weights", "log_weights", "component_mean", "component_var"):
        same(getattr(mine, name), getattr(inner, name))
    assert (mine.num_rows, mine.num_outputs, mine.num_components) == (N, inner.num_outputs, S)
    assert len(mine) == N
    before = inner.component_mean.clone()
    mine.component_mean[:] = 0.0  # the caller's own
    assert inner.component_mean.equal(before)


@pytest.mark.parametrize("kind", ONE)
def test_methods_take_and_return_arrays(kind: str) -> None:
    inner = KINDS[kind]
    mine = Distribution(inner)
    for name in ("log_prob", "cdf", "crps", "pit"):
        expected = getattr(inner, name)(torch.from_numpy(Y))
        for y in (Y, Y.tolist(), pd.Series(Y, index=range(5, 5 + N)), pl.Series(Y), torch.from_numpy(Y)):
            same(getattr(mine, name)(y), expected)
        same(getattr(mine, name)(1.5), getattr(inner, name)(torch.full((N,), 1.5, dtype=torch.float64)))
    many = np.stack([Y, 2 * Y])
    same(mine.cdf(many), inner.cdf(torch.from_numpy(many)))
    same(mine.quantile(0.5), inner.quantile(0.5))
    levels = [0.1, 0.5, 0.9]
    for p in (levels, np.array(levels), tuple(levels)):
        same(mine.quantile(p), inner.quantile(torch.tensor(levels, dtype=torch.float64)))
    ends = mine.interval(0.9)
    assert isinstance(ends, tuple)
    for end, expected in zip(ends, inner.interval(0.9), strict=True):
        same(end, expected)


def test_several_outputs() -> None:
    inner = KINDS["several outputs"]
    mine = Distribution(inner)
    y = np.column_stack([Y, Y])
    y[2, 1] = np.nan
    same(mine.log_prob(y), inner.log_prob(torch.from_numpy(y)))
    same(mine.crps(y), inner.crps(torch.from_numpy(y)))
    same(mine.cov, inner.cov)
    assert [type(one) for one in mine.outputs()] == [Distribution, Distribution]
    same(mine.marginal(1).quantile(0.3), inner.marginal(1).quantile(0.3))
    same(mine.select([1, 0]).mean, inner.mean[:, [1, 0]])
    with pytest.raises(AttributeError, match=r"has no 'cdf'; each of its outputs does: \.outputs\(\)\[0\]\.cdf"):
        mine.cdf(Y)
    with pytest.raises(AttributeError, match=r"^NormalMixture has no 'means'$"):
        _ = mine.marginal(0).means


def test_samples_are_reproducible_from_any_kind_of_seed() -> None:
    mine = Distribution(NORMAL)
    expected = NORMAL.sample(4, torch.Generator().manual_seed(7)).numpy()
    np.testing.assert_array_equal(mine.sample(4, random_state=7), expected, strict=True)
    np.testing.assert_array_equal(mine.sample(4, 7), expected)
    np.testing.assert_array_equal(mine.sample(4, torch.Generator().manual_seed(7)), expected)
    np.testing.assert_array_equal(mine.sample(num=4, generator=torch.Generator().manual_seed(7)), expected)
    for make in (np.random.default_rng, np.random.RandomState):
        np.testing.assert_array_equal(mine.sample(4, random_state=make(1)), mine.sample(4, random_state=make(1)))
    assert mine.sample(4).shape == (4, N)
    assert mine.entropy(50, random_state=0).shape == (N,)


def test_results_that_are_distributions_are_wrapped_too() -> None:
    mine = Distribution(NORMAL)
    same(mine.affine(1.0, 2.0).mean, NORMAL.affine(1.0, 2.0).mean)
    same(Distribution(KINDS["log-normal"]).log.mean, NORMAL.mean)
    other = Distribution(NORMAL.affine(5.0, 1.0))
    mixed = mine.mix([mine, other], [0.25, 0.75])
    same(mixed.mean, NORMAL.mix([NORMAL, other.torch], [0.25, 0.75]).mean)
    assert len(mine.concat([mine, mine])) == 2 * N
    assert isinstance(mine.to_torch(), torch.distributions.MixtureSameFamily)


def test_mistakes_are_the_inner_distribution_s() -> None:
    mine = Distribution(NORMAL)
    with pytest.raises(InputError, match=r"y: expected shape \(6,\)"):
        mine.log_prob(Y[:3])
    with pytest.raises(InputError, match="inside"):
        mine.quantile([0.5, 1.5])
    with pytest.raises(TypeError, match="level"):
        mine.interval(0.9, level=0.9)


# ---------------------------------------------------------------- rows


@pytest.mark.parametrize("kind", KINDS)
def test_rows_by_index(kind: str) -> None:
    inner = KINDS[kind]
    mine = Distribution(inner)
    mask = np.arange(N) % 2 == 0
    indices: list[tuple[Any, list[int]]] = [
        (0, [0]),
        (-1, [N - 1]),
        (np.int64(2), [2]),
        (slice(1, 4), [1, 2, 3]),
        (slice(None, None, -2), [5, 3, 1]),
        ([4, 1], [4, 1]),
        (np.array([4, 1]), [4, 1]),
        (mask, [0, 2, 4]),
        (mask.tolist(), [0, 2, 4]),
        (pd.Series(mask), [0, 2, 4]),
    ]
    for index, rows in indices:
        picked = mine[index]
        assert type(picked) is Distribution
        same(picked.component_mean, inner.component_mean[:, rows])
    assert [len(row) for row in mine] == [1] * N
    np.testing.assert_allclose(np.concatenate([row.mean for row in mine]), mine.mean, rtol=1e-14)
    for wrong in (N, -N - 1, [0, N], mask[:-1], "a"):
        with pytest.raises(IndexError, match="expected rows of 6"):
            mine[wrong]


# ---------------------------------------------------------------- in a session


def test_one_line_is_printed() -> None:
    mean = torch.tensor([[3.2, 5.0, 8.1]], dtype=torch.float64).expand(2, 3)
    weights = torch.full((2,), 0.5, dtype=torch.float64).log()
    mixture = NormalMixture(weights, mean, torch.ones_like(mean), torch.tensor(0.1, dtype=torch.float64))
    for shown in (mixture, Distribution(mixture)):
        assert repr(shown) == str(shown) == "NormalMixture(N=3, S=2, mean 3.2 to 8.1)"
    assert repr(mixture.rows([1])) == "NormalMixture(N=1, S=2, mean 5)"
    assert repr(mixture.rows([])) == "NormalMixture(N=0, S=2)"
    assert repr(KINDS["several outputs"]) == "MultivariateNormalMixture(N=6, T=2, S=3)"
    assert repr(KINDS["log-normal"]).startswith("LogNormalMixture(N=6, S=3, mean ")
    assert repr(KINDS["student-t"]).startswith("StudentTMixture(N=6, S=3, mean ")
    leaf = mean.clone().requires_grad_()
    assert "mean 3.2 to 8.1" in repr(NormalMixture(weights, leaf, torch.ones_like(mean), torch.tensor(0.1)))


def test_names_are_completed_and_documented() -> None:
    mine = Distribution(NORMAL)
    assert {"mean", "quantile", "plot_density", "torch"} <= set(dir(mine))
    assert mine.quantile.__doc__ == NORMAL.quantile.__doc__
    assert copy.copy(mine).torch is NORMAL
    assert not hasattr(mine, "_repr_png_")


# ---------------------------------------------------------------- where distributions are taken


def test_metrics_calibration_and_plots_take_it() -> None:
    mine = Distribution(NORMAL)
    assert metrics.evaluate(mine, Y) == pytest.approx(metrics.evaluate(NORMAL, Y), nan_ok=True)
    assert check_calibration(mine, Y).verdict() == check_calibration(NORMAL, Y).verdict()
    conformal = Conformal.fit(mine, Y)
    for ours, inner in zip(conformal.interval(mine, 0.5), conformal.interval(NORMAL, 0.5), strict=True):
        assert ours.equal(inner)
    from dspp import plots

    for ax in (mine.plot_density(2, y=1.0), plots.density(mine, 2), mine.plot_fan(Y), plots.fan(mine, Y)):
        assert ax.get_lines()
    assert mine.plot_pit(Y).patches
    assert mine.plot_reliability(Y).get_lines()


def test_predict_dist_returns_it() -> None:
    X = np.random.default_rng(0).normal(size=(40, 2))
    frame = pd.DataFrame(X, columns=["a", "b"])
    model = dspp.PPGPRRegressor(inducing=5, epochs=2, restarts=1, progress=False).fit(frame, X[:, 0])
    found = model.predict_dist(frame)
    assert isinstance(found, dspp.Distribution)
    assert isinstance(found.torch, NormalMixture)
    np.testing.assert_array_equal(found.mean, model.predict(frame), strict=True)
    np.testing.assert_array_equal(found.sample(3, random_state=0), model.sample(frame, 3), strict=True)
    np.testing.assert_array_equal(found[3].quantile(0.5), model.predict_quantiles(frame[3:4], [0.5])["y_q0.5"])

"""Log-normal: the Gaussian of log y, in y; its distribution against SciPy, integrals and samples."""

import itertools
import math

import numpy as np
import pytest
import reference as ref
import scoringrules
import torch
from reference import assert_close
from scipy import stats
from scipy.integrate import quad

from dspp.config import ModelConfig
from dspp.errors import InputError
from dspp.model import build
from dspp.outcomes import Positive, Real
from dspp.predictive import LogNormalMixture, NormalMixture
from dspp.table.messages import Place

F64, S, N = torch.float64, 3, 4


def mixture_of(spread: float = 0.7, rows: int = N) -> LogNormalMixture:
    weights = torch.log_softmax(ref.random_rows(0, S, 1)[:, 0], 0)
    var = 0.2 * ref.random_rows(2, S, rows).exp()
    noise = torch.tensor(0.05, dtype=F64)
    return LogNormalMixture(NormalMixture(weights, spread * ref.random_rows(1, S, rows), var, noise))


def frozen(mixture: LogNormalMixture, n: int):
    log = mixture.log
    return stats.lognorm(log.component_var[:, n].sqrt(), scale=log.component_mean[:, n].exp()), mixture.weights.numpy()


def test_density_cdf_quantiles_and_moments_are_scipys() -> None:
    mixture, y = mixture_of(), torch.tensor([0.01, 0.5, 1.0, 30.0], dtype=F64)
    p = torch.tensor([1e-9, 0.1, 0.5, 0.99], dtype=F64)
    for n in range(N):
        components, weights = frozen(mixture, n)
        assert mixture.log_prob(y)[n].item() == pytest.approx(math.log(weights @ components.pdf(y[n].item())), abs=1e-9)
        assert mixture.cdf(y)[n].item() == pytest.approx(weights @ components.cdf(y[n].item()), rel=1e-10)
        found = np.array([weights @ components.cdf(x) for x in mixture.quantile(p)[:, n].tolist()])
        np.testing.assert_allclose(found, p, rtol=1e-8)
        mean = weights @ components.mean()
        assert mixture.mean[n].item() == pytest.approx(mean, rel=1e-10)
        second = weights @ (components.var() + components.mean() ** 2)
        assert mixture.std[n].item() == pytest.approx(math.sqrt(second - mean**2), rel=1e-10)
    assert torch.equal(mixture.quantile(p), mixture.log.quantile(p).exp())
    assert_close(mixture.component_log_prob(y).exp().T @ mixture.weights, mixture.log_prob(y).exp(), 1e-12)


def test_density_integrates_to_one_and_samples_follow_it() -> None:
    mixture = mixture_of()
    row = mixture.rows([0])
    total = sum(
        quad(lambda x: row.log_prob(torch.tensor([x], dtype=F64)).exp().item(), a, b, limit=400)[0]
        for a, b in ((0, 0.5), (0.5, 3), (3, 50), (50, math.inf))
    )
    assert total == pytest.approx(1.0, abs=1e-8)
    draws = mixture.sample(200_000, torch.Generator().manual_seed(0))
    assert bool((draws > 0).all())
    assert bool(((draws.mean(0) - mixture.mean).abs() < 4 * mixture.std / math.sqrt(200_000)).all())
    assert stats.kstest(row.cdf(draws[:2000, :1]).flatten().numpy(), "uniform").pvalue > 1e-3
    assert_close(draws.std(0) / mixture.std, torch.ones(N, dtype=F64), 0.05)


def test_crps_is_the_closed_form_and_the_integral() -> None:
    mixture, y = mixture_of(), torch.tensor([0.3, 1.0, 4.0, 100.0], dtype=F64)
    one = LogNormalMixture(
        NormalMixture(torch.zeros(1, dtype=F64), mixture.log.component_mean[:1], mixture.log.component_var[:1] * 0.5,
                      torch.tensor(0.0, dtype=F64))
    )  # fmt: skip
    log_mean, log_std = one.log.component_mean[0].numpy(), one.log.component_var[0].sqrt().numpy()
    np.testing.assert_allclose(one.crps(y), scoringrules.crps_lognormal(y.numpy(), log_mean, log_std), rtol=1e-9)
    for n in range(N):
        components, weights = frozen(mixture, n)
        value = y[n].item()
        ends = sorted({0.0, value, 0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0, 1e3, 1e5})

        def gap(x: float, after: float, components=components, weights=weights) -> float:
            return (weights @ components.cdf(x) - after) ** 2

        total = sum(quad(gap, a, b, args=(float(a >= value),), epsabs=1e-11)[0] for a, b in itertools.pairwise(ends))
        assert mixture.crps(y)[n].item() == pytest.approx(total, abs=1e-7)


def test_targets_that_are_not_positive_have_no_density() -> None:
    mixture, y = mixture_of(), torch.tensor([0.0, -1.0, -1e9, 1.0], dtype=F64)
    assert mixture.log_prob(y)[:3].tolist() == [-math.inf] * 3
    assert mixture.cdf(y)[:3].tolist() == [0.0] * 3
    assert_close(mixture.crps(y)[:3], mixture.crps(torch.zeros(N, dtype=F64))[:3] - y[:3], 1e-6)


# ---------------------------------------------------------------- the outcome


def test_the_outcome_is_that_of_log_y() -> None:
    y = np.exp(np.random.default_rng(0).normal(3, 2, size=(50, 1)))
    positive = Positive(("price",), "log-normal").fit(y, Place("y"))
    plain = Real(("price",), "gaussian").fit(np.log(y), Place("y"))
    np.testing.assert_array_equal(positive.scale.mean, plain.scale.mean)
    np.testing.assert_array_equal(positive.scale.scale, plain.scale.scale)
    inner = mixture_of(rows=50).log.to(torch.float32)
    outer = positive.decode(inner)
    torch.testing.assert_close(outer.log.mean, plain.decode(inner).mean, rtol=0, atol=0)
    targets = torch.from_numpy(y[:, 0])
    assert_close(outer.log_prob(targets), plain.decode(inner).log_prob(targets.log()) - targets.log(), 1e-10)


@pytest.mark.parametrize("value", [0.0, -3.5, -math.inf])
def test_a_target_that_is_not_positive_is_named(value: float) -> None:
    y = np.ones((6, 1))
    y[2] = y[4] = value
    with pytest.raises(InputError, match=r"y: column 'price', row r2: expected a positive number .*got"):
        Positive(("price",), "log-normal").to_numbers(y, Place("y", label_of="r{}".format))


def test_several_outputs_are_refused() -> None:
    with pytest.raises(InputError, match="'log-normal' expected 1 output, got 2"):
        build(ModelConfig(likelihood="log-normal", inducing=8), ref.random_rows(0, 30, 3), 2)

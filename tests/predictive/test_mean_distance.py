"""E|Y − y| in closed form: it is its integral, its slope is 2F − 1, and the CRPS subtracts a constant from it."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from dspp.predictive import LogNormalMixture, NormalMixture, StudentTMixture

F64 = torch.float64
WEIGHTS = torch.tensor([0.2, 0.3, 0.5], dtype=F64).log()
MEAN = torch.tensor([[0.0, 1.0], [2.0, -1.0], [0.5, 0.3]], dtype=F64)
VAR = torch.tensor([[0.3, 1.0], [0.2, 0.4], [0.7, 0.1]], dtype=F64)


def normal() -> NormalMixture:
    return NormalMixture(WEIGHTS, MEAN, VAR, torch.tensor(0.05, dtype=F64))


def log_normal() -> LogNormalMixture:
    return LogNormalMixture(normal())


def student() -> StudentTMixture:
    return StudentTMixture(WEIGHTS, MEAN, VAR.sqrt(), torch.tensor(4.0, dtype=F64))


def of_two_models() -> NormalMixture:
    one = NormalMixture(WEIGHTS[:1] * 0.0, MEAN[:1], VAR[:1], torch.tensor(0.05, dtype=F64))
    return NormalMixture.concat([normal().rows([1]), one.rows([0])])


ALL = pytest.mark.parametrize("make", [normal, log_normal, student, of_two_models])


@ALL
@pytest.mark.parametrize("y", [-1.5, 0.0, 0.7, 4.0])
def test_it_is_the_integral(make, y: float) -> None:
    """E|Y − y| = ∫ F below y + ∫ (1 − F) above."""
    mixture = make()
    found = mixture.mean_distance(torch.full((2,), y, dtype=F64))
    for n in range(2):

        def cdf(x: float, row: int = n) -> float:
            return mixture.cdf(torch.full((2,), x, dtype=F64))[row].item()

        below = quad(cdf, -np.inf, y, limit=200)[0]
        above = quad(lambda x: 1.0 - cdf(x), y, np.inf, limit=200)[0]
        assert found[n].item() == pytest.approx(below + above, abs=1e-5)


@ALL
def test_its_slope_is_2_f_minus_1(make) -> None:
    mixture, y, h = make(), torch.tensor([0.4, 1.1], dtype=F64), 1e-5
    slope = (mixture.mean_distance(y + h) - mixture.mean_distance(y - h)) / (2 * h)
    torch.testing.assert_close(slope, 2 * mixture.cdf(y) - 1, rtol=0, atol=1e-8)


@ALL
def test_the_rest_of_the_crps_does_not_depend_on_y(make) -> None:
    mixture = make()
    half_spread = [mixture.mean_distance(y) - mixture.crps(y) for y in torch.tensor([[0.1, 0.2], [3.0, 2.0]])]
    torch.testing.assert_close(*half_spread, rtol=1e-6, atol=1e-6)

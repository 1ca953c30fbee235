"""What held-out rows teach: the weights solve their convex problem, and the variance scale is the missing one."""

import math

import numpy as np
import pytest
import torch
from scipy import optimize

from dspp.guard import Guard
from dspp.members import MEMBERS
from dspp.members.blend import (
    GUARD,
    GUARD_ROWS,
    PSEUDO_ROWS,
    VARIANCE_SCALES,
    HeldOutRows,
    discount,
    expectation_maximisation,
    stack,
    variance_scale_of,
)
from dspp.outcomes import Real
from dspp.predictive import NormalMixture
from dspp.presets import preset

F64 = torch.float64
REAL = Real(("y",), "gaussian")


def normal(mean: np.ndarray, var: float) -> NormalMixture:
    means = torch.from_numpy(mean)[None]
    return NormalMixture(torch.zeros(1, dtype=F64), means, torch.zeros_like(means), torch.tensor(var, dtype=F64))


def best_by_scipy(log_densities: np.ndarray, importance: np.ndarray) -> tuple[np.ndarray, float]:
    """Maximise Σ_n i_n log Σ_c w_c p_c(y_n) + Σ_c a_c log w_c over the simplex, the last weight between its bounds."""
    kinds = len(log_densities) - 1
    prior = np.append(np.full(kinds, PSEUDO_ROWS), GUARD_ROWS[0] * GUARD_ROWS[1])

    def loss(w: np.ndarray) -> float:
        with np.errstate(divide="ignore"):
            logs = np.logaddexp.reduce(np.log(w)[:, None] + log_densities, axis=0)
        return -float(importance @ logs + prior @ np.log(w))

    start = np.append(np.full(kinds, 0.98 / kinds), 0.02)
    found = optimize.minimize(
        loss,
        start,
        method="SLSQP",
        bounds=[(1e-9, 1.0)] * kinds + [GUARD],
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1.0},
        options={"ftol": 1e-14, "maxiter": 1_000},
    )
    assert found.success, found.message
    return found.x, -found.fun


@pytest.mark.parametrize("kinds", [1, 2, 3])
@pytest.mark.parametrize("surprising", [0, 3, 40])  # rows that only the guard expects: too few, some, too many for it
def test_weights_are_those_that_scipy_finds(kinds: int, surprising: int) -> None:
    rng = np.random.default_rng(kinds)
    log_densities = rng.normal(size=(kinds + 1, 150)) * np.linspace(0.5, 1.5, kinds + 1)[:, None]
    log_densities[-1] -= 2.0
    log_densities[:-1, :surprising] -= 25.0
    importance = rng.uniform(0.5, 1.5, 150)
    weights, value = expectation_maximisation(log_densities, importance)
    expected, best = best_by_scipy(log_densities, importance)
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert GUARD[0] <= weights[-1] <= GUARD[1]
    assert value == pytest.approx(best, abs=1e-4)
    np.testing.assert_allclose(weights, expected, atol=2e-3)


@pytest.mark.parametrize("factor", [1.0, 4.0, 0.5])
def test_the_variance_scale_found_is_the_one_that_is_missing(factor: float) -> None:
    rng = np.random.default_rng(1)
    mean = rng.normal(size=4_000)
    y = mean + 0.3 * rng.normal(size=4_000)
    group = HeldOutRows(np.arange(4_000), y[:, None], {"plain": [normal(mean, 0.09 / factor)]})
    mixing = stack([group], Guard.fit(y[:, None], 0.01), REAL)
    nearest = VARIANCE_SCALES[np.abs(np.log(VARIANCE_SCALES / factor)).argmin()]
    assert abs(math.log(mixing.variance_scale / nearest)) < 0.1
    assert mixing.weights == {"plain": 1.0}


def test_few_rows_change_little_and_rows_without_weight_nothing() -> None:
    rng = np.random.default_rng(2)
    mean, y = np.zeros(30), rng.normal(size=30)
    y[20:] = 50.0
    importance = np.repeat([1.0, 0.0], [20, 10])
    one, other = (
        stack(
            [HeldOutRows(np.arange(n), y[:n, None], {"plain": [normal(mean[:n], 1.0)]})],
            Guard.fit(y[:20, None], 0.01),
            REAL,
            importance[:n],
        )
        for n in (20, 30)
    )
    assert abs(math.log(one.variance_scale)) < 0.5
    assert one.variance_scale == other.variance_scale


def test_a_kind_that_never_helps_is_dropped() -> None:
    rng = np.random.default_rng(3)
    mean = rng.normal(size=2_000)
    y = mean + 0.1 * rng.normal(size=2_000)
    good, bad = normal(mean, 0.01), normal(-mean, 0.01)
    group = HeldOutRows(np.arange(2_000), y[:, None], {"plain": [good, good], "trees": [bad]})
    mixing = stack([group], Guard.fit(y[:, None], 0.01), REAL)
    assert mixing.weights == {"plain": 1.0}
    assert mixing.guard_weight == GUARD[0]


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0])
def test_what_is_missing_falls_with_the_number_of_members(scale: float) -> None:
    assert variance_scale_of(scale, 2, 2) == variance_scale_of(scale, None, 8) == pytest.approx(scale)
    found = [variance_scale_of(scale, 2, members) for members in (2, 4, 8)]
    if scale <= 1.0:
        assert found == [scale] * 3
    else:
        assert [value - 1.0 for value in found] == pytest.approx([2.0, 1.0, 0.5])


def test_no_variance_scale_takes_the_noise_below_its_floor() -> None:
    """Latent variance that is too large is narrowed, but members that are as certain as the floor allows are not."""
    rng = np.random.default_rng(3)
    y = 0.02 * rng.normal(size=(300, 1))
    guard, zeros = Guard.fit(rng.normal(size=(300, 1)), 0.01), torch.zeros(1, 300, dtype=F64)

    def learn(latent: float, noise: float, floor: float) -> float:
        member = NormalMixture(torch.zeros(1, dtype=F64), zeros, zeros + latent, torch.tensor(noise, dtype=F64))
        return stack([HeldOutRows(np.arange(300), y, {"plain": [member]}, floor=floor)], guard, REAL).variance_scale

    assert learn(0.0, 0.0016, 0.0) == pytest.approx(0.25, rel=0.2)
    assert learn(0.0, 0.0016, 0.0016) == pytest.approx(1.0), "nothing can be gained"
    assert learn(0.0012, 0.0002, 0.0002) < 0.3, "of the latent variance"


def test_widening_keeps_the_floor_and_what_was_below_it() -> None:
    noise = torch.tensor([1e-5, 1e-4, 4e-4], dtype=F64)
    mixture = NormalMixture(torch.zeros(1, dtype=F64), torch.zeros(1, 3, dtype=F64), torch.ones(1, 3, dtype=F64), noise)
    narrow, wide = mixture.widen(0.5, 1e-4), mixture.widen(2.0, 1e-4)
    torch.testing.assert_close(narrow.noise_var, torch.tensor([[1e-5, 1e-4, 2e-4]], dtype=F64))
    torch.testing.assert_close(wide.noise_var, 2.0 * noise[None])
    assert (narrow.latent_var == 0.5).all()


def test_members_that_read_trees_describe_what_these_get_wrong() -> None:
    plain, own = preset("dspp"), preset("dspp", top_mean="linear")
    assert MEMBERS["trees"].spec_from(plain, 5).model.top_mean == "last-input"
    assert MEMBERS["plain"].spec_from(plain, 5) == plain
    assert MEMBERS["trees"].spec_from(own, 5) == own  # a mean that the user chose


def test_a_discount_leaves_the_proportions_of_other_kinds() -> None:
    assert discount({"plain": 0.3, "trees": 0.3, "gp": 0.4}) == pytest.approx(
        {"plain": 0.375, "trees": 0.375, "gp": 0.25}
    )
    assert discount({"gp": 1.0}) == {"gp": 1.0}
    assert discount({"plain": 0.3, "trees": 0.7}) == pytest.approx({"plain": 0.3, "trees": 0.7})

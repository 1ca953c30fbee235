"""The warp of skewed inputs: its formula, what it leaves alone, and that every path to a model has the same one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

import dspp
from dspp import DSPPRegressor
from dspp.codec import pack, unpack
from dspp.encoding.scaling import Standardizer
from dspp.encoding.warping import MAX_ROWS, MIN_VALUES, POWERS, Warp, spaced, yeo_johnson

RNG = np.random.default_rng(0)
SKEWED = np.exp(RNG.normal(size=3_000))  # skewness far above 1
SYMMETRIC = RNG.normal(size=3_000)


def standardised(*columns: np.ndarray) -> np.ndarray:
    X = np.column_stack(columns)
    return Standardizer.fit(X).transform(X)


@given(st.floats(*POWERS), st.floats(-50, 50))
def test_the_power_is_that_of_yeo_and_johnson(power: float, z: float) -> None:
    expected = stats.yeojohnson(np.array([z]), lmbda=power)
    np.testing.assert_allclose(yeo_johnson(np.array([z]), power), expected, rtol=1e-9, atol=1e-12)


def test_special_powers() -> None:
    z = np.array([-2.0, 0.0, 3.0])
    np.testing.assert_allclose(yeo_johnson(z, 1.0), z, rtol=1e-15)
    np.testing.assert_allclose(yeo_johnson(z, 0.0)[2], np.log(4.0), rtol=1e-15)
    np.testing.assert_allclose(yeo_johnson(z, 2.0)[0], -np.log(3.0), rtol=1e-15)


@given(st.floats(*POWERS))
def test_order_is_kept(power: float) -> None:
    assert (np.diff(yeo_johnson(np.linspace(-30, 30, 500), power)) > 0).all()


def test_powers_maximise_the_likelihood_as_in_scipy() -> None:
    Z = standardised(SKEWED)
    warp = Warp.fit(Z)
    assert warp is not None
    low, middle, high = np.quantile(Z[:, 0], (0.25, 0.5, 0.75), method="inverted_cdf")
    np.testing.assert_allclose(warp.power[0], stats.yeojohnson_normmax((Z[:, 0] - middle) / (high - low)), atol=1e-3)


def test_a_warped_column_is_standardised_and_hardly_skewed() -> None:
    Z = standardised(SKEWED, -SKEWED)
    warp = Warp.fit(Z)
    assert warp is not None
    W = warp.transform(Z)
    np.testing.assert_allclose(W.mean(0), 0.0, atol=1e-9)
    np.testing.assert_allclose(W.std(0), 1.0, rtol=1e-9)
    assert (np.abs(stats.skew(W)) < 0.3).all()
    np.testing.assert_allclose(W[:, 0], -W[:, 1], atol=1e-3)  # a mirrored column is warped alike


def test_other_columns_are_left_as_they_are() -> None:
    few = np.where(RNG.random(3_000) < 0.01, 1.0, 0.0)  # skewed, but a flag
    many = SKEWED.round(0).clip(0, MIN_VALUES - 2)
    zeros = np.where(RNG.random(3_000) < 0.4, 0.0, SKEWED)
    middle = np.where(RNG.random(3_000) < 0.6, np.median(SKEWED), SKEWED)
    Z = standardised(SYMMETRIC, few, many, zeros, middle, SKEWED, SKEWED)
    warp = Warp.fit(Z, leave=[6])
    assert warp is not None
    assert (warp.power != 1.0).tolist() == [False] * 5 + [True, False]
    W = warp.transform(Z)
    np.testing.assert_array_equal(np.delete(W, 5, axis=1), np.delete(Z, 5, axis=1))
    assert Warp.fit(Z[:, :5]) is None


@given(
    arrays(np.float64, st.integers(1, 60), elements=st.one_of(st.floats(-1e6, 1e6), st.sampled_from([0.0, 1.0, 1e6]))),
    st.integers(0, 2**31),
)
def test_any_column_stays_finite(column: np.ndarray, seed: int) -> None:
    Z = standardised(np.random.default_rng(seed).choice(column, 100))
    warp = Warp.fit(Z)
    if warp is not None:
        W = warp.transform(Z)
        assert np.isfinite(W).all()
        assert np.abs(W).max() <= np.abs(Z).max() * (1 + 1e-9)  # no value ends farther out than it was


def test_weights_count_as_repeated_rows() -> None:
    weights = RNG.integers(1, 4, 500)
    Z = standardised(SKEWED[:500])
    once, often = Warp.fit(Z, weights.astype(float)), Warp.fit(np.repeat(Z, weights, axis=0))
    assert once is not None
    assert often is not None
    for name in vars(once):
        np.testing.assert_allclose(getattr(once, name), getattr(often, name), rtol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 2, MAX_ROWS, MAX_ROWS + 1, 1_234_567])
def test_spaced_rows(count: int) -> None:
    rows = spaced(count)
    assert len(rows) == min(count, MAX_ROWS)
    assert len(np.unique(rows)) == len(rows)
    assert count == 0 or (rows[0], rows[-1]) == (0, count - 1)


def numbers_of(scale: Standardizer) -> dict[str, list[float]]:
    return {name: numbers.tolist() for name, numbers in pack(scale)[0].items()}


def test_a_file_keeps_every_bit() -> None:
    scale = Standardizer.fit(np.column_stack([SKEWED, SYMMETRIC]))
    scale = replace(scale, warp=Warp.fit(scale.transform(np.column_stack([SKEWED, SYMMETRIC]))))
    again = unpack(Standardizer, *pack(scale))
    assert numbers_of(again) == numbers_of(scale)
    assert unpack(Standardizer, *pack(replace(scale, warp=None))).warp is None


# ---------------------------------------------------------------- in models


@pytest.fixture(scope="module")
def table() -> tuple[np.ndarray, np.ndarray]:
    X = np.column_stack([SKEWED, SYMMETRIC])[:400]
    return X, np.log(X[:, 0]) + 0.1 * RNG.normal(size=400)


@pytest.fixture(scope="module")
def fitted(table: tuple[np.ndarray, np.ndarray]) -> DSPPRegressor:
    return DSPPRegressor(members=2, epochs=2, inducing=8, jobs=1, progress=False).fit(*table)


def test_an_ensemble_warps_and_a_single_model_does_not(
    table: tuple[np.ndarray, np.ndarray], fitted: DSPPRegressor
) -> None:
    warp = fitted.fitted_.scale_X.warp
    assert warp is not None
    assert (warp.power != 1.0).tolist() == [True, False]
    single = DSPPRegressor(members=1, epochs=2, inducing=8, restarts=1, progress=False).fit(*table)
    assert single.fitted_.scale_X.warp is None


def test_a_model_file_keeps_the_warp(
    tmp_path: Path, table: tuple[np.ndarray, np.ndarray], fitted: DSPPRegressor
) -> None:
    fitted.save(tmp_path / "m.dspp")
    again = dspp.load(tmp_path / "m.dspp")
    assert numbers_of(again.fitted_.scale_X) == numbers_of(fitted.fitted_.scale_X)
    np.testing.assert_array_equal(again.predict(table[0]), fitted.predict(table[0]))


@pytest.mark.parametrize(
    "change",
    [
        {"power": torch.tensor([7.0, 1.0], dtype=torch.float64)},
        {"scale": torch.tensor([0.0, 1.0], dtype=torch.float64)},
        {"unit": torch.tensor([-1.0, 1.0], dtype=torch.float64)},
    ],
)
def test_a_file_with_a_damaged_warp_does_not_load(fitted: DSPPRegressor, change: dict[str, torch.Tensor]) -> None:
    tensors, plain = pack(fitted.fitted_.scale_X)
    with pytest.raises(dspp.InputError, match="warp"):
        unpack(Standardizer, tensors | {f"warp.{name}": value for name, value in change.items()}, plain)

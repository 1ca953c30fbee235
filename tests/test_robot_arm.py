"""The simulated arm does what its documentation says, and scores on it agree with the truth that is known."""

import importlib

import numpy as np
import pytest
import torch
from motion import RobotArmMotion, jacobian, robot_arm_motion
from scipy import stats

from dspp import metrics
from dspp.errors import InputError
from dspp.predictive import MultivariateNormalMixture, NormalMixture
from dspp.simulation import (
    JOINT_RANGE,
    LINK_LENGTH,
    LINK_OFFSET,
    LINK_TWIST,
    RANGE_FINDER,
    RobotArm,
    end_effector,
)


@pytest.fixture(scope="module")
def arm() -> RobotArm:
    return RobotArm()


@pytest.fixture(scope="module")
def motion() -> RobotArmMotion:
    return robot_arm_motion()


# ---------------------------------------------------------------- kinematics


def slow_end_effector(angles: np.ndarray, twists: np.ndarray = LINK_TWIST) -> np.ndarray:
    """One row, and one 4 x 4 matrix for each movement of a joint: turn about z, move, bend about x."""
    total = np.eye(4)
    for theta, a, d, twist in zip(angles, LINK_LENGTH, LINK_OFFSET, twists, strict=True):
        turn, move, bend = np.eye(4), np.eye(4), np.eye(4)
        turn[:2, :2] = [[np.cos(theta), -np.sin(theta)], [np.sin(theta), np.cos(theta)]]
        move[:3, 3] = [a, 0.0, d]
        bend[1:3, 1:3] = [[np.cos(twist), -np.sin(twist)], [np.sin(twist), np.cos(twist)]]
        total = total @ turn @ move @ bend
    return total[:3, 3]


def test_forward_kinematics_agree_with_a_loop(arm: RobotArm, motion: RobotArmMotion) -> None:
    for n in range(50):
        position = slow_end_effector(arm.X[n])
        np.testing.assert_allclose(end_effector(arm.X[n : n + 1])[0], position, atol=1e-14)
        np.testing.assert_allclose(arm.clean[n], np.sqrt(np.sum((position - RANGE_FINDER) ** 2)), rtol=1e-13)
        np.testing.assert_allclose(motion.clean[n, :3], slow_end_effector(motion.X[n, :8]), rtol=1e-12, atol=1e-14)


def test_forward_kinematics_hold_for_any_twist(arm: RobotArm, monkeypatch: pytest.MonkeyPatch) -> None:
    twists = np.linspace(-1.0, 2.0, 8)  # those of the arm have a cosine of 0
    monkeypatch.setattr(importlib.import_module("dspp.simulation"), "LINK_TWIST", twists)
    for n in range(10):
        expected = slow_end_effector(arm.X[n], twists)
        np.testing.assert_allclose(end_effector(arm.X[n : n + 1])[0], expected, atol=1e-14)


def test_every_joint_moves_the_distance(arm: RobotArm) -> None:
    away = end_effector(arm.X) - RANGE_FINDER
    slope = np.einsum("njc,nc->nj", jacobian(arm.X), away) / arm.clean[:, None]
    effect = np.sqrt(np.square(slope * JOINT_RANGE).mean(0) / 3) / arm.clean.std()
    assert effect.min() > 0.05
    assert effect.max() < 0.7


def test_the_velocity_is_the_derivative_of_the_position(motion: RobotArmMotion) -> None:
    angles, speeds, step = motion.X[:500, :8], motion.X[:500, 8:], 1e-5
    ahead, behind = end_effector(angles + step * speeds), end_effector(angles - step * speeds)
    np.testing.assert_allclose(motion.clean[:500, 3:], (ahead - behind) / (2 * step), atol=1e-9)
    assert motion.clean[:, 3:].std(0).min() > 0.5  # 1e-9 would be no agreement if nothing moved


def test_angles_fill_their_range(arm: RobotArm, motion: RobotArmMotion) -> None:
    for X, half_width in ((arm.X, JOINT_RANGE), (motion.X, np.concatenate([JOINT_RANGE, np.ones(8)]))):
        for column, half in zip(X.T, half_width, strict=True):
            assert stats.kstest(column, stats.uniform(-half, 2 * half).cdf).pvalue > 1e-3
        correlation = np.corrcoef(X.T) - np.eye(X.shape[1])
        assert np.abs(correlation).max() < 0.05  # 5 standard errors


# ---------------------------------------------------------------- noise of the distance


def documented_noise(angles: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """w, s and δ from the formulas in the docstring of `RobotArm`."""
    late = 1 / (1 + np.exp(-(-0.8 + 1.5 * np.sin(2 * angles[:, 1]) + angles[:, 4])))
    spread = 0.02 * np.exp(0.7 * np.sin(1.5 * angles[:, 3]))
    return late, spread, 0.1 * (1 + 0.5 * np.cos(2 * angles[:, 0]))


def error_mean(arm: RobotArm) -> np.ndarray:
    """E[error] = w δ."""
    late, _, offset = documented_noise(arm.X)
    return late * offset


def error_var(arm: RobotArm) -> np.ndarray:
    """Var[error] = (1 - w) s² + w (1.5 s)² + w (1 - w) δ²."""
    late, spread, offset = documented_noise(arm.X)
    return (1 - late) * spread**2 + late * (1.5 * spread) ** 2 + late * (1 - late) * offset**2


def error_grid(arm: RobotArm, num: int = 4001) -> tuple[np.ndarray, np.ndarray]:
    """Errors from 12 standard deviations below to 12 above, and the step between them, for each row."""
    low, high = -12 * arm.late_std, arm.offset + 12 * arm.late_std
    return np.linspace(low, high, num), (high - low) / (num - 1)


def test_the_density_is_the_documented_mixture(arm: RobotArm) -> None:
    late, spread, offset = documented_noise(arm.X)
    error = arm.y - arm.clean
    density = (1 - late) * stats.norm.pdf(error, 0, spread) + late * stats.norm.pdf(error, offset, 1.5 * spread)
    np.testing.assert_allclose(arm.log_density(), np.log(density), rtol=1e-10, atol=1e-10)


def test_the_density_integrates_to_one_and_has_the_stated_moments() -> None:
    arm = RobotArm(20, seed=1)
    error, step = error_grid(arm)
    density = np.exp(arm.log_density(arm.clean + error))
    np.testing.assert_allclose(density.sum(0) * step, 1.0, atol=1e-10)
    mean = (density * error).sum(0) * step
    np.testing.assert_allclose(error_mean(arm), mean, rtol=1e-8)
    np.testing.assert_allclose(error_var(arm), (density * (error - mean) ** 2).sum(0) * step, rtol=1e-8)


def test_the_nll_of_the_sample_is_the_entropy() -> None:
    arm = RobotArm(2000, seed=2)
    error, step = error_grid(arm, num=801)
    log_density = arm.log_density(arm.clean + error)
    entropy = -(np.exp(log_density) * log_density).sum(0) * step
    surprise = -arm.log_density() - entropy  # zero on average, row by row
    assert abs(surprise.mean()) < 3 * surprise.std() / np.sqrt(2000)
    assert surprise.std() < 1.5
    assert arm.nll() == pytest.approx(entropy.mean(), abs=0.05)


def test_the_sample_follows_the_documented_distribution(arm: RobotArm) -> None:
    late, spread, offset = documented_noise(arm.X)
    error = arm.y - arm.clean
    pit = (1 - late) * stats.norm.cdf(error, 0, spread) + late * stats.norm.cdf(error, offset, 1.5 * spread)
    assert stats.kstest(pit, "uniform").pvalue > 0.01
    for column in arm.X.T:  # calibrated not only on average but wherever the arm is
        assert abs(np.corrcoef(column, pit)[0, 1]) < 0.04
        assert abs(np.corrcoef(column, (pit - 0.5) ** 2)[0, 1]) < 0.04


def test_the_noise_matters_and_is_not_normal(arm: RobotArm) -> None:
    share = np.sqrt(error_var(arm).mean()) / arm.clean.std()
    assert 0.10 < share < 0.15
    best_normal = -stats.norm.logpdf(arm.y - arm.clean, error_mean(arm), np.sqrt(error_var(arm))).mean()
    assert best_normal - arm.nll() > 0.3
    assert arm.clean.min() > 0.1  # the distance has a kink at zero


def test_the_nll_of_some_rows(arm: RobotArm) -> None:
    log_density = arm.log_density()
    assert arm.nll() == pytest.approx(-log_density.mean(), rel=1e-12)
    assert arm.nll(np.array([3, 5])) == pytest.approx(-(log_density[3] + log_density[5]) / 2, rel=1e-12)
    assert arm.nll(slice(10)) == pytest.approx(-log_density[:10].mean(), rel=1e-12)
    assert arm.nll(arm.y > 1) == pytest.approx(-log_density[arm.y > 1].mean(), rel=1e-12)


# ---------------------------------------------------------------- noise of the motion


def test_the_noise_of_the_motion_has_the_stated_covariance(motion: RobotArmMotion) -> None:
    std = [0.04, 0.04, 0.04, 0.06, 0.06, 0.06]
    stated = [[std[i] * std[j] * 0.6 ** abs(i - j) for j in range(6)] for i in range(6)]
    np.testing.assert_allclose(motion.noise_cov, stated, rtol=1e-13)
    error = motion.y - motion.clean
    np.testing.assert_allclose(np.cov(error.T) / np.outer(std, std), stated / np.outer(std, std), atol=0.05)
    np.testing.assert_allclose(error.mean(0) / std, 0.0, atol=0.04)


def test_the_density_of_the_motion_is_the_normal_one(motion: RobotArmMotion) -> None:
    truth = stats.multivariate_normal(cov=motion.noise_cov)
    np.testing.assert_allclose(motion.log_density(), truth.logpdf(motion.y - motion.clean), rtol=1e-9)
    elsewhere = motion.y + np.array([[[0.1]], [[-0.2]]])  # a grid of two
    np.testing.assert_allclose(motion.log_density(elsewhere), truth.logpdf(elsewhere - motion.clean), rtol=1e-9)
    assert abs(motion.nll() - truth.entropy()) < 3 * np.sqrt(3 / len(motion.y))  # Var[½ χ²₆] = 3
    assert motion.nll(slice(7)) == pytest.approx(-motion.log_density()[:7].mean(), rel=1e-12)


# ---------------------------------------------------------------- reproducible


@pytest.mark.parametrize("simulate", [RobotArm, robot_arm_motion])
def test_the_seed_decides_and_the_number_of_rows_does_not(simulate: type) -> None:
    long, short, other = simulate(200, seed=5), simulate(50, seed=5), simulate(50, seed=6)
    for name in ("X", "y", "clean"):
        assert getattr(long, name)[:50].tobytes() == getattr(short, name).tobytes()
        assert not np.any(getattr(other, name) == getattr(short, name))


def test_the_data_set_stays_what_it_is(arm: RobotArm, motion: RobotArmMotion) -> None:
    assert arm.X.shape == (10_000, 8)
    assert motion.X.shape == (10_000, 16)
    assert motion.y.shape == (10_000, 6)
    np.testing.assert_allclose(arm.y[:3], [1.0480192896673672, 1.7651659987407018, 1.7770517935971666], rtol=1e-9)
    position, velocity = motion.y[0, :3], motion.y[0, 3:]
    np.testing.assert_allclose(position, [0.2329037312522065, 1.0581486471039616, 1.5562987206339816], rtol=1e-9)
    np.testing.assert_allclose(velocity, [0.7129462788663176, 0.023874034566261623, -0.05577511355717367], rtol=1e-9)


@pytest.mark.parametrize("simulate", [RobotArm, robot_arm_motion])
def test_impossible_requests_are_refused(simulate: type) -> None:
    with pytest.raises(InputError, match="num_rows: expected at least 1, got 0"):
        simulate(0)
    with pytest.raises(InputError, match="seed: expected integers"):
        simulate(10, seed=-1)


# ---------------------------------------------------------------- scores where the truth is known


def normal_prediction(arm: RobotArm, dtype: torch.dtype = torch.float64) -> NormalMixture:
    """The weight is shared by two equal components: the Normal with the true mean and variance."""
    mean = torch.tensor(arm.clean + error_mean(arm), dtype=dtype).expand(2, -1)
    var = torch.tensor(error_var(arm), dtype=dtype)
    return NormalMixture(torch.tensor([0.3, 0.7], dtype=dtype).log(), mean, 0 * mean, var)


def motion_prediction(motion: RobotArmMotion) -> MultivariateNormalMixture:
    mean = torch.tensor(motion.clean)[None]
    latent = torch.tensor(motion.noise_cov) - 1e-4 * torch.eye(6, dtype=torch.float64)
    cov = latent.expand(1, len(motion.y), 6, 6)
    return MultivariateNormalMixture(torch.zeros(1, dtype=torch.float64), mean, cov, torch.full((6,), 1e-4).double())


def test_scores_of_one_output(arm: RobotArm) -> None:
    mean, std = arm.clean + error_mean(arm), np.sqrt(error_var(arm))
    error = (arm.y - mean) / std
    expected = {
        "nll": -stats.norm.logpdf(arm.y, mean, std).mean(),
        "rmse": np.sqrt(np.mean((arm.y - mean) ** 2)),
        "crps": np.mean(std * (error * (2 * stats.norm.cdf(error) - 1) + 2 * stats.norm.pdf(error) - np.pi**-0.5)),
        "coverage90": np.mean(np.abs(error) <= stats.norm.ppf(0.95)),
    }
    assert metrics.evaluate(normal_prediction(arm), arm.y) == pytest.approx(expected, rel=1e-9)
    single = normal_prediction(arm, torch.float32)
    assert metrics.evaluate(single, torch.tensor(arm.y)) == metrics.evaluate(single.to(torch.float64), arm.y)
    assert metrics.mrmse(normal_prediction(arm), arm.y) == pytest.approx(expected["rmse"], rel=1e-9)
    np.testing.assert_allclose(metrics.pit(normal_prediction(arm), arm.y), stats.norm.cdf(error), atol=1e-12)


def test_scores_of_several_outputs(motion: RobotArmMotion) -> None:
    mixture, error = motion_prediction(motion), motion.y - motion.clean
    scores = metrics.evaluate(mixture, motion.y)
    std = np.sqrt(np.diag(motion.noise_cov))
    assert scores["nll"] == pytest.approx(motion.nll() / 6, rel=1e-9)
    assert metrics.nll(mixture, motion.y) == pytest.approx(motion.nll(), rel=1e-9)
    assert scores["rmse"] == pytest.approx(np.sqrt(np.mean(error**2)), rel=1e-9)
    assert scores["mrmse"] == pytest.approx(np.mean(np.sqrt(np.mean(error**2, axis=0))), rel=1e-9)
    assert scores["rmse"] > 1.01 * scores["mrmse"]
    assert scores["crps"] == pytest.approx(mixture.crps(torch.tensor(motion.y)).mean().item(), rel=1e-9)
    assert scores["coverage90"] == pytest.approx(np.mean(np.abs(error / std) <= stats.norm.ppf(0.95)), rel=1e-9)
    np.testing.assert_allclose(metrics.pit(mixture, motion.y), stats.norm.cdf(error / std), atol=1e-10)


def test_coverage_is_that_of_the_interval(arm: RobotArm) -> None:
    mixture, y = normal_prediction(arm).rows(slice(500)), arm.y[:500]
    for level in (0.3, 0.5, 0.99):
        low, high = (bound.numpy() for bound in mixture.interval(level))
        assert metrics.coverage(mixture, y, level) == np.mean((low <= y) & (y <= high))


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 90.0, float("nan")])
def test_an_impossible_level_is_refused(arm: RobotArm, level: float) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        metrics.coverage(normal_prediction(arm), arm.y, level)


@pytest.mark.parametrize("score", [metrics.nll, metrics.rmse, metrics.crps, metrics.pit, metrics.evaluate])
def test_targets_of_another_shape_are_refused(arm: RobotArm, score: type) -> None:
    mixture = normal_prediction(arm)
    with pytest.raises(InputError, match=r"expected shape \(10000,\)"):
        score(mixture, arm.y[:, None])
    with pytest.raises(InputError, match="expected 10000 rows"):
        score(mixture, arm.y[:-1])

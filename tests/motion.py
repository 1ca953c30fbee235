"""The simulated arm in motion: T = 6 outputs with correlated noise whose true density is known, to test models on."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from dspp.simulation import JOINT_RANGE, NUM_JOINTS, Rows, end_effector, generators, joint_frames

JOINT_SPEED = 1.0  # joint velocities are uniform in ± this, radians a second


@dataclass(frozen=True, eq=False)
class RobotArmMotion:
    """Joint angles and velocities, and the measured position and velocity of the end effector: T = 6 outputs.

    Attributes:
        X: The 8 joint angles, then the 8 joint velocities.
        y: The measured position (3, metres), then velocity (3, metres a second).
        clean: The same without noise.
        noise_cov: The covariance Σᵢⱼ = σᵢ σⱼ 0.6^|i - j| of the Normal noise, the same in every row; σ is
            4 cm for positions and 6 cm/s for velocities.
    """

    X: Float[np.ndarray, "N 16"]
    y: Float[np.ndarray, "N 6"]
    clean: Float[np.ndarray, "N 6"]
    noise_cov: Float[np.ndarray, "6 6"]

    def log_density(self, y: Float[np.ndarray, "*G N 6"] | None = None) -> Float[np.ndarray, "*G N"]:
        """Return the true joint log p(y | x) of each row, at the measured y unless another is given."""
        error = (self.y if y is None else y) - self.clean
        mahalanobis = ((error @ np.linalg.inv(self.noise_cov)) * error).sum(-1)  # eᵀ Σ⁻¹ e
        log_det = np.linalg.slogdet(2 * np.pi * self.noise_cov)[1]
        return np.asarray(-0.5 * (mahalanobis + log_det))

    def nll(self, rows: Rows = None) -> float:
        """Return the joint NLL (not divided by T) of the truth on these rows, all by default."""
        return -float(self.log_density()[slice(None) if rows is None else rows].mean())


def robot_arm_motion(num_rows: int = 10_000, seed: int = 0) -> RobotArmMotion:
    """Simulate the multi-output data. The first rows do not depend on how many follow."""
    angles_rng, speeds_rng, noise_rng = generators(num_rows, seed, stream=1)
    angles = angles_rng.uniform(-JOINT_RANGE, JOINT_RANGE, (num_rows, NUM_JOINTS))
    speeds = speeds_rng.uniform(-JOINT_SPEED, JOINT_SPEED, (num_rows, NUM_JOINTS))
    velocity = np.einsum("njc,nj->nc", jacobian(angles), speeds)
    clean = np.hstack([end_effector(angles), velocity])
    mixing = _motion_noise_mixing()
    error = noise_rng.standard_normal(clean.shape) @ mixing.T
    return RobotArmMotion(np.hstack([angles, speeds]), clean + error, clean, mixing @ mixing.T)


def _motion_noise_mixing() -> Float[np.ndarray, "6 6"]:
    """Return C such that C ε, with ε standard Normal, has covariance Σᵢⱼ = σᵢ σⱼ 0.6^|i - j|.

    This is the chain eᵢ/σᵢ = 0.6 eᵢ₋₁/σᵢ₋₁ + 0.8 εᵢ, written as a matrix; 0.6² + 0.8² = 1.
    """
    std = np.array([0.04] * 3 + [0.06] * 3)  # metres, then metres a second
    steps = np.subtract.outer(np.arange(6), np.arange(6))
    mixing = np.tril(0.6**steps) * np.array([1.0] + [0.8] * 5)
    return np.asarray(std[:, None] * mixing)


def jacobian(angles: Float[np.ndarray, "N 8"]) -> Float[np.ndarray, "N 8 3"]:
    """Return ∂(end effector)/∂θᵢ = zᵢ × (end effector - origin of joint i), zᵢ the axis of joint i."""
    origins, axes = joint_frames(angles)
    return np.cross(axes, origins[:, -1:] - origins[:, :-1])

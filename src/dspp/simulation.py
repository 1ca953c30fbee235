"""Simulated data whose true density is known: a robot arm of 8 revolute joints, and imperfect instruments.

The best NLL that any model can reach is known, so that a model can be compared with it.

The arm follows the Denavit–Hartenberg convention: joint i turns by θᵢ about z, then its link moves dᵢ along z
and aᵢ along x, and twists by αᵢ about x:

    Tᵢ = Rot_z(θᵢ) · Trans_z(dᵢ) · Trans_x(aᵢ) · Rot_x(αᵢ),     end effector = T₁ T₂ … T₈ (0, 0, 0, 1)ᵀ
"""

from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.special import expit, log_expit

from dspp.batches import derive_seed
from dspp.errors import InputError

NUM_JOINTS: Final = 8
LINK_LENGTH: Final = np.array([0.1, 0.5, 0.1, 0.4, 0.1, 0.3, 0.1, 0.2])  # aᵢ, metres
LINK_OFFSET: Final = np.array([0.4, 0.0, 0.1, 0.0, 0.1, 0.0, 0.1, 0.0])  # dᵢ, metres
LINK_TWIST: Final = np.array([1, -1, 1, -1, 1, -1, 1, 0]) * np.pi / 2  # αᵢ: each axis is normal to the next
# Joint i is uniform in ±JOINT_RANGE[i]. At ±π/2 an exact GP on 6,000 rows missed by more than the noise.
JOINT_RANGE: Final = np.array([np.pi / 3] * 4 + [np.pi / 4] * 4)
RANGE_FINDER: Final = np.array([0.5, -0.6, 1.0])  # the fixed point that the distance is measured from

Rows = Int[np.ndarray, " n"] | Bool[np.ndarray, " N"] | slice | None


class RobotArm:
    """Joint angles, and the measured distance of the end effector from `RANGE_FINDER`.

    The first rows do not depend on `num_rows`.

    The range finder hears the arm itself, or a late echo that makes it seem farther away: given the joint angles θ of a
    row, its error is (1 - w) N(0, s²) + w N(δ, (1.5 s)²) with

        w = sigmoid(-0.8 + 1.5 sin(2 θ₂) + θ₅)     the probability of the late echo
        s = 0.02 exp(0.7 sin(1.5 θ₄))              the standard deviation of the direct echo
        δ = 0.1 (1 + 0.5 cos(2 θ₁))                how much farther the late echo seems

    Attributes:
        X: The 8 joint angles of each row, radians.
        y: The measured distance, metres.
        clean: The distance without error.
        late_logit: log(w / (1 - w)).
        offset: δ.
        direct_std: s.
        late_std: 1.5 s.
    """

    def __init__(self, num_rows: int = 10_000, seed: int = 0) -> None:
        angles_rng, echo_rng, spread_rng = generators(num_rows, seed, stream=0)
        self.X = angles_rng.uniform(-JOINT_RANGE, JOINT_RANGE, (num_rows, NUM_JOINTS))
        self.clean = np.linalg.norm(end_effector(self.X) - RANGE_FINDER, axis=1)
        self.late_logit = -0.8 + 1.5 * np.sin(2 * self.X[:, 1]) + self.X[:, 4]
        self.offset = 0.1 * (1 + 0.5 * np.cos(2 * self.X[:, 0]))
        self.direct_std = 0.02 * np.exp(0.7 * np.sin(1.5 * self.X[:, 3]))
        self.late_std = 1.5 * self.direct_std
        is_late = echo_rng.random(num_rows) < expit(self.late_logit)
        normal = spread_rng.standard_normal(num_rows)
        self.y = self.clean + np.where(is_late, self.offset + self.late_std * normal, self.direct_std * normal)

    def log_density(self, y: Float[np.ndarray, "*G N"] | None = None) -> Float[np.ndarray, "*G N"]:
        """Return the true log p(y | x) of each row, at the measured y or at others, which may be a grid."""
        error = (self.y if y is None else y) - self.clean
        direct = log_expit(-self.late_logit) + _normal_log_density(error, self.direct_std)
        late = log_expit(self.late_logit) + _normal_log_density(error - self.offset, self.late_std)
        return np.asarray(np.logaddexp(direct, late))

    def nll(self, rows: Rows = None) -> float:
        """Return the NLL of the true density on these rows (all by default), a lower bound for models.

        It is in the units of y; for targets divided by `scale` subtract log(scale).
        """
        return -float(self.log_density()[slice(None) if rows is None else rows].mean())


def end_effector(angles: Float[np.ndarray, "N 8"]) -> Float[np.ndarray, "N 3"]:
    """Return the position of the end effector, in the frame of the base."""
    return joint_frames(angles)[0][:, -1]


def joint_frames(
    angles: Float[np.ndarray, "N 8"],
) -> tuple[Float[np.ndarray, "N 9 3"], Float[np.ndarray, "N 8 3"]]:
    """Return the origins of the 8 joints and of the end effector, and the axes the joints turn about."""
    rotation = np.broadcast_to(np.eye(3), (len(angles), 3, 3))
    origins, axes = [np.zeros((len(angles), 3))], []
    for joint in range(NUM_JOINTS):
        axes.append(rotation[:, :, 2])
        turn, shift = _link(joint, angles[:, joint])
        origins.append(origins[-1] + np.einsum("nij,nj->ni", rotation, shift))
        rotation = rotation @ turn
    return np.stack(origins, 1), np.stack(axes, 1)


def _link(joint: int, angle: Float[np.ndarray, " N"]) -> tuple[Float[np.ndarray, "N 3 3"], Float[np.ndarray, "N 3"]]:
    """Return the rotation and the translation of Tᵢ, multiplied out."""
    a, d, twist = LINK_LENGTH[joint], LINK_OFFSET[joint], LINK_TWIST[joint]
    cos, sin, zero, one = np.cos(angle), np.sin(angle), np.zeros_like(angle), np.ones_like(angle)
    ct, st = np.cos(twist), np.sin(twist)
    turn = np.array([[cos, -sin * ct, sin * st], [sin, cos * ct, -cos * st], [zero, st * one, ct * one]])
    return np.moveaxis(turn, -1, 0), np.stack([a * cos, a * sin, d * one], 1)


def generators(num_rows: int, seed: int, stream: int) -> list[np.random.Generator]:
    """Return three generators, one per kind of number, so that rows do not depend on `num_rows`."""
    if num_rows < 1:
        raise InputError(f"num_rows: expected at least 1, got {num_rows}; try 10_000")
    return [np.random.default_rng(derive_seed(seed, stream, part)) for part in range(3)]


def _normal_log_density(error: Float[np.ndarray, "*G N"], std: Float[np.ndarray, " N"]) -> Float[np.ndarray, "*G N"]:
    return np.asarray(-0.5 * np.square(error / std) - np.log(std) - 0.5 * np.log(2 * np.pi))

"""Warping of skewed inputs, so that equal distances mean as much at either end of a column.

The kernels of a GP have one length scale per input: a function that changes fast where a column is crowded and slowly
along its tail (ages, prices, counts) needs inputs on another scale, such as the logarithmic one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from jaxtyping import Float

from dspp.codec import POSITIVE, Range

SKEWED = 1.0  # smallest absolute skewness of a column that is warped
MIN_VALUES = 10  # distinct ones of such a column
POWERS = -2.0, 4.0  # smallest and largest power; 1 changes nothing, 0 is a logarithm on the right
MAX_ROWS = 10_000  # that the powers are learned from
UNCHANGED = 0.0, 1.0, 1.0, 0.0, 1.0  # centre, unit, power, mean and scale of a column that is not warped


@dataclass(frozen=True, eq=False)
class Warp:
    """The map z ↦ (ψ((z − centre) / unit, λ) − mean) / scale of standardised columns.

    ψ is the power transformation of Yeo & Johnson (2000), which increases with z whatever λ:

        ψ(z, λ) = ((1 + z)^λ − 1) / λ for z ≥ 0,   ψ(z, λ) = −ψ(−z, 2 − λ) for z < 0

    It bends where z is about 1, so the unit must not depend on the tail. Columns with λ = 1 are left as they are.
    """

    centre: Float[np.ndarray, " D"]  # the median of each column
    unit: Annotated[Float[np.ndarray, " D"], POSITIVE]  # the distance between its quartiles
    power: Annotated[Float[np.ndarray, " D"], Range(*POWERS)]  # λ
    mean: Float[np.ndarray, " D"]  # after the power
    scale: Annotated[Float[np.ndarray, " D"], POSITIVE]  # the standard deviation of the same

    @classmethod
    def fit(
        cls,
        Z: Float[np.ndarray, "N D"],  # standardised training rows, of which at most `MAX_ROWS` are used
        weights: Float[np.ndarray, " N"] | None = None,
        leave: Sequence[int] = (),  # the numbers of columns to leave as they are
    ) -> Self | None:
        """Learn the powers of skewed columns, those that make them most like a Normal; None if there are none."""
        rows = spaced(len(Z))
        w = np.full(len(rows), 1.0) if weights is None else weights[rows]
        columns = [_fit_column(Z[rows, d], w) if d not in leave else UNCHANGED for d in range(Z.shape[1])]
        return None if all(column is UNCHANGED for column in columns) else cls(*np.array(columns).T.copy())

    def transform(self, Z: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
        """Return standardised rows with their skewed columns warped."""
        out = np.array(Z, dtype=np.float64)
        for d in np.flatnonzero(self.power != 1.0):
            z = (out[:, d] - self.centre[d]) / self.unit[d]
            out[:, d] = (yeo_johnson(z, self.power[d]) - self.mean[d]) / self.scale[d]
        return out


def yeo_johnson(z: Float[np.ndarray, " N"], power: float) -> Float[np.ndarray, " N"]:
    """Return ψ(z, λ); see `Warp`."""
    log, p = np.log1p(np.abs(z)), np.where(z >= 0.0, power, 2.0 - power)
    zero = np.abs(p) < 1e-12  # where the quotient has no digits
    size = np.where(zero, log, np.expm1(p * log) / np.where(zero, 1.0, p))
    return np.asarray(np.copysign(size, z))


def spaced(num_rows: int) -> np.ndarray:
    """Return the numbers of at most `MAX_ROWS` rows, evenly spaced."""
    return np.unique(np.linspace(0, max(num_rows - 1, 0), min(num_rows, MAX_ROWS)).round().astype(np.int64))


def _fit_column(z: Float[np.ndarray, " N"], weights: Float[np.ndarray, " N"]) -> tuple[float, ...]:
    """Return centre, unit, power, mean and scale of one column."""
    from scipy.optimize import minimize_scalar  # imported here, as prediction does not need it

    if not _is_skewed(z, weights):
        return UNCHANGED
    order = np.argsort(z)
    below = np.cumsum(weights[order])
    low, centre, high = z[order][np.searchsorted(below, np.array([0.25, 0.5, 0.75]) * below[-1])]
    if low == high or low == z.min() or high == z.max():
        return UNCHANGED  # many rows have the same value, and no power changes that
    scaled = (z - centre) / (high - low)
    power = minimize_scalar(_surprise, bounds=POWERS, args=(scaled, weights), method="bounded").x
    warped = yeo_johnson(scaled, power)
    mean = np.average(warped, weights=weights)
    scale = np.sqrt(np.average(np.square(warped - mean), weights=weights))
    if np.abs(warped - mean).max() > scale * np.abs(z).max():
        return UNCHANGED  # what draws in one tail would throw the ends of the other farther out
    return centre, high - low, power, mean, scale


def _is_skewed(z: Float[np.ndarray, " N"], weights: Float[np.ndarray, " N"]) -> bool:
    if len(np.unique(z)) < MIN_VALUES:
        return False
    deviation = z - np.average(z, weights=weights)
    second, third = (np.average(deviation**k, weights=weights) for k in (2, 3))
    return bool(abs(third) >= SKEWED * second**1.5)


def _surprise(power: float, z: Float[np.ndarray, " N"], weights: Float[np.ndarray, " N"]) -> float:
    """Return the NLL per row of a Normal fitted to ψ(z, λ), up to a constant: ½ log var − E log dψ/dz."""
    warped = yeo_johnson(z, power)
    variance = np.average(np.square(warped - np.average(warped, weights=weights)), weights=weights)
    return float(0.5 * np.log(variance) - (power - 1.0) * np.average(np.sign(z) * np.log1p(np.abs(z)), weights=weights))

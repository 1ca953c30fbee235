"""Standardisation of columns to zero mean and unit variance, with a warp of skewed inputs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import numpy as np
from jaxtyping import Float

from dspp.codec import POSITIVE
from dspp.encoding.warping import Warp
from dspp.table.messages import Place

# Of a target: the square of a larger one overflows float64.
MAX_SCALE = 1e150
# In widths of the range of the training rows: nearer to it, rows count as inside, and farther nothing changes any more.
NEAR, FAR = 1e-3, 10.0
# A column whose spread is below this share of its magnitude varies by rounding only.
ROUNDING = 16 * np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False)
class Standardizer:
    """The map x ↦ (x - mean) / scale, followed by a warp if there is one.

    The scale of a constant column is 1, so that it becomes a column of zeros.
    """

    mean: Float[np.ndarray, "*D"]  # of each column, or of a 1-D array
    scale: Annotated[Float[np.ndarray, "*D"], POSITIVE]  # the standard deviation (divisor N) of the same
    warp: Warp | None = None  # of skewed inputs

    @classmethod
    def fit(cls, array: Float[np.ndarray, " N *D"], weights: Float[np.ndarray, " N"] | None = None) -> Self:
        """Compute the statistics of these rows, which may have positive weights.

        Pass training rows only: others would leak into the model.
        """
        magnitude = np.abs(array).max(axis=0)
        unit = np.ldexp(1.0, np.frexp(magnitude)[1] - 1)  # a power of two: exact, and 1e200² does not overflow
        scaled = array / unit
        mean = _average(scaled, weights)
        mean = mean + _average(scaled - mean, weights)  # corrects the rounding of the first beside an offset of 1e8
        std = np.sqrt(_average(np.square(scaled - mean), weights))
        std = std * unit
        return cls(np.asarray(mean * unit), np.asarray(np.where(std <= ROUNDING * magnitude, 1.0, std)))

    def transform(self, array: Float[np.ndarray, " N *D"]) -> Float[np.ndarray, " N *D"]:
        """Return the array in standardised units."""
        scaled = np.asarray((array - self.mean) / self.scale)
        return scaled if self.warp is None else self.warp.transform(scaled)


def standardise(
    rows: Float[np.ndarray, "N ..."],
    scale: Standardizer,  # of the training rows
    dtype: str,  # of the model
    names: Sequence[str] | None,  # of the columns, for errors, as the next one
    place: Place,
) -> Float[np.ndarray, "N ..."]:
    """Return inputs (N, D), or targets (N,) or (N, T), NaN where not observed, in standardised units.

    Raises:
        InputError: A value exceeds a thousandth of the number whose square overflows the dtype.
    """
    farthest = math.sqrt(np.finfo(dtype).max) / 1000
    with np.errstate(over="ignore"):  # overflow is reported below
        scaled: Float[np.ndarray, "N ..."] = scale.transform(rows)
    far = np.argwhere(np.abs(scaled) > farthest)
    if len(far):
        at = tuple(far[0].tolist())
        d = at[1] if len(at) > 1 else 0
        warped = "" if scale.warp is None or scale.warp.power[d] == 1.0 else " on the model's own scale"
        raise place.of(str(d) if names is None else names[d]).error(
            f"expected a value within {farthest:.2g} standard deviations of the training mean, got {rows[at]:g}, which "
            f"is {abs(scaled[at]):.2g} away{warped}; if it stands for a missing value, clear it",
            at[0],
        )
    return scaled


def share_unknown(Z: Float[np.ndarray, "N D"], ends: Float[np.ndarray, "2 D"]) -> Float[np.ndarray, " N"]:
    """Return h, how little the training rows say about each row: 0 inside of their range, 1 far outside.

    h = 1 − exp(−Σ_d e_d⁴), where e_d is how many widths of the range the row lies outside of it in column d: 0.0001 a
    tenth of the width outside, 0.06 half of it, 0.63 the whole width.

    `ends` are the smallest and the largest value of each column in the training rows, standardised as Z is.
    """
    low, high = ends
    width = high - low
    near = NEAR * width
    if not len(Z) or ((Z.min(axis=0) >= low - near) & (Z.max(axis=0) <= high + near)).all():
        return np.zeros(len(Z))
    varies = width > 0.0  # a constant column has no scale for how far is far
    out = np.maximum(np.maximum(low - Z, Z - high), 0.0)[:, varies] / width[varies]
    out = np.where(out > NEAR, np.minimum(out, FAR), 0.0)
    return np.asarray(-np.expm1(-(out**4).sum(axis=1)))


def _average(array: Float[np.ndarray, " N *D"], weights: Float[np.ndarray, " N"] | None) -> Float[np.ndarray, "*D"]:
    return np.asarray(array.mean(axis=0) if weights is None else np.average(array, axis=0, weights=weights))

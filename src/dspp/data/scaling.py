"""Scaling to zero mean and unit spread, column by column."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from jaxtyping import Float

# A column whose spread is below this share of its magnitude differs by rounding only.
ROUNDING = 16 * np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False)
class Standardizer:
    """The map x ↦ (x - mean) / scale and its inverse.

    A constant column has no spread to divide by; its scale is 1, so it becomes a column of zeros.

    Attributes:
        mean: The mean of each column, or of the one column of a 1-D array.
        scale: The standard deviation (divisor N) of the same.
    """

    mean: Float[np.ndarray, "*D"]
    scale: Float[np.ndarray, "*D"]

    @classmethod
    def fit(cls, array: Float[np.ndarray, " N *D"]) -> Self:
        """Take the statistics of these rows. Give training rows only: others would leak into the model."""
        magnitude = np.abs(array).max(axis=0)
        unit = np.ldexp(1.0, np.frexp(magnitude)[1] - 1)  # a power of two: no rounding, and 1e200² is no inf
        scaled = array / unit
        mean = scaled.mean(axis=0)
        mean = mean + (scaled - mean).mean(axis=0)  # what the first pass lost beside an offset of 1e8
        std = np.sqrt(np.square(scaled - mean).mean(axis=0))
        constant = std * unit <= ROUNDING * magnitude
        return cls(np.asarray(mean * unit), np.asarray(np.where(constant, 1.0, std * unit)))

    def transform(self, array: Float[np.ndarray, " N *D"]) -> Float[np.ndarray, " N *D"]:
        """Return the array in standardised units."""
        return np.asarray((array - self.mean) / self.scale)

    def inverse(self, array: Float[np.ndarray, " N *D"]) -> Float[np.ndarray, " N *D"]:
        """Return a standardised array in the units it came from."""
        return np.asarray(array * self.scale + self.mean)

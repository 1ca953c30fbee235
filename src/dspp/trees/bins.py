"""Columns cut into at most 255 bins, which is how boosted trees see them.

scikit-learn would cut them too, but at values of the rows themselves, where rounding x to float32 can change the side,
and with weights it takes minutes. Here cuts lie between values and do not depend on weights.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, UInt8

BINS = 255
MAX_ROWS = 200_000  # rows from which cuts are chosen


@dataclass(frozen=True, eq=False)
class Binned:
    """The number of each row's bin per column, and the cuts between bins: a bin is the number of cuts below x."""

    codes: UInt8[np.ndarray, "N D"]
    cuts: list[Float[np.ndarray, " _"]]

    def select(self, rows: Bool[np.ndarray, " N"]) -> "Binned":
        """Return some of the rows, with the same cuts."""
        return Binned(self.codes[rows], self.cuts)


def bin_columns(X: Float[np.ndarray, "N D"], weights: Float[np.ndarray, " N"], seed: int) -> Binned:
    """Return the rows in bins that hold about as many rows each, or one value each if there are few values.

    Rows of weight 0 have no influence on the cuts.
    """
    rows = np.flatnonzero(weights)
    if len(rows) > MAX_ROWS:
        rows = np.random.default_rng(seed).choice(rows, MAX_ROWS, replace=False)
    cuts = [choose_cuts(X[rows, d]) for d in range(X.shape[1])]
    codes = np.empty(X.shape, np.uint8)
    for d, column in enumerate(cuts):
        codes[:, d] = np.searchsorted(column, X[:, d])
    return Binned(codes, cuts)


def choose_cuts(x: Float[np.ndarray, " N"]) -> Float[np.ndarray, " _"]:
    """Return at most 254 numbers that lie halfway between neighbouring values of x."""
    values, counts = np.unique(x, return_counts=True)
    below = np.arange(len(values) - 1)  # the values below a cut
    if len(values) > BINS:
        targets = np.arange(1, BINS) / BINS * len(x)
        below = np.unique(np.searchsorted(np.cumsum(counts)[:-1], targets).clip(max=len(values) - 2))
    middle = 0.5 * values[below] + 0.5 * values[below + 1]
    return np.unique(np.where(middle < values[below + 1], middle, values[below]))  # the smallest numbers round up

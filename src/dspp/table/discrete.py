"""Whether a column of numbers has few distinct values, so that a density says little about it."""

from typing import Final

import numpy as np
from jaxtyping import Float

MAX_DISTINCT: Final = 100  # values of a discrete column
MAX_SHARE: Final = 0.05  # of distinct values among its rows, unless there are
FEW_DISTINCT: Final = 20  # or fewer, each in three rows on average or in a column of at least
MIN_ROWS: Final = 50


def is_discrete(y: Float[np.ndarray, " N *T"]) -> bool:
    """Return whether a column, or one of several, has few distinct values; NaN means "not observed"."""
    return any(distinct_values(column) is not None for column in np.reshape(y, (len(y), -1)).T)


def distinct_values(column: Float[np.ndarray, " N"]) -> Float[np.ndarray, " K"] | None:
    """Return the distinct values of a column in ascending order, or None if they are not few."""
    observed = column[~np.isnan(column)]
    values, rows = np.unique(observed), len(observed)
    if not 0 < len(values) <= MAX_DISTINCT:
        return None
    few = len(values) <= FEW_DISTINCT and (rows >= MIN_ROWS or 3 * len(values) <= rows)
    return values if few or len(values) < MAX_SHARE * rows else None


def cell_ends(column: Float[np.ndarray, " N"], values: Float[np.ndarray, " K"]) -> Float[np.ndarray, "2 N"]:
    """Return the ends of the cell of each value, half-way to its neighbours; the outer cells are symmetric."""
    if len(values) == 1:
        return np.stack([column, column])
    gaps = 0.5 * np.diff(values)
    below, above = np.append(gaps[:1], gaps), np.append(gaps, gaps[-1:])
    at = np.searchsorted(values, column).clip(max=len(values) - 1)  # NaN comes last
    return np.stack([column - below[at], column + above[at]])

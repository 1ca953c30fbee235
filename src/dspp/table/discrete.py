"""Whether a column of numbers has few distinct values, so that a density says little about it."""

from typing import Final

import numpy as np
from jaxtyping import Float

MOST_DISTINCT: Final = 100  # values of a discrete column
LARGEST_SHARE: Final = 0.05  # of distinct values among its rows, unless there are
FEW_DISTINCT: Final = 20  # or fewer, each in three rows on average or in a column of at least
FEWEST_ROWS: Final = 50


def is_discrete(y: Float[np.ndarray, " N *T"]) -> bool:
    """Return whether a column, or one of several, has few distinct values; NaN means "not observed"."""
    return any(_has_few_values(column[~np.isnan(column)]) for column in np.reshape(y, (len(y), -1)).T)


def _has_few_values(column: Float[np.ndarray, " N"]) -> bool:
    count, rows = len(np.unique(column)), len(column)
    if not 0 < count <= MOST_DISTINCT:
        return False
    return count < LARGEST_SHARE * rows or (count <= FEW_DISTINCT and (rows >= FEWEST_ROWS or 3 * count <= rows))

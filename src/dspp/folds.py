"""Which rows the members of an ensemble hold out."""

import numpy as np
from jaxtyping import Int

from dspp.batches import derive_seed

HELD_OUT_SHARE = 0.1  # of the rows, if there is one fold,
MOST_HELD_OUT = 10_000  # but not more than this
NEVER = -1  # the fold of rows that all members train on
_FOLDS = 17  # derives the seed


def assign_folds(num_rows: int, folds: int, seed: int) -> Int[np.ndarray, " N"]:
    """Return the fold of each row, a function of the seed and the number of rows.

    Args:
        num_rows: Number of rows.
        folds: Number of folds of equal size; 1: a single part of the rows, the others being trained on by all members.
        seed: The seed.
    """
    order = np.random.default_rng(derive_seed(seed, _FOLDS)).permutation(num_rows)
    if folds > 1:
        return order % folds
    held_out = min(MOST_HELD_OUT, max(1, round(HELD_OUT_SHARE * num_rows)))
    return np.where(order < held_out, 0, NEVER)

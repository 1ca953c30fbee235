"""What to know about targets before training: constant ones, and those with few distinct values."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from jaxtyping import Float

from dspp.notes import Note

MOST_DISTINCT: Final = 100  # values of a discrete target
LARGEST_SHARE: Final = 0.05  # of distinct values among the rows of a discrete target, unless they are
FEW_DISTINCT: Final = 20  # or fewer, in a table of at least
FEWEST_ROWS: Final = 50


def is_discrete(y: Float[np.ndarray, " N *T"]) -> bool:
    """Return whether a target, or one of several, has so few distinct values that its density means little.

    NaN means "not observed" and does not count.
    """
    return any(_few_distinct(column) for column in np.reshape(y, (len(y), -1)).T)


def target_notes(y: Float[np.ndarray, "N T"], names: Sequence[str]) -> list[Note]:
    """Return notes on targets that are constant or have few distinct values."""
    notes = []
    for name, column in zip(names, y.T, strict=True):
        values = np.unique(column[~np.isnan(column)])
        if len(values) == 1:
            notes.append(Note(f"target {name!r} is {values[0]:g} in every row", "the model can only repeat it"))
        elif _few_distinct(column):
            text = (
                "NLL is not meaningful for it, since a density can be made arbitrarily high on repeated values; "
                "compare CRPS"
            )
            notes.append(Note(f"target {name!r} has only {len(values)} distinct values", text))
    return notes


def _few_distinct(column: Float[np.ndarray, " N"]) -> bool:
    known = column[~np.isnan(column)]
    count, rows = len(np.unique(known)), len(known)
    if not 0 < count <= MOST_DISTINCT:
        return False
    return count < LARGEST_SHARE * rows or (count <= FEW_DISTINCT and rows >= FEWEST_ROWS)

"""What to know about targets before training: constant ones, and those with few distinct values."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from dspp.notes import Note
from dspp.table.discrete import is_discrete


def target_notes(y: Float[np.ndarray, "N T"], names: Sequence[str]) -> list[Note]:
    """Return notes on targets that are constant or have few distinct values."""
    notes = []
    for name, column in zip(names, y.T, strict=True):
        values = np.unique(column[~np.isnan(column)])
        if len(values) == 1:
            notes.append(Note(f"target {name!r} is {values[0]:g} in every row", "the model can only repeat it"))
        elif is_discrete(column):
            text = (
                "NLL is not meaningful for it, since a density can be made arbitrarily high on repeated values; "
                "compare CRPS"
            )
            notes.append(Note(f"target {name!r} has only {len(values)} distinct values", text))
    return notes

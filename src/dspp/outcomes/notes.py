"""What to know about real targets: constant ones, few distinct values, censored times, negative ends of intervals."""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float
from pyarrow import types

from dspp.notes import Note
from dspp.predictive import RealPredictive
from dspp.table.discrete import is_discrete
from dspp.table.table import MemoryTable

EVENT = re.compile(r"(.*[_. ])?(event|status|death|dead|died|cens|censor|censored|censoring)([_. ].*)?", re.IGNORECASE)
DURATION = re.compile(r".*(time|duration|surviv|tenure|days|weeks|months|years|hours).*", re.IGNORECASE)

# Coverage of the intervals, and the share of those that begin below 0 which is worth a note.
PROMISED, MANY_NEGATIVE = 0.9, 0.05


def target_notes(y: Float[np.ndarray, "N T"], names: Sequence[str]) -> list[Note]:
    """Return notes on targets that are constant or have few distinct values."""
    notes = []
    for name, column in zip(names, y.T, strict=True):
        values = np.unique(column[~np.isnan(column)])
        if len(values) == 1:
            notes.append(Note(f"target {name!r} is {values[0] + 0.0:g} in every row", "the model can only repeat it"))
        elif is_discrete(column):
            text = (
                "NLL is not meaningful for it, since a density can be made arbitrarily high on repeated values; "
                "compare CRPS"
            )
            notes.append(Note(f"target {name!r} has only {len(values)} distinct values", text))
    return notes


def censoring_notes(table: MemoryTable, y: Float[np.ndarray, "N T"], names: Sequence[str]) -> list[Note]:
    """Return a note if a target looks like a duration, and a column like the mark of those that had not yet ended."""
    if table.arrow is None:
        return []
    times = [
        name for name, column in zip(names, y.T, strict=True) if DURATION.fullmatch(name) and not (column < 0.0).any()
    ]
    marks = [name for name in table.names if EVENT.fullmatch(name) and _is_mark(table.arrow.column(name))]
    if not times or not marks:
        return []
    text = (
        "dspp does not model censored times yet: it takes every time as the time of the event, so predictions are too "
        f"short; and {marks[0]!r} is not known in advance, so leave it out of the inputs"
    )
    return [Note(f"column {marks[0]!r} may say which values of {times[0]!r} are censored", text)]


def negative_note(name: str, y: Float[np.ndarray, " N"], one: RealPredictive) -> Note | None:
    """Return a note on a target that is never negative but sometimes 0, if many intervals begin below 0."""
    if not (y == 0.0).any() or (y < 0.0).any() or not (y > 0.0).any():
        return None
    share = float((one.interval(PROMISED)[0] < 0.0).double().mean())
    if share < MANY_NEGATIVE:
        return None
    text = (
        f"but {100 * share:.0f} % of the lower ends of {100 * PROMISED:.0f} % intervals are; dspp has no "
        "distribution for such targets yet, so read a negative end as 0"
    )
    return Note(f"{name!r} is never negative", text)


def _is_mark(column: pa.ChunkedArray) -> bool:
    """Return whether a column has two values at most: 0 and 1, or true and false."""
    kind = column.type
    if not (types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)):
        return False
    return {float(value) for value in pc.unique(column).drop_null().to_pylist()} <= {0.0, 1.0}

"""What to know about real targets: constant ones, few distinct values, censored times, negative ends of intervals."""

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float
from pyarrow import types

from dspp.notes import Note
from dspp.numbers import plain_percent
from dspp.predictive import RealPredictive
from dspp.table.discrete import is_discrete
from dspp.table.table import Table

EVENT = re.compile(
    r"(.*[_. ])?(event|status|death|dead|died|cens|censor|censored|censoring)([_. ].*)?|fu_?stat|fstat|delta",
    re.IGNORECASE,
)
DURATION = re.compile(r".*(time|duration|surviv|tenure|days|weeks|months|years|hours).*", re.IGNORECASE)
SHORT_DURATION = re.compile(r"t|week|month|los", re.IGNORECASE)  # names that have other meanings too

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


def censoring_notes(table: Table) -> list[Note]:
    """Return a note if a target looks like a duration, and a column like the mark of those that had not yet ended.

    Both are known by their names and values. A duration is never negative, and a mark has the values 0 and 1, 1 and 2,
    or true and false. A target called "t", "week", "month" or "los" (length of stay) may be anything, and a status that
    of anything, so these two together are not enough: such a target needs a mark called event, death, delta, ...
    """
    if table.arrow is None:
        return []
    marks = [name for name in table.names if EVENT.fullmatch(name) and _is_mark(table.arrow.column(name))]
    certain = [name for name in marks if "status" not in name.lower()]
    for time, column in zip(table.target_names, table.targets.T, strict=True):
        found = marks if DURATION.fullmatch(time) else certain if SHORT_DURATION.fullmatch(time) else []
        if found and not (column < 0.0).any():
            text = (
                "dspp does not model censored times yet: it takes every time as the time of the event, so predictions "
                f"are too short; and {found[0]!r} is not known in advance, so leave it out of the inputs"
            )
            return [Note(f"column {found[0]!r} may say which values of {time!r} are censored", text)]
    return []


def negative_note(name: str, y: Float[np.ndarray, " N"], one: RealPredictive) -> Note | None:
    """Return a note on a target that is never negative but sometimes 0, if many intervals begin below 0."""
    if not (y == 0.0).any() or (y < 0.0).any() or not (y > 0.0).any():
        return None
    share = float((one.interval(PROMISED)[0] < 0.0).double().mean())
    if share < MANY_NEGATIVE:
        return None
    text = (
        f"{plain_percent(share)} of the lower ends of its {plain_percent(PROMISED)} intervals are, as dspp has no "
        "distribution for such targets yet; read a negative end as 0"
    )
    return Note(f"target {name!r} is never negative", text)


def _is_mark(column: pa.ChunkedArray) -> bool:
    """Return whether a column has two values at most: 0 and 1, or true and false; or exactly 1 and 2."""
    kind = column.type
    if not (types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind)):
        return False
    values = {float(value) for value in pc.unique(column).drop_null().to_pylist()}
    return values <= {0.0, 1.0} or values == {1.0, 2.0}

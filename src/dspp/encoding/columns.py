"""How one column becomes numbers: the kinds that `encoding` describes, but dates, which are in `datetimes`."""

import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float

from dspp.errors import InputError
from dspp.table import arrays
from dspp.table.messages import Place

MAX_LEVELS: Final = 20  # of a category; rarer ones share a column
MOST_LEVELS: Final = 64  # that a stored encoder may have, should MAX_LEVELS ever grow
LONGEST_TEXT: Final = 10_000  # characters of a name or level


# ---------------------------------------------------------------- what a stored column may hold


def is_short_text(value: object, longest: int = LONGEST_TEXT) -> bool:
    """Whether this is a string that a table can hold: one with half of a surrogate pair is not."""
    try:
        return isinstance(value, str) and len(value) <= longest and bool(value.encode() or True)
    except UnicodeEncodeError:
        return False


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def is_tuple_of_texts(value: object, longest: int, shortest: int = 0) -> bool:
    """Whether this is a tuple of different strings."""
    return (
        isinstance(value, tuple)
        and shortest <= len(value) <= longest
        and all(is_short_text(item) for item in value)
        and len(set(value)) == len(value)
    )


CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "name": is_short_text,
    "reason": is_short_text,
    "missing": lambda value: isinstance(value, bool),
    "other": lambda value: isinstance(value, bool),
    "fill": _is_finite,
    "levels": lambda value: is_tuple_of_texts(value, MOST_LEVELS, 1),
}


# ---------------------------------------------------------------- the kinds


@dataclass(frozen=True)
class Column(ABC):
    """How one input column is encoded. Making one checks every field, wherever it comes from."""

    kind: ClassVar[str]
    checks: ClassVar[Mapping[str, Callable[[Any], bool]]] = CHECKS  # of each field
    name: str

    def __post_init__(self) -> None:
        for field in fields(self):
            if not self.checks[field.name](getattr(self, field.name)):
                got = f"{getattr(self, field.name)!r:.60}"
                raise InputError(f"column {self.name!r:.60}: {field.name} cannot be {got}; the encoding is damaged")

    @property
    @abstractmethod
    def features(self) -> tuple[str, ...]:
        """The names of the encoded columns."""

    @property
    @abstractmethod
    def how(self) -> str:
        """What is done to the column, in words."""

    @abstractmethod
    def encode(self, array: pa.Array, out: Float[np.ndarray, "n F"], place: Place) -> None:
        """Write the encoded rows to `out`, which has a column for each feature."""

    def has_gaps(self, array: pa.Array, place: Place) -> bool:
        """Whether a value is missing."""
        return False

    def with_gaps(self) -> "Column":
        """Return the same column with a mark for missing values as its last feature."""
        change: dict[str, Any] = {"missing": True}
        return replace(self, **change) if hasattr(self, "missing") else self

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type that fits the column best."""
        return pa.string()


@dataclass(frozen=True)
class Dropped(Column):
    """A column that nothing can be learned from."""

    kind = "left out"
    reason: str
    features = ()

    @property
    def how(self) -> str:
        """Why it is left out."""
        return self.reason

    def encode(self, array: pa.Array, out: Float[np.ndarray, "n 0"], place: Place) -> None:
        """Write nothing."""


@dataclass(frozen=True)
class Number(Column):
    """A column of numbers; a missing one is replaced by `fill`, the training median, and marked."""

    kind = "number"
    missing: bool
    fill: float

    @property
    def features(self) -> tuple[str, ...]:
        """The name itself, and the mark."""
        return marked(self.name, self.missing)

    @property
    def how(self) -> str:
        """What is done to the numbers."""
        return "as it is" + (f"; {self.fill:.6g} where missing, and a column that marks it" if self.missing else "")

    @property
    def arrow_type(self) -> pa.DataType:
        """Floating point."""
        return pa.float64()

    def has_gaps(self, array: pa.Array, place: Place) -> bool:
        """Whether a number is missing."""
        return bool(np.isnan(arrays.numbers(array, place)).any())

    def encode(self, array: pa.Array, out: Float[np.ndarray, "n F"], place: Place) -> None:
        """Write the numbers."""
        write(arrays.numbers(array, place), self.fill, self.missing, out, place)


@dataclass(frozen=True)
class Boolean(Column):
    """A column of true (1) and false (0); a missing value is 0, and marked."""

    kind = "boolean"
    missing: bool

    @property
    def features(self) -> tuple[str, ...]:
        """The name itself, and the mark."""
        return marked(self.name, self.missing)

    @property
    def how(self) -> str:
        """What is done to true and false."""
        return "true is 1, false is 0" + ("; 0 where missing, and a column that marks it" if self.missing else "")

    @property
    def arrow_type(self) -> pa.DataType:
        """Boolean."""
        return pa.bool_()

    def has_gaps(self, array: pa.Array, place: Place) -> bool:
        """Whether true or false is missing."""
        return bool(np.isnan(arrays.booleans(array, place)).any())

    def encode(self, array: pa.Array, out: Float[np.ndarray, "n F"], place: Place) -> None:
        """Write zeros and ones."""
        write(arrays.booleans(array, place), 0.0, self.missing, out, place)


@dataclass(frozen=True)
class Category(Column):
    """A column of levels, compared by their text: a 0/1 column for each, the most frequent level first.

    Levels beyond `MAX_LEVELS` share the column "(other)". Missing values, and text that says so (`arrays.MISSING`), are
    the level "(missing)" if training had any. Two levels alone need one column, 0 for the first and 1 for the second.

    A level that training did not have counts as "(other)" where that exists. Otherwise it is none of the known ones:
    zeros everywhere or, where two levels share a column, 0.5, as near to the one as to the other.
    """

    kind = "category"
    levels: tuple[str, ...]
    other: bool
    missing: bool

    @classmethod
    def fit(cls, name: str, counts: Counter[str], missing: int) -> Column:
        """Learn from how often each level is in the training rows, and how many rows have none."""
        levels = sorted(counts, key=lambda level: (-counts[level], level))
        if len(levels) < 2 and not (levels and missing):
            return Dropped(name, "has the same value in all rows" if levels else "has no values")
        if len(levels) > MAX_LEVELS and 2 * len(levels) > counts.total():
            return Dropped(name, f"is text with {len(levels):,} different values in {counts.total():,} rows")
        if not all(map(is_short_text, levels[:MAX_LEVELS])):
            return Dropped(name, f"is text of more than {LONGEST_TEXT:,} characters")
        return cls(name, tuple(levels[:MAX_LEVELS]), len(levels) > MAX_LEVELS, missing > 0)

    @property
    def features(self) -> tuple[str, ...]:
        """The name with each level."""
        special = ["(other)"] * self.other + ["(missing)"] * self.missing
        return tuple(f"{self.name}={level}" for level in [*self.levels[self._is_pair :], *special])

    @property
    def how(self) -> str:
        """Which levels go where."""
        if self._is_pair:
            return f"{self.levels[0]!r} is 0, {self.levels[1]!r} is 1"
        special = " and one for rarer ones" * self.other + " and one for missing ones" * self.missing
        return f"a 0/1 column for each of {len(self.levels)} levels{special}"

    @property
    def _is_pair(self) -> bool:
        return len(self.levels) == 2 and not self.other and not self.missing

    def has_gaps(self, array: pa.Array, place: Place) -> bool:
        """Whether a level is missing."""
        return bool(arrays.texts(array, place, self.levels).null_count)

    def encode(self, array: pa.Array, out: Float[np.ndarray, "n F"], place: Place) -> None:
        """Write the column of each row's level."""
        text = arrays.texts(array, place, self.levels)
        absent = text.is_null().to_numpy(zero_copy_only=False)
        check_missing(absent, self.missing, place)
        found = pc.index_in(text, pa.array(self.levels, pa.string())).fill_null(-1).to_numpy(zero_copy_only=False)
        if self._is_pair:
            out[:, 0] = np.where(found < 0, 0.5, found)
            return
        if self.other:
            found = np.where(found < 0, len(self.levels), found)
        found = np.where(absent, out.shape[1] - 1, found)
        out[:] = found[:, None] == np.arange(out.shape[1])


# ---------------------------------------------------------------- what they share


def marked(name: str, missing: bool) -> tuple[str, ...]:
    """Return the name of a column and, if values may be `missing`, that of its mark."""
    return (name, f"{name} is missing") if missing else (name,)


def write(
    values: Float[np.ndarray, " n"], fill: float, missing: bool, out: Float[np.ndarray, "n F"], place: Place
) -> None:
    """Write values to the first column with `fill` for NaN and, if `missing` ones are expected, a mark to the last."""
    known = np.isfinite(values)
    if not known.all():
        arrays.check_finite(values, place)
        check_missing(~known, missing, place)
        values = np.where(known, values, fill)
    if missing:
        out[:, -1] = ~known
    out[:, 0] = values


def check_missing(absent: Bool[np.ndarray, " n"], expected: bool, place: Place) -> None:
    """Raise `InputError` for the first absent value, unless such were `expected`."""
    if not expected and absent.any():
        raise place.error(
            "a value is missing, but training had none in this column; fill it in or train with missing values",
            int(np.argmax(absent)),
        )

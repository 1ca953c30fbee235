"""Encodings of one column: numbers, Booleans and categories; dates are in `datetimes`."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float, Int, Shaped
from pyarrow import types

from dspp.errors import InputError
from dspp.table import arrays
from dspp.table.messages import Place

MAX_LEVELS: Final = 20  # per category; rarer ones share a column
MOST_LEVELS: Final = 64  # accepted from a file, in case MAX_LEVELS ever grows
LONGEST_TEXT: Final = 10_000  # characters of a name or level
NEW, ABSENT = -1, -2  # numbers of a level that was not seen in training, and of a missing one

Parsed = Shaped[np.ndarray, " n"]  # one number per row


# ---------------------------------------------------------------- checks of the fields


def is_short_text(value: str, longest: int = LONGEST_TEXT) -> bool:
    """Return whether a string can be encoded as UTF-8 (no lone surrogates) and is not too long."""
    try:
        return len(value) <= longest and bool(value.encode() or True)
    except UnicodeEncodeError:
        return False


def are_levels(values: tuple[str, ...], longest: int) -> bool:
    """Return whether these are levels of a category, at most `longest` of them."""
    return 0 < len(values) <= longest and all(map(is_short_text, values)) and len(set(values)) == len(values)


# ---------------------------------------------------------------- the kinds


@dataclass(frozen=True)
class Column(ABC):
    """The encoding of one input column."""

    KINDS: ClassVar[Mapping[str, type["Column"]]]
    kind: ClassVar[str]
    name: str

    def __post_init__(self) -> None:
        if not self.is_valid:
            raise InputError(f"column {self.name!r:.60}: the encoding is damaged")

    @property
    def is_valid(self) -> bool:
        """Whether the fields, which may come from a file, are possible; their types were checked on reading."""
        return is_short_text(self.name)

    @property
    @abstractmethod
    def features(self) -> tuple[str, ...]:
        """The names of the encoded columns."""

    @property
    @abstractmethod
    def how(self) -> str:
        """A description of the encoding."""

    @property
    def lumping(self) -> str:
        """What becomes of the levels of a category that has too many; empty if all have an input of their own."""
        return ""

    @abstractmethod
    def parse(self, values: pa.ChunkedArray, place: Place) -> Parsed:
        """Return one number per row, which `encode` reads: of a category, that of the level.

        Raises:
            InputError: A value is not of this kind; the error names its row.
        """

    def is_missing(self, parsed: Parsed) -> Bool[np.ndarray, " n"]:
        """Return which values are missing."""
        return np.asarray(np.isnan(parsed))

    @abstractmethod
    def encode(self, parsed: Parsed, out: Float[np.ndarray, "n F"], place: Place, impute: bool = False) -> None:
        """Write the encoded rows to `out`, which has one column per feature.

        With `impute`, missing values are accepted where the training rows had none: they become the training median,
        an unknown level, or 0.5 for a Boolean.
        """

    def allow_missing(self) -> "Column":
        """Return the same column with an indicator of missing values as its last feature."""
        change: dict[str, Any] = {"missing": True}
        return replace(self, **change) if hasattr(self, "missing") else self

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type to read the column with."""
        return pa.string()


@dataclass(frozen=True)
class Dropped(Column):
    """A column that is left out."""

    kind = "left out"
    reason: str
    features = ()

    @property
    def is_valid(self) -> bool:
        """Whether the fields are possible."""
        return super().is_valid and is_short_text(self.reason)

    @property
    def how(self) -> str:
        """Why it is left out."""
        return self.reason

    def parse(self, values: pa.ChunkedArray, place: Place) -> Parsed:
        """Return nothing."""
        return np.empty(0)

    def encode(self, parsed: Parsed, out: Float[np.ndarray, "n 0"], place: Place, impute: bool = False) -> None:
        """Write nothing."""


@dataclass(frozen=True)
class Number(Column):
    """A column of numbers; a missing one is replaced by `fill`, the training median, and indicated."""

    kind = "number"
    missing: bool
    fill: float

    @property
    def features(self) -> tuple[str, ...]:
        """The name and, if values may be missing, the indicator."""
        return with_mark(self.name, self.missing)

    @property
    def how(self) -> str:
        """A description of the encoding."""
        return "as it is" + (f"; {self.fill:.6g} where missing, and a column that marks it" if self.missing else "")

    @property
    def arrow_type(self) -> pa.DataType:
        """Floating point."""
        return pa.float64()

    def parse(self, values: pa.ChunkedArray, place: Place) -> Parsed:
        """Return the numbers, NaN where missing."""
        return by_chunk(arrays.numbers, values, place)

    def encode(self, parsed: Parsed, out: Float[np.ndarray, "n F"], place: Place, impute: bool = False) -> None:
        """Write the numbers."""
        write(parsed, self.fill, self.missing, out, place, impute)


@dataclass(frozen=True)
class Boolean(Column):
    """A column of true (1) and false (0); missing values become 0 and are indicated."""

    kind = "boolean"
    missing: bool

    @property
    def features(self) -> tuple[str, ...]:
        """The name and, if values may be missing, the indicator."""
        return with_mark(self.name, self.missing)

    @property
    def how(self) -> str:
        """A description of the encoding."""
        return "true is 1, false is 0" + ("; 0 where missing, and a column that marks it" if self.missing else "")

    @property
    def arrow_type(self) -> pa.DataType:
        """Boolean."""
        return pa.bool_()

    def parse(self, values: pa.ChunkedArray, place: Place) -> Parsed:
        """Return ones and zeros, NaN where missing."""
        return by_chunk(arrays.booleans, values, place)

    def encode(self, parsed: Parsed, out: Float[np.ndarray, "n F"], place: Place, impute: bool = False) -> None:
        """Write zeros and ones."""
        write(parsed, 0.0 if self.missing else 0.5, self.missing, out, place, impute)


@dataclass(frozen=True)
class Category(Column):
    """A column of levels, compared as text: one 0/1 column per level, the most frequent first.

    Levels beyond `MAX_LEVELS` share the column "(other)". Missing values, including those in `arrays.MISSING`, are the
    level "(missing)" if the training rows had any. Two levels alone need one column: 0 for the first, 1 for the second.

    A level not seen in training counts as "(other)" if that column exists. Otherwise it becomes zeros or, where two
    levels share a column, 0.5, halfway between them.
    """

    kind = "category"
    levels: tuple[str, ...]
    other: bool
    missing: bool

    @classmethod
    def fit(cls, name: str, counts: Counter[str], missing: int) -> Column:
        """Return the encoding for these counts of levels and of missing values in the training rows."""
        levels = by_frequency(counts)
        if len(levels) < 2 and not (levels and missing):
            return Dropped(name, "has the same value in all rows" if levels else "has no values")
        if len(levels) > MAX_LEVELS and 2 * len(levels) > counts.total():
            return Dropped(name, f"is text with {len(levels):,} different values in {counts.total():,} rows")
        if not all(map(is_short_text, levels[:MAX_LEVELS])):
            return Dropped(name, f"is text of more than {LONGEST_TEXT:,} characters")
        return cls(name, tuple(levels[:MAX_LEVELS]), len(levels) > MAX_LEVELS, missing > 0)

    @property
    def is_valid(self) -> bool:
        """Whether the fields are possible."""
        return super().is_valid and are_levels(self.levels, MOST_LEVELS)

    @property
    def features(self) -> tuple[str, ...]:
        """The name combined with each level."""
        special = ["(other)"] * self.other + ["(missing)"] * self.missing
        return tuple(f"{self.name}={level}" for level in [*self.levels[self._is_pair :], *special])

    @property
    def how(self) -> str:
        """A description of the encoding."""
        if self._is_pair:
            return f"{self.levels[0]!r} is 0, {self.levels[1]!r} is 1"
        special = " and one for rarer ones" * self.other + " and one for missing ones" * self.missing
        return f"a 0/1 column for each of {len(self.levels)} levels{special}"

    @property
    def lumping(self) -> str:
        """What becomes of the levels."""
        return f"the {len(self.levels)} most frequent have an input each, the others share one" if self.other else ""

    @property
    def _is_pair(self) -> bool:
        return len(self.levels) == 2 and not self.other and not self.missing

    def parse(self, values: pa.ChunkedArray, place: Place) -> Parsed:
        """Return the number of each row's level, `NEW` for one not seen in training, `ABSENT` where it is missing."""
        return level_numbers(values, self.levels, place)

    def is_missing(self, parsed: Parsed) -> Bool[np.ndarray, " n"]:
        """Return which values are missing."""
        return np.asarray(parsed == ABSENT)

    def encode(self, parsed: Parsed, out: Float[np.ndarray, "n F"], place: Place, impute: bool = False) -> None:
        """Write a one in the column of each row's level."""
        absent = parsed == ABSENT
        check_missing(absent, self.missing or impute, place)
        if self._is_pair:
            out[:, 0] = np.where(parsed < 0, 0.5, parsed)
            return
        found = np.where(parsed < 0, len(self.levels) if self.other else NEW, parsed)
        if self.missing:
            found = np.where(absent, out.shape[1] - 1, found)
        out[:] = found[:, None] == np.arange(out.shape[1])


# ---------------------------------------------------------------- shared by the kinds


def by_chunk(
    parse: Callable[[pa.Array, Place], Shaped[np.ndarray, " n"]], values: pa.ChunkedArray, place: Place
) -> Shaped[np.ndarray, " N"]:
    """Parse a column chunk by chunk; errors name the rows of the whole column."""
    parts, done = [], 0
    for chunk in values.chunks or [pa.array([], values.type)]:
        parts.append(parse(chunk, place.of(place.column, done)))
        done += len(chunk)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def level_numbers(values: pa.ChunkedArray, levels: Sequence[str], place: Place) -> Int[np.ndarray, " N"]:
    """Return the number of each row's level, `NEW` where it is not among `levels`, `ABSENT` where it is missing."""
    known = pa.array(levels, pa.string())

    def find(text: pa.Array, place: Place) -> Int[np.ndarray, " n"]:
        if types.is_dictionary(text.type) and len(text.dictionary) <= len(text):  # each level is looked up once
            numbers = np.append(find(text.dictionary, place), ABSENT)
            return np.asarray(numbers[text.indices.fill_null(len(numbers) - 1).to_numpy(zero_copy_only=False)])
        text = arrays.texts(text, place)
        found = pc.index_in(text, known).fill_null(NEW).to_numpy(zero_copy_only=False)
        return np.where(text.is_null().to_numpy(zero_copy_only=False), ABSENT, found)

    return by_chunk(find, values, place)


def by_frequency(counts: Counter[str]) -> list[str]:
    """Return levels, the most frequent first, equally frequent ones by name."""
    return sorted(counts, key=lambda level: (-counts[level], level))


def with_mark(name: str, missing: bool) -> tuple[str, ...]:
    """Return the name of a column and, if values may be missing, the name of its indicator."""
    return (name, f"{name} is missing") if missing else (name,)


def write(
    values: Float[np.ndarray, " n"],
    fill: float,
    missing: bool,
    out: Float[np.ndarray, "n F"],
    place: Place,
    impute: bool = False,
) -> None:
    """Write values to the first column, with `fill` for NaN, and the indicator of missing values to the last."""
    known = np.isfinite(values)
    if not known.all():
        arrays.check_finite(values, place)
        check_missing(~known, missing or impute, place)
        values = np.where(known, values, fill)
    if missing:
        out[:, -1] = ~known
    out[:, 0] = values


def check_missing(absent: Bool[np.ndarray, " n"], expected: bool, place: Place) -> None:
    """Raise `InputError` for the first missing value, unless missing values are `expected`."""
    if not expected and absent.any():
        raise place.error(
            "expected a value, as in all training rows, got none; fill it in, train on rows with missing values, or "
            "predict with missing='impute' (--missing impute)",
            int(np.argmax(absent)),
        )

"""The kinds of columns: what is learned of each, and how its values become inputs; further kinds: `datetimes`, `means`.

The values of a column are first read as one number per row, NaN where missing (of a category, the number of the level),
and then written as inputs.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float
from pyarrow import types

from dspp.errors import InputError
from dspp.table import arrays
from dspp.table.messages import Place

MAX_LEVELS: Final = 20  # per category; rarer ones share a column
MAX_STORED_LEVELS: Final = 64  # accepted from a file, in case MAX_LEVELS ever grows
MAX_TEXT: Final = 10_000  # characters of a name or level
NEW: Final = -1  # the number of a level that was not seen in training

# The years and months of a duration written as text, such as "61 years 04 months".
DURATION: Final = r"^(?i)(?:(?P<years>\d{1,6}) *years?)?,? *(?:(?P<months>\d{1,6}) *months?)?$"

Parsed = Float[np.ndarray, " n"]  # one number per row, NaN where missing


def is_short_text(value: str, longest: int = MAX_TEXT) -> bool:
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
    """The encoding of one input column: its inputs and, if training rows lack values, an indicator of missing ones."""

    KINDS: ClassVar[Mapping[str, type["Column"]]]
    kind: ClassVar[str]
    name: str
    missing: bool

    def __post_init__(self) -> None:
        if not (is_short_text(self.name) and self._is_valid):
            raise InputError(f"column {self.name!r:.60}: the encoding is damaged")

    @classmethod
    def learn(cls, name: str, parsed: Parsed) -> "Column":
        """Return the encoding for these values of the training rows."""
        known = parsed[~np.isnan(parsed)]
        if not len(known):
            return Dropped(name, reason="has no values")
        if 1 < len(known) == len(parsed) and known.min() == known.max():  # a single row is not enough to tell
            return Dropped(name, reason="has the same value in all rows")
        return cls._fit(name, len(known) < len(parsed), known)

    @classmethod
    def _fit(cls, name: str, missing: bool, known: Parsed) -> Self:
        return cls(name, missing)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the encoded columns."""
        return (*self._inputs, f"{self.name} is missing") if self.missing else self._inputs

    @property
    @abstractmethod
    def description(self) -> str:
        """How the column is encoded."""

    @property
    def lumping(self) -> str:
        """What becomes of the levels of a category that has too many; empty if all have an input of their own."""
        return ""

    @property
    def arrow_type(self) -> pa.DataType:
        """The Arrow type to read the column with."""
        return pa.string()

    def parse(self, values: pa.ChunkedArray, place: Place) -> Parsed:
        """Return one number per row, which `encode` reads: NaN where missing; of a category, that of the level.

        Raises:
            InputError: A value is not of this kind; the error names its row.
        """
        return by_chunk(self._read, values, place)

    def encode(self, parsed: Parsed, out: Float[np.ndarray, "n F"], place: Place, impute: bool = False) -> None:
        """Write the encoded rows to `out`, which has one column per feature.

        With `impute`, missing values are accepted where the training rows had none: they become the training median,
        an unknown level, or 0.5 for a Boolean.
        """
        absent = np.isnan(parsed)
        if not (self.missing or impute) and absent.any():
            raise place.error(
                "expected a value, as in all training rows, got none; fill it in, train on rows with missing values, "
                "or predict with missing='impute' (--missing impute)",
                int(np.argmax(absent)),
            )
        self._write(parsed, absent, out)
        if self.missing:
            out[:, -1] = absent

    @property
    def _is_valid(self) -> bool:
        """Whether the fields, which may come from a file, are possible; their types were checked on reading."""
        return True

    @property
    def _inputs(self) -> tuple[str, ...]:
        """The names of the encoded columns but the indicator."""
        return (self.name,)

    @abstractmethod
    def _read(self, array: pa.Array, place: Place) -> Parsed:
        """Return one number per row, NaN where missing."""

    @abstractmethod
    def _write(self, parsed: Parsed, absent: Bool[np.ndarray, " n"], out: Float[np.ndarray, "n F"]) -> None:
        """Write the inputs to the first columns."""

    def _where_missing(self, fill: str) -> str:
        return f"; {fill} where missing, and a column that marks it" if self.missing else ""


@dataclass(frozen=True, kw_only=True)
class Dropped(Column):
    """A column that is left out."""

    kind = "left out"
    missing: bool = field(default=False, metadata={"stored": False})
    reason: str
    features = ()

    @property
    def description(self) -> str:
        return self.reason

    @property
    def _is_valid(self) -> bool:
        return is_short_text(self.reason)

    def _read(self, array: pa.Array, place: Place) -> Parsed:
        return np.empty(len(array))

    def _write(self, parsed: Parsed, absent: Bool[np.ndarray, " n"], out: Float[np.ndarray, "n F"]) -> None:
        pass


@dataclass(frozen=True)
class Number(Column):
    """A column of numbers; a missing one is replaced by `fill`, the training median."""

    kind = "number"
    arrow_type = pa.float64()
    fill: float

    @classmethod
    def _fit(cls, name: str, missing: bool, known: Parsed) -> Self:
        return cls(name, missing, float(2 * np.median(known / 2)))  # halved, as 1e308 + 1e308 is inf

    @property
    def description(self) -> str:
        return "as it is" + self._where_missing(f"{self.fill:.6g}")

    def _read(self, array: pa.Array, place: Place) -> Parsed:
        return read_numbers(array, place)

    def _write(self, parsed: Parsed, absent: Bool[np.ndarray, " n"], out: Float[np.ndarray, "n F"]) -> None:
        out[:, 0] = parsed
        out[absent, 0] = self.fill


@dataclass(frozen=True)
class Duration(Number):
    """A column of durations written as text, such as "61 years 04 months", as a number of years."""

    kind = "duration"
    arrow_type = pa.string()

    @property
    def description(self) -> str:
        return "years and months as a number of years" + self._where_missing(f"{self.fill:.6g} years")

    @property
    def _inputs(self) -> tuple[str, ...]:
        return (f"{self.name} (years)",)

    def _read(self, array: pa.Array, place: Place) -> Parsed:
        text = arrays.texts(arrays.decode(array), place)
        years = read_years(text)
        odd = np.flatnonzero(np.isnan(years) & ~text.is_null().to_numpy(zero_copy_only=False))
        if len(odd):
            got = text[int(odd[0])].as_py()
            raise place.error(f"expected a duration such as '61 years 4 months', got {got!r:.60}", int(odd[0]))
        return years


@dataclass(frozen=True)
class Boolean(Column):
    """A column of true (1) and false (0); a missing value is 0 if the training rows had some, otherwise 0.5."""

    kind = "boolean"
    arrow_type = pa.bool_()

    @property
    def description(self) -> str:
        return "true is 1, false is 0" + self._where_missing("0")

    def _read(self, array: pa.Array, place: Place) -> Parsed:
        return arrays.booleans(array, place)

    def _write(self, parsed: Parsed, absent: Bool[np.ndarray, " n"], out: Float[np.ndarray, "n F"]) -> None:
        out[:, 0] = np.where(absent, 0.0 if self.missing else 0.5, parsed)


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

    @classmethod
    def of_levels(cls, name: str, levels: Sequence[str], known: int, missing: bool) -> Column:
        """Return the encoding for these levels, the most frequent first, in so many rows with known values."""
        if len(levels) < 2 and not (levels and missing):
            return Dropped(name, reason="has the same value in all rows" if levels else "has no values")
        if len(levels) > MAX_LEVELS and 2 * len(levels) > known:
            return Dropped(name, reason=f"is text with {len(levels):,} different values in {known:,} rows")
        if not all(map(is_short_text, levels[:MAX_LEVELS])):
            return Dropped(name, reason=f"is text of more than {MAX_TEXT:,} characters")
        return cls(name, missing, tuple(levels[:MAX_LEVELS]), len(levels) > MAX_LEVELS)

    @property
    def features(self) -> tuple[str, ...]:
        special = ["(other)"] * self.other + ["(missing)"] * self.missing
        return tuple(f"{self.name}={level}" for level in [*self.levels[self._is_pair :], *special])

    @property
    def description(self) -> str:
        if self._is_pair:
            return f"{self.levels[0]!r} is 0, {self.levels[1]!r} is 1"
        special = " and one for rarer ones" * self.other + " and one for missing ones" * self.missing
        return f"a 0/1 column for each of {len(self.levels)} levels{special}"

    @property
    def lumping(self) -> str:
        return f"the {len(self.levels)} most frequent have an input each, the others share one" if self.other else ""

    @property
    def _is_valid(self) -> bool:
        return are_levels(self.levels, MAX_STORED_LEVELS)

    @property
    def _is_pair(self) -> bool:
        return len(self.levels) == 2 and not self.other and not self.missing

    def _read(self, array: pa.Array, place: Place) -> Parsed:
        return read_levels(array, place, self.levels)

    def _write(self, parsed: Parsed, absent: Bool[np.ndarray, " n"], out: Float[np.ndarray, "n F"]) -> None:
        if self._is_pair:
            out[:, 0] = np.where(parsed >= 0, parsed, 0.5)
            return
        unknown = np.where(absent & self.missing, NEW, len(self.levels) if self.other else NEW)
        out[:] = np.where(parsed >= 0, parsed, unknown)[:, None] == np.arange(out.shape[1])


# ---------------------------------------------------------------- reading values


def by_chunk(read: Callable[[pa.Array, Place], Parsed], values: pa.ChunkedArray, place: Place) -> Parsed:
    """Read a column chunk by chunk; errors name the rows of the whole column."""
    parts, done = [], 0
    for chunk in values.chunks or [pa.array([], values.type)]:
        parts.append(read(chunk, place.of(place.column, done)))
        done += len(chunk)
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def read_numbers(array: pa.Array, place: Place) -> Parsed:
    """Return finite numbers, NaN where missing."""
    numbers = arrays.numbers(array, place)
    arrays.check_finite(numbers, place)
    return numbers


def read_years(text: pa.Array) -> Parsed:
    """Return years + months / 12 of each string, NaN where it is missing or not a duration."""
    found = pc.extract_regex(text, DURATION)
    years, months = (
        pc.if_else(pc.equal(part, ""), None, part).cast(pa.float64()).to_numpy(zero_copy_only=False)
        for part in (pc.struct_field(found, name) for name in ("years", "months"))
    )
    known = ~(np.isnan(years) & np.isnan(months))
    return np.where(known, np.nan_to_num(years) + np.nan_to_num(months) / 12, np.nan)


def read_levels(array: pa.Array, place: Place, levels: Sequence[str]) -> Parsed:
    """Return the number of each row's level, `NEW` where it is not among `levels`, NaN where it is missing."""
    if types.is_dictionary(array.type) and len(array.dictionary) <= len(array):  # each level is looked up once
        numbers = np.append(read_levels(array.dictionary, place, levels), np.nan)
        return np.asarray(numbers[array.indices.fill_null(len(numbers) - 1).to_numpy(zero_copy_only=False)])
    text = arrays.texts(array, place)
    found = pc.index_in(text, pa.array(levels, pa.string())).fill_null(NEW).to_numpy(zero_copy_only=False)
    return np.where(text.is_null().to_numpy(zero_copy_only=False), np.nan, found)

"""Learning the encoding of a column from its values."""

import re
from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float, Int, Shaped
from pyarrow import types

from dspp.encoding.columns import Boolean, Category, Column, Dropped, Number
from dspp.encoding.datetimes import DAY, LENGTHS, Datetime
from dspp.encoding.durations import Duration
from dspp.table import arrays
from dspp.table.messages import WITH_A_UNIT, Place, join_names

INDEX_NAME: Final = r"__index_level_\d+__|Unnamed: 0"  # how pandas names an index in Parquet, and from CSV
LIKE_A_DATE: Final = r"^\d{1,4}[./-]\d{1,2}[./-]\d{1,4}([ ,T]+\d{1,2}:\d{2}.*)?$"  # 31.01.2024, 1/31/24 6:30 PM
DATES_AT_ONCE: Final = 1_000  # levels


class Learner(ABC):
    """The statistics of one column.

    Args:
        name: The name of the column.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def add(self, array: pa.Array, place: Place) -> None:
        """Update the statistics with more rows.

        Raises:
            InputError: A value is not valid; the error names it.
        """

    @abstractmethod
    def column(self) -> Column:
        """Return the encoding of the rows seen so far."""

    def hint(self) -> str:
        """Return advice to the user about the values, or an empty string."""
        return ""

    def size(self) -> str:
        """Return how many levels there are, in words; empty for other kinds than categories."""
        return ""


def make_learner(name: str, arrow: pa.DataType) -> Learner:
    """Return the learner for a column of this Arrow type."""
    if re.fullmatch(INDEX_NAME, name):
        return IndexLearner(name)
    if types.is_dictionary(arrow) and arrays.kind_of(arrow):
        return CategoryLearner(name, is_text=False)
    return LEARNERS.get(arrays.kind_of(arrow), UnknownLearner)(name)


# ---------------------------------------------------------------- statistics


@dataclass
class Range:
    """The number of rows, the number of known values, and their minimum and maximum."""

    rows: int = 0
    known: int = 0
    low: Any = np.inf
    high: Any = -np.inf

    def add(self, known: Shaped[np.ndarray, " n"], rows: int) -> None:
        """Add the known values of `rows` rows."""
        self.rows += rows
        self.known += len(known)
        if len(known):
            self.low, self.high = min(self.low, known.min()), max(self.high, known.max())

    @property
    def missing(self) -> bool:
        """Whether a value is missing."""
        return self.known < self.rows

    @property
    def reason_to_drop(self) -> str:
        """Why the column is not informative, or an empty string; a single row is not enough to tell."""
        if not self.known:
            return "has no values"
        same = 1 < self.known == self.rows and self.low == self.high
        return "has the same value in all rows" if same else ""


# ---------------------------------------------------------------- the kinds


class NumberLearner(Learner):
    """Learns whether numbers are missing, and their median."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.range = Range()
        self.known: list[Float[np.ndarray, " _"]] = []

    def add(self, array: pa.Array, place: Place) -> None:
        """Update the statistics with more numbers."""
        values = arrays.numbers(array, place)
        arrays.check_finite(values, place)
        known = values[~np.isnan(values)]
        self.range.add(known, len(values))
        self.known.append(known)

    def column(self) -> Column:
        """Return the encoding."""
        if reason := self.range.reason_to_drop:
            return Dropped(self.name, reason)
        median = float(2 * np.median(np.concatenate(self.known) / 2))  # halved, as 1e308 + 1e308 is inf
        return Number(self.name, self.range.missing, median)


class BooleanLearner(Learner):
    """Learns whether Booleans are missing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.range = Range()

    def add(self, array: pa.Array, place: Place) -> None:
        """Update the statistics with more Booleans."""
        values = arrays.numbers(array, place)
        self.range.add(values[~np.isnan(values)], len(values))

    def column(self) -> Column:
        """Return the encoding."""
        reason = self.range.reason_to_drop
        return Dropped(self.name, reason) if reason else Boolean(self.name, self.range.missing)


class DatetimeLearner(Learner):
    """Learns the range and the median of dates and times, and the cycles along which they vary."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.range, self.time_of_day = Range(), Range()
        self.weekdays: set[int] = set()
        self.zoned = False
        self.known: list[Int[np.ndarray, " _"]] = []

    def add(self, array: pa.Array, place: Place) -> None:
        """Update the statistics with more dates."""
        array = arrays.moments(array, place)
        self.zoned |= arrays.has_zone(array.type)
        micros, missing = arrays.datetimes(array, place)
        self.add_known(micros[~missing], len(micros))

    def add_known(self, known: Int[np.ndarray, " n"], rows: int) -> None:
        """Update the statistics with the known values, in microseconds, of `rows` rows."""
        self.range.add(known, rows)
        self.time_of_day.add(known % DAY, len(known))
        self.weekdays |= set(np.unique(known // DAY % 7).tolist())
        self.known.append(known)

    def column(self) -> Column:
        """Return the encoding."""
        if reason := self.range.reason_to_drop:
            return Dropped(self.name, reason)
        ends = int(self.range.low), int(self.range.high)
        span = (float(ends[1]) - float(ends[0])) / DAY
        varies = {
            "hour": bool(self.time_of_day.low < self.time_of_day.high),
            "weekday": len(self.weekdays) > 2,
            "day of year": True,
        }
        is_clock = ends[0] >= 0 and ends[1] < DAY  # times without a date are phases of their cycle
        covered = {cycle: span >= length or (cycle == "hour" and is_clock) for cycle, length in LENGTHS.items()}
        cycles = tuple(cycle for cycle, does in varies.items() if does and covered[cycle])
        return Datetime.between(self.name, self.range.missing, ends, np.concatenate(self.known), cycles, self.zoned)


class CategoryLearner(Learner):
    """Counts the levels of a category."""

    def __init__(self, name: str, is_text: bool = True) -> None:
        super().__init__(name)
        self.is_text, self.missing, self.counts = is_text, 0, Counter[str]()

    def add(self, array: pa.Array, place: Place) -> None:
        """Count the levels of more rows."""
        counts = count_levels(array, place)
        self.missing += counts.pop(None, 0)
        self.counts.update(counts)

    def column(self) -> Column:
        """Return the encoding."""
        special = (Duration.fit(self.name, self.counts, self.missing) or self._dates()) if self.is_text else None
        return special or Category.fit(self.name, self.counts, self.missing)

    def _dates(self) -> Column | None:
        """Return the encoding of dates and times that are written as text, as in a CSV file; None for other text."""
        levels = pa.array(self.counts, pa.string())
        if not self.counts or not _are_dates(levels):
            return None
        moments = arrays.moments(levels, Place("", self.name))
        micros, _ = arrays.datetimes(moments, Place("", self.name))
        counts = np.fromiter(self.counts.values(), np.int64, len(micros))
        learner = DatetimeLearner(self.name)
        learner.zoned = arrays.has_zone(moments.type)
        for part in range(0, len(micros), DATES_AT_ONCE):
            repeats = counts[part : part + DATES_AT_ONCE]
            learner.add_known(np.repeat(micros[part : part + DATES_AT_ONCE], repeats), int(repeats.sum()))
        learner.range.rows += self.missing
        return learner.column()

    def hint(self) -> str:
        """Return advice if the text looks like numbers or dates, and say so if it was read as durations or dates."""
        if self.is_text and Duration.fit(self.name, self.counts, self.missing) is not None:
            return "its values are durations, read as a number of years"
        if self.is_text and self._dates() is not None:
            return "its values are dates as text, read as dates"
        return _text_hint(list(self.counts)) if self.is_text else ""

    def size(self) -> str:
        """Return how many levels there are."""
        return f"{len(self.counts):,} levels"


class IndexLearner(Learner):
    """A column that pandas makes of the index of a data frame: row numbers, which would leak the order of the rows."""

    def add(self, array: pa.Array, place: Place) -> None:
        """Do nothing."""

    def column(self) -> Column:
        """Return a dropped column."""
        return Dropped(self.name, "is the index of a data frame")

    def hint(self) -> str:
        """Return how to keep it."""
        return "rename it if it should be an input"


class UnknownLearner(Learner):
    """A column of a type without an encoding, which is accepted only if it has no values."""

    def add(self, array: pa.Array, place: Place) -> None:
        """Raise `InputError` unless all values are missing."""
        if array.null_count < len(array):
            raise place.error(
                f"expected numbers, text, dates or Booleans, got {array.type}; convert or drop the column"
            )

    def column(self) -> Column:
        """Return a dropped column."""
        return Dropped(self.name, "has no values")


LEARNERS: Final[dict[str, type[Learner]]] = {
    "number": NumberLearner,
    "boolean": BooleanLearner,
    "datetime": DatetimeLearner,
    "category": CategoryLearner,
}


def count_levels(array: pa.Array, place: Place) -> Counter[Any]:
    """Return the count of each level; None stands for missing values."""
    pairs = pc.value_counts(arrays.texts(array, place)).to_pylist()
    return Counter({pair["values"]: pair["counts"] for pair in pairs})


def _are_dates(text: pa.Array) -> bool:
    """Return whether all strings can be parsed as dates or times, as in a CSV file."""
    return any(arrays.can_cast(reading, kind) for reading, kind in arrays.datetime_readings(text))


def _text_hint(levels: list[str]) -> str:
    """Return advice about text that looks like numbers or dates, or an empty string."""
    text, sample = pa.array(levels, pa.string()), levels[:1000]
    if not levels or arrays.can_cast(text, pa.float64()):
        return "its values are numbers as text; convert them if they are amounts" if levels else ""
    odd = [level for level in sample if not arrays.can_cast(pa.array([level]), pa.float64())]
    if len(odd) <= len(sample) / 10:
        odd = odd or [levels[arrays.first_failure(text, pa.float64())]]
        return f"most of its values are numbers, but not {join_names(odd, 3):.200}; correct these or clear them"
    if arrays.can_cast(pc.replace_substring(text, ",", ""), pa.float64()):
        return "its values are numbers with commas; write 1.5 for 1,5 and 1500 for 1,500"
    if all(re.match(LIKE_A_DATE, level.strip()) for level in sample):
        if all(_are_dates(pa.array([level])) for level in sample):
            return "some of its times have a time zone and others have none; give all of them one, or none"
        return "its values look like dates; write them as 2024-01-31 or 2024-01-31 18:30"
    if all(re.match(WITH_A_UNIT, level.strip()) for level in sample):
        return "its values are numbers with a currency or unit; remove it, and commas too"
    return ""

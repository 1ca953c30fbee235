"""Learning how to encode a column from its values, which may come piece by piece: what is kept does not grow.

A whole table and a stream of the same rows teach the same, but for two things of a stream longer than the bounds here:
the value that stands for missing ones is the median of a random sample, and of a category with very many levels the
rare ones are forgotten on the way.
"""

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int, Shaped
from pyarrow import types

from dspp.encoding.columns import MAX_LEVELS, Boolean, Category, Column, Dropped, Number
from dspp.encoding.datetimes import DAY, Datetime
from dspp.table import arrays
from dspp.table.messages import Place, join_names

MOST_VALUES: Final = 100_000  # of a stream, to take the median of
MOST_COUNTED: Final = 100_000  # levels of a category in a stream


class Learner(ABC):
    """What has been seen of one column.

    Args:
        name: of the column.
        bounded: whether what is kept must not grow with the rows.
    """

    def __init__(self, name: str, bounded: bool) -> None:
        self.name, self.bounded = name, bounded

    @abstractmethod
    def add(self, array: pa.Array, place: Place) -> None:
        """See more rows.

        Raises:
            InputError: A value cannot be used; the error names it.
        """

    @abstractmethod
    def column(self) -> Column:
        """How to encode what was seen."""

    def hint(self) -> str:
        """What the user should know of the values, or nothing."""
        return ""


def learner_of(name: str, arrow: pa.DataType, bounded: bool = False) -> Learner:
    """What learns a column of this Arrow type."""
    if types.is_dictionary(arrow) and arrays.kind_of(arrow):
        return CategoryLearner(name, bounded, is_text=False)
    return LEARNERS.get(arrays.kind_of(arrow), UnknownLearner)(name, bounded)


# ---------------------------------------------------------------- what is kept


@dataclass
class Range:
    """How many rows there were, how many of them had a value, and the least and the greatest of these."""

    rows: int = 0
    known: int = 0
    low: Any = np.inf
    high: Any = -np.inf

    def add(self, known: Shaped[np.ndarray, " n"], rows: int) -> None:
        """See the values that so many rows had."""
        self.rows += rows
        self.known += len(known)
        if len(known):
            self.low, self.high = min(self.low, known.min()), max(self.high, known.max())

    @property
    def missing(self) -> bool:
        """Whether a row had no value."""
        return self.known < self.rows

    @property
    def nothing_to_learn(self) -> str:
        """Why a column has nothing to teach, or nothing if it has; one row alone does not show that it has not."""
        if not self.known:
            return "has no values"
        same = 1 < self.known == self.rows and self.low == self.high
        return "has the same value in all rows" if same else ""


class Sample:
    """Values of which `most` are kept, each with the same chance: those that draw the smallest numbers."""

    def __init__(self, most: int | None) -> None:
        self._most, self._limit = most, np.inf
        self._random = None if most is None else np.random.default_rng(0)
        self._values: list[Shaped[np.ndarray, " _"]] = []
        self._draws: list[Shaped[np.ndarray, " _"]] = []
        self._held = 0

    def add(self, values: Shaped[np.ndarray, " n"]) -> None:
        """See more values."""
        self._held += len(values)
        if self._random is not None:
            draws = self._random.random(len(values))
            kept = draws < self._limit
            self._held += int(kept.sum()) - len(values)
            values = values[kept]
            self._draws.append(draws[kept])
        self._values.append(values)
        if self._most is not None and self._held > 2 * self._most:
            self._thin(self._most)

    def values(self) -> Shaped[np.ndarray, " _"]:
        """Those kept."""
        if self._most is not None and self._held > self._most:
            self._thin(self._most)
        return np.concatenate(self._values)

    def _thin(self, most: int) -> None:
        values, draws = np.concatenate(self._values), np.concatenate(self._draws)
        kept = np.sort(np.argpartition(draws, most)[:most])
        self._values, self._draws, self._held = [values[kept]], [draws[kept]], most
        self._limit = self._draws[0].max()


# ---------------------------------------------------------------- the kinds


class NumberLearner(Learner):
    """Numbers: whether some are missing, and the median."""

    def __init__(self, name: str, bounded: bool) -> None:
        super().__init__(name, bounded)
        self.range, self.sample = Range(), Sample(MOST_VALUES if bounded else None)

    def add(self, array: pa.Array, place: Place) -> None:
        """See more numbers."""
        values = arrays.numbers(array, place)
        arrays.check_finite(values, place)
        known = values[~np.isnan(values)]
        self.range.add(known, len(values))
        self.sample.add(known)

    def column(self) -> Column:
        """A number, or nothing to learn from."""
        if reason := self.range.nothing_to_learn:
            return Dropped(self.name, reason)
        median = float(2 * np.median(self.sample.values() / 2))  # halved: 1e308 + 1e308 is no inf
        return Number(self.name, self.range.missing, median)


class BooleanLearner(Learner):
    """True and false: whether some are missing."""

    def __init__(self, name: str, bounded: bool) -> None:
        super().__init__(name, bounded)
        self.range = Range()

    def add(self, array: pa.Array, place: Place) -> None:
        """See more of them."""
        values = arrays.numbers(array, place)
        self.range.add(values[~np.isnan(values)], len(values))

    def column(self) -> Column:
        """A boolean, or nothing to learn from."""
        reason = self.range.nothing_to_learn
        return Dropped(self.name, reason) if reason else Boolean(self.name, self.range.missing)


class DatetimeLearner(Learner):
    """Dates and times: their range, their median, and the cycles in which they vary."""

    def __init__(self, name: str, bounded: bool) -> None:
        super().__init__(name, bounded)
        self.range, self.time_of_day = Range(), Range()
        self.weekdays: set[int] = set()
        self.sample = Sample(MOST_VALUES if bounded else None)

    def add(self, array: pa.Array, place: Place) -> None:
        """See more moments."""
        micros, missing = arrays.datetimes(array, place)
        known: Int[np.ndarray, " n"] = micros[~missing]
        self.range.add(known, len(micros))
        self.time_of_day.add(known % DAY, len(known))
        self.weekdays |= set(np.unique(known // DAY % 7).tolist())
        self.sample.add(known)

    def column(self) -> Column:
        """A datetime, or nothing to learn from."""
        if reason := self.range.nothing_to_learn:
            return Dropped(self.name, reason)
        varies = {
            "hour": bool(self.time_of_day.low < self.time_of_day.high),
            "weekday": len(self.weekdays) > 2,
            "day of year": float(self.range.high) - float(self.range.low) > 60 * DAY,
        }
        cycles = tuple(cycle for cycle, does in varies.items() if does)
        return Datetime.since(self.name, self.range.missing, int(self.range.low), self.sample.values(), cycles)


class CategoryLearner(Learner):
    """Levels: how often each is there.

    In a stream, once `MOST_COUNTED` levels have been seen, a column in which most values were new until then is text
    to be left out; of another, the rarer half of the levels is forgotten.
    """

    def __init__(self, name: str, bounded: bool, is_text: bool = True) -> None:
        super().__init__(name, bounded)
        self.is_text, self.missing, self.counts = is_text, 0, Counter[str]()
        self.too_many: Dropped | None = None

    def add(self, array: pa.Array, place: Place) -> None:
        """Count more rows."""
        if self.too_many is None:
            counts = count_levels(array, place)
            self.missing += counts.pop(None, 0)
            self.counts.update(counts)
            if self.bounded and len(self.counts) > MOST_COUNTED:
                self._forget()

    def column(self) -> Column:
        """A category, or nothing to learn from."""
        return self.too_many or Category.fit(self.name, self.counts, self.missing)

    def hint(self) -> str:
        """Whether the text looks like numbers or dates."""
        return _text_hint(list(self.counts)) if self.is_text else ""

    def _forget(self) -> None:
        judged = Category.fit(self.name, self.counts, self.missing)
        if isinstance(judged, Dropped):
            self.too_many = Dropped(self.name, judged.reason.replace(" rows", " rows and more"))
            self.counts = Counter(dict(self.counts.most_common(MAX_LEVELS)))
        else:
            frequent = {level for level, _ in self.counts.most_common(MOST_COUNTED // 2)}
            self.counts = Counter({level: count for level, count in self.counts.items() if level in frequent})


class UnknownLearner(Learner):
    """A type that has no encoding, which does not matter as long as there are no values."""

    def add(self, array: pa.Array, place: Place) -> None:
        """See that there are none."""
        if array.null_count < len(array):
            raise place.error(
                f"got {array.type}, which cannot be encoded. Turn it into numbers, text or dates, or leave it out."
            )

    def column(self) -> Column:
        """Nothing to learn from."""
        return Dropped(self.name, "has no values")


LEARNERS: Final[dict[str, type[Learner]]] = {
    "number": NumberLearner,
    "boolean": BooleanLearner,
    "datetime": DatetimeLearner,
    "category": CategoryLearner,
}


def count_levels(array: pa.Array, place: Place) -> Counter[Any]:
    """How often each level is there; None is a missing one."""
    pairs = pc.value_counts(arrays.texts(array, place)).to_pylist()
    return Counter({pair["values"]: pair["counts"] for pair in pairs})


def _text_hint(levels: list[str]) -> str:
    """Return what to do about text that is really numbers or dates, or nothing."""
    text, sample = pa.array(levels, pa.string()), levels[:1000]
    if not levels or arrays.can_cast(text, pa.float64()):
        return "its values are numbers as text; convert them if they are amounts" if levels else ""
    odd = [level for level in sample if not arrays.can_cast(pa.array([level]), pa.float64())]
    if len(odd) <= len(sample) / 10:
        odd = odd or [levels[arrays.first_failure(text, pa.float64())]]
        return f"most of its values are numbers, but not {join_names(odd, 3):.200}; correct these or clear them"
    if arrays.can_cast(pc.replace_substring(text, ",", ""), pa.float64()):
        return "its values are numbers with commas; write 1.5 for 1,5 and 1500 for 1,500"
    if any(arrays.can_cast(reading, kind) for reading, kind in arrays.datetime_readings(text)):
        return "its values are dates as text; convert them to dates"
    return ""

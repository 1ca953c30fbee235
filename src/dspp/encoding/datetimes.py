"""Encoding of dates and times: days since the first training row, and daily, weekly and yearly cycles.

A forecast asks about times that no training row has. So a cycle is an input only if the training rows cover it at least
once, and outside of their range the days stand still: what a trend would do there, the rows do not tell.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int

from dspp.encoding.columns import CHECKS, Column, is_tuple_of_texts, with_mark, write
from dspp.table import arrays
from dspp.table.messages import Place

DAY: Final = 86_400_000_000  # microseconds


def _season(micros: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    date = micros.astype("datetime64[us]").astype("datetime64[D]")
    return np.asarray((date - date.astype("datetime64[Y]")).astype(np.float64) / 365.25)


# The phase of each cycle, from 0 to 1. 1970-01-01 was a Thursday: +3 starts weeks on Mondays.
_CYCLES: Final = {
    "hour": lambda micros: micros % DAY / DAY,
    "weekday": lambda micros: (micros // DAY + 3) % 7 / 7,
    "day of year": _season,
}
# The days from the first to the last training row that cover a cycle once: hourly, daily and monthly rows do.
LENGTHS: Final = {"hour": 23 / 24, "weekday": 6, "day of year": 334}


def _is_moment(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63


_CHECKS: Final[Mapping[str, Callable[[Any], bool]]] = {
    **CHECKS,
    "origin": _is_moment,
    "zoned": lambda value: isinstance(value, bool),
    "latest": _is_moment,
    "cycles": lambda value: is_tuple_of_texts(value, len(_CYCLES)) and set(value) <= set(_CYCLES),
}


@dataclass(frozen=True)
class Datetime(Column):
    """A column of dates or times: days since `origin`, and the cycles along which the training rows vary."""

    kind = "datetime"
    checks = _CHECKS
    missing: bool
    fill: float  # days, the median
    origin: int  # microseconds since 1970, UTC: the first training row
    cycles: tuple[str, ...]
    latest: int  # likewise: the last training row
    zoned: bool  # whether the training rows had a time zone

    @classmethod
    def between(
        cls,
        name: str,
        missing: bool,
        ends: tuple[int, int],
        micros: Int[np.ndarray, " N"],
        cycles: tuple[str, ...],
        zoned: bool,
    ) -> Column:
        """Count days from the first of the two `ends` to the last; the median of `micros` replaces missing values."""
        origin, latest = ends
        return cls(name, missing, float(np.median(_days(micros, origin))), origin, cycles, latest, zoned)

    def ending_with(self, array: pa.Array, place: Place) -> "Datetime":
        """Return the same column with the days ending at the last of these dates."""
        micros, absent = arrays.datetimes(array, place)
        return self if absent.all() else replace(self, latest=int(micros[~absent].max()))

    @property
    def features(self) -> tuple[str, ...]:
        """The days, sine and cosine of each cycle, and the indicator of missing values."""
        waves = [f"{self.name}: {cycle}, {wave}" for cycle in self.cycles for wave in ("sin", "cos")]
        return (f"{self.name} (days)", *waves, *with_mark(self.name, self.missing)[1:])

    @property
    def how(self) -> str:
        """A description of the encoding."""
        cycles = f", and the cycles of {', '.join(self.cycles)}" if self.cycles else ""
        filled = f"; {self.fill:.6g} days where missing, and a column that marks it" if self.missing else ""
        return f"days since {format_moment(self.origin)} UTC up to {format_moment(self.latest)}{cycles}{filled}"

    @property
    def arrow_type(self) -> pa.DataType:
        """Microseconds."""
        return pa.timestamp("us", "UTC" if self.zoned else None)

    def has_missing(self, array: pa.Array, place: Place) -> bool:
        """Return whether a value is missing."""
        return bool(arrays.datetimes(array, place)[1].any())

    def encode(self, array: pa.Array, out: Float[np.ndarray, "n F"], place: Place, impute: bool = False) -> None:
        """Write the days, the cycles and the indicator."""
        array = arrays.moments(array, place)
        arrays.check_zone(array, self.zoned, place)
        micros, absent = arrays.datetimes(array, place)
        inside = micros.clip(self.origin, self.latest)
        write(np.where(absent, np.nan, _days(inside, self.origin)), self.fill, self.missing, out, place, impute)
        for i, cycle in enumerate(self.cycles):
            angle = 2 * np.pi * _CYCLES[cycle](micros)
            out[:, 1 + 2 * i] = np.where(absent, 0.0, np.sin(angle))
            out[:, 2 + 2 * i] = np.where(absent, 0.0, np.cos(angle))


def format_moment(micros: int) -> str:
    """Return a moment, in microseconds since 1970, as text."""
    return str(np.datetime64(micros, "us").astype("datetime64[s]"))


def _days(micros: Int[np.ndarray, " n"], origin: int) -> Float[np.ndarray, " n"]:
    return np.asarray((micros.astype(np.float64) - origin) / DAY)

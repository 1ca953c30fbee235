"""Encoding of dates and times: days since the first training row, and daily, weekly and yearly cycles.

A forecast asks about times that no training row has. So a cycle is an input only if the training rows cover it at least
once, and outside of their range the days stand still: what a trend would do there, the rows do not tell.
"""

from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float

from dspp.encoding.columns import Column, Parsed
from dspp.table import arrays
from dspp.table.messages import Place

DAY: Final = 86_400_000_000  # microseconds


def _season(micros: Parsed) -> Float[np.ndarray, " n"]:
    date = micros.astype(np.int64).astype("datetime64[us]").astype("datetime64[D]")
    return np.asarray((date - date.astype("datetime64[Y]")).astype(np.float64) / 365.25)


# The phase of each cycle, from 0 to 1. 1970-01-01 was a Thursday: +3 starts weeks on Mondays.
_CYCLES: Final = {
    "hour": lambda micros: micros % DAY / DAY,
    "weekday": lambda micros: (micros // DAY + 3) % 7 / 7,
    "day of year": _season,
}
# The days from the first to the last training row that cover a cycle once: hourly, daily and monthly rows do.
LENGTHS: Final = {"hour": 23 / 24, "weekday": 6, "day of year": 334}


@dataclass(frozen=True)
class Datetime(Column):
    """A column of dates or times: days since `origin`, and the cycles along which the training rows vary."""

    kind = "datetime"
    fill: float  # days, the median
    origin: int  # microseconds since 1970, UTC: the first training row
    cycles: tuple[str, ...]
    latest: int  # likewise: the last training row
    zoned: bool  # whether the training rows had a time zone

    @classmethod
    def _fit(cls, name: str, missing: bool, known: Parsed) -> Self:
        first, latest = int(known.min()), int(known.max())
        span = (float(latest) - float(first)) / DAY
        time_of_day = known % DAY
        varies = {
            "hour": bool(time_of_day.min() < time_of_day.max()),
            "weekday": len(np.unique(known // DAY % 7)) > 2,
            "day of year": True,
        }
        is_clock = first >= 0 and latest < DAY  # times without a date are phases of their cycle
        covered = {cycle: span >= length or (cycle == "hour" and is_clock) for cycle, length in LENGTHS.items()}
        cycles = tuple(cycle for cycle, does in varies.items() if does and covered[cycle])
        return cls(name, missing, float(np.median((known - first) / DAY)), first, cycles, latest, zoned=False)

    @classmethod
    def of_moments(cls, name: str, parsed: Parsed, zoned: bool) -> Column:
        """Return the encoding for these microseconds since 1970, NaN where missing, of times with or without a zone."""
        column = cls.learn(name, parsed)
        return replace(column, zoned=zoned) if isinstance(column, cls) else column

    def ending_with(self, parsed: Parsed) -> "Datetime":
        """Return the same column with the days ending at the last of these dates."""
        known = parsed[~np.isnan(parsed)]
        return replace(self, latest=int(known.max())) if len(known) else self

    @property
    def description(self) -> str:
        cycles = f", and the cycles of {', '.join(self.cycles)}" if self.cycles else ""
        days = f"days since {format_moment(self.origin)} UTC up to {format_moment(self.latest)}"
        return days + cycles + self._where_missing(f"{self.fill:.6g} days")

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.timestamp("us", "UTC" if self.zoned else None)

    @property
    def _is_valid(self) -> bool:
        known = set(self.cycles) <= set(_CYCLES) and len(set(self.cycles)) == len(self.cycles)
        return known and max(abs(self.origin), abs(self.latest)) < 2**62

    @property
    def _inputs(self) -> tuple[str, ...]:
        waves = [f"{self.name}: {cycle}, {wave}" for cycle in self.cycles for wave in ("sin", "cos")]
        return (f"{self.name} (days)", *waves)

    def _read(self, array: pa.Array, place: Place) -> Parsed:
        array = arrays.moments(array, place)
        arrays.check_zone(array, self.zoned, place)
        return read_moments(array, place)

    def _write(self, parsed: Parsed, absent: Bool[np.ndarray, " n"], out: Float[np.ndarray, "n F"]) -> None:
        micros = np.where(absent, self.origin, parsed)
        out[:, 0] = np.where(absent, self.fill, (micros.clip(self.origin, self.latest) - self.origin) / DAY)
        for i, cycle in enumerate(self.cycles):
            angle = 2 * np.pi * _CYCLES[cycle](micros)
            out[:, 1 + 2 * i] = np.where(absent, 0.0, np.sin(angle))
            out[:, 2 + 2 * i] = np.where(absent, 0.0, np.cos(angle))


def read_moments(array: pa.Array, place: Place) -> Parsed:
    """Return microseconds since 1970 in UTC, NaN where missing."""
    micros, absent = arrays.datetimes(array, place)
    return np.where(absent, np.nan, micros)


def format_moment(micros: int) -> str:
    """Return a moment, in microseconds since 1970, as text."""
    return str(np.datetime64(micros, "us").astype("datetime64[s]"))

"""Encoding of dates and times: days since the first training row, and daily, weekly and yearly cycles.

A forecast asks about times that no training row has. So a cycle is an input only if the training rows cover it at least
once, and outside of their range the days stand still: what a trend would do there, the rows do not tell.
"""

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Int

from dspp.encoding.columns import Column, Parsed, by_chunk, with_mark, write
from dspp.table import arrays
from dspp.table.messages import Place

DAY: Final = 86_400_000_000  # microseconds
_ABSENT: Final = np.iinfo(np.int64).min  # in place of a missing date


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


@dataclass(frozen=True)
class Datetime(Column):
    """A column of dates or times: days since `origin`, and the cycles along which the training rows vary."""

    kind = "datetime"
    missing: bool
    fill: float  # days, the median
    origin: int  # microseconds since 1970, UTC: the first training row
    cycles: tuple[str, ...]
    latest: int  # likewise: the last training row
    zoned: bool  # whether the training rows had a time zone

    @classmethod
    def fit(cls, name: str, known: Int[np.ndarray, " n"], missing: bool, zoned: bool) -> "Datetime":
        """Return the encoding of these dates, in microseconds since 1970, of which some may be missing."""
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
        return cls(name, missing, float(np.median(_days(known, first))), first, cycles, latest, zoned)

    def ending_with(self, parsed: Parsed) -> "Datetime":
        """Return the same column with the days ending at the last of these dates."""
        known = parsed[~self.is_missing(parsed)]
        return replace(self, latest=int(known.max())) if len(known) else self

    @property
    def is_valid(self) -> bool:
        """Whether the fields are possible."""
        known = set(self.cycles) <= set(_CYCLES) and len(set(self.cycles)) == len(self.cycles)
        moments = max(abs(self.origin), abs(self.latest)) < 2**63
        return super().is_valid and moments and known

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

    def parse(self, values: pa.ChunkedArray, place: Place) -> Parsed:
        """Return microseconds since 1970 in UTC, the smallest integer where missing."""

        def to_micros(array: pa.Array, place: Place) -> Int[np.ndarray, " n"]:
            array = arrays.moments(array, place)
            arrays.check_zone(array, self.zoned, place)
            micros, absent = arrays.datetimes(array, place)
            return np.where(absent, _ABSENT, micros)

        return by_chunk(to_micros, values, place)

    def is_missing(self, parsed: Parsed) -> Bool[np.ndarray, " n"]:
        """Return which values are missing."""
        return np.asarray(parsed == _ABSENT)

    def encode(self, parsed: Parsed, out: Float[np.ndarray, "n F"], place: Place, impute: bool = False) -> None:
        """Write the days, the cycles and the indicator."""
        absent = self.is_missing(parsed)
        micros = np.where(absent, self.origin, parsed)
        days = _days(micros.clip(self.origin, self.latest), self.origin)
        write(np.where(absent, np.nan, days), self.fill, self.missing, out, place, impute)
        for i, cycle in enumerate(self.cycles):
            angle = 2 * np.pi * _CYCLES[cycle](micros)
            out[:, 1 + 2 * i] = np.where(absent, 0.0, np.sin(angle))
            out[:, 2 + 2 * i] = np.where(absent, 0.0, np.cos(angle))


def format_moment(micros: int) -> str:
    """Return a moment, in microseconds since 1970, as text."""
    return str(np.datetime64(micros, "us").astype("datetime64[s]"))


def _days(micros: Int[np.ndarray, " n"], origin: int) -> Float[np.ndarray, " n"]:
    return np.asarray((micros.astype(np.float64) - origin) / DAY)

"""From a table of any columns to a matrix of numbers, learned on the training rows and kept in the model file.

Each input column becomes one or more columns of numbers:

| kind     | columns                                                                                         |
|----------|-------------------------------------------------------------------------------------------------|
| number   | as it is; a length of time in seconds                                                           |
| boolean  | 0 or 1                                                                                          |
| category | 0 or 1 for each level                                                                           |
| datetime | days since the first training row; sine and cosine of hour, weekday and season, where they vary |

and one more, "<name> is missing", where training rows lacked values.
"""

import difflib
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from itertools import chain
from typing import Any, ClassVar, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float, Int
from pyarrow import types

from dspp.data import frames
from dspp.data.frames import Place
from dspp.errors import InputError

MAX_LEVELS: Final = 20  # of a category; rarer ones share a column
MAX_COLUMNS: Final = 10_000  # of a table
MOST_LEVELS: Final = 64  # that a stored encoder may have, should MAX_LEVELS ever grow
LONGEST_TEXT: Final = 10_000  # characters of a name or level
BLOCK: Final = 16_384  # rows encoded at once: the piece of the matrix being filled stays in the cache

_DAY: Final = 86_400_000_000  # microseconds


@dataclass(frozen=True)
class Column(ABC):
    """How one input column is encoded. Making one checks every field, wherever it comes from."""

    kind: ClassVar[str]
    name: str

    def __post_init__(self) -> None:
        for field in fields(self):
            if not _CHECKS[field.name](getattr(self, field.name)):
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

    @classmethod
    def fit(cls, name: str, values: Float[np.ndarray, " N"]) -> Column:
        """Learn from the training values, NaN where missing."""
        known = values[~np.isnan(values)]
        if reason := _nothing_to_learn(known, len(values)):
            return Dropped(name, reason)
        return cls(name, len(known) < len(values), float(2 * np.median(known / 2)))  # halved: 1e308 + 1e308 is no inf

    @property
    def features(self) -> tuple[str, ...]:
        """The name itself, and the mark."""
        return _marked(self.name, self.missing)

    @property
    def how(self) -> str:
        """What is done to the numbers."""
        return "as it is" + (f"; {self.fill:.6g} where missing, and a column that marks it" if self.missing else "")

    @property
    def arrow_type(self) -> pa.DataType:
        """Floating point."""
        return pa.float64()

    def encode(self, array: pa.Array, out: Float[np.ndarray, "n F"], place: Place) -> None:
        """Write the numbers."""
        _write(frames.numbers(array, place), self.fill, self.missing, out, place)


@dataclass(frozen=True)
class Boolean(Column):
    """A column of true (1) and false (0); a missing value is 0, and marked."""

    kind = "boolean"
    missing: bool

    @classmethod
    def fit(cls, name: str, values: Float[np.ndarray, " N"]) -> Column:
        """Learn from the training values: 0, 1, or NaN where missing."""
        known = values[~np.isnan(values)]
        reason = _nothing_to_learn(known, len(values))
        return Dropped(name, reason) if reason else cls(name, len(known) < len(values))

    @property
    def features(self) -> tuple[str, ...]:
        """The name itself, and the mark."""
        return _marked(self.name, self.missing)

    @property
    def how(self) -> str:
        """What is done to true and false."""
        return "true is 1, false is 0" + ("; 0 where missing, and a column that marks it" if self.missing else "")

    @property
    def arrow_type(self) -> pa.DataType:
        """Boolean."""
        return pa.bool_()

    def encode(self, array: pa.Array, out: Float[np.ndarray, "n F"], place: Place) -> None:
        """Write zeros and ones."""
        _write(frames.booleans(array, place), 0.0, self.missing, out, place)


@dataclass(frozen=True)
class Category(Column):
    """A column of levels, compared by their text: a 0/1 column for each, the most frequent level first.

    Levels beyond `MAX_LEVELS` share the column "(other)". Missing values are the level "(missing)" if training had
    any. Two levels alone need one column, 0 for the first and 1 for the second.

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

    def encode(self, array: pa.Array, out: Float[np.ndarray, "n F"], place: Place) -> None:
        """Write the column of each row's level."""
        text = frames.texts(array, place)
        absent = text.is_null().to_numpy(zero_copy_only=False)
        _check_missing(absent, self.missing, place)
        found = pc.index_in(text, pa.array(self.levels, pa.string())).fill_null(-1).to_numpy(zero_copy_only=False)
        if self._is_pair:
            out[:, 0] = np.where(found < 0, 0.5, found)
            return
        if self.other:
            found = np.where(found < 0, len(self.levels), found)
        found = np.where(absent, out.shape[1] - 1, found)
        out[:] = found[:, None] == np.arange(out.shape[1])


def _season(micros: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    date = micros.astype("datetime64[us]").astype("datetime64[D]")
    return np.asarray((date - date.astype("datetime64[Y]")).astype(np.float64) / 365.25)


# The share of its round, from 0 to 1, that a moment has done. 1970-01-01 was a Thursday: +3 starts weeks on Mondays.
_CYCLES: Final = {
    "hour": lambda micros: micros % _DAY / _DAY,
    "weekday": lambda micros: (micros // _DAY + 3) % 7 / 7,
    "day of year": _season,
}


@dataclass(frozen=True)
class Datetime(Column):
    """A column of dates or times: days since `origin`, and the cycles in which the training rows vary."""

    kind = "datetime"
    missing: bool
    fill: float  # days, the median
    origin: int  # microseconds since 1970, UTC: the first training row
    cycles: tuple[str, ...]

    @classmethod
    def fit(cls, name: str, micros: Int[np.ndarray, " N"], missing: Bool[np.ndarray, " N"]) -> Column:
        """Learn from the training rows, in microseconds."""
        known = micros[~missing]
        if reason := _nothing_to_learn(known, len(micros)):
            return Dropped(name, reason)
        days = _days(known, int(known.min()))
        varies = {
            "hour": bool(np.ptp(known % _DAY)),
            "weekday": len(np.unique(known // _DAY % 7)) > 2,
            "day of year": float(days.max()) > 60,
        }
        cycles = tuple(cycle for cycle in _CYCLES if varies[cycle])
        return cls(name, bool(missing.any()), float(np.median(days)), int(known.min()), cycles)

    @property
    def features(self) -> tuple[str, ...]:
        """The days, each cycle's pair, and the mark."""
        waves = [f"{self.name}: {cycle}, {wave}" for cycle in self.cycles for wave in ("sin", "cos")]
        return (f"{self.name} (days)", *waves, *_marked(self.name, self.missing)[1:])

    @property
    def how(self) -> str:
        """Which moment is zero, and which cycles there are."""
        cycles = f", and the cycles of {', '.join(self.cycles)}" if self.cycles else ""
        filled = f"; {self.fill:.6g} days where missing, and a column that marks it" if self.missing else ""
        return f"days since {np.datetime64(self.origin, 'us').astype('datetime64[s]')} UTC{cycles}{filled}"

    @property
    def arrow_type(self) -> pa.DataType:
        """Microseconds without a zone, which are UTC here."""
        return pa.timestamp("us")

    def encode(self, array: pa.Array, out: Float[np.ndarray, "n F"], place: Place) -> None:
        """Write the days, the waves and the mark."""
        micros, absent = frames.datetimes(array, place)
        _write(np.where(absent, np.nan, _days(micros, self.origin)), self.fill, self.missing, out, place)
        for i, cycle in enumerate(self.cycles):
            angle = 2 * np.pi * _CYCLES[cycle](micros)
            out[:, 1 + 2 * i] = np.where(absent, 0.0, np.sin(angle))
            out[:, 2 + 2 * i] = np.where(absent, 0.0, np.cos(angle))


@dataclass(frozen=True)
class TableEncoder:
    """What was learned of a table's columns on the training rows, and the map to numbers that follows from it.

    Columns are found by name: their order does not matter, and others are ignored. A column may arrive in another
    type than in training if its values still read as its kind: numbers and dates as text, categories as integers.

    Attributes:
        columns: How each column is encoded, those left out included.
        notes: What a user should know, such as which columns are left out and why.
    """

    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(names) > MAX_COLUMNS:
            raise InputError(f"got {len(names):,} columns, expected at most {MAX_COLUMNS:,}; choose some of them")
        if len(set(names)) < len(names):
            raise InputError("got two columns of the same name; the encoding is damaged")
        if len(self.notes) > 2 * MAX_COLUMNS or not all(_is_text(note, 2 * LONGEST_TEXT) for note in self.notes):
            raise InputError("expected notes to be strings; the encoding is damaged")

    @classmethod
    def fit(cls, table: pa.Table, where: str = "X") -> Self:
        """Learn the encoding of these rows. Give training rows only: others would leak into the model.

        Raises:
            InputError: There are no rows, nothing to learn from, or a column that cannot be encoded.
        """
        if table.num_rows == 0:
            raise InputError(f"{where}: got 0 rows, expected at least 1. Look at the file or filter this came from.")
        frames.check_names(table.column_names, where)
        fitted = [_fit(table.column(i), Place(where, name)) for i, name in enumerate(table.column_names)]
        encoder = cls(tuple(column for column, _ in fitted), tuple(note for _, note in fitted if note))
        if not encoder.feature_names:
            raise InputError(f"{where}: no column can be learned from: {'; '.join(encoder.notes):.1000}")
        return encoder

    @property
    def column_names(self) -> tuple[str, ...]:
        """The input columns that `transform` needs."""
        return tuple(column.name for column in self._used)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the encoded columns."""
        return tuple(chain.from_iterable(column.features for column in self._used))

    @property
    def source(self) -> tuple[str, ...]:
        """For each encoded column the input column it comes from."""
        return tuple(column.name for column in self._used for _ in column.features)

    @property
    def _used(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if not isinstance(column, Dropped))

    def describe(self) -> list[dict[str, str]]:
        """Return a row for each input column: its name, its kind, and what is done to it."""
        return [{"column": column.name, "kind": column.kind, "how": column.how} for column in self.columns]

    def arrow_types(self) -> dict[str, pa.DataType]:
        """Return the Arrow type that fits each needed column best, for reading files that have no types."""
        return {column.name: column.arrow_type for column in self._used}

    def transform(
        self, table: pa.Table | pa.RecordBatch, first_row: int = 0, where: str = "X"
    ) -> Float[np.ndarray, "N F"]:
        """Return the encoded rows: finite float64, a column for each of `feature_names`.

        Args:
            table: The rows, with at least the columns `column_names`.
            first_row: The number that errors give to the first row.
            where: What errors call the table.

        Raises:
            InputError: A column is missing, or a value does not read as what training had in its column.
        """
        out = np.empty((table.num_rows, len(self.feature_names)))
        start = 0
        for batch in self._select(table, where).to_batches(max_chunksize=BLOCK):
            self._encode(batch, out[start : start + len(batch)], where, first_row + start)
            start += len(batch)
        return out

    def _encode(self, batch: pa.RecordBatch, out: Float[np.ndarray, "n F"], where: str, first_row: int) -> None:
        done = 0
        for column, array in zip(self._used, batch.columns, strict=True):
            width = len(column.features)
            column.encode(array, out[:, done : done + width], Place(where, column.name, first_row))
            done += width

    def _select(self, table: pa.Table | pa.RecordBatch, where: str) -> pa.Table:
        """Return the needed columns in the order of training."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        names = table.column_names
        frames.check_names(names, where)
        for absent in sorted(set(self.column_names).difference(names)):
            close = difflib.get_close_matches(absent, names, 1)
            hint = f"did you mean {close[0]!r}?" if close else "give every column that training had"
            raise InputError(f"{where}: column {absent!r} is missing; {hint}")
        return table.select(list(self.column_names))

    def unseen(self, table: pa.Table | pa.RecordBatch, where: str = "X") -> dict[str, list[str]]:
        """Return up to 5 levels that training did not have, for each category column that has such.

        Columns with a level "(other)" are not listed: what rare levels training had is not kept.
        """
        selected = self._select(table, where)
        found = {}
        for column in self._used:
            if isinstance(column, Category) and not column.other:
                known, seen = {None, *column.levels}, _count(selected.column(column.name), Place(where, column.name))
                found[column.name] = [level for level in seen if level not in known][:5]
        return {name: levels for name, levels in found.items() if levels}

    def to_json(self) -> dict[str, Any]:
        """Return the encoder as plain JSON values."""
        columns = [{"kind": column.kind, **asdict(column)} for column in self.columns]
        plain = [{key: list(v) if isinstance(v, tuple) else v for key, v in column.items()} for column in columns]
        return {"columns": plain, "notes": list(self.notes)}

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Return the encoder that `to_json` wrote.

        Raises:
            InputError: It is anything else; nothing in it is trusted.
        """
        if not isinstance(values, dict) or set(values) != {"columns", "notes"}:
            raise InputError("a table's encoding must be an object of columns and notes; it is damaged")
        columns, notes = values["columns"], values["notes"]
        if not isinstance(columns, list) or not isinstance(notes, list) or len(columns) > MAX_COLUMNS:
            raise InputError(f"a table's encoding must list at most {MAX_COLUMNS:,} columns, and notes; it is damaged")
        encoder = cls(tuple(_column_from_json(column) for column in columns), tuple(notes))
        if not encoder.feature_names:
            raise InputError("a table's encoding must have at least one column; it is damaged")
        return encoder


# ---------------------------------------------------------------- learning one column


def _fit(column: pa.ChunkedArray, place: Place) -> tuple[Column, str]:
    """Return how to encode a column, and a note or nothing."""
    kind = _kind(column.type)
    if column.null_count == len(column):
        return _noted(Dropped(place.column, "has no values"))
    if kind == "category":
        counts = _count(column, place)
        missing = counts.pop(None, 0)
        return _noted(
            Category.fit(place.column, counts, missing),
            "" if types.is_dictionary(column.type) else _text_hint(list(counts)),
        )
    if kind == "datetime":
        parts = [frames.datetimes(chunk, at) for chunk, at in _chunks(column, place)]
        return _noted(Datetime.fit(place.column, *(np.concatenate(part) for part in zip(*parts, strict=True))))
    if kind == "boolean":
        return _noted(Boolean.fit(place.column, _gather(column, place)))
    if kind == "number":
        return _noted(Number.fit(place.column, _gather(column, place)))
    raise place.error(
        f"got {column.type}, which cannot be encoded. Turn it into numbers, text or dates, or leave it out."
    )


def _kind(arrow: pa.DataType) -> str:
    """Return the kind of encoding for an Arrow type, or nothing if there is none."""
    if types.is_dictionary(arrow):
        return "category" if _kind(arrow.value_type) else ""
    tests = {"category": frames.is_text, "number": frames.is_number, "datetime": frames.is_datetime}
    tests["boolean"] = types.is_boolean
    return next((kind for kind, test in tests.items() if test(arrow)), "")


def _chunks(column: pa.ChunkedArray, place: Place) -> Iterator[tuple[pa.Array, Place]]:
    row = place.first_row
    for chunk in column.chunks:
        yield chunk, Place(place.where, place.column, row)
        row += len(chunk)


def _gather(column: pa.ChunkedArray, place: Place) -> Float[np.ndarray, " N"]:
    values = np.concatenate([frames.numbers(chunk, at) for chunk, at in _chunks(column, place)])
    _check_finite(values, place)
    return values


def _count(column: pa.ChunkedArray, place: Place) -> Counter[Any]:
    """Return how often each level is there; None is a missing one."""
    counts: Counter[Any] = Counter()
    for chunk, at in _chunks(column, place):
        for pair in pc.value_counts(frames.texts(chunk, at)).to_pylist():
            counts[pair["values"]] += pair["counts"]
    return counts


def _nothing_to_learn(known: np.ndarray, num_rows: int) -> str:
    """Return why a column has nothing to teach, or nothing if it has."""
    if len(known) == 0:
        return "has no values"
    return "has the same value in all rows" if len(known) == num_rows and known.min() == known.max() else ""


def _noted(column: Column, hint: str = "") -> tuple[Column, str]:
    left_out = f"column {column.name!r} is left out: it {column.how}" if isinstance(column, Dropped) else ""
    return column, left_out + (hint and f"{'; ' if left_out else f'column {column.name!r}: '}{hint}")


def _text_hint(levels: list[str]) -> str:
    """Return what to do about text that is really numbers or dates, or nothing."""
    text, sample = pa.array(levels, pa.string()), levels[:1000]
    if not levels or frames.casts(text, pa.float64()):
        return "its values are numbers as text; convert them if they are amounts" if levels else ""
    odd = [level for level in sample if not frames.casts(pa.array([level]), pa.float64())]
    if len(odd) <= len(sample) / 10:
        odd = odd or [levels[frames.first_failure(text, pa.float64())]]
        return f"most of its values are numbers, but not {frames.listed(odd, 3):.200}; correct these or clear them"
    if frames.casts(pc.replace_substring(text, ",", ""), pa.float64()):
        return "its values are numbers with commas; write 1.5 for 1,5 and 1500 for 1,500"
    if any(frames.casts(reading, kind) for reading, kind in frames.datetime_readings(text)):
        return "its values are dates as text; convert them to dates"
    return ""


# ---------------------------------------------------------------- writing and checking


def _marked(name: str, missing: bool) -> tuple[str, ...]:
    return (name, f"{name} is missing") if missing else (name,)


def _days(micros: Int[np.ndarray, " n"], origin: int) -> Float[np.ndarray, " n"]:
    return np.asarray((micros.astype(np.float64) - origin) / _DAY)


def _write(
    values: Float[np.ndarray, " n"], fill: float, missing: bool, out: Float[np.ndarray, "n F"], place: Place
) -> None:
    """Write values to the first column with `fill` for NaN and, if `missing` ones are expected, a mark to the last."""
    known = np.isfinite(values)
    if not known.all():
        _check_finite(values, place)
        _check_missing(~known, missing, place)
        values = np.where(known, values, fill)
    if missing:
        out[:, -1] = ~known
    out[:, 0] = values


def _check_finite(values: Float[np.ndarray, " n"], place: Place) -> None:
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        raise place.error(
            f"got {values[infinite[0]]}, expected a finite number; correct it or clear it", int(infinite[0])
        )


def _check_missing(absent: Bool[np.ndarray, " n"], expected: bool, place: Place) -> None:
    if not expected and absent.any():
        raise place.error(
            "a value is missing, but training had none in this column; fill it in or train with missing values",
            int(np.argmax(absent)),
        )


def _is_text(value: object, longest: int = LONGEST_TEXT) -> bool:
    """Whether this is a string that a table can hold: one with half of a surrogate pair is not."""
    try:
        return isinstance(value, str) and len(value) <= longest and bool(value.encode() or True)
    except UnicodeEncodeError:
        return False


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_tuple(value: object, longest: int, shortest: int = 0) -> bool:
    """Whether this is a tuple of different strings."""
    return (
        isinstance(value, tuple)
        and shortest <= len(value) <= longest
        and all(_is_text(item) for item in value)
        and len(set(value)) == len(value)
    )


_CHECKS: Final[Mapping[str, Any]] = {
    "name": _is_text,
    "reason": _is_text,
    "missing": lambda value: isinstance(value, bool),
    "other": lambda value: isinstance(value, bool),
    "fill": _is_finite,
    "origin": lambda value: isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63,
    "levels": lambda value: _is_tuple(value, MOST_LEVELS, 1),
    "cycles": lambda value: _is_tuple(value, len(_CYCLES)) and set(value) <= set(_CYCLES),
}


def _column_from_json(values: Any) -> Column:
    kinds: dict[str, Any] = {kind.kind: kind for kind in (Dropped, Number, Boolean, Category, Datetime)}
    if not isinstance(values, dict) or not isinstance(values.get("kind"), str) or values["kind"] not in kinds:
        raise InputError(f"a column's encoding must be an object of one of the kinds {', '.join(kinds)}; it is damaged")
    made = kinds[values["kind"]]
    given = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items() if key != "kind"}
    if set(given) != {field.name for field in fields(made)}:
        raise InputError(f"the encoding of a {made.kind} column has the wrong fields; it is damaged")
    column: Column = made(**given)
    return column

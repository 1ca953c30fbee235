"""Learning the encoding of a column from its values."""

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Shaped
from pyarrow import types

from dspp.encoding.columns import Boolean, Category, Column, Dropped, Number, by_chunk
from dspp.encoding.datetimes import Datetime
from dspp.encoding.durations import Duration
from dspp.table import arrays
from dspp.table.messages import WITH_A_UNIT, Place, join_names

INDEX_NAME: Final = r"__index_level_\d+__|Unnamed: 0"  # how pandas names an index in Parquet, and from CSV
LIKE_A_DATE: Final = r"^\d{1,4}[./-]\d{1,2}[./-]\d{1,4}([ ,T]+\d{1,2}:\d{2}.*)?$"  # 31.01.2024, 1/31/24 6:30 PM


@dataclass(frozen=True)
class Learned:
    """What the values of a column say.

    Attributes:
        column: The encoding.
        hint: Advice to the user about the values, or an empty string.
        counts: The levels of a category with their numbers of rows.
    """

    column: Column
    hint: str = ""
    counts: Counter[str] = field(default_factory=Counter)


def learn_column(values: pa.ChunkedArray, place: Place, kind: pa.DataType | None = None) -> Learned:
    """Learn the encoding of a column.

    Args:
        values: The column.
        place: Its place, for errors.
        kind: The type that the column was given in; None: that of the values.

    Raises:
        InputError: A value is not valid; the error names it.
    """
    name, kind = place.column, values.type if kind is None else kind
    if re.fullmatch(INDEX_NAME, name):
        return Learned(Dropped(name, "is the index of a data frame"), "rename it if it should be an input")
    match arrays.kind_of(kind):
        case "number":
            numbers = by_chunk(arrays.numbers, values, place)
            arrays.check_finite(numbers, place)
            known = numbers[~np.isnan(numbers)]
            if reason := _reason_to_drop(known, len(numbers)):
                return Learned(Dropped(name, reason))
            median = float(2 * np.median(known / 2))  # halved, as 1e308 + 1e308 is inf
            return Learned(Number(name, len(known) < len(numbers), median))
        case "boolean":
            truths = by_chunk(arrays.numbers, values, place)
            known = truths[~np.isnan(truths)]
            reason = _reason_to_drop(known, len(truths))
            return Learned(Dropped(name, reason) if reason else Boolean(name, len(known) < len(truths)))
        case "datetime":
            parts = [arrays.datetimes(chunk, place) for chunk in values.chunks]
            known = np.concatenate([micros[~absent] for micros, absent in parts])
            return Learned(_learn_dates(name, known, len(values), any(map(arrays.has_zone, [values.type]))))
        case "category":
            return _learn_category(values, place, is_text=not types.is_dictionary(kind))
    if values.null_count < len(values):
        raise place.error(f"expected numbers, text, dates or Booleans, got {kind}; convert or drop the column")
    return Learned(Dropped(name, "has no values"))


def _learn_category(values: pa.ChunkedArray, place: Place, is_text: bool) -> Learned:
    """Learn from text, which may be durations or dates, or from levels."""
    name, counts = place.column, _count_levels(values, place)
    missing = counts.pop(None, 0)
    if not is_text:
        return Learned(Category.fit(name, counts, missing), counts=counts)
    if (duration := Duration.fit(name, counts, missing)) is not None:
        return Learned(duration, "its values are durations, read as a number of years", counts)
    if (dates := _dates_as_text(name, counts, missing)) is not None:
        return Learned(dates, "its values are dates as text, read as dates", counts)
    return Learned(Category.fit(name, counts, missing), _text_hint(list(counts)), counts)


def _dates_as_text(name: str, counts: Counter[str], missing: int) -> Column | None:
    """Return the encoding of dates and times that are written as text, as in a CSV file; None for other text."""
    levels = pa.array(counts, pa.string())
    if not counts or not _are_dates(levels):
        return None
    moments = arrays.moments(levels, Place("", name))
    micros, _ = arrays.datetimes(moments, Place("", name))
    known = np.repeat(micros, np.fromiter(counts.values(), np.int64, len(micros)))
    return _learn_dates(name, known, len(known) + missing, arrays.has_zone(moments.type))


def _learn_dates(name: str, known: Shaped[np.ndarray, " n"], rows: int, zoned: bool) -> Column:
    reason = _reason_to_drop(known, rows)
    return Dropped(name, reason) if reason else Datetime.fit(name, known, len(known) < rows, zoned)


def _reason_to_drop(known: Shaped[np.ndarray, " n"], rows: int) -> str:
    """Return why a column is not informative, or an empty string; a single row is not enough to tell."""
    if not len(known):
        return "has no values"
    same = 1 < len(known) == rows and known.min() == known.max()
    return "has the same value in all rows" if same else ""


def _count_levels(values: pa.ChunkedArray, place: Place) -> Counter[Any]:
    """Return the number of rows of each level; None stands for missing values."""
    counts = Counter[Any]()
    for chunk in values.chunks:
        if types.is_dictionary(chunk.type) and len(chunk.dictionary) <= len(chunk):  # each level is cleaned once
            numbers = np.bincount(chunk.indices.drop_null().to_numpy(), minlength=len(chunk.dictionary))
            pairs = zip(arrays.texts(chunk.dictionary, place).to_pylist(), numbers.tolist(), strict=True)
            counts.update({None: chunk.indices.null_count})
        else:
            found = pc.value_counts(arrays.texts(chunk, place)).to_pylist()
            pairs = ((pair["values"], pair["counts"]) for pair in found)  # type: ignore[assignment]
        for level, number in pairs:
            counts[level] += number
    return +counts


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

"""Learning the encoding of a column from its values."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from dspp.encoding.columns import (
    Boolean,
    Category,
    Column,
    Dropped,
    Duration,
    Number,
    by_chunk,
    read_numbers,
    read_years,
)
from dspp.encoding.datetimes import Datetime, read_moments
from dspp.table import arrays
from dspp.table.messages import WITH_A_UNIT, Place, join_names

INDEX_NAME: Final = r"__index_level_\d+__|Unnamed: 0"  # how pandas names an index in Parquet, and from CSV
LIKE_A_DATE: Final = r"^\d{1,4}[./-]\d{1,2}[./-]\d{1,4}([ ,T]+\d{1,2}:\d{2}.*)?$"  # 31.01.2024, 1/31/24 6:30 PM


class Learned(NamedTuple):
    """What the values of a column say."""

    column: Column
    hint: str = ""  # advice to the user about the values
    levels: Sequence[str] = ()  # of a category, the most frequent first


def learn_column(values: pa.ChunkedArray, place: Place, given: pa.DataType | None = None) -> Learned:
    """Learn the encoding of a column that was given in this type; None: that of its values.

    Raises:
        InputError: A value is not valid; the error names it.
    """
    name, given = place.column, values.type if given is None else given
    if re.fullmatch(INDEX_NAME, name):
        return Learned(Dropped(name, reason="is the index of a data frame"), "rename it if it should be an input")
    match arrays.kind_of(given):
        case "number":
            return Learned(Number.learn(name, by_chunk(read_numbers, values, place)))
        case "boolean":
            return Learned(Boolean.learn(name, by_chunk(arrays.booleans, values, place)))
        case "datetime":
            moments = by_chunk(read_moments, values, place)
            return Learned(Datetime.of_moments(name, moments, arrays.has_zone(values.type)))
        case "category":
            return _learn_category(values, place, is_text=not types.is_dictionary(given))
    if values.null_count < len(values):
        raise place.error(f"expected numbers, text, dates or Booleans, got {given}; convert or drop the column")
    return Learned(Dropped(name, reason="has no values"))


def _learn_category(values: pa.ChunkedArray, place: Place, is_text: bool) -> Learned:
    """Learn from text, which may be durations or dates, or from levels."""
    name, counts = place.column, _count_levels(values, place)
    missing = counts.pop(None, 0)
    levels = sorted(counts, key=lambda level: (-counts[level], level))
    text, rows = pa.array(levels, pa.string()), [*(counts[level] for level in levels), missing]
    if is_text and len(levels) > 1 and not np.isnan(years := read_years(text)).any():
        column = Duration.learn(name, np.repeat([*years, np.nan], rows))
        return Learned(column, "its values are durations, read as a number of years")
    if is_text and levels and _are_dates(text):
        moments = arrays.moments(text, place)
        parsed = np.repeat([*read_moments(moments, place), np.nan], rows)
        column = Datetime.of_moments(name, parsed, arrays.has_zone(moments.type))
        return Learned(column, "its values are dates as text, read as dates")
    column = Category.of_levels(name, levels, counts.total(), missing > 0)
    return Learned(column, _text_hint(levels) if is_text else "", levels)


def _count_levels(values: pa.ChunkedArray, place: Place) -> Counter[Any]:
    """Return the number of rows of each level; None stands for missing values."""
    counts = Counter[Any]()
    for chunk in values.chunks:
        found = pc.value_counts(chunk)  # so that each value is cleaned once
        levels = arrays.texts(arrays.decode(found.field("values")), place).to_pylist()
        for level, rows in zip(levels, found.field("counts").to_pylist(), strict=True):
            counts[level] += rows
    return counts


def _are_dates(text: pa.Array) -> bool:
    """Return whether all strings can be parsed as dates or times, as in a CSV file."""
    return any(arrays.can_cast(reading, kind) for reading, kind in arrays.datetime_readings(text))


def _text_hint(levels: list[str]) -> str:
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

"""Conversion of Arrow columns to NumPy arrays: numbers, booleans, dates, and text parsed as any of these."""

import math
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float, Int
from pyarrow import types

from dspp.table.messages import LIKE_A_NUMBER, Place, explain_classes, first_line

# Text that stands for a missing value, in CSV files as well as in text columns of data frames, Parquet and Arrow files.
# The word "none" is kept, as it may mean "no garage".
MISSING: Final = ("", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None")

BLOCK: Final = 16_384  # rows converted at once, so that the block stays in the CPU cache

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
# With and without a time zone. Nanoseconds come second because their range ends in the year 2262.
_TIMESTAMPS = [pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")]
_NAMES = {"double": "a number", "bool": "true or false", "int64": "a whole number"}


def decode(array: pa.Array) -> pa.Array:
    """Return the values of a dictionary-encoded column; return any other column unchanged."""
    return array.dictionary_decode() if types.is_dictionary(array.type) else array


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds strings."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds numbers or durations."""
    return any(test(kind) for test in (types.is_integer, types.is_floating, types.is_decimal, types.is_duration))


def is_datetime(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds dates, timestamps or times of day."""
    return bool(types.is_date(kind) or types.is_timestamp(kind) or types.is_time(kind))


def kind_of(arrow: pa.DataType) -> str:
    """Return the kind of encoding for an Arrow type, or an empty string if the type is not supported."""
    if types.is_dictionary(arrow):
        return "category" if kind_of(arrow.value_type) else ""
    tests = {"category": is_text, "number": is_number, "datetime": is_datetime}
    tests["boolean"] = types.is_boolean
    return next((kind for kind, test in tests.items() if test(arrow)), "")


def check_finite(values: Float[np.ndarray, " n"], place: Place) -> None:
    """Raise `InputError` for the first infinite number; NaN, a missing value, is allowed."""
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        problem = f"expected a finite number, got {values[infinite[0]]}; correct it or clear it"
        raise place.error(problem, int(infinite[0]))


def check_no_classes(array: pa.Array, place: Place) -> None:
    """Raise `InputError` for a column of text in which no cell begins like a number."""
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if not is_text(array.type):
        return
    text = clean(array).drop_null()
    if len(text) and not pc.any(pc.match_substring_regex(text, LIKE_A_NUMBER)).as_py():
        raise place.error(explain_classes(text.unique().to_pylist(), len(text)))


def simplify_types(table: Any) -> Any:
    """Return a table or batch with the same values in types that Arrow can select rows from and concatenate."""
    schema = simplify_schema(table.schema)
    return table if schema.types == table.schema.types else table.cast(schema)


def simplify_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that `simplify_types` can_cast to."""
    return pa.schema([(field.name, _simple_type(field.type)) for field in schema])


def _simple_type(kind: pa.DataType) -> pa.DataType:
    """Replace views, from which Arrow cannot select rows, and widen the indices of categories for joins."""
    if types.is_string_view(kind):
        return pa.large_string()
    if types.is_binary_view(kind):
        return pa.large_binary()
    if types.is_dictionary(kind):  # int8 is too small for the categories of two files together
        return pa.dictionary(pa.int32(), _simple_type(kind.value_type), kind.ordered)
    if types.is_struct(kind):
        return pa.struct([field.with_type(_simple_type(field.type)) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        list_of = pa.list_ if types.is_list(kind) else pa.large_list
        return list_of(kind.value_field.with_type(_simple_type(kind.value_type)))
    return kind


def numbers(array: pa.Array, place: Place) -> Float[np.ndarray, " n"]:
    """Return a column as float64, NaN where missing; text is parsed, true becomes 1, durations are in seconds."""
    kind = array.type
    if types.is_dictionary(kind):
        return numbers(array.dictionary_decode(), place)
    if types.is_duration(kind):
        return numbers(array.cast(pa.int64()), place) / _PER_SECOND[kind.unit]
    if is_text(kind):
        array = parse(array, pa.float64(), place)
    elif not (is_number(kind) or types.is_boolean(kind) or types.is_null(kind)):
        raise place.error(f"expected numbers, got {kind}")
    if array.type != pa.float64():
        array = array.cast(pa.float64(), safe=False)  # integers above 2⁵³ are rounded
    array = array.fill_null(math.nan)
    data = array.buffers()[1]  # `to_numpy` would import pandas, which takes half a second
    return np.empty(0) if data is None else np.frombuffer(data, np.float64, len(array), 8 * array.offset)


def number_columns(table: pa.Table, place: Place) -> Float[np.ndarray, "N K"]:
    """Return a table of numbers as an array, NaN where missing, filled in blocks that stay in the CPU cache."""
    out = np.empty(table.shape)
    start = 0
    for batch in table.to_batches(max_chunksize=BLOCK):
        for k, label in enumerate(table.column_names):
            out[start : start + len(batch), k] = numbers(batch.column(k), place.of(label, start))
        start += len(batch)
    return out


def booleans(array: pa.Array, place: Place) -> Float[np.ndarray, " n"]:
    """Return a Boolean column as 1 and 0, NaN where missing."""
    values = numbers(parse(array, pa.bool_(), place) if is_text(array.type) else array, place)
    odd = np.flatnonzero((values != 0) & (values != 1) & ~np.isnan(values))
    if len(odd):
        raise place.error(f"expected true or false, got {values[odd[0]]:g}", int(odd[0]))
    return values


def datetimes(array: pa.Array, place: Place) -> tuple[Int[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Return microseconds since 1970 in UTC (since midnight for times of day) and a mask of the missing values."""
    array = moments(array, place)
    return _to_microseconds(array, place), np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def moments(array: pa.Array, place: Place) -> pa.Array:
    """Return a column of dates, timestamps or times of day, parsed where it is text."""
    array = decode(array)
    kind = array.type
    if is_text(kind):
        return parse_datetimes(array, place)
    if not (is_datetime(kind) or types.is_null(kind)):
        raise place.error(f"expected dates or times, got {kind}")
    return array


def has_zone(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds timestamps with a time zone."""
    return types.is_timestamp(kind) and kind.tz is not None


def check_zone(array: pa.Array, zoned: bool, place: Place) -> None:
    """Raise `InputError` for times with a time zone where training had none, or the other way round."""
    if array.null_count == len(array) or has_zone(array.type) == zoned:
        return
    if zoned:
        raise place.error(
            "expected times with a time zone, as in training, got none; add it, as in .dt.tz_localize('UTC'), or "
            "2024-01-31T18:30Z in a file"
        )
    raise place.error(
        "expected times without a time zone, as in training, got some with one; convert them to the clock of the "
        "training rows and leave out the zone, as in .dt.tz_convert('Europe/Berlin').dt.tz_localize(None)"
    )


def texts(array: pa.Array, place: Place) -> pa.Array:
    """Return a column as stripped strings, null where missing or where the text is one of `MISSING`."""
    kind = array.type
    if types.is_dictionary(kind):
        if len(array.dictionary) > len(array):
            return texts(array.dictionary_decode(), place)
        return texts(array.dictionary, place).take(array.indices)
    if types.is_floating(kind):
        array = pc.if_else(pc.is_nan(array), None, array)  # NaN is missing; 1.0 becomes "1", like the integer
    elif not (is_text(kind) or is_number(kind) or is_datetime(kind) or types.is_boolean(kind) or types.is_null(kind)):
        raise place.error(f"expected text or other categories, got {kind}")
    return clean(array)


def clean(text: pa.Array) -> pa.Array:
    """Strip strings and replace those that stand for a missing value by null."""
    text = pc.utf8_trim_whitespace(text.cast(pa.string()))
    return pc.if_else(pc.is_in(text, pa.array(MISSING, pa.string())), None, text)


def intern_texts(table: pa.Table, place: Place) -> pa.Table:
    """Return the table with text as dictionaries of stripped strings: each value is cleaned once, then each level."""
    for number, field in enumerate(table.schema):
        if is_text(field.type):
            clean = [texts(chunk, place) for chunk in table.column(number).chunks]
            levels = pa.chunked_array(clean, pa.string()).dictionary_encode().combine_chunks()
            table = table.set_column(number, field.name, levels)
    return table


def parse(text: pa.Array, kind: pa.DataType, place: Place) -> pa.Array:
    """Return strings as values of another type, or raise `InputError` for the first that cannot be parsed."""
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        text = clean(text)
    if can_cast(text, kind):
        return text.cast(kind)
    row = first_failure(text, kind)
    raise place.error(f"expected {_NAMES.get(str(kind), str(kind))}, got {text[row].as_py()!r:.60}", row)


def can_cast(text: pa.Array, kind: pa.DataType) -> bool:
    """Return whether all these strings can be parsed as this type."""
    try:
        text.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def first_failure(text: pa.Array, kind: pa.DataType) -> int:
    """Return the index of the first string that cannot be parsed as this type; there must be one."""
    good, bad = 0, len(text)  # all before `good` parse, one before `bad` does not
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if can_cast(text[good:middle], kind) else (good, middle)
    return good


def datetime_readings(text: pa.Array) -> list[tuple[pa.Array, pa.DataType]]:
    """Return the ways to parse strings as dates and times: ISO 8601 with or without a zone, or a time of day."""
    on_the_first_day = pc.binary_join_element_wise("1970-01-01", text, " ")
    return [(text, kind) for kind in _TIMESTAMPS] + [(on_the_first_day, kind) for kind in _TIMESTAMPS[::2]]


def parse_datetimes(text: pa.Array, place: Place) -> pa.Array:
    """Parse strings as timestamps, all in one format, or raise `InputError` for the row where the best one fails."""
    readings = datetime_readings(clean(text))
    for attempt, kind in readings:
        if can_cast(attempt, kind):
            return attempt.cast(kind)
    row = max(first_failure(attempt, kind) for attempt, kind in readings)
    if any(can_cast(attempt[row : row + 1], kind) for attempt, kind in readings):
        raise place.error(
            f"expected a date or time in the format of the rows before, got {text[row].as_py()!r:.60}; give all of "
            "them a time zone, or none",
            row,
        )
    raise place.error(f"expected a date or time such as 2024-01-31 18:30:00, got {text[row].as_py()!r:.60}", row)


def _to_microseconds(array: pa.Array, place: Place) -> Int[np.ndarray, " n"]:
    if types.is_time(array.type):
        array = array.cast(pa.time64("us"), safe=False)
    else:
        nanoseconds = types.is_timestamp(array.type) and array.type.unit == "ns"  # truncated, not rejected
        try:
            array = array.cast(pa.timestamp("us"), safe=not nanoseconds)
        except pa.ArrowInvalid as problem:
            raise place.error(f"expected dates within the range of timestamps ({first_line(problem)})") from None
    return np.asarray(array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))

"""Data frames of any library as Arrow tables and back, and the columns of an Arrow table as numpy arrays.

Neither pandas nor polars is ever imported here: a frame of theirs exists only where its owner has imported them.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Float, Int, Shaped
from pyarrow import types

from dspp.errors import InputError

# What people write for a value they do not have; a column of text keeps "none", which may mean "no garage".
MISSING: Final = ("", "?", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "None")

_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
# With and without a time zone; nanoseconds only where microseconds fail, as they end in the year 2262.
_TIMESTAMPS = [pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")]
_CALLED = {"double": "a number", "bool": "true or false", "int64": "a whole number"}


@dataclass(frozen=True)
class Place:
    """Where a column stands, for errors: the table or file it is in, its name, and the number of its first row.

    In a text file `line_of` gives the line of a row.
    """

    where: str
    column: str
    first_row: int = 0
    line_of: Callable[[int], int] | None = None

    def error(self, problem: str, row: int | None = None) -> InputError:
        """Return, not raise, an error that names the column and, if given, the row."""
        at_row = "" if row is None else f", row {self.first_row + row}"
        if row is not None and self.line_of is not None:
            at_row += f" (line {self.line_of(self.first_row + row)})"
        return InputError(f"{self.where}: column {self.column!r}{at_row}: {problem}")


# ---------------------------------------------------------------- frames


def is_frame(X: object) -> bool:
    """Whether X is a table whose columns have names: of pandas, polars, Arrow, or anything that exports itself so.

    A series counts as a frame of one column; arrays, tensors and lists do not.
    """
    if _is_series(X) or _is_a(X, "pandas", "DataFrame") or _is_a(X, "polars", "DataFrame"):
        return True
    return hasattr(X, "__arrow_c_stream__") and isinstance(_names(X), Sequence)


def has_string_names(X: Any, name: str = "X") -> bool:
    """Whether the columns of a frame are named by strings; where none is, it is best read as a plain array.

    Raises:
        InputError: Some names are strings and others are not, so that neither reading is safe.
    """
    labels = _names(X) or ()
    odd = [label for label in labels if not isinstance(label, str)]
    if odd and len(odd) < len(labels):
        raise InputError(
            f"{name}: expected all column names to be strings, got {listed(odd)} among strings. "
            f"Rename them: {name}.columns = {name}.columns.astype(str)."
        )
    return not odd


def to_arrow(X: Any, name: str = "X") -> pa.Table:
    """Return a frame as an Arrow table of one column a feature; the index of pandas is left out.

    Args:
        X: Anything `is_frame` accepts. It is not changed, but the table may share its memory.
        name: What to call it in an error, and the column of a series without a name.

    Raises:
        InputError: It is no frame, a column's name is no string or is there twice, or a column holds values of
            different kinds.
    """
    if not is_frame(X):
        raise InputError(f"{name}: expected a data frame, got {type(X).__name__}. Use pandas, polars or Arrow.")
    if _is_series(X):
        named = isinstance(X.name, str) and X.name != ""
        X = X.to_frame(X.name if named else name)
    check_names(list(_names(X) or ()), name)
    if _is_a(X, "pandas", "DataFrame"):
        return pa.table({label: _from_pandas(X.iloc[:, i], label, name) for i, label in enumerate(X.columns)})
    try:
        return X.to_arrow() if _is_a(X, "polars", "DataFrame") else pa.table(X)
    except Exception as problem:  # each library has its own, and none is of ours to import
        raise InputError(f"{name}: cannot be turned into an Arrow table ({first_line(problem)})") from None


def frame_like(X: Any, columns: Mapping[str, Shaped[np.ndarray, " N"]]) -> Any:
    """Return a frame of these columns from the library that X is of; with the same index, if it is of pandas."""
    if _is_a(X, "pandas", "DataFrame", "Series"):
        return sys.modules["pandas"].DataFrame(dict(columns), index=X.index)
    if _is_a(X, "polars", "DataFrame", "Series"):
        return sys.modules["polars"].DataFrame(dict(columns))
    return pa.table(dict(columns))


def series_like(X: Any, name: str, values: Shaped[np.ndarray, " N"]) -> Any:
    """Return one column from the library that X is of; Arrow columns have no name."""
    if _is_a(X, "pandas", "DataFrame", "Series"):
        return sys.modules["pandas"].Series(np.array(values), index=X.index, name=name)
    if _is_a(X, "polars", "DataFrame", "Series"):
        return sys.modules["polars"].Series(name, values)
    return pa.array(values) if isinstance(X, pa.RecordBatch) else pa.chunked_array([values])


def _is_a(X: object, library: str, *kinds: str) -> bool:
    module = sys.modules.get(library)
    return any(isinstance(X, getattr(module, kind, ())) for kind in kinds)


def _is_series(X: object) -> bool:
    return _is_a(X, "pandas", "Series") or _is_a(X, "polars", "Series")


def _names(X: Any) -> Sequence[object] | None:
    """Return the names of the columns, or None for what has none."""
    if _is_series(X):
        return [X.name]
    names = getattr(X, "column_names", None) or getattr(X, "columns", None)
    return None if names is None or callable(names) else list(names)


def check_names(names: list[Any], where: str) -> None:
    """Raise `InputError` unless there are names, all of them strings, each there once."""
    odd = [name for name in names if not isinstance(name, str)]
    twice = sorted({str(name) for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if not names:
        raise InputError(f"{where}: got 0 feature(s) while a minimum of 1 is required. Give at least one column.")
    if odd:
        raise InputError(f"{where}: expected column names to be strings, got {listed(odd)}. Rename these columns.")
    if twice:
        raise InputError(f"{where}: expected each column name once, got {listed(twice)} more than once. Rename one.")


def listed(names: Sequence[object], limit: int = 5) -> str:
    """Return the first of these names, for a message."""
    return ", ".join(repr(name) for name in names[:limit]) + (", …" if len(names) > limit else "")


def first_line(problem: Exception) -> str:
    """Return what an error says, short enough for a message of ours."""
    return (str(problem).splitlines() or [type(problem).__name__])[0][:200]


def _from_pandas(series: Any, name: str, where: str) -> pa.Array | pa.ChunkedArray:
    """Return a column of pandas as Arrow; categories that Arrow cannot hold (intervals, mixed) go by their text."""
    if hasattr(series, "sparse"):
        series = series.sparse.to_dense()
    try:
        if series.dtype == object and _is_mixed(series):
            raise TypeError("its values are of different kinds")
        if hasattr(series, "cat") and not _is_plain(series.cat.categories):
            series = series.cat.rename_categories(str)
        return pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
        raise _odd_value(series, Place(where, name), problem) from None


def _is_mixed(series: Any) -> bool:
    """Whether an object column holds values of different kinds, some of which Arrow would merge: 2.5 and True."""
    values = series.dropna()
    kind = sys.modules["pandas"].api.types.infer_dtype(values)
    return kind in ("mixed", "mixed-integer") and len({_family(value) for value in values}) > 1


def _is_plain(categories: Any) -> bool:
    try:
        kind = pa.array(categories, from_pandas=True).type
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return not types.is_nested(kind) and not isinstance(kind, pa.BaseExtensionType)


def _odd_value(series: Any, place: Place, problem: Exception) -> InputError:
    """Return the error for a column that is no Arrow column: the first value of another type than those before."""
    rows = np.flatnonzero(~np.asarray(series.isna()))
    first = series.iloc[rows[0]] if len(rows) else None
    for row in rows:
        if _family(series.iloc[row]) is not _family(first):
            got, expected = series.iloc[row], type(first).__name__
            return place.error(
                f"got {got!r:.40} ({type(got).__name__}) in a column that starts with {expected} values. "
                "Make them all of one kind, or all text with .astype(str).",
                int(row),
            )
    return place.error(f"its values cannot be used ({first_line(problem)}). Convert it, or leave it out.")


def _family(value: object) -> type:
    """Return the type of a value, one for all numbers."""
    if isinstance(value, bool | np.bool_):
        return bool
    return float if isinstance(value, int | float | np.integer | np.floating) else type(value)


# ---------------------------------------------------------------- columns as numpy arrays


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type holds strings."""
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether a column of this type holds numbers, lengths of time included."""
    return any(test(kind) for test in (types.is_integer, types.is_floating, types.is_decimal, types.is_duration))


def is_datetime(kind: pa.DataType) -> bool:
    """Whether a column of this type holds dates, timestamps or times of day."""
    return bool(types.is_date(kind) or types.is_timestamp(kind) or types.is_time(kind))


def numbers(array: pa.Array, place: Place) -> Float[np.ndarray, " n"]:
    """Return a column as float64, NaN where missing; text is parsed, true is 1, a length of time is in seconds."""
    kind = array.type
    if types.is_dictionary(kind):
        return numbers(array.dictionary_decode(), place)
    if types.is_duration(kind):
        return numbers(array.cast(pa.int64()), place) / _PER_SECOND[kind.unit]
    if is_text(kind):
        array = parse(array, pa.float64(), place)
    elif not (is_number(kind) or types.is_boolean(kind) or types.is_null(kind)):
        raise place.error(f"got {kind}, expected numbers")
    if array.type != pa.float64():
        array = array.cast(pa.float64(), safe=False)  # integers above 2⁵³ are rounded
    return np.asarray(array.to_numpy(zero_copy_only=False))


def booleans(array: pa.Array, place: Place) -> Float[np.ndarray, " n"]:
    """Return a column of true and false as 1 and 0, NaN where missing."""
    values = numbers(parse(array, pa.bool_(), place) if is_text(array.type) else array, place)
    odd = np.flatnonzero((values != 0) & (values != 1) & ~np.isnan(values))
    if len(odd):
        raise place.error(f"got {values[odd[0]]:g}, expected true or false", int(odd[0]))
    return values


def datetimes(array: pa.Array, place: Place) -> tuple[Int[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Return a column as microseconds since 1970 in UTC (a time of day: since midnight), and which are missing."""
    kind = array.type
    if types.is_dictionary(kind):
        return datetimes(array.dictionary_decode(), place)
    if is_text(kind):
        array = parse_datetimes(array, place)
    elif not (is_datetime(kind) or types.is_null(kind)):
        raise place.error(f"got {kind}, expected dates or times")
    return _micros(array, place), np.asarray(array.is_null().to_numpy(zero_copy_only=False))


def texts(array: pa.Array, place: Place) -> pa.Array:
    """Return a column as strings without space around them; null where missing or empty."""
    kind = array.type
    if types.is_dictionary(kind):
        if len(array.dictionary) > len(array):
            return texts(array.dictionary_decode(), place)
        return texts(array.dictionary, place).take(array.indices)
    if types.is_floating(kind):
        array = pc.if_else(pc.is_nan(array), None, array)  # NaN is missing; 1.0 becomes "1", as the integer does
    elif not (is_text(kind) or is_number(kind) or is_datetime(kind) or types.is_boolean(kind) or types.is_null(kind)):
        raise place.error(f"got {kind}, expected text or another category")
    text = pc.utf8_trim_whitespace(array.cast(pa.string()))
    return pc.if_else(pc.equal(text, ""), None, text)


def clean(text: pa.Array) -> pa.Array:
    """Return strings without space around them, and null for every mark of a missing value."""
    text = pc.utf8_trim_whitespace(text.cast(pa.string()))
    return pc.if_else(pc.is_in(text, pa.array(MISSING)), None, text)


def parse(text: pa.Array, kind: pa.DataType, place: Place) -> pa.Array:
    """Return strings as values of another type.

    Raises:
        InputError: One of them does not read as such; the error names its row.
    """
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        text = clean(text)
    if casts(text, kind):
        return text.cast(kind)
    row = first_failure(text, kind)
    raise place.error(f"got {text[row].as_py()!r:.60}, expected {_CALLED.get(str(kind), str(kind))}", row)


def casts(text: pa.Array, kind: pa.DataType) -> bool:
    """Whether every one of these strings reads as this type."""
    try:
        text.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def first_failure(text: pa.Array, kind: pa.DataType) -> int:
    """Return the first of these strings that does not read as this type; there must be one."""
    good, bad = 0, len(text)  # all before `good` read, one before `bad` does not
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if casts(text[good:middle], kind) else (good, middle)
    return good


def datetime_readings(text: pa.Array) -> list[tuple[pa.Array, pa.DataType]]:
    """Return the ways to read strings as dates and times: ISO 8601 with or without a zone, or a time of day."""
    on_the_first_day = pc.binary_join_element_wise("1970-01-01", text, " ")
    return [(text, kind) for kind in _TIMESTAMPS] + [(on_the_first_day, kind) for kind in _TIMESTAMPS[::2]]


def parse_datetimes(text: pa.Array, place: Place) -> pa.Array:
    """Return strings as timestamps, all read in the same way; see `datetime_readings`.

    Raises:
        InputError: No way reads them all; the error names the row where the best one ends.
    """
    readings = datetime_readings(clean(text))
    for attempt, kind in readings:
        if casts(attempt, kind):
            return attempt.cast(kind)
    row = max(first_failure(attempt, kind) for attempt, kind in readings)
    raise place.error(f"got {text[row].as_py()!r:.60}, expected a date or time such as 2024-01-31 18:30:00", row)


def _micros(array: pa.Array, place: Place) -> Int[np.ndarray, " n"]:
    if types.is_time(array.type):
        array = array.cast(pa.time64("us"), safe=False)
    else:
        nanoseconds = types.is_timestamp(array.type) and array.type.unit == "ns"  # cut, not rejected
        try:
            array = array.cast(pa.timestamp("us"), safe=not nanoseconds)
        except pa.ArrowInvalid as problem:
            raise place.error(f"a date is out of range ({first_line(problem)})") from None
    return np.asarray(array.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))

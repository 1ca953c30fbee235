"""Conversion between data frames of any library and Arrow tables.

This module imports neither pandas nor polars: whoever passes such a frame has already imported them.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Shaped
from pyarrow import types

from dspp.errors import InputError
from dspp.table.arrays import simplify_types
from dspp.table.messages import Place, check_names, first_line, join_names


def is_frame(X: object) -> bool:
    """Return whether X is a table with named columns: pandas, polars, Arrow, or anything that exports Arrow streams.

    A series counts as a frame of one column; arrays, tensors and lists are not frames.
    """
    if _is_series(X) or _is_a(X, "pandas", "DataFrame") or _is_a(X, "polars", "DataFrame"):
        return True
    return hasattr(X, "__arrow_c_stream__") and isinstance(_names(X), Sequence)


def has_string_names(X: Any, name: str = "X") -> bool:
    """Return whether the column names of a frame are strings; if none is, treat the frame as an array.

    Raises:
        InputError: Some names are strings and others are not, so that both interpretations are unsafe; or the columns
            are a MultiIndex of pandas.
    """
    labels = _names(X) or ()
    if not _is_series(X) and any(isinstance(label, tuple) for label in labels):
        raise InputError(
            f"{name}: expected one name per column, got several levels as in {labels[0]!r:.60}; flatten the columns: "
            f"{name}.columns = ['_'.join(map(str, names)) for names in {name}.columns]"
        )
    odd = [label for label in labels if not isinstance(label, str)]
    if odd and len(odd) < len(labels):
        raise InputError(
            f"{name}: expected all column names to be strings, got {join_names(odd)} among strings; "
            f"rename them with {name}.columns = {name}.columns.astype(str)"
        )
    return not odd


def to_arrow(X: Any, name: str = "X") -> pa.Table:
    """Return a frame as an Arrow table without the index of pandas.

    Args:
        X: Anything `is_frame` accepts. It is not modified, but the table may share its memory.
        name: The name used in errors, and for the column of a series without a name.

    Raises:
        InputError: X is not a frame, a column name is not a string or not unique, or a column has values of different
            types.
    """
    if not is_frame(X):
        raise InputError(f"{name}: expected a data frame, got {type(X).__name__}; use pandas, polars or Arrow")
    if _is_series(X):
        named = isinstance(X.name, str) and X.name != ""
        X = X.to_frame(X.name if named else name)
    check_names(list(_names(X) or ()), name)
    if _is_a(X, "pandas", "DataFrame"):
        return simplify_types(
            pa.table({label: _from_pandas(X.iloc[:, i], label, name) for i, label in enumerate(X.columns)})
        )
    try:
        return simplify_types(_from_polars(X, name) if _is_a(X, "polars", "DataFrame") else pa.table(X))
    except InputError:
        raise
    except Exception as problem:  # each library raises its own exceptions
        raise InputError(
            f"{name}: cannot convert {type(X).__name__} to an Arrow table ({first_line(problem)})"
        ) from None


def frame_like(X: Any, columns: Mapping[str, Shaped[np.ndarray, " N"]]) -> Any:
    """Return these columns as a frame of the same library as X, with the index of a pandas frame."""
    if _is_a(X, "pandas", "DataFrame", "Series"):
        return sys.modules["pandas"].DataFrame(dict(columns), index=X.index)
    if _is_a(X, "polars", "DataFrame", "Series"):
        return sys.modules["polars"].DataFrame(dict(columns))
    return pa.table(dict(columns))


def check_zones(values: Iterable[object], place: Place) -> None:
    """Raise `InputError` if some datetimes have a time zone and others have none, which Arrow would mix in silence."""
    known = [(row, value) for row, value in enumerate(values) if isinstance(value, datetime) and value == value]
    for row, value in known:
        if (value.tzinfo is None) != (known[0][1].tzinfo is None):
            raise place.error(
                f"expected times all with a time zone or all without, got {str(value)!r} after {str(known[0][1])!r}; "
                "write them in one way, as with .tz_localize('UTC')",
                row,
            )


def _is_a(X: object, library: str, *kinds: str) -> bool:
    module = sys.modules.get(library)
    return any(isinstance(X, getattr(module, kind, ())) for kind in kinds)


def _is_series(X: object) -> bool:
    return _is_a(X, "pandas", "Series") or _is_a(X, "polars", "Series")


def _names(X: Any) -> Sequence[object] | None:
    """Return the names of the columns, or None if X has none."""
    if _is_series(X):
        return [X.name]
    names = getattr(X, "column_names", None) or getattr(X, "columns", None)
    return None if names is None or callable(names) else list(names)


def _from_polars(frame: Any, where: str) -> pa.Table:
    """Return a polars frame as Arrow; columns of Python objects, which polars exports as addresses, by value.

    A whole frame would be converted on threads, for which polars waits in vain in a forked process.
    """
    objects = sys.modules["polars"].Object
    columns = {c.name: c.to_arrow() if c.dtype != objects else _from_objects(c, Place(where, c.name)) for c in frame}
    return pa.table(columns)


def _from_objects(values: Any, place: Place) -> pa.Array:
    check_zones(values, place)
    known = [(row, value) for row, value in enumerate(values) if value is not None]
    try:
        if len({_family(value) for _, value in known}) > 1:
            raise TypeError("its values are of different kinds")
        return pa.array(list(values), from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
        raise _odd_value(known, place, problem) from None


def _from_pandas(series: Any, name: str, where: str) -> pa.Array | pa.ChunkedArray:
    """Return a pandas column as Arrow; categories that Arrow does not support (intervals, mixed) as text."""
    if series.dtype.kind == "c":
        raise Place(where, name).error("expected real numbers, got complex ones; pass both parts as columns")
    if hasattr(series, "sparse"):
        series = series.sparse.to_dense()
    kind = sys.modules["pandas"].api.types.infer_dtype(series) if series.dtype == object else ""
    if kind == "datetime":
        check_zones(series, Place(where, name))
    try:
        if kind in ("mixed", "mixed-integer") and len(set(map(_family, series.dropna()))) > 1:
            raise TypeError("its values are of different kinds")
        if hasattr(series, "cat") and not _is_plain(series.cat.categories):
            series = series.cat.rename_categories(str)
        return pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
        values = series.tolist()
        known = [(int(row), values[row]) for row in np.flatnonzero(~np.asarray(series.isna()))]
        raise _odd_value(known, Place(where, name), problem) from None


def _is_plain(categories: Any) -> bool:
    try:
        kind = pa.array(categories, from_pandas=True).type
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return not types.is_nested(kind) and not isinstance(kind, pa.BaseExtensionType)


def _odd_value(known: Sequence[tuple[int, object]], place: Place, problem: Exception) -> InputError:
    """Return the error for a column that Arrow rejects, naming the first value of an unusual type."""
    families = Counter(_family(value) for _, value in known)
    usual = families.most_common(1)[0][0] if known else None
    for row, got in known:
        if _family(got) is not usual:
            expected = next(type(value).__name__ for _, value in known if _family(value) is usual)
            return place.error(
                f"expected {expected} as in most rows, got {got!r:.40} ({type(got).__name__}); "
                "use one type throughout, or convert the column to text with .astype(str)",
                row,
            )
    for row, got in known:
        if not _is_plain([got]):
            return place.error(f"cannot convert {got!r:.40} ({first_line(problem)}); correct it", row)
    return place.error(f"cannot convert the values ({first_line(problem)}); convert or drop the column")


def _family(value: object) -> type:
    """Return the type of a value, float for all numbers."""
    if isinstance(value, bool | np.bool_):
        return bool
    if isinstance(value, np.timedelta64):  # a subclass of np.integer
        return type(value)
    return float if isinstance(value, int | float | np.integer | np.floating) else type(value)

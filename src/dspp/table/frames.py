"""Data frames of any library as Arrow tables and back.

Neither pandas nor polars is ever imported here: a frame of theirs exists only where its owner has imported them.
"""

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Shaped
from pyarrow import types

from dspp.errors import InputError
from dspp.table.arrays import plain
from dspp.table.messages import Place, check_names, first_line, listed


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
        return plain(pa.table({label: _from_pandas(X.iloc[:, i], label, name) for i, label in enumerate(X.columns)}))
    try:
        return plain(_from_polars(X, name) if _is_a(X, "polars", "DataFrame") else pa.table(X))
    except InputError:
        raise
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


def _from_polars(frame: Any, where: str) -> pa.Table:
    """Return a frame of polars as Arrow; columns of Python objects, of which Arrow would get addresses, by value."""
    objects = sys.modules["polars"].Object
    if objects not in frame.dtypes:
        return frame.to_arrow()
    columns = {c.name: c.to_arrow() if c.dtype != objects else _from_objects(c, Place(where, c.name)) for c in frame}
    return pa.table(columns)


def _from_objects(values: Any, place: Place) -> pa.Array:
    known = [(row, value) for row, value in enumerate(values) if value is not None]
    try:
        if len({_family(value) for _, value in known}) > 1:
            raise TypeError("its values are of different kinds")
        return pa.array(list(values), from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
        raise _odd_value(known, place, problem) from None


def _from_pandas(series: Any, name: str, where: str) -> pa.Array | pa.ChunkedArray:
    """Return a column of pandas as Arrow; categories that Arrow cannot hold (intervals, mixed) go by their text."""
    if series.dtype.kind == "c":
        raise Place(where, name).error("got complex numbers, expected real ones. Give both parts as columns.")
    if hasattr(series, "sparse"):
        series = series.sparse.to_dense()
    try:
        if series.dtype == object and _is_mixed(series):
            raise TypeError("its values are of different kinds")
        if hasattr(series, "cat") and not _is_plain(series.cat.categories):
            series = series.cat.rename_categories(str)
        return pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
        values = series.tolist()
        known = [(int(row), values[row]) for row in np.flatnonzero(~np.asarray(series.isna()))]
        raise _odd_value(known, Place(where, name), problem) from None


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


def _odd_value(known: Sequence[tuple[int, object]], place: Place, problem: Exception) -> InputError:
    """Return the error for a column that is no Arrow column: the first value, with its row, of a kind that is rarer."""
    families = Counter(_family(value) for _, value in known)
    usual = families.most_common(1)[0][0] if known else None
    for row, got in known:
        if _family(got) is not usual:
            expected = next(type(value).__name__ for _, value in known if _family(value) is usual)
            return place.error(
                f"got {got!r:.40} ({type(got).__name__}) in a column of {expected} values. "
                "Make them all of one kind, or all text with .astype(str).",
                row,
            )
    for row, got in known:
        if not _is_plain([got]):
            return place.error(f"got {got!r:.40}, which cannot be used ({first_line(problem)}). Correct it.", row)
    return place.error(f"its values cannot be used ({first_line(problem)}). Convert it, or leave it out.")


def _family(value: object) -> type:
    """Return the type of a value, one for all numbers."""
    if isinstance(value, bool | np.bool_):
        return bool
    is_number = isinstance(value, int | float | np.integer | np.floating)
    return (
        float if is_number and not isinstance(value, np.timedelta64) else type(value)
    )  # which numpy counts as integer

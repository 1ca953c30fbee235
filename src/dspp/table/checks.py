"""Validation of arrays: finite numbers in the right shape, or an `InputError` that says where they are not.

The result is always a new float64 array, so that later code cannot modify the caller's data.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, NoReturn, Union

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from dspp.errors import InputError
from dspp.table.messages import LIKE_A_NUMBER, Place, explain_classes

if TYPE_CHECKING:  # whoever passes a tensor has imported torch; checks of files and columns are fast without
    import torch

Array = Union[ArrayLike, "torch.Tensor"]

_ROUNDING = 1e-12  # of weights: those that are normalised stay as they are, to the bit


def check_X(  # noqa: N802 - X is a matrix
    X: Array, name: str = "X", may_be_empty: bool = False
) -> Float[np.ndarray, "N D"]:
    """Return the inputs as a new 2-D float64 array.

    Args:
        X: Array-like: nested lists, a NumPy array, a torch tensor, a data frame of numbers.
        name: The name used in errors.
        may_be_empty: Whether X may have no rows, as in predictions.

    Raises:
        InputError: X is not a 2-D table with at least one row and one column of finite numbers.
    """
    array = _to_numpy(X, name)
    if array.ndim == 1 and array.size and isinstance(array[0], Mapping):
        raise InputError(f"{name}: expected a table, got a list of dicts; convert it with pandas.DataFrame({name})")
    if array.ndim != 2:
        raise InputError(
            f"{name}: expected a 2-D table (rows, columns), got {array.ndim}-D of shape {array.shape}. "
            f"Reshape your data: {name}.reshape(-1, 1) for one column, {name}.reshape(1, -1) for one row."
        )
    if not (may_be_empty and len(array) == 0 < array.shape[1]):
        _check_not_empty(array, name)
    return _to_finite_float64(array, name)


def check_y(y: Array, num_rows: int, name: str = "y", missing: bool = False) -> Float[np.ndarray, " N *T"]:
    """Return the targets as a new float64 array, `(N,)` for one output or `(N, T)` for several.

    Args:
        y: Array-like.
        num_rows: The number of rows of X.
        name: The name used in errors.
        missing: Whether `(N, T)` targets may contain NaN for "not observed".

    Raises:
        InputError: y is not 1-D or 2-D, has the wrong number of rows, or contains anything but finite numbers. With
            `missing`: a row has no observed value.
    """
    array = _to_numpy(y, name)
    if array.ndim not in (1, 2):
        raise InputError(
            f"{name}: expected targets of shape (N,) or (N, T), got {array.ndim}-D of shape {array.shape}; "
            "pass one number, or one row of numbers, per row of X"
        )
    _check_not_empty(array, name)
    if len(array) != num_rows:
        raise InputError(
            f"{name}: expected {num_rows} rows, as many as in X, got {len(array)}; "
            f"pass X and {name} with the same rows in the same order"
        )
    _check_no_classes(array, name)
    return _to_observed_float64(array, name) if missing and array.ndim == 2 else _to_finite_float64(array, name)


def check_weights(weights: Array, num_rows: int, name: str = "sample_weight") -> Float[np.ndarray, " N"]:
    """Return one finite weight ≥ 0 per row, with mean one over the positive ones, or raise `InputError`."""
    found = check_y(weights, num_rows, name)
    if found[:1].size != 1:
        raise InputError(f"{name}: expected shape ({num_rows},), got {found.shape}; pass one weight per row")
    return normalise_weights(check_not_negative(found.reshape(-1), Place(name)), Place(name))


def check_not_negative(weights: Float[np.ndarray, " N"], place: Place) -> Float[np.ndarray, " N"]:
    """Return the weights, or raise `InputError` for the first one that is negative or NaN."""
    bad = np.flatnonzero(~(weights >= 0))
    if len(bad):
        got = "no value" if np.isnan(weights[bad[0]]) else f"{weights[bad[0]]:g}"
        raise place.error(f"expected a weight ≥ 0, got {got}; use 0 to leave a row out", int(bad[0]))
    return weights


def normalise_weights(weights: Float[np.ndarray, " N"], place: Place) -> Float[np.ndarray, " N"]:
    """Return weights with mean one over the positive ones, or raise `InputError` if there are none."""
    if not weights.any():
        raise place.error("expected some positive weights, got only zeros; leave the weights out")
    shares = weights / weights.max()  # the sum of large weights may overflow
    found = np.asarray(shares / shares[shares > 0].mean())
    return weights if np.allclose(found, weights, _ROUNDING, 0.0) else found


def check_width(
    X: "Float[np.ndarray, 'N D'] | Float[torch.Tensor, 'N D']", expected: int, owner: str = "the model"
) -> None:
    """Raise `InputError` unless X has the number of columns that `owner` expects."""
    if X.shape[1] != expected:
        raise InputError(
            f"X has {X.shape[1]} features, but {owner} is expecting {expected} features as input; "
            "pass the columns used for training, in the same order"
        )


def _to_numpy(data: Any, name: str) -> NDArray[np.generic]:
    """Return `data` as an array of its own dtype, possibly sharing the caller's memory."""
    torch: Any
    torch, sparse = sys.modules.get("torch"), sys.modules.get("scipy.sparse")  # whose objects exist only if imported
    is_tensor = torch is not None and isinstance(data, torch.Tensor)
    if (is_tensor and data.layout != torch.strided) or (sparse is not None and sparse.issparse(data)):
        raise InputError(f"{name}: expected a dense table, got a sparse one; convert it with .toarray()")
    if data is None:
        raise InputError(f"{name}: expected numbers, got None; pass {name}")
    try:
        array = _tensor_to_numpy(data) if is_tensor else np.asanyarray(data)
    except Exception as error:  # whatever an object's own conversion raises
        raise InputError(f"{name}: expected a table of numbers, got {_explain_unreadable(data, error)}") from None
    if array.ndim == 0:
        raise InputError(f"{name}: expected an array, got {_shorten(data)}; {advice(data) or 'pass rows of numbers'}")
    return array


def advice(data: object) -> str:
    """Return how to make an array of this, if that is clear from what it is, or an empty string."""
    if type(data).__name__ == "LazyFrame":  # of polars or narwhals, which need not be imported
        return "call .collect() first"
    if isinstance(data, Mapping):
        return "convert it with pandas.DataFrame(...)"
    if isinstance(data, str | PathLike):
        return "read a file first, as with pandas.read_csv, and pass a column itself, as in table['a']"
    return "convert it with list(...)" if isinstance(data, Iterator) else ""


def _explain_unreadable(data: object, error: Exception) -> str:
    """Return why data is not an array: a row of unusual length, a list in a cell, or NumPy's own message."""
    rows = data if isinstance(data, list | tuple) else ()
    widths = [_length(row) for row in rows]
    usual = Counter(widths).most_common(1)[0][0] if rows else None
    for i, width in enumerate(widths):
        if width != usual:
            return f"{width} values in row {i} and {usual} in most rows; pass rows of equal length"
    for i, row in enumerate(rows):
        for j, cell in enumerate(row if usual else ()):
            if _length(cell) is not None and not isinstance(cell, str | bytes):
                return f"{_shorten(cell)} at {_place((i, j))}; pass one number per cell"
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return f"{type(data).__name__} that NumPy cannot convert ({reason}); pass rows of numbers of equal length"


def _length(thing: object) -> int | None:
    try:
        return len(thing)  # type: ignore[arg-type]  # it may have no length
    except TypeError:
        return None


def _tensor_to_numpy(tensor: Any) -> NDArray[np.generic]:
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.double()  # numpy has no bfloat16 nor float8
    array: NDArray[np.generic] = tensor.resolve_conj().resolve_neg().numpy()
    return array


def _check_not_empty(array: NDArray[np.generic], name: str) -> None:
    for axis, what in enumerate(("sample(s)", "feature(s)")[: array.ndim]):
        if array.shape[axis] == 0:
            raise InputError(
                f"{name}: got 0 {what} (shape={array.shape}) while a minimum of 1 is required; "
                "check the file or filter it came from"
            )


def _to_finite_float64(array: NDArray[np.generic], name: str) -> Float[np.ndarray, " N *T"]:
    copy = _to_float64(array, name)
    if np.isfinite(copy).all():
        return copy
    bad = np.argwhere(~np.isfinite(copy))
    value = copy[tuple(bad[0])]
    raise InputError(
        f"{name}: expected finite numbers, got {'NaN' if np.isnan(value) else value} at {_place(bad[0])} "
        f"({len(bad)} NaN or inf in total); remove these rows or fill in the missing values"
    )


def _to_observed_float64(array: NDArray[np.generic], name: str) -> Float[np.ndarray, "N T"]:
    copy = _to_float64(array, name)
    infinite, empty_rows = np.argwhere(np.isinf(copy)), np.flatnonzero(np.isnan(copy).all(axis=1))
    if len(infinite):
        raise InputError(
            f"{name}: expected finite numbers, or NaN where not observed, got {copy[tuple(infinite[0])]} at "
            f"{_place(infinite[0])} ({len(infinite)} inf in total); use NaN for missing values"
        )
    if len(empty_rows):
        raise InputError(
            f"{name}: expected at least one observed output in each row, got none in row {empty_rows[0]} "
            f"({len(empty_rows)} such rows in total); drop these rows"
        )
    return copy


def _to_float64(array: NDArray[np.generic], name: str) -> Float[np.ndarray, " N *T"]:
    """Return a new float64 array, NaN where the input is masked."""
    if array.dtype.kind == "c":
        index = next(iter(np.argwhere(np.imag(array))), np.zeros(array.ndim, np.intp))  # the first that is not real
        raise InputError(
            f"{name}: Complex data not supported: expected real numbers, got {array[tuple(index)]} at {_place(index)}; "
            "pass real and imaginary parts as two columns"
        )
    if array.dtype.kind not in "biuf":
        _raise_not_numeric(array, name)
    with np.errstate(over="ignore"):  # a long double beyond float64 becomes inf, which is reported
        copy = np.array(array, dtype=np.float64, order="C")
    if isinstance(array, np.ma.MaskedArray):
        copy[np.ma.getmaskarray(array)] = np.nan  # NumPy would copy the values under the mask
    return copy


def _raise_not_numeric(array: NDArray[np.generic], name: str) -> NoReturn:
    got = f"{name}: expected numbers, got dtype {array.dtype}"
    index = next((index for index, cell in np.ndenumerate(array) if not _reads_as_number(cell)), None)
    if index is None:
        index = next((index for index, cell in np.ndenumerate(array) if isinstance(cell, str | bytes)), None)
        first = "" if index is None else f", with the text {_shorten(array[index])} at {_place(index)},"
        raise InputError(f"{got}{first} whose cells can be read as numbers; convert it with {name}.astype(float)")
    if array[index] is None:
        what_to_do = "remove this row or fill in the missing value"
    else:
        what_to_do = "encode categories and dates as numbers, then convert with .astype(float)"
    raise InputError(f"{got} with {_shorten(array[index])} at {_place(index)}; {what_to_do}")


def _check_no_classes(array: NDArray[np.generic], name: str) -> None:
    """Raise `InputError` for targets that are all text, none of which begins like a number."""
    if array.dtype.kind not in "OU":
        return
    cells = array.ravel().tolist()
    if all(isinstance(cell, str) and not re.match(LIKE_A_NUMBER, cell.strip()) for cell in cells):
        raise InputError(f"{name}: {explain_classes(set(cells), len(cells))}")


def _reads_as_number(cell: object) -> bool:
    if isinstance(cell, np.datetime64 | np.timedelta64):
        return False  # float() accepts them, but would silently drop the unit
    try:
        float(cell)  # type: ignore[arg-type]  # it may not be a number
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _shorten(cell: object, limit: int = 40) -> str:
    text = repr(cell.item() if isinstance(cell, np.str_ | np.bytes_) else cell)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _place(index: tuple[int, ...] | NDArray[np.intp]) -> str:
    return ", ".join(f"{axis} {i}" for axis, i in zip(("row", "column"), index, strict=False))

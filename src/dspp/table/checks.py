"""The gate every table passes: finite numbers in the right shape, or an `InputError` that says where not.

What comes out is always a fresh float64 array, so nothing later can change what the caller holds.
"""

import sys
from collections import Counter
from typing import NoReturn

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import ArrayLike, NDArray

from dspp.errors import InputError

Array = ArrayLike | torch.Tensor


def check_X(X: Array, name: str = "X") -> Float[np.ndarray, "N D"]:  # noqa: N802 - X is a matrix
    """Return the inputs as a new float64 array of rows and columns.

    Args:
        X: Anything array-like: nested lists, a numpy array, a torch tensor, a data frame of numbers.
        name: What to call it in an error.

    Raises:
        InputError: It is not a 2-D table with at least one row and one column of finite numbers.
    """
    array = _to_numpy(X, name)
    if array.ndim != 2:
        raise InputError(
            f"{name}: expected a 2-D table (rows, columns), got {array.ndim}-D of shape {array.shape}. "
            f"Reshape your data: {name}.reshape(-1, 1) for one column, {name}.reshape(1, -1) for one row."
        )
    return _finite_float64(_not_empty(array, name), name)


def check_y(
    y: Array, num_rows: int, name: str = "y", missing: bool = False, every_output: bool = True
) -> Float[np.ndarray, " N *T"]:
    """Return the targets as a new float64 array, `(N,)` for one output or `(N, T)` for several.

    Args:
        y: Anything array-like.
        num_rows: The number of rows of the inputs it belongs to.
        name: What to call it in an error.
        missing: Whether `(N, T)` targets may hold NaN for "not observed"; the result then keeps it.
        every_output: Whether each output must be observed in some row, as in rows to learn from.

    Raises:
        InputError: It is not 1-D or 2-D, has another number of rows, or holds anything but finite numbers. With
            `missing`: nothing is observed in some row, or, with `every_output`, in some column.
    """
    array = _to_numpy(y, name)
    if array.ndim not in (1, 2):
        raise InputError(
            f"{name}: expected targets of shape (N,) or (N, T), got {array.ndim}-D of shape {array.shape}. "
            "Give one number, or one row of numbers, for each row of X."
        )
    if len(_not_empty(array, name)) != num_rows:
        raise InputError(
            f"{name}: expected {num_rows} rows, as many as X has, got {len(array)}. "
            f"Give X and {name} the same rows in the same order."
        )
    if missing and array.ndim == 2:
        return _observed_everywhere(_float64(array, name), name, every_output)
    return _finite_float64(array, name)


def check_Xy(  # noqa: N802 - X is a matrix
    X: Array, y: Array, missing: bool = False
) -> tuple[Float[np.ndarray, "N D"], Float[np.ndarray, " N *T"]]:
    """Return inputs and targets as new float64 arrays; see `check_X` and `check_y`."""
    checked = check_X(X)
    return checked, check_y(y, len(checked), missing=missing)


def check_width(
    X: Float[np.ndarray, "N D"] | Float[torch.Tensor, "N D"], expected: int, owner: str = "the model"
) -> None:
    """Raise `InputError` unless X has `expected` columns; `owner` is who expects them."""
    if X.shape[1] != expected:
        raise InputError(
            f"X has {X.shape[1]} features, but {owner} is expecting {expected} features as input. "
            "Give the columns used for training, in the same order."
        )


def _to_numpy(data: Array, name: str) -> NDArray[np.generic]:
    """Return `data` as an array of whatever dtype it has; it may share the caller's memory."""
    if _is_sparse(data) or (isinstance(data, torch.Tensor) and data.layout != torch.strided):
        raise InputError(f"{name}: expected a dense table, got a sparse one. Make it dense first.")
    if data is None:
        raise InputError(f"{name}: expected numbers, got None. Pass {name}: it is required here.")
    try:
        array = _tensor_to_numpy(data) if isinstance(data, torch.Tensor) else np.asanyarray(data)
    except Exception as error:  # whatever an object's own conversion raises
        raise InputError(f"{name}: expected a table of numbers, got {_unreadable(data, error)}") from None
    if array.ndim == 0:
        raise InputError(f"{name}: expected an array, got {_shortened(data)}. Give rows of numbers.")
    return array


def _unreadable(data: object, error: Exception) -> str:
    """Return why something is no array: a row of another length than most, a list in a cell, or what numpy says."""
    rows = data if isinstance(data, list | tuple) else ()
    widths = [_length(row) for row in rows]
    usual = Counter(widths).most_common(1)[0][0] if rows else None
    for i, width in enumerate(widths):
        if width != usual:
            return f"{width} values in row {i}, but {usual} in most. Give every row the same number of columns."
    for i, row in enumerate(rows):
        for j, cell in enumerate(row if usual else ()):
            if _length(cell) is not None and not isinstance(cell, str | bytes):
                return f"{_shortened(cell)} at {_place((i, j))}. Give one number in each cell."
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return f"{type(data).__name__} that cannot be read ({reason}). Give rows of numbers, all of the same length."


def _length(thing: object) -> int | None:
    try:
        return len(thing)  # type: ignore[arg-type]  # whether it has one is the question
    except TypeError:
        return None


def _is_sparse(data: object) -> bool:
    """Whether it is a sparse table of SciPy, which whoever has one has imported."""
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(data))


def _tensor_to_numpy(tensor: torch.Tensor) -> NDArray[np.generic]:
    tensor = tensor.detach().cpu()
    if tensor.is_floating_point():
        tensor = tensor.double()  # numpy has no bfloat16 nor float8
    array: NDArray[np.generic] = tensor.resolve_conj().resolve_neg().numpy()
    return array


def _not_empty(array: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    for axis, what in enumerate(("sample(s)", "feature(s)")[: array.ndim]):
        if array.shape[axis] == 0:
            raise InputError(
                f"{name}: got 0 {what} (shape={array.shape}) while a minimum of 1 is required. "
                "Look at the file or the filter this came from."
            )
    return array


def _finite_float64(array: NDArray[np.generic], name: str) -> Float[np.ndarray, " N *T"]:
    copy = _float64(array, name)
    if not np.isfinite(copy).all():
        _raise_not_finite(copy, name)
    return copy


def _observed_everywhere(y: Float[np.ndarray, "N T"], name: str, every_output: bool) -> Float[np.ndarray, "N T"]:
    """Return y, which may hold NaN but must have something to learn from in every row and, if asked for, column."""
    infinite = np.argwhere(np.isinf(y))
    empty_rows, empty_columns = (np.flatnonzero(np.isnan(y).all(axis)) for axis in (1, 0))
    if len(infinite):
        raise InputError(
            f"{name}: expected finite numbers, or NaN for what was not observed, got {y[tuple(infinite[0])]} at "
            f"{_place(infinite[0])} ({len(infinite)} inf in all). Write NaN if these are missing."
        )
    if len(empty_rows):
        raise InputError(
            f"{name}: expected at least one observed output in each row, got none in row {empty_rows[0]} "
            f"({len(empty_rows)} such rows in all). Drop these rows: there is nothing to learn from them."
        )
    if every_output and len(empty_columns):
        raise InputError(
            f"{name}: expected each output to be observed in some row, got nothing but NaN in column "
            f"{empty_columns[0]} ({len(empty_columns)} such columns in all). Leave out these outputs."
        )
    return y


def _float64(array: NDArray[np.generic], name: str) -> Float[np.ndarray, " N *T"]:
    """Return a new array of real numbers, NaN where it is masked."""
    if array.dtype.kind == "c":
        index = next(iter(np.argwhere(np.imag(array))), np.zeros(array.ndim, np.intp))  # the first that is not real
        raise InputError(
            f"{name}: Complex data not supported: expected real numbers, got {array[tuple(index)]} at {_place(index)}. "
            "Give real and imaginary parts as two columns."
        )
    if array.dtype.kind not in "biuf":
        _raise_not_numeric(array, name)
    with np.errstate(over="ignore"):  # a long double beyond float64 becomes inf and is reported below
        copy = np.array(array, dtype=np.float64, order="C")
    if isinstance(array, np.ma.MaskedArray):
        copy[np.ma.getmaskarray(array)] = np.nan  # masked means missing; numpy shows what lies under the mask
    return copy


def _raise_not_finite(array: Float[np.ndarray, " N *T"], name: str) -> NoReturn:
    bad = np.argwhere(~np.isfinite(array))
    value = array[tuple(bad[0])]
    raise InputError(
        f"{name}: expected finite numbers, got {'NaN' if np.isnan(value) else value} at {_place(bad[0])} "
        f"({len(bad)} NaN or inf in all). Remove such rows or fill in the missing values."
    )


def _raise_not_numeric(array: NDArray[np.generic], name: str) -> NoReturn:
    got = f"{name}: expected numbers, got dtype {array.dtype}"
    index = next((index for index, cell in np.ndenumerate(array) if not _reads_as_number(cell)), None)
    if index is None:
        index = next((index for index, cell in np.ndenumerate(array) if isinstance(cell, str | bytes)), None)
        first = "" if index is None else f", with the text {_shortened(array[index])} at {_place(index)},"
        raise InputError(f"{got}{first} whose cells read as numbers. Convert it first: {name}.astype(float).")
    raise InputError(
        f"{got} with {_shortened(array[index])} at {_place(index)}. "
        "Encode categories and dates as numbers, then convert with .astype(float)."
    )


def _reads_as_number(cell: object) -> bool:
    if isinstance(cell, np.datetime64 | np.timedelta64):
        return False  # float() takes them, but their unit would be lost without a word
    try:
        float(cell)  # type: ignore[arg-type]  # whether it is one is the question
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def _shortened(cell: object, limit: int = 40) -> str:
    text = repr(cell.item() if isinstance(cell, np.str_ | np.bytes_) else cell)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _place(index: tuple[int, ...] | NDArray[np.intp]) -> str:
    return ", ".join(f"{axis} {i}" for axis, i in zip(("row", "column"), index, strict=False))

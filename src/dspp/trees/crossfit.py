"""Predictions of trees for the rows of a training table, none of which saw its own row."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import ArrayLike

from dspp.errors import InputError
from dspp.table.checks import Array
from dspp.trees.ensemble import MAX_TREES, Trees
from dspp.trees.fit import MAX_COLUMNS, Boosting, bin_columns, check_rows

INNER_FOLDS = 5
MAX_ROWS = 200_000  # per fit
TREE_SECONDS = 1.5e-7  # per row of a tree, and
COLUMN_SECONDS = 7e-5  # per column, until the time of a tree has been measured
MIN_TREES = 20  # per fit, however short the time
FEW_TREES, FEW_TREES_RATE = 50, 0.3  # if time suffices for fewer trees than this, they learn at a higher rate


@dataclass(frozen=True, eq=False)
class CrossFitted:
    """The column of predictions that each of K members reads, and the trees for new rows.

    Attributes:
        columns: That of member k, which is trained without fold k. A row of fold k has the prediction of trees that saw
            no row of fold k, as if it were new. Any other row has that of trees that saw neither fold k nor the row's
            own inner fold.
        all_rows: Trees that saw all rows.
        without_fold: For each fold, trees that saw none of its rows.
    """

    columns: Float[np.ndarray, "K N"]
    all_rows: Trees
    without_fold: tuple[Trees, ...]


def cross_fit(
    X: Array,
    y: Array,
    fold: ArrayLike,  # per row, the member that holds it out, from 0 to K − 1, or −1 for none
    *,
    weights: Array | None = None,  # rows of weight 0 get predictions but are not learned from
    seed: int = 0,  # of the fits and of random inner folds
    inner: ArrayLike | None = None,  # per row, its inner fold from 0
    X_without: Callable[[Bool[np.ndarray, " N"]], Float[np.ndarray, "N D"]] | None = None,
    max_rounds: int = MAX_TREES,
    seconds_left: Callable[[], float] | None = None,
    should_stop: Callable[[], bool] | None = None,  # called before each tree
) -> CrossFitted:
    """Fit trees so that every row of every member gets a prediction that never saw the row's target.

    Each row has an inner fold. With K ≥ 5 folds it is the row's fold, or a random one of 0 to K − 1 for rows of fold
    −1; trees without two inner folds then serve two members, which makes K(K − 1)/2 + K + 1 fits. With fewer folds,
    inner folds are 5 random ones, and there are 6 K + 1 fits. A single model has K = 1: its held-out rows have fold 0,
    its training rows −1.

    Pass `inner` for rows that must stay together: no random rows then decide how many trees are kept. `X_without`
    returns the inputs as they are if the targets of these rows are not known, for inputs that depend on targets. If
    `seconds_left`, for all fits, is short, they have fewer trees: none has more than the slowest could afford.

    Raises:
        InputError: The arguments do not match, or some fit would have no rows.
        TrainingInterrupted: `should_stop` returned True.
    """
    X, y, weights = check_rows(X, y, weights)
    how = Boosting(seed, inner is None, max_rounds, MAX_ROWS, should_stop=should_stop)
    fold = _check_folds(fold, len(X), "fold", -1)
    K = max(int(fold.max()) + 1, 1)
    if len(X) < K or (np.bincount(fold[fold >= 0]) == 0).any():
        raise InputError(f"fold: expected each of 0 to {K - 1} in some row, got gaps; number the folds without gaps")
    outer = fold
    if inner is None:
        inner = assign_inner(fold, seed)
        outer = fold if K < INNER_FOLDS else inner
    inner = _check_folds(inner, len(X), "inner", 0)

    held = [outer == k for k in range(K)]
    parts = [(k, part) for k in range(K) for part in (held[k], *(~held[k] & (inner == j) for j in np.unique(inner)))]
    without = [(k, part, held[k] | part) for k, part in parts if part.any()]
    no_rows = np.zeros(len(X), bool)
    to_fit = {left_out.tobytes(): left_out for left_out in (*(rows for _, _, rows in without), *held, no_rows)}

    binned = bin_columns(X, weights, seed)  # the same cuts for all fits, if they know no targets
    pace = _Pace(max_rounds, len(to_fit), min(X.shape[1], MAX_COLUMNS), seconds_left)
    fits: dict[bytes, Trees] = {}
    for key, left_out in to_fit.items():
        rows = ~left_out
        if not weights[rows].any():
            raise InputError("fold: expected training rows outside of any two folds, got none; pass more folds or rows")
        if X_without is not None:
            binned = bin_columns(X_without(left_out), weights, seed)
        rounds = pace.start_fit(min(int(rows.sum()), MAX_ROWS))
        own = replace(how, max_rounds=rounds, learning_rate=pace.learning_rate)
        fits[key] = own.fit(binned.select(rows), y[rows], weights[rows])

    # New rows must meet trees like those of the training rows.
    fits = {key: trees.first(pace.most) for key, trees in fits.items()}
    columns = np.empty((K, len(X)))
    for k, part, left_out in without:
        inputs = X if X_without is None else X_without(left_out)
        columns[k, part] = fits[left_out.tobytes()].predict(inputs[part])
    return CrossFitted(columns, fits[no_rows.tobytes()], tuple(fits[one.tobytes()] for one in held))


class _Pace:
    """How many trees each of several fits may have, so that all of them end in time.

    No fit is allowed more trees than the one before, which is `most`.
    """

    def __init__(self, most: int, fits: int, columns: int, seconds_left: Callable[[], float] | None) -> None:
        self.most, self.fits, self.columns, self.seconds_left = most, fits, columns, seconds_left
        self.seconds = 0.0 if seconds_left is None else seconds_left()
        self.grown = 0  # trees times rows
        self.learning_rate: float | None = None  # of all fits; None: the usual one

    def start_fit(self, rows: int) -> int:
        """Return the largest number of trees of the next fit, to these rows."""
        if self.seconds_left is None:
            return self.most
        left = self.seconds_left()
        guess = rows * TREE_SECONDS + self.columns * COLUMN_SECONDS
        per_tree = rows * (self.seconds - left) / self.grown if self.grown else guess
        affordable = left / max(self.fits * per_tree, 1e-9)
        if not self.grown and affordable < min(FEW_TREES, self.most):
            self.learning_rate = FEW_TREES_RATE
        self.most = int(min(max(affordable, MIN_TREES), self.most))
        self.fits, self.grown = max(self.fits - 1, 1), self.grown + self.most * rows
        return self.most


def assign_inner(fold: Int[np.ndarray, " N"], seed: int) -> Int[np.ndarray, " N"]:
    """Return the inner fold of each row: see `cross_fit`."""
    K = int(fold.max()) + 1
    if K < INNER_FOLDS:
        return _deal(len(fold), INNER_FOLDS, seed)
    return np.where(fold < 0, _deal(len(fold), K, seed), fold)


def _check_folds(fold: ArrayLike, num_rows: int, name: str, least: int) -> Int[np.ndarray, " N"]:
    array = np.asarray(fold)
    if array.shape != (num_rows,) or array.dtype.kind not in "iu" or array.min() < least:
        raise InputError(
            f"{name}: expected {num_rows} integers from {least}, got {array.dtype} of shape {array.shape}"
            + (f" from {array.min()}" if array.size else "")
        )
    return array.astype(np.int64)


def _deal(num_rows: int, num_folds: int, seed: int) -> Int[np.ndarray, " N"]:
    return np.random.default_rng(seed).permutation(num_rows) % num_folds

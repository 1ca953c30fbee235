"""Splits a data set into training, test and validation rows, and standardises it as the paper does."""

from dataclasses import dataclass

import numpy as np

from dspp.encoding.scaling import Standardizer
from dspp.errors import InputError
from dspp.table.split import split
from experiments.data import DataSet


@dataclass(frozen=True)
class Parts:
    """Rows of one split, standardised with statistics of the training rows only."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    X_val: np.ndarray
    y_val: np.ndarray
    seen: np.ndarray  # which test rows have inputs that occur in the training rows


def cut(data: DataSet, number: int, parts: tuple[int, ...], by: str = "rows") -> Parts:
    """Return split `number` of a data set, without inputs and outputs that are constant over the training rows.

    Args:
        data: The data set.
        number: Number of the split.
        parts: Relative sizes of the training, test and validation parts.
        by: "rows", or "groups" to keep each trajectory in one part.
    """
    train, test, val = part_rows(data, number, parts, by)
    X = data.X[:, np.ptp(data.X[train], axis=0) > 0]
    y = data.y if data.y.ndim == 1 else data.y[:, np.ptp(data.y[train], axis=0) > 0]
    seen = _is_seen(X[test], X[train])
    X, y = Standardizer.fit(X[train]).transform(X), Standardizer.fit(y[train]).transform(y)
    return Parts(X[train], y[train], X[test], y[test], X[val], y[val], seen)


def part_rows(data: DataSet, number: int, parts: tuple[int, ...], by: str = "rows") -> tuple[np.ndarray, ...]:
    """Return the row numbers of the training, test and validation parts of split `number`."""
    if by == "rows":
        return split(len(data.X), parts, seed=number)
    if by != "groups" or data.groups is None:
        raise InputError(f"{data.name}: cannot split by {by!r}; choose 'rows', or 'groups' if the data set has them")
    names, member = np.unique(data.groups, return_inverse=True)
    return tuple(np.flatnonzero(np.isin(member, chosen)) for chosen in split(len(names), parts, seed=number))


def _is_seen(test: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Return which rows of `test` occur, bit for bit, in `train`."""
    known = {row.tobytes() for row in train}
    return np.array([row.tobytes() in known for row in test])

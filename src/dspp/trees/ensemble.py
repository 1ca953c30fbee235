"""An ensemble of regression trees as plain arrays: prediction, and tensors for a file.

A tree has at most 32 leaves, numbered from left to right, so that a set of leaves is a mask of 32 bits. A condition
x ≤ threshold that is false removes the leaves of its left branch; a row ends in the first leaf that is not removed
(QuickScorer: Lucchese et al., SIGIR 2015). The last leaf is in no left branch. Therefore any masks of 31 bits lead to
one of the 32 leaves: the arrays of a damaged or hostile file may predict nonsense, but cannot index out of bounds.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

import numpy as np
from jaxtyping import Float, Int, Int32, Int64, UInt32

from dspp.codec import FAR
from dspp.errors import InputError
from dspp.table.checks import check_width

LEAVES = 32  # per tree at most
NODES = LEAVES - 1  # inner ones
MAX_TREES = 1_000
BLOCK = 200  # trees evaluated together, which bounds the tables of `_steps` at 5 MB per block
CELLS = 50_000  # rows × trees at a time, so that masks and values stay in the cache

_Step = tuple[int, Float[np.ndarray, " R"], UInt32[np.ndarray, "R+1 B"]]


@dataclass(frozen=True, eq=False)
class Trees:
    """T regression trees: a prediction is base + Σₜ value[t, the leaf of tree t in which the row ends].

    A tree with fewer than 32 leaves has spare nodes, which remove no leaves.
    """

    feature: Int32[np.ndarray, "T 31"]  # the column of X, per inner node
    threshold: Annotated[Float[np.ndarray, "T 31"], FAR]
    left_leaves: Int32[np.ndarray, "T 31"]  # mask of the leaves in the left branch: removed if x > threshold
    value: Annotated[Float[np.ndarray, "T 32"], FAR]
    base: float
    num_features: int

    def __post_init__(self) -> None:
        if len(self) > MAX_TREES:
            raise InputError(f"trees: expected at most {MAX_TREES} trees, got {len(self)}; the file is damaged")
        if (self.feature < 0).any() or (self.feature >= self.num_features).any() or (self.left_leaves < 0).any():
            raise InputError(
                f"trees: expected columns from 0 to {self.num_features - 1} and masks ≥ 0; the file is damaged"
            )

    def __len__(self) -> int:
        return len(self.value)

    def first(self, count: int) -> "Trees":
        """Return the first `count` trees, which are those of a fit that ended after as many rounds."""
        if count >= len(self):
            return self
        arrays = {name: getattr(self, name)[:count] for name in ("feature", "threshold", "left_leaves", "value")}
        return replace(self, **arrays)

    def predict(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        """Return one prediction per row, which does not depend on the other rows, to the bit.

        Raises:
            InputError: X is not 2-D or does not have the columns of the training table.
        """
        if X.ndim != 2:
            raise InputError(f"X: expected a 2-D table (rows, columns), got shape {X.shape}; reshape it")
        check_width(X, self.num_features, "the ensemble of trees")
        predicted = np.full(len(X), self.base)
        for values, steps in self._blocks:
            first = LEAVES * np.arange(len(values))  # of each tree's values
            size = CELLS // len(values)
            for start in range(0, len(X), size):
                removed = _removed(X[start : start + size], steps, len(values))
                ends = values.take(_lowest_zero(removed) + first, mode="clip")  # no check of what cannot happen
                predicted[start : start + size] += ends.sum(1)  # along memory, so each row is summed by itself
        return predicted

    @cached_property
    def _blocks(self) -> list[tuple[Float[np.ndarray, "B 32"], list[_Step]]]:
        parts = [slice(start, start + BLOCK) for start in range(0, len(self), BLOCK)]
        return [
            (self.value[part], _steps(self.feature[part], self.threshold[part], self.left_leaves[part]))
            for part in parts
        ]


def _steps(
    feature: Int32[np.ndarray, "B 31"], threshold: Float[np.ndarray, "B 31"], left_leaves: Int32[np.ndarray, "B 31"]
) -> list[_Step]:
    """Return, per column in use, its R sorted thresholds and the leaves removed if the first r of them are below x.

    All conditions on a column take one search and one row of a table, instead of one comparison per node.
    """
    steps = []
    used = left_leaves != 0
    for column in np.unique(feature[used]).tolist():
        tree, node = np.nonzero(used & (feature == column))
        thresholds, rank = np.unique(threshold[tree, node], return_inverse=True)
        masks = np.zeros((len(thresholds) + 1, len(feature)), np.uint32)
        np.bitwise_or.at(masks, (rank + 1, tree), left_leaves[tree, node].astype(np.uint32))
        steps.append((column, thresholds, np.bitwise_or.accumulate(masks, axis=0)))
    return steps


def _removed(X: Float[np.ndarray, "n D"], steps: list[_Step], num_trees: int) -> UInt32[np.ndarray, "n B"]:
    removed = np.zeros((len(X), num_trees), np.uint32)
    for column, thresholds, masks in steps:
        below = np.searchsorted(thresholds, X[:, column])  # the number of thresholds < x
        removed |= masks.take(below, axis=0, mode="clip")
    return removed


def _lowest_zero(masks: UInt32[np.ndarray, "n T"]) -> Int64[np.ndarray, "n T"]:
    """Return the number of the lowest bit that is 0, from 0 to 31, of masks below 2³¹."""
    power = ~masks & (masks + np.uint32(1))  # 2ⁱ for the lowest zero bit i
    exponents: Int[np.ndarray, "n T"] = power.astype(np.float32).view(np.int32) >> 23  # i + 127
    return exponents - np.int64(127)

"""An ensemble of regression trees as plain arrays: prediction, and tensors for a file.

A tree has at most 16 leaves, numbered from left to right, and a set of leaves is a 16-bit mask. A row starts with all
leaves; each condition x ≤ threshold that is false removes the leaves of that node's left branch, and the row ends in
the first leaf that remains (QuickScorer: Lucchese et al., SIGIR 2015). Any masks whatsoever lead to one of the 16
leaves, so the arrays of a damaged or hostile file can predict nonsense, but cannot index out of bounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8, UInt16
from torch import Tensor

from dspp.errors import InputError
from dspp.table.checks import check_width

LEAVES = 16  # per tree at most
NODES = LEAVES - 1
MAX_TREES = 1_000
ALL_LEAVES = np.uint16(2**LEAVES - 1)
CELLS = 51_200  # rows × trees at a time: 100 KB of masks and 400 KB of leaf values

_TENSORS = {  # name: dtype and shape of one tree's part
    "feature": (torch.int32, (NODES,)),
    "threshold": (torch.float64, (NODES,)),
    "mask": (torch.int32, (NODES,)),  # torch has few functions of uint16
    "value": (torch.float64, (LEAVES,)),
}


def _first_leaves() -> UInt8[np.ndarray, " 65536"]:
    """Return the number of the lowest set bit of every mask, and 0 for the empty one."""
    masks = np.arange(2**LEAVES)
    exponents = np.frexp((masks & -masks).astype(np.float64))[1]  # of 2ⁱ: i + 1; of 0: 0
    first: UInt8[np.ndarray, " 65536"] = np.maximum(exponents - 1, 0).astype(np.uint8)
    return first


FIRST_LEAF = _first_leaves()


@dataclass(frozen=True, eq=False)
class Trees:
    """T regression trees whose prediction is base + Σₜ (value of the leaf in which the row ends in tree t).

    A tree with fewer leaves has nodes that remove nothing: their mask is `ALL_LEAVES`.
    """

    feature: Int[np.ndarray, "T 15"]  # column of X, per inner node
    threshold: Float[np.ndarray, "T 15"]
    mask: UInt16[np.ndarray, "T 15"]  # the leaves that remain if x ≤ threshold is false
    value: Float[np.ndarray, "T 16"]
    base: float
    num_features: int

    def __len__(self) -> int:
        return len(self.value)

    def predict(self, X: Float[np.ndarray, "N D"]) -> Float[np.ndarray, " N"]:
        """Return one prediction per row, which does not depend on the other rows, to the bit.

        Raises:
            InputError: X is not 2-D or has another number of columns than in training.
        """
        if X.ndim != 2:
            raise InputError(f"X: expected a 2-D table (rows, columns), got shape {X.shape}; reshape it")
        check_width(X, self.num_features, "the ensemble of trees")
        predicted = np.full(len(X), self.base)
        size = max(CELLS // max(len(self), 1), 1)
        for start in range(0, len(X) if len(self) else 0, size):
            leaves = FIRST_LEAF.take(self._masks(X[start : start + size]), mode="clip")  # (n, T)
            values = self.value.take(leaves + LEAVES * np.arange(len(self)), mode="clip")
            predicted[start : start + size] += values.sum(1)  # along memory: each row is summed by itself
        return predicted

    def _masks(self, X: Float[np.ndarray, "n D"]) -> UInt16[np.ndarray, "n T"]:
        """Return the leaves that remain for each row and tree."""
        masks = np.full((len(X), len(self)), ALL_LEAVES)
        for column, thresholds, remaining in self._steps:
            false = np.searchsorted(thresholds, X[:, column].astype(np.float64))  # how many thresholds are below x
            masks &= remaining.take(false, axis=0, mode="clip")
        return masks

    @cached_property
    def _steps(self) -> list[tuple[int, Float[np.ndarray, " R"], UInt16[np.ndarray, "R+1 T"]]]:
        """Return, per column in use, its R thresholds in order and the leaves that remain if the first r are below x.

        Conditions on one column become one search and one row of a table, instead of one comparison per node. All
        tables together have at most 30 T rows.
        """
        steps = []
        used = self.mask != ALL_LEAVES
        for column in np.unique(self.feature[used]).tolist():
            tree, node = np.nonzero(used & (self.feature == column))
            thresholds, rank = np.unique(self.threshold[tree, node], return_inverse=True)
            remaining = np.full((len(thresholds) + 1, len(self)), ALL_LEAVES)
            np.bitwise_and.at(remaining, (rank + 1, tree), self.mask[tree, node])
            np.bitwise_and.accumulate(remaining, axis=0, out=remaining)
            steps.append((column, thresholds, remaining))
        return steps

    def tensors(self) -> dict[str, Tensor]:
        """Return what `from_tensors` restores bit for bit."""
        tensors = {name: torch.from_numpy(getattr(self, name)).to(dtype) for name, (dtype, _) in _TENSORS.items()}
        return tensors | {"base": torch.tensor(self.base, dtype=torch.float64)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], num_features: int) -> "Trees":
        """Return the trees stored by `tensors`, after checking every number.

        Args:
            tensors: whatever a file contained under these names.
            num_features: the number of columns of X.

        Raises:
            InputError: A tensor is missing, unknown, or has a wrong type, shape or value.
        """
        _check_layout(tensors)
        arrays = {name: tensor.detach().cpu().contiguous().numpy() for name, tensor in tensors.items()}
        for name, end in (("feature", num_features), ("mask", 2**LEAVES)):
            if arrays[name].size and not 0 <= arrays[name].min() <= arrays[name].max() < end:
                raise InputError(f"trees: expected each {name} from 0 to {end - 1}, got another; the file is damaged")
        with np.errstate(over="ignore"):
            largest = np.abs(arrays["value"]).max(1).sum() + np.abs(arrays["base"])  # no prediction is beyond it
        if not np.isfinite(largest) or not np.isfinite(arrays["threshold"]).all():
            raise InputError("trees: expected finite thresholds, values and sums, got NaN or inf; the file is damaged")
        return cls(
            feature=arrays["feature"],
            threshold=arrays["threshold"],
            mask=arrays["mask"].astype(np.uint16),
            value=arrays["value"],
            base=float(arrays["base"]),
            num_features=num_features,
        )


def _check_layout(tensors: Mapping[str, Tensor]) -> None:
    """Check names, types and shapes."""
    for name in sorted(tensors.keys() ^ (_TENSORS.keys() | {"base"})):
        what = "not a tensor of trees" if name in tensors else "the tensor is missing"
        raise InputError(f"trees: {name:.100}: {what}; the file is damaged")
    num_trees = len(tensors["value"]) if tensors["value"].ndim else 0
    if num_trees > MAX_TREES:
        raise InputError(f"trees: expected at most {MAX_TREES} trees, got {num_trees}; the file is damaged")
    expected = {name: (dtype, (num_trees, *shape)) for name, (dtype, shape) in _TENSORS.items()}
    for name, (dtype, shape) in (expected | {"base": (torch.float64, ())}).items():
        got = tensors[name]
        if (got.dtype, tuple(got.shape), got.layout) != (dtype, shape, torch.strided):
            raise InputError(
                f"trees: {name}: expected {dtype} of shape {shape}, got {got.dtype} of {tuple(got.shape)}; "
                "the file is damaged"
            )

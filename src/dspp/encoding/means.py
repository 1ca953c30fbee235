"""Encoding of categories with many levels by the mean target of each level, of other rows while models train."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Int

from dspp.encoding.columns import NEW, Column, Parsed, are_levels, is_short_text, read_levels
from dspp.table.messages import Place

PRIOR_ROWS: Final = 10.0  # the mean of a level is shrunk towards 0 as if it had so many further rows of target 0
MAX_MEANS: Final = 5_000  # levels of a column with a mean
MAX_NUMBERS: Final = 100_000  # levels and means of all columns together, so that a model file can hold them
MAX_BYTES: Final = 1_000_000  # of the levels of all columns together, likewise

# Given encoded rows and a mask of those that a model is trained without: the rows as it reads them, none of whose means
# saw the target of its own row, and for each category the means of its levels that saw none of the rows left out.
Without = Callable[
    [Float[np.ndarray, "N D"], Bool[np.ndarray, " N"]],
    tuple[Float[np.ndarray, "N D"], list[Float[np.ndarray, "L T"]]],
]


@dataclass(frozen=True)
class MeanCategory(Column):
    """A category with many levels: the mean of the standardised target of each level.

    The mean of levels not seen in training, and of missing values, is 0. With several outputs there is a mean of each
    of them. For the rows that a model is trained on, the means are replaced by those of `cross_fit_means`.
    """

    kind = "category with means"
    levels: tuple[str, ...]  # the most frequent first
    means: tuple[float, ...]  # of each level and output, level by level

    @property
    def num_outputs(self) -> int:
        """T, the number of means of each level."""
        return len(self.means) // len(self.levels)

    @property
    def description(self) -> str:
        mark = ", and a column that marks missing ones" if self.missing else ""
        return f"the mean target of each of {len(self.levels):,} levels{mark}"

    @property
    def lumping(self) -> str:
        means = "one input is" if self.num_outputs == 1 else f"{self.num_outputs} inputs are"
        return f"{means} the mean target of each of {len(self.levels):,} levels"

    @property
    def _is_valid(self) -> bool:
        count = len(self.means)
        return are_levels(self.levels, MAX_MEANS) and 0 < count <= MAX_NUMBERS and count % len(self.levels) == 0

    @property
    def _inputs(self) -> tuple[str, ...]:
        numbers = [""] if self.num_outputs == 1 else [f" {t + 1}" for t in range(self.num_outputs)]
        return tuple(f"{self.name} (mean{number})" for number in numbers)

    def _read(self, array: pa.Array, place: Place) -> Parsed:
        return read_levels(array, place, self.levels)

    def _write(self, parsed: Parsed, absent: Bool[np.ndarray, " n"], out: Float[np.ndarray, "n F"]) -> None:
        means = np.reshape(self.means, (len(self.levels), -1))
        out[:, : self.num_outputs] = np.vstack([means, np.zeros(self.num_outputs)])[as_codes(parsed)]


def as_codes(parsed: Parsed) -> Int[np.ndarray, " n"]:
    """Return the numbers of levels as integers: `NEW`, the last, where a level is unknown or missing."""
    return np.asarray(np.fmax(parsed, NEW).astype(np.intp))


def smoothed_means(
    codes: Int[np.ndarray, " n"], y: Float[np.ndarray, "n T"], levels: int
) -> Float[np.ndarray, "L+1 T"]:
    """Return Σ y / (count + `PRIOR_ROWS`) of each level, and 0 in a last row, for unknown levels (`NEW` in `codes`).

    Standardised targets have mean 0; NaN is not observed.
    """
    means = np.zeros((levels + 1, y.shape[1]))
    for column, mean in zip(y.T, means.T, strict=True):
        known = (codes >= 0) & ~np.isnan(column)
        sums = np.bincount(codes[known], column[known], levels)
        mean[:-1] = sums / (np.bincount(codes[known], minlength=levels) + PRIOR_ROWS)
    return means


def cross_fit_means(
    X: Float[np.ndarray, "N D"],  # encoded and standardised
    left_out: Bool[np.ndarray, " N"],
    *,
    codes: Sequence[Int[np.ndarray, " N"]],  # for each category, the number of each row's level, `NEW` without one
    y: Float[np.ndarray, "N T"],  # standardised
    inner: Int[np.ndarray, " N"],  # the inner fold of each row
    features: Sequence[int],  # the columns of X that hold means, in the order of `codes` and then of the outputs
    scale: Callable[[Float[np.ndarray, "N C"]], Float[np.ndarray, "N C"]],
) -> tuple[Float[np.ndarray, "N D"], list[Float[np.ndarray, "L T"]]]:
    """Return rows and means for a model that is trained without some rows: see `Without`.

    The rows left out have means that saw none of them, as if they were new. Any other row has means that saw neither
    these rows nor the row's own inner fold. `scale` standardises the columns of means.
    """
    parts = [left_out, *(~left_out & (inner == j) for j in np.unique(inner))]
    learned = []
    for part in parts:
        seen = ~(left_out | part)
        learned.append([smoothed_means(c[seen], y[seen], int(c.max()) + 1) for c in codes])
    means = np.zeros((len(X), len(features)))
    for part, own in zip(parts, learned, strict=True):
        means[part] = np.column_stack([levels[c[part]] for levels, c in zip(own, codes, strict=True)])
    X = X.copy()
    X[:, features] = scale(means)
    return X, [levels[:-1] for levels in learned[0]]


def levels_with_means(levels: Sequence[str], columns: int, outputs: int) -> list[str]:
    """Return those of the levels of a column, the most frequent first, whose means are stored.

    They are all if a model file can hold them for so many columns, with a mean per output.
    """
    short = [level for level in levels if is_short_text(level)]
    most = min(MAX_MEANS, MAX_NUMBERS // (columns * (1 + outputs)))
    sizes = np.cumsum([len(json.dumps(level)) for level in short[:most]])
    return short[: max(1, int(np.searchsorted(sizes, MAX_BYTES // columns, side="right")))]

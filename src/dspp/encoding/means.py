"""Encoding of categories with many levels by the mean target of each level, of other rows while models train."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from jaxtyping import Bool, Float, Int

from dspp.encoding.columns import (
    ABSENT,
    NEW,
    Category,
    Column,
    Parsed,
    are_levels,
    check_missing,
    is_short_text,
    level_numbers,
    with_mark,
)
from dspp.encoding.scaling import Standardizer
from dspp.table.messages import Place

PRIOR_ROWS: Final = 10.0  # the mean of a level is shrunk towards 0 as if it had so many further rows of target 0
MOST_MEANS: Final = 5_000  # levels of a column with a mean
MOST_NUMBERS: Final = 100_000  # levels and means of all columns together, so that a model file can hold them
MOST_BYTES: Final = 1_000_000  # of the levels of all columns together, likewise


def smoothed_means(
    codes: Int[np.ndarray, " n"], y: Float[np.ndarray, "n T"], levels: int
) -> Float[np.ndarray, "L+1 T"]:
    """Return Σ y / (count + `PRIOR_ROWS`) of each level, and 0 in a last row, for unknown levels.

    Args:
        codes: The number of each row's level; `NEW`: unknown, or missing.
        y: Standardised targets, with mean 0; NaN: not observed.
        levels: L.
    """
    means = np.zeros((levels + 1, y.shape[1]))
    for column, mean in zip(y.T, means.T, strict=True):
        known = (codes >= 0) & ~np.isnan(column)
        sums = np.bincount(codes[known], column[known], levels)
        mean[:-1] = sums / (np.bincount(codes[known], minlength=levels) + PRIOR_ROWS)
    return means


@dataclass(frozen=True)
class MeanCategory(Column):
    """A category with many levels: the mean of the standardised target of each level.

    The mean of levels not seen in training, and of missing values, is 0. With several outputs there is a mean of each
    of them. For the rows that a model is trained on, the means are replaced by those of `CrossFittedMeans`.
    """

    kind = "category with means"
    levels: tuple[str, ...]  # the most frequent first
    missing: bool
    means: tuple[float, ...]  # of each level and output, level by level

    @classmethod
    def fit(
        cls,
        column: Category,
        levels: Sequence[str],
        values: pa.ChunkedArray,
        y: Float[np.ndarray, "N T"],
        place: Place,
    ) -> "MeanCategory":
        """Replace the inputs of a category by the means of these levels."""
        means = smoothed_means(level_numbers(values, levels, place), y, len(levels))[:-1]
        return cls(column.name, tuple(levels), column.missing, tuple(means.ravel().tolist()))

    @property
    def is_valid(self) -> bool:
        """Whether the fields are possible: there is a mean per level and output."""
        count = len(self.means)
        known = are_levels(self.levels, MOST_MEANS) and 0 < count <= MOST_NUMBERS and count % len(self.levels) == 0
        return super().is_valid and known

    @property
    def num_outputs(self) -> int:
        """T, the number of means of each level."""
        return len(self.means) // len(self.levels)

    @property
    def features(self) -> tuple[str, ...]:
        """The means and, if values may be missing, the indicator."""
        numbers = [""] if self.num_outputs == 1 else [f" {t + 1}" for t in range(self.num_outputs)]
        return (*(f"{self.name} (mean{number})" for number in numbers), *with_mark(self.name, self.missing)[1:])

    @property
    def how(self) -> str:
        """A description of the encoding."""
        mark = ", and a column that marks missing ones" if self.missing else ""
        return f"the mean target of each of {len(self.levels):,} levels{mark}"

    @property
    def lumping(self) -> str:
        """What becomes of the levels."""
        means = "one input is" if self.num_outputs == 1 else f"{self.num_outputs} inputs are"
        return f"{means} the mean target of each of {len(self.levels):,} levels"

    def parse(self, values: pa.ChunkedArray, place: Place) -> Parsed:
        """Return the number of each row's level, as `Category` does."""
        return level_numbers(values, self.levels, place)

    def is_missing(self, parsed: Parsed) -> Bool[np.ndarray, " n"]:
        """Return which values are missing."""
        return np.asarray(parsed == ABSENT)

    def encode(self, parsed: Parsed, out: Float[np.ndarray, "n F"], place: Place, impute: bool = False) -> None:
        """Write the means and the indicator."""
        absent = self.is_missing(parsed)
        check_missing(absent, self.missing or impute, place)
        means = np.zeros((len(self.levels) + 1, self.num_outputs))
        means[:-1] = np.reshape(self.means, (len(self.levels), -1))
        out[:, : self.num_outputs] = means[np.maximum(parsed, NEW)]
        if self.missing:
            out[:, -1] = absent


@dataclass(frozen=True, eq=False)
class CrossFittedMeans:
    """The means that rows have while a model is trained on them, none of which saw the target of its own row.

    Attributes:
        features: The numbers of the encoded columns that hold means, in the order of `codes` and then of the outputs.
        codes: For each category, the number of each row's level, `NEW` where there is none.
        y: Standardised targets.
        inner: The inner fold of each row, which is left out of its means.
        scale: Of these encoded columns.
    """

    features: Int[np.ndarray, " C"]
    codes: tuple[Int[np.ndarray, " N"], ...]
    y: Float[np.ndarray, "N T"]
    inner: Int[np.ndarray, " N"]
    scale: Standardizer

    def without(self, left_out: Bool[np.ndarray, " N"]) -> Float[np.ndarray, "N C"]:
        """Return the means for a model that is trained without some rows, in standardised units.

        The rows left out have means that saw none of them, as if they were new. Any other row has means that saw
        neither these rows nor the row's own inner fold.
        """
        out = np.zeros((len(left_out), len(self.features)))
        for part in (left_out, *(~left_out & (self.inner == j) for j in np.unique(self.inner))):
            seen = ~(left_out | part)
            out[part] = np.column_stack(
                [smoothed_means(c[seen], self.y[seen], int(c.max()) + 1)[c[part]] for c in self.codes]
            )
        return self.scale.transform(out)

    def by_level(self, left_out: Bool[np.ndarray, " N"]) -> list[Float[np.ndarray, "L T"]]:
        """Return, for each category, the means of its levels that did not see some rows."""
        seen = ~left_out
        return [smoothed_means(c[seen], self.y[seen], int(c.max()) + 1)[:-1] for c in self.codes]

    def insert(self, X: Float[np.ndarray, "N D"], left_out: Bool[np.ndarray, " N"]) -> Float[np.ndarray, "N D"]:
        """Return encoded, standardised rows with the means for a model that is trained without some rows."""
        X = X.copy()
        X[:, self.features] = self.without(left_out)
        return X


def levels_with_means(levels: Sequence[str], columns: int, outputs: int) -> list[str]:
    """Return the levels, of those ordered by frequency, whose means are stored: all if a model file can hold them.

    Args:
        levels: Of one column.
        columns: The number of columns with means.
        outputs: The number of means per level.
    """
    short = [level for level in levels if is_short_text(level)]
    most = min(MOST_MEANS, MOST_NUMBERS // (columns * (1 + outputs)))
    sizes = np.cumsum([len(json.dumps(level)) for level in short[:most]])
    return short[: max(1, int(np.searchsorted(sizes, MOST_BYTES // columns, side="right")))]

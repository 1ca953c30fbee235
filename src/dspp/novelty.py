"""What rows have that the training rows had not: levels, blank cells, numbers outside their range, later dates."""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from jaxtyping import Int

from dspp.encoding.columns import NEW, Category, Column, Number, Parsed
from dspp.encoding.datetimes import Datetime, format_moment
from dspp.encoding.means import MAX_MEANS, MeanCategory
from dspp.fitted import Fitted
from dspp.table import arrays
from dspp.table.messages import join_names
from dspp.table.table import Table

# In widths of the range of the training rows: nearer to it, predictions hardly change and numbers are not reported.
NOTICED = 0.5


class Novelty:
    """Counts, batch by batch, what rows have that the training rows of a model had not.

    Categories with very many levels, or with a level for rare ones, are not counted, as the model does not store which
    rare levels it has seen.
    """

    def __init__(self, fitted: Fitted, impute: bool = False) -> None:
        self._fitted, self._impute = fitted, impute
        self._columns: tuple[Column, ...] = () if fitted.encoder is None else fitted.encoder.columns
        self._ranges = _find_ranges(fitted)
        self._rows = 0
        self._levels: dict[str, tuple[int, list[str]]] = {}  # how many rows, and examples
        self._outside: dict[str, tuple[int, float]] = {}  # how many rows, and the farthest number
        self._firsts: dict[str, float] = {}  # the earliest date
        self._blank: set[str] = set()

    def count(self, rows: Table) -> None:
        """Count what is new in a batch."""
        rows = self._fitted.inputs(rows)
        self._rows += len(rows)
        if self._fitted.encoder is None:
            columns = self._fitted.encode(rows).T
            values: Mapping[str, Parsed] = dict(zip(self._ranges, columns, strict=False))  # no ranges: nothing to count
        else:
            assert rows.parsed is not None
            values = rows.parsed
            self._blank |= self._fitted.encoder.columns_with_gaps(values) if self._impute else set()
        for name in self._ranges:
            self._count_outside(name, values[name])
        for column in self._columns:
            if isinstance(column, Datetime):
                first = np.fmin.reduce(values[column.name], initial=np.inf)
                self._firsts[column.name] = min(first, self._firsts.get(column.name, np.inf))
            elif _stores_all_levels(column):
                self._count_levels(column.name, rows, np.flatnonzero(values[column.name] == NEW))

    def _count_levels(self, name: str, rows: Table, new: Int[np.ndarray, " k"]) -> None:
        if len(new):
            assert rows.arrow is not None
            some = rows.arrow.column(name).take(pa.array(new)).combine_chunks()
            count, known = self._levels.get(name, (0, []))
            found = arrays.texts(some, rows.place.of(name)).unique()[:5].to_pylist()
            self._levels[name] = count + len(new), known + [level for level in found if level not in known]

    def _count_outside(self, name: str, values: Parsed) -> None:
        low, high = self._ranges[name]
        margin = NOTICED * (high - low)
        out = np.fmax(low - values, values - high)  # NaN is nowhere
        far = out > margin
        if far.any() and margin:  # of a column that is constant in training, predictions take no notice
            count, farthest = self._outside.get(name, (0, 0.5 * low + 0.5 * high))
            distance = max(low - farthest, farthest - high)
            found = float(values[np.nanargmax(out)])
            self._outside[name] = count + int(far.sum()), found if np.nanmax(out) > distance else farthest

    def warnings(self) -> list[str]:
        """Return a sentence for each column with something new."""
        levels = [
            f"column {name!r}: {count:,} value{'s' if count > 1 else ''} not seen in training "
            f"({join_names(examples, 3)}); predictions ignore them"
            for name, (count, examples) in self._levels.items()
        ]
        ranges = [
            f"column {name!r}: {count:,} value{'s' if count > 1 else ''} outside the range seen in training "
            f"({_format_range(*self._ranges[name])}), such as {farthest:.6g}; far outside, "
            "predictions approach the distribution of all training rows"
            for name, (count, farthest) in self._outside.items()
        ]
        which = f"all {self._rows:,} rows are" if self._rows > 1 else "the row is"
        dates = [
            f"column {column.name!r}: {which} later than the rows trained on, which end at "
            f"{format_moment(column.latest)}; the scores of a fit with time= (on the command line, --time) are of such "
            "rows"
            for column in self._columns
            if isinstance(column, Datetime) and column.latest < self._firsts.get(column.name, np.inf) < np.inf
        ]
        blanks = [
            f"column {name!r}: blank cells, of which training had none, are filled in" for name in sorted(self._blank)
        ]
        return [*levels, *ranges, *dates, *blanks]


def _format_range(low: float, high: float) -> str:
    """Return a range as text, with as many digits as tell its ends apart."""
    digits = 17 if f"{low:.6g}" == f"{high:.6g}" else 6
    return f"{low:.{digits}g} to {high:.{digits}g}"


def _stores_all_levels(column: Column) -> bool:
    if isinstance(column, Category):
        return not column.other
    return isinstance(column, MeanCategory) and len(column.levels) < MAX_MEANS


def _find_ranges(fitted: Fitted) -> dict[str, tuple[float, float]]:
    if fitted.input_range is None:
        return {}
    ends = list(zip(*fitted.input_range.tolist(), strict=True))
    if fitted.encoder is None:
        return dict(zip(fitted.feature_names or map(str, range(len(ends))), ends, strict=True))
    columns = fitted.encoder.columns
    first = np.cumsum([0, *(len(column.features) for column in columns)])
    return {column.name: ends[k] for column, k in zip(columns, first, strict=False) if isinstance(column, Number)}

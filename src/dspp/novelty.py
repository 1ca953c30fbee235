"""What rows have that the training rows had not: levels, blank cells, numbers outside their range, later dates."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from jaxtyping import Float

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

    Args:
        fitted: The model.
        impute: Whether blank cells are filled in where training had none.
    """

    def __init__(self, fitted: Fitted, impute: bool = False) -> None:
        self._fitted, self._impute = fitted, impute
        self._columns: tuple[Column, ...] = () if fitted.encoder is None else fitted.encoder.columns
        self._ranges = dict(_ranges(fitted))
        self._rows = 0
        self._levels: dict[str, tuple[int, list[str]]] = {}
        self._outside: dict[str, tuple[int, float]] = {}
        self._firsts: dict[str, int] = {}
        self._blank: set[str] = set()

    def count(self, rows: Table) -> None:
        """Count what is new in these rows."""
        rows = self._fitted.inputs(rows)
        self._rows += len(rows)
        if self._fitted.encoder is None:
            for k, (name, ends) in enumerate(self._ranges.items()):
                self._count_outside(name, _numbers(rows, k), *ends)
            return
        assert rows.parsed is not None
        for name, ends in self._ranges.items():
            self._count_outside(name, rows.parsed[name], *ends)
        for column in self._columns:
            if isinstance(column, Datetime):
                self._find_first(column, rows.parsed[column.name])
            elif _stores_all_levels(column):
                self._count_levels(column.name, rows)
        if self._impute:
            self._blank |= self._fitted.encoder.columns_with_gaps(rows.parsed)

    def warnings(self) -> list[str]:
        """Return a sentence for each column with something new."""
        return [*self._about_levels(), *self._about_ranges(), *self._about_dates(), *self._about_blanks()]

    # ---------------------------------------------------------------- counting

    def _count_levels(self, name: str, rows: Table) -> None:
        assert rows.arrow is not None
        assert rows.parsed is not None
        new = np.flatnonzero(rows.parsed[name] == NEW)
        if len(new):
            some = rows.arrow.column(name).take(pa.array(new)).combine_chunks()
            count, known = self._levels.get(name, (0, []))
            found = arrays.texts(some, rows.place.of(name)).unique()[:5].to_pylist()
            known += [level for level in found if level not in known]
            self._levels[name] = count + len(new), known

    def _count_outside(self, name: str, values: Float[np.ndarray, " n"], low: float, high: float) -> None:
        margin = NOTICED * (high - low)
        below, above = low - values, values - high
        out = np.fmax(below, above)  # NaN is nowhere
        far = out > margin
        if far.any() and margin:  # of a column that is constant in training, predictions take no notice
            count, farthest = self._outside.get(name, (0, 0.5 * low + 0.5 * high))
            found = float(values[np.nanargmax(out)])
            distance = max(low - farthest, farthest - high)
            self._outside[name] = count + int(far.sum()), found if np.nanmax(out) > distance else farthest

    def _find_first(self, column: Datetime, parsed: Parsed) -> None:
        known = parsed[~np.isnan(parsed)]
        if len(known):
            first = int(known.min())
            self._firsts[column.name] = min(first, self._firsts.get(column.name, first))

    # ---------------------------------------------------------------- sentences

    def _about_levels(self) -> list[str]:
        return [
            f"column {name!r}: {count:,} value{'s' if count > 1 else ''} not seen in training "
            f"({join_names(examples, 3)}); predictions ignore them"
            for name, (count, examples) in self._levels.items()
        ]

    def _about_ranges(self) -> list[str]:
        return [
            f"column {name!r}: {count:,} value{'s' if count > 1 else ''} outside the range seen in training "
            f"({_range_text(*self._ranges[name])}), such as {farthest:.6g}; far outside, "
            "predictions approach the distribution of all training rows"
            for name, (count, farthest) in self._outside.items()
        ]

    def _about_dates(self) -> list[str]:
        later = [
            (column.name, column.latest)
            for column in self._columns
            if isinstance(column, Datetime)
            if self._firsts.get(column.name, column.latest) > column.latest
        ]
        which = f"all {self._rows:,} rows are" if self._rows > 1 else "the row is"
        return [
            f"column {name!r}: {which} later than the rows trained on, which end at {format_moment(latest)}; the "
            "scores of a fit with time= (on the command line, --time) are of such rows"
            for name, latest in later
        ]

    def _about_blanks(self) -> list[str]:
        return [
            f"column {name!r}: blank cells, of which training had none, are filled in" for name in sorted(self._blank)
        ]


def _range_text(low: float, high: float) -> str:
    """Return a range as text, with as many digits as tell its ends apart."""
    digits = 17 if f"{low:.6g}" == f"{high:.6g}" else 6
    return f"{low:.{digits}g} to {high:.{digits}g}"


def _stores_all_levels(column: Column) -> bool:
    """Return whether a column is a category that stores all levels that were seen."""
    if isinstance(column, Category):
        return not column.other
    return isinstance(column, MeanCategory) and len(column.levels) < MAX_MEANS


def _numbers(rows: Table, column: int) -> Float[np.ndarray, " n"]:
    """Return a column of numbers, by its place."""
    if rows.arrow is None:
        assert rows.array is not None
        return rows.array[:, column]
    return arrays.numbers(rows.arrow.column(column).combine_chunks(), rows.place.of(rows.names[column]))


def _ranges(fitted: Fitted) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield name, smallest and largest training value of each column of numbers."""
    if fitted.input_range is None:
        return
    low, high = fitted.input_range.tolist()
    if fitted.encoder is None:
        names = fitted.feature_names or map(str, range(len(low)))
        yield from zip(names, zip(low, high, strict=True), strict=True)
        return
    first = 0
    for column in fitted.encoder.columns:
        if isinstance(column, Number):
            yield column.name, (low[first], high[first])
        first += len(column.features)

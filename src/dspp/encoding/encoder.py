"""Encoding of a table as a matrix of numbers, learned on the training rows and stored in the model file.

Each input column becomes one or more columns of numbers:

| kind     | columns                                                                                         |
|----------|-------------------------------------------------------------------------------------------------|
| number   | unchanged; durations in seconds                                                                 |
| boolean  | 0 or 1                                                                                          |
| category | 0 or 1 per level; of more than 20 levels, the mean target of each                               |
| duration | text such as "61 years 4 months" as a number of years                                           |
| datetime | days since the first training row; sine and cosine of hour, weekday and season, if they vary    |

plus a column "<name> is missing" if the training rows have missing values.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Final, Self, TypeVar

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int

from dspp.encoding.columns import (
    LONGEST_TEXT,
    Boolean,
    Category,
    Column,
    Dropped,
    Number,
    by_frequency,
    is_short_text,
)
from dspp.encoding.datetimes import Datetime
from dspp.encoding.durations import Duration
from dspp.encoding.learning import CategoryLearner, Learner, make_learner
from dspp.encoding.means import CrossFittedMeans, MeanCategory, find_levels, levels_with_means
from dspp.encoding.scaling import Standardizer
from dspp.errors import InputError
from dspp.notes import Note
from dspp.table.arrays import has_zone, kind_of
from dspp.table.checks import check_width
from dspp.table.memory import BLOCK, number_columns
from dspp.table.messages import Place, check_names, closest
from dspp.table.table import MemoryTable

MAX_COLUMNS: Final = 10_000

IN_X: Final = Place("X")

Encoder = TypeVar("Encoder", bound="TableEncoder")


@dataclass(frozen=True)
class TableEncoder:
    """The encoding of a table's columns, learned on the training rows.

    Columns are matched by name, in any order; additional columns are ignored. A column may have another type than in
    training if its values can be converted: numbers and dates as text, categories as integers.

    Attributes:
        columns: The encoding of each column, including those left out.
        notes: Notes to the user, such as which columns are left out and why.
    """

    columns: tuple[Column, ...]
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(names) > MAX_COLUMNS:
            raise InputError(f"expected at most {MAX_COLUMNS:,} columns, got {len(names):,}; select some of them")
        if len(set(names)) < len(names) or not any(column.features for column in self.columns):
            raise InputError("expected unique column names, and a column that is not left out; the encoding is damaged")
        if len(self.notes) > 2 * MAX_COLUMNS or not all(
            is_short_text(str(note), 2 * LONGEST_TEXT) for note in self.notes
        ):
            raise InputError("expected notes to be short texts; the encoding is damaged")

    @classmethod
    def fit(cls, table: pa.Table, place: Place = IN_X, y: Float[np.ndarray, "N T"] | None = None) -> Self:
        """Learn the encoding of these rows. Pass training rows only: others would leak into the model.

        Args:
            table: The rows.
            place: Their place, for errors.
            y: Standardised targets, whose means become inputs for categories with many levels; None: they do not.

        Raises:
            InputError: The table has no rows, no informative column, or a column that cannot be encoded.
        """
        if table.num_rows == 0:
            raise InputError(f"{place.where}: expected at least 1 row, got 0; check the file or filter it came from")
        check_names(table.column_names, place.where)
        learners = [learn_column(table.column(name), place.of(name)) for name in table.column_names]
        columns = [learner.column() for learner in learners]
        if y is not None:
            columns = _add_means(learners, columns, table, y, place)
        return _make_encoder(cls, learners, columns, place.where)

    def allow_missing_in(self, table: pa.Table, place: Place = IN_X) -> Self:
        """Return an encoder that also accepts missing values in the columns in which `table` has some.

        For rows held out of the same table: only which columns have missing values is learned from them.

        Raises:
            InputError: See `transform`.
        """
        gaps = self.columns_with_gaps(table, place)
        return type(self)(tuple(c.allow_missing() if c.name in gaps else c for c in self.columns), self.notes)

    def columns_with_gaps(self, table: pa.Table, place: Place = IN_X) -> set[str]:
        """Return the names of the columns in which `table` has missing values, but the training rows had none.

        Raises:
            InputError: See `transform`.
        """
        rows, complete = self._select(table, place.where), [c for c in self._used if not getattr(c, "missing", False)]
        return {column.name for column in complete if _has_missing(column, rows.column(column.name), place)}

    def ending_with(self, table: pa.Table, place: Place = IN_X) -> Self:
        """Return an encoder whose days end at the last of these rows, where those that are trained on end."""
        columns = [
            column.ending_with(table.column(column.name).combine_chunks(), place.of(column.name))
            if isinstance(column, Datetime)
            else column
            for column in self.columns
        ]
        return type(self)(tuple(columns), self.notes)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The names of the input columns that `transform` needs."""
        return tuple(column.name for column in self._used)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the encoded columns."""
        return tuple(chain.from_iterable(column.features for column in self._used))

    @property
    def _used(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if not isinstance(column, Dropped))

    def describe(self) -> list[dict[str, str]]:
        """Return name, kind and description of each input column."""
        return [{"column": column.name, "kind": column.kind, "how": column.how} for column in self.columns]

    def arrow_types(self) -> dict[str, pa.DataType]:
        """Return the Arrow types with which to read the needed columns from a text file."""
        return {column.name: column.arrow_type for column in self._used}

    def cross_fit_means(
        self,
        table: pa.Table,
        y: Float[np.ndarray, "N T"],
        inner: Int[np.ndarray, " N"],
        scale: Standardizer,
        place: Place = IN_X,
    ) -> CrossFittedMeans | None:
        """Return the means that these rows have while models are trained on them; None if no column has means.

        Args:
            table: The rows that this encoder has learned from.
            y: Their standardised targets.
            inner: The inner fold of each row.
            scale: Of the encoded columns.
            place: The place of the rows, for errors.
        """
        codes = [
            find_levels(table.column(column.name), column.levels, place.of(column.name))
            for column in self._used
            if isinstance(column, MeanCategory)
        ]
        if not codes:
            return None
        features = self.mean_features
        return CrossFittedMeans(np.array(features), tuple(codes), y, inner, scale.select(features))

    @property
    def mean_features(self) -> list[int]:
        """The numbers of the encoded columns that hold mean targets of levels."""
        features: list[int] = []
        done = 0
        for column in self._used:
            if isinstance(column, MeanCategory):
                features += range(done, done + column.num_outputs)
            done += len(column.features)
        return features

    def with_means(self, means: Sequence[Float[np.ndarray, "L T"]]) -> Self:
        """Return the encoder with other means of the levels of its columns with means, such as those of some rows."""
        left = iter(means)
        columns = [
            replace(column, means=tuple(next(left).ravel().tolist())) if isinstance(column, MeanCategory) else column
            for column in self.columns
        ]
        return type(self)(tuple(columns), self.notes)

    def transform(
        self, table: pa.Table | pa.RecordBatch, place: Place = IN_X, impute: bool = False
    ) -> Float[np.ndarray, "N F"]:
        """Return the encoded rows: finite float64, one column per name in `feature_names`.

        Args:
            table: The rows, with at least the columns `column_names`.
            place: The place of the rows, for errors.
            impute: Whether to accept missing values where the training rows had none; see `Column.encode`.

        Raises:
            InputError: A column is missing, or a value cannot be converted to the kind of its column.
        """
        out = np.empty((table.num_rows, len(self.feature_names)))
        start = 0
        for batch in self._select(table, place.where).to_batches(max_chunksize=BLOCK):
            done = 0
            for column, array in zip(self._used, batch.columns, strict=True):
                width = len(column.features)
                into = out[start : start + len(batch), done : done + width]
                column.encode(array, into, place.of(column.name, start), impute)
                done += width
            start += len(batch)
        return out

    def _select(self, table: pa.Table | pa.RecordBatch, where: str) -> pa.Table:
        """Return the needed columns in the order of training."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        names = table.column_names
        check_names(names, where)
        for absent in sorted(set(self.column_names).difference(names)):
            close = closest(absent, names)
            hint = "pass every column of the training rows" if close is None else f"did you mean {close!r}?"
            raise InputError(f"{where}: expected a column {absent!r}, got none; {hint}")
        return table.select(list(self.column_names))


def reading_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the Arrow types with which to read further rows of a table of this schema from a text file.

    They equal `TableEncoder.arrow_types` of an encoder of this table, before one exists.
    """
    types = {"number": pa.float64(), "boolean": pa.bool_(), "category": pa.string()}
    types |= {"datetime": pa.timestamp("us"), "datetime with a zone": pa.timestamp("us", "UTC")}
    kinds = {field.name: kind_of(field.type) + " with a zone" * has_zone(field.type) for field in schema}
    return {name: types[kind] for name, kind in kinds.items() if kind}


# ---------------------------------------------------------------- learning


def _make_encoder(kind: type[Encoder], learners: Sequence[Learner], columns: Sequence[Column], where: str) -> Encoder:
    made = [_make_note(*pair) for pair in zip(learners, columns, strict=True)]
    notes = tuple(note for note in made if note is not None)
    if not any(column.features for column in columns):
        raise InputError(
            f"{where}: expected at least one informative column, got none: {'; '.join(map(str, notes)):.1000}"
        )
    return kind(tuple(columns), notes)


def _add_means(
    learners: Sequence[Learner], columns: Sequence[Column], table: pa.Table, y: Float[np.ndarray, "N T"], place: Place
) -> list[Column]:
    """Return the columns, with means of the target in place of lumped levels."""
    count = sum(bool(column.lumping) for column in columns)
    out = list(columns)
    for i, (learner, column) in enumerate(zip(learners, columns, strict=True)):
        if isinstance(learner, CategoryLearner) and isinstance(column, Category) and column.lumping:
            levels = levels_with_means(by_frequency(learner.counts), count, y.shape[1])
            out[i] = MeanCategory.fit(column, levels, table.column(column.name), y, place.of(column.name))
    return out


def learn_column(column: pa.ChunkedArray, place: Place) -> Learner:
    """Return the learner of a whole column."""
    learner = make_learner(place.column, column.type)
    _add(learner, column, place)
    return learner


def _add(learner: Learner, column: pa.ChunkedArray | pa.Array, place: Place) -> None:
    done = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        learner.add(chunk, place.of(place.column, done))
        done += len(chunk)


def _has_missing(column: Column, values: pa.ChunkedArray, place: Place) -> bool:
    done = 0
    for chunk in values.chunks:
        if column.has_missing(chunk, place.of(column.name, done)):
            return True
        done += len(chunk)
    return False


def _make_note(learner: Learner, column: Column) -> Note | None:
    name, hint = f"column {column.name!r}", learner.hint()
    if isinstance(column, Dropped):
        return Note(f"{name} is left out", f"it {column.how}{hint and f'; {hint}'}")
    lumping = f"it has {learner.size()}: {column.lumping}" if column.lumping else ""
    text = "; ".join(filter(None, (lumping, hint)))
    return Note(name, text) if text else None


# ---------------------------------------------------------------- tables


def learn(table: MemoryTable, *others: MemoryTable, y: Float[np.ndarray, "N T"] | None = None) -> TableEncoder | None:
    """Return the encoder of a table with standardised targets y, or None for an array, which needs none.

    Columns may have missing values if the table or `others`, rows held out of it, have some.
    """
    if table.arrow is None:
        return None
    encoder = TableEncoder.fit(table.arrow, table.place, y)
    for other in others:
        encoder = (
            encoder if other.arrow is None or not len(other) else encoder.allow_missing_in(other.arrow, other.place)
        )
    return encoder


def encode(table: MemoryTable, encoder: TableEncoder | None, impute: bool = False) -> Float[np.ndarray, "N D"]:
    """Return the encoded rows; a table is copied once, an array is not copied. For `impute` see `Column.encode`.

    Raises:
        InputError: A value cannot be converted to the kind of its column, or is not finite; the error names it.
    """
    if encoder is not None:
        columns = name_columns(table, encoder) if table.arrow is None else table.arrow
        return encoder.transform(columns, table.place, impute)
    if table.arrow is None:
        assert table.array is not None
        return table.array
    array = number_columns(table.arrow, table.place)
    finite = np.isfinite(array)
    if not finite.all():
        row, k = np.argwhere(~finite)[0]
        got = "NaN or no value" if np.isnan(array[row, k]) else f"{array[row, k]}"
        problem = f"expected a finite number, got {got}; fill it in or remove the row"
        raise table.place.of(table.names[k]).error(problem, int(row))
    return array


def name_columns(table: MemoryTable, encoder: TableEncoder) -> pa.Table:
    """Return an array as a table with the column names of the training rows."""
    assert table.array is not None
    names = [column.name for column in encoder.columns]
    check_width(table.array, len(names))
    return pa.table(dict(zip(names, table.array.T, strict=True)))


# Whatever a file may contain.
Column.KINDS = {kind.kind: kind for kind in (Dropped, Number, Boolean, Category, MeanCategory, Duration, Datetime)}

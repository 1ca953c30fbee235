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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Final, Self

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int

from dspp.encoding.columns import (
    MAX_TEXT,
    Boolean,
    Category,
    Column,
    Dropped,
    Duration,
    Number,
    Parsed,
    by_chunk,
    is_short_text,
    read_levels,
)
from dspp.encoding.datetimes import Datetime
from dspp.encoding.learning import Learned, learn_column
from dspp.encoding.means import MeanCategory, Without, as_codes, cross_fit_means, levels_with_means, smoothed_means
from dspp.encoding.scaling import Standardizer
from dspp.errors import InputError
from dspp.notes import Note
from dspp.table.arrays import BLOCK, has_zone, kind_of, number_columns
from dspp.table.checks import check_width
from dspp.table.messages import Place, check_names, closest
from dspp.table.table import Table

MAX_COLUMNS: Final = 10_000

IN_X: Final = Place("X")

ParsedTable = Mapping[str, Parsed]  # by column


@dataclass(frozen=True)
class TableEncoder:
    """The encoding of a table's columns, learned on the training rows.

    Columns are matched by name, in any order; additional columns are ignored. A column may have another type than in
    training if its values can be converted: numbers and dates as text, categories as integers.
    """

    columns: tuple[Column, ...]  # including those left out
    notes: tuple[Note, ...] = ()  # to the user, such as which columns are left out and why

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(names) > MAX_COLUMNS:
            raise InputError(f"expected at most {MAX_COLUMNS:,} columns, got {len(names):,}; select some of them")
        if len(set(names)) < len(names) or not any(column.features for column in self.columns):
            raise InputError("expected unique column names, and a column that is not left out; the encoding is damaged")
        if len(self.notes) > 2 * MAX_COLUMNS or not all(is_short_text(str(note), 2 * MAX_TEXT) for note in self.notes):
            raise InputError("expected notes to be short texts; the encoding is damaged")

    @classmethod
    def fit(
        cls,
        table: pa.Table,
        place: Place = IN_X,
        y: Float[np.ndarray, "N T"] | None = None,  # standardised targets; None: no category is encoded by their means
        schema: pa.Schema | None = None,  # the types that columns were given in, if text has become numbers of levels
    ) -> Self:
        """Learn the encoding of these rows. Pass training rows only: others would leak into the model.

        Raises:
            InputError: The table has no rows, no informative column, or a column that cannot be encoded.
        """
        if table.num_rows == 0:
            raise InputError(f"{place.where}: expected at least 1 row, got 0; check the file or filter it came from")
        check_names(table.column_names, place.where)
        learned = [
            learn_column(table.column(field.name), place.of(field.name), field.type)
            for field in (table.schema if schema is None else schema)
        ]
        if y is not None:
            learned = _with_means(learned, table, y, place)
        columns = tuple(one.column for one in learned)
        notes = tuple(note for one in learned if (note := _make_note(one)) is not None)
        if not any(column.features for column in columns):
            reasons = "; ".join(map(str, notes))
            raise InputError(f"{place.where}: expected at least one informative column, got none: {reasons:.1000}")
        return cls(columns, notes)

    def allow_missing_in(self, parsed: ParsedTable) -> Self:
        """Return an encoder that also accepts missing values in the columns in which these rows have some.

        For rows held out of the same table: only which columns have missing values is learned from them.
        """
        gaps = self.columns_with_gaps(parsed)
        columns = (replace(c, missing=True) if c.name in gaps else c for c in self.columns)
        return replace(self, columns=tuple(columns))

    def columns_with_gaps(self, parsed: ParsedTable) -> set[str]:
        """Return the names of the columns in which these rows have missing values, but the training rows had none."""
        return {column.name for column in self._used if not column.missing and np.isnan(parsed[column.name]).any()}

    def ending_with(self, parsed: ParsedTable) -> Self:
        """Return an encoder whose days end at the last of these rows, where those that are trained on end."""
        columns = (c.ending_with(parsed[c.name]) if isinstance(c, Datetime) else c for c in self.columns)
        return replace(self, columns=tuple(columns))

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
        return [
            {"column": column.name, "kind": column.kind, "description": column.description} for column in self.columns
        ]

    def arrow_types(self) -> dict[str, pa.DataType]:
        """Return the Arrow types with which to read the needed columns from a text file."""
        return {column.name: column.arrow_type for column in self._used}

    @property
    def mean_columns(self) -> tuple[MeanCategory, ...]:
        """The columns of which the mean targets of levels are encoded."""
        return tuple(column for column in self.columns if isinstance(column, MeanCategory))

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
        columns = (
            replace(column, means=tuple(next(left).ravel().tolist())) if isinstance(column, MeanCategory) else column
            for column in self.columns
        )
        return replace(self, columns=tuple(columns))

    def refit_means(
        self, X: Float[np.ndarray, "N F"], parsed: ParsedTable, y: Float[np.ndarray, "N T"]
    ) -> tuple[Self, Float[np.ndarray, "N F"]]:
        """Return the encoder of the same rows with other standardised targets, and the rows that it encodes."""
        codes = [as_codes(parsed[column.name]) for column in self.mean_columns]
        means = [smoothed_means(c, y, len(one.levels)) for c, one in zip(codes, self.mean_columns, strict=True)]
        X = X.copy()
        X[:, self.mean_features] = np.hstack([own[c] for own, c in zip(means, codes, strict=True)])
        return self.with_means([own[:-1] for own in means]), X

    def cross_fit_means(
        self, parsed: ParsedTable, y: Float[np.ndarray, "N T"], inner: Int[np.ndarray, " N"], scale: Standardizer
    ) -> Without | None:
        """Return what makes the means that the training rows have while models are trained; None if there are none.

        `parsed` are the rows that this encoder has learned from; `cross_fit_means` describes the rest.
        """
        codes, features = [as_codes(parsed[column.name]) for column in self.mean_columns], self.mean_features
        own = Standardizer(scale.mean[features], scale.scale[features]).transform  # these columns are not warped
        return partial(cross_fit_means, codes=codes, y=y, inner=inner, features=features, scale=own) if codes else None

    def parse(self, table: pa.Table | pa.RecordBatch, place: Place = IN_X) -> ParsedTable:
        """Return the values of each needed column as `encode` reads them: one number per row.

        Raises:
            InputError: A column is missing, or a value cannot be converted to the kind of its column.
        """
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        names = table.column_names
        check_names(names, place.where)
        for absent in sorted(set(self.column_names).difference(names)):
            close = closest(absent, names)
            hint = "pass every column of the training rows" if close is None else f"did you mean {close!r}?"
            raise InputError(f"{place.where}: expected a column {absent!r}, got none; {hint}")
        return {c.name: c.parse(table.column(c.name), place.of(c.name)) for c in self._used}

    def encode(
        self, parsed: ParsedTable, num_rows: int, place: Place = IN_X, impute: bool = False
    ) -> Float[np.ndarray, "N F"]:
        """Return the rows from `parse`, encoded: finite float64, one column per name in `feature_names`.

        Raises:
            InputError: A value is missing where the training rows had none, and `impute` is False.
        """
        out = np.empty((num_rows, len(self.feature_names)))
        for start in range(0, num_rows, BLOCK):
            block, done = slice(start, start + BLOCK), 0
            for column in self._used:
                width = len(column.features)
                into = out[block, done : done + width]
                column.encode(parsed[column.name][block], into, place.of(column.name, start), impute)
                done += width
        return out

    def transform(
        self, table: pa.Table | pa.RecordBatch, place: Place = IN_X, impute: bool = False
    ) -> Float[np.ndarray, "N F"]:
        """Return the rows of a table, parsed and encoded."""
        return self.encode(self.parse(table, place), table.num_rows, place, impute)


def reading_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the Arrow types with which to read further rows of a table of this schema from a text file.

    They equal `TableEncoder.arrow_types` of an encoder of this table, before one exists.
    """
    types = {"number": pa.float64(), "boolean": pa.bool_(), "category": pa.string()}
    types |= {"datetime": pa.timestamp("us"), "datetime with a zone": pa.timestamp("us", "UTC")}
    kinds = {field.name: kind_of(field.type) + " with a zone" * has_zone(field.type) for field in schema}
    return {name: types[kind] for name, kind in kinds.items() if kind}


# ---------------------------------------------------------------- learning


def _with_means(
    learned: Sequence[Learned], table: pa.Table, y: Float[np.ndarray, "N T"], place: Place
) -> list[Learned]:
    """Return what was learned, with means of the target in place of lumped levels."""
    out, lumped = list(learned), [i for i, one in enumerate(learned) if one.column.lumping]
    for i in lumped:
        name, missing = learned[i].column.name, learned[i].column.missing
        levels = levels_with_means(learned[i].levels, len(lumped), y.shape[1])
        parsed = by_chunk(partial(read_levels, levels=levels), table.column(name), place.of(name))
        means = smoothed_means(as_codes(parsed), y, len(levels))[:-1]
        column = MeanCategory(name, missing, tuple(levels), tuple(means.ravel().tolist()))
        out[i] = learned[i]._replace(column=column)
    return out


def _make_note(learned: Learned) -> Note | None:
    column, name = learned.column, f"column {learned.column.name!r}"
    if isinstance(column, Dropped):
        return Note(f"{name} is left out", f"it {column.reason}{learned.hint and f'; {learned.hint}'}")
    lumping = f"it has {len(learned.levels):,} levels: {column.lumping}" if column.lumping else ""
    text = "; ".join(filter(None, (lumping, learned.hint)))
    return Note(name, text) if text else None


# ---------------------------------------------------------------- tables


def parse(table: Table, encoder: TableEncoder) -> Table:
    """Return the table with its values parsed, unless they are; an array gets the names of the training columns."""
    if table.parsed is not None:
        return table
    arrow = table.arrow
    if arrow is None:
        assert table.array is not None
        names = [column.name for column in encoder.columns]
        check_width(table.array, len(names))
        arrow = pa.table(dict(zip(names, table.array.T, strict=True)))
    return replace(table, arrow=arrow, parsed=encoder.parse(arrow, table.place))


def encode(table: Table, encoder: TableEncoder | None, impute: bool = False) -> Float[np.ndarray, "N D"]:
    """Return the encoded rows; a table is copied once, an array is not copied. For `impute` see `Column.encode`.

    Raises:
        InputError: A value cannot be converted to the kind of its column, or is not finite; the error names it.
    """
    if encoder is not None:
        table = parse(table, encoder)
        assert table.parsed is not None
        return encoder.encode(table.parsed, len(table), table.place, impute)
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


# Whatever a file may contain.
Column.KINDS = {kind.kind: kind for kind in (Dropped, Number, Boolean, Category, MeanCategory, Duration, Datetime)}

"""From a table of any columns to a matrix of numbers, learned on the training rows and kept in the model file.

Each input column becomes one or more columns of numbers:

| kind     | columns                                                                                         |
|----------|-------------------------------------------------------------------------------------------------|
| number   | as it is; a length of time in seconds                                                           |
| boolean  | 0 or 1                                                                                          |
| category | 0 or 1 for each level                                                                           |
| datetime | days since the first training row; sine and cosine of hour, weekday and season, where they vary |

and one more, "<name> is missing", where training rows lacked values.
"""

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from typing import Any, Final, Self, TypeVar

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from dspp.data.columns import LONGEST_TEXT, Boolean, Category, Column, Dropped, Number, is_short_text
from dspp.data.datetimes import Datetime
from dspp.data.learning import Learner, count_levels, kind_of, learner_of
from dspp.data.messages import Place, check_names
from dspp.errors import InputError

__all__ = ["BLOCK", "MAX_COLUMNS", "Category", "TableEncoder", "TableLearner", "reading_types"]

MAX_COLUMNS: Final = 10_000  # of a table
BLOCK: Final = 16_384  # rows encoded at once: the piece of the matrix being filled stays in the cache

Encoder = TypeVar("Encoder", bound="TableEncoder")


@dataclass(frozen=True)
class TableEncoder:
    """What was learned of a table's columns on the training rows, and the map to numbers that follows from it.

    Columns are found by name: their order does not matter, and others are ignored. A column may arrive in another
    type than in training if its values still read as its kind: numbers and dates as text, categories as integers.

    Attributes:
        columns: How each column is encoded, those left out included.
        notes: What a user should know, such as which columns are left out and why.
    """

    columns: tuple[Column, ...]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(names) > MAX_COLUMNS:
            raise InputError(f"got {len(names):,} columns, expected at most {MAX_COLUMNS:,}; choose some of them")
        if len(set(names)) < len(names):
            raise InputError("got two columns of the same name; the encoding is damaged")
        if len(self.notes) > 2 * MAX_COLUMNS or not all(is_short_text(note, 2 * LONGEST_TEXT) for note in self.notes):
            raise InputError("expected notes to be strings; the encoding is damaged")

    @classmethod
    def fit(cls, table: pa.Table, where: str = "X") -> Self:
        """Learn the encoding of these rows. Give training rows only: others would leak into the model.

        Raises:
            InputError: There are no rows, nothing to learn from, or a column that cannot be encoded.
        """
        if table.num_rows == 0:
            raise InputError(f"{where}: got 0 rows, expected at least 1. Look at the file or filter this came from.")
        check_names(table.column_names, where)
        learned = [_learned(table.column(i), Place(where, name)) for i, name in enumerate(table.column_names)]
        return _encoder(cls, learned, where)

    def marking(self, table: pa.Table, where: str = "X") -> Self:
        """Return the encoder that also takes missing values where `table` has some and the training rows had none.

        For rows held out of the same table: whether a column has gaps is all that is learned from them.

        Raises:
            InputError: As `transform` does.
        """
        tolerant = type(self)(tuple(column.with_gaps() for column in self.columns), self.notes)
        ends = np.cumsum([len(column.features) for column in tolerant._used])
        marks = np.any(tolerant.transform(table, where=where)[:, ends - 1] > 0, axis=0).tolist()  # the last feature
        gaps = {column.name for column, gap in zip(tolerant._used, marks, strict=True) if gap}
        return type(self)(tuple(c.with_gaps() if c.name in gaps else c for c in self.columns), self.notes)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The input columns that `transform` needs."""
        return tuple(column.name for column in self._used)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of the encoded columns."""
        return tuple(chain.from_iterable(column.features for column in self._used))

    @property
    def source(self) -> tuple[str, ...]:
        """For each encoded column the input column it comes from."""
        return tuple(column.name for column in self._used for _ in column.features)

    @property
    def _used(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if not isinstance(column, Dropped))

    def describe(self) -> list[dict[str, str]]:
        """Return a row for each input column: its name, its kind, and what is done to it."""
        return [{"column": column.name, "kind": column.kind, "how": column.how} for column in self.columns]

    def arrow_types(self) -> dict[str, pa.DataType]:
        """Return the Arrow type that fits each needed column best, for reading files that have no types."""
        return {column.name: column.arrow_type for column in self._used}

    def transform(
        self, table: pa.Table | pa.RecordBatch, first_row: int = 0, where: str = "X"
    ) -> Float[np.ndarray, "N F"]:
        """Return the encoded rows: finite float64, a column for each of `feature_names`.

        Args:
            table: The rows, with at least the columns `column_names`.
            first_row: The number that errors give to the first row.
            where: What errors call the table.

        Raises:
            InputError: A column is missing, or a value does not read as what training had in its column.
        """
        out = np.empty((table.num_rows, len(self.feature_names)))
        start = 0
        for batch in self._select(table, where).to_batches(max_chunksize=BLOCK):
            self._encode(batch, out[start : start + len(batch)], where, first_row + start)
            start += len(batch)
        return out

    def _encode(self, batch: pa.RecordBatch, out: Float[np.ndarray, "n F"], where: str, first_row: int) -> None:
        done = 0
        for column, array in zip(self._used, batch.columns, strict=True):
            width = len(column.features)
            column.encode(array, out[:, done : done + width], Place(where, column.name, first_row))
            done += width

    def _select(self, table: pa.Table | pa.RecordBatch, where: str) -> pa.Table:
        """Return the needed columns in the order of training."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        names = table.column_names
        check_names(names, where)
        for absent in sorted(set(self.column_names).difference(names)):
            close = difflib.get_close_matches(absent, names, 1)
            hint = f"did you mean {close[0]!r}?" if close else "give every column that training had"
            raise InputError(f"{where}: column {absent!r} is missing; {hint}")
        return table.select(list(self.column_names))

    def unseen(self, table: pa.Table | pa.RecordBatch, where: str = "X") -> dict[str, list[str]]:
        """Return up to 5 levels that training did not have, for each category column that has such.

        Columns with a level "(other)" are not listed: what rare levels training had is not kept.
        """
        selected = self._select(table, where)
        found = {}
        for column in self._used:
            if isinstance(column, Category) and not column.other:
                place, known = Place(where, column.name), {None, *column.levels}
                seen = chain.from_iterable(count_levels(*each) for each in _chunks(selected.column(column.name), place))
                found[column.name] = [level for level in dict.fromkeys(seen) if level not in known][:5]
        return {name: levels for name, levels in found.items() if levels}

    def to_json(self) -> dict[str, Any]:
        """Return the encoder as plain JSON values."""
        columns = [{"kind": column.kind, **asdict(column)} for column in self.columns]
        plain = [{key: list(v) if isinstance(v, tuple) else v for key, v in column.items()} for column in columns]
        return {"columns": plain, "notes": list(self.notes)}

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Return the encoder that `to_json` wrote.

        Raises:
            InputError: It is anything else; nothing in it is trusted.
        """
        if not isinstance(values, dict) or set(values) != {"columns", "notes"}:
            raise InputError("a table's encoding must be an object of columns and notes; it is damaged")
        columns, notes = values["columns"], values["notes"]
        if not isinstance(columns, list) or not isinstance(notes, list) or len(columns) > MAX_COLUMNS:
            raise InputError(f"a table's encoding must list at most {MAX_COLUMNS:,} columns, and notes; it is damaged")
        encoder = cls(tuple(_column_from_json(column) for column in columns), tuple(notes))
        if not encoder.feature_names:
            raise InputError("a table's encoding must have at least one column; it is damaged")
        return encoder


def reading_types(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the Arrow types for reading rows that go with a table of this schema from a file that has no types.

    They are those that an encoder of this table gives (`TableEncoder.arrow_types`), before there is one.
    """
    types = {"number": pa.float64(), "boolean": pa.bool_(), "datetime": pa.timestamp("us"), "category": pa.string()}
    kinds = {field.name: kind_of(field.type) for field in schema}
    return {name: types[kind] for name, kind in kinds.items() if kind}


# ---------------------------------------------------------------- learning


class TableLearner:
    """Learns the encoding of rows that come batch by batch, in memory that does not grow: see `learning`.

    Args:
        schema: The columns.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._learners = [learner_of(field.name, field.type, bounded=True) for field in schema]

    def add(self, batch: pa.RecordBatch, where: str, first_row: int = 0) -> None:
        """See more rows.

        Raises:
            InputError: A value cannot be used; the error names it.
        """
        for learner in self._learners:
            learner.add(batch.column(learner.name), Place(where, learner.name, first_row))

    def encoder(self, where: str) -> TableEncoder:
        """The encoder of what was seen.

        Raises:
            InputError: There is nothing to learn from.
        """
        return _encoder(TableEncoder, self._learners, where)


def _encoder(kind: type[Encoder], learners: Sequence[Learner], where: str) -> Encoder:
    fitted = [_noted(learner.column(), learner.hint()) for learner in learners]
    encoder = kind(tuple(column for column, _ in fitted), tuple(note for _, note in fitted if note))
    if not encoder.feature_names:
        raise InputError(f"{where}: no column can be learned from: {'; '.join(encoder.notes):.1000}")
    return encoder


def _learned(column: pa.ChunkedArray, place: Place) -> Learner:
    learner = learner_of(place.column, column.type)
    for chunk, at in _chunks(column, place):
        learner.add(chunk, at)
    return learner


def _chunks(column: pa.ChunkedArray, place: Place) -> Iterator[tuple[pa.Array, Place]]:
    row = place.first_row
    for chunk in column.chunks:
        yield chunk, Place(place.where, place.column, row)
        row += len(chunk)


def _noted(column: Column, hint: str = "") -> tuple[Column, str]:
    left_out = f"column {column.name!r} is left out: it {column.how}" if isinstance(column, Dropped) else ""
    return column, left_out + (hint and f"{'; ' if left_out else f'column {column.name!r}: '}{hint}")


def _column_from_json(values: Any) -> Column:
    kinds: dict[str, Any] = {kind.kind: kind for kind in (Dropped, Number, Boolean, Category, Datetime)}
    if not isinstance(values, dict) or not isinstance(values.get("kind"), str) or values["kind"] not in kinds:
        raise InputError(f"a column's encoding must be an object of one of the kinds {', '.join(kinds)}; it is damaged")
    made = kinds[values["kind"]]
    given = {key: tuple(v) if isinstance(v, list) else v for key, v in values.items() if key != "kind"}
    if set(given) != {field.name for field in fields(made)}:
        raise InputError(f"the encoding of a {made.kind} column has the wrong fields; it is damaged")
    column: Column = made(**given)
    return column

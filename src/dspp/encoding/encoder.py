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
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain
from typing import Any, Final, Self, TypeVar

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from dspp.encoding.columns import LONGEST_TEXT, Boolean, Category, Column, Dropped, Number, is_short_text
from dspp.encoding.datetimes import Datetime
from dspp.encoding.learning import Learner, learner_of
from dspp.errors import InputError
from dspp.notes import Note, notes_from_json, notes_to_json
from dspp.table.arrays import kind_of
from dspp.table.checks import check_width
from dspp.table.memory import BLOCK, number_columns
from dspp.table.messages import Place, check_names
from dspp.table.table import MemoryTable

MAX_COLUMNS: Final = 10_000  # of a table

IN_X: Final = Place("X")  # where rows are that came from Python

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
    notes: tuple[Note, ...] = ()

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if len(names) > MAX_COLUMNS:
            raise InputError(f"got {len(names):,} columns, expected at most {MAX_COLUMNS:,}; choose some of them")
        if len(set(names)) < len(names):
            raise InputError("got two columns of the same name; the encoding is damaged")
        if len(self.notes) > 2 * MAX_COLUMNS or not all(
            is_short_text(str(note), 2 * LONGEST_TEXT) for note in self.notes
        ):
            raise InputError("expected notes to be short texts; the encoding is damaged")

    @classmethod
    def fit(cls, table: pa.Table, place: Place = IN_X) -> Self:
        """Learn the encoding of these rows. Give training rows only: others would leak into the model.

        Raises:
            InputError: There are no rows, nothing to learn from, or a column that cannot be encoded.
        """
        if table.num_rows == 0:
            raise InputError(
                f"{place.where}: got 0 rows, expected at least 1. Look at the file or filter this came from."
            )
        check_names(table.column_names, place.where)
        learners = [learn_column(table.column(name), place.of(name)) for name in table.column_names]
        return _encoder(cls, learners, place.where)

    def marking(self, table: pa.Table, place: Place = IN_X) -> Self:
        """Return the encoder that also takes missing values where `table` has some and the training rows had none.

        For rows held out of the same table: whether a column has gaps is all that is learned from them.

        Raises:
            InputError: As `transform` does.
        """
        rows = self._select(table, place.where)
        gaps = {column.name for column in self._used if _has_gaps(column, rows.column(column.name), place)}
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
    def _used(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if not isinstance(column, Dropped))

    def describe(self) -> list[dict[str, str]]:
        """Return a row for each input column: its name, its kind, and what is done to it."""
        return [{"column": column.name, "kind": column.kind, "how": column.how} for column in self.columns]

    def arrow_types(self) -> dict[str, pa.DataType]:
        """Return the Arrow type that fits each needed column best, for reading files that have no types."""
        return {column.name: column.arrow_type for column in self._used}

    def transform(self, table: pa.Table | pa.RecordBatch, place: Place = IN_X) -> Float[np.ndarray, "N F"]:
        """Return the encoded rows: finite float64, a column for each of `feature_names`.

        Args:
            table: The rows, with at least the columns `column_names`.
            place: Where the rows stand, for errors.

        Raises:
            InputError: A column is missing, or a value does not read as what training had in its column.
        """
        out = np.empty((table.num_rows, len(self.feature_names)))
        start = 0
        for batch in self._select(table, place.where).to_batches(max_chunksize=BLOCK):
            done = 0
            for column, array in zip(self._used, batch.columns, strict=True):
                width = len(column.features)
                into = out[start : start + len(batch), done : done + width]
                column.encode(array, into, place.of(column.name, start))
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
            close = difflib.get_close_matches(absent, names, 1)
            hint = f"did you mean {close[0]!r}?" if close else "give every column that training had"
            raise InputError(f"{where}: column {absent!r} is missing; {hint}")
        return table.select(list(self.column_names))

    def to_json(self) -> dict[str, Any]:
        """Return the encoder as plain JSON values."""
        columns = [{"kind": column.kind, **asdict(column)} for column in self.columns]
        plain = [{key: list(v) if isinstance(v, tuple) else v for key, v in column.items()} for column in columns]
        return {"columns": plain, "notes": notes_to_json(self.notes)}

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
        encoder = cls(tuple(_column_from_json(column) for column in columns), notes_from_json(notes))
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

    def add(self, rows: pa.Table, place: Place = IN_X) -> None:
        """See more rows.

        Raises:
            InputError: A value cannot be used; the error names it.
        """
        for learner in self._learners:
            _add(learner, rows.column(learner.name), place.of(learner.name))

    def encoder(self, where: str) -> TableEncoder:
        """The encoder of what was seen.

        Raises:
            InputError: There is nothing to learn from.
        """
        return _encoder(TableEncoder, self._learners, where)


def _encoder(kind: type[Encoder], learners: Sequence[Learner], where: str) -> Encoder:
    fitted = [_noted(learner.column(), learner.hint()) for learner in learners]
    encoder = kind(tuple(column for column, _ in fitted), tuple(note for _, note in fitted if note is not None))
    if not encoder.feature_names:
        raise InputError(f"{where}: no column can be learned from: {'; '.join(map(str, encoder.notes)):.1000}")
    return encoder


def learn_column(column: pa.ChunkedArray, place: Place) -> Learner:
    """What has learned a whole column."""
    learner = learner_of(place.column, column.type)
    _add(learner, column, place)
    return learner


def _add(learner: Learner, column: pa.ChunkedArray | pa.Array, place: Place) -> None:
    done = 0
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        learner.add(chunk, place.of(place.column, done))
        done += len(chunk)


def _has_gaps(column: Column, values: pa.ChunkedArray, place: Place) -> bool:
    done = 0
    for chunk in values.chunks:
        if column.has_gaps(chunk, place.of(column.name, done)):
            return True
        done += len(chunk)
    return False


def _noted(column: Column, hint: str = "") -> tuple[Column, Note | None]:
    name = f"column {column.name!r}"
    if isinstance(column, Dropped):
        return column, Note(f"{name} is left out", f"it {column.how}{hint and f'; {hint}'}")
    return column, Note(name, hint) if hint else None


# ---------------------------------------------------------------- tables


def learn(table: MemoryTable, *others: MemoryTable) -> TableEncoder | None:
    """How a table is to be encoded; None for plain numbers, which are taken as they are.

    Columns may have gaps where the table or `others`, rows held out of it, have some.
    """
    if table.arrow is None:
        return None
    encoder = TableEncoder.fit(table.arrow, table.place)
    for other in others:
        encoder = encoder if other.arrow is None or not len(other) else encoder.marking(other.arrow, other.place)
    return encoder


def encode(table: MemoryTable, encoder: TableEncoder | None) -> Float[np.ndarray, "N D"]:
    """The rows as numbers, the way `encoder` was taught; a table is copied once, numbers not at all.

    Raises:
        InputError: A value is not what training had in its column, or is not finite; the error names it.
    """
    if encoder is not None:
        return encoder.transform(_named(table, encoder) if table.arrow is None else table.arrow, table.place)
    if table.arrow is None:
        assert table.array is not None
        return table.array
    array = number_columns(table.arrow, table.place)
    finite = np.isfinite(array)
    if not finite.all():
        row, k = np.argwhere(~finite)[0]
        got = "NaN, or no value" if np.isnan(array[row, k]) else f"{array[row, k]}"
        problem = f"got {got}, expected a finite number; fill it in or remove the row"
        raise table.place.of(table.names[k]).error(problem, int(row))
    return array


def _named(table: MemoryTable, encoder: TableEncoder) -> pa.Table:
    """Numbers without names, given the names they had in training."""
    assert table.array is not None
    names = [column.name for column in encoder.columns]
    check_width(table.array, len(names))
    return pa.table(dict(zip(names, table.array.T, strict=True)))


# ---------------------------------------------------------------- JSON


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

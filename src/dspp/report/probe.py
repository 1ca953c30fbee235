"""Rows of an evaluation whose columns can be changed before they are predicted again."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from dspp.encoding.columns import Dropped
from dspp.encoding.encoder import encode
from dspp.evaluate import Evaluation
from dspp.fitted import Fitted
from dspp.predictive import Predictive
from dspp.table import arrays
from dspp.table.table import Table

Rows = Int[np.ndarray, " n"]
Matrix = Float[np.ndarray, "n D"]


@dataclass(frozen=True, eq=False)
class Values:
    """The values of a column of the user's table: numbers (NaN: missing), times (NaT) or texts (empty: missing)."""

    kind: Literal["number", "time", "text"]
    array: NDArray[np.generic]

    @property
    def missing(self) -> Bool[np.ndarray, " n"]:
        """Where the value is missing."""
        if self.kind == "text":
            return np.asarray(self.array == "")
        return np.asarray(np.isnat(self.array) if self.kind == "time" else np.isnan(self.array))

    def levels(self, most: int) -> list[str]:
        """Return the most frequent texts, in the order of their frequency."""
        names, counts = np.unique(self.array[~self.missing], return_counts=True)
        return [str(names[k]) for k in np.argsort(-counts, kind="stable")[:most]]


class Probe:
    """Rows of an evaluation, encoded as each model reads them, and predicted only by models that did not see them.

    Encoding works row by row and column by column, so to give a row another value of a column is to give it the encoded
    value of a row that has it.

    Attributes:
        rows: The numbers of the rows in the table of the evaluation.
        table: The rows.
        y: Their targets.
        models: The models; all but one for rows held out in turn.
        owner: The number of the model that predicts each row.
        X: All rows, encoded and scaled as each model reads them; models of the same encoder share them.
        features: For each column of the user's table, the numbers of its encoded columns.

    Args:
        evaluation: The evaluation.
        rows: The numbers of the rows.
    """

    def __init__(self, evaluation: Evaluation, rows: Rows) -> None:
        self.fitted, self.rows, self.table = evaluation.fitted, rows, evaluation.table.take(rows)
        self.y: Float[np.ndarray, "n T"] = self.table.targets
        table = self.table
        if self.fitted.encoder is None and table.arrow is not None:
            table = table.select(name for name in table.names if name not in self.fitted.target_names)
        self.models, self.owner, self.X = list[Fitted](), np.zeros(len(rows), np.int64), list[Matrix]()
        known: dict[int, Matrix] = {}
        for k, (model, index) in enumerate(evaluation.models(rows)):
            key = id(model.encoder)
            if key not in known:
                known[key] = model.scale_X.transform(encode(table, model.encoder, impute=True))
            self.models.append(model)
            self.owner[index] = k
            self.X.append(known[key])
        self.features = _features(self.fitted, table)

    @property
    def all_rows(self) -> Rows:
        """The positions of all rows."""
        return np.arange(len(self.rows))

    @cached_property
    def components(self) -> int:
        """S, the number of components with which a row is predicted: the cost of a prediction."""
        return self.models[0].predict_standardised(self.X[0][:1]).num_components

    def predict(
        self, at: Rows, column: str | None = None, donors: Rows | None = None, models: Sequence[Fitted] | None = None
    ) -> list[tuple[Predictive, Rows]]:
        """Return predictions in groups, each with the positions of its rows in `at`.

        Args:
            at: The positions of the rows to predict, any number of times.
            column: A column of the user's table to change.
            donors: For each row, the position of a row whose value it gets.
            models: Used instead of `self.models`.
        """
        found = []
        for k, model in enumerate(self.models if models is None else models):
            index = np.flatnonzero(self.owner[at] == k)
            if not len(index):
                continue
            X = self.X[k][at[index]]
            if column is not None and donors is not None:
                where = self.features[column]
                X[:, where] = self.X[k][np.ix_(donors[index], where)]
            with torch.no_grad():
                found.append((model.predict_standardised(X), index))
        return found

    def loss(self, at: Rows, column: str | None = None, donors: Rows | None = None) -> Float[np.ndarray, "n L"]:
        """Return the loss of rows, NaN if not observed; arguments as in `predict`."""
        groups = self.predict(at, column, donors)
        found = [self.fitted.outcome.loss(one, self.y[at[index]]).cpu().double().numpy() for one, index in groups]
        losses = np.concatenate(found)
        losses[np.concatenate([index for _, index in groups])] = losses.copy()
        return losses

    def values(self, column: str) -> Values:
        """Return the values of a column as the user gave them."""
        return column_values(self.fitted, self.table, column)


def column_values(fitted: Fitted, table: Table, column: str) -> Values:
    """Return the values of one of `column_names`."""
    if table.arrow is None:
        assert table.array is not None
        names = fitted.feature_names or () if fitted.encoder is None else [one.name for one in fitted.encoder.columns]
        number = list(names).index(column) if names else int(column.removeprefix("x"))
        return Values("number", np.asarray(table.array[:, number], dtype=np.float64))
    kinds = {} if fitted.encoder is None else {one.name: one.kind for one in fitted.encoder.columns}
    kind, values, place = kinds.get(column, "number"), table.arrow.column(column), table.place.of(column)
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if kind == "number":
        return Values("number", arrays.numbers(array, place))
    if kind == "datetime":
        micros, absent = arrays.datetimes(array, place)
        return Values("time", np.where(absent, np.datetime64("NaT"), micros.astype("datetime64[us]")))
    if kind == "boolean":
        numbers = arrays.booleans(array, place)
        return Values("text", np.select([numbers == 1, numbers == 0], ["true", "false"], ""))
    return Values("text", np.array(arrays.texts(array, place).fill_null("").to_pylist(), dtype=str))


def column_names(fitted: Fitted, table: Table) -> list[str]:
    """Return the names of the columns that the model reads, as in the user's table."""
    if fitted.encoder is not None:
        return [column.name for column in fitted.encoder.columns if not isinstance(column, Dropped)]
    if table.arrow is not None:
        return [name for name in table.names if name not in fitted.target_names]
    return list(fitted.feature_names or (f"x{d}" for d in range(fitted.num_inputs)))


def _features(fitted: Fitted, table: Table) -> dict[str, Rows]:
    """Return, for each column of the user's table, the numbers of its encoded columns."""
    if fitted.encoder is None:
        return {name: np.array([d]) for d, name in enumerate(column_names(fitted, table))}
    used = [column for column in fitted.encoder.columns if not isinstance(column, Dropped)]
    ends = np.cumsum([len(column.features) for column in used]).tolist()
    return {c.name: np.arange(end - len(c.features), end) for c, end in zip(used, ends, strict=True)}

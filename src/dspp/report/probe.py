"""Rows of an evaluation whose columns can be changed before they are predicted again."""

from collections.abc import Sequence
from functools import cached_property

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
Values = NDArray[np.generic]  # of a column: numbers (NaN: missing), times (NaT) or texts (empty)


class Probe:
    """Rows of an evaluation, encoded as each model reads them, and predicted only by models that did not see them.

    Encoding works row by row and column by column, so to give a row another value of a column is to give it the encoded
    value of a row that has it.
    """

    def __init__(self, evaluation: Evaluation, rows: Rows) -> None:
        self.fitted, self.table = evaluation.fitted, evaluation.table.take(rows)
        inputs = self.fitted.inputs(self.table)
        self.models = list[Fitted]()  # several for rows held out in turn
        self.owner = np.zeros(len(rows), np.int64)  # the number of the model that predicts each row
        self.X = list[Float[np.ndarray, "n D"]]()  # all rows as each model reads them; models of one encoder share them
        known: dict[int, Float[np.ndarray, "n D"]] = {}
        for k, (model, index) in enumerate(evaluation.models(rows)):
            key = id(model.encoder)
            if key not in known:
                known[key] = model.scale_X.transform(encode(inputs, model.encoder, impute=True))
            self.models.append(model)
            self.owner[index] = k
            self.X.append(known[key])
        widths = dict.fromkeys(table_names(self.fitted, inputs), 1)
        if self.fitted.encoder is not None:
            used = [column for column in self.fitted.encoder.columns if not isinstance(column, Dropped)]
            widths = {column.name: len(column.features) for column in used}
        ends = np.cumsum(list(widths.values())).tolist()
        # For each column of the user's table, the numbers of its encoded columns.
        self.features = {n: np.arange(end - width, end) for (n, width), end in zip(widths.items(), ends, strict=True)}

    def __len__(self) -> int:
        return len(self.owner)

    @cached_property
    def components(self) -> int:
        """S, the number of components with which a row is predicted: the cost of a prediction."""
        return self.models[0].predict_standardised(self.X[0][:1]).num_components

    def predict(
        self, at: Rows, column: str | None = None, donors: Rows | None = None, models: Sequence[Fitted] | None = None
    ) -> list[tuple[Predictive, Rows]]:
        """Predict the rows at some positions; return groups, each with the indices of its rows in `at`.

        Each row gets the value of a column that the row at its position in `donors` has; `models` replace all models.
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
        groups, y = self.predict(at, column, donors), self.table.targets[at]
        found = [self.fitted.outcome.loss(one, y[index]).cpu().double().numpy() for one, index in groups]
        losses = np.concatenate(found)
        losses[np.concatenate([index for _, index in groups])] = losses.copy()
        return losses


def table_names(fitted: Fitted, table: Table) -> list[str]:
    """Return the names of the columns of the user's table, those left out by the model included."""
    if fitted.encoder is not None:
        return [column.name for column in fitted.encoder.columns if table.arrow is None or column.name in table.names]
    if table.arrow is not None:
        return [name for name in table.names if name not in fitted.target_names]
    return list(fitted.feature_names or (f"x{d}" for d in range(fitted.num_inputs)))


def column_values(fitted: Fitted, table: Table, column: str) -> Values:
    """Return the values of one of `table_names` as the user gave them."""
    if table.arrow is None:
        assert table.array is not None
        return np.asarray(table.array[:, table_names(fitted, table).index(column)], dtype=np.float64)
    kinds = {} if fitted.encoder is None else {one.name: one.kind for one in fitted.encoder.columns}
    kind, values, place = kinds.get(column, "number"), table.arrow.column(column), table.place.of(column)
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if kind == "number":
        return arrays.numbers(array, place)
    if kind == "datetime":
        micros, absent = arrays.datetimes(array, place)
        return np.where(absent, np.datetime64("NaT"), micros.astype("datetime64[us]"))
    if kind == "boolean":
        numbers = arrays.booleans(array, place)
        return np.select([numbers == 1, numbers == 0], ["true", "false"], "")
    return np.array(arrays.texts(array, place).fill_null("").to_pylist(), dtype=str)


def is_missing(values: Values) -> Bool[np.ndarray, " n"]:
    """Return where values of a column are missing."""
    return np.asarray(values == "" if values.dtype.kind == "U" else np.isnan(values))


def frequent_texts(values: Values, most: int) -> list[str]:
    """Return the most frequent texts, in the order of their frequency."""
    names, counts = np.unique(values[~is_missing(values)], return_counts=True)
    return [str(names[k]) for k in np.argsort(-counts, kind="stable")[:most]]

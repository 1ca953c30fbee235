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
from dspp.fitted import Evaluation, Fitted
from dspp.predictive import Predictive
from dspp.table import arrays
from dspp.table.table import MemoryTable

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
    """Encoded and scaled rows of an evaluation, each predicted only by models that did not see it.

    Encoding works row by row and column by column, so to give a row another value of a column is to give it the encoded
    value of a row that has it.

    Args:
        evaluation: The evaluation.
        rows: The numbers of the rows.
    """

    def __init__(self, evaluation: Evaluation, rows: Rows) -> None:
        self.evaluation, self.rows = evaluation, rows
        self.table = evaluation.table.take(rows)
        fitted = evaluation.fitted
        table = self.table
        if fitted.encoder is None and table.arrow is not None:
            table = table.select(name for name in table.names if name not in fitted.target_names)
        self.X: Matrix = fitted.scale_X.transform(encode(table, fitted.encoder))
        self.y: Float[np.ndarray, "n T"] = self.table.targets
        self.features = _features(fitted, table)

    def take(self, positions: Rows) -> "Probe":
        """Return some of the rows."""
        return Probe(self.evaluation, self.rows[positions])

    @cached_property
    def components(self) -> int:
        """S, the largest number of components with which a row is predicted: the cost of a prediction."""
        models = self.evaluation.models(self.rows[:1])
        return max(len(model.predict_standardised(self.X[:1]).outputs()[0].weights) for model, _ in models)

    def change(self, column: str, donors: Rows) -> Matrix:
        """Return the rows with the values that other rows, one per row, have in a column."""
        changed = self.X.copy()
        changed[:, self.features[column]] = self.X[np.ix_(donors, self.features[column])]
        return changed

    def predict(self, X: Matrix) -> list[tuple[Predictive, Rows]]:
        """Return the predictions for changed rows in groups, each with the positions of its rows."""
        with torch.no_grad():
            models = self.evaluation.models(self.rows)
            return [(model.predict_standardised(X[index]), index) for model, index in models]

    def crps(self, X: Matrix) -> Float[np.ndarray, "n T"]:
        """Return the CRPS of changed rows against their observed values; NaN if not observed."""
        scores = np.empty_like(self.y)
        for predictive, index in self.predict(X):
            y = torch.from_numpy(self.y[index].reshape(predictive.mean.shape))
            scores[index] = predictive.crps(y).cpu().double().numpy().reshape(len(index), -1)
        return scores

    def quantiles(self, X: Matrix, levels: Sequence[float], output: int) -> Float[np.ndarray, "K n"]:
        """Return quantiles of an output of changed rows."""
        found = np.empty((len(levels), len(X)))
        for predictive, index in self.predict(X):
            one = predictive.outputs()[output]
            found[:, index] = one.quantile(torch.tensor(levels, dtype=torch.float64)).cpu().numpy()
        return found

    def values(self, column: str) -> Values:
        """Return the values of a column as the user gave them."""
        return column_values(self.evaluation.fitted, self.table, column)


def column_values(fitted: Fitted, table: MemoryTable, column: str) -> Values:
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


def column_names(fitted: Fitted, table: MemoryTable) -> list[str]:
    """Return the names of the columns that the model reads, as in the user's table."""
    if fitted.encoder is not None:
        return [column.name for column in fitted.encoder.columns if not isinstance(column, Dropped)]
    if table.arrow is not None:
        return [name for name in table.names if name not in fitted.target_names]
    return list(fitted.feature_names or (f"x{d}" for d in range(fitted.num_inputs)))


def _features(fitted: Fitted, table: MemoryTable) -> dict[str, list[int]]:
    """Return, for each column of the user's table, the numbers of its encoded columns."""
    if fitted.encoder is None:
        return {name: [d] for d, name in enumerate(column_names(fitted, table))}
    used = [column for column in fitted.encoder.columns if not isinstance(column, Dropped)]
    ends = np.cumsum([len(column.features) for column in used]).tolist()
    return {c.name: list(range(end - len(c.features), end)) for c, end in zip(used, ends, strict=True)}

"""Numbers for methods that take nothing else: the library's own encoding, learned on the training rows."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from benchmarks.tables.sets import Split
from dspp.encoding import encoder
from dspp.encoding.columns import Category
from dspp.encoding.scaling import Standardizer
from dspp.table.memory import to_table
from dspp.table.split import split


@dataclass(frozen=True, eq=False)
class Inputs:
    """The encoding of the inputs and the scales of a table."""

    encoding: encoder.TableEncoder | None
    levels: dict[str, np.ndarray]  # of text columns that also get an ordinal code
    scale: Standardizer
    y_scale: Standardizer

    @classmethod
    def learn(cls, rows: Split, ordinal: bool) -> "Inputs":
        """Learn the encoding of the training rows.

        The library groups the rarer levels of text with more than 20. Trees can do better: with `ordinal`, the place of
        the level in the sorted levels is one more column, in which dates and durations as text are in order.
        """
        table = to_table(rows.X)
        encoding = None if table.arrow is None else encoder.TableEncoder.fit(table.arrow)
        grouped = [c.name for c in encoding.columns if isinstance(c, Category) and c.other] if encoding else []
        levels = {name: np.unique(_text(rows.X[name].dropna())) for name in grouped if ordinal}
        X = _encode(rows.X, encoding, levels)
        return cls(encoding, levels, Standardizer.fit(X), Standardizer.fit(rows.y))

    def numbers(self, X: pd.DataFrame) -> np.ndarray:
        """Return standardised numbers."""
        return self.scale.transform(_encode(X, self.encoding, self.levels))


def _encode(X: pd.DataFrame, encoding: encoder.TableEncoder | None, levels: dict[str, np.ndarray]) -> np.ndarray:
    codes = [_ordinal(X[name], known) for name, known in levels.items()]
    return np.column_stack([encoder.encode(to_table(X), encoding), *codes])


def _ordinal(column: pd.Series, levels: np.ndarray) -> np.ndarray:
    """Return the place of each value among the levels, -1 if it is missing."""
    return np.where(column.isna(), -1.0, np.searchsorted(levels, _text(column)))


def _text(column: pd.Series) -> np.ndarray:
    return column.fillna("").to_numpy().astype(str)


def hold_out(num_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return nine tenths of the training rows, and the rest for validation."""
    train, validation = split(num_rows, (9, 1), seed=seed)
    return train, validation

"""The tables, and how their rows are split into training and test rows."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from dspp.errors import InputError
from dspp.table.split import split
from experiments import data as datasets
from experiments.parts import part_rows

FOLDED = ("concrete", "energy", "airfoil", "wine", "skillcraft", "parkinsons")  # target `y`, test rows by `fold`
TARGETS = {  # tables that are split at random, 4:1
    "diamonds": "price",
    "hdb_resale": "resale_price",
    "airbnb_nyc_2019": "price",
    "baja_bathymetry": "bathymetry_m",
}
PAPER = ("pol", "elevators", "bike", "kin40k", "protein")  # of the paper; its validation rows are training rows here
SETS: tuple[str, ...] = (*FOLDED, *TARGETS, *PAPER)


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test rows of a table, with columns as they are in the file."""

    X: pd.DataFrame
    y: np.ndarray
    X_test: pd.DataFrame
    y_test: np.ndarray


def load(name: str, fold: int, folder: Path) -> Split:
    """Return one split of a table.

    Args:
        name: One of `SETS`.
        fold: The number of the test fold or, for tables without folds, the seed of the split.
        folder: The data folder.

    Raises:
        InputError: There is no such table, file or fold.
    """
    if name not in SETS:
        raise InputError(f"expected a table of {', '.join(SETS)}, got {name!r}")
    if name in PAPER:
        data = datasets.load(name, folder)
        X = pd.DataFrame(data.X[:, data.X.std(0) > 0].astype(np.float64)).add_prefix("x")
        train, test, validation = part_rows(data, fold, (15, 3, 2))
        return take(X, data.y.astype(np.float64), np.concatenate([train, validation]), test)
    frame = read_table(name, folder)
    if name in TARGETS:
        frame = frame.dropna(subset=TARGETS[name])
        X, y = frame.drop(columns=TARGETS[name]), frame[TARGETS[name]].to_numpy(np.float64)
        return take(X, y, *split(len(y), (4, 1), seed=fold))
    X, y = frame.drop(columns=["y", "fold"]), frame["y"].to_numpy(np.float64)
    is_test = (frame["fold"] == fold).to_numpy()
    if not is_test.any():
        raise InputError(f"{name}: expected a fold from 0 to {frame['fold'].max()}, got {fold}")
    return take(X, y, np.flatnonzero(~is_test), np.flatnonzero(is_test))


def read_table(name: str, folder: Path) -> pd.DataFrame:
    """Return a table of the data folder."""
    path = folder / "tables" / f"{name}.parquet"
    if not path.is_file():
        raise InputError(f"{path} does not exist; pass the data folder with --data")
    return pd.read_parquet(path)


def take(X: pd.DataFrame, y: np.ndarray, train: np.ndarray, test: np.ndarray) -> Split:
    """Return the split with these row numbers."""
    parts = [(X.iloc[rows].reset_index(drop=True), y[rows]) for rows in (train, test)]
    return Split(*parts[0], *parts[1])

"""What coverage a model could have, for tables on which 90 % intervals contain more.

    python -m benchmarks.tables.coverage pol bike parkinsons [--time-budget 60] [--data ../shared/data]

Fits the default to the first split of each table and prints one JSON line per table, with shares of the test rows:

- `observed`: whose target lies inside its 90 % interval.
- `if_right`: the same for targets that are drawn from the predictions themselves and moved to the nearest value that
  the target has in training. This is what a model that is exactly right would cover, 0.9 unless the target has gaps.
- `within_floor`: whose error is smaller than half of the narrowest interval that the noise floor allows. No interval
  around such a prediction can miss, however certain the model is.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from scipy.stats import norm

from benchmarks.tables.sets import SETS, Split, load
from dspp import DSPPRegressor
from dspp.predictive import Predictive

LEVEL = 0.9


def compare(data: Split, time_budget: float | None = None) -> dict[str, float]:
    """Return the shares of one split, and the number of values of its target."""
    model = DSPPRegressor(time_budget=time_budget, progress=False).fit(data.X, data.y)
    floor = model.fitted_.members[0].spec.model.noise_floor ** 0.5 * data.y.std()
    values = np.unique(data.y)
    return {**shares(model.predict_dist(data.X_test).torch, data.y_test, values, floor), "values": len(values)}


def shares(predicted: Predictive, y: np.ndarray, values: np.ndarray, floor: float) -> dict[str, float]:
    """Return the shares described above.

    Args:
        predicted: The distributions.
        y: The observed targets.
        values: All values of the target in training, sorted.
        floor: The smallest standard deviation, in the units of the target.
    """
    lower, upper = (end.numpy() for end in predicted.interval(LEVEL))
    right = nearest(values, predicted.sample(1, torch.Generator().manual_seed(0))[0].numpy())
    found = {
        "observed": (lower <= y) & (y <= upper),
        "if_right": (lower <= right) & (right <= upper),
        "within_floor": np.abs(predicted.mean.numpy() - y) <= norm.ppf((1 + LEVEL) / 2) * floor,
    }
    return {name: round(float(rows.mean()), 4) for name, rows in found.items()}


def nearest(values: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return for each number the nearest of the sorted values."""
    above = np.clip(np.searchsorted(values, y), 1, len(values) - 1)
    low, high = values[above - 1], values[above]
    return np.where(y - low < high - y, low, high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=SETS)
    parser.add_argument("--time-budget", type=float)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    given = parser.parse_args()
    for name in given.tables:
        print(json.dumps({"set": name, **compare(load(name, 0, given.data), given.time_budget)}), flush=True)


if __name__ == "__main__":
    main()

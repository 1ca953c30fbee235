"""Predictions of the default ensemble compared with those of a single model, as a user calls them.

    python -m benchmarks.ensemble [--rows 20000] [--repeats 5]

For tables of 1,000 and 20,000 training rows, fits `DSPPRegressor()` and a single model of 300 inducing points for one
epoch (the speed of predictions does not depend on training), then predicts the mean and the standard deviation of other
rows with both in turn. Prints one JSON line per table: rows per second of both, as medians, and their ratio.
"""

import argparse
import json
import statistics
import time

import numpy as np

from dspp import DSPPRegressor

COLUMNS = 10


def rows_per_second(model: DSPPRegressor, X: np.ndarray) -> float:
    begin = time.perf_counter()
    model.predict(X, return_std=True)
    return len(X) / (time.perf_counter() - begin)


def compare(train_rows: int, rows: int, repeats: int) -> dict[str, float | int]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(train_rows, COLUMNS))
    y = np.sin(X[:, 0]) + 0.3 * X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=train_rows)
    single = {"members": 1, "inducing": 300}
    models = [DSPPRegressor(epochs=1, restarts=1, **given).fit(X, y) for given in ({}, single)]
    new = rng.normal(size=(rows, COLUMNS))
    found = [[rows_per_second(model, new) for model in models] for _ in range(repeats + 1)][1:]  # the first warms up
    ensemble, single = (statistics.median(column) for column in zip(*found, strict=True))
    return {
        "training rows": train_rows,
        "members": len(models[0].fitted_.members),
        "ensemble, rows/s": round(ensemble),
        "single model, rows/s": round(single),
        "ratio": round(ensemble / single, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000, help="rows to predict")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    for train_rows in (1_000, 20_000):
        print(json.dumps(compare(train_rows, options.rows, options.repeats)), flush=True)


if __name__ == "__main__":
    main()

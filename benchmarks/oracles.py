"""What the default ensemble computes on four tables, before and after a change: `python -m benchmarks.oracles`.

The tables are concrete, energy with a column turned into text, 2,000 rows of airbnb, and two outputs of a simulated
swimmer. What is missing under the name given with --tag is fitted and added to results/oracles.jsonl; then all tags
are compared with the first. Seconds are comparable only if nothing else runs, and fits of one run.
"""

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks import records
from benchmarks.tables.sets import Split, load, take
from dspp.errors import DsppWarning
from dspp.estimators import DSPPRegressor
from experiments import data as datasets
from experiments.results import Record

SCORES = ("nll", "crps", "coverage90")
ROWS = 2_000


def _with_text(data: Path) -> Split:
    rows = load("energy", 0, data)
    name = rows.X.columns[-1]
    X, X_test = (part.assign(**{name: "kind " + part[name].astype(str)}) for part in (rows.X, rows.X_test))
    return Split(X, rows.y, X_test, rows.y_test)


def _some_of_airbnb(data: Path) -> Split:
    rows = load("airbnb_nyc_2019", 0, data)
    return Split(rows.X[:ROWS], rows.y[:ROWS], rows.X_test[:ROWS], rows.y_test[:ROWS])


def _two_outputs(data: Path) -> Split:
    swimmer = datasets.load("mujoco_swimmer", data)
    order = np.random.default_rng(0).permutation(len(swimmer.X))
    X, y = pd.DataFrame(swimmer.X).add_prefix("x"), swimmer.y[:, :2]
    return take(X, y, order[:ROWS], order[ROWS : 2 * ROWS])


TABLES: dict[str, Callable[[Path], Split]] = {
    "concrete": lambda data: load("concrete", 0, data),
    "energy, one column as text": _with_text,
    "airbnb, 2,000 rows": _some_of_airbnb,
    "swimmer, two outputs": _two_outputs,
}


def measure(name: str, _fold: int, _tag: str, data: Path) -> Record:
    """Fit the default to a table, and record its scores out of fold and on test rows."""
    rows = TABLES[name](data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DsppWarning)
        start = time.perf_counter()
        model = DSPPRegressor(progress=False).fit(rows.X, rows.y)
        fitted = time.perf_counter()
        test = model.evaluate(rows.X_test, rows.y_test)
    out_of_fold = {f"{score} out of fold": model.fitted_.metrics[score] for score in SCORES}
    return {
        "metrics": out_of_fold | {score: test[score] for score in SCORES},
        "seconds": {"fit": round(fitted - start, 2), "evaluate": round(time.perf_counter() - fitted, 2)},
        "rows": {"train": len(rows.y), "test": len(rows.y_test)},
    }


def compare(found: Sequence[Record]) -> str:
    """Return the scores of the first tag, and what those of the others differ by."""
    tags = list(dict.fromkeys(record["method"] for record in found))
    by_key = {(record["set"], record["method"]): record for record in found}
    lines = []
    for name in TABLES:
        for tag in tags:
            if (name, tag) in by_key:
                metrics, seconds = by_key[name, tag]["metrics"], by_key[name, tag]["seconds"]["fit"]
                first = by_key.get((name, tags[0]), by_key[name, tag])["metrics"]
                shown = {key: value - (first[key] if tag != tags[0] else 0.0) for key, value in metrics.items()}
                scores = "  ".join(f"{key} {value:+.4f}" for key, value in shown.items())
                lines.append(f"{name:26}  {tag:12}  {scores}  fit {seconds:.1f} s")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = records.parser("benchmarks.oracles", __doc__)
    parser.add_argument("--tag", default="before", help="a name for the code that is measured")
    options = parser.parse_args(arguments)
    wanted = [(name, 0, options.tag) for name in TABLES]
    print(compare(records.complete(options.results, wanted, partial(measure, data=options.data))))
    return 0


if __name__ == "__main__":
    sys.exit(main())

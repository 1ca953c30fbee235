"""The default ensemble on a Ray cluster of two nodes with one CPU each, beside one: `python -m benchmarks.cluster`.

Both nodes are processes of this machine, which needs two idle cores. The scores must be equal to the last digit. Fits
each table on new clusters of one and two nodes in turn, and writes results/cluster.jsonl and results/cluster.md.
"""

import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks import records
from benchmarks.tables.sets import load
from dspp.errors import DsppWarning
from dspp.estimators import DSPPRegressor
from experiments.report.blocks import text_table
from experiments.report.markdown import table_text
from experiments.results import Record

SETS = ("concrete", "parkinsons")
METHODS = ("1 node", "2 nodes")
SCORES = ("nll", "crps", "coverage90")
ROUNDS = 3


def measure(name: str, fold: int, method: str, folder: Path) -> Record:
    """Fit the default on a new cluster; `fold` is the number of the round, as all fits have the same rows."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(METHODS.index(method)):
            cluster.add_node(num_cpus=1)
        rows = load(name, 0, folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DsppWarning)
            begin = time.perf_counter()
            model = DSPPRegressor(progress=False, engine="ray", address=cluster.address).fit(rows.X, rows.y)
            seconds = time.perf_counter() - begin
            test = model.evaluate(rows.X_test, rows.y_test)
    finally:
        cluster.shutdown()
    return {
        "metrics": {score: test[score] for score in SCORES},
        "seconds": {"fit": round(seconds, 2)},
        "rows": {"train": len(rows.y), "test": len(rows.y_test)},
        "jitter_climbs": sum(member.model.jitter_increases for member in model.fitted_.members),
    }


def write(found: Sequence[Record]) -> str:
    """Return the results as Markdown."""
    rows = []
    for name in SETS:
        here = [record for record in found if record["set"] == name]
        equal = "yes" if all(record["metrics"] == here[0]["metrics"] for record in here) else "no"
        for method in METHODS:
            fits = [record for record in here if record["method"] == method]
            seconds = [record["seconds"]["fit"] for record in fits]
            if fits:
                span = f"{statistics.median(seconds):.1f} ({min(seconds):.1f} to {max(seconds):.1f})"
                rows.append((name, method, span, f"{fits[0]['metrics']['nll']:.6f}", equal))
    header = ("table", "cluster", "seconds, median and range", "NLL", "equal scores in all fits")
    commits = ", ".join(sorted({record["commit"][:7] for record in found}))
    parts = [
        "# The default ensemble on one and on two nodes",
        f"Ray nodes of one CPU each, on one machine, {ROUNDS} fits each (`python -m benchmarks.cluster`).",
        table_text(text_table(header, rows)),
        f"Commits {commits}.",
    ]
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = records.parser("benchmarks.cluster", __doc__).parse_args(arguments)
    wanted = [(name, number, method) for number in range(ROUNDS) for name in SETS for method in METHODS]
    found = records.complete(options.results, wanted, partial(measure, folder=options.data))
    options.results.with_suffix(".md").write_text(write(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The default ensemble on a Ray cluster of two nodes with one CPU each, beside one: `python -m benchmarks.cluster`.

Both nodes are processes of this machine, which needs two idle cores. The scores must be equal to the last digit, and
two nodes take about half of the time. Fits a table in alternating clusters, and writes results/cluster.jsonl and .md.
"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from benchmarks.tables import records
from benchmarks.tables.records import Record
from benchmarks.tables.sets import load
from dspp.errors import DsppWarning
from dspp.estimators import DSPPRegressor
from experiments.results import provenance

SETS = ("concrete", "airfoil")
SCORES = ("nll", "crps", "coverage90")
ROUNDS = 3


def measure(name: str, nodes: int, round_number: int, data: Path) -> Record:
    """Fit the default on a new cluster of so many nodes."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=1)
        rows = load(name, 0, data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DsppWarning)
            begin = time.perf_counter()
            model = DSPPRegressor(progress=False, engine="ray", address=cluster.address).fit(rows.X, rows.y)
            seconds = time.perf_counter() - begin
            test = model.evaluate(rows.X_test, rows.y_test)
    finally:
        cluster.shutdown()
    return {
        "set": name,
        "fold": round_number,
        "method": f"{nodes} node{'s' if nodes > 1 else ''}",
        "metrics": {score: test[score] for score in SCORES},
        "seconds": {"fit": round(seconds, 2)},
        "rows": {"train": len(rows.y), "test": len(rows.y_test)},
        "commit": provenance(("src", "experiments", "benchmarks"))["commit"],
    }


def describe(found: Sequence[Record]) -> str:
    """Return the table of results/cluster.md."""
    lines = [
        "# The default ensemble on one and on two nodes",
        "",
        "Nodes of one CPU each, on one machine. Written by `python -m benchmarks.cluster`.",
        "",
        "| table | nodes | seconds, median | NLL | CRPS | equal scores in all fits |",
        "|---|---|---:|---:|---:|---|",
    ]
    for name in dict.fromkeys(record["set"] for record in found):
        here = [record for record in found if record["set"] == name]
        equal = "yes" if all(record["metrics"] == here[0]["metrics"] for record in here) else "NO"
        for method in sorted({record["method"] for record in here}):
            fits = [record for record in here if record["method"] == method]
            seconds = statistics.median(record["seconds"]["fit"] for record in fits)
            metrics = fits[0]["metrics"]
            lines.append(
                f"| {name} | {method} | {seconds:.1f} | {metrics['nll']:.6f} | {metrics['crps']:.6f} | {equal} |"
            )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser("python -m benchmarks.cluster", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--results", type=Path, default=Path("results/cluster.jsonl"))
    options = parser.parse_args(arguments)
    for round_number in range(ROUNDS):
        for name in SETS:
            for nodes in (1, 2):
                key = name, round_number, f"{nodes} node{'s' if nodes > 1 else ''}"
                if key not in map(records.key, records.read(options.results)):
                    records.add(options.results, measure(name, nodes, round_number, options.data))
    text = describe(records.read(options.results))
    options.results.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A table larger than memory: how good a model of a sample of it is, and how much memory fitting it takes.

    python -m benchmarks.sampling --seconds 600

Fits the default ensemble with `memory=`, which samples about 2,400,000 of the rows. The time budget is for training;
reading the table comes in addition. The table is simulated: 20 columns of which 8 matter, with noise whose standard
deviation depends on 3 of them, so that the true density of each test row, and thus the best possible NLL, is known.

Each fit is one record of results/sampling.jsonl, with its scores on test rows, its seconds, and the peak of the memory
(PSS, so that shared pages count once) of all its processes together. What is already recorded is not run again;
results/sampling.md is written from the records. The record `old` is of revision ea5371a, which fitted all rows on disk.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq

import dspp.prepare
from benchmarks import records
from benchmarks.cases import seconds
from dspp.estimators import DSPPRegressor
from experiments import results
from experiments.report.blocks import text_table
from experiments.report.markdown import table_text
from experiments.report.records import short_commit

COLUMNS = 20
TEST_ROWS = 50_000
FILE_ROWS = 1_000_000
MEMORY = "8GB"  # samples about 2,400,000 of these rows
KEYS = ("method", "budget", "metrics", "seconds", "rows", "peak_mb")  # which every line has

Array = np.ndarray[Any, np.dtype[np.float64]]


def truth(X: Array) -> tuple[Array, Array]:
    """Return the mean and the standard deviation of y for each row."""
    x = X.T.astype(np.float64)
    mean = np.sin(2 * x[0]) + x[1] * x[2] + 0.5 * np.abs(x[3]) * np.cos(x[4]) + 0.3 * x[5] ** 2 - 0.4 * x[6] * x[0]
    std = 0.1 + 0.4 / (1 + np.exp(-1.5 * x[1] - x[7] * x[0]))
    return mean, std


def simulate(rows: int, seed: int) -> tuple[Array, Array, Array]:
    """Return inputs, targets, and the true log density of the targets."""
    random = np.random.default_rng(seed)
    X = random.standard_normal((rows, COLUMNS), np.float32)
    mean, std = truth(X)
    noise = random.standard_normal(rows)
    return X, (mean + std * noise).astype(np.float32), -0.5 * np.log(2 * np.pi * std**2) - 0.5 * noise**2


def write_table(folder: Path, rows: int) -> None:
    """Write the table, one file at a time."""
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        X, y, _ = simulate(min(FILE_ROWS, rows - first), number)
        columns = {f"x{k}": X[:, k] for k in range(COLUMNS)} | {"y": y}
        pq.write_table(pa.table(columns), folder / f"part-{number:04}.parquet", row_group_size=100_000)


def fit(folder: Path, budget: float, memory: str) -> dict[str, Any]:
    """Fit the table of a folder, and score test rows."""
    reading: list[float] = []
    prepare = dspp.prepare.prepare

    def timed(*args: Any, **more: Any) -> Any:
        begin = time.perf_counter()
        prepared = prepare(*args, **more)
        reading.append(time.perf_counter() - begin)
        return prepared

    model = DSPPRegressor(time_budget=budget, memory=memory, progress=False)
    dataset = pyarrow.dataset.dataset(folder)
    with patch.object(dspp.prepare, "prepare", timed):
        whole = seconds(lambda: model.fit(dataset, "y"))
    X, y, log_density = simulate(TEST_ROWS, 1_000_000)
    scores = model.evaluate(pa.table({f"x{k}": X[:, k] for k in range(COLUMNS)}), y.astype(np.float64))
    kept = ("nll", "crps", "rmse", "coverage90")
    members = model.fitted_.members
    return {
        "metrics": {name: scores[name] for name in kept} | {"best possible nll": -float(log_density.mean())},
        "seconds": {"reading": round(sum(reading), 1), "training": round(whole - sum(reading), 1)},
        "rows": {"table": dataset.count_rows(), "used": model.fitted_.num_rows, "test": TEST_ROWS},
        "members": len(members),
        "inducing": sorted({member.spec.model.inducing for member in members}),
        "notes": [str(note) for note in model.fitted_.notes],
    }


def children(process: int) -> list[int]:
    """Return the numbers of a process and all processes below it."""
    found = [process]
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            below = task.read_text().split()
        except OSError:  # it has ended
            continue
        for child in below:
            found += children(int(child))
    return found


def memory_bytes(process: int) -> int:
    """Return the memory of a process and all processes below it, in which shared pages count once."""
    total = 0
    for number in children(process):
        try:
            lines = Path(f"/proc/{number}/smaps_rollup").read_text().splitlines()
            total += 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except OSError:  # it has ended
            continue
    return total


def measure(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run `fit` in a process of its own, and watch its memory."""
    result = folder.parent / "result.json"
    command = [sys.executable, "-m", "benchmarks.sampling", "--stage", str(folder), "--results", str(result)]
    command += ["--seconds", str(options.seconds), "--memory", options.memory]
    process = subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"})
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory_bytes(process.pid))
        time.sleep(0.5)
    if process.returncode:
        raise SystemExit(f"the fit failed with exit code {process.returncode}")
    about = {"method": "new", "budget": options.seconds, "commit": results.provenance(records.CODE)["commit"]}
    return about | json.loads(result.read_text()) | {"peak_mb": round(peak / 1e6)}


def page(found: Sequence[dict[str, Any]]) -> str:
    """Return the records as a table in Markdown."""
    names = {"old": "all rows, on disk", "new": "a sample, in memory"}
    scores, costs = ("NLL", "above the best", "CRPS", "coverage of 90 %"), ("reading", "training", "peak")
    rows = []
    for record in sorted(found, key=lambda one: (one["rows"]["table"], one["budget"], one["method"] == "new")):
        metrics, taken, counts = record["metrics"], record["seconds"], record["rows"]
        cells = [
            f"{counts['table']:,}",
            f"{counts['used']:,}",
            f"{record['budget']:g} s",
            f"{names[record['method']]} ({short_commit(record['commit'])})",
            f"{metrics['nll']:.4f}",
            f"{metrics['nll'] - metrics['best possible nll']:.4f}",
            f"{metrics['crps']:.4f}",
            f"{100 * metrics['coverage90']:.1f} %",
            f"{taken['reading']:.0f} s",
            f"{taken['training']:.0f} s",
            f"{record['peak_mb']:,} MB",
        ]
        rows.append(cells)
    lines = [
        "# A table larger than memory",
        "Written by `python -m benchmarks.sampling`; its docstring says what is measured. NLL in nats per row, on "
        f"{TEST_ROWS:,} test rows, and above the best possible, that of the true density; the memory is that of all "
        "processes together.",
        table_text(text_table(("rows", "used", "budget", "fitted to", *scores, *costs), rows, words=(3,))),
    ]
    return "\n\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = records.parser("benchmarks.sampling", __doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=600.0, help="time budget of the fit, without reading")
    parser.add_argument("--memory", default=MEMORY, help="the limit of the memory")
    parser.add_argument("--folder", type=Path, help="where to create the temporary folder")
    parser.add_argument("--stage", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.stage:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options.results.write_text(json.dumps(fit(options.stage, options.seconds, options.memory)))
        return 0
    done = [(one["method"], one["rows"]["table"], one["budget"]) for one in results.read(options.results, KEYS)]
    if ("new", options.rows, options.seconds) not in done:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            folder, needed = Path(name, "table"), int(1.2 * options.rows * 4 * (COLUMNS + 1))
            if shutil.disk_usage(name).free < needed:
                parser.error(
                    f"{name}: expected {needed:,} bytes of free space; choose another --folder or fewer --rows"
                )
            folder.mkdir()
            write_table(folder, options.rows)
            record = measure(folder, options)
        results.update(options.results, lambda found: [*found, record], KEYS)
    text = page(results.read(options.results, KEYS))
    options.results.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

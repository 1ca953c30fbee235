"""A table larger than memory: rows from disk as they were read until November 2026, beside a sample in memory.

    git worktree add /tmp/old ea5371a
    python -m benchmarks.sampling --old-source /tmp/old/src --seconds 600
    git worktree remove /tmp/old

`old` fits the default ensemble to all rows on disk by the code of that revision, `new` fits it with `memory=`, which
samples about 2,400,000 of the rows, by the code beside this file. Both have the same time budget for training; reading
the table comes in addition. The table is simulated: 20 columns of which 8 matter, with noise whose standard deviation
depends on 3 of them, so that the true density of each test row, and thus the best possible NLL, is known.

Each method is one record of results/sampling.jsonl, with its scores on test rows, its seconds, and the peak of the
memory (PSS, so that shared pages count once) of all its processes together. What is already recorded is not run again;
results/sampling.md is written from the records.
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

import numpy as np

COLUMNS = 20
TEST_ROWS = 50_000
FILE_ROWS = 1_000_000
MEMORY = "8GB"  # samples about 2,000,000 of these rows
HERE = Path(__file__).resolve().parents[1]
METHODS = ("old", "new")

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
    import pyarrow as pa
    import pyarrow.parquet as pq

    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        X, y, _ = simulate(min(FILE_ROWS, rows - first), number)
        columns = {f"x{k}": X[:, k] for k in range(COLUMNS)} | {"y": y}
        pq.write_table(pa.table(columns), folder / f"part-{number:04}.parquet", row_group_size=100_000)


# ---------------------------------------------------------------- in a process of its own


def fit(method: str, folder: Path, seconds: float, memory: str) -> dict[str, Any]:
    """Fit the table of a folder, and score test rows; in a process whose `dspp` is the one to measure."""
    import pyarrow as pa
    import pyarrow.dataset

    import dspp.prepare
    from dspp.estimators import DSPPRegressor

    source = str(Path(dspp.prepare.__file__).parents[2])
    reading = 0.0
    prepare: Any = dspp.prepare.prepare

    def timed(*args: Any, **more: Any) -> Any:
        nonlocal reading
        begin = time.perf_counter()
        prepared = prepare(*args, **more)
        reading = time.perf_counter() - begin
        return prepared

    dspp.prepare.prepare = timed
    estimator: Any = DSPPRegressor
    of_method = {"old": {}, "new": {"memory": memory}}[method]
    model = estimator(time_budget=seconds, progress=False, **of_method)
    begin = time.perf_counter()
    dataset = pyarrow.dataset.dataset(folder)
    model.fit(dataset, "y", **({"cache": folder.parent} if method == "old" else {}))
    whole = time.perf_counter() - begin
    X, y, log_density = simulate(TEST_ROWS, 1_000_000)
    test = pa.table({f"x{k}": X[:, k] for k in range(COLUMNS)})
    scores = model.evaluate(test, y.astype(np.float64))
    kept = ("nll", "crps", "rmse", "coverage90")
    metrics = {name: scores[name] for name in kept} | {"best possible nll": -float(log_density.mean())}
    members = model.fitted_.members
    return {
        "source": source,
        "metrics": metrics,
        "seconds": {"reading": round(reading, 1), "training": round(whole - reading, 1)},
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


def measure(method: str, source: Path, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run `fit` in a process with this source, and watch its memory."""
    result = folder.parent / f"{method}.json"
    command = [sys.executable, str(Path(__file__).resolve()), "--stage", method, "--folder", str(folder)]
    command += ["--seconds", str(options.seconds), "--memory", options.memory, "--result", str(result)]
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, cwd=folder.parent)
    peak = 0
    while process.poll() is None:
        peak = max(peak, memory_bytes(process.pid))
        time.sleep(0.5)
    if process.returncode:
        raise SystemExit(f"{method} failed with exit code {process.returncode}")
    found: dict[str, Any] = json.loads(result.read_text())
    if (used := found.pop("source")) != str(source.resolve()):
        raise SystemExit(f"expected dspp of {source.resolve()}, got that of {used}; check the folder")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=source, stdout=subprocess.PIPE, text=True)
    about = {"method": method, "budget": options.seconds, "commit": commit.stdout.strip()}
    return about | found | {"peak_mb": round(peak / 1e6)}


# ---------------------------------------------------------------- results


def read(path: Path) -> list[dict[str, Any]]:
    """Return the records of a file, which need not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def page(records: Sequence[dict[str, Any]]) -> str:
    """Return the records as a table in Markdown."""
    names = {"old": "all rows, on disk", "new": "a sample, in memory"}
    head = "rows | used | budget | | NLL | above the best | CRPS | coverage of 90 % | reading | training | peak"
    lines = [
        "# A table larger than memory",
        "",
        "Written by `python -m benchmarks.sampling`; its docstring says what is measured. NLL in nats per row, on "
        f"{TEST_ROWS:,} test rows, and above the best possible, that of the true density; the memory is that of all "
        "processes together.",
        "",
        f"| {head} |",
        f"|{'---|' * (head.count('|') + 1)}",
    ]
    for record in sorted(records, key=lambda one: (one["rows"]["table"], one["budget"], one["method"] == "new")):
        metrics, seconds, rows = record["metrics"], record["seconds"], record["rows"]
        cells = [
            f"{rows['table']:,}",
            f"{rows['used']:,}",
            f"{record['budget']:g} s",
            f"{names[record['method']]} ({record['commit']})",
            f"{metrics['nll']:.4f}",
            f"{metrics['nll'] - metrics['best possible nll']:.4f}",
            f"{metrics['crps']:.4f}",
            f"{100 * metrics['coverage90']:.1f} %",
            f"{seconds['reading']:.0f} s",
            f"{seconds['training']:.0f} s",
            f"{record['peak_mb']:,} MB",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old-source", type=Path, help="the folder src of the old revision; without it, new only")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--seconds", type=float, default=600.0, help="time budget of each fit, without reading")
    parser.add_argument("--memory", default=MEMORY, help="the limit of the new method")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "sampling.jsonl")
    parser.add_argument("--folder", type=Path, help="where to create the temporary folder")
    parser.add_argument("--stage", choices=METHODS, help=argparse.SUPPRESS)
    parser.add_argument("--result", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = fit(options.stage, options.folder, options.seconds, options.memory)
        options.result.write_text(json.dumps(found))
        return
    done = {(one["method"], one["rows"]["table"], one["budget"]) for one in read(options.results)}
    missing = [name for name in options.methods if (name, options.rows, options.seconds) not in done]
    if "old" in missing and options.old_source is None:
        missing.remove("old")
    sources = {"old": options.old_source, "new": HERE / "src"}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder, needed = Path(name, "table"), int(2.5 * options.rows * 4 * (COLUMNS + 1))  # the table and a cache
        if shutil.disk_usage(name).free < needed:
            parser.error(f"{name}: expected {needed:,} bytes of free space; choose another --folder or fewer --rows")
        folder.mkdir()
        if missing:
            write_table(folder, options.rows)
        for method in missing:
            record = measure(method, sources[method], folder, options)
            with options.results.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(json.dumps(record, indent=1), flush=True)
    text = page(read(options.results))
    options.results.with_suffix(".md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

"""The overhead of estimators and command line compared with the bare training loop and the bare model.

    python -m benchmarks.front_door [--rows 1000000]

Prints a table and, as its last line, JSON:
  fit_overhead         time of DSPPRegressor.fit on a data frame, relative to the training loop inside it, minus 1
  predict_ratio        rows/s of `dspp predict` from Parquet to Parquet, relative to the bare model on arrays
  predict_peak_mb      peak resident memory of that `dspp predict`
  evaluate_ratio       CPU seconds of the scores of an ensemble of 20 members, relative to those of its predictions
  import_seconds       time of `import dspp` and of `from dspp import DSPPRegressor`, each beyond `import torch`
  help_seconds         time of `dspp --help`
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from dspp import DSPPRegressor, load

COLUMNS = 20
DSPP = [sys.executable, "-m", "dspp"]
PEAK = """
import atexit, sys
status = lambda: [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
atexit.register(lambda: print(*status(), file=sys.stderr))
from dspp.cli import main
main()
"""  # runs the command line and reports its peak memory at exit


def table(rows: int, seed: int) -> tuple[pa.Table, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, COLUMNS))
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=rows)
    return pa.table({f"x{d}": X[:, d] for d in range(COLUMNS)}), y


def seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def fit_overhead(repeats: int = 3) -> float:
    """Return the relative overhead of `fit` over the training loop inside it, as the median of repeats."""
    frame, y = table(5000, seed=0)
    estimator = DSPPRegressor(members=1, epochs=10, inducing=100, restarts=1)
    return (
        statistics.median(seconds(lambda: estimator.fit(frame, y)) / estimator.fitted_.seconds for _ in range(repeats))
        - 1
    )


def predictions(rows: int, folder: Path) -> dict[str, float]:
    """Compare the command line with the bare model on the same rows, one after the other."""
    frame, y = table(20_000, seed=0)
    DSPPRegressor(members=1, epochs=1, restarts=1).fit(frame, y).save(folder / "model.dspp")
    new, _ = table(rows, seed=1)
    pq.write_table(new, folder / "new.parquet", row_group_size=100_000)
    fitted = load(folder / "model.dspp").fitted_
    predictor = fitted.members[0].predictor
    X = fitted.scale_X.transform(np.column_stack([c.to_numpy() for c in new.columns]))
    del new
    part = X[: rows // 5]
    bare = len(part) / seconds(lambda: predictor(part))
    command = [
        sys.executable,
        "-c",
        PEAK,
        "predict",
        folder / "model.dspp",
        folder / "new.parquet",
        "--out",
        folder / "out.parquet",
    ]
    begin = time.perf_counter()
    run = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)
    taken = time.perf_counter() - begin
    peak = int(run.stderr.split("VmHWM:")[1].split()[0]) / 1024
    bare = (bare + len(part) / seconds(lambda: predictor(part))) / 2  # before and after: the machine is noisy
    assert pq.read_metadata(folder / "out.parquet").num_rows == rows
    return {
        "bare_rows_s": bare,
        "cli_rows_s": rows / taken,
        "predict_ratio": rows / taken / bare,
        "predict_peak_mb": peak,
    }


def evaluate_ratio(rows: int = 16_384, repeats: int = 3) -> float:
    """Return the CPU time of predicting and scoring rows relative to that of predicting them, of 20 members."""
    frame, y = table(3_000, seed=0)
    model = DSPPRegressor(members=20, epochs=2, inducing=40, restarts=1, progress=False).fit(frame, y)
    new, observed = table(rows, seed=1)
    ratios = []
    for _ in range(repeats):
        predicting = cpu_seconds(lambda: model.predict_dist(new))
        ratios.append(cpu_seconds(lambda: model.evaluate(new, observed)) / predicting)
    return statistics.median(ratios)


def cpu_seconds(function: Callable[[], object]) -> float:
    begin = time.process_time()
    function()
    return time.process_time() - begin


def start_up(code: str, repeats: int = 5) -> float:
    """Return the median seconds that a fresh interpreter takes to run `code`."""
    run = lambda: subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)  # noqa: E731
    return statistics.median(seconds(run) for _ in range(repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    options = parser.parse_args()
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    alone = start_up("import torch")
    results: dict[str, float] = {
        "help_seconds": statistics.median(
            seconds(lambda: subprocess.run([*DSPP, "--help"], check=True, capture_output=True)) for _ in range(5)
        ),
        "import_seconds": start_up("import torch, dspp") - alone,
        "import_estimator_seconds": start_up("import torch\nfrom dspp import DSPPRegressor") - alone,
        "fit_overhead": fit_overhead(),
        "evaluate_ratio": evaluate_ratio(),
    }
    with tempfile.TemporaryDirectory() as folder:
        results |= predictions(options.rows, Path(folder))
    for name, value in results.items():
        print(f"{name:26} {value:12,.3f}")
    print(json.dumps({name: round(value, 4) for name, value in results.items()}))


if __name__ == "__main__":
    main()

"""Runs the fits that are missing, and stores the result of each as it arrives."""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import records
from benchmarks.tables.methods import Method, one_thread
from benchmarks.tables.scores import score
from benchmarks.tables.sets import load
from dspp.encoding.scaling import Standardizer
from dspp.engines import run_all
from experiments.results import Record, provenance
from experiments.run import Outcome, attempt


@dataclass(frozen=True)
class Task:
    """One fit."""

    set: str
    fold: int
    method: Method

    @property
    def key(self) -> records.Key:
        """What identifies the fit in the results file."""
        return self.set, self.fold, self.method.name


def run(
    tasks: Sequence[Task], data: Path, results: Path, jobs: int, tell: Callable[[Outcome[Task]], None]
) -> list[Outcome[Task]]:
    """Run the fits without a result and return those that failed."""
    failed = []
    shared = (fit, data, provenance(records.CODE))
    for _, outcome in run_all(attempt, _missing(tasks, results), shared=shared, jobs=jobs):
        if outcome.record is None:
            failed.append(outcome)
        else:
            records.add(results, outcome.record)
        tell(outcome)
    return failed


def _missing(tasks: Sequence[Task], results: Path) -> Iterator[Task]:
    """Yield the fits without a result as workers become free; another run may have stored some meanwhile."""
    for task in tasks:
        if task.key not in set(map(records.key, records.read(results))):
            yield task


def fit(task: Task, data: Path, origin: dict[str, Any]) -> Record:
    """Fit, predict and score."""
    rows = load(task.set, task.fold, data)
    task.method.check(rows)
    with nullcontext() if task.method.is_ours else one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from other libraries
        threads = torch.get_num_threads()
        start, cpu = time.perf_counter(), time.process_time()
        fitted = task.method.fit(rows, task.fold)
        after_fit, cpu = time.perf_counter(), time.process_time() - cpu
        predicted = fitted.predict(rows.X_test)
        after_predict = time.perf_counter()
    scale = Standardizer.fit(rows.y)
    if fitted.standardised:
        metrics = score(predicted, scale.transform(rows.y_test))
    else:
        metrics = score(predicted, rows.y_test, float(scale.scale))
    return {
        "set": task.set,
        "fold": task.fold,
        "method": task.method.name,
        "settings": dict(task.method.settings),
        "metrics": metrics,
        "rows": {"train": len(rows.y), "test": len(rows.y_test)},
        "seconds": {
            "fit": round(after_fit - start, 3),
            "fit_cpu": round(cpu, 3),  # of this process; comparable if the machine was busy
            "predict_per_1000": round(1000 * (after_predict - after_fit) / len(rows.y_test), 6),
        },
        "threads": threads,
        "details": dict(fitted.details),
        "versions": origin["versions"] | task.method.versions(),
        "commit": origin["commit"],
    }

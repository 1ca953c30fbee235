"""Runs units on a pool of processes; existing results are not computed again, and every new one is stored at once."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from dspp.engines import run_all
from dspp.errors import DsppError
from experiments import results
from experiments.fitting import Record, run_unit
from experiments.units import Unit, fit_key

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The outcome of one fit: a record, or the reason why there is none."""

    task: T
    record: Record | None
    problem: str = ""


@dataclass
class Plan:
    """The fits to run."""

    wanted: dict[str, list[Unit]]  # by fit: the units that it serves, one per experiment
    done: int  # units that already have results

    @property
    def fits(self) -> list[Unit]:
        """Return one unit of each fit still to run."""
        return [units[0] for units in self.wanted.values()]


def plan(units: Sequence[Unit], folder: Path, settle: bool = True) -> Plan:
    """Return the fits that are missing. A fit that another experiment already has is copied, not repeated.

    Args:
        units: The units to run.
        folder: The results folder.
        settle: Whether to copy such results and to remove leftover checkpoints of finished fits.
    """
    known = _read_all(folder)
    existing = {
        name: {fit_key(r) for r in results.read(folder / f"{name}.jsonl")} for name in {u.experiment for u in units}
    }
    wanted: dict[str, list[Unit]] = defaultdict(list)
    done = 0
    for unit in units:
        key = unit.fit_key
        if key in known:
            done += 1
            if settle:
                if key not in existing[unit.experiment]:
                    results.add(folder / f"{unit.experiment}.jsonl", {**known[key], "experiment": unit.experiment})
                _clear(folder, key)
        else:
            wanted[key].append(unit)
    return Plan(dict(wanted), done)


def run(
    todo: Plan,
    folder: Path,
    data_folder: Path | None,
    jobs: int | None,
    report: Callable[[Outcome[Unit]], None],
    engine: str = "local",
    address: str | None = None,
) -> list[Outcome[Unit]]:
    """Run the missing fits and store each result as it arrives; return the failures.

    On Ray, a unit of a lost node is run again on another, from its checkpoint if both share the results folder.
    """
    work = _work(folder).resolve()
    parent = os.getpid() if engine == "local" else 0  # Ray itself ends is_orphan workers; 0 is never a parent
    shared = (run_unit, data_folder and data_folder.resolve(), work, results.provenance(), parent)
    failed = []
    missing = _missing(todo, folder, report)
    for _, outcome in run_all(attempt, missing, shared=shared, engine=engine, jobs=jobs, address=address):
        if outcome.record is None:
            failed.append(outcome)
        else:
            _store(outcome.record, todo.wanted[outcome.task.fit_key], folder)
            _clear(folder, outcome.task.fit_key)  # after a kill before this line, the next `plan` does it
        report(outcome)
    return failed


def _missing(todo: Plan, folder: Path, report: Callable[[Outcome[Unit]], None]) -> Iterator[Unit]:
    """Yield the fits to run as workers become free; results that another command has stored meanwhile are reused."""
    for unit in todo.fits:
        stored = _read_all(folder).get(unit.fit_key)
        if stored is None:
            yield unit
        else:
            _store(stored, todo.wanted[unit.fit_key], folder)
            report(Outcome(unit, stored))


def attempt(task: T, fit: Callable[..., Record], *arguments: Any) -> Outcome[T]:
    """Run one fit; its failure does not end the others."""
    try:
        return Outcome(task, fit(task, *arguments))
    except DsppError as problem:
        return Outcome(task, None, str(problem))
    except Exception as problem:  # from another library, say; it must not end hours of other fits
        return Outcome(task, None, f"{type(problem).__name__}: {problem}")


def _store(record: Record, units: Sequence[Unit], folder: Path) -> None:
    for unit in units:
        results.add(folder / f"{unit.experiment}.jsonl", {**record, "experiment": unit.experiment})


def _read_all(folder: Path) -> dict[str, Record]:
    return {fit_key(r): r for path in sorted(folder.glob("*.jsonl")) for r in results.read(path)}


def _work(folder: Path) -> Path:
    return folder / ".work"


def _clear(folder: Path, key: str) -> None:
    for left in _work(folder).glob(f"{key}.*"):
        left.unlink(missing_ok=True)

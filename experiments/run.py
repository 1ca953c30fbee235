"""Running units on a pool of processes: what is there already is not run again, and every result is kept at once."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dspp.engines import run_all
from dspp.errors import DsppError
from experiments import results
from experiments.fitting import Record, run_unit
from experiments.units import Unit, fit_key


@dataclass(frozen=True)
class Outcome:
    """What came of one fit: a record, or why there is none."""

    unit: Unit
    record: Record | None
    problem: str = ""


@dataclass
class Plan:
    """What there is to do."""

    wanted: dict[str, list[Unit]]  # by fit: the units, one an experiment, that it answers
    done: int  # units that were there already

    @property
    def fits(self) -> list[Unit]:
        """One unit of each fit still to run."""
        return [units[0] for units in self.wanted.values()]


def plan(units: Sequence[Unit], folder: Path, settle: bool = True) -> Plan:
    """Which fits are missing. One that another experiment has made is copied, not repeated.

    Args:
        units: what is wanted.
        folder: the results.
        settle: copy such results, and remove checkpoints of finished fits that a killed command left; else only look.
    """
    known = _known(folder)
    there = {
        name: {fit_key(r) for r in results.read(folder / f"{name}.jsonl")} for name in {u.experiment for u in units}
    }
    wanted: dict[str, list[Unit]] = defaultdict(list)
    done = 0
    for unit in units:
        key = unit.fit_key
        if key in known:
            done += 1
            if settle:
                if key not in there[unit.experiment]:
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
    report: Callable[[Outcome], None],
    engine: str = "local",
    address: str | None = None,
) -> list[Outcome]:
    """Run what is missing and keep each result as it comes; return what failed.

    On Ray a unit of a lost node is run again on another, from its checkpoint if both see the folder of results.
    """
    work = _work(folder).resolve()
    parent = os.getpid() if engine == "local" else 0  # Ray ends the workers of a command that is gone; 0 is no parent
    shared = (data_folder and data_folder.resolve(), work, results.provenance(), parent)
    failed = []
    missing = _missing(todo, folder, report)
    for _, outcome in run_all(attempt, missing, shared=shared, engine=engine, jobs=jobs, address=address):
        if outcome.record is None:
            failed.append(outcome)
        else:
            _keep(outcome.record, todo.wanted[outcome.unit.fit_key], folder)
            _clear(folder, outcome.unit.fit_key)  # a kill before this line: the next `plan` does it
        report(outcome)
    return failed


def _missing(todo: Plan, folder: Path, report: Callable[[Outcome], None]) -> Iterator[Unit]:
    """The fits to run, each asked for when a worker is free; what another command has made meanwhile is taken over."""
    for unit in todo.fits:
        made = _known(folder).get(unit.fit_key)
        if made is None:
            yield unit
        else:
            _keep(made, todo.wanted[unit.fit_key], folder)
            report(Outcome(unit, made))


def attempt(unit: Unit, data_folder: Path | None, work: Path, *arguments: Any) -> Outcome:
    """Run one unit; a problem of its own does not end the others."""
    try:
        work.mkdir(parents=True, exist_ok=True)  # maybe on another machine
        return Outcome(unit, run_unit(unit, data_folder, work, *arguments))
    except DsppError as problem:
        return Outcome(unit, None, str(problem))
    except Exception as problem:  # of a library that is not ours, say; hours of other fits must not end with it
        return Outcome(unit, None, f"{type(problem).__name__}: {problem}")


def _keep(record: Record, units: Sequence[Unit], folder: Path) -> None:
    for unit in units:
        results.add(folder / f"{unit.experiment}.jsonl", {**record, "experiment": unit.experiment})


def _known(folder: Path) -> dict[str, Record]:
    return {fit_key(r): r for path in sorted(folder.glob("*.jsonl")) for r in results.read(path)}


def _work(folder: Path) -> Path:
    return folder / ".work"


def _clear(folder: Path, key: str) -> None:
    for left in _work(folder).glob(f"{key}.*"):
        left.unlink(missing_ok=True)

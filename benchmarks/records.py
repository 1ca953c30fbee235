"""The results of the benchmarks of fits: one line per set, fold and method."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from dspp import storage
from experiments import results
from experiments.results import Record

Key = tuple[str, int, str]
FIELDS = ("set", "fold", "method", "metrics", "seconds", "rows")  # which every line has
CODE = ("src", "experiments", "benchmarks")  # the folders that compute the numbers


def key(record: Record) -> Key:
    """Return what identifies a fit: set, fold and method."""
    return record["set"], int(record["fold"]), record["method"]


def read(path: Path) -> list[Record]:
    """Return the records of a file, none if it does not exist; lines that are not records are left out."""
    records = results.read(path, FIELDS)
    for record in records:
        record["metrics"] = {name: float(value) for name, value in record["metrics"].items()}
    return records


def add(path: Path, record: Record) -> None:
    """Add one record, unless the fit already has one."""

    def added(records: list[Record]) -> list[Record]:
        return records if key(record) in map(key, records) else storage.to_plain([*records, record])

    results.update(path, added, FIELDS)


def complete(path: Path, wanted: Iterable[Key], measure: Callable[[str, int, str], Record]) -> list[Record]:
    """Measure the fits that have no record yet, add each with its commit as it is done, and return all records."""
    for set_, fold, method in wanted:
        if (set_, fold, method) not in map(key, read(path)):
            origin = results.provenance(CODE)
            what = {"set": set_, "fold": fold, "method": method, "commit": origin["commit"]}
            add(path, what | measure(set_, fold, method))
    return read(path)


def parser(module: str, description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a benchmark that writes results/NAME.jsonl, with the options that all of them have."""
    name = module.rpartition(".")[2]
    found = argparse.ArgumentParser(
        f"python -m benchmarks.{name}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--data", type=Path, default=Path("../shared/data"))
    found.add_argument("--results", type=Path, default=Path(f"results/{name}.jsonl"))
    return found

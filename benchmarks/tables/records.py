"""The results file, one line per fit; written atomically under a lock, so that several runs can share it."""

import json
from pathlib import Path

from filelock import FileLock

from dspp import storage
from dspp.errors import CheckpointError
from experiments import results
from experiments.results import Record

Key = tuple[str, int, str]
FIELDS = ("set", "fold", "method", "metrics", "seconds", "rows")  # which every line has


def key(record: Record) -> Key:
    """Return what identifies a fit: set, fold and method."""
    return record["set"], int(record["fold"]), record["method"]


def read(path: Path) -> list[Record]:
    """Return the records of a file, none if it does not exist; lines that are not records are left out."""
    found = results.read(path, FIELDS)
    return [{**r, "metrics": {name: float(value) for name, value in r["metrics"].items()}} for r in found]


def add(path: Path, record: Record) -> None:
    """Add one record, unless the fit already has one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.parent / f".{path.stem}.lock"):
        records = read(path)
        if key(record) in map(key, records):
            return
        lines = "".join(json.dumps(storage.to_plain(r)) + "\n" for r in [*records, record])
        storage.write_bytes(path, lines.encode(), CheckpointError)

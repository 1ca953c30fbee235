"""The results file, one line per fit; written atomically under a lock, so that several runs can share it."""

import json
from pathlib import Path
from typing import Any

from filelock import FileLock

from dspp import storage
from dspp.errors import CheckpointError

Record = dict[str, Any]
Key = tuple[str, int, str]
FIELDS = ("set", "fold", "method", "metrics", "seconds", "rows")  # which every line has


def key(record: Record) -> Key:
    """Return what identifies a fit: set, fold and method."""
    return record["set"], int(record["fold"]), record["method"]


def read(path: Path) -> list[Record]:
    """Return the records of a file, none if it does not exist; lines that are not records are left out."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and record.keys() >= set(FIELDS):
            record["metrics"] = {name: float(value) for name, value in record["metrics"].items()}
            records.append(record)
    return records


def add(path: Path, record: Record) -> None:
    """Add one record, unless the fit already has one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.parent / f".{path.stem}.lock"):
        records = read(path)
        if key(record) in map(key, records):
            return
        lines = "".join(json.dumps(storage.to_plain(r)) + "\n" for r in [*records, record])
        storage.write_bytes(path, lines.encode(), CheckpointError)

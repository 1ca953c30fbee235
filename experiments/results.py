"""The results file of an experiment, one line per unit; written atomically, so that a kill never damages it."""

import json
import math
import platform
import subprocess
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from filelock import FileLock

from dspp import storage
from dspp.errors import CheckpointError
from experiments.units import fit_key

KEYS = (
    *("experiment", "dataset", "split", "method", "protocol", "selected"),
    *("setting", "metrics", "seconds", "versions", "commit", "details"),
)
REPOSITORY = Path(__file__).resolve().parents[1]
Record = dict[str, Any]


def read(path: Path, required: Collection[str] = KEYS[:-1]) -> list[Record]:
    """Return the records of a file, none if it does not exist; lines without the required keys are left out."""
    if not path.is_file():
        return []
    records = []
    for line in path.read_text().splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and record.keys() >= set(required):
            records.append(record)
    return records


def update(path: Path, change: Callable[[list[Record]], list[Record]], required: Collection[str] = KEYS[:-1]) -> None:
    """Replace the records of a file by what `change` returns for them, atomically and under a lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.parent / f".{path.stem}.lock"):
        records = read(path, required)
        changed = change(list(records))
        if changed != records:
            lines = "".join(json.dumps(record) + "\n" for record in changed)
            storage.write_bytes(path, lines.encode(), CheckpointError)


def add(path: Path, record: Record) -> None:
    """Add one record, and update which settings are selected by validation NLL.

    A fit that already has a record is not added again.
    """

    def added(records: list[Record]) -> list[Record]:
        if fit_key(record) in map(fit_key, records):
            return records
        return [{k: r[k] for k in KEYS if k in r} for r in select([*records, record])]

    update(path, added)


def select(records: list[Record]) -> list[Record]:
    """Return the records, `selected` if no other setting of the same method on the same rows validates better."""
    rivals: dict[tuple[Any, ...], list[Record]] = defaultdict(list)
    for record in records:
        rivals[_group(record)].append(record)
    best = {group: min(map(_validation, those)) for group, those in rivals.items()}
    return [{**r, "selected": _validation(r) == best[_group(r)]} for r in records]


def _group(record: Record) -> tuple[Any, ...]:
    if record["experiment"] in ("weights", "complexity"):  # every setting is a result
        return (fit_key(record),)
    rows = record["setting"].get("split_by", "rows")  # not comparable across different rows
    return (*(record[name] for name in ("dataset", "split", "method", "protocol")), rows)


def _validation(record: Record) -> float:
    value = record.get("details", {}).get("validation_nll")
    return float("inf") if value is None or math.isnan(value) else float(value)


def provenance(code: Sequence[str] = ("src", "experiments")) -> dict[str, Any]:
    """Return the versions and the commit that a record comes from; `code` are the folders that compute it."""
    packages = {name: metadata.version(name) for name in ("dspp", "torch", "numpy")}
    return {"versions": {**packages, "python": platform.python_version()}, "commit": _commit(code)}


def _commit(code: Sequence[str]) -> str | None:
    """Return the commit, with a + if the code that computes the numbers has changed since; None outside git."""
    head = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--", *code)
    return None if head is None else head + ("+" if changed else "")


def _git(*command: str) -> str | None:
    try:
        done = subprocess.run(["git", *command], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()

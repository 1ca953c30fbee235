"""Records of runs: reads results/*.jsonl and lays out one metric as a grid of data sets by methods."""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from dspp.errors import InputError
from experiments.catalogue import OTHERS
from experiments.report.layout import Layout, Metric, order_names

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,60}")  # names that become file names
_TAKEN = ("index", "headline", "tables", "studies")  # files of the report itself
SUITE_FILE = "tables.jsonl"  # of benchmarks.tables, whose lines are not records of experiments, nor are those of
OTHER_BENCHMARKS = ("bars", "budgets", "corrections", "forecasts", "oracles", "sampling")  # other benchmarks


@dataclass(frozen=True)
class Record:
    """One run."""

    experiment: str
    dataset: str
    split: int
    method: str
    protocol: str
    selected: bool
    setting: Mapping[str, Any]
    metrics: Mapping[str, Any]
    commit: str | None
    details: Mapping[str, Any]

    def metric(self, key: str) -> float | None:
        """Return a finite number, or None if it was not measured or diverged."""
        value = self.metrics.get(key)
        return float(value) if is_number(value) and math.isfinite(value) else None


@dataclass(frozen=True)
class Loaded:
    """All records that could be read, and the number of unreadable lines per file."""

    records: tuple[Record, ...]
    left_out: Mapping[str, int]


def read_records(folder: Path) -> Loaded:
    """Read every *.jsonl of the experiments in a folder; truncated or foreign lines are left out and counted.

    Raises:
        InputError: The folder does not exist, or one of its files cannot be read.
    """
    if not folder.is_dir():
        raise InputError(f"results: {folder} is not a folder; give the one that `python -m experiments run` writes to")
    records: list[Record] = []
    left_out = {}
    foreign = {folder / SUITE_FILE, *(folder / f"{name}.jsonl" for name in OTHER_BENCHMARKS)}
    for path in sorted(set(folder.glob("*.jsonl")) - foreign):
        found, unreadable = read_file(path)
        records += found
        if unreadable:
            left_out[path.name] = unreadable
    return Loaded(tuple(records), left_out)


def read_file(path: Path) -> tuple[list[Record], int]:
    """Read the records of one file; return them and the number of lines that are not records.

    Raises:
        InputError: The file cannot be read.
    """
    read = [_record(line) for line in _lines(path)]
    return [record for record in read if record is not None], read.count(None)


def _lines(path: Path) -> list[bytes]:
    try:
        return [line for line in path.read_bytes().split(b"\n") if line.strip()]
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror or problem}; check its permissions") from None


def _record(line: bytes) -> Record | None:
    """Return the record of a line, or None if it is truncated or lacks a required key; unknown keys are ignored."""
    try:
        found = json.loads(line)
        record = Record(
            _plain(found["experiment"]),
            _rows(_text(found["dataset"]), _mapping(found["setting"])),
            _whole(found["split"]),
            _text(found["method"]),
            _plain(found["protocol"]),
            found["selected"] is True,
            _mapping(found["setting"]),
            _mapping(found["metrics"]),
            found.get("commit") if isinstance(found.get("commit"), str) else None,
            _mapping(found.get("details") or {}),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return record


def _rows(dataset: str, setting: Mapping[str, Any]) -> str:
    """Return the data set and, if not at random, how its rows were split: such results are not comparable."""
    by = setting.get("split_by", "rows")
    return dataset if by == "rows" else f"{dataset}, split by {by}"


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError
    value.encode("utf-8")  # half a surrogate pair could be read but not written
    return value


def _plain(value: object) -> str:
    text = _text(value)
    if not _PLAIN.fullmatch(text) or text in _TAKEN:
        raise ValueError
    return text


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError
    return value


def is_number(value: object) -> TypeGuard[float]:
    """Return whether this is a number; JSON's true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class Source:
    """Where the numbers of a table or figure come from, stated in its caption."""

    protocol: str
    splits: tuple[int, int]  # fewest and most in a cell
    commits: tuple[str, ...]
    floors: tuple[str, ...]
    records: int

    def __str__(self) -> str:
        low, high = self.splits
        splits = f"{low} split{'s' if high != 1 else ''}" if low == high else f"{low}–{high} splits"
        commits = f"commit{'s' if len(self.commits) != 1 else ''} {', '.join(self.commits)}"
        floor = [f"noise floor {', '.join(self.floors)}"] if self.floors else []  # timings of a step have none
        records = f"{self.records} record{'s' if self.records != 1 else ''}"
        return " · ".join((f"protocol {self.protocol}", splits, commits, *floor, records))


def source_of(protocol: str, records: Sequence[Record]) -> Source:
    """Collect where these records come from."""
    cells: dict[tuple[str, str], set[int]] = {}
    for record in records:
        cells.setdefault((record.dataset, record.method), set()).add(record.split)
    sizes = [len(splits) for splits in cells.values()] or [0]
    commits = sorted({short_commit(record.commit) for record in records}) or ["none"]
    floors = {record.setting.get("noise_floor") for record in records}
    numbers = sorted(float(floor) for floor in floors if is_number(floor))
    texts = [f"{floor:g}" for floor in numbers] + ["not stated"] * (len(numbers) < len(floors) and bool(numbers))
    return Source(protocol, (min(sizes), max(sizes)), tuple(commits), tuple(texts), len(records))


def short_commit(commit: str | None) -> str:
    """Return the first seven digits, with a plus if there were uncommitted changes."""
    return "unknown" if not commit else commit[:7] + ("+" if commit.endswith("+") and len(commit) > 7 else "")


@dataclass(frozen=True)
class Cell:
    """The mean over splits, and its standard error if there are at least two."""

    mean: float
    error: float | None
    splits: int


def summary(values: Iterable[float]) -> Cell | None:
    """Return mean and standard error of the mean (with n - 1); None without values."""
    numbers = list(values)
    if not numbers:
        return None
    num, mean = len(numbers), math.fsum(numbers) / len(numbers)
    if num == 1:
        return Cell(mean, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in numbers) / (num - 1)
    return Cell(mean, math.sqrt(variance / num), num)


@dataclass(frozen=True)
class Grid:
    """One metric of one experiment and protocol: selected runs only, one value per data set, method and split."""

    metric: Metric
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    values: Mapping[tuple[str, str], Mapping[int, float]]  # (data set, method): split: value
    source: Source
    failed: int  # selected runs without a finite value

    def cell(self, dataset: str, method: str) -> Cell | None:
        """Return the mean over splits, or None if nothing was run."""
        return summary(self.values.get((dataset, method), {}).values())

    def present(self, methods: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return the methods that have a value on any data set."""
        found = {method for _, method in self.values}
        return tuple(m for m in (self.methods if methods is None else methods) if m in found)

    def losses(self, methods: Sequence[str]) -> tuple[list[tuple[str, int]], list[list[float]]]:
        """Return the (data set, split) pairs on which every method has a value, and the losses there."""
        pairs, rows = [], []
        for dataset in self.datasets:
            found = [self.values.get((dataset, method), {}) for method in methods]
            for split in sorted(set.intersection(*map(set, found)) if found else ()):
                pairs.append((dataset, split))
                rows.append([self.metric.loss(values[split]) for values in found])
        return pairs, rows


def latest(records: Iterable[Record], experiment: str, protocol: str) -> list[Record]:
    """Return the selected records of one experiment and protocol; if a run occurs twice, the later line."""
    kept: dict[tuple[str, str, int], Record] = {}
    for record in records:
        if record.selected and (record.experiment, record.protocol) == (experiment, protocol):
            kept[record.dataset, record.method, record.split] = record
    return list(kept.values())


def grid_of(records: Sequence[Record], layout: Layout, protocol: str, metric: Metric) -> Grid | None:
    """Lay out one metric of `latest` records; None if no run has it."""
    values: dict[tuple[str, str], dict[int, float]] = {}
    used, failed = [], 0
    for record in records:
        value = record.metric(metric.key)
        failed += value is None and metric.key in record.metrics
        if value is not None:
            values.setdefault((record.dataset, record.method), {})[record.split] = value
            used.append(record)
    if not used:
        return None
    datasets = order_names(layout.datasets, (dataset for dataset, _ in values))
    found = {method for _, method in values}
    methods = tuple(m for m in order_names(layout.methods, found) if m not in OTHERS or m in found)
    return Grid(metric, datasets, methods, values, source_of(protocol, used), failed)

"""Protocols as data: a TOML file of rules, each of which configures the units that it matches.

A rule may name `experiments`, `datasets` and `methods` (patterns such as "DSPP-*") and applies where all of them match.
Rules are read from top to bottom, and later ones take precedence. A rule can give

- `splits`: how many splits of the rows to run; 0 leaves the units out,
- `set`: settings of the model, the objective or training, by their names in `dspp.config`,
- `grid`: lists of settings; every combination is run, and validation NLL selects one,
- `sweep`: lists of settings; each is varied on its own around the fixed settings, and every run is a result.
"""

import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dspp.config import ModelConfig, ObjectiveConfig, TrainConfig
from dspp.errors import InputError

FOLDER = Path(__file__).parent / "protocols"
MODEL = {f.name for f in fields(ModelConfig)}
OBJECTIVE = {f.name for f in fields(ObjectiveConfig)} - {"name"}
TRAIN = {f.name for f in fields(TrainConfig)} - {"threads"}  # which the runner sets
PEER = {"rounds", "rate", "leaves", "depth"}  # of the boosted trees
# split_by: "rows" (any row anywhere) or "groups" (whole trajectories)
OTHER = {"split_by"}
SETTINGS = MODEL | OBJECTIVE | TRAIN | PEER | OTHER
MATCHERS = ("experiments", "datasets", "methods")
LIST = 'a list of patterns, such as ["DSPP-*"]'

Setting = dict[str, Any]


@dataclass(frozen=True)
class Rule:
    """What a protocol sets for the units that match."""

    experiments: tuple[str, ...] = ("*",)
    datasets: tuple[str, ...] = ("*",)
    methods: tuple[str, ...] = ("*",)
    splits: int | None = None
    set: Mapping[str, Any] | None = None
    grid: Mapping[str, Sequence[Any]] | None = None
    sweep: Mapping[str, Sequence[Any]] | None = None

    def applies(self, experiment: str, dataset: str, method: str) -> bool:
        """Whether the rule matches a unit."""
        named = zip((experiment, dataset, method), (self.experiments, self.datasets, self.methods), strict=True)
        return all(any(fnmatchcase(value, pattern) for pattern in patterns) for value, patterns in named)


@dataclass(frozen=True)
class Protocol:
    """Rules and the name they are reported under."""

    name: str
    rules: tuple[Rule, ...]
    parts: tuple[int, ...] = (15, 3, 2)  # rows for training, test, validation

    def splits(self, experiment: str, dataset: str, method: str) -> int:
        """Return how many splits of the rows to run."""
        given = [r.splits for r in self._rules(experiment, dataset, method) if r.splits is not None]
        return given[-1] if given else 1

    def settings(self, experiment: str, dataset: str, method: str) -> list[Setting]:
        """Return every setting to run, each once."""
        fixed: Setting = {}
        grid: dict[str, list[Any]] = {}
        sweep: dict[str, list[Any]] = {}
        for rule in self._rules(experiment, dataset, method):
            for name, value in (rule.set or {}).items():
                fixed[name] = value
                grid.pop(name, None)
            for name, values in (rule.grid or {}).items():
                grid[name] = list(values)
                fixed.pop(name, None)
            sweep.update({name: list(values) for name, values in (rule.sweep or {}).items()})
        combined = [{**fixed, **dict(zip(grid, values, strict=True))} for values in itertools.product(*grid.values())]
        swept = [{**one, name: value} for one in combined for name, values in sweep.items() for value in values]
        return _drop_duplicates(swept or combined)

    def with_rule(self, rule: Rule) -> "Protocol":
        """Return the protocol with one more rule, which takes precedence over the others."""
        return Protocol(self.name, (*self.rules, rule), self.parts)

    def _rules(self, experiment: str, dataset: str, method: str) -> list[Rule]:
        return [rule for rule in self.rules if rule.applies(experiment, dataset, method)]


def read_protocol(name: str) -> Protocol:
    """Read a protocol by name (paper, quick) or by the path of a TOML file.

    Raises:
        InputError: There is no such protocol, or it has an unknown entry.
    """
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        ours = ", ".join(sorted(p.stem for p in FOLDER.glob("*.toml")))
        raise InputError(f"no protocol {name!r}; choose from: {ours}, or give the path of a .toml file")
    try:
        content = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as problem:
        raise InputError(f"{path}: {problem}") from None
    _only(content, {"parts", "rules"}, f"{path}")
    rules = tuple(_rule(entry, f"{path}, rule {i}") for i, entry in enumerate(content.get("rules", []), start=1))
    parts = content.get("parts", [15, 3, 2])
    three = isinstance(parts, list) and len(parts) == 3 and all(type(p) is int and p > 0 for p in parts)
    _expect(three, f"{path}", "parts", content, "three whole numbers above 0: training, test, validation")
    return Protocol(path.stem, rules, tuple(parts))


def _rule(entry: dict[str, Any], place: str) -> Rule:
    parts = ("set", "grid", "sweep")
    _only(entry, {*MATCHERS, "splits", *parts}, place)
    for part in parts:
        _expect(isinstance(entry.get(part, {}), dict), place, part, entry, "a table")
        _only(entry.get(part, {}), SETTINGS, f"{place}, {part}")
    for part in ("grid", "sweep"):
        for name in entry.get(part, {}):
            _expect(isinstance(entry[part][name], list) and entry[part][name], place, name, entry[part], "a list")
    for name in MATCHERS:
        patterns = entry.get(name, [])
        _expect(isinstance(patterns, list) and all(isinstance(p, str) for p in patterns), place, name, entry, LIST)
    _expect(type(entry.get("splits", 1)) is int and entry.get("splits", 1) >= 0, place, "splits", entry, "0 or more")
    values: dict[str, Any] = {name: tuple(value) if name in MATCHERS else value for name, value in entry.items()}
    return Rule(**values)


def canonical(setting: Setting) -> str:
    """Return a text that is equal for equal settings; 1 and 1.0 are the same number."""
    return json.dumps({name: _plain(value) for name, value in setting.items()}, sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _drop_duplicates(settings: list[Setting]) -> list[Setting]:
    return list({canonical(setting): setting for setting in settings}.values())


def _expect(right: object, place: str, name: str, entry: Mapping[str, Any], expected: str) -> None:
    if not right:
        raise InputError(f"{place}: expected {name} to be {expected}, got {entry[name]!r}")


def _only(entry: Mapping[str, Any], known: set[str], place: str) -> None:
    for name in entry:
        if name not in known:
            raise InputError(f"{place}: unknown entry {name!r}; choose from: {', '.join(sorted(known))}")

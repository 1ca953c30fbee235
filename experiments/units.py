"""A unit of work: one method at one setting on one split of one data set, for one experiment."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments import complexity
from experiments.catalogue import Experiment
from experiments.peers import PEERS
from experiments.protocol import OTHER, PEER, Protocol, Setting, canonical


@dataclass(frozen=True)
class Unit:
    """What one line of a results file is about."""

    experiment: str
    dataset: str
    split: int
    method: str
    protocol: str
    parts: tuple[int, ...]  # rows for training, test, validation
    setting: Setting

    @property
    def fit_key(self) -> str:
        """Equal for units that are the same fit, whichever experiment asks for it."""
        return fit_key({**vars(self)})

    @property
    def label(self) -> str:
        """For the progress bar."""
        return f"{self.method} on {self.dataset}, split {self.split}"


def fit_key(record: dict[str, Any]) -> str:
    """Names the fit of a unit or a record: data set, split, method, protocol and setting."""
    named = [record[name] for name in ("dataset", "split", "method", "protocol")]
    return hashlib.sha256(json.dumps([*named, canonical(record["setting"])]).encode()).hexdigest()[:24]


def list_units(
    experiment: Experiment,
    protocol: Protocol,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    splits: int | None = None,
) -> list[Unit]:
    """Every unit of an experiment, the first split of every data set before the second of any.

    Args:
        experiment: which one.
        protocol: its settings.
        datasets: only these, in this order; None: all.
        methods: only these, in this order; None: all.
        splits: how many, instead of what the protocol says.
    """
    name = experiment.name
    units = [
        Unit(name, dataset, split, method, protocol.name, protocol.parts, _own(name, method, setting))
        for dataset in _common(datasets, experiment.datasets)
        for method in _common(methods, experiment.methods)
        for split in range(splits or protocol.splits(name, dataset, method))
        for setting in protocol.settings(name, dataset, method)
    ]
    distinct = {unit.fit_key: unit for unit in units}
    return sorted(distinct.values(), key=lambda unit: unit.split)


def _common(given: Sequence[str] | None, known: Sequence[str]) -> Sequence[str]:
    return known if given is None else [name for name in given if name in known]


def _own(experiment: str, method: str, setting: Setting) -> Setting:
    """The part of a setting that is read, so that records say nothing that had no effect."""
    if experiment == "complexity":
        return {name: setting[name] for name in complexity.SIZES}
    trees = method in PEERS
    common = {"noise_floor", *OTHER}
    return {k: v for k, v in setting.items() if k in common or (k in PEER) == trees}

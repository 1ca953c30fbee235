"""A unit of work: one method at one setting on one split of one data set, for one experiment."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments import complexity
from experiments.catalogue import ENSEMBLE, Experiment
from experiments.peers import PEERS
from experiments.protocol import PEER, Protocol, Setting, canonical


@dataclass(frozen=True)
class Unit:
    """What one line of a results file describes."""

    experiment: str
    dataset: str
    split: int
    method: str
    protocol: str
    parts: tuple[int, ...]  # rows for training, test, validation
    setting: Setting

    @property
    def fit_key(self) -> str:
        """A key that is equal for units of the same fit, whichever experiment needs it."""
        return fit_key({**vars(self)})

    @property
    def label(self) -> str:
        """A label for the progress bar."""
        return f"{self.method} on {self.dataset}, split {self.split}"


def fit_key(record: dict[str, Any]) -> str:
    """Return the key of a fit: a hash of data set, split, method, protocol and setting."""
    named = [record[name] for name in ("dataset", "split", "method", "protocol")]
    return hashlib.sha256(json.dumps([*named, canonical(record["setting"])]).encode()).hexdigest()[:24]


def list_units(
    experiment: Experiment,
    protocol: Protocol,
    datasets: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    splits: int | None = None,
) -> list[Unit]:
    """Return every unit of an experiment, the first split of every data set before the second of any.

    Args:
        experiment: The experiment.
        protocol: Its settings.
        datasets: Only these, in this order; by default all.
        methods: Only these, in this order; by default all.
        splits: Number of splits, instead of the protocol's.
    """
    name = experiment.name
    units = [
        Unit(name, dataset, split, method, protocol.name, protocol.parts, _keep_used(name, method, setting))
        for dataset in _restrict(datasets, experiment.datasets)
        for method in _restrict(methods, experiment.methods)
        for split in range(_count(splits, protocol.splits(name, dataset, method)))
        for setting in protocol.settings(name, dataset, method)
    ]
    distinct = {unit.fit_key: unit for unit in units}
    return sorted(distinct.values(), key=lambda unit: unit.split)


def _count(given: int | None, splits: int) -> int:
    """Return the number of splits; what a protocol leaves out is not run, whatever number is given."""
    return given if given and splits else splits


def _restrict(given: Sequence[str] | None, known: Sequence[str]) -> Sequence[str]:
    return known if given is None else [name for name in given if name in known]


def _keep_used(experiment: str, method: str, setting: Setting) -> Setting:
    """Keep the settings that have an effect, so that records list no others."""
    if experiment == "complexity":
        return {name: setting[name] for name in complexity.SIZES}
    trees = method in PEERS
    common = {"noise_floor", "split_by"}
    if method == ENSEMBLE:
        return {k: v for k, v in setting.items() if k in common}
    return {k: v for k, v in setting.items() if k in common or (k in PEER) == trees}

"""Checkpoints: one file from which a run goes on as if it had never stopped.

A checkpoint holds a state that was good, so that a resumed run would also fall back to the same state.
It knows its data and settings, and refuses others. One process at a time writes it.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dspp import storage
from dspp.config import TrainConfig
from dspp.errors import CheckpointError, InputError
from dspp.packing import pack, unpack
from dspp.presets import Spec
from dspp.training.processes import ProcessGroup
from dspp.training.rows import Rows, Source
from dspp.training.state import RunState
from dspp.upgrade import with_likelihood, with_likelihood_setting

FORMAT, VERSION = "dspp checkpoint", 1


class CheckpointWriter:
    """Writes the checkpoints of one run.

    Args:
        path: the file.
        every: seconds between two of them, at least.
        identity: what the run is made of, from `identify`.
        saved: where an earlier process left this run; None: nowhere.
        notes: what was noticed about the file.
    """

    def __init__(
        self, path: Path, every: float, identity: dict[str, Any], saved: RunState | None, notes: tuple[str, ...] = ()
    ) -> None:
        self.path, self.saved, self.notes = path, saved, notes
        self._every, self._identity = every, identity
        self._written = -math.inf  # so that the first moment is written: a path that does not work shows at once

    def offer(self, state: RunState) -> None:
        """Write `state` if the last one is old enough."""
        if time.monotonic() - self._written >= self._every:
            self.write(state)

    def write(self, state: RunState) -> None:
        """Write `state`.

        Raises:
            CheckpointError: it could not be written; the file from before is still there.
        """
        tensors, run = pack(state)
        header = storage.to_plain({"format": FORMAT, "version": VERSION, **_versions(), **self._identity, "run": run})
        storage.write(self.path, tensors, {**header, "digest": storage.digest(tensors, header)}, CheckpointError)
        self._written = time.monotonic()


@contextmanager
def open_checkpoint(
    path: str | Path, resume: bool, every: float, identity: dict[str, Any]
) -> Iterator[CheckpointWriter]:
    """Own the checkpoint at `path` and, to resume, read it.

    Raises:
        CheckpointError: another process owns it; it is there and `resume` is False; it is damaged or of another run; or
            its folder cannot be written.
    """
    path = Path(path)
    if not path.name:
        raise InputError(f"checkpoint: got {str(path)!r}, expected the path of a file")
    if not every >= 0:
        raise InputError(f"checkpoint_seconds: got {every!r}, expected 0 or more")
    with storage.lock(path):
        if not path.exists():
            yield CheckpointWriter(path, every, identity, None)
        elif resume:
            yield CheckpointWriter(path, every, identity, *_load(path, identity))
        else:
            raise CheckpointError(
                f"{path} is there already; pass resume=True to go on from it, or delete it to start afresh"
            )


class _Reader(CheckpointWriter):
    """What a process has that only reads: the first of its group writes for all."""

    def write(self, state: RunState) -> None:
        """Nothing."""


@contextmanager
def open_for_group(
    path: str | Path, resume: bool, every: float, identity: dict[str, Any], group: ProcessGroup
) -> Iterator[CheckpointWriter]:
    """`open_checkpoint` in the first process of a group; the others read the same file and write nothing.

    Raises:
        CheckpointError: as there, or the file cannot be seen by all processes.
    """
    path = Path(path)
    if group.rank == 0:
        with open_checkpoint(path, resume, every, identity) as writer:
            group.add(float(writer.saved is not None))
            group.wait()  # until all have read it
            yield writer
        return
    saved = group.add(0.0)[0] > 0
    if saved and not path.exists():
        raise CheckpointError(f"{path} cannot be seen by process {group.rank}; put it where all machines see it")
    writer = _Reader(path, every, identity, *(_load(path, identity) if saved else (None,)))
    group.wait()
    yield writer


def identify(
    spec: Spec, config: TrainConfig, features: nn.Module | None, train: Source, val: Rows | None
) -> dict[str, Any]:
    """What a run is made of: its settings, and hashes of the rows as the model sees them and of the user's module."""
    rows = train.content | ({} if val is None else {f"{name}_val": part for name, part in val.content.items()})
    module = None if features is None else storage.digest(features.state_dict(), type(features).__qualname__)
    settings = {"spec": dataclasses.asdict(spec), "features": module, "config": dataclasses.asdict(config)}
    return dict(storage.to_plain({"data": storage.digest(rows, None), **settings}))


# ---------------------------------------------------------------- reading


def _load(path: Path, identity: dict[str, Any]) -> tuple[RunState, tuple[str, ...]]:
    """The moment in the file, and notes on what may keep the run from going on bit for bit."""
    tensors, header = storage.read(path, CheckpointError)
    if header.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint; give the file that fit(checkpoint=...) wrote")
    if header.get("version") != VERSION:
        raise CheckpointError(
            f"{path} has version {header.get('version')} of the format, this dspp reads {VERSION}; go on with the dspp "
            f"that wrote it ({header.get('dspp')}), or delete it to start afresh"
        )
    digest = header.pop("digest", None)
    if digest != storage.digest(tensors, header):
        raise CheckpointError(f"{path} is damaged: its hash does not fit; delete it to start afresh")
    tensors, header = with_likelihood(tensors), {**header, "spec": _current_spec(header.get("spec"))}
    _refuse_another_run(path, header, identity)
    try:
        return unpack(RunState, tensors, header["run"]), _changes(header)
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        raise CheckpointError(f"{path} is not a checkpoint that dspp wrote ({problem!r:.200}); delete it") from None


def _current_spec(spec: Any) -> Any:
    """The settings of a model as they are called now."""
    model = spec.get("model") if isinstance(spec, dict) else None
    return {**spec, "model": with_likelihood_setting(model)} if isinstance(model, dict) else spec


def _refuse_another_run(path: Path, header: dict[str, Any], identity: dict[str, Any]) -> None:
    differs = []
    if header.get("data") != identity["data"]:
        differs.append("the data")
    settings = _differences(header.get("spec"), identity["spec"])
    if header.get("features") != identity["features"]:
        settings.append("the starting weights of the features module, which should be seeded")
    if settings:
        differs.append(f"the model settings ({'; '.join(settings)})")
    training = _differences(header.get("config"), identity["config"])
    if training:
        differs.append(f"the training settings ({'; '.join(training)})")
    if differs:
        raise CheckpointError(
            f"{path} belongs to another run: it differs in {' and '.join(differs)}. Go on with what it was made with, "
            "give another path, or delete it to start afresh"
        )


def _differences(there: Any, here: Any, name: str = "") -> list[str]:
    """`name: value there, value here` for each setting that differs."""
    if isinstance(there, dict) and isinstance(here, dict):
        names = {**there, **here}
        return [text for key in names for text in _differences(there.get(key), here.get(key), key)]
    return [] if there == here else [f"{name}: {there!r} there, {here!r} here"]


def _changes(header: dict[str, Any]) -> tuple[str, ...]:
    """How the run's surroundings differ from those of the process that wrote the checkpoint."""
    return tuple(
        f"begun with {name} {header[name]}, resumed with {name} {now}: the result may differ in the last digits"
        for name, now in _versions().items()
        if header[name] != now
    )


@functools.cache
def _version() -> str:
    try:
        return metadata.version("dspp")
    except metadata.PackageNotFoundError:  # run from its sources
        return "unknown"


def _versions() -> dict[str, Any]:
    return {"dspp": _version(), "torch": str(torch.__version__), "threads": torch.get_num_threads()}

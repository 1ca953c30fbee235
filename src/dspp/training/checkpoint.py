"""Checkpoints: one file from which a run resumes as if it had never stopped.

A checkpoint holds a state known to be good, so a resumed run recovers to the same state as an uninterrupted one.
It records its data and settings and refuses others. Only one process writes it at a time.
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
from dspp.training.rows import Rows, Source
from dspp.training.state import RunState

FORMAT, VERSION = "dspp checkpoint", 1


class CheckpointWriter:
    """Writes the checkpoints of one run.

    Args:
        path: the file.
        every: minimum number of seconds between two checkpoints.
        identity: the data and settings of the run, from `identify`.
        saved: the state an earlier process saved; None if there is none.
        notes: remarks on the file, for the user.
    """

    def __init__(
        self, path: Path, every: float, identity: dict[str, Any], saved: RunState | None, notes: tuple[str, ...] = ()
    ) -> None:
        self.path, self.saved, self.notes = path, saved, notes
        self._every, self._identity = every, identity
        self._written = -math.inf  # so that the first state is written: a path that is not writable fails at once

    def offer(self, state: RunState) -> None:
        """Write `state` if the last checkpoint is at least `every` seconds old."""
        if time.monotonic() - self._written >= self._every:
            self.write(state)

    def write(self, state: RunState) -> None:
        """Write `state`.

        Raises:
            CheckpointError: it could not be written; the previous file is unchanged.
        """
        tensors, run = pack(state)
        header = storage.to_plain({"format": FORMAT, "version": VERSION, **_versions(), **self._identity, "run": run})
        storage.write(self.path, tensors, {**header, "digest": storage.digest(tensors, header)}, CheckpointError)
        self._written = time.monotonic()


@contextmanager
def open_checkpoint(
    path: str | Path, resume: bool, every: float, identity: dict[str, Any]
) -> Iterator[CheckpointWriter]:
    """Lock the checkpoint at `path` and, to resume, read it.

    Raises:
        CheckpointError: another process holds the lock; the file exists and `resume` is False; it is damaged or belongs
            to another run; or its folder is not writable.
    """
    path = Path(path)
    if not path.name:
        raise InputError(f"checkpoint: expected the path of a file, got {str(path)!r}")
    if not every >= 0:
        raise InputError(f"checkpoint_seconds: expected a number >= 0, got {every!r}")
    if path.is_dir():
        raise CheckpointError(
            f"{path} is a folder, such as that of an ensemble; resume with its number of members, choose another path, "
            "or delete it to start afresh"
        )
    with storage.lock(path):
        if not path.exists():
            yield CheckpointWriter(path, every, identity, None)
        elif resume:
            yield CheckpointWriter(path, every, identity, *_load(path, identity))
        else:
            raise CheckpointError(
                f"{path} already exists; pass resume=True to resume from it, or delete it to start afresh"
            )


def identify(
    spec: Spec, config: TrainConfig, features: nn.Module | None, train: Source, val: Rows | None
) -> dict[str, Any]:
    """Return the settings of a run, and hashes of its rows as the model sees them and of the user's module."""
    rows = train.content | ({} if val is None else {f"{name}_val": part for name, part in val.content.items()})
    module = None if features is None else storage.digest(features.state_dict(), type(features).__qualname__)
    settings = {"spec": dataclasses.asdict(spec), "features": module, "config": dataclasses.asdict(config)}
    return dict(storage.to_plain({"data": storage.digest(rows, None), **settings}))


# ---------------------------------------------------------------- reading


def _load(path: Path, identity: dict[str, Any]) -> tuple[RunState, tuple[str, ...]]:
    """Return the state in the file, and notes on what may keep the run from resuming bit for bit."""
    tensors, header = storage.read(path, CheckpointError)
    if header.get("format") != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint; pass a file written by fit(checkpoint=...)")
    if header.get("version") != VERSION:
        raise CheckpointError(
            f"{path}: expected version {VERSION} of the format, got {header.get('version')}; resume with the dspp that "
            f"wrote it ({header.get('dspp')}), or delete it to start afresh"
        )
    digest = header.pop("digest", None)
    if digest != storage.digest(tensors, header):
        raise CheckpointError(f"{path} is damaged: its hash does not match; delete it to start afresh")
    refuse_another_run(path, header, identity)
    try:
        return unpack(RunState, tensors, header["run"]), _changes(header)
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        raise CheckpointError(f"{path} was not written by dspp ({problem!r:.200}); delete it to start afresh") from None


def refuse_another_run(path: Path, header: dict[str, Any], identity: dict[str, Any]) -> None:
    """Raise `CheckpointError` if the header of the checkpoint at `path` identifies another run, and name what differs.

    Another seed holds out other rows, so the data are compared only if the seeds are equal.
    """
    training = _differences(header.get("config"), identity["config"])
    differs = []
    if header.get("data") != identity["data"] and not any(text.startswith("seed: ") for text in training):
        differs.append("the data")
    settings = _differences(header.get("spec"), identity["spec"])
    if header.get("features") != identity["features"]:
        settings.append("the starting weights of the features module, which should be seeded")
    if settings:
        differs.append(f"the model settings ({'; '.join(settings)})")
    if training:
        differs.append(f"the training settings ({'; '.join(training)})")
    members = _differences(header.get("members"), identity.get("members"))
    if members:
        differs.append(f"the members ({'; '.join(members)})")
    if differs:
        raise CheckpointError(
            f"{path} belongs to another run: it differs in {' and '.join(differs)}; resume with the original data and "
            "settings, choose another path, or delete it to start afresh"
        )


def _differences(there: Any, here: Any, name: str = "") -> list[str]:
    """Describe each setting that differs between the checkpoint and this run."""
    if isinstance(there, dict) and isinstance(here, dict):
        names = {**there, **here}
        return [text for key in names for text in _differences(there.get(key), here.get(key), key)]
    return [] if there == here else [f"{name}: {there!r} in the checkpoint, {here!r} here"]


def _changes(header: dict[str, Any]) -> tuple[str, ...]:
    """Describe how versions and threads differ from those of the process that wrote the checkpoint."""
    return tuple(
        f"started with {name} {header[name]}, resumed with {name} {now}: the result may differ in the last digits"
        for name, now in _versions().items()
        if header[name] != now
    )


@functools.cache
def _version() -> str:
    try:
        return metadata.version("dspp")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "unknown"


def _versions() -> dict[str, Any]:
    return {"dspp": _version(), "torch": str(torch.__version__), "threads": torch.get_num_threads()}

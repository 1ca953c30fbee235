"""Checkpoints: one file from which a run resumes as if it had never stopped.

A checkpoint holds a state known to be good, so a resumed run recovers to the same state as an uninterrupted one.
It records its data and settings and refuses others. Only one process writes it at a time.
"""

import dataclasses
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
from dspp.codec import pack, unpack
from dspp.config import TrainConfig
from dspp.errors import CheckpointError, InputError
from dspp.presets import Spec
from dspp.training.rows import Rows
from dspp.training.state import State

FORMAT, VERSION = "dspp checkpoint", 1
# The settings in an `Identity`, as errors name them.
PARTS = {"spec": "the model settings", "config": "the training settings", "members": "the members"}


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Where and how often the state of a run is written.

    Attributes:
        path: the file.
        resume: whether to resume from it if it exists; it is otherwise refused.
        seconds: minimum time between two checkpoints; one is written at the start and one at the end.

    Example:
        >>> from dspp.training import Checkpoint
        >>> Checkpoint("model.checkpoint", seconds=600)
        Checkpoint(path='model.checkpoint', resume=True, seconds=600)
    """

    path: str | Path
    resume: bool = True
    seconds: float = 60.0

    def __post_init__(self) -> None:
        if not Path(self.path).name:
            raise InputError(f"checkpoint: expected the path of a file, got {str(self.path)!r}")
        if not self.seconds >= 0:
            raise InputError(f"checkpoint: expected seconds >= 0, got {self.seconds!r}")


@dataclasses.dataclass(frozen=True)
class Identity:
    """What identifies a run: hashes of its rows and of the user's module, and settings."""

    data: str
    spec: Spec
    features: str | None
    config: TrainConfig
    members: dict[str, Any] | None = None  # of an ensemble, how many of each kind


@dataclasses.dataclass(frozen=True)
class Saved:
    """The content of a checkpoint."""

    dspp: str  # versions
    torch: str
    threads: int
    identity: Identity
    state: State

    @property
    def changes(self) -> tuple[str, ...]:
        """Notes on what may keep a run that resumes in this process from doing so bit for bit."""
        return tuple(
            f"started with {name} {before}, resumed with {name} {now}: the result may differ in the last digits"
            for name, now in _versions().items()
            if (before := getattr(self, name)) != now
        )


def _versions() -> dict[str, Any]:
    return {
        "dspp": metadata.version("dspp"),
        "torch": str(torch.__version__),
        "threads": torch.get_num_threads(),
    }


class CheckpointFile:
    """The checkpoint of one run, locked by `open_checkpoint`."""

    def __init__(self, path: Path, seconds: float, identity: Identity) -> None:
        self.path, self._seconds, self._identity = path, seconds, identity
        self._written = -math.inf  # so that the first state is written: a path that is not writable fails at once

    def read(self) -> Saved | None:
        """Return what an earlier process saved, if there is a file.

        Raises:
            CheckpointError: it is damaged, or belongs to another run.
        """
        if not self.path.exists():
            return None
        tensors, header = storage.read(self.path, CheckpointError, (FORMAT, VERSION))
        _refuse_another_run(self.path, header.get("identity"), self._identity)
        try:
            return unpack(Saved, tensors, header)
        except (InputError, RecursionError) as problem:
            raise CheckpointError(
                f"{self.path} was not written by dspp ({problem!s:.200}); delete it to start afresh"
            ) from None

    def offer(self, state: State) -> None:
        """Write `state` if the last checkpoint is old enough."""
        if time.monotonic() - self._written >= self._seconds:
            self.write(state)

    def write(self, state: State) -> None:
        """Write `state`.

        Raises:
            CheckpointError: it could not be written; the previous file is unchanged.
        """
        tensors, header = pack(Saved(**_versions(), identity=self._identity, state=state))
        storage.write(self.path, tensors, {"format": FORMAT, "version": VERSION, **header}, CheckpointError)
        self._written = time.monotonic()


@contextmanager
def open_checkpoint(checkpoint: Checkpoint | str | Path, identity: Identity) -> Iterator[CheckpointFile]:
    """Lock a checkpoint.

    Raises:
        CheckpointError: another process holds the lock; the file exists and is not to be resumed; or its folder is not
            writable.
    """
    options = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
    path = Path(options.path)
    if path.is_dir():
        raise CheckpointError(
            f"{path} is a folder, such as that of an ensemble; resume with its number of members, choose another path, "
            "or delete it to start afresh"
        )
    with storage.lock(path):
        if path.exists() and not options.resume:
            raise CheckpointError(
                f"{path} already exists; pass resume=True to resume from it, or delete it to start afresh"
            )
        yield CheckpointFile(path, options.seconds, identity)


# ---------------------------------------------------------------- identity


def identify(
    spec: Spec, config: TrainConfig, features: nn.Module | None, rows: Rows, validation: Rows | None
) -> Identity:
    """Return the settings of a run, and hashes of its rows as the model sees them and of the user's module."""
    held_out = {} if validation is None else validation.tensors()
    tensors = rows.tensors() | {f"{name}_val": part for name, part in held_out.items()}
    module = None if features is None else storage.digest(features.state_dict(), type(features).__qualname__)
    return Identity(storage.digest(tensors, None), spec, module, config)


def claim(path: Path, identity: Identity) -> None:
    """Write what identifies the run of an ensemble into a file of its folder.

    Raises:
        CheckpointError: the file exists and is that of another run.
    """
    if path.exists():
        _refuse_another_run(path.parent, storage.read(path, CheckpointError)[1], identity)
    else:
        storage.write(path, {}, pack(identity)[1], CheckpointError)


def _refuse_another_run(path: Path, there: Any, identity: Identity) -> None:
    """Raise `CheckpointError` if a checkpoint has another identity, and name what differs.

    Another seed holds out other rows, so the data are compared only if the seeds are equal.
    """
    here = pack(identity)[1]
    there = there if isinstance(there, dict) else {}
    settings = {name: _differences(there.get(name), here[name]) for name in PARTS}
    if there.get("features") != here["features"]:
        settings["spec"].append("the starting weights of the features module, which should be seeded")
    differs = [f"{PARTS[name]} ({'; '.join(texts)})" for name, texts in settings.items() if texts]
    if there.get("data") != here["data"] and not any(text.startswith("seed: ") for text in settings["config"]):
        differs.insert(0, "the data")
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

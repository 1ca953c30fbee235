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
from dspp.codec import pack, unpack
from dspp.config import TrainConfig
from dspp.errors import CheckpointError, InputError
from dspp.presets import Spec
from dspp.training.rows import Rows
from dspp.training.state import State

FORMAT, VERSION = "dspp checkpoint", 1


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


class CheckpointFile:
    """The checkpoint of one run, locked.

    Args:
        path: the file.
        every: minimum number of seconds between two checkpoints.
        identity: the data and settings of the run, from `identify`.
        saved: the state an earlier process saved; None if there is none.
        notes: remarks on the file, for the user.
    """

    def __init__(
        self, path: Path, every: float, identity: Identity, saved: State | None, notes: tuple[str, ...] = ()
    ) -> None:
        self.path, self.saved, self.notes = path, saved, notes
        self._every, self._identity = every, identity
        self._written = -math.inf  # so that the first state is written: a path that is not writable fails at once

    def offer(self, state: State) -> None:
        """Write `state` if the last checkpoint is at least `every` seconds old."""
        if time.monotonic() - self._written >= self._every:
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
    """Lock a checkpoint and, to resume, read it.

    Raises:
        CheckpointError: another process holds the lock; the file exists and is not to be resumed; it is damaged or
            belongs to another run; or its folder is not writable.
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
        saved = _load(path, identity) if path.exists() else (None, ())
        yield CheckpointFile(path, options.seconds, identity, *saved)


def identify(
    spec: Spec, config: TrainConfig, features: nn.Module | None, rows: Rows, validation: Rows | None
) -> Identity:
    """Return the settings of a run, and hashes of its rows as the model sees them and of the user's module."""
    held_out = {} if validation is None else validation.tensors()
    tensors = rows.tensors() | {f"{name}_val": part for name, part in held_out.items()}
    module = None if features is None else storage.digest(features.state_dict(), type(features).__qualname__)
    return Identity(storage.digest(tensors, None), spec, module, config)


# ---------------------------------------------------------------- reading


def _load(path: Path, identity: Identity) -> tuple[State, tuple[str, ...]]:
    """Return the state in the file, and notes on what may keep the run from resuming bit for bit."""
    tensors, header = storage.read(path, CheckpointError)
    form, version = header.get("format"), header.get("version")
    if form != FORMAT:
        raise CheckpointError(f"{path} is not a checkpoint; pass a file written by fit(checkpoint=...)")
    if version != VERSION:
        raise CheckpointError(
            f"{path}: expected version {VERSION} of the format, got {version!s:.20}; resume with the dspp that wrote "
            f"it ({header.get('dspp')!s:.20}), or delete it to start afresh"
        )
    storage.check_digest(path, tensors, header, CheckpointError)
    del header["format"], header["version"]
    refuse_another_run(path, header.get("identity"), identity)
    try:
        saved = unpack(Saved, tensors, header)
    except (InputError, RecursionError) as problem:
        raise CheckpointError(f"{path} was not written by dspp ({problem!s:.200}); delete it to start afresh") from None
    return saved.state, _changes(saved)


def write_identity(path: Path, identity: Identity) -> None:
    """Write what identifies the run of an ensemble."""
    storage.write(path, {}, pack(identity)[1], CheckpointError)


def check_identity(path: Path, identity: Identity) -> None:
    """Raise `CheckpointError` if `write_identity` wrote another one."""
    refuse_another_run(path.parent, storage.read(path, CheckpointError)[1], identity)


def refuse_another_run(path: Path, there: Any, identity: Identity) -> None:
    """Raise `CheckpointError` if a checkpoint has another identity, and name what differs.

    Another seed holds out other rows, so the data are compared only if the seeds are equal.
    """
    here = pack(identity)[1]
    there = there if isinstance(there, dict) else {}
    training = _differences(there.get("config"), here["config"])
    differs = []
    if there.get("data") != here["data"] and not any(text.startswith("seed: ") for text in training):
        differs.append("the data")
    settings = _differences(there.get("spec"), here["spec"])
    if there.get("features") != here["features"]:
        settings.append("the starting weights of the features module, which should be seeded")
    if settings:
        differs.append(f"the model settings ({'; '.join(settings)})")
    if training:
        differs.append(f"the training settings ({'; '.join(training)})")
    members = _differences(there.get("members"), here["members"])
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


def _changes(saved: Saved) -> tuple[str, ...]:
    """Describe how versions and threads differ from those of the process that wrote the checkpoint."""
    before = {name: getattr(saved, name) for name in _versions()}
    return tuple(
        f"started with {name} {before[name]}, resumed with {name} {now}: the result may differ in the last digits"
        for name, now in _versions().items()
        if before[name] != now
    )


@functools.cache
def _version() -> str:
    try:
        return metadata.version("dspp")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "unknown"


def _versions() -> dict[str, Any]:
    return {"dspp": _version(), "torch": str(torch.__version__), "threads": torch.get_num_threads()}

"""Checkpoints: one file from which a run goes on as if it had never stopped.

A checkpoint holds a moment at which the state was good, so that a resumed run would also fall back to the same state.
It knows its data and settings, and refuses others. One process at a time writes it.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dspp import storage
from dspp.config import TrainConfig
from dspp.errors import CheckpointError, InputError
from dspp.presets import Spec
from dspp.training.rows import Rows, Source
from dspp.training.state import Epoch, Recovery, Snapshot
from dspp.training.team import Team

FORMAT, VERSION = "dspp checkpoint", 1


@dataclass(frozen=True)
class Moment:
    """Where a whole run stands: the start in hand, and what the earlier ones have shown."""

    current: Snapshot
    trying: bool  # whether starts are still being compared
    best: Snapshot | None  # the best of the starts tried before this one
    scores: tuple[float, ...]  # training NLL of each start tried
    total_steps: int  # at which the schedule ends
    seconds: float  # spent so far
    notes: tuple[str, ...] = ()
    stopped: str | None = None  # why training ended; None: it has not
    budget: float | None = None  # of time, for which total_steps was planned


class Keeper:
    """Writes the checkpoints of one run.

    Args:
        path: the file.
        every: seconds between two of them, at least.
        identity: what the run is made of, from `identify`.
        saved: where an earlier process left this run; None: nowhere.
        notes: what was noticed about the file.
    """

    def __init__(
        self, path: Path, every: float, identity: dict[str, Any], saved: Moment | None, notes: tuple[str, ...] = ()
    ) -> None:
        self.path, self.saved, self.notes = path, saved, notes
        self._every, self._identity = every, identity
        self._written = -math.inf  # so that the first moment is written: a path that does not work shows at once

    def offer(self, moment: Moment) -> None:
        """Write `moment` if the last one is old enough."""
        if time.monotonic() - self._written >= self._every:
            self.write(moment)

    def write(self, moment: Moment) -> None:
        """Write `moment`.

        Raises:
            CheckpointError: it could not be written; the file from before is still there.
        """
        tensors, run = _pack(moment)
        header = storage.to_plain({"format": FORMAT, "version": VERSION, **_versions(), **self._identity, "run": run})
        storage.write(self.path, tensors, {**header, "digest": storage.digest(tensors, header)}, CheckpointError)
        self._written = time.monotonic()


@contextmanager
def open_checkpoint(path: str | Path, resume: bool, every: float, identity: dict[str, Any]) -> Iterator[Keeper]:
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
            yield Keeper(path, every, identity, None)
        elif resume:
            yield Keeper(path, every, identity, *_load(path, identity))
        else:
            raise CheckpointError(
                f"{path} is there already; pass resume=True to go on from it, or delete it to start afresh"
            )


class _Reader(Keeper):
    """The keeper of a process that only reads: the first of its team writes for all."""

    def write(self, moment: Moment) -> None:
        """Nothing."""


@contextmanager
def open_for_team(
    path: str | Path, resume: bool, every: float, identity: dict[str, Any], team: Team
) -> Iterator[Keeper]:
    """`open_checkpoint` in the first process of a team; the others read the same file and write nothing.

    Raises:
        CheckpointError: as there, or the file cannot be seen by all processes.
    """
    path = Path(path)
    if team.rank == 0:
        with open_checkpoint(path, resume, every, identity) as keeper:
            team.add(float(keeper.saved is not None))
            team.wait()  # until all have read it
            yield keeper
        return
    saved = team.add(0.0)[0] > 0
    if saved and not path.exists():
        raise CheckpointError(f"{path} cannot be seen by process {team.rank}; put it where all machines see it")
    keeper = _Reader(path, every, identity, *(_load(path, identity) if saved else (None,)))
    team.wait()
    yield keeper


def identify(
    spec: Spec, config: TrainConfig, features: nn.Module | None, train: Source, val: Rows | None
) -> dict[str, Any]:
    """What a run is made of: its settings, and hashes of the rows as the model sees them and of the user's module."""
    rows = train.content | ({} if val is None else {"x_val": val.x, "y_val": val.y})
    module = None if features is None else storage.digest(features.state_dict(), type(features).__qualname__)
    settings = {"spec": dataclasses.asdict(spec), "features": module, "config": dataclasses.asdict(config)}
    return dict(storage.to_plain({"data": storage.digest(rows, None), **settings}))


# ---------------------------------------------------------------- reading


def _load(path: Path, identity: dict[str, Any]) -> tuple[Moment, tuple[str, ...]]:
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
    _refuse_another_run(path, header, identity)
    try:
        return _unpack(tensors, header["run"]), _changes(header)
    except (KeyError, TypeError, ValueError, IndexError) as problem:
        raise CheckpointError(f"{path} is not a checkpoint that dspp wrote ({problem!r:.200}); delete it") from None


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


# ---------------------------------------------------------------- packing


def _pack(moment: Moment) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors: dict[str, Tensor] = {}
    run = {f.name: getattr(moment, f.name) for f in dataclasses.fields(moment)}
    for name in ("current", "best"):
        snapshot = run[name]
        if snapshot is not None:
            run[name] = _pack_snapshot(snapshot, name, tensors)
    return tensors, run


def _pack_snapshot(snapshot: Snapshot, name: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """The snapshot's numbers; its tensors go to `tensors`, under names that begin with `name`."""
    fields = {f.name: getattr(snapshot, f.name) for f in dataclasses.fields(snapshot)}
    for part in ("weights", "best_weights"):
        tensors |= {f"{name}.{part}.{key}": tensor for key, tensor in (fields.pop(part) or {}).items()}
    for number, state in fields.pop("moments").items():
        tensors |= {f"{name}.moments.{number}.{key}": tensor for key, tensor in state.items()}
    fields["history"] = [dataclasses.asdict(epoch) for epoch in snapshot.history]
    fields["recoveries"] = [dataclasses.asdict(recovery) for recovery in snapshot.recoveries]
    return fields


def _unpack(tensors: Mapping[str, Tensor], run: dict[str, Any]) -> Moment:
    best = run["best"]
    return Moment(
        current=_unpack_snapshot(tensors, run["current"], "current"),
        trying=run["trying"],
        best=None if best is None else _unpack_snapshot(tensors, best, "best"),
        scores=tuple(map(float, run["scores"])),
        total_steps=run["total_steps"],
        seconds=run["seconds"],
        notes=tuple(run["notes"]),
        stopped=run["stopped"],
        budget=run.get("budget"),
    )


def _unpack_snapshot(tensors: Mapping[str, Tensor], fields: dict[str, Any], name: str) -> Snapshot:
    moments: dict[int, dict[str, Tensor]] = {}
    for key, tensor in _under(tensors, f"{name}.moments.").items():
        number, _, what = key.partition(".")
        moments.setdefault(int(number), {})[what] = tensor
    numbers: dict[str, Any] = {
        "best_nll": float(fields["best_nll"]),
        "history": tuple(_epoch(epoch) for epoch in fields["history"]),
        "recoveries": tuple(Recovery(**recovery) for recovery in fields["recoveries"]),
        "values": tuple((step, float(value)) for step, value in fields["values"]),
        "nlls": tuple((step, float(value)) for step, value in fields["nlls"]),
        "climbs": tuple(fields["climbs"]),
    }
    best_weights = _under(tensors, f"{name}.best_weights.") or None
    weights = _under(tensors, f"{name}.weights.")
    return Snapshot(**{**fields, **numbers}, weights=weights, moments=moments, best_weights=best_weights)


def _epoch(fields: dict[str, Any]) -> Epoch:
    means = {name: float(fields[name]) for name in ("objective", "train_nll")}
    return Epoch(**{**fields, **means})


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@functools.cache
def _version() -> str:
    try:
        return metadata.version("dspp")
    except metadata.PackageNotFoundError:  # run from its sources
        return "unknown"


def _versions() -> dict[str, Any]:
    return {"dspp": _version(), "torch": str(torch.__version__), "threads": torch.get_num_threads()}

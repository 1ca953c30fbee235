"""The front door of training: check what was given, own the checkpoint, train."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
from torch import nn

from dspp.config import TrainConfig
from dspp.data.checks import Table
from dspp.errors import InputError
from dspp.model import Model
from dspp.presets import Spec
from dspp.training.checkpoint import Keeper, identify, open_for_team
from dspp.training.clock import Clock
from dspp.training.loop import FitResult, Trainer
from dspp.training.rows import Rows, Source, training_rows, validation_rows
from dspp.training.state import Epoch
from dspp.training.step import nll
from dspp.training.team import Team


def fit(
    spec: Spec,
    X: Table | Source,
    y: Table | None = None,
    *,
    X_val: Table | None = None,
    y_val: Table | None = None,
    config: TrainConfig | None = None,
    features: nn.Module | None = None,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    checkpoint_seconds: float = 60.0,
    time_budget: float | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    clock: Callable[[], float] | None = None,
    snapshot_steps: int = 50,
    restart_rows: int = 5000,
    score: Callable[[Model, Rows], float] | None = None,
) -> FitResult:
    """Build the model of `spec` on standardised rows and train it.

    Where torch.distributed has a process group, its processes train one model together: all make this same call, each
    takes a part of every batch, and the first alone writes the checkpoint and shows progress.

    Args:
        spec: the model and its objective, from `presets.preset`.
        X: training rows (N, D), standardised; or, without y, a `Source` of rows with their targets, such as `DiskRows`.
        y: targets, (N,) for one output or (N, T) for several, standardised; NaN among several: not observed.
        X_val: validation rows; the state with the best validation NLL is kept.
        y_val: their targets.
        config: how to train.
        features: a module of your own in front of the first layer.
        progress: whether to show a bar on standard error; None: only on a terminal.
        checkpoint: a file to go on from, should this process end. It must not be there yet, unless `resume`.
        resume: go on from `checkpoint`, bit for bit at the same number of threads; begin when it is not there, so that
            the same call can be repeated until it returns. A finished run returns its result at once.
        checkpoint_seconds: between two checkpoints, at least; there is one at the beginning and one at the end.
        time_budget: seconds for the whole run, those before a resume included. The schedule is shortened so that it
            ends in time, restarts that would take too much of it are left out, and at the deadline training ends.
        on_epoch: called after each epoch, those of trial starts excepted, and again for an epoch that is repeated after
            a resume or a recovery. What it raises ends training; the checkpoint stays.
        should_stop: asked after each step; True ends training with `TrainingInterrupted`. See `signals`.
        clock: returns the time in seconds, from which the time budget and the seconds of the result and of each epoch
            are taken; None: `time.perf_counter`.
        snapshot_steps: a state to return to after a non-finite number, or to resume from, is kept at the start of each
            epoch and every `snapshot_steps` steps.
        restart_rows: number of training rows, at most, on which the starts are compared.
        score: scores a model on validation rows, and on training rows to compare starts: the mean over the rows given,
            lower is better. None: NLL per row. Where several processes train together, each scores a part of the rows.

    Raises:
        InputError: the data or settings cannot be used.
        TrainingDiverged: non-finite numbers came back more than `config.max_recoveries` times.
        CheckpointError: the checkpoint cannot be written, or is not one of this run.
        TrainingInterrupted: `should_stop` said so. What was done so far is in the checkpoint.
    """
    config = config or TrainConfig()
    if resume and checkpoint is None:
        raise InputError("resume=True needs the file to go on from: pass checkpoint=<path>")
    for name, count in {"snapshot_steps": snapshot_steps, "restart_rows": restart_rows}.items():
        if count < 1:
            raise InputError(f"{name}: expected 1 or more, got {count}")
    now = clock or time.perf_counter
    team = Team.current(now)
    team.wait()  # the time that all share begins here
    shared_clock = Clock(time_budget, team.now if team.size > 1 else now)  # the budget is for all of this
    with _threads(config.threads):
        train = training_rows(X, y, spec, config)
        val = validation_rows(X_val, y_val, train, spec, config)
        kept: AbstractContextManager[Keeper | None] = nullcontext()
        if checkpoint is not None:
            identity = identify(spec, config, features, train, val)
            kept = open_for_team(checkpoint, resume, checkpoint_seconds, identity, team)
        with kept as keeper:
            trainer = Trainer(
                spec,
                config,
                train,
                val,
                features,
                shared_clock,
                keeper,
                on_epoch,
                should_stop,
                team,
                snapshot_steps,
                restart_rows,
                score or nll,
            )
            return trainer.run(progress if team.rank == 0 else False)


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)

"""Entry point of training: check the input, open the checkpoint, choose a start, train it to the end."""

import inspect
import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NoReturn

import torch
from torch import nn

from dspp.config import TrainConfig
from dspp.errors import InputError, NumericalError, TrainingInterrupted
from dspp.gp.threads import num_threads
from dspp.history import Epoch
from dspp.model import Model
from dspp.numbers import count_epochs
from dspp.objectives import OBJECTIVES
from dspp.presets import Spec
from dspp.progress import ProgressBar, open_bar
from dspp.table.checks import Array
from dspp.training.checkpoint import CheckpointWriter, identify, open_checkpoint
from dspp.training.clock import Clock
from dspp.training.loop import Loop, Stage
from dspp.training.plan import Plan
from dspp.training.recovery import GoodState
from dspp.training.restarts import Restarts, new_start, trial_rows
from dspp.training.result import FitResult, make_result
from dspp.training.rows import Rows, Source, training_rows, validation_rows
from dspp.training.state import RunState, Start, StartState
from dspp.training.step import Score, TrainingStep, finite_score, nll

SMOOTHING = 0.9  # of the training NLL on the progress bar


def fit(
    spec: Spec,
    X: Array | Source,
    y: Array | None = None,
    *,
    weights: Array | None = None,
    X_val: Array | None = None,
    y_val: Array | None = None,
    weights_val: Array | None = None,
    config: TrainConfig | None = None,
    features: nn.Module | None = None,
    progress: bool | ProgressBar | None = None,
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

    Args:
        spec: the model and its objective, from `presets.preset`.
        X: training rows (N, D), standardised; or, without y, a `Source` of rows with their targets, such as `DiskRows`.
        y: targets, (N,) for one output or (N, T) for several, standardised; with several, NaN means "not observed".
        weights: one number ≥ 0 per row, of which only the ratios matter; a row of weight 0 is left out.
        X_val: validation rows; the state with the best validation NLL is kept.
        y_val: their targets.
        weights_val: their weights.
        config: training settings.
        features: a custom module in front of the first layer.
        progress: whether to show a progress bar on standard error; None: only on a terminal. Or a bar that is shown.
        checkpoint: file from which to resume if this process ends. It must not exist yet, unless `resume` is True.
        resume: whether to resume from `checkpoint`, bit for bit with the same number of threads. If the file does not
            exist, a new run starts, so the same call can be repeated until it returns. A finished run returns its
            result at once.
        checkpoint_seconds: minimum time between two checkpoints; one is written at the start and one at the end.
        time_budget: seconds for the whole run, including those before a resume. The schedule is shortened to end in
            time, restarts that would take too long are skipped, and training ends at the deadline.
        on_epoch: called after each epoch except those of trial starts, and again for an epoch that is repeated after a
            resume or a recovery. An exception it raises ends training; the checkpoint stays.
        should_stop: called after each step; True ends training with `TrainingInterrupted`. See `signals`.
        clock: returns the time in seconds, for the time budget and for the seconds reported; None:
            `time.perf_counter`.
        snapshot_steps: a state to recover to or resume from is kept at the start of each epoch and every
            `snapshot_steps` steps.
        restart_rows: maximum number of training rows on which starts are compared.
        score: scores a model on validation rows, and on training rows to compare starts: the mean over the rows given,
            lower is better; None: NLL per row.

    Raises:
        InputError: the data or settings cannot be used.
        TrainingDiverged: non-finite numbers occurred more than `config.max_recoveries` times.
        CheckpointError: the checkpoint cannot be written, or belongs to another run.
        TrainingInterrupted: `should_stop` returned True. The progress so far is in the checkpoint.

    Example:
        >>> import numpy as np
        >>> from dspp import TrainConfig, fit, preset
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> result = fit(preset("dspp", inducing=8, width=2), X, X[:, 0], config=TrainConfig(epochs=2, restarts=1))
        >>> result.model.predictor()(X).mean.shape
        torch.Size([60])
    """
    config = config or TrainConfig()
    if resume and checkpoint is None:
        raise InputError("resume=True: expected a file to resume from, got none; pass checkpoint=<path>")
    for name, count in {"snapshot_steps": snapshot_steps, "restart_rows": restart_rows}.items():
        if count < 1:
            raise InputError(f"{name}: expected at least 1, got {count}")
    now = clock or time.perf_counter
    budget = Clock(time_budget, now)  # which includes the checks below
    with _threads(config.threads):
        train = training_rows(X, y, weights, spec, config)
        val = validation_rows(X_val, y_val, weights_val, train, spec, config)
        _check_objective(spec.objective.name, train)
        opened: AbstractContextManager[CheckpointWriter | None] = nullcontext()
        if checkpoint is not None:
            identity = identify(spec, config, features, train, val)
            opened = open_checkpoint(checkpoint, resume, checkpoint_seconds, identity)
        with opened as writer:
            run = Run(
                spec=spec,
                config=config,
                train=train,
                val=val,
                features=features,
                clock=budget,
                now=now,
                writer=writer,
                on_epoch=on_epoch,
                should_stop=should_stop,
                snapshot_steps=snapshot_steps,
                restart_rows=restart_rows,
                score=score or nll,
            )
            return run.finish(progress)


@dataclass
class Run:
    """One call of `fit`, which documents the fields."""

    spec: Spec
    config: TrainConfig
    train: Source
    val: Rows | None
    features: nn.Module | None
    clock: Clock
    now: Callable[[], float]
    writer: CheckpointWriter | None
    on_epoch: Callable[[Epoch], None] | None
    should_stop: Callable[[], bool] | None
    snapshot_steps: int
    restart_rows: int
    score: Score
    notes: tuple[str, ...] = ()  # for the user

    def __post_init__(self) -> None:
        config, rows = self.config, len(self.train)
        self.clock.validation = 0 if self.val is None else len(self.val) / config.batch_size
        self.plan = Plan(config, math.ceil(rows / config.batch_size), self.clock)
        self.good = GoodState(self.writer)
        self.score_rows = partial(finite_score, score=self.score)
        step = TrainingStep(self.spec.objective, config, rows, self.features is not None)
        self.loop = Loop(config, self.train, self.val, step, self.plan, self.score_rows, self._after_step)

    def finish(self, progress: bool | ProgressBar | None) -> FitResult:
        """Choose a start and train it to the end, from the beginning or from the state an earlier process saved."""
        saved = self._restore_progress()
        if saved is not None and saved.stopped is not None:
            start = self._start_at(saved.current.trial, saved.current)
            return make_result(start, saved, self.plan.steps_per_epoch, self.trial_rows)
        steps = self.plan.total_steps + (self.config.restarts - 1) * self.plan.trial_steps
        with open_bar(progress, steps, smoothing=SMOOTHING) as self.bar, self._checkpoint_at_the_end():
            self.restarts = Restarts(
                self.config,
                self.plan,
                start_at=self._start_at,
                train=self._train,
                score=lambda start: self.score_rows(start.model, self.trial_rows),
                note=self._note,
                saved=saved,
            )
            start = self.restarts.choose()
            before = max(len(self.restarts.scores) - 1, 0) * self.plan.trial_steps
            stage = Stage(
                "training",
                last_step=lambda: self.plan.total_steps,
                trying=False,
                steps_before=before,
                on_epoch=self.on_epoch,
                final_rows=self.trial_rows if self.val is None else None,
            )
            for _ in self._train(start, stage):
                pass
            stopped = self._why_stopped(start)
            self.good.state = end = replace(self._state_with(start, stage), stopped=stopped)
        return make_result(start, end, self.plan.steps_per_epoch, self.trial_rows)

    @cached_property
    def trial_rows(self) -> Rows:
        """The rows on which starts are compared."""
        return trial_rows(self.train.start, self.restart_rows, self.config.seed)

    # ------------------------------------------------------------ around the loop

    def _train(self, start: Start, stage: Stage) -> Iterator[None]:
        """Run the loop, recovering to a good state when a number is not finite; yield before each step."""
        is_new = True
        while True:
            try:
                for _ in self.loop.run(start, stage):
                    if is_new or self._is_due(start.state.step):
                        self.plan.revise(start.state.step, stage.trying)
                        if not stage.trying:
                            self.bar.expect(stage.steps_before + self.plan.total_steps)
                        self.good.keep(self._state_with(start, stage))
                        is_new = False
                    yield
                return
            except NumericalError as error:
                self.good.recover(start, str(error), self.config)

    def _is_due(self, step: int) -> bool:
        """Return whether it is time to keep a state."""
        last = self.good.last_step
        assert last is not None
        at_epoch = step % self.plan.steps_per_epoch == 0 and step != last
        return at_epoch or step - last >= self.snapshot_steps or self.plan.is_due

    def _after_step(self, start: Start, stage: Stage, rows: int, train_nll: float | None) -> None:
        self.good.confirm()
        self.clock.end_step()
        step = start.state.step
        epoch = (step - 1) // self.plan.steps_per_epoch + 1
        self.bar.update(stage.steps_before + step, f"{stage.label}, epoch {epoch}", rows=rows, score=train_nll)
        if self.should_stop is not None and self.should_stop():
            self._stop(f"training was stopped at step {step}")

    def _state_with(self, start: Start, stage: Stage) -> RunState:
        """Return the state of the whole run, with `start` as its current start."""
        return RunState(
            current=start.capture(),
            trying=stage.trying,
            best=self.restarts.best_state if stage.trying else None,
            scores=self.restarts.scores,
            total_steps=self.plan.total_steps,
            seconds=self.clock.spent,
            notes=self.notes,
            budget=self.clock.budget,
        )

    @contextmanager
    def _checkpoint_at_the_end(self) -> Iterator[None]:
        """Write the last good state when the run ends or is stopped."""
        try:
            yield
        except KeyboardInterrupt:
            self.good.write(self.clock.spent)
            raise
        self.good.write(self.clock.spent)

    def _stop(self, what: str) -> NoReturn:
        """Write the last good state and end training."""
        self.good.write(self.clock.spent)
        if self.writer is None:
            raise TrainingInterrupted(f"{what}; there is no checkpoint, so progress is lost: pass checkpoint=<path>")
        raise TrainingInterrupted(f"{what}; resume from {self.writer.path} with the same call and resume=True")

    # ------------------------------------------------------------ beginning and end

    def _restore_progress(self) -> RunState | None:
        """Return the state an earlier process saved, if any, after restoring its plan, notes and time spent."""
        saved = None if self.writer is None else self.writer.saved
        if self.writer is None or saved is None:
            return None
        if self.clock.budget is not None and saved.budget == self.clock.budget:  # otherwise its plan does not apply
            self.plan.total_steps = saved.total_steps
        self.notes = tuple(dict.fromkeys(saved.notes if saved.stopped else saved.notes + self.writer.notes))
        self.clock.add_spent(saved.seconds)
        return saved

    def _start_at(self, trial: int, state: StartState | None) -> Start:
        """Return start number `trial`, new or resumed from a state."""
        start = new_start(self.spec, self.config, self.train.start, self.features, self.now, trial)
        if state is not None:
            start.resume(state)
        return start

    def _note(self, text: str) -> None:
        self.notes += (text,)

    def _why_stopped(self, start: Start) -> str:
        if start.state.step >= self.plan.full_steps:
            return "finished"
        if self.loop.has_stalled(start):
            return "early"
        done = start.state.step / self.plan.steps_per_epoch
        self._note(
            f"the time budget of {self.clock.budget:g} s allowed {done:.3g} of {count_epochs(self.config.epochs)}"
        )
        return "time"


def _check_objective(name: str, train: Source) -> None:
    """Raise `InputError` if rows have weights and an objective of the user does not take them."""
    weighted = isinstance(train, Rows) and train.weights is not None
    if weighted and "weights" not in inspect.signature(OBJECTIVES[name]).parameters:
        raise InputError(f"the objective {name!r} expected rows without weights, got some; give it a parameter weights")


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        num_threads()  # raises before torch would hang
        yield
    finally:
        torch.set_num_threads(before)

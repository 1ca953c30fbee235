"""Training from top to bottom: starts are compared, and the best is trained by laps to the end.

A lap is a part of an epoch. The state at its beginning becomes the good state once a step from it has succeeded, since
the step before may have spoilt the model. If a number is not finite, training returns to the good state and halves the
learning rate; a checkpoint is the good state on disk.
"""

import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor, nn

from dspp.batches import batch_indices
from dspp.config import TrainConfig
from dspp.errors import InputError, NumericalError, TrainingDiverged, TrainingInterrupted
from dspp.gp.threads import num_threads
from dspp.history import Epoch, Recovery
from dspp.numbers import count_epochs
from dspp.objectives import OBJECTIVES
from dspp.presets import Spec
from dspp.progress import ProgressBar, open_bar
from dspp.training.budget import Budget
from dspp.training.checkpoint import Checkpoint, CheckpointFile, identify, open_checkpoint
from dspp.training.learner import NLL_STEPS, Learner
from dspp.training.result import FitResult, make_result
from dspp.training.rows import Rows, training_rows, validation_rows
from dspp.training.score import finite_nll, trial_rows
from dspp.training.state import State

LAP_STEPS = 200  # at most, of a lap
SMOOTHING = 0.9  # of the training NLL on the progress bar


def fit(
    spec: Spec,
    rows: Rows,
    validation: Rows | None = None,
    *,
    config: TrainConfig | None = None,
    features: nn.Module | None = None,
    budget: Budget | float | None = None,
    checkpoint: Checkpoint | str | Path | None = None,
    progress: bool | ProgressBar | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> FitResult:
    """Build the model of `spec` on standardised rows and train it.

    Args:
        spec: the model and its objective, from `presets.preset`.
        rows: the training rows, standardised; see `Rows.of`.
        validation: validation rows; the state with the best validation NLL is kept.
        config: training settings.
        features: a custom module in front of the first layer.
        budget: seconds for the whole run, including those before a resume; see `Budget`.
        checkpoint: the file from which the run resumes if this process ends, bit for bit with the same number of
            threads, so the same call can be repeated until it returns; see `Checkpoint`. A finished run returns its
            result at once.
        progress: whether to show a progress bar on standard error; None: only on a terminal. Or a bar that is shown.
        on_epoch: called after each epoch except those of trial starts, and again for an epoch that is repeated after a
            resume or a recovery. An exception it raises ends training; the checkpoint stays.
        should_stop: called after each step; True ends training with `TrainingInterrupted`. See `signals`.

    Raises:
        InputError: the data or settings cannot be used.
        TrainingDiverged: non-finite numbers occurred more than `config.max_recoveries` times.
        CheckpointError: the checkpoint cannot be written, or belongs to another run.
        TrainingInterrupted: `should_stop` returned True. The progress so far is in the checkpoint.

    Example:
        >>> import numpy as np
        >>> from dspp import Rows, TrainConfig, fit, preset
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> rows, config = Rows.of(X, X[:, 0]), TrainConfig(epochs=2, restarts=1)
        >>> result = fit(preset("dspp", inducing=8, width=2), rows, config=config)
        >>> result.model.predictor()(X).mean.shape
        torch.Size([60])
    """
    config = config or TrainConfig()
    budget = budget if isinstance(budget, Budget) else Budget(budget)  # which includes the checks below
    with _threads(config.threads):
        rows = training_rows(rows, spec, config)
        validation = None if validation is None else validation_rows(validation, rows, spec, config)
        _check_objective(spec.objective.name, rows)
        opened: AbstractContextManager[CheckpointFile | None] = nullcontext()
        if checkpoint is not None:
            opened = open_checkpoint(checkpoint, identify(spec, config, features, rows, validation))
        with opened as file:
            run = Run(spec, config, rows, validation, features, budget, file, on_epoch, should_stop)
            return run.finish(progress)


class Run:
    """One call of `fit`, which documents the arguments."""

    def __init__(
        self,
        spec: Spec,
        config: TrainConfig,
        rows: Rows,
        validation: Rows | None,
        features: nn.Module | None,
        budget: Budget,
        file: CheckpointFile | None,
        on_epoch: Callable[[Epoch], None] | None,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self._config, self._rows, self._validation, self._budget, self._file = config, rows, validation, budget, file
        self._on_epoch, self._should_stop = on_epoch, should_stop
        self._make_learner = partial(Learner, spec, config, rows, features)
        self._steps_per_epoch = math.ceil(len(rows) / config.batch_size)
        self._full_steps = config.epochs * self._steps_per_epoch
        self._trial_steps = min(config.restart_epochs, config.epochs) * self._steps_per_epoch
        self._state = State(self._full_steps, budget.seconds, trying=config.restarts > 1)
        self._good: State | None = None  # to return to, and to resume from
        self._kept: State | None = None  # good once a step from it succeeds
        self._epoch_begin = budget.clock()
        self._batches: tuple[tuple[int, int], list[Tensor]] = (-1, -1), []  # of a start and an epoch
        if file is None or file.saved is None:
            self._learner = self._make_learner(0)
        else:
            self._resume(file.saved, file.notes)

    def _resume(self, saved: State, notes: tuple[str, ...]) -> None:
        """Continue from the state that an earlier process saved."""
        self._learner = self._learner_of(saved)
        self._set_state(saved)
        self._budget.add_spent(saved.seconds)
        if saved.stopped is None:
            if saved.budget is None or saved.budget != self._budget.seconds:  # its plan does not apply
                self._state.total_steps = self._full_steps
            self._state.budget = self._budget.seconds
            self._state.notes = tuple(dict.fromkeys(saved.notes + notes))

    def finish(self, progress: bool | ProgressBar | None) -> FitResult:
        """Choose a start and train it to the end."""
        if self._state.stopped is None:
            steps = self._state.total_steps + (self._config.restarts - 1) * self._trial_steps
            with open_bar(progress, steps, smoothing=SMOOTHING) as self._bar:
                try:
                    self._choose_start()
                    self._train()
                    self._state.stopped = self._why_stopped()
                    self._good = self._state = self._capture()
                except KeyboardInterrupt:
                    self._write()
                    raise
                self._write()
        return make_result(self._learner.model, self._state, self._steps_per_epoch, self._trial_rows)

    # ------------------------------------------------------------ starts

    def _choose_start(self) -> None:
        """Try all starts for a few epochs, and continue with the one of the lowest training NLL.

        Raises:
            TrainingDiverged: all starts diverged.
        """
        if not self._state.trying:
            return
        count = self._config.restarts
        best = None if self._state.best is None else self._learner_of(self._state.best)
        for trial in range(len(self._state.scores), count):
            if trial != self._state.trial:
                self._begin_start(trial)
            score = math.nan  # of a start that diverges
            try:
                if not self._train():
                    self._note(f"is too short to try {count} starts; only the first was trained")
                    self._state.trying = False
                    return
                score = finite_nll(self._learner.model, self._trial_rows)
            except (NumericalError, TrainingDiverged):
                pass
            if score < min((s for s in self._state.scores if math.isfinite(s)), default=math.inf):
                best, self._state.best = self._learner, replace(self._capture(), best=None)
            self._state.scores += (score,)
            if trial + 1 < count and not self._budget.has_room_for_another_start(trial + 1):
                self._note(f"allowed {trial + 1} of {count} starts to be tried")
                break
        tried, found = self._state, self._state.best
        if best is None or found is None:
            raise TrainingDiverged(
                f"all {len(tried.scores)} starts diverged; lower learning_rate (now {self._config.learning_rate}), "
                "and check that the rows are standardised"
            )
        self._learner = best
        self._set_state(replace(found, trying=False, scores=tried.scores, notes=tried.notes))

    def _begin_start(self, trial: int) -> None:
        """Begin another start."""
        run = self._state
        self._learner = self._make_learner(trial)
        self._state = State(
            run.total_steps, run.budget, notes=run.notes, trying=True, scores=run.scores, best=run.best, trial=trial
        )

    def _learner_of(self, state: State) -> Learner:
        learner = self._make_learner(state.trial)
        learner.resume(state)
        return learner

    @cached_property
    def _trial_rows(self) -> Rows:
        return trial_rows(self._rows, self._config.seed)

    # ------------------------------------------------------------ laps

    def _train(self) -> bool:
        """Train the current start to its last step, until it stalls, or until the time is over.

        Returns:
            False if the time budget turns out to be too short to try starts.
        """
        while not self._is_done:
            state = self._state
            trials = self._config.restarts * self._trial_steps
            if state.trying and state.trial == 0 and not self._budget.has_room_for_starts(trials):
                return False
            try:
                self._make_lap(state)
            except NumericalError as problem:
                self._recover(str(problem))
        return True

    @property
    def _last_step(self) -> int:
        """The step at which the current start ends; a plan may change it."""
        return self._trial_steps if self._state.trying else self._state.total_steps

    @property
    def _is_done(self) -> bool:
        state = self._state
        is_over = self._budget.is_over and state.epoch_steps == 0 and len(state.history) > 0
        return is_over or state.step >= self._last_step or self._has_stalled

    @property
    def _has_stalled(self) -> bool:
        """Whether the validation NLL has not improved for `config.patience` epochs."""
        patience, best = self._config.patience, self._state.best_epoch
        return patience is not None and best is not None and len(self._state.history) - best >= patience

    def _make_lap(self, state: State) -> None:
        """Train for a part of an epoch, and end the epoch if it was the last part.

        Raises:
            NumericalError: a number is not finite.
        """
        budget, epoch = self._budget, state.step // self._steps_per_epoch
        if state.epoch_steps == 0:
            self._epoch_begin = budget.clock()
        budget.begin_step()
        self._plan()
        self._keep()
        end = min((epoch + 1) * self._steps_per_epoch, self._last_step)
        lap_end, batches = min(state.step + LAP_STEPS, end), self._batches_of(epoch)
        for step in range(state.step, lap_end):
            self._make_step(state, batches[step % self._steps_per_epoch])
            if self._must_end_epoch or budget.is_plan_due:
                break
        if state.step == end or self._must_end_epoch:
            self._end_epoch(state, epoch + 1)

    @property
    def _must_end_epoch(self) -> bool:
        """Whether the time is over; at least one step is made, however small the budget."""
        return self._state.epoch_steps > 0 and self._budget.is_over

    def _plan(self) -> None:
        """Let the schedule end when time runs out, as estimated now; trials are too short for this."""
        if self._budget.can_plan:
            batches = 0 if self._validation is None else len(self._validation) / self._config.batch_size
            left = self._budget.steps_left(self._steps_per_epoch, batches)
            if not self._state.trying:
                self._state.total_steps = min(self._full_steps, self._state.step + left)
        if not self._state.trying:
            self._bar.expect(self._steps_before + self._state.total_steps)

    def _batches_of(self, epoch: int) -> list[Tensor]:
        """Return the row numbers of the batches of an epoch."""
        number = self._state.trial, epoch
        if self._batches[0] != number:
            batches = batch_indices(len(self._rows), self._config.batch_size, self._learner.seed, epoch)
            self._batches = number, [batch.to(self._rows.x.device) for batch in batches]
        return self._batches[1]

    def _make_step(self, state: State, numbers: Tensor) -> None:
        """Make a step on the rows of these numbers, after which the state kept is good."""
        with_nll = state.step % self._steps_per_epoch % NLL_STEPS == 0
        objective, nll = self._learner.step(self._rows[numbers], state, with_nll)
        state.step += 1
        state.epoch_steps += 1
        state.objective_sum += objective
        if nll is not None:
            state.nll_steps += 1
            state.nll_sum += nll
        self._confirm()
        self._budget.end_step()
        label = f"start {state.trial + 1} of {self._config.restarts}" if state.trying else "training"
        epoch = (state.step - 1) // self._steps_per_epoch + 1
        self._bar.update(self._steps_before + state.step, f"{label}, epoch {epoch}", rows=len(numbers), score=nll)
        if self._should_stop is not None and self._should_stop():
            self._stop(f"training was stopped at step {state.step}")

    @property
    def _steps_before(self) -> int:
        """Steps of earlier starts, for the progress bar."""
        earlier = self._state.trial if self._state.trying else max(len(self._state.scores) - 1, 0)
        return earlier * self._trial_steps

    def _end_epoch(self, state: State, number: int) -> None:
        """Record a finished epoch, and keep the weights if they are the best so far."""
        val_nll = self._validate()
        epoch = Epoch(
            number,
            objective=state.objective_sum / state.epoch_steps,
            train_nll=state.nll_sum / state.nll_steps,
            val_nll=val_nll,
            learning_rate=self._learner.rate,
            seconds=self._budget.clock() - self._epoch_begin,
        )
        state.history += (epoch,)
        state.epoch_steps, state.objective_sum, state.nll_steps, state.nll_sum = 0, 0.0, 0, 0.0
        if val_nll is not None and val_nll < state.best_nll:
            state.best_nll, state.best_epoch, state.best_weights = val_nll, number, self._learner.copy_weights()
        if self._on_epoch is not None and not state.trying:
            self._on_epoch(epoch)
        self._budget.end_epoch()

    def _validate(self) -> float | None:
        """Return the validation NLL; without validation rows, the NLL of training rows must be finite at the end."""
        if self._validation is not None:
            return finite_nll(self._learner.model, self._validation)
        if not self._state.trying and (self._state.step >= self._last_step or self._budget.is_over):
            finite_nll(self._learner.model, self._trial_rows)
        return None

    def _why_stopped(self) -> str:
        if self._state.step >= self._full_steps:
            return "finished"
        if self._has_stalled:
            return "early"
        made = self._state.step / self._steps_per_epoch
        self._note(f"allowed {made:.3g} of {count_epochs(self._config.epochs)}")
        return "time"

    def _note(self, what: str) -> None:
        self._state.notes += (f"the time budget of {self._budget.seconds:g} s {what}",)

    # ------------------------------------------------------------ good states

    def _capture(self) -> State:
        """Return a copy of the state, with tensors."""
        seconds, epoch_seconds = self._budget.spent, self._budget.clock() - self._epoch_begin
        return replace(self._state, seconds=seconds, epoch_seconds=epoch_seconds, **self._learner.capture())

    def _set_state(self, state: State) -> None:
        """Count on from a captured state."""
        self._state = replace(state, weights={}, moments={})
        self._epoch_begin = self._budget.clock() - state.epoch_seconds

    def _keep(self) -> None:
        """Keep the current state, which is good once a step from it succeeds; the first of a start is taken as good."""
        self._kept = self._capture()
        if self._good is None or self._good.trial != self._kept.trial:
            self._confirm()

    def _confirm(self) -> None:
        """Take the state kept last as good."""
        if self._kept is not None:
            self._good, self._kept = self._kept, None
            if self._file is not None:
                self._file.offer(self._good)

    def _recover(self, reason: str) -> None:
        """Return to the good state and halve the learning rate.

        Raises:
            TrainingDiverged: this has happened more than `config.max_recoveries` times.
        """
        failed, good, limit = self._state, self._good, self._config.max_recoveries
        assert good is not None
        self._kept, factor = None, 0.5 * failed.rate_factor
        self._learner.load(good)
        self._set_state(good)
        self._state.rate_factor = factor
        self._state.recoveries = (*failed.recoveries, Recovery(failed.step, good.step, reason, factor))
        if len(self._state.recoveries) > limit:
            raise TrainingDiverged(
                f"step {failed.step}: {reason}; {limit} returns to a good state did not help. Lower learning_rate (now "
                f"{self._config.learning_rate}), or use dtype='float64'"
            )

    def _write(self) -> None:
        """Write the good state to the checkpoint, if any; a resumed run repeats the steps after it."""
        if self._file is not None and self._good is not None:
            seconds = self._good.seconds if self._good.stopped else self._budget.spent
            self._file.write(replace(self._good, seconds=seconds))

    def _stop(self, what: str) -> NoReturn:
        """Write the good state and end training."""
        self._write()
        if self._file is None:
            raise TrainingInterrupted(f"{what}; there is no checkpoint, so progress is lost: pass checkpoint=<path>")
        raise TrainingInterrupted(f"{what}; resume from {self._file.path} with the same call")


def _check_objective(name: str, rows: Rows) -> None:
    """Raise `InputError` if rows have weights and an objective of the user does not take them."""
    if rows.weights is not None and "weights" not in inspect.signature(OBJECTIVES[name]).parameters:
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

"""Training from top to bottom: starts are compared, and the best is trained by laps to the end.

A lap is a part of an epoch. The state at its beginning becomes the good state once a step from it has succeeded, since
the step before may have spoilt the model. If a number is not finite, training returns to the good state and halves the
learning rate; a checkpoint is the good state on disk.
"""

import copy
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dspp.batches import batch_indices, derive_seed
from dspp.config import TrainConfig
from dspp.errors import CheckpointError, InputError, NumericalError, TrainingDiverged, TrainingInterrupted
from dspp.gp.threads import use_threads
from dspp.history import Epoch, Recovery
from dspp.model import Model, build
from dspp.numbers import count_epochs
from dspp.objectives import OBJECTIVES, average
from dspp.presets import Spec
from dspp.progress import ProgressBar, open_bar
from dspp.training.adam import Adam
from dspp.training.budget import Budget
from dspp.training.checkpoint import Checkpoint, CheckpointFile, identify, open_checkpoint
from dspp.training.result import FitResult, make_result
from dspp.training.rows import Rows, place_rows
from dspp.training.schedules import SCHEDULES
from dspp.training.state import State, Tensors

LAP_STEPS = 200  # at most, of a lap
NLL_STEPS = 5  # the training NLL is computed every so many steps, from the first of an epoch
MAX_TRIAL_ROWS = 5_000  # training rows on which starts are compared
TRIAL_ROWS = 3  # derives the seed of these rows
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
    with use_threads(config.threads):
        rows, validation = place_rows(rows, validation, spec, config)
        _check_objective(spec.objective.name, rows)
        opened: AbstractContextManager[CheckpointFile | None] = nullcontext()
        if checkpoint is not None:
            opened = open_checkpoint(checkpoint, identify(spec, config, features, rows, validation))
        with opened as file:
            run = Run(spec, config, rows, validation, features, budget, file, on_epoch, should_stop)
            return run.finish(progress)


@dataclass(eq=False)
class Run:
    """One call of `fit`, which documents the fields."""

    spec: Spec
    config: TrainConfig
    rows: Rows
    validation: Rows | None
    features: nn.Module | None
    budget: Budget
    file: CheckpointFile | None
    on_epoch: Callable[[Epoch], None] | None
    should_stop: Callable[[], bool] | None

    def __post_init__(self) -> None:
        self._steps_per_epoch = math.ceil(len(self.rows) / self.config.batch_size)
        self._full_steps = self.config.epochs * self._steps_per_epoch
        self._trial_steps = min(self.config.restart_epochs, self.config.epochs) * self._steps_per_epoch
        self._trial: int | None = None  # the start that the model is of
        self._good: State | None = None  # to return to, and to resume from
        self._epoch_begin = self.budget.clock()
        self._state = State(self._full_steps, self.budget.seconds, trying=self.config.restarts > 1)
        saved = None if self.file is None else self.file.read()
        if saved is None:
            self._go_to(self._state)
        else:
            self._resume(saved.state, saved.changes)

    def _resume(self, saved: State, notes: tuple[str, ...]) -> None:
        """Continue from the state that an earlier process saved.

        Raises:
            CheckpointError: it is of another model.
        """
        try:
            self._go_to(saved)
        except (RuntimeError, ValueError, KeyError) as problem:
            raise CheckpointError(
                f"the checkpoint is of another model ({problem!s:.200}); delete it to start afresh"
            ) from None
        self.budget.add_spent(saved.seconds)
        if saved.stopped is None:
            if saved.budget is None or saved.budget != self.budget.seconds:  # its plan does not apply
                self._state.total_steps = self._full_steps
            self._state.budget = self.budget.seconds
            self._state.notes = tuple(dict.fromkeys(saved.notes + notes))

    def finish(self, progress: bool | ProgressBar | None) -> FitResult:
        """Choose a start and train it to the end."""
        if self._state.stopped is None:
            steps = self._state.total_steps + (self.config.restarts - 1) * self._trial_steps
            with open_bar(progress, steps, smoothing=SMOOTHING) as self._bar:
                try:
                    self._choose_start()
                    self._train_start()
                    self._state.stopped = self._why_done()
                    if self._state.stopped == "time":
                        made = self._state.step / self._steps_per_epoch
                        self._note(f"allowed {made:.3g} of {count_epochs(self.config.epochs)}")
                    self._good = self._state = self._capture()
                except KeyboardInterrupt:
                    self._write()
                    raise
                self._write()
        return make_result(self._model, self._state, self._steps_per_epoch, self._trial_rows)

    # ------------------------------------------------------------ starts

    def _choose_start(self) -> None:
        """Try all starts for a few epochs, and continue with the one of the lowest training NLL.

        Raises:
            TrainingDiverged: all starts diverged.
        """
        if not self._state.trying:
            return
        count = self.config.restarts
        for trial in range(len(self._state.scores), count):
            if trial != self._state.trial:
                run = self._state
                new = State(run.total_steps, run.budget, notes=run.notes, trying=True, scores=run.scores, trial=trial)
                self._go_to(replace(new, best=run.best))
            score = math.nan  # of a start that diverges
            try:
                self._train_start()
                if not self._state.trying:  # there was no time for others
                    return
                score = _finite_nll(self._model, self._trial_rows)
            except (NumericalError, TrainingDiverged):
                if not self._state.trying:
                    raise
            if score < min((s for s in self._state.scores if math.isfinite(s)), default=math.inf):
                self._state.best = replace(self._capture(), best=None)
            self._state.scores += (score,)
            if trial + 1 < count and not self.budget.has_room_for_another_start(trial + 1):
                self._note(f"allowed {trial + 1} of {count} starts to be tried")
                break
        tried, best = self._state, self._state.best
        if best is None:
            raise TrainingDiverged(
                f"all {len(tried.scores)} starts diverged; lower learning_rate (now {self.config.learning_rate}), "
                "and check that the rows are standardised"
            )
        self._go_to(replace(best, trying=False, scores=tried.scores, notes=tried.notes))

    def _go_to(self, state: State) -> None:
        """Continue from a state, which has no weights at the beginning of a start.

        Increases of the jitter stay counted if the start is the same.
        """
        if state.trial != self._trial:
            self._trial, self._seed = state.trial, start_seed(self.config.seed, state.trial)
            features = copy.deepcopy(self.features)
            outputs = self.spec.outputs or self.rows.y.shape[1]
            self._model = build(self.spec.model, self.rows.x, outputs, self._seed, features).train()
            self._adam = Adam(self._model, self.config.weight_decay)
        if state.weights:
            self._model.load_state_dict(state.weights)
            self._adam.load(state.moments)
            for layer, count in zip(self._model.gp_layers, state.jitter_increases, strict=True):
                layer.jitter_increases = max(layer.jitter_increases, count)
        self._state = replace(state)

    @cached_property
    def _trial_rows(self) -> Rows:
        """The rows on which starts are compared, drawn at random because the table may be sorted."""
        rows = self.rows
        if len(rows) <= MAX_TRIAL_ROWS:
            return rows
        generator = torch.Generator().manual_seed(derive_seed(self.config.seed, TRIAL_ROWS))
        return rows[torch.randperm(len(rows), generator=generator)[:MAX_TRIAL_ROWS].to(rows.x.device)]

    # ------------------------------------------------------------ epochs and laps

    def _train_start(self) -> None:
        """Train the current start to its last step, until it stalls, or until the time is over."""
        while self._why_done() is None:
            try:
                self._train_epoch(len(self._state.history))
            except NumericalError as problem:
                self._recover(str(problem))

    def _why_done(self) -> str | None:
        """Return why the current start is not trained any further, or None; under a plan, it ends with the time."""
        state, patience, epochs = self._state, self.config.patience, len(self._state.history)
        if state.step >= self._full_steps:
            return "finished"
        if patience is not None and state.best_epoch is not None and epochs - state.best_epoch >= patience:
            return "early"
        is_over = self.budget.is_over and 0 < state.step <= epochs * self._steps_per_epoch
        return "time" if is_over or state.step >= self._last_step else None

    @property
    def _last_step(self) -> int:
        """The step at which the current start ends; a plan may change it."""
        return self._trial_steps if self._state.trying else self._state.total_steps

    def _train_epoch(self, epoch: int) -> None:
        """Train by laps to the end of an epoch, or until the time is over; at least one step is made."""
        state, budget, first = self._state, self.budget, epoch * self._steps_per_epoch
        batches = batch_indices(len(self.rows), self.config.batch_size, self._seed, epoch)
        self._epoch_begin = budget.clock() - (state.epoch_seconds if state.step > first else 0.0)
        while True:
            budget.begin_step()
            self._plan()
            kept, end = self._capture(), min(first + self._steps_per_epoch, self._last_step)
            if self._good is None or self._good.trial != kept.trial:  # the first of a start is taken as good
                self._accept(kept)
            for step in range(state.step, min(state.step + LAP_STEPS, end)):
                batch = self.rows[batches[step - first].to(self.rows.x.device)]
                nll = self._make_step(batch, with_nll=(step - first) % NLL_STEPS == 0)
                if kept is not self._good:
                    self._accept(kept)
                budget.end_step()
                label = f"start {state.trial + 1} of {self.config.restarts}" if state.trying else "training"
                done = self._steps_before + state.step
                self._bar.update(done, f"{label}, epoch {epoch + 1}", rows=len(batch), score=nll)
                if self.should_stop is not None and self.should_stop():
                    self._stop(f"training was stopped at step {state.step}")
                if budget.is_over or budget.is_plan_due:
                    break
            if state.step >= end or budget.is_over:
                break
        self._end_epoch(epoch + 1, state.step - first)

    def _plan(self) -> None:
        """Let the schedule end when time runs out, as estimated now; without time to try all starts, train the first.

        Trials are too short for a plan.
        """
        if not self.budget.can_plan:
            return
        state, count = self._state, self.config.restarts
        if state.trying and state.trial == 0 and not self.budget.has_room_for_starts(count * self._trial_steps):
            self._note(f"is too short to try {count} starts; only the first was trained")
            state.trying = False
        batches = 0 if self.validation is None else len(self.validation) / self.config.batch_size
        left = self.budget.steps_left(self._steps_per_epoch, batches)
        if not state.trying:
            state.total_steps = min(self._full_steps, state.step + left)
            self._bar.expect(self._steps_before + state.total_steps)

    def _make_step(self, batch: Rows, with_nll: bool) -> float | None:
        """Make a step on a batch, and return the NLL of the batch before it, if asked for.

        Samples, dropout and batches are a pure function of (seed, step), so training can continue from any step.

        Raises:
            NumericalError: a number is not finite; the parameters are unchanged.
        """
        state, config, network = self._state, self.config, self._model.features
        done = state.step / state.total_steps
        self._rate = config.learning_rate * SCHEDULES[config.schedule](done, config) * state.rate_factor
        if network is not None:
            _freeze_statistics(network, done >= config.freeze_statistics)
        value, nll = self._score(batch, with_nll)
        for parameter in self._adam.parameters:
            parameter.grad = None
        (-value).backward()
        gradients = [parameter.grad for parameter in self._adam.parameters if parameter.grad is not None]
        objective, norm = value.item(), nn.utils.get_total_norm(gradients).item()
        if not math.isfinite(objective) or not math.isfinite(norm):
            raise NumericalError(f"objective {objective}, gradient norm {norm}")
        self._adam.step(self._rate)
        state.step += 1
        state.objective_sum += objective
        state.nll_sum += nll or 0.0
        return nll

    def _score(self, batch: Rows, with_nll: bool) -> tuple[Tensor, float | None]:
        """Return the objective of the batch, to differentiate, and its NLL."""
        model, objective, step = self._model, self.spec.objective, self._state.step
        if len(batch) == 1 and any(isinstance(module, _BatchNorm) for module in model.modules()):
            raise InputError(
                "a network with batch normalisation expected at least 2 rows, got 1 of a batch of 1; pass more rows, "
                "or another batch_size"
            )
        own = self.features is not None  # whose dropout needs torch's global generator
        with _randomness(derive_seed(self._seed, step, 2), batch.x.device) if own else nullcontext():
            latent = model(batch.x, noise_seed=derive_seed(self._seed, step, 1))
        options: dict[str, Any] = {"beta": objective.beta, "gamma": objective.gamma}
        if batch.weights is not None:
            options["weights"] = batch.weights
        value = OBJECTIVES[objective.name](model.likelihood, latent, batch.y, model.kl(), len(self.rows), **options)
        if not with_nll:
            return value, None
        with torch.no_grad():
            return value, -average(model.likelihood.log_prob(latent, batch.y), batch.weights).item()

    def _end_epoch(self, number: int, steps: int) -> None:
        """Record an epoch of so many steps, and keep the weights if they are the best so far."""
        state = self._state
        epoch = Epoch(
            number,
            objective=state.objective_sum / steps,
            train_nll=state.nll_sum / math.ceil(steps / NLL_STEPS),
            val_nll=self._validate(),
            learning_rate=self._rate,
            seconds=self.budget.clock() - self._epoch_begin,
        )
        state.history += (epoch,)
        state.epoch_seconds = state.objective_sum = state.nll_sum = 0.0
        if state.best_epoch == number:
            state.best_weights = _copies(self._model.state_dict())
        if self.on_epoch is not None and not state.trying:
            self.on_epoch(epoch)
        self.budget.end_epoch()

    def _validate(self) -> float | None:
        """Return the validation NLL; without validation rows, the NLL of training rows must be finite at the end."""
        if self.validation is not None:
            return _finite_nll(self._model, self.validation)
        if not self._state.trying and (self._state.step >= self._last_step or self.budget.is_over):
            _finite_nll(self._model, self._trial_rows)
        return None

    def _note(self, what: str) -> None:
        self._state.notes += (f"the time budget of {self.budget.seconds:g} s {what}",)

    @property
    def _steps_before(self) -> int:
        """Steps of earlier starts, for the progress bar."""
        return self._trial_steps * max(len(self._state.scores) - (not self._state.trying), 0)

    # ------------------------------------------------------------ good states

    def _capture(self) -> State:
        """Return a copy of the state, with tensors."""
        return replace(
            self._state,
            seconds=self.budget.spent,
            epoch_seconds=self.budget.clock() - self._epoch_begin,
            weights=_copies(self._model.state_dict()),
            moments=_copies(self._adam.moments),
            jitter_increases=tuple(layer.jitter_increases for layer in self._model.gp_layers),
        )

    def _accept(self, state: State) -> None:
        """Take a state as good."""
        self._good = state
        if self.file is not None:
            self.file.offer(state)

    def _recover(self, reason: str) -> None:
        """Return to the good state and halve the learning rate.

        Raises:
            TrainingDiverged: this has happened more than `config.max_recoveries` times.
        """
        failed, good, limit = self._state, self._good, self.config.max_recoveries
        assert good is not None
        self._go_to(good)
        self._state.rate_factor = 0.5 * failed.rate_factor
        self._state.recoveries = (
            *failed.recoveries,
            Recovery(failed.step, good.step, reason, self._state.rate_factor),
        )
        if len(self._state.recoveries) > limit:
            raise TrainingDiverged(
                f"step {failed.step}: {reason}; {limit} returns to a good state did not help. Lower learning_rate (now "
                f"{self.config.learning_rate}), or use dtype='float64'"
            )

    def _write(self) -> None:
        """Write the good state to the checkpoint, if any; a resumed run repeats the steps after it."""
        if self.file is not None and self._good is not None:
            seconds = self._good.seconds if self._good.stopped else self.budget.spent
            self.file.write(replace(self._good, seconds=seconds))

    def _stop(self, what: str) -> NoReturn:
        """Write the good state and end training."""
        self._write()
        if self.file is None:
            raise TrainingInterrupted(f"{what}; there is no checkpoint, so progress is lost: pass checkpoint=<path>")
        raise TrainingInterrupted(f"{what}; resume from {self.file.path} with the same call")


# ---------------------------------------------------------------- helpers


def start_seed(seed: int, trial: int) -> int:
    """Return the seed of start number `trial`."""
    return derive_seed(seed, trial if trial < TRIAL_ROWS else trial + 1)


def nll(model: Model, rows: Rows) -> float:
    """Return the NLL per row of the predictive distribution, by which training compares models."""
    log_density = model.predictor().predict(rows.x).log_prob(rows.y).double()
    return -float(average(log_density, None if rows.weights is None else rows.weights.double()))


def _finite_nll(model: Model, rows: Rows) -> float:
    """Return the NLL per row.

    Raises:
        NumericalError: it is not finite.
    """
    value = nll(model, rows)
    if not math.isfinite(value):
        raise NumericalError(f"the NLL of {len(rows)} rows is {value}")
    return value


def _copies(tensors: Mapping[str, Tensor]) -> Tensors:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


def _freeze_statistics(network: nn.Module, frozen: bool) -> None:
    """Let batch normalisation use its running statistics, as predictions do, or else those of the batch.

    The statistics of a batch vary from step to step. A density that is trained with them to the end is as wide as this
    noise, which predictions do not have: their intervals are too wide. (docs/decisions.md)
    """
    for module in network.modules():
        if isinstance(module, _BatchNorm):
            module.train(not frozen)


@contextmanager
def _randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generator, and restore it afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def _check_objective(name: str, rows: Rows) -> None:
    """Raise `InputError` if rows have weights and an objective of the user does not take them."""
    if rows.weights is not None and "weights" not in inspect.signature(OBJECTIVES[name]).parameters:
        raise InputError(f"the objective {name!r} expected rows without weights, got some; give it a parameter weights")

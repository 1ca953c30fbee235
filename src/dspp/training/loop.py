"""Fitting a model: restarts, steps, recovery from non-finite numbers, validation.

Batches and samples are a pure function of (seed, step), so the same seed gives the same bits, and a run can go on from
any step.
"""

import copy
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dspp.config import ObjectiveConfig, TrainConfig
from dspp.data.batches import batch_indices, derive_seed
from dspp.data.checks import Table, check_width, check_Xy
from dspp.errors import InputError, NumericalError, TrainingDiverged
from dspp.model import Model, build
from dspp.objectives import OBJECTIVES
from dspp.presets import Spec
from dspp.training.progress import ProgressBar
from dspp.training.schedules import SCHEDULES
from dspp.training.state import (
    Epoch,
    Recovery,
    TrainState,
    copy_weights,
    make_optimizer,
    restore,
    take_snapshot,
)

SNAPSHOT_STEPS = 50  # a good state is kept at every epoch and at every so many steps
NLL_STEPS = 5  # the training NLL is taken at every so many steps
RESTART_ROWS = 5000  # rows on which restarts are compared


@dataclass(frozen=True)
class FitResult:
    """A trained model and how it got there."""

    model: Model
    history: tuple[Epoch, ...]
    restart_nll: tuple[float, ...]  # training NLL of each restart; the smallest was trained on
    best_epoch: int | None  # the epoch whose state was kept, when there were validation rows
    recoveries: tuple[Recovery, ...]
    jitter_climbs: int
    notes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class _Rows:
    """Rows on the device, in the model's dtype."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.x)


def fit(
    spec: Spec,
    X: Table,
    y: Table,
    *,
    X_val: Table | None = None,
    y_val: Table | None = None,
    config: TrainConfig | None = None,
    features: nn.Module | None = None,
    progress: bool | None = None,
) -> FitResult:
    """Build the model of `spec` on standardised rows and train it.

    Args:
        spec: the model and its objective, from `presets.preset`.
        X: training rows (N, D), standardised.
        y: targets, (N,) for one output or (N, T) for several, standardised.
        X_val: validation rows; the state with the best validation NLL is kept.
        y_val: their targets.
        config: how to train.
        features: a module of your own in front of the first layer.
        progress: whether to show a bar on standard error; None: only on a terminal.

    Raises:
        InputError: the data cannot be used.
        TrainingDiverged: non-finite numbers came back more than `config.max_recoveries` times.
    """
    config = config or TrainConfig()
    with _threads(config.threads):
        train = _rows(X, y, spec, config)
        val = None if X_val is None and y_val is None else _rows(X_val, y_val, spec, config, train)
        return _Trainer(spec, config, train, val, features).run(progress)


def _rows(X: Table | None, y: Table | None, spec: Spec, config: TrainConfig, like: _Rows | None = None) -> _Rows:
    if X is None or y is None:
        raise InputError("got only one of X_val and y_val, expected both or neither")
    X64, y64 = check_Xy(X, y)
    if like is not None:
        check_width(X64, like.x.shape[1])
        if y64.shape[1:] != tuple(like.y.shape[1:]):
            raise InputError(f"y_val has shape {y64.shape}, expected the outputs of y: {tuple(like.y.shape[1:])}")
    dtype = getattr(torch, spec.model.dtype)
    device = _device(config.device)
    return _Rows(torch.from_numpy(X64).to(device, dtype), torch.from_numpy(y64).to(device, dtype))


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"unknown device {name!r}; use 'cpu' or 'cuda'") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' was asked for, but torch finds no CUDA device here; use device='cpu'")
    return device


@contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Trainer:
    """One call of `fit`."""

    def __init__(
        self, spec: Spec, config: TrainConfig, train: _Rows, val: _Rows | None, features: nn.Module | None
    ) -> None:
        self.spec, self.config, self.train, self.val, self.features = spec, config, train, val, features
        self.objective = OBJECTIVES[spec.objective.name]
        self.schedule = SCHEDULES[config.schedule]
        self.steps_an_epoch = math.ceil(len(train) / config.batch_size)
        self.total_steps = config.epochs * self.steps_an_epoch
        trial_epochs = min(config.restart_epochs, config.epochs) if config.restarts > 1 else 0
        self.trial_steps = trial_epochs * self.steps_an_epoch

    def run(self, progress: bool | None) -> FitResult:
        """Try the starts, train the best to the end."""
        start = time.perf_counter()
        wasted = (self.config.restarts - 1) * self.trial_steps
        with ProgressBar(self.total_steps + wasted, progress) as self.bar:
            self.bar_offset = 0
            state, scores = self._best_start()
            self._advance(state, self.total_steps, "training")
        if state.best_weights is not None:
            state.model.load_state_dict(state.best_weights)
        model = state.model.eval()
        assert isinstance(model, Model)
        return FitResult(
            model=model,
            history=tuple(state.history),
            restart_nll=tuple(scores),
            best_epoch=state.best_epoch,
            recoveries=tuple(state.recoveries),
            jitter_climbs=model.jitter_climbs,
            notes=model.notes,
            seconds=time.perf_counter() - start,
        )

    def _best_start(self) -> tuple[TrainState, list[float]]:
        """Train each start for a short while and keep the one with the lowest training NLL."""
        best: tuple[float, TrainState] | None = None
        scores: list[float] = []
        for trial in range(self.config.restarts):
            state = self._start(trial)
            if self.config.restarts == 1:
                return state, []
            try:
                self._advance(state, self.trial_steps, f"start {trial + 1} of {self.config.restarts}")
                scores.append(self._nll(state.model, self.train, RESTART_ROWS))
            except (NumericalError, TrainingDiverged):
                scores.append(float("nan"))  # this start is out of the race
            if trial < self.config.restarts - 1:
                self.bar_offset += self.trial_steps
            if math.isfinite(scores[-1]) and (best is None or scores[-1] < best[0]):
                best = (scores[-1], state)
        if best is None:
            raise TrainingDiverged(
                f"all {self.config.restarts} starts diverged; lower learning_rate (now {self.config.learning_rate}), "
                "and check that the rows are standardised"
            )
        return best[1], scores

    def _start(self, trial: int) -> TrainState:
        num_outputs = None if self.train.y.dim() == 1 else self.train.y.shape[1]
        seed = derive_seed(self.config.seed, trial)
        features = copy.deepcopy(self.features)  # each start trains its own
        model = build(self.spec.model, self.train.x, num_outputs, seed, features)
        return TrainState(model.train(), make_optimizer(model, self.config), seed)

    def _advance(self, state: TrainState, until: int, label: str) -> None:
        """Train until step `until`, or until validation says to stop."""
        while state.step < until:
            if self._finished_early(state):
                return
            self._epoch(state, label)

    def _finished_early(self, state: TrainState) -> bool:
        patience = self.config.patience
        return (
            patience is not None and state.best_epoch is not None and len(state.history) - state.best_epoch >= patience
        )

    def _epoch(self, state: TrainState, label: str) -> None:
        begin = time.perf_counter()
        epoch = state.step // self.steps_an_epoch
        batches = batch_indices(len(self.train), self.config.batch_size, state.seed, epoch)
        values: dict[int, float] = {}
        nlls: dict[int, float] = {}
        good = take_snapshot(state)
        end = (epoch + 1) * self.steps_an_epoch
        while state.step < end:
            if state.step - good.step >= SNAPSHOT_STEPS:
                good = take_snapshot(state)
            index = batches[state.step % self.steps_an_epoch].to(self.train.x.device)
            try:
                values[state.step], nll = self._step(state, index)
            except NumericalError as error:
                self._recover(state, good, str(error))
                continue
            if nll is not None:
                nlls[state.step] = nll
            state.step += 1
            self.bar.update(self.bar_offset + state.step, f"{label}, epoch {epoch + 1}", len(index), nll)
        val_nll = None if self.val is None else self._nll(state.model, self.val)
        rate = state.optimizer.param_groups[0]["lr"]
        seconds = time.perf_counter() - begin
        record = Epoch(epoch + 1, _mean(values), _mean(nlls), val_nll, rate, seconds)
        state.history.append(record)
        if val_nll is not None and val_nll < state.best_nll:
            state.best_nll, state.best_epoch, state.best_weights = (
                val_nll,
                record.number,
                copy_weights(state.model),
            )

    def _step(self, state: TrainState, index: Tensor) -> tuple[float, float | None]:
        """One step of Adam on one batch; raises NumericalError, before anything is changed, on non-finite numbers."""
        rate = self.config.learning_rate * self.schedule(state.step / self.total_steps, self.config)
        for group in state.optimizer.param_groups:
            group["lr"] = rate * state.rate_factor
        x, y = self.train.x[index], self.train.y[index]
        model, objective = state.model, self.spec.objective
        mixture = model(x, noise_seed=derive_seed(state.seed, state.step, 1))
        value = self._score(objective, mixture, y, model)
        state.optimizer.zero_grad()
        (-value).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not math.isfinite(value.item()) or not math.isfinite(norm.item()):
            raise NumericalError(f"objective {value.item()}, gradient norm {norm.item()}")
        state.optimizer.step()
        nll = None
        if state.step % NLL_STEPS == 0:
            with torch.no_grad():
                nll = -mixture.log_prob(y).mean().item()
        return value.item(), nll

    def _score(self, objective: ObjectiveConfig, mixture, y: Tensor, model) -> Tensor:  # type: ignore[no-untyped-def]
        return self.objective(mixture, y, model.kl(), len(self.train), beta=objective.beta, gamma=objective.gamma)

    def _recover(self, state: TrainState, good, reason: str) -> None:  # type: ignore[no-untyped-def]
        """Back to the last good state, with half the learning rate."""
        failed = state.step
        restore(state, good)
        state.rate_factor *= 0.5
        state.recoveries.append(Recovery(failed, good.step, reason, state.rate_factor))
        if len(state.recoveries) > self.config.max_recoveries:
            raise TrainingDiverged(
                f"step {failed}: {reason}; {self.config.max_recoveries} returns to a good state did not help. Lower "
                f"learning_rate (now {self.config.learning_rate}), or use dtype='float64'"
            )

    def _nll(self, model: nn.Module, rows: _Rows, most: int | None = None) -> float:
        """NLL a row of the distribution the user would get."""
        assert isinstance(model, Model)
        x, y = rows.x[:most], rows.y[:most]
        nll = -float(model.predictor()(x).log_prob(y).double().mean())
        if not math.isfinite(nll):
            raise NumericalError(f"the NLL of {len(x)} rows is {nll}")
        return nll


def _mean(values: dict[int, float]) -> float:
    return sum(values.values()) / len(values) if values else float("nan")

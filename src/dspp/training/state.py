"""The state of a training run: everything needed to return to a step, or to resume from it, bit for bit.

`StartState` and `RunState` are plain data, stored in checkpoints (`packing`). A `Start` is a model in training.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from dspp.config import TrainConfig
from dspp.errors import CheckpointError
from dspp.history import Epoch, Recovery
from dspp.model import Model
from dspp.training.adam import Adam, Moments

Weights = dict[str, Tensor]


@dataclass
class StartState:
    """The state of one start; `Start.capture` fills the fields from `weights` to `epoch_seconds`."""

    trial: int  # number of the start
    step: int = 0
    weights: Weights = field(default_factory=dict)
    moments: Moments = field(default_factory=dict)
    climbs: tuple[int, ...] = ()  # increases of the jitter, per layer
    epoch_seconds: float = 0.0  # spent on this epoch so far
    rate_factor: float = 1.0
    history: tuple[Epoch, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    best_nll: float = math.inf  # on validation rows
    best_epoch: int | None = None
    best_weights: Weights | None = None  # replaced by better ones, never modified in place
    values: dict[int, float] = field(default_factory=dict)  # the objective at each step of this epoch
    nlls: dict[int, float] = field(default_factory=dict)  # the NLL at the steps at which it was computed


@dataclass(frozen=True)
class RunState:
    """The state of a whole run: the current start and the results of earlier ones."""

    current: StartState
    trying: bool  # whether starts are still being compared
    total_steps: int  # length of the schedule
    best: StartState | None = None  # the best of the starts tried before the current one
    scores: tuple[float, ...] = ()  # training NLL of each start tried
    seconds: float = 0.0  # spent so far
    notes: tuple[str, ...] = ()
    stopped: str | None = None  # why training ended; None while it is running
    budget: float | None = None  # time budget for which total_steps was planned


class Start:
    """A model in training, its optimiser and their state.

    Args:
        model: the model.
        optimizer: the optimiser of its parameters.
        seed: seed of batches and samples.
        clock: returns the time in seconds.
        state: the current state.
    """

    def __init__(
        self,
        model: Model,
        optimizer: Adam,
        seed: int,
        clock: Callable[[], float],
        state: StartState,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.seed, self.state = seed, state
        self._clock, self._epoch_begin = clock, clock()

    @property
    def epoch_seconds(self) -> float:
        """Seconds spent on this epoch so far."""
        return self._clock() - self._epoch_begin

    def begin_epoch(self) -> None:
        """Start timing an epoch, unless it began in an earlier process."""
        if not self.state.values:
            self._epoch_begin = self._clock()

    def end_epoch(self, number: int, val_nll: float | None) -> Epoch:
        """Record a finished epoch, and keep the weights if they are the best so far."""
        state, rate = self.state, self.optimizer.param_groups[0]["lr"]
        epoch = Epoch(number, _mean(state.values), _mean(state.nlls), val_nll, rate, self.epoch_seconds)
        state.history += (epoch,)
        state.values, state.nlls = {}, {}
        if val_nll is not None and val_nll < state.best_nll:
            state.best_nll, state.best_epoch, state.best_weights = val_nll, number, _copy_weights(self.model)
        return epoch

    def capture(self) -> StartState:
        """Copy everything that training changes."""
        return replace(
            self.state,
            weights=_copy_weights(self.model),
            moments=_copy_moments(self.optimizer.moments),
            climbs=tuple(layer.climbs for layer in self.model.gp_layers),
            epoch_seconds=self.epoch_seconds,
            values=dict(self.state.values),
            nlls=dict(self.state.nlls),
        )

    def return_to(self, good: StartState) -> None:
        """Restore what failed steps may have spoilt; keep what has been counted since."""
        self._load(good)
        now = self.state
        if len(good.history) < len(now.history):  # back into an epoch that had ended
            self._set_state(replace(good, rate_factor=now.rate_factor, recoveries=now.recoveries))
        else:
            now.step = good.step

    def resume(self, state: StartState) -> None:
        """Bring a new start into a captured state.

        Raises:
            CheckpointError: it was captured from another model.
        """
        try:
            self._load(state)
            for layer, climbs in zip(self.model.gp_layers, state.climbs, strict=True):
                layer.climbs = climbs
        except (RuntimeError, ValueError, KeyError) as problem:
            raise CheckpointError(
                f"the checkpoint is of another model ({problem!s:.200}); delete it to start afresh"
            ) from None
        self._set_state(state)

    def _load(self, state: StartState) -> None:
        self.model.load_state_dict(state.weights)
        self.optimizer.load(state.moments)

    def _set_state(self, state: StartState) -> None:
        self.state = replace(state, weights={}, moments={}, values=dict(state.values), nlls=dict(state.nlls))
        self._epoch_begin = self._clock() - state.epoch_seconds


def make_optimizer(model: nn.Module, config: TrainConfig) -> Adam:
    """Return Adam, with weight decay on the feature network only (appendix A.5)."""
    network = [p for name, p in model.named_parameters() if name.startswith("features.")]
    others = [p for name, p in model.named_parameters() if not name.startswith("features.")]
    groups: list[dict[str, Any]] = [{"params": others}, {"params": network, "weight_decay": config.weight_decay}]
    return Adam([group for group in groups if group["params"]], config.learning_rate)


def _copy_weights(model: nn.Module) -> Weights:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _copy_moments(moments: Moments) -> Moments:
    return {number: {name: value.clone() for name, value in kept.items()} for number, kept in moments.items()}


def _mean(values: dict[int, float]) -> float:
    return sum(values.values()) / len(values) if values else math.nan

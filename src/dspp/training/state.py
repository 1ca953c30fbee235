"""The state of a training run: everything needed to go back to a moment, or on from it, bit for bit."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dspp.config import TrainConfig
from dspp.model import Model

Weights = dict[str, Tensor]
Moments = dict[int, dict[str, Tensor]]  # of the optimiser: what it keeps for each parameter, by number


@dataclass(frozen=True)
class Epoch:
    """What one epoch left behind."""

    number: int  # 1 is the first
    objective: float  # mean over the steps, a row
    train_nll: float  # mean over the steps at which it was taken
    val_nll: float | None
    learning_rate: float  # at its last step
    seconds: float


@dataclass(frozen=True)
class Recovery:
    """A return to the last good state."""

    step: int  # the step that failed
    back_to: int  # the step gone back to
    reason: str
    rate_factor: float  # the learning rate is multiplied by this from then on


@dataclass
class TrainState:
    """A model in training, its optimiser, and where they stand."""

    model: Model
    network: nn.Module  # what a step calls: the model, or what averages its gradients over several processes
    optimizer: torch.optim.Optimizer
    trial: int  # which of the starts it comes from
    seed: int  # of batches and samples
    step: int = 0
    rate_factor: float = 1.0
    history: list[Epoch] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    best_nll: float = float("inf")
    best_epoch: int | None = None
    best_weights: Weights | None = None
    values: dict[int, float] = field(default_factory=dict)  # the objective at each step of this epoch
    nlls: dict[int, float] = field(default_factory=dict)  # the NLL, at the steps at which it was taken
    clock: Callable[[], float] = time.perf_counter  # in seconds
    epoch_begin: float = 0.0  # when this epoch began, on that clock


@dataclass(frozen=True)
class Snapshot:
    """A moment to go back to, or on from: a copy that later steps do not touch."""

    trial: int
    step: int
    weights: Weights
    moments: Moments
    rate_factor: float = 1.0
    history: tuple[Epoch, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    best_nll: float = float("inf")
    best_epoch: int | None = None
    best_weights: Weights | None = None
    values: tuple[tuple[int, float], ...] = ()
    nlls: tuple[tuple[int, float], ...] = ()
    epoch_seconds: float = 0.0  # spent on this epoch so far
    climbs: tuple[int, ...] = ()  # of the jitter, a layer


def take_snapshot(state: TrainState) -> Snapshot:
    """Copy everything that training changes."""
    return Snapshot(
        trial=state.trial,
        step=state.step,
        weights=copy_weights(state.model),
        moments=_copy_moments(state.optimizer.state_dict()["state"]),
        rate_factor=state.rate_factor,
        history=tuple(state.history),
        recoveries=tuple(state.recoveries),
        best_nll=state.best_nll,
        best_epoch=state.best_epoch,
        best_weights=state.best_weights,  # replaced by a better one, never written into
        values=tuple(state.values.items()),
        nlls=tuple(state.nlls.items()),
        epoch_seconds=state.clock() - state.epoch_begin,
        climbs=tuple(layer.climbs for layer in state.model.gp_layers),
    )


def go_back(state: TrainState, snapshot: Snapshot) -> None:
    """Put back what failed steps could spoil; what has been counted since then still counts."""
    _restore(state, snapshot)
    if len(snapshot.history) < len(state.history):  # into an epoch that had ended
        _restore_epoch(state, snapshot)


def _restore(state: TrainState, snapshot: Snapshot) -> None:
    state.model.load_state_dict(snapshot.weights)
    groups = state.optimizer.state_dict()["param_groups"]
    state.optimizer.load_state_dict({"state": _copy_moments(snapshot.moments), "param_groups": groups})
    state.step = snapshot.step


def resume(state: TrainState, snapshot: Snapshot) -> None:
    """Make a fresh start of the same trial stand where `snapshot` was taken."""
    _restore(state, snapshot)
    _restore_epoch(state, snapshot)
    state.rate_factor, state.recoveries = snapshot.rate_factor, list(snapshot.recoveries)
    for layer, climbs in zip(state.model.gp_layers, snapshot.climbs, strict=True):
        layer.climbs = climbs


def _restore_epoch(state: TrainState, snapshot: Snapshot) -> None:
    """The epochs so far, the best of them, and the one that has begun."""
    state.history = list(snapshot.history)
    state.best_nll, state.best_epoch = snapshot.best_nll, snapshot.best_epoch
    state.best_weights = snapshot.best_weights
    state.values, state.nlls = dict(snapshot.values), dict(snapshot.nlls)
    state.epoch_begin = state.clock() - snapshot.epoch_seconds


def copy_weights(model: nn.Module) -> Weights:
    """The model's parameters and buffers, copied."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def _copy_moments(moments: Moments) -> Moments:
    return {number: {name: value.clone() for name, value in kept.items()} for number, kept in moments.items()}


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Adam; weight decay on the feature network only (appendix A.5)."""
    network = [p for name, p in model.named_parameters() if name.startswith("features.")]
    others = [p for name, p in model.named_parameters() if not name.startswith("features.")]
    groups: list[dict[str, Any]] = [{"params": others}, {"params": network, "weight_decay": config.weight_decay}]
    return torch.optim.Adam([g for g in groups if g["params"]], lr=config.learning_rate, fused=True)

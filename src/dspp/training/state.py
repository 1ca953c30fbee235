"""The state of a training run: everything needed to go back to a moment, or on from it, bit for bit."""

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from dspp.config import TrainConfig

Weights = dict[str, Tensor]


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

    model: nn.Module
    optimizer: torch.optim.Optimizer
    seed: int  # of batches and samples
    step: int = 0
    rate_factor: float = 1.0
    history: list[Epoch] = field(default_factory=list)
    recoveries: list[Recovery] = field(default_factory=list)
    best_nll: float = float("inf")
    best_epoch: int | None = None
    best_weights: Weights | None = None


@dataclass(frozen=True)
class Snapshot:
    """A moment to go back to."""

    step: int
    weights: Weights
    optimizer: dict[str, Any]


def take_snapshot(state: TrainState) -> Snapshot:
    """Copy what a failed step could spoil."""
    return Snapshot(state.step, copy_weights(state.model), copy.deepcopy(state.optimizer.state_dict()))


def restore(state: TrainState, snapshot: Snapshot) -> None:
    """Go back to `snapshot`."""
    state.model.load_state_dict(snapshot.weights)
    state.optimizer.load_state_dict(copy.deepcopy(snapshot.optimizer))
    state.step = snapshot.step


def copy_weights(model: nn.Module) -> Weights:
    """The model's parameters and buffers, copied."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Adam; weight decay on the feature network only (appendix A.5)."""
    network = [p for name, p in model.named_parameters() if name.startswith("features.")]
    others = [p for name, p in model.named_parameters() if not name.startswith("features.")]
    groups: list[dict[str, Any]] = [{"params": others}, {"params": network, "weight_decay": config.weight_decay}]
    return torch.optim.Adam([g for g in groups if g["params"]], lr=config.learning_rate, fused=True)

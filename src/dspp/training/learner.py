"""A model in training and its optimiser: one step, and copies of everything that steps change."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dspp.batches import derive_seed
from dspp.config import TrainConfig
from dspp.errors import CheckpointError, InputError, NumericalError
from dspp.model import build
from dspp.objectives import OBJECTIVES, average
from dspp.presets import Spec
from dspp.training.adam import Adam
from dspp.training.rows import Rows
from dspp.training.schedules import SCHEDULES
from dspp.training.score import start_seed
from dspp.training.state import State, Weights

NLL_STEPS = 5  # the training NLL is computed every so many steps, from the first of an epoch


class Learner:
    """One start: a model with initial values of its own, and its optimiser.

    Samples, dropout and batches are a pure function of (seed, step), so the same seed gives the same bits, and training
    can continue from any step.

    Args:
        spec: the model and its objective.
        config: training settings.
        rows: all training rows.
        features: a custom module in front of the first layer; a copy is trained.
        trial: number of the start.
    """

    def __init__(self, spec: Spec, config: TrainConfig, rows: Rows, features: nn.Module | None, trial: int) -> None:
        self.seed, self._randomise = start_seed(config.seed, trial), features is not None
        self._spec, self._config, self._num_rows = spec, config, len(rows)
        features = copy.deepcopy(features)
        with own_randomness(self.seed, rows.x.device, self._randomise):
            self.model = build(spec.model, rows.x, spec.outputs or rows.y.shape[1], self.seed, features)
        self.model.train()
        self.optimizer = make_optimizer(self.model, config)

    @property
    def rate(self) -> float:
        """The learning rate of the last step."""
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, batch: Rows, state: State, with_nll: bool) -> tuple[float, float | None]:
        """Make one step on a batch, and return the objective and, if asked for, the NLL of the batch before it.

        Raises:
            NumericalError: a number is not finite; the parameters are unchanged.
        """
        done = state.step / state.total_steps
        rate = self._config.learning_rate * SCHEDULES[self._config.schedule](done, self._config)
        for group in self.optimizer.param_groups:
            group["lr"] = rate * state.rate_factor
        if self.model.features is not None:
            _freeze_statistics(self.model.features, done >= self._config.freeze_statistics)
        value, nll = self._forward(batch, state.step, with_nll)
        self.optimizer.zero_grad()
        (-value).backward()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        objective, norm = value.item(), torch.nn.utils.get_total_norm(gradients).item()
        if not math.isfinite(objective) or not math.isfinite(norm):
            raise NumericalError(f"objective {objective}, gradient norm {norm}")
        self.optimizer.step()
        return objective, nll

    def _forward(self, batch: Rows, step: int, with_nll: bool) -> tuple[Tensor, float | None]:
        """Return the objective of the batch, to differentiate, and its NLL."""
        model, objective = self.model, self._spec.objective
        if len(batch) == 1 and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
            raise InputError(
                "a network with batch normalisation expected at least 2 rows, got 1 of a batch of 1; pass more rows, "
                "or another batch_size"
            )
        with own_randomness(derive_seed(self.seed, step, 2), batch.x.device, self._randomise):
            latent = model(batch.x, noise_seed=derive_seed(self.seed, step, 1))
        how: dict[str, Any] = {"beta": objective.beta, "gamma": objective.gamma}
        if batch.weights is not None:
            how["weights"] = batch.weights
        value = OBJECTIVES[objective.name](model.likelihood, latent, batch.y, model.kl(), self._num_rows, **how)
        if not with_nll:
            return value, None
        with torch.no_grad():
            return value, -average(model.likelihood.log_prob(latent, batch.y), batch.weights).item()

    # ------------------------------------------------------------ copies

    def copy_weights(self) -> Weights:
        """Return a copy of the parameters and buffers."""
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def capture(self) -> dict[str, Any]:
        """Return a copy of everything that steps change, as fields of a `State`."""
        return {
            "weights": self.copy_weights(),
            "moments": {
                number: {name: value.clone() for name, value in kept.items()}
                for number, kept in self.optimizer.moments.items()
            },
            "climbs": tuple(layer.climbs for layer in self.model.gp_layers),
        }

    def load(self, state: State) -> None:
        """Return to the weights and moments of a state; increases of the jitter stay counted."""
        self.model.load_state_dict(state.weights)
        self.optimizer.load(state.moments)

    def resume(self, state: State) -> None:
        """Continue from a state that another process wrote.

        Raises:
            CheckpointError: it was captured from another model.
        """
        try:
            self.load(state)
            for layer, climbs in zip(self.model.gp_layers, state.climbs, strict=True):
                layer.climbs = climbs
        except (RuntimeError, ValueError, KeyError) as problem:
            raise CheckpointError(
                f"the checkpoint is of another model ({problem!s:.200}); delete it to start afresh"
            ) from None


def make_optimizer(model: nn.Module, config: TrainConfig) -> Adam:
    """Return Adam, with weight decay on the feature network only (appendix A.5)."""
    network = [p for name, p in model.named_parameters() if name.startswith("features.")]
    others = [p for name, p in model.named_parameters() if not name.startswith("features.")]
    groups: list[dict[str, Any]] = [{"params": others}, {"params": network, "weight_decay": config.weight_decay}]
    return Adam([group for group in groups if group["params"]], config.learning_rate)


def _freeze_statistics(network: nn.Module, frozen: bool) -> None:
    """Let batch normalisation use its running statistics, as predictions do, or else those of the batch.

    The statistics of a batch vary from step to step. A density that is trained with them to the end is as wide as this
    noise, which predictions do not have: their intervals are too wide. (docs/decisions.md)
    """
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train(not frozen)


@contextmanager
def own_randomness(seed: int, device: torch.device, needed: bool) -> Iterator[None]:
    """If `needed`, seed torch's global generator with `seed`, and restore it afterwards."""
    if not needed:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield

"""One step of training, and the score of a model on rows."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from dspp.batches import derive_seed
from dspp.config import ObjectiveConfig, TrainConfig
from dspp.errors import InputError, NumericalError
from dspp.model import Model
from dspp.objectives import OBJECTIVES, average
from dspp.training.rows import Rows
from dspp.training.schedules import SCHEDULES
from dspp.training.state import Start

Score = Callable[[Model, Rows], float]  # mean score of a model on rows; lower is better
NLL_STEPS = 5  # the training NLL is computed every so many steps, from the first of an epoch


class TrainingStep:
    """Steps of Adam on batches of the training rows.

    Args:
        objective: the objective to maximise.
        config: training settings.
        num_rows: number of training rows.
        randomise: whether a part of the model (such as dropout) draws from torch's global generator.
    """

    def __init__(self, objective: ObjectiveConfig, config: TrainConfig, num_rows: int, randomise: bool) -> None:
        self._objective, self._options = OBJECTIVES[objective.name], objective
        self._schedule, self._config = SCHEDULES[config.schedule], config
        self._num_rows, self._randomise = num_rows, randomise
        self._steps_per_epoch = math.ceil(num_rows / config.batch_size)

    def make(self, start: Start, batch: Rows, done: float) -> float | None:
        """Make one step on a batch; at some steps return its NLL.

        Args:
            start: the start to update.
            batch: the rows.
            done: the share of training that is done.

        Raises:
            NumericalError: a number is not finite; the parameters are unchanged.
        """
        rate = self._config.learning_rate * self._schedule(done, self._config)
        for group in start.optimizer.param_groups:
            group["lr"] = rate * start.state.rate_factor
        if start.model.features is not None:
            _freeze_statistics(start.model.features, done >= self._config.freeze_statistics)
        with_nll = start.state.step % self._steps_per_epoch % NLL_STEPS == 0
        value, nll = self._forward(start, batch, with_nll)
        start.optimizer.zero_grad()
        (-value).backward()
        total = value.item()
        gradients = [p.grad for p in start.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not math.isfinite(total) or not math.isfinite(norm.item()):
            raise NumericalError(f"objective {total}, gradient norm {norm.item()}")
        start.optimizer.step()
        start.state.values[start.state.step] = total
        if nll is not None:
            start.state.nlls[start.state.step] = nll
        start.state.step += 1
        return nll

    def _forward(self, start: Start, batch: Rows, with_nll: bool) -> tuple[Tensor, float | None]:
        """Return the objective of the batch, to differentiate, and its NLL."""
        model = start.model
        if len(batch) == 1 and any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules()):
            raise InputError(
                "a network with batch normalisation expected at least 2 rows, got 1 of a batch of 1; pass more rows, "
                "or another batch_size"
            )
        with own_randomness(derive_seed(start.seed, start.state.step, 2), batch.x.device, self._randomise):
            latent = model(batch.x, noise_seed=derive_seed(start.seed, start.state.step, 1))
        how: dict[str, Any] = {"beta": self._options.beta, "gamma": self._options.gamma}
        if batch.weights is not None:
            how["weights"] = batch.weights
        value = self._objective(model.likelihood, latent, batch.y, model.kl(), self._num_rows, **how)
        if not with_nll:
            return value, None
        with torch.no_grad():
            return value, -average(model.likelihood.log_prob(latent, batch.y), batch.weights).item()


def _freeze_statistics(network: nn.Module, frozen: bool) -> None:
    """Let batch normalisation use its running statistics, as predictions do, or else those of the batch.

    The statistics of a batch vary from step to step. A density that is trained with them to the end is as wide as this
    noise, which predictions do not have: their intervals are too wide. (docs/decisions.md)
    """
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train(not frozen)


def nll(model: Model, rows: Rows) -> float:
    """Return the NLL per row of the predictive distribution."""
    log_density = model.predictor()(rows.x).log_prob(rows.y).double()
    return -float(average(log_density, None if rows.weights is None else rows.weights.double()))


def finite_score(model: Model, rows: Rows, score: Score = nll) -> float:
    """Return the mean score of the rows.

    Raises:
        NumericalError: the score is not finite.
    """
    value = score(model, rows)
    if not math.isfinite(value):
        raise NumericalError(f"the NLL of {len(rows)} rows is {value}")
    return value


@contextmanager
def own_randomness(seed: int, device: torch.device, needed: bool) -> Iterator[None]:
    """If `needed`, seed torch's global generator with `seed`, and restore it afterwards."""
    if not needed:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield

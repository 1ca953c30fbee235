"""One step of training, and the score of a model on rows."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dspp.config import ObjectiveConfig, TrainConfig
from dspp.data.batches import derive_seed
from dspp.errors import NumericalError
from dspp.heads import Mixture
from dspp.model import Model
from dspp.objectives import OBJECTIVES
from dspp.training.rows import Rows
from dspp.training.schedules import SCHEDULES
from dspp.training.state import TrainState

NLL_STEPS = 5  # the training NLL is taken at every so many steps


class Stepper:
    """Steps of Adam on batches of the training rows.

    Args:
        objective: what to maximise.
        config: how to train.
        num_rows: how many training rows there are.
        randomise: whether the model has a part (dropout, say) that draws from torch's global generator.
    """

    def __init__(self, objective: ObjectiveConfig, config: TrainConfig, num_rows: int, randomise: bool) -> None:
        self._objective, self._options = OBJECTIVES[objective.name], objective
        self._schedule, self._config = SCHEDULES[config.schedule], config
        self._num_rows, self._randomise = num_rows, randomise

    def step(self, state: TrainState, batch: Rows, done: float) -> tuple[float, float | None]:
        """One step on the rows of a batch: the objective and, at some steps, the NLL.

        Args:
            state: what to change.
            batch: the rows.
            done: the share of training that is done.

        Raises:
            NumericalError: a number is not finite; the parameters are as before.
        """
        rate = self._config.learning_rate * self._schedule(done, self._config)
        for group in state.optimizer.param_groups:
            group["lr"] = rate * state.rate_factor
        x, y = batch.x, batch.y
        with own_randomness(derive_seed(state.seed, state.step, 2), x.device, self._randomise):
            mixture = state.model(x, noise_seed=derive_seed(state.seed, state.step, 1))
        value = self._score(mixture, y, state.model)
        state.optimizer.zero_grad()
        (-value).backward()
        gradients = [p.grad for p in state.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not math.isfinite(value.item()) or not math.isfinite(norm.item()):
            raise NumericalError(f"objective {value.item()}, gradient norm {norm.item()}")
        state.optimizer.step()
        train_nll = None
        if state.step % NLL_STEPS == 0:
            with torch.no_grad():
                train_nll = -mixture.log_prob(y).mean().item()
        return value.item(), train_nll

    def _score(self, mixture: Mixture, y: Tensor, model: Model) -> Tensor:
        beta, gamma = self._options.beta, self._options.gamma
        return self._objective(mixture, y, model.kl(), self._num_rows, beta=beta, gamma=gamma)


def nll(model: Model, rows: Rows, most: int | None = None) -> float:
    """NLL a row of the distribution the user would get.

    Raises:
        NumericalError: it is not finite.
    """
    x, y = rows.x[:most], rows.y[:most]
    value = -float(model.predictor()(x).log_prob(y).double().mean())
    if not math.isfinite(value):
        raise NumericalError(f"the NLL of {len(x)} rows is {value}")
    return value


@contextmanager
def own_randomness(seed: int, device: torch.device, needed: bool) -> Iterator[None]:
    """Where `needed`, let torch's global generator follow from `seed` alone, and put it back afterwards."""
    if not needed:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield

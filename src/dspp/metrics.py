"""Scores of a predictive distribution on held-out targets, in the units of the distribution it is given.

Scores are computed in float64, whatever the dtype of the model. With T outputs, marginal ones are averaged,
and `evaluate` divides the joint NLL by T, so that figures of different T can be compared. NaN in targets of T outputs
means "not observed": averages are over what was observed.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from dspp.data.checks import Table, check_y
from dspp.errors import InputError
from dspp.predictive import Predictive


def nll(mixture: Predictive, y: Table) -> float:
    """Return the mean over rows of -log p(yₙ), joint over the outputs observed in that row."""
    exact, targets = _in_float64(mixture, y)
    with torch.no_grad():
        return -exact.log_prob(targets).mean().item()


def rmse(mixture: Predictive, y: Table) -> float:
    """Return the root of the mean squared error of the predicted mean, over all rows and outputs.

    The paper's, for T outputs, appears to be √T times as large: the outputs' squared errors summed before the root.
    """
    return math.sqrt(_squared_error(mixture, y).item())


def mrmse(mixture: Predictive, y: Table) -> float:
    """Return the mean of each output's RMSE, over the outputs that were observed."""
    seen = ~_in_float64(mixture, y)[1].isnan().all(dim=0)
    return _squared_error(mixture, y, dim=0)[seen].sqrt().mean().item()


def crps(mixture: Predictive, y: Table) -> float:
    """Return the continuous ranked probability score, the mean over rows and outputs."""
    exact, targets = _in_float64(mixture, y)
    with torch.no_grad():
        return _observed_mean(exact.crps(targets), targets).item()


def pit(mixture: Predictive, y: Table) -> Float[Tensor, " N *T"]:
    """Return Fₙ(yₙ) of each row and output: uniform on [0, 1] when the mixture is the truth; NaN if not observed."""
    exact, targets = _in_float64(mixture, y)
    with torch.no_grad():
        columns = zip(exact.outputs(), targets.reshape(len(targets), -1).T, strict=True)
        return torch.stack([one.cdf(column) for one, column in columns], dim=-1).reshape(targets.shape)


def coverage(mixture: Predictive, y: Table, level: float = 0.9) -> float:
    """Return the share of targets inside their central interval of probability `level`.

    A target is inside exactly when its PIT is within level/2 of one half, so no quantile need be solved for.

    Raises:
        InputError: The level is not between 0 and 1.
    """
    if not 0 < level < 1:
        raise InputError(f"level: expected a probability between 0 and 1, got {level}. Try 0.9.")
    exact, targets = _in_float64(mixture, y)
    return _observed_mean(((pit(exact, targets) - 0.5).abs() <= level / 2).double(), targets).item()


def evaluate(mixture: Predictive, y: Table) -> dict[str, float]:
    """Return nll, rmse, crps and coverage90 by name; with T outputs, nll is that of one output, and mrmse is added.

    The NLL of one output is the sum over rows of the joint NLL, divided by the number of observed targets: the joint
    NLL divided by T when nothing is missing.
    """
    targets = _in_float64(mixture, y)[1]
    observed_a_row = int((~targets.isnan()).sum()) / len(targets)  # T, exactly, when nothing is missing
    scores = {
        "nll": nll(mixture, y) / observed_a_row,
        "rmse": rmse(mixture, y),
        "crps": crps(mixture, y),
        "coverage90": coverage(mixture, y, 0.9),
    }
    return scores if mixture.num_outputs == 1 else {**scores, "mrmse": mrmse(mixture, y)}


def _in_float64(mixture: Predictive, y: Table) -> tuple[Predictive, Float[Tensor, " N *T"]]:
    """Return both in float64 on the mixture's device, or an `InputError` if their shapes differ."""
    shape = tuple(mixture.mean.shape)
    targets = torch.from_numpy(check_y(y, shape[0], missing=True, every_output=False)).to(mixture.mean.device)
    if targets.shape != shape:  # (N, 1) against (N,) would broadcast to N x N without a word
        raise InputError(f"y: expected shape {shape}, as predicted, got {tuple(targets.shape)}. Reshape y.")
    return mixture.to(torch.float64), targets


def _squared_error(mixture: Predictive, y: Table, dim: int | None = None) -> Float[Tensor, " *T"]:
    """Return the mean of the squared errors, over everything or over one axis."""
    exact, targets = _in_float64(mixture, y)
    return _observed_mean((exact.mean.detach() - targets).square(), targets, dim)


def _observed_mean(
    values: Float[Tensor, " N *T"], targets: Float[Tensor, " N *T"], dim: int | None = None
) -> Float[Tensor, " *T"]:
    """Average the values whose target was observed; one that is NaN for another reason shows in the result."""
    observed = ~targets.isnan()
    return torch.where(observed, values, 0.0).sum(dim) / observed.sum(dim)

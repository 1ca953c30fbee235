"""Objectives: plain functions (mixture, y, KL, N, β) -> a number a row, to be maximised.

Each is an estimate from one batch of the paper's sum over rows, divided by N: the mean over the batch of a score, minus
β KL/N. They work on the mixture that the user gets, of one output or of several. Of several, those that are NaN in y
were not observed, and the score of a row is that of the others.
"""

import math
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from dspp.errors import InputError
from dspp.mixture import AnyMixture, MultivariateNormalMixture
from dspp.registry import Registry


class Objective(Protocol):
    """What the training loop calls."""

    def __call__(
        self,
        mixture: AnyMixture,
        y: Tensor,
        kl: Tensor,
        num_data: int,
        *,
        beta: float = 1.0,
        gamma: float = 1.03,
    ) -> Tensor:
        """The objective a row."""


OBJECTIVES: Registry[Objective] = Registry("objective")


@OBJECTIVES.register("predictive")
def predictive(
    mixture: AnyMixture, y: Tensor, kl: Tensor, num_data: int, *, beta: float = 1.0, gamma: float = 1.03
) -> Float[Tensor, ""]:
    """Regularised maximum likelihood of the predictive distribution itself (eq. 16 for one layer, eq. 21 for more).

    With a rule this trains a DSPP; with Monte Carlo samples the logarithm of the average makes it a biased estimate
    (BPDGP).
    """
    return mixture.log_prob(y).mean() - beta * kl / num_data


@OBJECTIVES.register("elbo")
def elbo(
    mixture: AnyMixture, y: Tensor, kl: Tensor, num_data: int, *, beta: float = 1.0, gamma: float = 1.03
) -> Float[Tensor, ""]:
    """The evidence lower bound (eqs. 6 and 13): E_q[log p(y|f)], exact in the top layer, by the components below it."""
    score = mixture.weights @ mixture.expected_log_lik(y)  # (N,)
    return score.mean() - beta * kl / num_data


@OBJECTIVES.register("gamma-elbo")
def gamma_elbo(
    mixture: AnyMixture, y: Tensor, kl: Tensor, num_data: int, *, beta: float = 1.0, gamma: float = 1.03
) -> Float[Tensor, ""]:
    """The γ-robust bound (Knoblauch 2019): the log-likelihood is replaced by

        γ/(γ−1) · E_q[p(y|f)^(γ−1)] / I^((γ−1)/γ),   I = ∫ p(y|f)^γ dy.

    The normalising integral I stands in the denominator to the power (γ−1)/γ: with it the score is proper, that is,
    highest in expectation for the true density (a test integrates it). GPyTorch multiplies by the same power instead.
    """  # noqa: D415
    score = mixture.weights @ gamma_score(mixture, y, gamma, -(gamma - 1) / gamma)
    return score.mean() - beta * kl / num_data


def gamma_score(mixture: AnyMixture, y: Tensor, gamma: float, integral_power: float) -> Float[Tensor, "S N"]:
    """γ/(γ−1) · E[p(y|f)^(γ−1)] · I^power for each component, for Gaussian p(y|f) = N(f, r), f ~ N(μ, Σ).

    With c = γ − 1, p^c is a Normal density of variance r/c times a constant, so E[p^c] needs one Normal convolution.
    """
    if gamma <= 1:
        raise InputError(f"got gamma {gamma}, expected a number > 1; the paper tries 1.01, 1.03, 1.05 and 1.1")
    c, r = gamma - 1, mixture.noise_var
    log_2pi_r = torch.log(2 * math.pi * r)
    log_constant = 0.5 * (log_2pi_r - math.log(c) - c * log_2pi_r)  # N(f, r)^c = e^constant · N(f, r/c)
    log_integral = -0.5 * (c * log_2pi_r + math.log(gamma))
    if isinstance(mixture, MultivariateNormalMixture):  # one likelihood for the T outputs together: logs add up
        missing = y.isnan()  # an output that was not observed has no factor in the likelihood
        log_constant, log_integral = (torch.where(missing, 0.0, v).sum(-1) for v in (log_constant, log_integral))
    log_tempered = log_constant + mixture.with_noise(r / c).component_log_prob(y)
    return (gamma / c) * torch.exp(log_tempered + integral_power * log_integral)

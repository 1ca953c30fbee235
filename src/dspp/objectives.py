"""Objectives: plain functions (likelihood, latent mixture, y, KL, N, β) -> a number per row, to be maximised.

Each estimates the paper's sum over rows, divided by N, from one batch: the mean of a score over the batch minus β KL/N.
The likelihood computes the integrals over the latent functions. With several outputs, NaN in y means "not observed",
and the score of a row is that of its observed outputs. Rows may have weights wₙ, with mean one over the training rows:
the score of row n then counts wₙ times.
"""

from typing import Protocol

from jaxtyping import Float
from torch import Tensor

from dspp.likelihoods import Likelihood
from dspp.predictive import LatentMixture
from dspp.registry import Registry


class Objective(Protocol):
    """The interface of an objective."""

    def __call__(
        self,
        likelihood: Likelihood,
        latent: LatentMixture,
        y: Float[Tensor, "N T"],
        kl: Tensor,
        num_data: int,
        *,
        beta: float = 1.0,
        gamma: float = 1.03,
        weights: Float[Tensor, " N"] | None = None,
    ) -> Tensor:
        """Return the objective per row. `weights` is passed only if rows have weights."""


OBJECTIVES: Registry[Objective] = Registry("objective")


def average(score: Float[Tensor, " N"], weights: Float[Tensor, " N"] | None) -> Float[Tensor, ""]:
    """Return (1/N) Σₙ wₙ scoreₙ; None: all weights are one."""
    return score.mean() if weights is None else (weights * score).mean()


@OBJECTIVES.register("predictive")
def predictive(
    likelihood: Likelihood,
    latent: LatentMixture,
    y: Float[Tensor, "N T"],
    kl: Tensor,
    num_data: int,
    *,
    beta: float = 1.0,
    gamma: float = 1.03,
    weights: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, ""]:
    """Return the regularised log-likelihood of the predictive distribution (eq. 16 for one layer, eq. 21 for more).

    With a quadrature rule this trains a DSPP; with Monte Carlo samples the logarithm of an average makes it a biased
    estimate (BPDGP).

    Example:
        >>> import torch
        >>> from dspp import ModelConfig
        >>> from dspp.likelihoods import Gaussian
        >>> from dspp.objectives import predictive
        >>> from dspp.predictive import LatentMixture
        >>> latent = LatentMixture(torch.zeros(1), torch.zeros(1, 3, 1), torch.ones(1, 3, 1))  # S = 1, N = 3, L = 1
        >>> likelihood, y, kl = Gaussian(1, ModelConfig()), torch.zeros(3, 1), torch.tensor(2.0)
        >>> round(predictive(likelihood, latent, y, kl, num_data=100).item(), 3)
        -0.987
    """
    return average(likelihood.log_prob(latent, y), weights) - beta * kl / num_data


@OBJECTIVES.register("elbo")
def elbo(
    likelihood: Likelihood,
    latent: LatentMixture,
    y: Float[Tensor, "N T"],
    kl: Tensor,
    num_data: int,
    *,
    beta: float = 1.0,
    gamma: float = 1.03,
    weights: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, ""]:
    """Return the ELBO (eqs. 6 and 13): E_q[log p(y|f)], exact in the top layer, by components below it.

    Example:
        >>> import torch
        >>> from dspp import ModelConfig
        >>> from dspp.likelihoods import Gaussian
        >>> from dspp.objectives import elbo
        >>> from dspp.predictive import LatentMixture
        >>> latent = LatentMixture(torch.zeros(1), torch.zeros(1, 3, 1), torch.ones(1, 3, 1))  # S = 1, N = 3, L = 1
        >>> likelihood, y, kl = Gaussian(1, ModelConfig()), torch.zeros(3, 1), torch.tensor(2.0)
        >>> round(elbo(likelihood, latent, y, kl, num_data=100).item(), 3)
        -4.788
    """
    score = latent.weights @ likelihood.expected_log_prob(latent, y)  # (N,)
    return average(score, weights) - beta * kl / num_data


@OBJECTIVES.register("gamma-elbo")
def gamma_elbo(
    likelihood: Likelihood,
    latent: LatentMixture,
    y: Float[Tensor, "N T"],
    kl: Tensor,
    num_data: int,
    *,
    beta: float = 1.0,
    gamma: float = 1.03,
    weights: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, ""]:
    """Return the γ-robust bound (Knoblauch 2019), which replaces the log-likelihood by

        γ/(γ−1) · E_q[p(y|f)^(γ−1)] / I^((γ−1)/γ),   I = ∫ p(y|f)^γ dy.

    The power (γ−1)/γ of the normalising integral I in the denominator makes the score proper, that is, highest in
    expectation for the true density (tested by integration). GPyTorch multiplies by the same power instead.

    Example:
        >>> import torch
        >>> from dspp import ModelConfig
        >>> from dspp.likelihoods import Gaussian
        >>> from dspp.objectives import gamma_elbo
        >>> from dspp.predictive import LatentMixture
        >>> latent = LatentMixture(torch.zeros(1), torch.zeros(1, 3, 1), torch.ones(1, 3, 1))  # S = 1, N = 3, L = 1
        >>> likelihood, y, kl = Gaussian(1, ModelConfig()), torch.zeros(3, 1), torch.tensor(2.0)
        >>> round(gamma_elbo(likelihood, latent, y, kl, num_data=100).item(), 3)
        30.31
    """  # noqa: D415
    score = latent.weights @ likelihood.gamma_score(latent, y, gamma, -(gamma - 1) / gamma)
    return average(score, weights) - beta * kl / num_data

"""Objectives: plain functions (likelihood, latent mixture, y, KL, N, β) -> a number per row, to be maximised.

Each is an estimate from one batch of the paper's sum over rows, divided by N: the mean over the batch of a score, minus
β KL/N. The likelihood knows its integrals over the latent functions. Of several outputs, those that are NaN in y were
not observed, and the score of a row is that of the others.
"""

from typing import Protocol

from jaxtyping import Float
from torch import Tensor

from dspp.likelihoods import Likelihood
from dspp.predictive import LatentMixture
from dspp.registry import Registry


class Objective(Protocol):
    """What the training loop calls."""

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
    ) -> Tensor:
        """The objective per row."""


OBJECTIVES: Registry[Objective] = Registry("objective")


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
) -> Float[Tensor, ""]:
    """Regularised maximum likelihood of the predictive distribution itself (eq. 16 for one layer, eq. 21 for more).

    With a rule this trains a DSPP; with Monte Carlo samples the logarithm of the average makes it a biased estimate
    (BPDGP).
    """
    return likelihood.log_prob(latent, y).mean() - beta * kl / num_data


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
) -> Float[Tensor, ""]:
    """The evidence lower bound (eqs. 6 and 13): E_q[log p(y|f)], exact in the top layer, by the components below it."""
    score = latent.weights @ likelihood.expected_log_prob(latent, y)  # (N,)
    return score.mean() - beta * kl / num_data


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
) -> Float[Tensor, ""]:
    """The γ-robust bound (Knoblauch 2019): the log-likelihood is replaced by

        γ/(γ−1) · E_q[p(y|f)^(γ−1)] / I^((γ−1)/γ),   I = ∫ p(y|f)^γ dy.

    The normalising integral I stands in the denominator to the power (γ−1)/γ: with it the score is proper, that is,
    highest in expectation for the true density (a test integrates it). GPyTorch multiplies by the same power instead.
    """  # noqa: D415
    score = latent.weights @ likelihood.gamma_score(latent, y, gamma, -(gamma - 1) / gamma)
    return score.mean() - beta * kl / num_data

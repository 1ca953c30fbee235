"""The base class of likelihoods, which turn a latent mixture into a score and a predictive distribution."""

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dspp.config import ModelConfig
from dspp.errors import InputError
from dspp.predictive import LatentMixture, Predictive
from dspp.predictive.maths import average
from dspp.registry import Registry

LIKELIHOODS: Registry[type["Likelihood"]] = Registry("likelihood")
HERMITE_SITES = 20  # of the integral over a latent function without a closed form
MAX_HERMITE_GRID = 10_000  # sites of the product grid of several latent functions


class Likelihood(nn.Module, ABC):
    """p(y | f) with its parameters, for targets (N, E) as the outcome encodes them.

    Args:
        num_outputs: T.
        config: the model's settings, such as the initial noise and its floor.
        num_components: S of the latent mixture, if it is the same in training and in prediction; None otherwise, or if
            there is no rule.
        generator: source of random initial values.

    Attributes:
        outcome: the kind of target it scores, by its name in `OUTCOMES`.
        closed_form: whether a GP with it can be fitted without steps, as the noise is Gaussian with one variance.

    Example:
        >>> import torch
        >>> from dspp import ModelConfig
        >>> from dspp.likelihoods import LIKELIHOODS
        >>> from dspp.predictive import LatentMixture
        >>> latent = LatentMixture(torch.zeros(1), torch.zeros(1, 3, 1), torch.ones(1, 3, 1))  # S = 1, N = 3, L = 1
        >>> likelihood = LIKELIHOODS["gaussian"](1, ModelConfig())  # `Extending` has one of your own
        >>> likelihood(latent)
        NormalMixture(N=3, S=1, mean 0)
        >>> likelihood.log_prob(latent, torch.zeros(3, 1)).shape
        torch.Size([3])
    """

    outcome: ClassVar[str] = "real"
    closed_form: ClassVar[bool] = False

    def __init__(
        self,
        num_outputs: int,
        config: ModelConfig,
        num_components: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.num_outputs = num_outputs

    @classmethod
    def num_latents(cls, num_outputs: int) -> int:
        """Return L, the number of latent functions for T outputs: the width of the top layer."""
        return num_outputs

    @abstractmethod
    def forward(self, latent: LatentMixture) -> Predictive:
        """Return the predictive distribution of the encoded targets."""

    @classmethod
    def from_moments(
        cls, log_weights: Float[Tensor, " S"], mean: Float[Tensor, "S N T"], var: Float[Tensor, "S N T"]
    ) -> Predictive | None:
        """Return a predictive distribution with these component moments and independent outputs; None: there is none.

        An ensemble uses it for the marginal distribution of the targets.
        """
        return None

    def log_prob(self, latent: LatentMixture, y: Float[Tensor, "N T"]) -> Float[Tensor, " N"]:
        """Return log p(y_n), the density of the predictive distribution."""
        predictive: Predictive = self(latent)
        return predictive.log_prob(y)

    def expected_log_prob(self, latent: LatentMixture, y: Float[Tensor, "N T"]) -> Float[Tensor, "S N"]:
        """Return E[log p(y_n | f)] over f ~ N(μ_sn, v_sn), the data term of the ELBO."""
        f, weights = hermite_grid(latent)
        return average(weights, self.conditional_log_prob(f, y))

    def gamma_score(
        self, latent: LatentMixture, y: Float[Tensor, "N T"], gamma: float, integral_power: float
    ) -> Float[Tensor, "S N"]:
        """Return γ/(γ−1) · E[p(y_n | f)^(γ−1) · I(f)^power] for each component, with I(f) = ∫ p(y | f)^γ dy."""
        check_gamma(gamma)
        f, weights = hermite_grid(latent)
        tempered = (gamma - 1) * self.conditional_log_prob(f, y) + integral_power * self.log_power_integral(f, gamma)
        return gamma / (gamma - 1) * average(weights, tempered.exp())

    def conditional_log_prob(self, f: Float[Tensor, "K S N L"], y: Float[Tensor, "N T"]) -> Float[Tensor, "K S N"]:
        """Return log p(y_n | f); needed by objectives that integrate over f, unless a closed form is given."""
        raise InputError(
            f"the likelihood {type(self).__name__} does not define p(y | f); use the objective 'predictive'"
        )

    def log_power_integral(self, f: Float[Tensor, "K S N L"], gamma: float) -> Float[Tensor, "*K_S_N"]:
        """Return log ∫ p(y | f)^γ dy (a sum for classes and counts); only the gamma-elbo needs it."""
        raise InputError(
            f"the likelihood {type(self).__name__} does not define ∫ p^γ; use another objective than 'gamma-elbo'"
        )

    def set_noise(self, above_floor: float) -> None:
        """Set how far the noise variance lies above its floor; a likelihood with `closed_form` has one.

        Raises:
            InputError: The likelihood has no noise of one variance.
        """
        raise InputError(f"the likelihood {type(self).__name__} has no noise of one variance; train it by steps")

    def prune(self, keep: Bool[Tensor, " S"]) -> "Likelihood":
        """Return the same likelihood for a latent mixture of only these components."""
        return self


def check_single(name: str, num_outputs: int) -> int:
    """Check that there is one output, for likelihoods of one output, and return 1."""
    if num_outputs != 1:
        raise InputError(f"the likelihood {name!r} expected 1 output, got {num_outputs}; use the likelihood 'gaussian'")
    return num_outputs


def check_gamma(gamma: float) -> None:
    """Check that the score is defined for this γ."""
    if gamma <= 1:
        raise InputError(f"gamma: expected a number > 1, got {gamma}; the paper uses 1.01, 1.03, 1.05 and 1.1")


def hermite_grid(latent: LatentMixture) -> tuple[Float[Tensor, "K S N L"], Float[Tensor, " K"]]:
    """Return the product grid of the Gauss–Hermite sites μ + ξ √v of the latent functions, and its weights."""
    L = latent.mean.shape[-1]
    count = min(HERMITE_SITES, max(2, int(MAX_HERMITE_GRID ** (1 / L))))
    sites, weights = np.polynomial.hermite_e.hermegauss(count)
    grid = np.stack(np.meshgrid(*[sites] * L, indexing="ij"), axis=-1).reshape(-1, L)
    mass = np.stack(np.meshgrid(*[weights / weights.sum()] * L, indexing="ij"), axis=-1).reshape(-1, L).prod(axis=1)
    xi, omega = (torch.from_numpy(part).to(latent.mean) for part in (grid, mass))
    return latent.mean + xi[:, None, None, :] * latent.var.sqrt(), omega

"""Gaussian noise, for one real output or several outputs mixed by a linear model of coregionalisation."""

import math
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from dspp.config import ModelConfig
from dspp.errors import InputError
from dspp.gp.kernels import inverse_softplus
from dspp.likelihoods.base import LIKELIHOODS, Likelihood, check_gamma
from dspp.predictive import LatentMixture, MultivariateNormalMixture, NormalMixture

AnyNormal = NormalMixture | MultivariateNormalMixture


@LIKELIHOODS.register("gaussian")
class Gaussian(Likelihood):
    """One output: Σ_s ω_s N(μ_s, σ_s² + σ_obs²) (eq. 20, which omits σ_obs²); several: see `coregionalise`.

    The noise has a floor, which is part of the model: without one, the density could grow without bound on repeated
    targets. A starts at the identity.
    """

    closed_form: ClassVar[bool] = True

    def __init__(
        self,
        num_outputs: int,
        config: ModelConfig,
        num_components: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(num_outputs, config, num_components, generator)
        self.noise_floor = config.noise_floor
        self.raw_noise = nn.Parameter(start_noise(config, num_outputs))
        if num_outputs > 1:
            self.mixing = nn.Parameter(torch.eye(num_outputs, dtype=torch.float32))

    @property
    def noise_var(self) -> Float[Tensor, " T"]:
        """σ_obs² of each output."""
        return self.noise_floor + softplus(self.raw_noise)

    def set_noise(self, above_floor: float) -> None:
        """Set how far σ_obs² of all outputs lies above its floor."""
        with torch.no_grad():
            self.raw_noise.fill_(inverse_softplus(above_floor))

    def forward(self, latent: LatentMixture) -> AnyNormal:
        """Return the predictive distribution, including observation noise."""
        if self.num_outputs > 1:
            return coregionalise(latent, self.mixing, self.noise_var)
        mean, var = latent.mean.squeeze(-1), latent.var.squeeze(-1)
        return NormalMixture(latent.log_weights, mean, var, self.noise_var)

    @classmethod
    def from_moments(
        cls, log_weights: Float[Tensor, " S"], mean: Float[Tensor, "S N T"], var: Float[Tensor, "S N T"]
    ) -> AnyNormal:
        """Return a mixture of Normals; all of their variance counts as latent."""
        noise = var.new_zeros(var.shape[-1])
        if var.shape[-1] > 1:
            return MultivariateNormalMixture(log_weights, mean, torch.diag_embed(var), noise)
        return NormalMixture(log_weights, mean.squeeze(-1), var.squeeze(-1), noise)

    def expected_log_prob(self, latent: LatentMixture, y: Float[Tensor, "N T"]) -> Float[Tensor, "S N"]:
        """Return E[log p(y_n | f)] in closed form."""
        return self.forward(latent).expected_log_lik(y)

    def gamma_score(
        self, latent: LatentMixture, y: Float[Tensor, "N T"], gamma: float, integral_power: float
    ) -> Float[Tensor, "S N"]:
        """Return the tempered score in closed form."""
        return gamma_score(self.forward(latent), y, gamma, integral_power)


def start_noise(config: ModelConfig, num_outputs: int) -> Float[Tensor, " T"]:
    """Return the initial raw noise variances, in float32 whatever torch's default dtype."""
    noise, floor = config.noise, config.noise_floor
    if noise <= floor or floor < 0:
        raise InputError(f"expected 0 <= noise_floor < noise, got noise {noise} and noise_floor {floor}")
    return torch.full((num_outputs,), inverse_softplus(noise - floor), dtype=torch.float32)


def coregionalise(
    latent: LatentMixture, mixing: Float[Tensor, "T T"], noise_var: Float[Tensor, " T"]
) -> MultivariateNormalMixture:
    """Apply the linear model of coregionalisation: y = F A + noise, T latent GPs F and a T×T matrix A (eq. 24).

    Components are multivariate Normals with covariance Aᵀ diag(σ²) A + diag(σ_obs²).
    """
    outer = mixing.unsqueeze(-1) * mixing.unsqueeze(-2)  # (W, T, T)
    cov = (latent.var @ outer.flatten(1)).unflatten(-1, outer.shape[1:])
    return MultivariateNormalMixture(latent.log_weights, latent.mean @ mixing, cov, noise_var)


def gamma_score(mixture: AnyNormal, y: Tensor, gamma: float, integral_power: float) -> Float[Tensor, "S N"]:
    """Return γ/(γ−1) · E[p(y|f)^(γ−1)] · I^power for each component, for Gaussian p(y|f) = N(f, r), f ~ N(μ, Σ).

    With c = γ − 1, p^c is a Normal density of variance r/c times a constant, so E[p^c] needs one Normal convolution.
    """
    check_gamma(gamma)
    c, r = gamma - 1, mixture.noise_var
    log_2pi_r = torch.log(2 * math.pi * r)
    log_constant = 0.5 * (log_2pi_r - math.log(c) - c * log_2pi_r)  # N(f, r)^c = e^constant · N(f, r/c)
    log_integral = -0.5 * (c * log_2pi_r + math.log(gamma))
    if isinstance(mixture, MultivariateNormalMixture):  # one likelihood for all T outputs: logs add up
        missing = y.isnan()  # an output not observed has no factor in the likelihood
        log_constant, log_integral = (torch.where(missing, 0.0, v).sum(-1) for v in (log_constant, log_integral))
    log_tempered = log_constant + mixture.with_noise(r / c).component_log_prob(y)
    return (gamma / c) * torch.exp(log_tempered + integral_power * log_integral)

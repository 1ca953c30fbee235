"""Heads: from the GPs of the top layer to a predictive mixture."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from dspp.errors import InputError
from dspp.gp.kernels import inverse_softplus
from dspp.mixture import AnyMixture, MultivariateNormalMixture, NormalMixture
from dspp.registry import Registry

HEADS: Registry[type["Head"]] = Registry("head")


class Head(nn.Module, ABC):
    """T Gaussian observation noises with a floor, and what mixes the top layer's GPs into T outputs.

    The floor is part of the model: without one, a density may spike without limit on targets that repeat.
    """

    def __init__(self, num_outputs: int, noise: float, noise_floor: float) -> None:
        super().__init__()
        if noise <= noise_floor or noise_floor < 0:
            raise InputError(f"got noise {noise} and noise_floor {noise_floor}, expected 0 <= noise_floor < noise")
        self.num_outputs, self.noise_floor = num_outputs, noise_floor
        self.raw_noise = nn.Parameter(torch.full((num_outputs,), inverse_softplus(noise - noise_floor)))

    @property
    def noise_var(self) -> Float[Tensor, " T"]:
        """σ_obs² of each output."""
        return self.noise_floor + softplus(self.raw_noise)

    @abstractmethod
    def forward(
        self, log_weights: Float[Tensor, " S"], mean: Float[Tensor, "S N W"], var: Float[Tensor, "S N W"]
    ) -> AnyMixture:
        """The predictive distribution, observation noise included."""


@HEADS.register("single")
class SingleOutput(Head):
    """One output, Gaussian noise: Σ_s ω_s N(μ_s, σ_s² + σ_obs²) (eq. 20, with the σ_obs² that it lost)."""

    def __init__(self, num_outputs: int, noise: float, noise_floor: float) -> None:
        if num_outputs != 1:
            raise InputError(f"the head 'single' got {num_outputs} outputs, expected 1; use the head 'lmc'")
        super().__init__(1, noise, noise_floor)

    def forward(
        self, log_weights: Float[Tensor, " S"], mean: Float[Tensor, "S N W"], var: Float[Tensor, "S N W"]
    ) -> NormalMixture:
        """The predictive distribution, observation noise included."""
        return NormalMixture(log_weights, mean.squeeze(-1), var.squeeze(-1), self.noise_var.squeeze(0))


@HEADS.register("lmc")
class LMC(Head):
    """Linear model of coregionalisation: y = F A + noise, T latent GPs F and a learned T×T matrix A (eq. 24).

    Components are multivariate Normals with covariance Aᵀ diag(σ²) A + diag(σ_obs²). A starts at the identity.
    """

    def __init__(self, num_outputs: int, noise: float, noise_floor: float) -> None:
        super().__init__(num_outputs, noise, noise_floor)
        self.mixing = nn.Parameter(torch.eye(num_outputs))

    def forward(
        self, log_weights: Float[Tensor, " S"], mean: Float[Tensor, "S N W"], var: Float[Tensor, "S N W"]
    ) -> MultivariateNormalMixture:
        """The predictive distribution, observation noise included."""
        outer = self.mixing.unsqueeze(-1) * self.mixing.unsqueeze(-2)  # (W, T, T)
        cov = (var @ outer.flatten(1)).unflatten(-1, outer.shape[1:])
        return MultivariateNormalMixture(log_weights, mean @ self.mixing, cov, self.noise_var)

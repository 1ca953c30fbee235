"""The mixture of Normals for one output: density, cdf, quantiles, CRPS."""

from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.distributions import MixtureSameFamily, Normal

from dspp.predictive import maths, series
from dspp.predictive.base import Mixture
from dspp.predictive.one_output import OneOutput
from dspp.table.checks import Array


@final
@dataclass(frozen=True, eq=False, repr=False)
class NormalMixture(OneOutput, Mixture):
    """p(y_n) = Σ_s ω_s N(y_n | μ_sn, v_sn + σ²): one output.

    The cdf, quantiles and CRPS are computed and returned in float64, which probabilities near 1 need.

    Attributes:
        log_weights: log ω, with Σ_s ω_s = 1: (S,), or (S, N) if they differ between rows.
        component_mean: μ, the mean of each component.
        latent_var: v, the variance of the latent function alone.
        noise_var: σ², the variance of the observation noise: a scalar, or a shape that broadcasts to (S, N).

    Raises:
        InputError: The shapes do not match, or the weights do not sum to one.
        NumericalError: A component's variance is not positive.

    Example:
        >>> import torch
        >>> from dspp import NormalMixture
        >>> half = torch.tensor([0.5, 0.5])
        >>> mean = torch.tensor([[-1.0], [1.0]])  # two components, one row
        >>> mixture = NormalMixture(half.log(), mean, torch.full((2, 1), 0.25), torch.tensor(0.0))
        >>> mixture.mean.tolist(), mixture.var.tolist()
        ([0.0], [1.25])
        >>> mixture.cdf(torch.tensor([0.0])).tolist()
        [0.5]
    """

    latent_var: Float[Tensor, "S N"]
    noise_var: Float[Tensor, "*#S_N"]

    def __post_init__(self) -> None:
        if self.noise_var.shape == (1,):  # as a likelihood of one output stores it
            object.__setattr__(self, "noise_var", self.noise_var.squeeze(0))
        maths.check_components(self.log_weights, self.component_mean, self.latent_var, self.noise_var, "S, N")
        maths.check_variance(self.component_var)

    @property
    def component_var(self) -> Float[Tensor, "S N"]:
        """Variance of each component: v + σ²."""
        return self.latent_var + self.noise_var

    def component_log_prob(self, y: Array) -> Float[Tensor, "S N"]:
        """Return log N(y_n | μ_sn, v_sn + σ²), without the weights."""
        y = maths.check_targets(y, self.component_mean)
        return maths.normal_log_prob(y, self.component_mean, self.component_var)

    def expected_log_lik(self, y: Array) -> Float[Tensor, "S N"]:
        """Return E[log N(y_n | f, σ²)] over f ~ N(μ_sn, v_sn), the data term of the ELBO."""
        y = maths.check_targets(y, self.component_mean)
        return maths.expected_normal_log_prob(y, self.component_mean, self.latent_var, self.noise_var)

    def cdf(self, y: Array) -> Float[Tensor, " *K N"]:
        """Return P(Y_n <= y_n) for one value per row, (N,), or for K values per row, (K, N)."""
        y = maths.check_targets(y, self.component_mean, many=True)
        weights, mean, var = self._in_float64()
        return maths.over_row_chunks(maths.mixture_cdf, y.shape[:-1].numel(), weights, y.double(), mean, var.sqrt())

    @torch.no_grad()
    def quantile(self, p: float | Float[Tensor, " *K"]) -> Float[Tensor, " *K N"]:
        """Return x with |F(x) − p| <= 1e-8, or as near as float64 allows, for one or K probabilities."""
        wanted = maths.check_probabilities(p, self.component_mean.device)
        weights, mean, var = self._in_float64()
        solve = partial(maths.mixture_quantile, p=wanted.reshape(-1, 1))
        solution = maths.over_row_chunks(solve, wanted.numel(), weights, mean, var.sqrt())
        return solution.reshape(*wanted.shape, self.num_rows)

    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N"]:
        """Draw `num` independent values per row, reproducibly from `generator`; not differentiable."""
        which, normal = self._draw(num, generator)
        mean, std = self.component_mean.detach(), self.component_var.detach().sqrt()
        return mean.gather(0, which) + std.gather(0, which) * normal

    def crps(self, y: Array) -> Float[Tensor, " N"]:
        """Return the continuous ranked probability score ∫ (F(x) − 1{y_n <= x})² dx, in the units of y."""
        y = maths.check_targets(y, self.component_mean)
        weights, mean, var = self._in_float64()
        return maths.over_row_chunks(series.crps, 2, weights, y.double(), mean, var)

    def mean_distance(self, y: Array) -> Float[Tensor, " N"]:
        """Return E|Y_n − y_n|, the first term of the CRPS, in the units of y."""
        y = maths.check_targets(y, self.component_mean)
        weights, mean, var = self._in_float64()
        return maths.over_row_chunks(maths.mixture_distance, 1, weights, y.double(), mean, var)

    def widen(self, factor: float, floor: float = 0.0) -> "NormalMixture":
        """Return the mixture with the variance of every component multiplied by `factor`, the noise >= `floor`."""
        noise_var = maths.scale_noise(self.noise_var, factor, floor)
        return replace(self, latent_var=factor * self.latent_var, noise_var=noise_var)

    def approach_standard(self, share: Float[Tensor, " N"]) -> "NormalMixture":
        """Return the mixture whose components have gone a share of the way to N(0, 1), which may differ by row.

        Each has the mean and variance of (1 − h) N(μ, v + σ²) + h N(0, 1), where h is the share; none is narrower.
        """
        kept = 1.0 - share
        between = share * kept * self.component_mean.square() + share * (1.0 - self.noise_var).clamp(min=0.0)
        return replace(self, component_mean=kept * self.component_mean, latent_var=kept * self.latent_var + between)

    def to_torch(self) -> MixtureSameFamily:
        """Return the same distribution for `torch.distributions`, of batch shape (N,), gradients included."""
        components = Normal(self.component_mean.T, self.component_var.sqrt().T)  # (N, S)
        return MixtureSameFamily(self._categorical(), components)

    def affine(self, shift: float | Float[Tensor, ""], scale: float | Float[Tensor, ""]) -> "NormalMixture":
        """Return the distribution of shift + scale·y, exactly; in float32 a large shift costs digits."""
        a, b = maths.shift_and_scale(shift, scale, self.component_mean)
        mean, b2 = a + b * self.component_mean, b.square()
        return NormalMixture(self.log_weights, mean, b2 * self.latent_var, b2 * self.noise_var)

    def _in_float64(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights, means and variances of the components."""
        exact = self.to(torch.float64)
        return exact.weights, exact.component_mean, exact.component_var

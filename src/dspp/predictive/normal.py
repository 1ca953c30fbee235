"""The mixture of Normals for one output: density, cdf, quantiles, CRPS."""

from dataclasses import dataclass
from typing import Self, final

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.distributions import MixtureSameFamily, Normal

from dspp.predictive import maths, series
from dspp.predictive.base import RealPredictive
from dspp.predictive.maths import Components, Values, Weights
from dspp.table.checks import Array


def mixture_cdf(weights: Weights, y: Values, mean: Components, var: Components) -> Values:
    """Return F(y), as `maths.mixture_cdf` does, of variances."""
    return maths.mixture_cdf(weights, y, mean, var.sqrt())


def mixture_quantile(weights: Weights, mean: Components, var: Components, p: Float[Tensor, "K 1"]) -> Values:
    """Solve F(x) = p, as `maths.mixture_quantile` does, of variances."""
    return maths.mixture_quantile(weights, mean, var.sqrt(), p)


@final
@dataclass(frozen=True, eq=False, repr=False)
class NormalMixture(RealPredictive):
    """p(y_n) = Σ_s ω_s N(y_n | μ_sn, v_sn + σ²): one output.

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

    _cdf = staticmethod(mixture_cdf)
    _quantile = staticmethod(mixture_quantile)
    _distance = staticmethod(maths.mixture_distance)
    _crps = staticmethod(series.crps)

    log_weights: Float[Tensor, " S *N"]
    component_mean: Float[Tensor, "S N"]
    latent_var: Float[Tensor, "S N"]
    noise_var: Float[Tensor, "#S #N"]

    def __post_init__(self) -> None:
        parts = self.log_weights, self.component_mean, self.latent_var, self.noise_var
        object.__setattr__(self, "noise_var", *maths.check_components(*parts, axes="S, N"))
        maths.check_variance(self.component_var)

    @property
    def component_var(self) -> Float[Tensor, "S N"]:
        """Variance of each component: v + σ²."""
        return self.latent_var + self.noise_var

    def component_log_prob(self, y: Array) -> Float[Tensor, "S N"]:
        """Return log N(y_n | μ_sn, v_sn + σ²), without the weights."""
        return maths.normal_log_prob(self._check(y), self.component_mean, self.component_var)

    def expected_log_lik(self, y: Array) -> Float[Tensor, "S N"]:
        """Return E[log N(y_n | f, σ²)] over f ~ N(μ_sn, v_sn), the data term of the ELBO."""
        return maths.expected_normal_log_prob(self._check(y), self.component_mean, self.latent_var, self.noise_var)

    def _in_float64(self) -> tuple[Tensor, ...]:
        exact = self.to(torch.float64)
        return exact.weights, exact.component_mean, exact.component_var

    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N"]:
        """Draw `num` independent values per row, reproducibly from `generator`; not differentiable."""
        which, normal = self._draw(num, generator)
        mean, std = self.component_mean.detach(), self.component_var.detach().sqrt()
        return mean.gather(0, which) + std.gather(0, which) * normal

    def widen(self, factor: float, floor: float = 0.0) -> Self:
        """Return the mixture with the variance of every component multiplied by `factor`, the noise >= `floor`."""
        noise_var = maths.scale_noise(self.noise_var, factor, floor)
        return self._replace(latent_var=factor * self.latent_var, noise_var=noise_var)

    def approach_standard(self, share: Float[Tensor, " N"]) -> Self:
        """Return the mixture whose components have gone a share of the way to N(0, 1), which may differ by row.

        Each has the mean and variance of (1 − h) N(μ, v + σ²) + h N(0, 1), where h is the share; none is narrower.
        """
        kept = 1.0 - share
        between = share * kept * self.component_mean.square() + share * (1.0 - self.noise_var).clamp(min=0.0)
        return self._replace(component_mean=kept * self.component_mean, latent_var=kept * self.latent_var + between)

    def affine(self, shift: float | Float[Tensor, ""], scale: float | Float[Tensor, ""]) -> Self:
        """Return the distribution of shift + scale·y, exactly; in float32 a large shift costs digits."""
        a, b = maths.shift_and_scale(shift, scale, self.component_mean)
        mean, b2 = a + b * self.component_mean, b.square()
        return self._replace(component_mean=mean, latent_var=b2 * self.latent_var, noise_var=b2 * self.noise_var)

    def to_torch(self) -> MixtureSameFamily:
        """Return the same distribution for `torch.distributions`, of batch shape (N,), gradients included."""
        return self._to_torch(Normal(self.component_mean.T, self.component_var.sqrt().T))

"""The mixture of multivariate Normals for T correlated outputs; NaN in y means "not observed"."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.distributions import MixtureSameFamily, MultivariateNormal

from dspp.errors import NumericalError
from dspp.predictive import maths
from dspp.predictive.base import Mixture
from dspp.predictive.normal import NormalMixture
from dspp.table.checks import Array


@final
@dataclass(frozen=True, eq=False, repr=False)
class MultivariateNormalMixture(Mixture):
    """p(y_n) = Σ_s ω_s N(y_n | μ_sn, C_sn + diag σ²): T correlated outputs.

    Attributes:
        log_weights: log ω, with Σ_s ω_s = 1: (S,), or (S, N) if they differ between rows.
        component_mean: μ, the mean of each component.
        latent_cov: C, the covariance of the latent functions alone.
        noise_var: σ², the observation noise of each output: (T,), or with axes for rows or components.

    Raises:
        InputError: The shapes do not match, or the weights do not sum to one.
        NumericalError: On use, if a covariance is not positive definite. No jitter is added.

    Example:
        >>> import torch
        >>> from dspp import MultivariateNormalMixture
        >>> cov = torch.tensor([[1.0, 0.8], [0.8, 1.0]]).expand(1, 1, 2, 2)  # S = 1, N = 1, T = 2
        >>> both = MultivariateNormalMixture(torch.zeros(1), torch.zeros(1, 1, 2), cov, torch.tensor([0.0, 1.0]))
        >>> both.var.tolist()
        [[1.0, 2.0]]
        >>> [type(one).__name__ for one in both.outputs()]
        ['NormalMixture', 'NormalMixture']
    """

    log_weights: Float[Tensor, " S *N"]
    component_mean: Float[Tensor, "S N T"]
    latent_cov: Float[Tensor, "S N T T"]
    noise_var: Float[Tensor, "#S #N T"]

    def __post_init__(self) -> None:
        parts = self.log_weights, self.component_mean, self.latent_cov, self.noise_var
        object.__setattr__(self, "noise_var", *maths.check_components(*parts, axes="S, N, T"))

    @property
    def latent_var(self) -> Float[Tensor, "S N T"]:
        """Variance of each latent function: the diagonal of C."""
        return self.latent_cov.diagonal(dim1=-2, dim2=-1)

    @property
    def component_var(self) -> Float[Tensor, "S N T"]:
        """Variances of each component: diag C + σ²."""
        return self.latent_var + self.noise_var

    @property
    def component_cov(self) -> Float[Tensor, "S N T T"]:
        """Covariance of each component: C + diag σ²."""
        return self.latent_cov + torch.diag_embed(self.noise_var)

    @property
    def cov(self) -> Float[Tensor, "N T T"]:
        """Cov[y] = Σ_s ω_s (C_s + diag σ² + d_s d_sᵀ), where d_s = μ_s − E[y]."""
        d = self.component_mean - self.mean
        return maths.average(self.weights, self.component_cov + d.unsqueeze(-1) * d.unsqueeze(-2))

    @property
    def median(self) -> Float[Tensor, "N T"]:
        """Median of each output alone."""
        return torch.stack([one.median for one in self.outputs()], dim=-1)

    def component_log_prob(self, y: Array) -> Float[Tensor, "S N"]:
        """Return log N(y_n | μ_sn, C_sn + diag σ²) of the observed outputs (0 if none), without the weights."""
        y = maths.check_targets(y, self.component_mean)
        exact = self.to(torch.float64)  # the covariance of strongly correlated outputs is nearly singular
        log_prob = maths.multivariate_normal_log_prob(y.double(), exact.component_mean, exact.component_cov)
        return log_prob.to(torch.result_type(y, self.component_mean))

    def expected_log_lik(self, y: Array) -> Float[Tensor, "S N"]:
        """Return E[log N(y_n | f, diag σ²)] over f ~ N(μ_sn, C_sn), the ELBO's data term, of the observed outputs."""
        y = maths.check_targets(y, self.component_mean)
        y, missing = maths.fill_missing(y, self.component_mean)
        score = maths.expected_normal_log_prob(y, self.component_mean, self.latent_var, self.noise_var)
        return (score if missing is None else score.masked_fill(missing, 0.0)).sum(-1)

    def marginal(self, t: int) -> NormalMixture:
        """Return the distribution of output `t` alone, which has a cdf, quantiles and intervals."""
        maths.check_outputs([t], self.num_outputs)
        mean, latent_var = self.component_mean[..., t], self.latent_cov[..., t, t]
        return NormalMixture(self.log_weights, mean, latent_var, self.noise_var[..., t])

    def outputs(self) -> list[NormalMixture]:
        """Return the distribution of each output alone."""
        return [self.marginal(t) for t in range(self.num_outputs)]

    def select(self, outputs: Sequence[int]) -> Self:
        """Return the joint distribution of some of the outputs, in the given order."""
        maths.check_outputs(outputs, self.num_outputs)
        t = torch.tensor(list(outputs), device=self.component_mean.device)
        mean, cov = self.component_mean[..., t], self.latent_cov[..., t[:, None], t]
        return self._replace(component_mean=mean, latent_cov=cov, noise_var=self.noise_var[..., t])

    def widen(self, factor: float, floor: float = 0.0) -> Self:
        """Return the mixture with the covariance of every component multiplied by `factor`, the noise >= `floor`."""
        noise_var = maths.scale_noise(self.noise_var, factor, floor)
        return self._replace(latent_cov=factor * self.latent_cov, noise_var=noise_var)

    def approach_standard(self, share: Float[Tensor, " N"]) -> Self:
        """Return the mixture whose components have gone a share of the way to N(0, I); see `NormalMixture`."""
        h, mean = share.unsqueeze(-1), self.component_mean  # (N, 1)
        between = (h * (1.0 - h)).unsqueeze(-1) * mean.unsqueeze(-1) * mean.unsqueeze(-2)
        own = torch.diag_embed((h * (1.0 - self.noise_var).clamp(min=0.0)).expand_as(mean))
        cov = (1.0 - h).unsqueeze(-1) * self.latent_cov + between + own
        return self._replace(component_mean=(1.0 - h) * mean, latent_cov=cov)

    def to_torch(self) -> MixtureSameFamily:
        """Return the same distribution for `torch.distributions`: batch (N,), event (T,), gradients included.

        Raises:
            NumericalError: A covariance is not positive definite in this dtype.
        """
        mean, cov = self.component_mean.movedim(0, 1), self.component_cov.movedim(0, 1)  # (N, S, T), (N, S, T, T)
        try:
            components = MultivariateNormal(mean, cov)
        except (ValueError, RuntimeError):  # from the check of its arguments and from LAPACK
            raise NumericalError(
                f"a component covariance is not positive definite in {cov.dtype}; call .to(torch.float64) first"
            ) from None
        return self._to_torch(components)

    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N T"]:
        """Draw `num` independent vectors per row, reproducibly from `generator`; not differentiable."""
        which, normal = self._draw(num, generator)
        row = torch.arange(self.num_rows, device=which.device)
        L = maths.cholesky(self.to(torch.float64).component_cov.detach()).to(normal.dtype)
        deviation = L[which, row] @ normal.unsqueeze(-1)  # (num, N, T, 1)
        return self.component_mean.detach()[which, row] + deviation.squeeze(-1)

    def crps(self, y: Array) -> Float[Tensor, "N T"]:
        """Return the continuous ranked probability score of the marginal of each output; NaN if it was not observed."""
        y = maths.check_targets(y, self.component_mean)
        y, missing = maths.fill_missing(y, self.mean)
        score = torch.stack([one.crps(y[:, t]) for t, one in enumerate(self.outputs())], dim=-1)
        return score if missing is None else score.masked_fill(missing, math.nan)

    def affine(self, shift: float | Float[Tensor, " *T"], scale: float | Float[Tensor, " *T"]) -> Self:
        """Return the distribution of shift + scale·y, output by output, as `NormalMixture.affine` does."""
        a, b = maths.shift_and_scale(shift, scale, self.component_mean)
        mean, latent_cov = a + b * self.component_mean, torch.outer(b, b) * self.latent_cov
        return self._replace(component_mean=mean, latent_cov=latent_cov, noise_var=b.square() * self.noise_var)

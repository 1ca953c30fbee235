"""The mixture of log-normal distributions of one output: the exponential of a mixture of Normals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, final

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from dspp.errors import InputError
from dspp.predictive import maths
from dspp.predictive.base import WeightedComponents
from dspp.predictive.normal import NormalMixture
from dspp.predictive.one_output import OneOutput
from dspp.table.checks import Array


@final
@dataclass(frozen=True, eq=False, repr=False)
class LogNormalMixture(OneOutput, WeightedComponents):
    """The distribution of y = exp(x) for a mixture of Normals x: positive targets.

    Attributes:
        log: The mixture of log y.

    Example:
        >>> import torch
        >>> from dspp import LogNormalMixture, NormalMixture
        >>> log = NormalMixture(torch.zeros(1), torch.zeros(1, 1), torch.ones(1, 1), torch.tensor(0.0))
        >>> price = LogNormalMixture(log)
        >>> [round(float(value), 3) for value in (price.quantile(0.5)[0], price.mean[0])]  # 1 and √e
        [1.0, 1.649]
    """

    support: ClassVar[tuple[float, float]] = (0.0, math.inf)

    log: NormalMixture

    @property
    def log_weights(self) -> Float[Tensor, " S *N"]:  # type: ignore[override]
        """Log weight of each component."""
        return self.log.log_weights

    @property
    def num_rows(self) -> int:
        """N, the number of rows."""
        return self.log.num_rows

    @property
    def num_outputs(self) -> int:
        """T, which is one."""
        return 1

    @property
    def component_mean(self) -> Float[Tensor, "S N"]:  # type: ignore[override]
        """Mean of each component: exp(μ + ½ v)."""
        return torch.exp(self.log.component_mean + 0.5 * self.log.component_var)

    @property
    def component_var(self) -> Float[Tensor, "S N"]:
        """Variance of each component: (eᵛ − 1) exp(2 μ + v)."""
        return torch.expm1(self.log.component_var) * self.component_mean.square()

    def component_log_prob(self, y: Array) -> Float[Tensor, "S N"]:
        """Return log p_s(y_n), without the weights; −inf if y is not positive."""
        log_y, jacobian = self._log(y)
        return self.log.component_log_prob(log_y) - jacobian

    def log_prob(self, y: Array) -> Float[Tensor, " N"]:
        """Return log p(y_n) = log p_x(log y_n) − log y_n; −inf if y is not positive."""
        log_y, jacobian = self._log(y)
        return self.log.log_prob(log_y) - jacobian

    def cdf(self, y: Array) -> Float[Tensor, " *K N"]:
        """Return P(Y_n <= y_n) for one value per row, (N,), or for K values per row, (K, N)."""
        y = maths.check_targets(y, self.log.component_mean, many=True)
        return self.log.cdf(torch.where(y > 0.0, y, 0.0).log())

    def quantile(self, p: float | Float[Tensor, " *K"]) -> Float[Tensor, " *K N"]:
        """Return the exponential of the quantiles of log y, for one or K probabilities."""
        return self.log.quantile(p).exp()

    def crps(self, y: Array) -> Float[Tensor, " N"]:
        """Return the continuous ranked probability score ∫ (F(x) − 1{y_n <= x})² dx, in the units of y."""
        y = maths.check_targets(y, self.log.component_mean)
        exact = self.log.to(torch.float64)
        components = (exact.weights, y.double(), exact.component_mean, exact.component_var)
        return maths.over_row_chunks(_mixture_crps, 1, *components)

    def mean_distance(self, y: Array) -> Float[Tensor, " N"]:
        """Return E|Y_n − y_n|, the first term of the CRPS, in the units of y."""
        y = maths.check_targets(y, self.log.component_mean)
        exact = self.log.to(torch.float64)
        components = (exact.weights, y.double(), exact.component_mean, exact.component_var)
        return maths.over_row_chunks(_mixture_distance, 1, *components)

    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N"]:
        """Draw `num` independent values per row, reproducibly from `generator`; not differentiable."""
        return self.log.sample(num, generator).exp()

    def rows(self, index: slice | Sequence[int] | Tensor) -> "LogNormalMixture":
        """Return the mixture of some rows: a slice, a list or tensor of row numbers, or a mask."""
        return LogNormalMixture(self.log.rows(index))

    def widen(self, factor: float, floor: float = 0.0) -> "LogNormalMixture":
        """Return the mixture with the variance of every component of log y multiplied by `factor`."""
        return LogNormalMixture(self.log.widen(factor, floor))

    def approach_standard(self, share: Float[Tensor, " N"]) -> "LogNormalMixture":
        """Return the mixture whose components of log y have gone a share of the way to N(0, 1)."""
        return LogNormalMixture(self.log.approach_standard(share))

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> "LogNormalMixture":
        """Return the same mixture in another dtype or on another device."""
        return LogNormalMixture(self.log.to(dtype, device))

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Concatenate rows, such as the batches of one prediction or rows predicted by different models."""
        return cls(NormalMixture.concat([part.log for part in parts]))

    @classmethod
    def mix(cls, parts: Sequence[Self], weights: Sequence[float]) -> Self:
        """Mix distributions of the same rows, with weights that sum to one, by mixing their logarithms."""
        if not all(isinstance(part, LogNormalMixture) for part in parts):
            raise InputError("expected distributions of one type, got several; mix predictions for the same rows")
        return cls(NormalMixture.mix([part.log for part in parts], weights))

    def _log(self, y: Array) -> tuple[Tensor, Tensor]:
        """Return log y and the log Jacobian to subtract from a log density; (0, inf) if y is not positive."""
        y = maths.check_targets(y, self.log.component_mean)
        log_y = torch.where(y > 0.0, y, 1.0).log()
        return log_y, torch.where(y > 0.0, log_y, math.inf)


def _mixture_distance(
    weights: Float[Tensor, " S *N"],
    y: Float[Tensor, " N"],
    log_mean: Float[Tensor, "S N"],
    log_var: Float[Tensor, "S N"],
) -> Float[Tensor, " N"]:
    """Return E|Y − y| = Σ_s ω_s (m_s erf((σ_s − z_s)/√2) + y erf(z_s/√2)); z = (log y − μ)/σ, m = exp(μ + ½σ²)."""
    root, std = math.sqrt(0.5), log_var.sqrt()
    z = (torch.where(y > 0.0, y, 0.0).log() - log_mean) / std
    m = (log_mean + 0.5 * log_var).exp()
    return maths.weighted_sum(weights, m * torch.erf((std - z) * root) + y * torch.erf(z * root))


def _mixture_crps(
    weights: Float[Tensor, " S *N"],
    y: Float[Tensor, " N"],
    log_mean: Float[Tensor, "S N"],
    log_var: Float[Tensor, "S N"],
) -> Float[Tensor, " N"]:
    """Return CRPS(F, y) = E|Y − y| − ½ E|Y − Y'| with Y, Y' independent draws from F, all in closed form.

    For two components E|Y₁ − Y₂| = m₁ erf(d₁/√2) − m₂ erf((d₁ − s)/√2), where m = exp(μ + ½σ²), s² = σ₁² + σ₂²,
    d₁ = log(m₁/m₂)/s + ½s (Margrabe 1978).
    """
    root, std = math.sqrt(0.5), log_var.sqrt()
    log_m = log_mean + 0.5 * log_var
    m = log_m.exp()
    score = _mixture_distance(weights, y, log_mean, log_var)
    # within one component d₁ = σ/√2
    half_spread = maths.weighted_sum(weights.square(), m * torch.erf(0.5 * std))
    for i in range(1, len(weights)):  # each against those before it: S N numbers at a time instead of S² N
        s = (log_var[:i] + log_var[i]).sqrt()
        d = (log_m[:i] - log_m[i]) / s + 0.5 * s
        between = m[:i] * torch.erf(d * root) - m[i] * torch.erf((d - s) * root)
        half_spread = half_spread + weights[i] * maths.weighted_sum(weights[:i], between)
    return score - half_spread

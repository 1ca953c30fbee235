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
from dspp.predictive.base import RealPredictive
from dspp.predictive.maths import Components, Rows, Values, Weights
from dspp.predictive.normal import NormalMixture, mixture_cdf, mixture_quantile
from dspp.table.checks import Array


def _log(y: Tensor) -> Tensor:
    """Return log y, −inf if y is not positive."""
    return torch.where(y > 0.0, y, 0.0).log()


def _mixture_cdf(weights: Weights, y: Values, log_mean: Components, log_var: Components) -> Values:
    return mixture_cdf(weights, _log(y), log_mean, log_var)


def _mixture_quantile(weights: Weights, log_mean: Components, log_var: Components, p: Float[Tensor, "K 1"]) -> Values:
    return mixture_quantile(weights, log_mean, log_var, p).exp()


def _mixture_distance(weights: Weights, y: Rows, log_mean: Components, log_var: Components) -> Rows:
    """Return E|Y − y| = Σ_s ω_s (m_s erf((σ_s − z_s)/√2) + y erf(z_s/√2)); z = (log y − μ)/σ, m = exp(μ + ½σ²)."""
    root, std = math.sqrt(0.5), log_var.sqrt()
    z = (_log(y) - log_mean) / std
    m = (log_mean + 0.5 * log_var).exp()
    return maths.weighted_sum(weights, m * torch.erf((std - z) * root) + y * torch.erf(z * root))


def _mixture_crps(weights: Weights, y: Rows, log_mean: Components, log_var: Components) -> Rows:
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


@final
@dataclass(frozen=True, eq=False, repr=False)
class LogNormalMixture(RealPredictive):
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
    _cdf = staticmethod(_mixture_cdf)
    _quantile = staticmethod(_mixture_quantile)
    _distance = staticmethod(_mixture_distance)
    _crps = staticmethod(_mixture_crps)

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
        """Return log p_s(y_n) = log p_xs(log y_n) − log y_n, without the weights; −inf if y is not positive."""
        y = self._check(y)
        log_y = torch.where(y > 0.0, y, 1.0).log()
        return self.log.component_log_prob(log_y) - torch.where(y > 0.0, log_y, math.inf)

    def _check(self, y: Array, many: bool = False) -> Tensor:
        return self.log._check(y, many)

    def _in_float64(self) -> tuple[Tensor, ...]:
        return self.log._in_float64()

    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N"]:
        """Draw `num` independent values per row, reproducibly from `generator`; not differentiable."""
        return self.log.sample(num, generator).exp()

    def rows(self, index: slice | Sequence[int] | Tensor) -> Self:
        """Return the mixture of some rows: a slice, a list or tensor of row numbers, or a mask."""
        return type(self)(self.log.rows(index))

    def widen(self, factor: float, floor: float = 0.0) -> Self:
        """Return the mixture with the variance of every component of log y multiplied by `factor`."""
        return type(self)(self.log.widen(factor, floor))

    def approach_standard(self, share: Float[Tensor, " N"]) -> Self:
        """Return the mixture whose components of log y have gone a share of the way to N(0, 1)."""
        return type(self)(self.log.approach_standard(share))

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

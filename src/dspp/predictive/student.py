"""The mixture of Student-t distributions for one output: heavy tails, for targets with outliers."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Self, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.distributions import MixtureSameFamily, StudentT

from dspp.errors import InputError
from dspp.predictive import maths
from dspp.predictive.base import RealPredictive
from dspp.predictive.maths import Components, Rows, Values, Weights
from dspp.table.checks import Array

_BREAKS = (1.5, 5.0, 20.0, 60.0, 250.0)  # ends of the panels of ∫ F(1 − F), in units of a component's scale
_PANEL_NODES = 8  # Gauss–Legendre nodes per panel
_KNOTS, _LAST_KNOT = 2**15, math.asinh(1e6)  # of the table of a cdf, equally spaced in asinh z
_MAX_TABLES = 64  # distinct degrees of freedom up to which tables are faster


def student_log_prob(y: Tensor, mean: Tensor, scale: Tensor, df: Tensor) -> Tensor:
    """Return log t(y | μ, c, ν) = log C(ν) − log c − ½(ν + 1) log(1 + z²/ν), elementwise."""
    z = (y - mean) / scale
    return log_constant(df) - scale.log() - 0.5 * (df + 1.0) * torch.log1p(z * z / df)


def log_constant(df: Tensor) -> Tensor:
    """Return log C(ν) = log Γ(½(ν + 1)) − log Γ(½ν) − ½ log(πν); in float64, since its terms cancel."""
    half = 0.5 * df.double()
    return (torch.lgamma(half + 0.5) - torch.lgamma(half) - 0.5 * torch.log(2.0 * math.pi * half)).to(df.dtype)


def _density(z: Tensor, df: Tensor) -> Tensor:
    return student_log_prob(z, torch.zeros_like(df), torch.ones_like(df), df).exp()


def _cdf(z: Tensor, df: Tensor) -> Tensor:
    """Return T(z), the standard cdf; accurate in the lower tail."""
    from scipy.special import stdtr  # imported here so that loading a model stays fast

    return torch.from_numpy(np.asarray(stdtr(df.cpu().numpy(), z.cpu().numpy()))).to(z.device)


def _standard_quantile(p: Tensor, df: Tensor) -> Tensor:
    from scipy.special import stdtrit

    return torch.from_numpy(np.asarray(stdtrit(df.cpu().numpy(), p.cpu().numpy()))).to(p.device)


@torch.no_grad()
def _mixture_cdf(weights: Weights, y: Values, mean: Components, scale: Components, df: Components) -> Values:
    """Return F(y) = Σ_s ω_s T((y − μ_s) / c_s)."""
    return maths.weighted_sum(weights, _cdf((y.unsqueeze(-2) - mean) / scale, df)).clamp(max=1.0)


@torch.no_grad()
def _mixture_quantile(
    weights: Weights, mean: Components, scale: Components, df: Components, p: Float[Tensor, "K 1"]
) -> Float[Tensor, "K N"]:
    """Solve F(x) = p on the scale of the quantiles of the component with the heaviest tails."""
    component_quantile = mean + scale * _standard_quantile(p.unsqueeze(-1), df)  # (K, S, N)
    heaviest = df.amin(dim=0)  # (N,)

    def density(x: Float[Tensor, "K N"]) -> Float[Tensor, "K N"]:
        return maths.weighted_sum(weights, _density((x.unsqueeze(-2) - mean) / scale, df) / scale)

    cdf = partial(_mixture_cdf, weights, mean=mean, scale=scale, df=df)
    reference = partial(_standard_quantile, df=heaviest), partial(_density, df=heaviest)
    return maths.solve_quantile(weights, p, component_quantile, cdf, density, *reference)


@torch.no_grad()
def _mixture_distance(weights: Weights, y: Rows, mean: Components, scale: Components, df: Components) -> Rows:
    """Return E|X − y| = E(X − y)₊ + E(y − X)₊ in closed form."""
    z = (y - mean) / scale
    above, below = _overshoot(z, df), _overshoot(-z, df)
    return maths.weighted_sum(weights, scale * (above + below))


@torch.no_grad()
def _mixture_crps(
    weights: Weights, y: Rows, mean: Components, scale: Components, df: Components, tables: "_Tables | None"
) -> Rows:
    """Return CRPS(F, y) = E|X − y| − ∫ F(x) (1 − F(x)) dx: closed form minus Gauss–Legendre quadrature on panels.

    The panels end at multiples of each component's scale about its centre, where F bends. Beyond the last panel 1 − F
    is a power law with a negligible square, so the closed form of E(X − x)₊ gives the rest.
    """
    distance = _mixture_distance(weights, y, mean, scale, df)
    steps = torch.tensor([-b for b in reversed(_BREAKS)] + [0.0, *_BREAKS], dtype=mean.dtype, device=mean.device)
    ends = (mean + steps[:, None, None] * scale).flatten(0, 1).sort(dim=0).values  # (B, N)
    first, last = ends[0], ends[-1]
    beyond = _overshoot((last - mean) / scale, df) + _overshoot((mean - first) / scale, df)
    tails = maths.weighted_sum(weights, scale * beyond)
    nodes, shares = (torch.from_numpy(part).to(mean) for part in np.polynomial.legendre.leggauss(_PANEL_NODES))
    half = 0.5 * ends.diff(dim=0)  # (B − 1, N)
    x = (ends[:-1] + half).unsqueeze(0) + nodes[:, None, None] * half  # (nodes, B − 1, N)
    cdf = _cdf if tables is None else tables.cdf
    F = torch.zeros_like(x)
    for s in range(len(weights)):  # one at a time, to save memory
        F += weights[s] * cdf((x - mean[s]) / scale[s], df[s])
    inside = torch.einsum("k,kbn,bn->n", shares, F * (1.0 - F), half)
    return distance - inside - tails


def _overshoot(z: Components, df: Components) -> Components:
    """Return E(T − z)₊ = (ν + z²) t(z) / (ν − 1) − z P(T > z)."""
    return (df + z * z) * _density(z, df) / (df - 1.0) - z * _cdf(-z, df)


@dataclass(frozen=True, eq=False)
class _Tables:
    """The standard cdf for a few degrees of freedom, interpolated linearly in asinh z: faster than SciPy's.

    Accurate to 1e-8, enough for an integral; where the relative accuracy of a tail counts, SciPy's is used.
    """

    df: Float[Tensor, " G"]
    tails: Float[Tensor, "G K"]  # P(T > z) at the knots
    steps: Float[Tensor, "G K"]  # from each knot to the next

    @classmethod
    def of(cls, df: Float[Tensor, "S N"]) -> "_Tables | None":
        """Return the tables of these degrees of freedom, or None if there are too many."""
        distinct = df.unique()
        if len(distinct) > _MAX_TABLES:
            return None
        knots = torch.linspace(0.0, _LAST_KNOT, _KNOTS, dtype=df.dtype, device=df.device)
        tails = _cdf(-knots.sinh(), distinct[:, None])
        return cls(distinct, tails, tails.diff(dim=1, append=tails[:, -1:]))

    def cdf(self, z: Float[Tensor, "*A N"], df: Float[Tensor, " N"]) -> Float[Tensor, "*A N"]:
        """Return T(z), interpolated between the knots."""
        place = z.abs().asinh_().clamp_(max=_LAST_KNOT).mul_((_KNOTS - 1) / _LAST_KNOT)
        knot = place.long()
        beyond = place.sub_(knot)
        knot += torch.searchsorted(self.df, df.contiguous()) * _KNOTS
        tail = self.steps.take(knot).mul_(beyond).add_(self.tails.take(knot))
        return torch.where(z > 0.0, 1.0 - tail, tail)


@final
@dataclass(frozen=True, eq=False, repr=False)
class StudentTMixture(RealPredictive):
    """p(y_n) = Σ_s ω_s t(y_n | μ_sn, c, ν): one output.

    The cdf, quantiles and CRPS are computed in float64 by SciPy, without gradients.

    Attributes:
        log_weights: log ω, with Σ_s ω_s = 1: (S,), or (S, N) if they differ between rows.
        component_mean: μ, the centre of each component, which is its mean.
        scale: c, the scale: a scalar, or a shape that broadcasts to (S, N).
        df: ν > 2, the degrees of freedom: a scalar, or a shape that broadcasts to (S, N).

    Raises:
        InputError: The shapes do not match, the weights do not sum to one, or ν <= 2.
        NumericalError: A component's scale is not positive.

    Example:
        >>> import torch
        >>> from dspp import StudentTMixture
        >>> one = StudentTMixture(torch.zeros(1), torch.zeros(1, 1), torch.tensor(1.0), torch.tensor(4.0))
        >>> one.var.tolist()  # ν / (ν − 2)
        [2.0]
        >>> round(float(one.quantile(0.975)[0]), 3)
        2.776
    """

    _PARAMETERS: ClassVar[tuple[str, ...]] = ("scale", "df")
    _cdf = staticmethod(_mixture_cdf)
    _quantile = staticmethod(_mixture_quantile)
    _distance = staticmethod(_mixture_distance)

    log_weights: Float[Tensor, " S *N"]
    component_mean: Float[Tensor, "S N"]
    scale: Float[Tensor, "#S #N"]
    df: Float[Tensor, "#S #N"]

    def __post_init__(self) -> None:
        mean = self.component_mean
        parts = self.log_weights, mean, mean, self.scale, self.df
        for name, parameter in zip(self._PARAMETERS, maths.check_components(*parts, axes="S, N"), strict=True):
            object.__setattr__(self, name, parameter)
        if not bool((self.df.detach() > 2.0).all()):
            raise InputError(f"df: expected more than 2 degrees of freedom, got {float(self.df.detach().min()):.6g}")
        maths.check_variance(self.scale.detach().expand_as(mean))

    @property
    def component_var(self) -> Float[Tensor, "S N"]:
        """Variance of each component: c² ν / (ν − 2)."""
        return (self.scale.square() * self.df / (self.df - 2.0)).expand_as(self.component_mean)

    def component_log_prob(self, y: Array) -> Float[Tensor, "S N"]:
        """Return log t(y_n | μ_sn, c, ν), without the weights."""
        return student_log_prob(self._check(y), self.component_mean, self.scale, self.df)

    def _in_float64(self) -> tuple[Tensor, ...]:
        exact = self.to(torch.float64)
        return exact.weights, *torch.broadcast_tensors(exact.component_mean, exact.scale, exact.df)

    def crps(self, y: Array) -> Float[Tensor, " N"]:
        """Return the continuous ranked probability score ∫ (F(x) − 1{y_n <= x})² dx, in the units of y, to 1e-7."""
        elements = (2 * len(_BREAKS) + 1) * _PANEL_NODES
        score = partial(_mixture_crps, tables=_Tables.of(self.df.detach().double()))
        return self._by_blocks(score, elements, self._check(y).double())

    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N"]:
        """Draw `num` independent values per row, reproducibly from `generator`; not differentiable."""
        which, normal = self._draw(num, generator)
        mean = self.component_mean.detach()
        scale, df = (part.detach().expand_as(mean).gather(0, which) for part in (self.scale, self.df))
        chi2 = 2.0 * torch._standard_gamma(0.5 * df, generator=generator)
        return mean.gather(0, which) + scale * normal * (df / chi2).sqrt()

    def widen(self, factor: float, floor: float = 0.0) -> Self:
        """Return the mixture with the variance of every component multiplied by `factor`, its scale² >= `floor`."""
        return self._replace(scale=maths.scale_noise(self.scale.square(), factor, floor).sqrt())

    def approach_standard(self, share: Float[Tensor, " N"]) -> Self:
        """Return the mixture whose components have gone a share of the way to variance 1 around 0; see `NormalMixture`.

        They keep their degrees of freedom.
        """
        kept = 1.0 - share
        between = share * (1.0 + kept * self.component_mean.square()) * (self.df - 2.0) / self.df
        scale = (kept * self.scale.square() + between).sqrt()
        return self._replace(component_mean=kept * self.component_mean, scale=scale)

    def affine(self, shift: float | Float[Tensor, ""], scale: float | Float[Tensor, ""]) -> Self:
        """Return the distribution of shift + scale·y, exactly; in float32 a large shift costs digits."""
        a, b = maths.shift_and_scale(shift, scale, self.component_mean)
        return self._replace(component_mean=a + b * self.component_mean, scale=b * self.scale)

    def to_torch(self) -> MixtureSameFamily:
        """Return the same distribution for `torch.distributions`, of batch shape (N,), gradients included."""
        parts = torch.broadcast_tensors(self.df, self.component_mean, self.scale)
        return self._to_torch(StudentT(*(part.T for part in parts)))

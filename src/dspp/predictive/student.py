"""The mixture of Student-t distributions for one output: heavy tails, for targets with outliers."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.distributions import MixtureSameFamily, StudentT

from dspp.errors import InputError
from dspp.predictive import maths
from dspp.predictive.base import Mixture
from dspp.predictive.one_output import OneOutput
from dspp.table.checks import Array

_BREAKS = (1.5, 5.0, 20.0, 60.0, 250.0)  # ends of the panels of ∫ F(1 − F), in units of a component's scale
_PANEL_NODES = 8  # Gauss–Legendre nodes per panel
_KNOTS, _LAST_KNOT = 2**15, math.asinh(1e6)  # of the table of a cdf, equally spaced in asinh z
_MOST_TABLES = 64  # distinct degrees of freedom up to which tables are faster


@final
@dataclass(frozen=True, eq=False, repr=False)
class StudentTMixture(OneOutput, Mixture):
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

    scale: Float[Tensor, "*#S_N"]
    df: Float[Tensor, "*#S_N"]

    def __post_init__(self) -> None:
        mean = self.component_mean
        for parameter in (self.scale, self.df):
            maths.check_components(self.log_weights, mean, mean, parameter, "S, N")
        if not bool((self.df.detach() > 2.0).all()):
            raise InputError(f"df: expected more than 2 degrees of freedom, got {float(self.df.detach().min()):.6g}")
        maths.check_variance(self.scale.detach().expand_as(mean))

    @property
    def component_var(self) -> Float[Tensor, "S N"]:
        """Variance of each component: c² ν / (ν − 2)."""
        return (self.scale.square() * self.df / (self.df - 2.0)).expand_as(self.component_mean)

    def component_log_prob(self, y: Array) -> Float[Tensor, "S N"]:
        """Return log t(y_n | μ_sn, c, ν), without the weights."""
        y = maths.check_targets(y, self.component_mean)
        return student_log_prob(y, self.component_mean, self.scale, self.df)

    @torch.no_grad()
    def cdf(self, y: Array) -> Float[Tensor, " *K N"]:
        """Return P(Y_n <= y_n) for one value per row, (N,), or for K values per row, (K, N)."""
        y = maths.check_targets(y, self.component_mean, many=True)
        weights, *components = self._in_float64()
        return maths.over_row_chunks(_mixture_cdf, y.shape[:-1].numel(), weights, y.double(), *components)

    @torch.no_grad()
    def quantile(self, p: float | Float[Tensor, " *K"]) -> Float[Tensor, " *K N"]:
        """Return x with |F(x) − p| <= 1e-8, or as near as float64 allows, for one or K probabilities."""
        wanted = maths.check_probabilities(p, self.component_mean.device)
        weights, *components = self._in_float64()
        solve = partial(_mixture_quantile, p=wanted.reshape(-1, 1))
        solution = maths.over_row_chunks(solve, wanted.numel(), weights, *components)
        return solution.reshape(*wanted.shape, self.num_rows)

    @torch.no_grad()
    def crps(self, y: Array) -> Float[Tensor, " N"]:
        """Return the continuous ranked probability score ∫ (F(x) − 1{y_n <= x})² dx, in the units of y, to 1e-7."""
        y = maths.check_targets(y, self.component_mean)
        weights, *components = self._in_float64()
        elements = (2 * len(_BREAKS) + 1) * _PANEL_NODES
        score = partial(_mixture_crps, tables=_Tables.of(components[-1]))
        return maths.over_row_chunks(score, elements, weights, y.double(), *components)

    @torch.no_grad()
    def mean_distance(self, y: Array) -> Float[Tensor, " N"]:
        """Return E|Y_n − y_n|, the first term of the CRPS, in the units of y."""
        y = maths.check_targets(y, self.component_mean)
        weights, *components = self._in_float64()
        return maths.over_row_chunks(_mixture_distance, 1, weights, y.double(), *components)

    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N"]:
        """Draw `num` independent values per row, reproducibly from `generator`; not differentiable."""
        which, normal = self._draw(num, generator)
        mean = self.component_mean.detach()
        scale, df = (part.detach().expand_as(mean).gather(0, which) for part in (self.scale, self.df))
        chi2 = 2.0 * torch._standard_gamma(0.5 * df, generator=generator)
        return mean.gather(0, which) + scale * normal * (df / chi2).sqrt()

    def widen(self, factor: float, floor: float = 0.0) -> "StudentTMixture":
        """Return the mixture with the variance of every component multiplied by `factor`, its scale² >= `floor`."""
        return replace(self, scale=maths.scale_noise(self.scale.square(), factor, floor).sqrt())

    def approach_standard(self, share: Float[Tensor, " N"]) -> "StudentTMixture":
        """Return the mixture whose components have gone a share of the way to variance 1 around 0; see `NormalMixture`.

        They keep their degrees of freedom.
        """
        kept = 1.0 - share
        between = share * (1.0 + kept * self.component_mean.square()) * (self.df - 2.0) / self.df
        scale = (kept * self.scale.square() + between).sqrt()
        return replace(self, component_mean=kept * self.component_mean, scale=scale)

    def to_torch(self) -> MixtureSameFamily:
        """Return the same distribution for `torch.distributions`, of batch shape (N,), gradients included."""
        df, scale = (part.expand_as(self.component_mean).T for part in (self.df, self.scale))
        return MixtureSameFamily(self._categorical(), StudentT(df, self.component_mean.T, scale))

    def affine(self, shift: float | Float[Tensor, ""], scale: float | Float[Tensor, ""]) -> "StudentTMixture":
        """Return the distribution of shift + scale·y, exactly; in float32 a large shift costs digits."""
        a, b = maths.shift_and_scale(shift, scale, self.component_mean)
        return StudentTMixture(self.log_weights, a + b * self.component_mean, b * self.scale, self.df)

    def _in_float64(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the weights, centres, scales and degrees of freedom, the last three of shape (S, N)."""
        exact = self.to(torch.float64)
        mean = exact.component_mean
        return exact.weights, mean, exact.scale.expand_as(mean), exact.df.expand_as(mean)


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


def _mixture_cdf(
    weights: Float[Tensor, " S *N"],
    y: Float[Tensor, " *K N"],
    mean: Float[Tensor, "S N"],
    scale: Float[Tensor, "S N"],
    df: Float[Tensor, "S N"],
) -> Float[Tensor, " *K N"]:
    """Return F(y) = Σ_s ω_s T((y − μ_s) / c_s)."""
    return maths.weighted_sum(weights, _cdf((y.unsqueeze(-2) - mean) / scale, df)).clamp(max=1.0)


def _mixture_quantile(
    weights: Float[Tensor, " S *N"],
    mean: Float[Tensor, "S N"],
    scale: Float[Tensor, "S N"],
    df: Float[Tensor, "S N"],
    p: Float[Tensor, "K 1"],
) -> Float[Tensor, "K N"]:
    """Solve F(x) = p on the scale of the quantiles of the component with the heaviest tails."""
    component_quantile = mean + scale * _standard_quantile(p.unsqueeze(-1), df)  # (K, S, N)
    heaviest = df.amin(dim=0)  # (N,)

    def density(x: Float[Tensor, "K N"]) -> Float[Tensor, "K N"]:
        return maths.weighted_sum(weights, _density((x.unsqueeze(-2) - mean) / scale, df) / scale)

    return maths.solve_quantile(
        weights,
        p,
        component_quantile,
        lambda x: _mixture_cdf(weights, x, mean, scale, df),
        density,
        lambda probability: _standard_quantile(probability, heaviest),
        lambda z: _density(z, heaviest),
    )


def _mixture_distance(
    weights: Float[Tensor, " S *N"],
    y: Float[Tensor, " N"],
    mean: Float[Tensor, "S N"],
    scale: Float[Tensor, "S N"],
    df: Float[Tensor, "S N"],
) -> Float[Tensor, " N"]:
    """Return E|X − y| = E(X − y)₊ + E(y − X)₊ in closed form."""
    z = (y - mean) / scale
    above, below = _overshoot(z, df), _overshoot(-z, df)
    return maths.weighted_sum(weights, scale * (above + below))


def _mixture_crps(
    weights: Float[Tensor, " S *N"],
    y: Float[Tensor, " N"],
    mean: Float[Tensor, "S N"],
    scale: Float[Tensor, "S N"],
    df: Float[Tensor, "S N"],
    tables: "_Tables | None",
) -> Float[Tensor, " N"]:
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


def _overshoot(z: Float[Tensor, "S N"], df: Float[Tensor, "S N"]) -> Float[Tensor, "S N"]:
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
        if len(distinct) > _MOST_TABLES:
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

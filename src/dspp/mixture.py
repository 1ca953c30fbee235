"""The predictive distribution: a mixture of Normals for each row, of one output or of T correlated ones.

Training scores the very object that the user is handed: a head makes it, an objective calls `log_prob`, the
user asks it for quantiles. S components, N rows, T outputs; `*T` is nothing when there is one output.
With T outputs, NaN in y means "not observed": only the observed outputs of that row count.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Self, final

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal, Normal

from dspp import _mixture_math as maths
from dspp.data.checks import Table, check_y
from dspp.errors import InputError, NumericalError

if TYPE_CHECKING:  # drawing is asked for rarely; matplotlib is slow to import
    from matplotlib.axes import Axes

_BY_ROW = ("component_mean", "latent_")  # the fields (S, N, ...); the noise may have rows too


@dataclass(frozen=True, eq=False)
class Mixture(ABC):
    """What both mixtures share: p(y_n) = Σ_s ω_s p_s(y_n), the weights ω being the same for every row."""

    log_weights: Float[Tensor, " S"]
    component_mean: Float[Tensor, "S N *T"]

    @property
    @abstractmethod
    def component_var(self) -> Float[Tensor, "S N *T"]:
        """The variance of each component: latent function plus observation noise."""

    @abstractmethod
    def component_log_prob(self, y: Float[Tensor, " N *T"]) -> Float[Tensor, "S N"]:
        """Return log p_s(y_n), without the weights."""

    @abstractmethod
    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N *T"]:
        """Draw `num` independent values for each row, reproducibly from `generator`; not differentiable."""

    @abstractmethod
    def to_torch(self) -> MixtureSameFamily:
        """Return the same distribution for `torch.distributions`, one batch entry a row, gradients included."""

    @property
    def num_components(self) -> int:
        """S, the number of components."""
        return len(self.log_weights)

    @property
    def num_rows(self) -> int:
        """N, the number of rows."""
        return self.component_mean.shape[1]

    def __len__(self) -> int:
        return self.num_rows

    @property
    def weights(self) -> Float[Tensor, " S"]:
        """ω, made to sum to one again where the logarithms came from a shorter dtype."""
        return torch.softmax(self.log_weights, dim=0)

    @property
    def mean(self) -> Float[Tensor, " N *T"]:
        """E[y] = Σ_s ω_s μ_s."""
        return maths.average(self.weights, self.component_mean)

    @property
    def var(self) -> Float[Tensor, " N *T"]:
        """Var[y] = Σ_s ω_s (v_s + (μ_s − E[y])²): the spread within the components and that between them."""
        spread = self.component_var + (self.component_mean - self.mean).square()
        return maths.average(self.weights, spread)

    @property
    def std(self) -> Float[Tensor, " N *T"]:
        """The square root of the total variance."""
        return self.var.sqrt()

    def log_prob(self, y: Float[Tensor, " N *T"]) -> Float[Tensor, " N"]:
        """Return log p(y_n) = log Σ_s exp(log ω_s + log p_s(y_n))."""
        return torch.logsumexp(self.log_weights.unsqueeze(-1) + self.component_log_prob(y), dim=0)

    @torch.no_grad()
    def entropy(self, num_samples: int, generator: Generator | None = None) -> Float[Tensor, " N"]:
        """Estimate −E[log p(y_n)] from `num_samples` draws a row."""
        draws = self.sample(num_samples, generator)
        return -torch.stack([self.log_prob(y) for y in draws]).mean(0)

    def with_noise(self, noise_var: Float[Tensor, "..."]) -> Self:
        """Return the same latent mixture under another observation noise."""
        return replace(self, **{"noise_var": noise_var})

    def prune(self, threshold: float) -> Self:
        """Drop the components lighter than `threshold`, but never the heaviest, and renormalise."""
        keep = self.weights >= self.weights.max().clamp(max=threshold)
        kept = {name: field[keep] for name, field in vars(self).items() if name != "noise_var"}
        return replace(self, **kept | {"log_weights": kept["log_weights"].log_softmax(0)})

    def rows(self, index: slice | Sequence[int] | Tensor) -> Self:
        """Return the mixture of some rows: a slice, a list or tensor of row numbers, or a mask."""
        try:
            picked = torch.arange(self.num_rows, device=self.component_mean.device)[index]
        except (IndexError, TypeError) as error:
            raise InputError(f"cannot take rows {index!r} of {self.num_rows}: {error}") from None
        if picked.ndim != 1:
            raise InputError(f"got {index!r}, expected a slice or a list of rows; write [i] for one row")
        fields, noise = vars(self), vars(self)["noise_var"]
        taken = {name: field[:, picked] for name, field in fields.items() if name.startswith(_BY_ROW)}
        by_row = noise.ndim == self.component_mean.ndim - 1
        return replace(self, **taken | {"noise_var": noise[picked] if by_row else noise})

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """Return the same mixture in another dtype or on another device."""
        moved = {name: field.to(device=device, dtype=dtype) for name, field in vars(self).items()}
        return replace(self, **moved)

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Join the rows of mixtures with the same weights: the batches of one prediction."""
        fields = [vars(part) for part in parts]
        maths.check_joinable(fields)
        names = [name for name in fields[0] if name.startswith(_BY_ROW)]
        joined = {name: torch.cat([part[name] for part in fields], dim=1) for name in names}
        return replace(parts[0], **joined | {"noise_var": maths.joint_noise(fields)})

    def _categorical(self) -> Categorical:
        """The weights as `torch.distributions` wants them: the same again for each row."""
        return Categorical(logits=self.log_weights.expand(self.num_rows, -1))

    @torch.no_grad()
    def _draw(self, num: int, generator: Generator | None) -> tuple[Int[Tensor, "num N"], Tensor]:
        """Draw a component, and standard Normal numbers, for each value wanted."""
        if num < 1:
            raise InputError(f"got {num} samples, expected at least 1; ask for one or more")
        mean = self.component_mean
        which = torch.multinomial(self.weights, num * self.num_rows, replacement=True, generator=generator)
        normal = torch.randn(num, *mean.shape[1:], generator=generator, dtype=mean.dtype, device=mean.device)
        return which.reshape(num, self.num_rows), normal


@final
@dataclass(frozen=True, eq=False)
class NormalMixture(Mixture):
    """p(y_n) = Σ_s ω_s N(y_n | μ_sn, v_sn + σ²): one output.

    The cdf, quantiles and CRPS are computed and returned in float64: a probability near 1 needs the digits.

    Attributes:
        log_weights: log ω, with Σ_s ω_s = 1.
        component_mean: μ, the mean of each component.
        latent_var: v, the variance of the latent function alone.
        noise_var: σ², the variance of the observation noise: a scalar, or one a row.

    Raises:
        InputError: The shapes do not fit, or the weights do not sum to one.
        NumericalError: The variance of a component is not positive.
    """

    latent_var: Float[Tensor, "S N"]
    noise_var: Float[Tensor, " *N"]

    def __post_init__(self) -> None:
        if self.noise_var.shape == (1,):  # as a module of one output keeps it
            object.__setattr__(self, "noise_var", self.noise_var.squeeze(0))
        maths.check_components(self.log_weights, self.component_mean, self.latent_var, self.noise_var, "S, N")
        maths.check_variance(self.component_var)

    @property
    def component_var(self) -> Float[Tensor, "S N"]:
        """The variance of each component: v + σ²."""
        return self.latent_var + self.noise_var

    def component_log_prob(self, y: Float[Tensor, " N"]) -> Float[Tensor, "S N"]:
        """Return log N(y_n | μ_sn, v_sn + σ²), without the weights."""
        maths.check_targets(y, self.component_mean)
        return maths.normal_log_prob(y, self.component_mean, self.component_var)

    def expected_log_lik(self, y: Float[Tensor, " N"]) -> Float[Tensor, "S N"]:
        """Return E[log N(y_n | f, σ²)] over f ~ N(μ_sn, v_sn), the data term of the ELBO."""
        maths.check_targets(y, self.component_mean)
        return maths.expected_normal_log_prob(y, self.component_mean, self.latent_var, self.noise_var)

    def cdf(self, y: Float[Tensor, " *K N"]) -> Float[Tensor, " *K N"]:
        """Return P(Y_n <= y_n) for one value a row, (N,), or for K values a row, (K, N)."""
        maths.check_targets(y, self.component_mean, many=True)
        weights, mean, var = self._in_float64()
        elements = len(weights) * y.shape[:-1].numel()
        return maths.over_row_chunks(partial(maths.mixture_cdf, weights), elements, y.double(), mean, var.sqrt())

    def pit(self, y: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Return the probability integral transform F(y_n), uniform where the mixture is the truth."""
        maths.check_targets(y, self.component_mean)
        return self.cdf(y)

    @torch.no_grad()
    def quantile(self, p: float | Float[Tensor, " *K"]) -> Float[Tensor, " *K N"]:
        """Return x with |F(x) − p| <= 1e-8, or as near as float64 allows, for one p or for K of them."""
        wanted = torch.as_tensor(p, dtype=torch.float64, device=self.component_mean.device)
        if wanted.ndim > 1 or not bool(((wanted > 0.0) & (wanted < 1.0)).all()):
            raise InputError(f"got p = {p}, expected one number or K, all inside (0, 1); leave out 0 and 1")
        weights, mean, var = self._in_float64()
        solve = partial(maths.mixture_quantile, weights, wanted.reshape(-1, 1))
        solution = maths.over_row_chunks(solve, len(weights) * wanted.numel(), mean, var.sqrt())
        return solution.reshape(*wanted.shape, self.num_rows)

    def interval(self, coverage: float) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """Return (lower, upper) of the central interval that holds `coverage` of the probability."""
        if not 0.0 < coverage < 1.0:
            raise InputError(f"got coverage {coverage}, expected a number inside (0, 1), such as 0.9")
        return self.quantile(0.5 - 0.5 * coverage), self.quantile(0.5 + 0.5 * coverage)

    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N"]:
        """Draw `num` independent values for each row, reproducibly from `generator`; not differentiable."""
        which, normal = self._draw(num, generator)
        mean, std = self.component_mean.detach(), self.component_var.detach().sqrt()
        return mean.gather(0, which) + std.gather(0, which) * normal

    def crps(self, y: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Return the continuous ranked probability score ∫ (F(x) − 1{y_n <= x})² dx, in the units of y."""
        maths.check_targets(y, self.component_mean)
        weights, mean, var = self._in_float64()
        return maths.over_row_chunks(partial(maths.mixture_crps, weights), len(weights), y.double(), mean, var)

    def to_torch(self) -> MixtureSameFamily:
        """Return the same distribution for `torch.distributions`, of batch shape (N,), gradients included."""
        components = Normal(self.component_mean.T, self.component_var.sqrt().T)  # (N, S)
        return MixtureSameFamily(self._categorical(), components)

    def affine(self, shift: float | Float[Tensor, ""], scale: float | Float[Tensor, ""]) -> "NormalMixture":
        """Return the distribution of shift + scale·y, exactly; in float32 a large shift swallows digits."""
        a, b = maths.shift_and_scale(shift, scale, self.component_mean)
        mean, b2 = a + b * self.component_mean, b.square()
        return NormalMixture(self.log_weights, mean, b2 * self.latent_var, b2 * self.noise_var)

    def plot_density(self, row: int = 0, y: float | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draw the density of one row and, where it is known, what was observed."""
        from dspp import plots

        return plots.density(self, row, y=y, ax=ax)

    def plot_fan(
        self, x: Table, y: Table | None = None, ax: "Axes | None" = None, levels: Sequence[float] = (0.5, 0.8, 0.95)
    ) -> "Axes":
        """Draw the median and central intervals of every row against one input `x`."""
        from dspp import plots

        return plots.fan(self, x, y=y, ax=ax, levels=levels)

    def plot_pit(self, y: Table, ax: "Axes | None" = None) -> "Axes":
        """Draw the histogram of F(y_n): flat where the mixture is the truth."""
        from dspp import plots

        return plots.pit_histogram(self._pit_array(y), ax=ax)

    def plot_reliability(self, y: Table, ax: "Axes | None" = None) -> "Axes":
        """Draw how much each central interval holds against how much it promises."""
        from dspp import plots

        return plots.reliability(self._pit_array(y), ax=ax)

    def _pit_array(self, y: Table) -> Float[np.ndarray, " N"]:
        observed = torch.from_numpy(check_y(y, self.num_rows)).to(self.component_mean.device)
        array: Float[np.ndarray, " N"] = self.pit(observed).detach().cpu().numpy()
        return array

    def _in_float64(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights, means and variances of the components."""
        exact = self.to(torch.float64)
        return exact.weights, exact.component_mean, exact.component_var


@final
@dataclass(frozen=True, eq=False)
class MultivariateNormalMixture(Mixture):
    """p(y_n) = Σ_s ω_s N(y_n | μ_sn, C_sn + diag σ²): T correlated outputs.

    Attributes:
        log_weights: log ω, with Σ_s ω_s = 1.
        component_mean: μ, the mean of each component.
        latent_cov: C, the covariance of the latent functions alone.
        noise_var: σ², the variance of the observation noise of each output: T of them, or T a row.

    Raises:
        InputError: The shapes do not fit, or the weights do not sum to one.
        NumericalError: On use, when a covariance is not positive definite. No jitter is added.
    """

    latent_cov: Float[Tensor, "S N T T"]
    noise_var: Float[Tensor, " *N T"]

    def __post_init__(self) -> None:
        maths.check_components(self.log_weights, self.component_mean, self.latent_cov, self.noise_var, "S, N, T")

    @property
    def num_outputs(self) -> int:
        """T, the number of outputs."""
        return self.component_mean.shape[2]

    @property
    def latent_var(self) -> Float[Tensor, "S N T"]:
        """The variance of each latent function: the diagonal of C."""
        return self.latent_cov.diagonal(dim1=-2, dim2=-1)

    @property
    def component_var(self) -> Float[Tensor, "S N T"]:
        """The variances of each component: diag C + σ²."""
        return self.latent_var + self.noise_var

    @property
    def component_cov(self) -> Float[Tensor, "S N T T"]:
        """The covariance of each component: C + diag σ²."""
        return self.latent_cov + torch.diag_embed(self.noise_var)

    @property
    def cov(self) -> Float[Tensor, "N T T"]:
        """Cov[y] = Σ_s ω_s (C_s + diag σ² + d_s d_sᵀ), where d_s = μ_s − E[y]."""
        d = self.component_mean - self.mean
        return maths.average(self.weights, self.component_cov + d.unsqueeze(-1) * d.unsqueeze(-2))

    def component_log_prob(self, y: Float[Tensor, "N T"]) -> Float[Tensor, "S N"]:
        """Return log N(y_n | μ_sn, C_sn + diag σ²) of the observed outputs (of none: 0), without the weights."""
        maths.check_targets(y, self.component_mean)
        exact = self.to(torch.float64)  # outputs that move together make the covariance nearly singular
        log_prob = maths.multivariate_normal_log_prob(y.double(), exact.component_mean, exact.component_cov)
        return log_prob.to(torch.result_type(y, self.component_mean))

    def expected_log_lik(self, y: Float[Tensor, "N T"]) -> Float[Tensor, "S N"]:
        """Return E[log N(y_n | f, diag σ²)] over f ~ N(μ_sn, C_sn), the ELBO's data term, of the observed outputs."""
        maths.check_targets(y, self.component_mean)
        y, missing = maths.fill_missing(y, self.component_mean)
        score = maths.expected_normal_log_prob(y, self.component_mean, self.latent_var, self.noise_var)
        return (score if missing is None else score.masked_fill(missing, 0.0)).sum(-1)

    def marginal(self, t: int) -> NormalMixture:
        """Return the distribution of output `t` alone; its cdf, quantiles and intervals are found there."""
        maths.check_outputs([t], self.num_outputs)
        mean, latent_var = self.component_mean[..., t], self.latent_cov[..., t, t]
        return NormalMixture(self.log_weights, mean, latent_var, self.noise_var[..., t])

    def select(self, outputs: Sequence[int]) -> "MultivariateNormalMixture":
        """Return the joint distribution of some of the outputs, in the order asked for."""
        maths.check_outputs(outputs, self.num_outputs)
        t = torch.tensor(list(outputs), device=self.component_mean.device)
        mean, cov = self.component_mean[..., t], self.latent_cov[..., t[:, None], t]
        return MultivariateNormalMixture(self.log_weights, mean, cov, self.noise_var[..., t])

    def to_torch(self) -> MixtureSameFamily:
        """Return the same distribution for `torch.distributions`: batch (N,), event (T,), gradients included.

        Raises:
            NumericalError: A covariance is not positive definite in this dtype.
        """
        mean, cov = self.component_mean.movedim(0, 1), self.component_cov.movedim(0, 1)  # (N, S, T), (N, S, T, T)
        try:
            components = MultivariateNormal(mean, cov)
        except (ValueError, RuntimeError):  # the first from the check of its arguments, the second from LAPACK
            raise NumericalError(
                f"a component covariance is not positive definite in {cov.dtype}; call .to(torch.float64) first"
            ) from None
        return MixtureSameFamily(self._categorical(), components)

    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N T"]:
        """Draw `num` independent vectors for each row, reproducibly from `generator`; not differentiable."""
        which, normal = self._draw(num, generator)
        row = torch.arange(self.num_rows, device=which.device)
        L = maths.cholesky(self.to(torch.float64).component_cov.detach()).to(normal.dtype)
        deviation = L[which, row] @ normal.unsqueeze(-1)  # (num, N, T, 1)
        return self.component_mean.detach()[which, row] + deviation.squeeze(-1)

    def crps(self, y: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
        """Return the continuous ranked probability score of the marginal of each output; NaN if it was not observed."""
        maths.check_targets(y, self.component_mean)
        y, missing = maths.fill_missing(y, self.mean)
        score = torch.stack([self.marginal(t).crps(y[:, t]) for t in range(self.num_outputs)], dim=-1)
        return score if missing is None else score.masked_fill(missing, math.nan)

    def affine(
        self, shift: float | Float[Tensor, " *T"], scale: float | Float[Tensor, " *T"]
    ) -> "MultivariateNormalMixture":
        """Return the distribution of shift + scale·y, output by output, as `NormalMixture.affine` does."""
        a, b = maths.shift_and_scale(shift, scale, self.component_mean)
        mean, latent_cov = a + b * self.component_mean, torch.outer(b, b) * self.latent_cov
        return MultivariateNormalMixture(self.log_weights, mean, latent_cov, b.square() * self.noise_var)

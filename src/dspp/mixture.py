"""The predictive distribution: a mixture of Normals for each row, of one output or of T correlated ones.

Training scores the very object that the user is handed: a head makes it, an objective calls `log_prob`, the user asks
it for quantiles, intervals and scores. S components, N rows, T outputs; `*T` is nothing when there is one output.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Self, final

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from dspp import _mixture_math as maths
from dspp.errors import InputError, NumericalError

_ROW_AXIS = {"component_mean": 1, "latent_var": 1, "latent_cov": 1, "noise_var": 0}
_WEIGHT_TOLERANCE = 1e-5  # float32 rounding stays far below; weights given in place of their logarithms far above


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
    def component_log_prob(self, y: Float[Tensor, "N *T"]) -> Float[Tensor, "S N"]:
        """Return log p_s(y_n), without the weights."""

    @abstractmethod
    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N *T"]:
        """Draw `num` independent values for each row, reproducibly from `generator`; not differentiable."""

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
    def mean(self) -> Float[Tensor, "N *T"]:
        """E[y] = Σ_s ω_s μ_s."""
        return torch.tensordot(self.weights, self.component_mean, dims=1)

    @property
    def var(self) -> Float[Tensor, "N *T"]:
        """Var[y] = Σ_s ω_s (v_s + (μ_s − E[y])²): the spread within the components and the one between them."""
        spread = self.component_var + (self.component_mean - self.mean).square()
        return torch.tensordot(self.weights, spread, dims=1)

    @property
    def std(self) -> Float[Tensor, "N *T"]:
        """The square root of the total variance."""
        return self.var.sqrt()

    def log_prob(self, y: Float[Tensor, "N *T"]) -> Float[Tensor, " N"]:
        """Return log p(y_n) = log Σ_s exp(log ω_s + log p_s(y_n))."""
        return torch.logsumexp(self.log_weights.unsqueeze(-1) + self.component_log_prob(y), dim=0)

    @torch.no_grad()
    def entropy(self, num_samples: int, generator: Generator | None = None) -> Float[Tensor, " N"]:
        """Estimate −E[log p(y_n)] from `num_samples` draws a row."""
        draws = self.sample(num_samples, generator)
        return -torch.stack([self.log_prob(y) for y in draws]).mean(0)

    def prune(self, threshold: float) -> Self:
        """Drop the components lighter than `threshold`, but never the heaviest, and renormalise."""
        keep = self.weights >= self.weights.max().clamp(max=threshold)
        kept = {name: tensor[keep] for name, tensor in vars(self).items() if name != "noise_var"}
        return replace(self, **kept | {"log_weights": kept["log_weights"].log_softmax(0)})

    def rows(self, index: slice | Sequence[int] | Tensor) -> Self:
        """Return the mixture of some rows: a slice, a list or tensor of row numbers, or a mask."""
        try:
            picked = torch.arange(self.num_rows, device=self.component_mean.device)[index]
        except (IndexError, TypeError) as error:
            raise InputError(f"cannot take these rows of {self.num_rows}: {error}; give rows that exist") from None
        if picked.ndim != 1:
            raise InputError(f"got {index!r}, expected a slice, a list or a 1-d tensor of rows; write [i] for one row")
        return replace(self, **{name: vars(self)[name].index_select(axis, picked) for name, axis in self._row_axes()})

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """Return the same mixture in another dtype or on another device."""
        return replace(self, **{name: tensor.to(device=device, dtype=dtype) for name, tensor in vars(self).items()})

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Join the rows of mixtures that share their weights: the batches of one prediction."""
        if len(parts) == 0:
            raise InputError("got no mixtures to join; give at least one")
        first = parts[0]
        for i, part in enumerate(parts):
            if not _joinable(part, first):
                raise InputError(
                    f"mixture {i} differs from mixture 0 in kind, weights, outputs or dtype; "
                    "join only what one model predicted"
                )
        joined = {name: torch.cat([vars(part)[name] for part in parts], axis) for name, axis in first._row_axes()}
        return replace(first, **joined)

    def _row_axes(self) -> list[tuple[str, int]]:
        return [(name, axis) for name, axis in _ROW_AXIS.items() if name in vars(self)]

    def _check_weights(self) -> None:
        if self.log_weights.ndim != 1 or len(self.log_weights) != len(self.component_mean):
            raise InputError(
                f"log_weights has shape {tuple(self.log_weights.shape)}, component_mean "
                f"{tuple(self.component_mean.shape)}; expected (S,) and S components: give one log-weight a component"
            )
        total = float(self.log_weights.detach().exp().sum())
        if abs(total - 1.0) > _WEIGHT_TOLERANCE:
            raise InputError(
                f"the weights exp(log_weights) sum to {total:.6g}, expected 1; pass logarithms through log_softmax"
            )

    def _spread_noise(self, noise_var: Tensor) -> None:
        """Store the noise as one variance a row (and output), so that rows can be taken and joined."""
        shape = self.component_mean.shape[1:]
        try:
            object.__setattr__(self, "noise_var", noise_var.expand(shape))  # a view: nothing is copied
        except RuntimeError:
            raise InputError(
                f"noise_var has shape {tuple(noise_var.shape)}, expected a scalar or something that broadcasts to "
                f"{tuple(shape)}; give one variance, or one for each output, or one for each row"
            ) from None

    def _check_targets(self, y: Tensor) -> None:
        if y.shape != self.component_mean.shape[1:]:
            raise InputError(
                f"y has shape {tuple(y.shape)}, expected {tuple(self.component_mean.shape[1:])}; "
                "give one value for each row (and output), in the order of the rows"
            )

    @torch.no_grad()
    def _draw(self, num: int, generator: Generator | None) -> tuple[Int[Tensor, "num N"], Float[Tensor, "num N *T"]]:
        """Draw a component and standard Normal numbers for each value wanted."""
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

    The cdf and what is made from it are computed and returned in float64, since a probability near 1 needs the digits.

    Attributes:
        log_weights: log ω, with Σ_s ω_s = 1.
        component_mean: μ, the mean of each component.
        latent_var: v, the variance of the latent function alone.
        noise_var: σ², the variance of the observation noise, a scalar or one a row; stored as one a row.

    Raises:
        InputError: The shapes do not fit or the weights do not sum to one.
        NumericalError: A component has no positive variance.
    """

    latent_var: Float[Tensor, "S N"]
    noise_var: Float[Tensor, " N"]

    def __post_init__(self) -> None:
        if self.component_mean.ndim != 2 or self.latent_var.shape != self.component_mean.shape:
            raise InputError(
                f"component_mean has shape {tuple(self.component_mean.shape)}, latent_var "
                f"{tuple(self.latent_var.shape)}; expected (S, N) twice: give one mean and one variance a component"
            )
        self._check_weights()
        self._spread_noise(self.noise_var)
        positive = self.component_var.detach() > 0.0  # NaN is not
        if not bool(positive.all()):
            s, n = (int(i) for i in (~positive).nonzero()[0])
            raise NumericalError(
                f"the variance of component {s} in row {n} is {float(self.component_var[s, n]):.3g}, expected a "
                "positive number; raise the noise variance or its floor"
            )

    @property
    def component_var(self) -> Float[Tensor, "S N"]:
        """The variance of each component: v + σ²."""
        return self.latent_var + self.noise_var

    def component_log_prob(self, y: Float[Tensor, " N"]) -> Float[Tensor, "S N"]:
        """Return log N(y_n | μ_sn, v_sn + σ²), without the weights."""
        self._check_targets(y)
        return maths.normal_log_prob(y, self.component_mean, self.component_var)

    def expected_log_lik(self, y: Float[Tensor, " N"]) -> Float[Tensor, "S N"]:
        """Return E[log N(y_n | f, σ²)] over f ~ N(μ_sn, v_sn), the data term of the ELBO."""
        self._check_targets(y)
        _require_positive("noise_var", self.noise_var)
        return maths.expected_normal_log_prob(y, self.component_mean, self.latent_var, self.noise_var)

    def with_noise(self, noise_var: Float[Tensor, "..."]) -> Self:
        """Return the same latent mixture under another observation noise."""
        return replace(self, noise_var=noise_var)

    def cdf(self, y: Float[Tensor, "*K N"]) -> Float[Tensor, "*K N"]:
        """Return P(Y_n <= y_n) for one value a row, (N,), or for K values a row, (K, N)."""
        if y.ndim not in (1, 2) or y.shape[-1] != self.num_rows:
            raise InputError(
                f"y has shape {tuple(y.shape)}, expected ({self.num_rows},) or (K, {self.num_rows}); "
                "give one value, or K values, for each row"
            )
        weights, mean, var = self._in_float64()
        values_a_row = 1 if y.ndim == 1 else len(y)
        solve = partial(maths.mixture_cdf, weights)
        return maths.over_row_chunks(solve, len(weights) * values_a_row, y.double(), mean, var.sqrt())

    def pit(self, y: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Return the probability integral transform F(y_n), uniform where the mixture is the truth."""
        self._check_targets(y)
        return self.cdf(y)

    @torch.no_grad()
    def quantile(self, p: float | Float[Tensor, "*K"]) -> Float[Tensor, "*K N"]:
        """Return x with |F(x) − p| <= 1e-8, or as near as neighbouring floats allow, for one p or K of them."""
        wanted = torch.as_tensor(p, dtype=torch.float64, device=self.component_mean.device)
        if wanted.ndim > 1 or not bool(((wanted > 0.0) & (wanted < 1.0)).all()):
            raise InputError(f"got p = {p}, expected a number or a 1-d tensor, all inside (0, 1); move p inside")
        weights, mean, var = self._in_float64()
        solve = partial(maths.mixture_quantile, weights, wanted.reshape(-1, 1))
        return maths.over_row_chunks(solve, len(weights) * wanted.numel(), mean, var.sqrt()).reshape(*wanted.shape, -1)

    def interval(self, coverage: float) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """Return (lower, upper) of the central interval that holds `coverage` of the probability."""
        if not 0.0 < coverage < 1.0:
            raise InputError(f"got coverage {coverage}, expected a number inside (0, 1), such as 0.9")
        lower, upper = self.quantile(torch.tensor([0.5 - 0.5 * coverage, 0.5 + 0.5 * coverage], dtype=torch.float64))
        return lower, upper

    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N"]:
        """Draw `num` independent values for each row, reproducibly from `generator`; not differentiable."""
        which, normal = self._draw(num, generator)
        mean, std = self.component_mean.detach(), self.component_var.detach().sqrt()
        return mean.gather(0, which) + std.gather(0, which) * normal

    def crps(self, y: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Return the continuous ranked probability score ∫ (F(x) − 1{y_n <= x})² dx, in the units of y."""
        self._check_targets(y)
        weights, mean, var = self._in_float64()
        return maths.mixture_crps(weights, y.double(), mean, var)

    def affine(self, shift: float | Float[Tensor, ""], scale: float | Float[Tensor, ""]) -> Self:
        """Return the distribution of shift + scale·y, exactly; go to float64 first where the shift is large."""
        shift, scale = self._affine_arguments(shift, scale)
        return replace(
            self,
            component_mean=shift + scale * self.component_mean,
            latent_var=scale.square() * self.latent_var,
            noise_var=scale.square() * self.noise_var,
        )

    def _in_float64(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return weights, means and variances of the components."""
        exact = self.to(torch.float64)
        return exact.weights, exact.component_mean, exact.component_var


@final
@dataclass(frozen=True, eq=False)
class MultivariateNormalMixture(Mixture):
    """p(y_n) = Σ_s ω_s N(y_n | μ_sn, C_sn + diag σ²): T outputs, correlated within a component and through the mixing.

    Attributes:
        log_weights: log ω, with Σ_s ω_s = 1.
        component_mean: μ, the mean of each component.
        latent_cov: C, the covariance of the latent functions alone.
        noise_var: σ², the variance of the observation noise of each output; stored as one a row and output.

    Raises:
        InputError: The shapes do not fit or the weights do not sum to one.
    """

    latent_cov: Float[Tensor, "S N T T"]
    noise_var: Float[Tensor, "N T"]

    def __post_init__(self) -> None:
        mean_shape, cov_shape = self.component_mean.shape, self.latent_cov.shape
        if len(mean_shape) != 3 or cov_shape != (*mean_shape, mean_shape[-1]):
            raise InputError(
                f"component_mean has shape {tuple(mean_shape)}, latent_cov {tuple(cov_shape)}; expected (S, N, T) and "
                "(S, N, T, T): give one mean vector and one covariance matrix a component"
            )
        self._check_weights()
        self._spread_noise(self.noise_var)

    @property
    def num_outputs(self) -> int:
        """T, the number of outputs."""
        return self.component_mean.shape[2]

    @property
    def component_var(self) -> Float[Tensor, "S N T"]:
        """The variances of each component: the diagonal of C plus σ²."""
        return self.latent_cov.diagonal(dim1=-2, dim2=-1) + self.noise_var

    @property
    def component_cov(self) -> Float[Tensor, "S N T T"]:
        """The covariance of each component: C + diag σ²."""
        return self.latent_cov + torch.diag_embed(self.noise_var)

    @property
    def cov(self) -> Float[Tensor, "N T T"]:
        """Cov[y] = Σ_s ω_s (C_s + diag σ² + d_s d_sᵀ), where d_s = μ_s − E[y]."""
        d = self.component_mean - self.mean
        return torch.tensordot(self.weights, self.component_cov + d.unsqueeze(-1) * d.unsqueeze(-2), dims=1)

    def component_log_prob(self, y: Float[Tensor, "N T"]) -> Float[Tensor, "S N"]:
        """Return log N(y_n | μ_sn, C_sn + diag σ²), without the weights.

        Raises:
            NumericalError: A covariance is not positive definite; no jitter is added.
        """
        self._check_targets(y)
        return maths.multivariate_normal_log_prob(y, self.component_mean, self.component_cov)

    def expected_log_lik(self, y: Float[Tensor, "N T"]) -> Float[Tensor, "S N"]:
        """Return E[log N(y_n | f, diag σ²)] over f ~ N(μ_sn, C_sn), the data term of the ELBO."""
        self._check_targets(y)
        _require_positive("noise_var", self.noise_var)
        latent_var = self.latent_cov.diagonal(dim1=-2, dim2=-1)
        return maths.expected_normal_log_prob(y, self.component_mean, latent_var, self.noise_var).sum(-1)

    def with_noise(self, noise_var: Float[Tensor, "..."]) -> Self:
        """Return the same latent mixture under another observation noise."""
        return replace(self, noise_var=noise_var)

    def marginal(self, t: int) -> NormalMixture:
        """Return the distribution of output `t` alone; its cdf, quantiles and intervals are found there."""
        if not 0 <= t < self.num_outputs:
            raise InputError(f"got output {t}, expected 0 to {self.num_outputs - 1}; count outputs from 0")
        latent_var, noise_var = self.latent_cov[..., t, t], self.noise_var[:, t]
        return NormalMixture(self.log_weights, self.component_mean[..., t], latent_var, noise_var)

    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N T"]:
        """Draw `num` independent vectors for each row, reproducibly from `generator`; not differentiable."""
        which, normal = self._draw(num, generator)
        row = torch.arange(self.num_rows, device=which.device)
        L = maths.component_cholesky(self.component_cov.detach())[which, row]  # (num, N, T, T)
        return self.component_mean.detach()[which, row] + (L @ normal.unsqueeze(-1)).squeeze(-1)

    def crps(self, y: Float[Tensor, "N T"]) -> Float[Tensor, "N T"]:
        """Return the continuous ranked probability score of each output's marginal."""
        self._check_targets(y)
        return torch.stack([self.marginal(t).crps(y[:, t]) for t in range(self.num_outputs)], dim=-1)

    def affine(self, shift: float | Float[Tensor, "*T"], scale: float | Float[Tensor, "*T"]) -> Self:
        """Return the distribution of shift + scale·y, output by output; see `NormalMixture.affine`."""
        shift, scale = self._affine_arguments(shift, scale)
        scale = scale.expand(self.num_outputs)
        return replace(
            self,
            component_mean=shift + scale * self.component_mean,
            latent_cov=scale.unsqueeze(-1) * scale * self.latent_cov,
            noise_var=scale.square() * self.noise_var,
        )


def _joinable(a: Mixture, b: Mixture) -> bool:
    """Whether rows of one may follow rows of the other."""
    same_kind = type(a) is type(b) and a.component_mean.dtype == b.component_mean.dtype
    return same_kind and a.component_mean.shape[2:] == b.component_mean.shape[2:] and _equal(a, b)


def _require_positive(name: str, value: Tensor) -> None:
    if not bool((value.detach() > 0.0).all()):
        raise InputError(f"{name} is {value.detach().min():.3g} at its smallest, expected a positive number")

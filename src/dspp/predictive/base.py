"""Predictive distributions: the interface that all other code relies on, and what mixtures of any components share."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor
from torch.distributions import Categorical, MixtureSameFamily

from dspp.errors import InputError
from dspp.predictive import maths
from dspp.table.checks import Array, check_y

if TYPE_CHECKING:  # matplotlib is slow to import and rarely needed
    from matplotlib.axes import Axes

Formula = Callable[..., Tensor]

_WEIGHT_TOLERANCE = 1e-6  # of the sum of the weights in `Mixture.mix`


@dataclass(frozen=True, eq=False)
class LatentMixture:
    """q(f_n) = Σ_s ω_s Π_l N(f_nl | μ_snl, v_snl): what layers and rule pass to a likelihood.

    L latent functions at N rows.

    Attributes:
        log_weights: log ω, with Σ_s ω_s = 1.
        mean: μ, the mean of each latent function.
        var: v, its variance.

    Example:
        >>> import torch
        >>> from dspp.predictive import LatentMixture
        >>> latent = LatentMixture(torch.zeros(2), torch.zeros(2, 3, 1), torch.ones(2, 3, 1))  # S = 2, N = 3, L = 1
        >>> latent.weights.tolist()
        [0.5, 0.5]
    """

    log_weights: Float[Tensor, " S"]
    mean: Float[Tensor, "S N L"]
    var: Float[Tensor, "S N L"]

    @property
    def weights(self) -> Float[Tensor, " S"]:
        """ω, renormalised in case the logarithms were rounded to a shorter dtype."""
        return torch.softmax(self.log_weights, dim=0)


class Predictive(Protocol):
    """The distribution of the targets of N rows, of one output or of T; `*T` is empty for one output."""

    @property
    def num_outputs(self) -> int:
        """T, the number of outputs."""

    @property
    def num_components(self) -> int:
        """S, the number of parts that it is computed from."""

    @property
    def mean(self) -> Float[Tensor, " N *T"]:
        """E[y]."""

    @property
    def std(self) -> Float[Tensor, " N *T"]:
        """Standard deviation of y."""

    @property
    def median(self) -> Float[Tensor, " N *T"]:
        """Median of y; of several outputs, that of each alone."""

    @property
    def finite(self) -> Bool[Tensor, " N"]:
        """Whether the distribution of each row is finite."""

    def __len__(self) -> int:
        """Return N, the number of rows."""

    def log_prob(self, y: Array) -> Float[Tensor, " N"]:
        """Return the log density (or log probability) of y, joint over the outputs observed in a row."""

    def crps(self, y: Array) -> Float[Tensor, " N *T"]:
        """Return the continuous ranked probability score of each output; NaN if it was not observed."""

    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N *T"]:
        """Draw `num` independent values per row, reproducibly from `generator`."""

    def outputs(self) -> Sequence["RealPredictive"]:
        """Return the distribution of each output alone: the T marginals, or just itself for one output."""

    def rows(self, index: slice | Sequence[int] | Tensor) -> Self:
        """Return the distribution of some of the rows."""

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the rows of distributions of one type, such as the batches of one prediction."""

    @classmethod
    def mix(cls, parts: Sequence[Self], weights: Sequence[float]) -> Self:
        """Mix distributions of the same rows, with weights that sum to one."""

    def widen(self, factor: float, floor: float = 0.0) -> Self:
        """Return the distribution with the variance of every component multiplied by `factor`.

        A factor below 1 does not take the variance of the noise, where it is known, below `floor`.
        """

    def approach_standard(self, share: Float[Tensor, " N"]) -> Self:
        """Return the distribution whose components have gone a share of the way to N(0, 1), which may differ by row."""

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """Return the same distribution in another dtype or on another device."""

    def to_html(self) -> str:
        """Return what a notebook shows."""


class Mixture(Predictive, ABC):
    """p(y_n) = Σ_s ω_s p_s(y_n): the base of dataclasses whose fields are the tensors of S components.

    Parameters such as the noise belong to each component. They may have any shape that broadcasts against
    `component_mean`, so that one value can serve all components, all rows, or both; they are stored with all of its
    axes, of length 1 where shared. Weights are (S,), or (S, N) if they differ between rows.
    """

    _PARAMETERS: ClassVar[tuple[str, ...]] = ("noise_var",)  # the fields that may be shared

    log_weights: Float[Tensor, " S *N"]
    component_mean: Float[Tensor, "S N *T"]

    @property
    @abstractmethod
    def component_var(self) -> Float[Tensor, "S N *T"]:
        """Variance of each component: latent function plus observation noise."""

    @abstractmethod
    def component_log_prob(self, y: Array) -> Float[Tensor, "S N"]:
        """Return log p_s(y_n), without the weights."""

    @property
    def num_components(self) -> int:
        """S, the number of components."""
        return len(self.log_weights)

    @property
    def num_rows(self) -> int:
        """N, the number of rows."""
        return self.component_mean.shape[1]

    @property
    def num_outputs(self) -> int:
        """T, the number of outputs."""
        return self.component_mean.shape[2:].numel()

    def __len__(self) -> int:
        return self.num_rows

    def __repr__(self) -> str:
        several = self.mean.ndim > 1
        text = f"N={self.num_rows}, {f'T={self.num_outputs}, ' * several}S={self.num_components}"
        if self.num_rows and not several:
            low, high = (f"{float(end):.4g}" for end in self.mean.detach().aminmax())
            text += f", mean {low}" if low == high else f", mean {low} to {high}"
        return f"{type(self).__name__}({text})"

    def to_html(self) -> str:
        """Return what a notebook shows: the first rows with their densities."""
        from dspp.predictive.show import describe

        return describe(self)

    # ---------------------------------------------------------------- moments and density

    @property
    def weights(self) -> Float[Tensor, " S *N"]:
        """ω, renormalised in case the logarithms were rounded to a shorter dtype."""
        return torch.softmax(self.log_weights, dim=0)

    @property
    def mean(self) -> Float[Tensor, " N *T"]:
        """E[y] = Σ_s ω_s μ_s."""
        return maths.average(self.weights, self.component_mean)

    @property
    def var(self) -> Float[Tensor, " N *T"]:
        """Var[y] = Σ_s ω_s (v_s + (μ_s − E[y])²): the variance within the components and between them."""
        spread = self.component_var + (self.component_mean - self.mean).square()
        return maths.average(self.weights, spread)

    @property
    def std(self) -> Float[Tensor, " N *T"]:
        """Standard deviation of y."""
        return self.var.sqrt()

    @property
    def finite(self) -> Bool[Tensor, " N"]:
        """Whether mean and standard deviation of each row are finite."""
        return self.std.isfinite().reshape(self.num_rows, self.num_outputs).all(1)

    def log_prob(self, y: Array) -> Float[Tensor, " N"]:
        """Return log p(y_n) = log Σ_s exp(log ω_s + log p_s(y_n)), joint over the outputs observed in a row."""
        return torch.logsumexp(self._log_weights_by_row + self.component_log_prob(y), dim=0)

    def pdf(self, y: Array) -> Float[Tensor, " N"]:
        """Return the density p(y_n), joint over the outputs observed in a row."""
        return self.log_prob(y).exp()

    @torch.no_grad()
    def entropy(self, num_samples: int, generator: Generator | None = None) -> Float[Tensor, " N"]:
        """Estimate −E[log p(y_n)] from `num_samples` draws per row."""
        draws = self.sample(num_samples, generator)
        return -torch.stack([self.log_prob(y) for y in draws]).mean(0)

    # ---------------------------------------------------------------- other mixtures

    def with_noise(self, noise_var: Float[Tensor, "..."]) -> Self:
        """Return the same latent mixture with another observation noise."""
        return self._replace(noise_var=noise_var)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """Return the same mixture in another dtype or on another device."""
        return self._replace(**{name: field.to(device=device, dtype=dtype) for name, field in vars(self).items()})

    def rows(self, index: slice | Sequence[int] | Tensor) -> Self:
        """Return the mixture of some rows: a slice, a list or tensor of row numbers, or a mask."""
        try:
            picked = torch.arange(self.num_rows, device=self.component_mean.device)[index]
        except (IndexError, TypeError) as error:
            raise InputError(f"cannot select rows {index!r} of {self.num_rows}: {error}") from None
        if picked.ndim != 1:
            raise InputError(f"expected a slice or a list of rows, got {index!r}; use [i] for one row")
        shared = self._shared
        return self._replace(**{name: field[:, picked] for name, field in vars(self).items() if name not in shared})

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Concatenate rows, such as the batches of one prediction or rows predicted by different models.

        Where numbers of components or weights differ, rows get their own weights, 0 for the components they lack.
        """
        if len(parts) == 0:
            raise InputError("expected at least one mixture to concatenate, got none")
        first = parts[0]
        for i, part in enumerate(parts):
            if not first._is_like(part):
                raise InputError(
                    f"mixture {i} differs from mixture 0 in type, outputs or dtype; concatenate predictions of one kind"
                )
        if not all(part.log_weights.equal(first.log_weights) for part in parts):
            S = max(part.num_components for part in parts)
            parts = [part._with_components(S) for part in parts]
        of_all = set.intersection(*(part._shared for part in parts))
        same = {name for name in of_all if all(vars(part)[name].equal(vars(parts[0])[name]) for part in parts)}
        return parts[0]._replace(**{name: _join(parts, name, 1) for name in vars(first) if name not in same})

    @classmethod
    def mix(cls, parts: Sequence[Self], weights: Sequence[float]) -> Self:
        """Mix distributions of the same rows, Σ_k w_k p_k(y_n): a mixture of mixtures is a mixture.

        Args:
            parts: The distributions; their numbers of components and their noise may differ.
            weights: w, non-negative with sum one. Parts of weight 0 are left out.

        Raises:
            InputError: The parts differ in rows or outputs, or the weights are negative or do not sum to one.
        """
        shares = _check_shares(parts, weights)
        kept = [part for part, share in zip(parts, shares, strict=True) if share > 0.0]
        if len(kept) == 1:
            return kept[0]
        if any(part.log_weights.ndim == 2 for part in kept):
            kept = [part._with_components(part.num_components) for part in kept]
        logs = [math.log(share) for share in shares if share > 0.0]
        # log w_k + log ω_ks
        log_weights = torch.cat([part.log_weights + log for part, log in zip(kept, logs, strict=True)])
        others = {name: _join(kept, name, 0) for name in vars(kept[0]) if name != "log_weights"}
        return kept[0]._replace(log_weights=log_weights, **others)

    def _replace(self, **fields: Tensor) -> Self:
        return type(self)(**vars(self) | fields)

    def _is_like(self, other: "Mixture") -> bool:
        """Return whether the other is of the same type, outputs and dtype."""
        mine, its = self.component_mean, other.component_mean
        return type(self) is type(other) and mine.shape[2:] == its.shape[2:] and mine.dtype == its.dtype

    @property
    def _shared(self) -> set[str]:
        """The fields that are the same for all rows."""
        shared = {name for name in self._PARAMETERS if vars(self)[name].shape[1] == 1}
        return shared if self.log_weights.ndim == 2 else shared | {"log_weights"}

    def _with_components(self, count: int) -> Self:
        """Return the mixture with weights by row and with more components: the first again, with weight 0.

        Unlike made-up moments, those of the first can neither overflow nor widen the range in which quantiles lie.
        """
        component = torch.arange(count, device=self.component_mean.device)
        more = component >= self.num_components
        component = component.masked_fill(more, 0)
        fields = vars(self) | {"log_weights": self._log_weights_by_row.expand(-1, self.num_rows)}
        shared = {name for name in self._PARAMETERS if len(fields[name]) == 1}
        taken = {name: field[component] for name, field in fields.items() if name not in shared}
        log_weights = taken.pop("log_weights").masked_fill(more[:, None], -math.inf)
        return self._replace(log_weights=log_weights, **taken)

    @property
    def _log_weights_by_row(self) -> Float[Tensor, "S N"] | Float[Tensor, "S 1"]:
        return self.log_weights if self.log_weights.ndim == 2 else self.log_weights.unsqueeze(-1)

    def _to_torch(self, components: torch.distributions.Distribution) -> MixtureSameFamily:
        """Return the distribution of `torch.distributions` with these components, whose batches are (N, S)."""
        weights = Categorical(logits=self._log_weights_by_row.T.expand(self.num_rows, -1))
        return MixtureSameFamily(weights, components)

    @torch.no_grad()
    def _draw(self, num: int, generator: Generator | None) -> tuple[Int[Tensor, "num N"], Tensor]:
        """Draw a component and standard Normal numbers for each sample."""
        if num < 1:
            raise InputError(f"expected at least 1 sample, got {num}")
        mean, weights = self.component_mean, self.weights
        if weights.ndim == 1:
            count = num * self.num_rows
            which = torch.multinomial(weights, max(1, count), replacement=True, generator=generator)[:count]
            which = which.reshape(num, self.num_rows)
        else:
            which = torch.multinomial(weights.T, num, replacement=True, generator=generator).T
        normal = torch.randn(num, *mean.shape[1:], generator=generator, dtype=mean.dtype, device=mean.device)
        return which, normal


class RealPredictive(Mixture):
    """The distribution of one real output: a mixture with a cdf, quantiles and all that follows from them.

    They are computed and returned in float64, which probabilities near 1 need.
    """

    support: ClassVar[tuple[float, float]] = (-math.inf, math.inf)  # the ends between which y lies

    # The maths of a block of rows: functions of the weights, of y and of the parameters of the components, in float64;
    # for quantiles of the probabilities p (K, 1) in place of y.
    _cdf: ClassVar[Formula]
    _quantile: ClassVar[Formula]
    _distance: ClassVar[Formula]
    _crps: ClassVar[Formula]

    @abstractmethod
    def _in_float64(self) -> tuple[Tensor, ...]:
        """Return the weights, and the parameters of the components (S, N)."""

    def _by_blocks(self, function: Formula, elements: int, *by_row: Tensor) -> Tensor:
        weights, *components = self._in_float64()
        return maths.over_row_chunks(function, elements, weights, *by_row, *components)

    def _check(self, y: Array, many: bool = False) -> Tensor:
        return maths.check_targets(y, self.component_mean, many)

    def cdf(self, y: Array) -> Float[Tensor, " *K N"]:
        """Return P(Y_n <= y_n) for one value per row, (N,), or for K values per row, (K, N)."""
        y = self._check(y, many=True)
        return self._by_blocks(self._cdf, y.shape[:-1].numel(), y.double())

    @torch.no_grad()
    def quantile(self, p: float | Float[Tensor, " *K"]) -> Float[Tensor, " *K N"]:
        """Return x with |F(x) − p| <= 1e-8, or as near as float64 allows, for one or K probabilities."""
        wanted = maths.check_probabilities(p, self.log_weights.device)
        solve = partial(self._quantile, p=wanted.reshape(-1, 1))
        return self._by_blocks(solve, wanted.numel()).reshape(*wanted.shape, self.num_rows)

    def crps(self, y: Array) -> Float[Tensor, " N"]:
        """Return the continuous ranked probability score ∫ (F(x) − 1{y_n <= x})² dx, in the units of y."""
        return self._by_blocks(self._crps, 2, self._check(y).double())

    def mean_distance(self, y: Array) -> Float[Tensor, " N"]:
        """Return E|Y_n − y_n|, the first term of the CRPS, in the units of y."""
        return self._by_blocks(self._distance, 1, self._check(y).double())

    @property
    def median(self) -> Float[Tensor, " N"]:
        """Median of y."""
        return self.quantile(0.5)

    def outputs(self) -> list[Self]:
        """Return this distribution, as the only output."""
        return [self]

    def pit(self, y: Array) -> Float[Tensor, " N"]:
        """Return the probability integral transform F(y_n), uniform if the mixture is the true distribution."""
        return self.cdf(self._check(y))

    def interval(self, coverage: float) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """Return (lower, upper) of the central interval with probability `coverage`."""
        if not 0.0 < coverage < 1.0:
            raise InputError(f"coverage: expected a number inside (0, 1), such as 0.9, got {coverage}")
        return self.quantile(0.5 - 0.5 * coverage), self.quantile(0.5 + 0.5 * coverage)

    # ---------------------------------------------------------------- figures

    def plot_density(self, row: int = 0, y: float | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draw the density of one row and, if given, the observed value `y`."""
        from dspp import plots

        return plots.density(self, row, y=y, ax=ax)

    def plot_fan(
        self, x: Array, y: Array | None = None, ax: "Axes | None" = None, levels: Sequence[float] = (0.5, 0.8, 0.95)
    ) -> "Axes":
        """Draw the median and central intervals of every row against one input `x`."""
        from dspp import plots

        return plots.fan(self, x, y=y, ax=ax, levels=levels)

    def plot_pit(self, y: Array, ax: "Axes | None" = None) -> "Axes":
        """Draw the histogram of F(y_n), flat if the mixture is the true distribution."""
        from dspp import plots

        return plots.pit_histogram(self._pit_array(y), ax=ax)

    def plot_reliability(self, y: Array, ax: "Axes | None" = None) -> "Axes":
        """Draw the observed against the nominal coverage of central intervals."""
        from dspp import plots

        return plots.reliability(self._pit_array(y), ax=ax)

    def _pit_array(self, y: Array) -> Float[np.ndarray, " N"]:
        observed = torch.from_numpy(check_y(y, self.num_rows)).to(self.log_weights.device)
        return np.asarray(self.pit(observed).detach().cpu().numpy())


def _join(parts: Sequence[Mixture], name: str, axis: int) -> Tensor:
    """Concatenate a field along components (axis 0) or rows (1), of which mixtures that share it need copies."""
    fields = [vars(part)[name] for part in parts]
    other = next((field.shape[1 - axis] for field in fields if field.shape[1 - axis] != 1), 1)
    copies = []
    for part, field in zip(parts, fields, strict=True):
        length = part.component_mean.shape[axis]
        copies.append(field.expand(*((length, other) if axis == 0 else (other, length)), *field.shape[2:]))
    return torch.cat(copies, dim=axis)


def _check_shares(parts: Sequence[Mixture], weights: Sequence[float]) -> list[float]:
    """Check the weights of a mix and return them, normalised."""
    shares = [float(weight) for weight in weights]
    total = sum(shares)
    if len(shares) != len(parts) or not parts:
        raise InputError(
            f"expected one weight per distribution, got {len(parts)} distributions and {len(shares)} weights"
        )
    if not all(share >= 0.0 for share in shares) or abs(total - 1.0) > _WEIGHT_TOLERANCE:
        raise InputError(f"expected weights >= 0 that sum to 1, got {shares}; divide them by their sum")
    for i, part in enumerate(parts):
        if not part._is_like(parts[0]) or len(part) != len(parts[0]):
            raise InputError(
                f"distribution {i} differs from distribution 0 in type, rows, outputs or dtype; mix predictions for "
                "the same rows"
            )
    return [share / total for share in shares]

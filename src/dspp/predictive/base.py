"""What mixtures share, whatever their components: weights, moments, selecting rows, joining and mixing."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor
from torch.distributions import Categorical, MixtureSameFamily

from dspp.errors import InputError
from dspp.predictive import maths
from dspp.table.checks import Array

_WEIGHT_TOLERANCE = 1e-6  # of the sum of the weights in `Mixture.mix`


class WeightedComponents(ABC):
    """p(y_n) = Σ_s ω_s p_s(y_n), with weights ω of all rows or of each row: what follows from weights and moments."""

    log_weights: Float[Tensor, " S *N"]
    component_mean: Float[Tensor, "S N *T"]

    @property
    @abstractmethod
    def component_var(self) -> Float[Tensor, "S N *T"]:
        """Variance of each component: latent function plus observation noise."""

    @abstractmethod
    def log_prob(self, y: Array) -> Float[Tensor, " N"]:
        """Return log p(y_n)."""

    @abstractmethod
    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N *T"]:
        """Draw `num` independent values per row, reproducibly from `generator`; not differentiable."""

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
        sizes = f"N={self.num_rows}, " + (f"T={self.num_outputs}, " if self.component_mean.ndim > 2 else "")
        return f"{type(self).__name__}({sizes}S={self.num_components}{self._range()})"

    def _range(self) -> str:
        """Return the range of the means of one output, for `repr`."""
        if self.component_mean.ndim > 2 or self.num_rows == 0:
            return ""
        low, high = (f"{float(end):.4g}" for end in self.mean.detach().aminmax())
        return f", mean {low}" if low == high else f", mean {low} to {high}"

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
        finite = self.std.isfinite()
        return finite.all(1) if finite.ndim > 1 else finite

    def to_html(self) -> str:
        """Return what a notebook shows: the first rows with their densities."""
        from dspp.predictive.show import describe

        return describe(cast(Any, self))

    def pdf(self, y: Array) -> Float[Tensor, " N"]:
        """Return the density p(y_n), joint over the outputs observed in a row."""
        return self.log_prob(y).exp()

    @torch.no_grad()
    def entropy(self, num_samples: int, generator: Generator | None = None) -> Float[Tensor, " N"]:
        """Estimate −E[log p(y_n)] from `num_samples` draws per row."""
        draws = self.sample(num_samples, generator)
        return -torch.stack([self.log_prob(y) for y in draws]).mean(0)


@dataclass(frozen=True, eq=False, repr=False)
class Mixture(WeightedComponents):
    """A mixture whose components are stored as tensors.

    Parameters such as the noise belong to each component. They may have any shape that broadcasts against
    `component_mean`, so that one value can serve all components, all rows, or both. Weights are (S,), or (S, N) if they
    differ between rows.
    """

    _PARAMETERS: ClassVar[tuple[str, ...]] = ("noise_var",)  # the fields that broadcast; the others have all axes

    log_weights: Float[Tensor, " S *N"]
    component_mean: Float[Tensor, "S N *T"]

    @abstractmethod
    def component_log_prob(self, y: Array) -> Float[Tensor, "S N"]:
        """Return log p_s(y_n), without the weights."""

    @abstractmethod
    def to_torch(self) -> MixtureSameFamily:
        """Return the same distribution for `torch.distributions`, one batch entry per row, gradients included."""

    def log_prob(self, y: Array) -> Float[Tensor, " N"]:
        """Return log p(y_n) = log Σ_s exp(log ω_s + log p_s(y_n))."""
        return torch.logsumexp(self._log_weights_by_row + self.component_log_prob(y), dim=0)

    def with_noise(self, noise_var: Float[Tensor, "..."]) -> Self:
        """Return the same latent mixture with another observation noise."""
        return replace(self, **{"noise_var": noise_var})

    def rows(self, index: slice | Sequence[int] | Tensor) -> Self:
        """Return the mixture of some rows: a slice, a list or tensor of row numbers, or a mask."""
        try:
            picked = torch.arange(self.num_rows, device=self.component_mean.device)[index]
        except (IndexError, TypeError) as error:
            raise InputError(f"cannot select rows {index!r} of {self.num_rows}: {error}") from None
        if picked.ndim != 1:
            raise InputError(f"expected a slice or a list of rows, got {index!r}; use [i] for one row")
        taken = {name: field[:, picked] for name, field in self._by_row.items()}
        axes = self.component_mean.ndim
        parameters = {name: maths.take_rows(vars(self)[name], picked, axes) for name in self._PARAMETERS}
        return replace(self, **taken | parameters)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """Return the same mixture in another dtype or on another device."""
        moved = {name: field.to(device=device, dtype=dtype) for name, field in vars(self).items()}
        return replace(self, **moved)

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
        fields, means = [vars(part) for part in parts], [part.component_mean for part in parts]
        joined = {name: torch.cat([part[name] for part in fields], dim=1) for name in parts[0]._by_row}
        parameters = {name: maths.join_rows([part[name] for part in fields], means) for name in cls._PARAMETERS}
        return replace(parts[0], **joined | parameters)

    def _is_like(self, other: "Mixture") -> bool:
        """Return whether the other is of the same type, outputs and dtype."""
        mine, its = self.component_mean, other.component_mean
        return type(self) is type(other) and mine.shape[2:] == its.shape[2:] and mine.dtype == its.dtype

    def _with_components(self, count: int) -> Self:
        """Return the mixture with weights by row and with more components: the first again, with weight 0.

        Unlike made-up moments, those of the first can neither overflow nor widen the range in which quantiles lie.
        """
        component = torch.arange(count, device=self.component_mean.device)
        more = component >= self.num_components
        component = component.masked_fill(more, 0)
        log_weights = self._log_weights_by_row.expand(-1, self.num_rows)[component].masked_fill(
            more[:, None], -math.inf
        )
        taken = {name: field[component] for name, field in self._by_row.items()}
        axes = self.component_mean.ndim
        parameters = {name: maths.take_components(vars(self)[name], component, axes) for name in self._PARAMETERS}
        return replace(self, **taken | parameters | {"log_weights": log_weights})

    @classmethod
    def mix(cls, parts: Sequence[Self], weights: Sequence[float]) -> Self:
        """Mix distributions of the same rows, Σ_k w_k p_k(y_n): a mixture of mixtures is a mixture.

        Args:
            parts: The distributions; their numbers of components and their noise may differ.
            weights: w, non-negative with sum one. Parts of weight 0 are left out.

        Raises:
            InputError: The parts differ in rows or outputs, or the weights are negative or do not sum to one.
        """
        shares = _mixing_weights(parts, weights)
        heavy = [(part, share) for part, share in zip(parts, shares, strict=True) if share > 0.0]
        if len(heavy) == 1:
            return heavy[0][0]
        kept = [part for part, _ in heavy]
        if any(part.log_weights.ndim == 2 for part in kept):
            kept = [part._with_components(part.num_components) for part in kept]
        # log w_k + log ω_ks
        log_weights = [part.log_weights + math.log(share) for part, (_, share) in zip(kept, heavy, strict=True)]
        fields, means = [vars(part) for part in kept], [part.component_mean for part in kept]
        joined = {name: torch.cat([part[name] for part in fields]) for name in kept[0]._by_row}
        parameters = {name: maths.join_components([part[name] for part in fields], means) for name in cls._PARAMETERS}
        return replace(kept[0], **joined | parameters | {"log_weights": torch.cat(log_weights)})

    @property
    def _by_row(self) -> dict[str, Tensor]:
        """Fields of shape (S, N, ...)."""
        others = self._PARAMETERS if self.log_weights.ndim == 2 else ("log_weights", *self._PARAMETERS)
        return {name: field for name, field in vars(self).items() if name not in others}

    @property
    def _log_weights_by_row(self) -> Float[Tensor, "S N"] | Float[Tensor, "S 1"]:
        return self.log_weights if self.log_weights.ndim == 2 else self.log_weights.unsqueeze(-1)

    def _categorical(self) -> Categorical:
        """Return the weights for `torch.distributions`, repeated for each row."""
        return Categorical(logits=self._log_weights_by_row.T.expand(self.num_rows, -1))

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


def _mixing_weights(parts: Sequence[Mixture], weights: Sequence[float]) -> list[float]:
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

"""What mixtures of one output and of several have in common: weights, moments, rows, joining."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.distributions import Categorical, MixtureSameFamily

from dspp.data.checks import Table
from dspp.errors import InputError
from dspp.mixture import maths

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
    def component_log_prob(self, y: Table) -> Float[Tensor, "S N"]:
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

    def log_prob(self, y: Table) -> Float[Tensor, " N"]:
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

"""Distributions of rows that were predicted by different models, such as the out-of-fold rows of an ensemble."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from dspp.errors import InputError
from dspp.predictive.one_output import OneOutput
from dspp.predictive.protocol import Predictive, RealPredictive
from dspp.table.checks import Array


@dataclass(frozen=True, eq=False)
class GroupedPredictive(OneOutput):
    """The distributions of N rows in groups, each of which has its own mixture; a row belongs to one group.

    Within a mixture all rows have the same weights, so rows predicted by different models cannot share one. What
    depends on single rows (moments, density, cdf, quantiles, scores) is computed group by group; there is no common
    list of components.

    Attributes:
        parts: The distributions of each group.
        index: The row numbers of each group, together 0 to N − 1.
    """

    parts: tuple[Predictive, ...]
    index: tuple[Int[Tensor, " n"], ...]

    def __post_init__(self) -> None:
        order = torch.cat(self.index)
        if len(self.parts) != len(self.index) or not torch.equal(order.sort().values, torch.arange(len(order))):
            raise InputError("expected each row in exactly one group, got rows in none or several")
        object.__setattr__(self, "_inverse", order.argsort())

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts)

    @property
    def num_rows(self) -> int:
        """N, the number of rows."""
        return len(self)

    @property
    def num_outputs(self) -> int:
        """T, the number of outputs."""
        return self.parts[0].num_outputs

    @property
    def mean(self) -> Float[Tensor, " N *T"]:
        """E[y]."""
        return self._rows_of(part.mean for part in self.parts)

    @property
    def std(self) -> Float[Tensor, " N *T"]:
        """Standard deviation of y."""
        return self._rows_of(part.std for part in self.parts)

    @property
    def median(self) -> Float[Tensor, " N *T"]:
        """Median of y; of several outputs, that of each alone."""
        return self._rows_of(part.median for part in self.parts)

    @property
    def component_mean(self) -> Float[Tensor, "1 N *T"]:  # type: ignore[override]
        """The mean, which tells the shape of targets; components differ between groups."""
        return self.mean.unsqueeze(0)

    def log_prob(self, y: Array) -> Float[Tensor, " N"]:
        """Return log p(y_n), joint over the outputs observed in a row."""
        return self._each(lambda part, y: part.log_prob(y), y)

    def pdf(self, y: Array) -> Float[Tensor, " N"]:
        """Return the density p(y_n), joint over the outputs observed in a row."""
        return self.log_prob(y).exp()

    def crps(self, y: Array) -> Float[Tensor, " N *T"]:
        """Return the continuous ranked probability score of each output."""
        return self._each(lambda part, y: part.crps(y), y)

    def mean_distance(self, y: Array) -> Float[Tensor, " N"]:
        """Return E|Y_n − y_n|, the first term of the CRPS, in the units of y."""
        return self._each(lambda part, y: cast(RealPredictive, part).mean_distance(y), y)

    def cdf(self, y: Array) -> Float[Tensor, " *K N"]:
        """Return P(Y_n <= y_n) for one value per row, (N,), or for K values per row, (K, N)."""
        return self._each(lambda part, y: cast(RealPredictive, part).cdf(y), y, rows=-1)

    def quantile(self, p: float | Float[Tensor, " *K"]) -> Float[Tensor, " *K N"]:
        """Return x with F(x) = p, for one or K probabilities."""
        return self._rows_of((cast(RealPredictive, part).quantile(p) for part in self.parts), dim=-1)

    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N *T"]:
        """Draw `num` independent values per row, reproducibly from `generator`."""
        return self._rows_of((part.sample(num, generator) for part in self.parts), dim=1)

    def outputs(self) -> list[Any]:
        """Return the distribution of each output alone."""
        if self.num_outputs == 1:
            return [self]
        each = zip(*(part.outputs() for part in self.parts), strict=True)
        return [GroupedPredictive(tuple(parts), self.index) for parts in each]

    def rows(self, index: slice | Sequence[int] | Tensor) -> Any:
        """Return the distribution of some of the rows; that of the group itself if all are in one."""
        try:
            picked = torch.arange(len(self))[index]
        except (IndexError, TypeError) as error:
            raise InputError(f"cannot select rows {index!r} of {len(self)}: {error}") from None
        order = torch.cat(self.index)
        group = torch.repeat_interleave(torch.arange(len(self.parts)), torch.tensor([len(i) for i in self.index]))
        place = torch.cat([torch.arange(len(i)) for i in self.index])
        at = order.argsort()[picked]  # position of each row in the concatenated groups
        found = [(k, (group[at] == k).nonzero().squeeze(-1)) for k in group[at].unique().tolist()]
        parts = tuple(self.parts[k].rows(place[at[where]]) for k, where in found)
        if len(parts) == 1:
            return parts[0]
        return GroupedPredictive(parts, tuple(where for _, where in found))

    def widen(self, factor: float, floor: float = 0.0) -> Self:
        """Return the distributions with the variance of every component multiplied by `factor`."""
        return type(self)(tuple(part.widen(factor, floor) for part in self.parts), self.index)

    def approach_standard(self, share: Float[Tensor, " N"]) -> Self:
        """Return the distributions whose components have gone a share of the way to N(0, 1)."""
        pairs = zip(self.parts, self.index, strict=True)
        return type(self)(tuple(part.approach_standard(share[index]) for part, index in pairs), self.index)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """Return the same distributions in another dtype or on another device."""
        return type(self)(tuple(part.to(dtype, device) for part in self.parts), self.index)

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Concatenate rows."""
        starts = np.cumsum([0, *(len(part) for part in parts)])
        index = [rows + int(start) for part, start in zip(parts, starts, strict=False) for rows in part.index]
        return cls(tuple(one for part in parts for one in part.parts), tuple(index))

    @classmethod
    def mix(cls, parts: Sequence[Self], weights: Sequence[float]) -> Self:
        """Mix distributions of the same groups of rows."""
        each = zip(*(part.parts for part in parts), strict=True)
        return cls(tuple(type(group[0]).mix(group, weights) for group in each), parts[0].index)

    def _each(self, compute: Callable[[Predictive, Any], Tensor], y: Array, rows: int = 0) -> Tensor:
        """Call a function of the targets of each group; their axis of rows is 0, or the last."""
        values = y if isinstance(y, Tensor) else torch.as_tensor(np.array(y))
        axis = 0 if rows == 0 or values.ndim == 1 else -1
        parts = (compute(part, values.index_select(axis, i)) for part, i in zip(self.parts, self.index, strict=True))
        return self._rows_of(parts, dim=axis)

    def _rows_of(self, values: Any, dim: int = 0) -> Tensor:
        """Join results of the groups in the order of the rows."""
        inverse: Tensor = vars(self)["_inverse"]
        return torch.cat(list(values), dim=dim).index_select(dim, inverse)

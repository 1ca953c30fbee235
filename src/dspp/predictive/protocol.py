"""What every predictive distribution can do, whatever its kind: the only thing that code outside may rely on."""

from collections.abc import Sequence
from typing import Protocol, Self

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from dspp.table.checks import Array


class Predictive(Protocol):
    """The distribution of the targets of N rows, of one output or of T; `*T` is nothing when there is one output."""

    @property
    def num_rows(self) -> int:
        """N, the number of rows."""

    @property
    def num_outputs(self) -> int:
        """T, the number of outputs."""

    @property
    def mean(self) -> Float[Tensor, " N *T"]:
        """E[y]."""

    @property
    def std(self) -> Float[Tensor, " N *T"]:
        """The standard deviation of y."""

    def __len__(self) -> int:
        """N, the number of rows."""

    def log_prob(self, y: Array) -> Float[Tensor, " N"]:
        """Return the log density (or log probability) of y, joint over the outputs observed in a row."""

    def crps(self, y: Array) -> Float[Tensor, " N *T"]:
        """Return the continuous ranked probability score of each output; NaN if it was not observed."""

    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N *T"]:
        """Draw `num` independent values for each row, reproducibly from `generator`."""

    def outputs(self) -> Sequence["RealPredictive"]:
        """The distribution of each output alone: itself where there is one, the T marginals where there are more."""

    def rows(self, index: slice | Sequence[int] | Tensor) -> Self:
        """The distribution of some of the rows."""

    @classmethod
    def concat(cls, parts: Sequence[Self]) -> Self:
        """Join the rows of distributions of the same model: the batches of one prediction."""

    @classmethod
    def mix(cls, parts: Sequence[Self], weights: Sequence[float]) -> Self:
        """Mix distributions of the same rows, whose weights sum to one."""

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Self:
        """The same distribution in another dtype or on another device."""


class RealPredictive(Predictive, Protocol):
    """The distribution of one real-valued output: a mixture of S components."""

    @property
    def weights(self) -> Float[Tensor, " S"]:
        """ω, the weight of each component."""

    @property
    def component_mean(self) -> Float[Tensor, "S N"]:
        """The mean of each component."""

    @property
    def component_var(self) -> Float[Tensor, "S N"]:
        """The variance of each component."""

    def component_log_prob(self, y: Array) -> Float[Tensor, "S N"]:
        """Return log p_s(y_n), without the weights."""

    def cdf(self, y: Array) -> Float[Tensor, " *K N"]:
        """Return P(Y_n <= y_n) for one value per row, (N,), or for K values per row, (K, N)."""

    def pit(self, y: Array) -> Float[Tensor, " N"]:
        """Return the probability integral transform F(y_n)."""

    def quantile(self, p: float | Float[Tensor, " *K"]) -> Float[Tensor, " *K N"]:
        """Return x with F(x) = p, for one p or for K of them."""

    def interval(self, coverage: float) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """Return (lower, upper) of the central interval that holds `coverage` of the probability."""

"""The interface of every predictive distribution, and all that code elsewhere may rely on."""

from collections.abc import Sequence
from typing import Protocol, Self

import torch
from jaxtyping import Bool, Float
from torch import Generator, Tensor

from dspp.table.checks import Array


class Predictive(Protocol):
    """The distribution of the targets of N rows, of one output or of T; `*T` is empty for one output.

    Example:
        >>> import torch
        >>> from dspp import NormalMixture
        >>> from dspp.predictive import Predictive
        >>> def spread(predictive: Predictive) -> float:  # of any distribution, of one output or several
        ...     return float(predictive.std.mean())
        >>> spread(NormalMixture(torch.zeros(1), torch.zeros(1, 4), torch.ones(1, 4), torch.tensor(0.0)))
        1.0
    """

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
        """Standard deviation of y."""

    @property
    def median(self) -> Float[Tensor, " N *T"]:
        """Median of y; of several outputs, that of each alone."""

    @property
    def num_components(self) -> int:
        """S, the number of parts that it is computed from."""

    def to_html(self) -> str:
        """Return what a notebook shows."""

    @property
    def finite(self) -> Bool[Tensor, " N"]:
        """Whether the distribution of each row is finite."""

    def __len__(self) -> int:
        """Return N, the number of rows."""

    def log_prob(self, y: Array) -> Float[Tensor, " N"]:
        """Return the log density (or log probability) of y, joint over the outputs observed in a row."""

    def pdf(self, y: Array) -> Float[Tensor, " N"]:
        """Return the density (or probability) of y: exp(log_prob(y))."""

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


class RealPredictive(Predictive, Protocol):
    """The distribution of one real-valued output: a mixture of S components.

    Example:
        >>> import torch
        >>> from dspp import StudentTMixture
        >>> from dspp.predictive import RealPredictive
        >>> def median(predictive: RealPredictive) -> list[float]:  # of a mixture of any kind
        ...     return predictive.quantile(0.5).tolist()
        >>> median(StudentTMixture(torch.zeros(1), torch.zeros(1, 2), torch.tensor(1.0), torch.tensor(4.0)))
        [0.0, 0.0]
    """

    @property
    def weights(self) -> Float[Tensor, " S *N"]:
        """ω, the weight of each component, which may differ between rows."""

    @property
    def component_mean(self) -> Float[Tensor, "S N"]:
        """Mean of each component."""

    @property
    def component_var(self) -> Float[Tensor, "S N"]:
        """Variance of each component."""

    @property
    def support(self) -> tuple[float, float]:
        """The ends between which y lies."""

    def component_log_prob(self, y: Array) -> Float[Tensor, "S N"]:
        """Return log p_s(y_n), without the weights."""

    def cdf(self, y: Array) -> Float[Tensor, " *K N"]:
        """Return P(Y_n <= y_n) for one value per row, (N,), or for K values per row, (K, N)."""

    def mean_distance(self, y: Array) -> Float[Tensor, " N"]:
        """Return E|Y_n − y_n|, the first term of the CRPS, in the units of y."""

    def pit(self, y: Array) -> Float[Tensor, " N"]:
        """Return the probability integral transform F(y_n)."""

    def quantile(self, p: float | Float[Tensor, " *K"]) -> Float[Tensor, " *K N"]:
        """Return x with F(x) = p, for one or K probabilities."""

    def interval(self, coverage: float) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """Return (lower, upper) of the central interval with probability `coverage`."""

"""What distributions of one real output share: intervals, the PIT and figures."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dspp.errors import InputError
from dspp.predictive import maths
from dspp.table.checks import Array, check_y

if TYPE_CHECKING:  # matplotlib is slow to import and rarely needed
    from matplotlib.axes import Axes


class OneOutput(ABC):
    """One real output: everything that follows from the cdf and the quantiles."""

    support: ClassVar[tuple[float, float]] = (-math.inf, math.inf)

    component_mean: Float[Tensor, "S N"]

    @abstractmethod
    def cdf(self, y: Array) -> Float[Tensor, " *K N"]:
        """Return P(Y_n <= y_n) for one value per row, (N,), or for K values per row, (K, N)."""

    @abstractmethod
    def quantile(self, p: float | Float[Tensor, " *K"]) -> Float[Tensor, " *K N"]:
        """Return x with F(x) = p, for one or K probabilities."""

    @property
    def median(self) -> Float[Tensor, " N"]:
        """Median of y."""
        return self.quantile(0.5)

    def outputs(self) -> list[Self]:
        """Return this distribution, as the only output."""
        return [self]

    def pit(self, y: Array) -> Float[Tensor, " N"]:
        """Return the probability integral transform F(y_n), uniform if the mixture is the true distribution."""
        y = maths.check_targets(y, self.component_mean)
        return self.cdf(y)

    def interval(self, coverage: float) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """Return (lower, upper) of the central interval with probability `coverage`."""
        if not 0.0 < coverage < 1.0:
            raise InputError(f"coverage: expected a number inside (0, 1), such as 0.9, got {coverage}")
        return self.quantile(0.5 - 0.5 * coverage), self.quantile(0.5 + 0.5 * coverage)

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
        observed = torch.from_numpy(check_y(y, self.component_mean.shape[1])).to(self.component_mean.device)
        array: Float[np.ndarray, " N"] = self.pit(observed).detach().cpu().numpy()
        return array

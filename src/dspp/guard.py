"""The guard: the marginal distribution of the targets, mixed into predictions with a small weight.

Where a model is confidently wrong, the density it gives to the observed value may be as small as exp(−30). With a guard
of weight w, the surprise −log p(y) of a row is at most −log w plus that of the marginal distribution.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dspp.codec import FAR, Range
from dspp.errors import InputError

BINS = 8  # of equal probability, one component each
ROWS_PER_BIN = 20  # at least
WIDE = 0.3  # weight of one component that covers the range of the targets, so that no value within it is a surprise:
WIDE_STDS = 2.0  # standard deviations from its centre to the ends; a wider one would spoil the mean of a log-normal
LIGHTEST = 1e-12  # share of a component whose rows have hardly any weight
MIN_STD = 0.05  # of a component, in standardised units: repeated values must not become spikes


@dataclass(frozen=True, eq=False)
class Guard:
    """A mixture that is the same for all rows, described by moments: `Outcome.marginal` makes it a distribution.

    Attributes:
        weight: Its weight in the prediction, inside (0, 1).
        log_weights: Those of its components.
        mean: Their means, in standardised units.
        var: Their variances.
    """

    weight: Annotated[float, Range(1e-9, 0.5)]
    log_weights: Annotated[Float[Tensor, " G"], FAR]
    mean: Annotated[Float[Tensor, "G T"], FAR]
    var: Annotated[Float[Tensor, "G T"], Range(1e-6, FAR.high**2)]

    def __post_init__(self) -> None:
        shapes = [tuple(part.shape) for part in (self.mean, self.var)]
        fit = self.mean.ndim == 2 and shapes[0] == shapes[1] and len(self.mean) == len(self.log_weights)
        if not fit or not bool((self.var > 0.0).all()) or not 0.0 < self.weight < 1.0:
            raise InputError(
                f"guard: expected a weight inside (0, 1), and means and positive variances of shape (G, T), got "
                f"{self.weight} and shapes {shapes[0]} and {shapes[1]}"
            )

    @classmethod
    def fit(
        cls, y: Float[np.ndarray, "N T"], weight: float, row_weights: Float[np.ndarray, " N"] | None = None
    ) -> "Guard":
        """Describe the targets, in standardised units; NaN means "not observed".

        A single output is divided into bins of equally many rows. Several outputs have two components, whose outputs
        are independent: one with the moments of the targets, one that covers their range.
        """
        known = [column[~np.isnan(column)] for column in y.T]
        count = max(1, min(BINS, len(known[0]) // ROWS_PER_BIN)) if len(known) == 1 else 1
        if row_weights is None:
            bins = [np.array_split(np.sort(column), count) for column in known]
            mean = np.array([[part.mean() for part in parts] for parts in bins])  # (T, bins)
            std = np.array([[max(part.std(), MIN_STD) for part in parts] for parts in bins])
            shares = np.full(count, (1.0 - WIDE) / count)
        else:
            mean, std, shares = _weigh_bins(y, row_weights, count)
        middle = [0.5 * (column.min() + column.max()) for column in known]
        width = [max(0.5 * np.ptp(column) / WIDE_STDS, MIN_STD) for column in known]
        weights = np.append(shares, WIDE)
        return cls(
            weight,
            torch.from_numpy(np.log(weights)),
            torch.from_numpy(np.column_stack([mean, middle]).T.copy()),
            torch.from_numpy(np.square(np.column_stack([std, width])).T.copy()),
        )


def _weigh_bins(
    y: Float[np.ndarray, "N T"], row_weights: Float[np.ndarray, " N"], count: int
) -> tuple[Float[np.ndarray, "T bins"], Float[np.ndarray, "T bins"], Float[np.ndarray, " bins"]]:
    """Return the moments and the weights of bins of equally many rows, which differ in weight."""
    mean, std = np.empty((2, y.shape[1], count))
    shares = np.empty(count)
    for t, column in enumerate(y.T):
        order = np.argsort(column)[: (~np.isnan(column)).sum()]  # NaN comes last
        for b, part in enumerate(np.array_split(order, count)):
            w = row_weights[part]
            mean[t, b] = np.average(column[part], weights=w)
            std[t, b] = max(np.sqrt(np.average(np.square(column[part] - mean[t, b]), weights=w)), MIN_STD)
            shares[b] = max(w.sum(), LIGHTEST * row_weights.sum())
    return mean, std, (1.0 - WIDE) * shares / shares.sum()

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
MIN_SHARE = 1e-12  # of a component whose rows have hardly any weight
MIN_STD = 0.05  # of a component, in standardised units: repeated values must not become spikes


@dataclass(frozen=True, eq=False)
class Guard:
    """A mixture that is the same for all rows, described by moments: `Outcome.marginal` makes it a distribution."""

    weight: Annotated[float, Range(1e-9, 0.5)]  # in the prediction, inside (0, 1)
    log_weights: Annotated[Float[Tensor, " G"], FAR]  # of its components
    mean: Annotated[Float[Tensor, "G T"], FAR]  # in standardised units
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
        weights = np.ones(len(y)) if row_weights is None else row_weights
        known = [np.argsort(column)[: np.count_nonzero(~np.isnan(column))] for column in y.T]  # NaN comes last
        count = max(1, min(BINS, len(known[0]) // ROWS_PER_BIN)) if len(known) == 1 else 1
        bins = [np.array_split(rows, count) for rows in known]
        total = np.array([max(weights[part].sum(), MIN_SHARE * weights.sum()) for part in bins[0]])

        low, high = np.nanmin(y, axis=0), np.nanmax(y, axis=0)
        mean, var = np.empty((2, count + 1, y.shape[1]))
        mean[-1], var[-1] = 0.5 * (low + high), np.square(0.5 * (high - low) / WIDE_STDS)
        for t, parts in enumerate(bins):
            for b, part in enumerate(parts):
                mean[b, t] = np.average(y[part, t], weights=weights[part])
                var[b, t] = np.average(np.square(y[part, t] - mean[b, t]), weights=weights[part])
        log_weights = np.log(np.append((1.0 - WIDE) * total / total.sum(), WIDE))
        return cls(weight, *map(torch.from_numpy, (log_weights, mean, np.maximum(var, MIN_STD**2))))

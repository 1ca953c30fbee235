"""Codecs: from the user's targets to the numbers that a model sees, and from its predictions to the user's units."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float

from dspp.encoding.scaling import Standardizer
from dspp.predictive import LogNormalMixture, Predictive
from dspp.table.messages import Place


@dataclass(frozen=True, eq=False)
class Codec(ABC):
    """Targets (N, T) to real numbers, these to zero mean and unit spread, and back; NaN means "not observed".

    Attributes:
        scale: Mean and spread (T,) of the real numbers that the training rows gave.
    """

    scale: Standardizer

    @classmethod
    def real(cls, y: Float[np.ndarray, "N T"], names: Sequence[str], place: Place) -> Float[np.ndarray, "N T"]:
        """Return the targets as real numbers on their way to be standardised; `place` is where they stand, for errors.

        Raises:
            InputError: A target is not one that this likelihood allows.
        """
        return y

    @classmethod
    def fit(cls, real: Float[np.ndarray, "N T"]) -> Self:
        """Take the scale of these targets, each output's from the rows where it was observed."""
        parts = [Standardizer.fit(column[~np.isnan(column)]) for column in real.T]
        return cls(Standardizer(np.array([p.mean for p in parts]), np.array([p.scale for p in parts])))

    @abstractmethod
    def decode(self, predictive: Predictive) -> Predictive:
        """Return the distribution in the user's units of what a model predicts."""


class Standardised(Codec):
    """Real targets, standardised."""

    def decode(self, predictive: Predictive) -> Predictive:
        """Shift and scale."""
        rescaled_: Predictive = rescaled(predictive, self.scale)
        return rescaled_


class Logarithm(Codec):
    """Positive targets: their logarithms, standardised."""

    @classmethod
    def real(cls, y: Float[np.ndarray, "N T"], names: Sequence[str], place: Place) -> Float[np.ndarray, "N T"]:
        """Return log y."""
        bad = np.argwhere(~(np.isnan(y) | (y > 0)))
        if len(bad):
            n, t = bad[0].tolist()
            raise place.of(names[t]).error(
                f"got {y[n, t]:g}, expected a positive number for the likelihood 'log-normal'; use "
                "likelihood='gaussian', or leave out this row",
                n,
            )
        return np.asarray(np.log(y))

    def decode(self, predictive: Predictive) -> Predictive:
        """Shift and scale, then take the exponential."""
        return LogNormalMixture(rescaled(predictive, self.scale))


def rescaled(predictive: Any, scale: Standardizer) -> Any:
    """The distribution of mean + scale · y, in float64: in float32 a large mean would swallow digits."""
    exact = predictive.to(torch.float64)
    shape = () if exact.num_outputs == 1 else (exact.num_outputs,)
    return exact.affine(*(torch.tensor(part).reshape(shape) for part in (scale.mean, scale.scale)))

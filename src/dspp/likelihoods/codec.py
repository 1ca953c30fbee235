"""Codecs: encode the user's targets for a model, and decode its predictions to the user's units."""

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
    """Maps targets (N, T) to real numbers, standardises them, and back; NaN means "not observed".

    Attributes:
        scale: Mean and standard deviation (T,) of the real numbers in the training rows.

    Example:
        >>> import numpy as np
        >>> from dspp.likelihoods import LogNormal
        >>> codec = LogNormal.codec.fit(np.log([[1.0], [10.0], [100.0]]))  # of log y; `real` takes the logarithm
        >>> round(float(np.exp(codec.scale.mean[0])), 3)
        10.0
    """

    scale: Standardizer

    @classmethod
    def real(cls, y: Float[np.ndarray, "N T"], names: Sequence[str], place: Place) -> Float[np.ndarray, "N T"]:
        """Return the targets as real numbers, not yet standardised; `place` locates them in error messages.

        Raises:
            InputError: The likelihood does not allow one of the targets.
        """
        return y

    @classmethod
    def fit(cls, real: Float[np.ndarray, "N T"], weights: Float[np.ndarray, " N"] | None = None) -> Self:
        """Fit the scale of each output to the rows in which it was observed."""
        known = [(column, ~np.isnan(column)) for column in real.T]
        parts = [Standardizer.fit(column[here], None if weights is None else weights[here]) for column, here in known]
        return cls(Standardizer(np.array([p.mean for p in parts]), np.array([p.scale for p in parts])))

    @abstractmethod
    def decode(self, predictive: Predictive) -> Predictive:
        """Return a model's prediction in the user's units."""


class Standardised(Codec):
    """Real targets, standardised."""

    def decode(self, predictive: Predictive) -> Predictive:
        """Shift and scale."""
        decoded: Predictive = rescale(predictive, self.scale)
        return decoded


class Logarithm(Codec):
    """Positive targets: their logarithms, standardised."""

    @classmethod
    def real(cls, y: Float[np.ndarray, "N T"], names: Sequence[str], place: Place) -> Float[np.ndarray, "N T"]:
        """Return log y."""
        bad = np.argwhere(~(np.isnan(y) | (y > 0)))
        if len(bad):
            n, t = bad[0].tolist()
            raise place.of(names[t]).error(
                f"expected a positive number for the likelihood 'log-normal', got {y[n, t]:g}; use "
                "likelihood='gaussian', or remove this row",
                n,
            )
        return np.asarray(np.log(y))

    def decode(self, predictive: Predictive) -> Predictive:
        """Shift and scale, then take the exponential."""
        return LogNormalMixture(rescale(predictive, self.scale))


def rescale(predictive: Any, scale: Standardizer) -> Any:
    """Return the distribution of mean + scale · y, in float64: in float32 a large mean would cost digits."""
    exact = predictive.to(torch.float64)
    shape = () if exact.num_outputs == 1 else (exact.num_outputs,)
    return exact.affine(*(torch.tensor(part).reshape(shape) for part in (scale.mean, scale.scale)))

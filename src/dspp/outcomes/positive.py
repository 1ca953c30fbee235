"""Positive numbers whose spread grows with their size: everything is Gaussian in log y."""

from typing import ClassVar

import numpy as np
from jaxtyping import Float

from dspp.outcomes.base import OUTCOMES, Encoded, Values
from dspp.outcomes.real import Real, rescale
from dspp.predictive import LogNormalMixture, Predictive
from dspp.table.messages import Place


@OUTCOMES.register("positive")
class Positive(Real):
    """One positive target: its logarithm, standardised."""

    kind: ClassVar[str] = "positive"
    default_likelihood: ClassVar[str] = "log-normal"
    constant_name: ClassVar[str] = "one log-normal for all rows"

    def to_numbers(self, values: Values, place: Place) -> Encoded:
        """Return log y."""
        bad = np.argwhere(~(np.isnan(values) | (values > 0)))
        if len(bad):
            n, t = bad[0].tolist()
            raise place.of(self.names[t]).error(
                f"expected a positive number for the outcome 'positive', got {values[n, t]:g}; use outcome='real' "
                "(--outcome real) for other numbers, or remove this row",
                n,
            )
        return np.asarray(np.log(values))

    def decode(self, predictive: Predictive) -> Predictive:
        """Shift and scale, then take the exponential."""
        return LogNormalMixture(rescale(predictive, self.scale))

    def tree_mean(self, predicted: Float[np.ndarray, "N K"]) -> None:
        """Return None: the exponential of a mean is no mean."""

    @property
    def tree_note(self) -> str:
        """Why trees alone have no scores."""
        return f"boosted trees alone are not scored: they predict the logarithm of {self.names[0]}"

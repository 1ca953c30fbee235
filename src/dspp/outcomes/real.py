"""Real numbers: one or several targets, whose values NaN marks as not observed if there are several."""

from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int

from dspp.likelihoods import LIKELIHOODS, Gaussian
from dspp.notes import Note
from dspp.outcomes.base import OUTCOMES, Encoded, Outcome, Values, rescale
from dspp.outcomes.choice import choose_outcome
from dspp.predictive import Predictive
from dspp.table.messages import Place


@OUTCOMES.register("real")
class Real(Outcome):
    """Real targets, standardised.

    Example:
        >>> import numpy as np
    import torch
        >>> from dspp.outcomes import Real
        >>> from dspp.table.messages import Place
        >>> outcome = Real(("y",), "gaussian").fit(np.array([[1.0], [3.0]]), Place("y"))
        >>> outcome.encode(np.array([[5.0]]), Place("y")).tolist()
        [[3.0]]
    """

    kind: ClassVar[str] = "real"
    default_likelihood: ClassVar[str] = "gaussian"
    constant_name: ClassVar[str] = "one Normal for all rows"

    def to_numbers(self, values: Values, place: Place) -> Encoded:
        """Return the values as they are."""
        return values

    @property
    def member_kinds(self) -> tuple[str, ...]:
        """All for one target, if the noise of its likelihood allows a GP without steps."""
        if self.num_outputs > 1:
            return ("plain",)
        return ("plain", "trees", *(("gp", "boosted") if LIKELIHOODS[self.likelihood].closed_form else ()))

    def tree_target(self, y: Encoded) -> Float[np.ndarray, "N K"]:
        """Return the target if there is one; trees predict no more."""
        return y if self.num_outputs == 1 else y[:, :0]

    def decode(self, predictive: Predictive) -> Predictive:
        """Shift and scale."""
        decoded: Predictive = rescale(predictive, self.scale)
        return decoded

    def constant(self, num_rows: int) -> tuple[str, Predictive] | None:
        """Return the Normal with the moments of the training targets."""
        zeros = torch.zeros(1, num_rows, self.num_outputs, dtype=torch.float64)
        normal = Gaussian.from_moments(zeros.new_zeros(1), zeros, torch.ones_like(zeros))
        return self.constant_name, self.decode(normal)

    def tree_mean(self, predicted: Float[np.ndarray, "N K"]) -> Float[np.ndarray, " N"] | None:
        """Shift and scale."""
        return np.asarray(self.scale.mean[0] + self.scale.scale[0] * predicted[:, 0])

    def choose(
        self,
        X: Float[np.ndarray, "N D"],
        values: Values,
        held_out: Values,
        seed: int,
        weights: Float[np.ndarray, " N"] | None = None,
        groups: Int[np.ndarray, " N"] | None = None,
        time_budget: float | None = None,
    ) -> tuple[Outcome, list[Note]]:
        """Return `positive` instead for one target whose spread grows with its size."""
        if self.likelihood != self.default_likelihood or values.shape[1] != 1 or (held_out <= 0.0).any():
            return self, []  # a log-normal must be able to score the rows held out
        name, notes = choose_outcome(X, values[:, 0], seed, weights, groups, time_budget)
        kind = OUTCOMES[name]
        return self if kind is type(self) else kind(self.names, kind.default_likelihood), notes

"""The base class of outcomes, which answer every question that depends on what a target is."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dspp.encoding.scaling import LARGEST_SCALE, Standardizer, standardise
from dspp.errors import InputError
from dspp.likelihoods import LIKELIHOODS
from dspp.notes import Note
from dspp.predictive import Predictive
from dspp.registry import Registry
from dspp.table.messages import Place

OUTCOMES: Registry[type["Outcome"]] = Registry("outcome")

_EMPTY = Standardizer(np.empty(0), np.empty(0))

Values = Float[np.ndarray, "N C"]
Encoded = Float[np.ndarray, "N E"]


@dataclass(frozen=True, eq=False)
class Outcome(ABC):
    """What the target of a model is: C columns of the user, E encoded columns, and T outputs of the model.

    Attributes:
        names: Of the user's C columns.
        likelihood: Of the models, one whose `outcome` is this one.
        scale: Mean and standard deviation of the E encoded columns in the training rows; empty before `fit`.

    Example:
        >>> import numpy as np
        >>> from dspp.outcomes import OUTCOMES
        >>> from dspp.table.messages import Place
        >>> values = np.array([[1.0], [10.0], [100.0]])
        >>> outcome = OUTCOMES["positive"](("price",), "log-normal").fit(values, Place("y"))
        >>> round(float(np.exp(outcome.scale.mean[0])), 3), outcome.num_outputs
        (10.0, 1)
    """

    KINDS: ClassVar[Registry[type["Outcome"]]] = OUTCOMES
    kind: ClassVar[str]  # its name in `OUTCOMES`
    default_likelihood: ClassVar[str]

    names: tuple[str, ...]
    likelihood: str
    scale: Standardizer = _EMPTY

    # ---------------------------------------------------------------- values and encoded columns

    @abstractmethod
    def to_numbers(self, values: Values, place: Place) -> Encoded:
        """Return the columns that models read, not yet standardised; `place` locates values in error messages.

        Raises:
            InputError: A value is not possible.
        """

    def fit(self, values: Values, place: Place, weights: Float[np.ndarray, " N"] | None = None) -> Self:
        """Learn the scale of each encoded column from the training rows in which it was observed.

        Raises:
            InputError: A value is not possible, or mean or variance overflow float64.
        """
        known = [(column, np.isfinite(column)) for column in self.to_numbers(values, place).T]
        parts = [Standardizer.fit(column[here], None if weights is None else weights[here]) for column, here in known]
        return self.with_scale(
            Standardizer(np.array([p.mean for p in parts]), np.array([p.scale for p in parts])), place
        )

    def encode(self, values: Values, place: Place, dtype: str = "") -> Encoded:
        """Return the encoded, standardised columns.

        Args:
            values: The user's values, NaN where not observed.
            place: Their location, for error messages.
            dtype: Of the model, in which numbers must stay finite; empty: of rows from which the scale was learned.

        Raises:
            InputError: A value is not possible, or too large.
        """
        numbers = self.to_numbers(values, place)
        if not dtype:
            return self.scale.transform(numbers)
        return standardise(numbers, self.scale, dtype, self.names, place)

    def with_scale(self, scale: Standardizer, place: Place) -> Self:
        """Return the outcome with this scale, or raise `InputError` if float64 could not hold what depends on it."""
        for name, mean, std in zip(self.names, scale.mean, scale.scale, strict=True):
            if not (abs(mean) <= LARGEST_SCALE and 1 / LARGEST_SCALE <= std <= LARGEST_SCALE):
                raise place.of(name).error(
                    f"expected a mean below {LARGEST_SCALE:g} and a standard deviation from {1 / LARGEST_SCALE:g} to "
                    f"{LARGEST_SCALE:g}, got {mean:.3g} and {std:.3g}; remove outliers, or use other units"
                )
        return replace(self, scale=scale)

    # ---------------------------------------------------------------- models and members

    @property
    def num_outputs(self) -> int:
        """T, the number of outputs of a model."""
        return len(self.names)

    @property
    @abstractmethod
    def member_kinds(self) -> tuple[str, ...]:
        """The kinds of members that can predict it: see `members.MEMBERS`."""

    @abstractmethod
    def tree_target(self, y: Encoded) -> Float[np.ndarray, "N K"]:
        """Return what boosted trees are fitted to: K columns, none if they do not apply."""

    def choose(
        self,
        X: Float[np.ndarray, "N D"],
        values: Values,
        held_out: Values,
        seed: int,
        weights: Float[np.ndarray, " N"] | None = None,
        groups: Int[np.ndarray, " N"] | None = None,
        time_budget: float | None = None,
    ) -> tuple["Outcome", list[Note]]:
        """Return the outcome that suits the training rows best, not yet fitted, and notes on the choice.

        Args:
            X: Encoded rows.
            values: Their targets, in the user's units.
            held_out: Targets of rows that are only scored.
            seed: The seed.
            weights: How much each row counts, with mean one; None: all the same.
            groups: Rows of a group stay in one fold.
            time_budget: Seconds for the whole fit; None: any time.
        """
        return self, []

    # ---------------------------------------------------------------- distributions

    def marginal(
        self, log_weights: Float[Tensor, " G"], mean: Float[Tensor, "G T"], var: Float[Tensor, "G T"], num_rows: int
    ) -> Predictive | None:
        """Return the distribution of the guard for some rows, in standardised units; None if there is none."""
        mean, var = (part.unsqueeze(1).expand(-1, num_rows, -1).contiguous() for part in (mean, var))
        return LIKELIHOODS[self.likelihood].from_moments(log_weights, mean, var)

    @abstractmethod
    def decode(self, predictive: Predictive) -> Predictive:
        """Return a model's prediction in the user's units."""

    # ---------------------------------------------------------------- scores

    @abstractmethod
    def constant(self, num_rows: int) -> tuple[str, Predictive] | None:
        """Return a prediction that is the same for all rows, in the user's units, and its name; None: there is none."""

    def tree_mean(self, predicted: Float[np.ndarray, "N K"]) -> Float[np.ndarray, " N"] | None:
        """Return the mean that trees alone predict, in the user's units; None: they do not predict it."""
        return None

    @property
    def tree_note(self) -> str:
        """Why trees alone have no scores; empty if they have."""
        return ""


def find_outcome(name: str, likelihood: str, is_named: bool) -> tuple[type[Outcome], str]:
    """Return the kind of outcome and its likelihood.

    Args:
        name: Of the outcome; "auto": the one of the likelihood.
        likelihood: The likelihood of the settings.
        is_named: Whether the user named it; otherwise another outcome brings its own.

    Raises:
        InputError: The likelihood belongs to another outcome.
    """
    own = LIKELIHOODS[likelihood].outcome
    if name in ("auto", own):
        return OUTCOMES[own], likelihood
    kind = OUTCOMES[name]
    if is_named:
        raise InputError(
            f"likelihood: expected one for the outcome {name!r}, got {likelihood!r}, which is for {own!r}; use "
            f"likelihood={kind.default_likelihood!r}"
        )
    return kind, kind.default_likelihood


def rescale(predictive: Any, scale: Standardizer) -> Any:
    """Return the distribution of mean + scale · y, in float64: in float32 a large mean would cost digits."""
    exact = predictive.to(torch.float64)
    shape = () if exact.num_outputs == 1 else (exact.num_outputs,)
    return exact.affine(*(torch.tensor(part).reshape(shape) for part in (scale.mean, scale.scale)))

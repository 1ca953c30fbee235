"""The base class of outcomes, which answer every question that depends on what a target is."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from dspp.calibration import Verdict
from dspp.encoding.scaling import MAX_SCALE, Standardizer, standardise
from dspp.errors import InputError
from dspp.guard import Guard
from dspp.likelihoods import LIKELIHOODS
from dspp.metrics import Comparison, Levels
from dspp.notes import Note
from dspp.predictive import Predictive
from dspp.registry import Registry
from dspp.table.memory import to_columns
from dspp.table.messages import Place
from dspp.table.table import Table

if TYPE_CHECKING:  # imported by whoever asks for tags
    from sklearn.utils import Tags

OUTCOMES: Registry[type["Outcome"]] = Registry("outcome")

Values = Float[np.ndarray, "N C"]
Encoded = Float[np.ndarray, "N E"]
Ends = tuple[Float[Tensor, " N *T"], Float[Tensor, " N *T"]]


@dataclass(frozen=True)
class Wanted:
    """The columns of predictions that a user asks for; see `Fitted.predictions`."""

    moments: bool = True  # the point prediction of each output, and its spread
    quantiles: Sequence[float] = ()  # their probabilities
    levels: Mapping[str, float] = field(default_factory=dict)  # coverage of intervals, by the end of column names
    thresholds: Mapping[str, float] = field(default_factory=dict)  # whose probability of larger values, likewise
    components: bool = False  # of mixtures
    samples: int = 0  # how many
    generator: Generator | None = None  # of the samples


@dataclass(frozen=True)
class Panel:
    """A table of the report: its title, a sentence, and the cells as text."""

    title: str
    sentence: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, eq=False)
class Outcome(ABC):
    """What the target of a model is: C columns of the user, E encoded columns, and T outputs of the model.

    The user's columns become values (N, C), numbers that stand for what was observed; NaN means "not observed". Models
    are trained on encoded columns (N, E), standardised. Their predictions, decoded, are distributions of the values.

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
    # The name in `OUTCOMES`, and the likelihood of a user who names none.
    kind: ClassVar[str]
    default_likelihood: ClassVar[str]
    # What metrics take, the scores that are shown first, and the one of scikit-learn's `score`.
    comparison: ClassVar[type[Comparison]] = Comparison
    headlines: ClassVar[tuple[str, ...]] = ("nll",)
    score: ClassVar[str] = "nll"
    # The score that a search minimises, and what `loss` is called.
    tunes: ClassVar[str] = "nll"
    loss_name: ClassVar[str] = "NLL"

    names: tuple[str, ...]
    likelihood: str
    scale: Standardizer = field(default_factory=lambda: Standardizer(np.empty(0), np.empty(0)))

    # ---------------------------------------------------------------- values and encoded columns

    @classmethod
    def of_columns(cls, columns: pa.Table, likelihood: str) -> Self:
        """Return the outcome of these columns of a table, before `fit`; classes are learned here."""
        return cls(tuple(columns.column_names), likelihood)

    @classmethod
    def start(cls, table: Table, y: Any, likelihood: str) -> tuple[Self, Table]:
        """Return the outcome of targets passed separately, before `fit`, and the table with their values."""
        columns = to_columns(y, len(table), "y")
        outcome = cls.of_columns(columns, likelihood)
        return outcome, table.with_targets(outcome.read(columns, Place("y")), outcome.names)

    @abstractmethod
    def read(self, columns: pa.Table, place: Place) -> Values:
        """Return the values in columns of a table or file; `place` locates its first row in error messages.

        Raises:
            InputError: A cell holds something else.
        """

    def attach(self, table: Table, y: Any, name: str = "y") -> Table:
        """Return a table with the values of targets passed separately, called `name` in errors."""
        return table.with_targets(self.read(to_columns(y, len(table), name), Place(name)), self.names)

    def observed(self, values: Values) -> Bool[np.ndarray, "N O"]:
        """Return what was observed in each row, one column per output that may be missing alone."""
        return np.asarray((~np.isnan(values)).any(axis=1, keepdims=True))

    def strata(self, values: Values) -> Int[np.ndarray, " N"] | None:
        """Return the stratum of each row, of which every fold gets its share; None: rows are dealt at random."""
        return None

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
        mean, scale = (np.array([getattr(part, name) for part in parts]) for name in ("mean", "scale"))
        return self.with_scale(Standardizer(mean, scale), place)

    def with_scale(self, scale: Standardizer, place: Place) -> Self:
        """Return the outcome with this scale, or raise `InputError` if float64 could not hold what depends on it."""
        for name, mean, std in zip(self.encoded_names, scale.mean, scale.scale, strict=True):
            if not (abs(mean) <= MAX_SCALE and 1 / MAX_SCALE <= std <= MAX_SCALE):
                raise place.of(name).error(
                    f"expected a mean below {MAX_SCALE:g} and a standard deviation from {1 / MAX_SCALE:g} to "
                    f"{MAX_SCALE:g}, got {mean:.3g} and {std:.3g}; remove outliers, or use other units"
                )
        return replace(self, scale=scale)

    def encode(self, values: Values, place: Place, dtype: str = "") -> Encoded:
        """Return the encoded, standardised columns; `dtype` is that of the model, in which numbers must stay finite.

        It is empty for the rows from which the scale was learned.
        """
        numbers = self.to_numbers(values, place)
        if not dtype:
            return self.scale.transform(numbers)
        return standardise(numbers, self.scale, dtype, self.encoded_names, place)

    def notes(self, table: Table) -> list[Note]:
        """Return what to know about the targets of a table before training."""
        return []

    # ---------------------------------------------------------------- models and members

    @property
    def encoded_names(self) -> tuple[str, ...]:
        """The names of the E encoded columns, for error messages."""
        return self.names

    @property
    def num_outputs(self) -> int:
        """T, the number of outputs of a model."""
        return len(self.names)

    @property
    def member_kinds(self) -> tuple[str, ...]:
        """The kinds of members that can predict it: see `members.MEMBERS`."""
        return ("plain",)

    def tree_target(self, y: Encoded) -> Float[np.ndarray, "N K"]:
        """Return what boosted trees are fitted to: K columns, none if they do not apply."""
        return y[:, :0]

    def mean_target(self, y: Encoded) -> Float[np.ndarray, "N M"]:
        """Return the numbers whose means encode a category with many levels; NaN where not observed."""
        return y

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

        It must be able to score the targets `held_out`; `X` are the encoded training rows. See `choose_outcome`.
        """
        return self, []

    # ---------------------------------------------------------------- distributions

    def fit_guard(self, y: Encoded, weight: float, row_weights: Float[np.ndarray, " N"] | None = None) -> Guard:
        """Describe the encoded targets of the training rows, for `marginal`; see `Guard`."""
        return Guard.fit(y, weight, row_weights)

    def marginal(self, guard: Guard, num_rows: int) -> Predictive | None:
        """Return the distribution of the guard for some rows, in standardised units; None if there is none."""
        mean, var = (part.unsqueeze(1).expand(-1, num_rows, -1).contiguous() for part in (guard.mean, guard.var))
        return LIKELIHOODS[self.likelihood].from_moments(guard.log_weights, mean, var)

    @abstractmethod
    def decode(self, predictive: Predictive) -> Predictive:
        """Return a model's prediction in the user's units."""

    # ---------------------------------------------------------------- what users get

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the outputs in columns of predictions."""
        return self.names

    @property
    def attributes(self) -> dict[str, Any]:
        """Further attributes of a fitted estimator, such as `classes_`."""
        return {}

    @classmethod
    def set_tags(cls, tags: "Tags") -> "Tags":
        """Return scikit-learn's tags of an estimator of this outcome, given those of a regressor."""
        return tags

    @abstractmethod
    def point(self, predictive: Predictive) -> Tensor | np.ndarray:
        """Return the point prediction of each row, as `predict` gives it."""

    @property
    @abstractmethod
    def point_columns(self) -> Mapping[str, type]:
        """The columns of the point prediction in `columns`, and the type of their values."""

    @abstractmethod
    def columns(
        self, predictive: Predictive, wanted: Wanted, recalibrate: Callable[[float], Ends | None]
    ) -> dict[str, np.ndarray]:
        """Return the columns of predictions that are wanted, or raise `InputError` if one has no meaning here.

        `recalibrate` returns the recalibrated intervals of a coverage, or None without recalibration.
        """

    # ---------------------------------------------------------------- scores

    @property
    @abstractmethod
    def metrics(self) -> tuple[str, ...]:
        """The names of the scores that apply, in the order in which they are shown."""

    def compare(
        self,
        predictive: Predictive,
        values: Values,
        weights: Float[np.ndarray, " N"] | None = None,
        first_row: int = 0,
        levels: Levels | None = None,
    ) -> Comparison:
        """Return predictions and observed values as metrics take them; see `Comparison`."""
        return self.comparison(predictive, to_targets(values), weights, first_row, levels)

    def may_have_levels(self, values: Values) -> bool:
        """Return whether a target may have few distinct values, given the first rows, so that scores need to know."""
        return False

    def levels(self, values: Values) -> Levels:
        """Return the distinct values of each column, None if they are many."""
        return [None] * values.shape[1]

    def loss(self, predictive: Predictive, values: Values) -> Float[Tensor, "N L"]:
        """Return a proper loss of each row, whose increase tells how much a column of inputs matters."""
        return -predictive.log_prob(torch.from_numpy(to_targets(values))).unsqueeze(1)

    def loss_scale(self, values: Values) -> Float[np.ndarray, " L"] | None:
        """Return what losses are divided by before they are averaged; None: nothing."""
        return None

    @abstractmethod
    def calibration(
        self, rows: Comparison, recalibrated: Bool[Tensor, " N *T"] | None = None, caveat: str = ""
    ) -> Verdict:
        """Return what these rows say about whether the distributions can be trusted.

        `recalibrated` is whether each value is inside its recalibrated 90 % interval, `caveat` what the rows were used
        for; empty for new rows.
        """

    def check_recalibration(self) -> None:
        """Raise `InputError` if there are no intervals to recalibrate."""
        raise InputError(
            f"conformal=True: expected a target with intervals, got the outcome {self.kind!r}; leave it out"
        )

    def score_notes(self, predictive: Predictive, values: Values) -> list[Note]:
        """Return what predictions of rows that were held out show about the choice of the outcome."""
        return []

    def constant(self, num_rows: int) -> tuple[str, Predictive] | None:
        """Return a prediction that is the same for all rows, in the user's units, and its name; None: there is none."""
        return None

    def tree_mean(self, predicted: Float[np.ndarray, "N K"]) -> Float[np.ndarray, " N"] | None:
        """Return the mean that trees alone predict, in the user's units; None: they do not predict it."""
        return None

    @property
    def tree_note(self) -> str:
        """Why trees alone have no scores; empty if they have."""
        return ""

    # ---------------------------------------------------------------- figures

    def drawn_values(self, values: Values) -> Float[np.ndarray, "N T"] | None:
        """Return the observed values as numbers beside real outputs, NaN where not known; None: there are no such."""
        return None

    def panels(self, rows: Comparison) -> Sequence[Panel]:
        """Return tables that are shown below the scores."""
        return ()


def to_targets(values: Values) -> Float[np.ndarray, " N *C"]:
    """Return values as distributions take them: (N,) of a single column."""
    return values if values.shape[1] > 1 else values[:, 0]


def find_outcome(name: str, likelihood: str, is_named: bool) -> tuple[type[Outcome], str]:
    """Return the kind of outcome, for "auto" the one of the likelihood, and its likelihood.

    An outcome brings its own likelihood in place of another one's, or raises `InputError` if the user named that.
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

"""A fitted model: everything that turns the user's rows into predictive distributions, and how it was trained.

It has one or several members: models trained on the same encoded rows, whose predictive distributions are mixed.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Annotated, Any, ClassVar, Self, cast

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dspp.calibration import Conformal
from dspp.codec import AnyFloat, Range
from dspp.encoding.encoder import IN_X, TableEncoder, encode, parse
from dspp.encoding.scaling import Standardizer, share_unknown, standardise
from dspp.errors import InputError, NumericalError
from dspp.gp.threads import run
from dspp.guard import Guard
from dspp.members.base import Inputs, Member
from dspp.members.blend import mix, variance_scale_of
from dspp.notes import Note, list_notes
from dspp.outcomes import Outcome, Wanted
from dspp.predictive import Predictive
from dspp.seen import Hashes
from dspp.settings import check_number
from dspp.table.checks import Array, check_width, check_X
from dspp.table.messages import Place
from dspp.table.table import Table
from dspp.trees import Trees

HEADLINES = ("nll", "rmse", "crps", "coverage90")  # scores in the `repr` of a model
WEIGHT_TOLERANCE = 1e-6  # of the sum of the weights, as in `Predictive.mix`


@dataclass(frozen=True, eq=False, repr=False)
class Fitted:
    """The result of fitting, which `modelfile.save` stores and all predictions come from.

    Members may differ in their settings, but not in the likelihood. All other fields are shared by the members. The
    prediction is p(y) = (1 − g) Σ_k w_k p_k(y) + g p_guard(y), where the variances of all components of p_k are
    multiplied by `variance_scale`, or by less if more members are mixed than it was learned from: see `members.blend`.

    `metrics` are the scores of `dspp evaluate` by name, such as "nll", "crps" and "coverage90", on the rows that
    `scored` describes: for an ensemble, rows predicted only by members that did not see them (out of fold); for a
    single model the validation rows, which also chose the epoch. Empty without such rows.

    Raises:
        InputError: there are no members, their weights are not positive numbers that sum to one, their likelihoods
            differ, or calibration scores belong to folds that no member held out.

    Example:
        >>> import numpy as np
        >>> from dspp import PPGPRRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = PPGPRRegressor(epochs=2, inducing=8).fit(X, X[:, 0])
        >>> model.fitted_.target_names, model.fitted_.weights, model.fitted_.num_inputs
        (('y',), (1.0,), 2)
        >>> model.fitted_.scored
        '6 validation rows, which also chose the epoch'
    """

    NEEDS_ALL: ClassVar[bool] = True

    members: tuple[Member, ...]
    weights: tuple[float, ...]  # of the members
    scale_X: Standardizer  # noqa: N815 - X is a matrix; of the encoded columns, (D,)
    outcome: Outcome  # what the target is: encodes the user's values and decodes predictions
    encoder: TableEncoder | None  # encodes the columns of a table; None if the rows were numbers
    feature_names: tuple[str, ...] | None  # of the encoded columns, if they have names
    metrics: dict[str, AnyFloat]  # scores on the rows that `scored` describes
    notes: tuple[Note, ...]  # for the user
    versions: dict[str, str]  # of dspp, Python and the libraries that trained it
    conformal: Float[Tensor, "n T"] | None  # calibration scores in float64: see calibration.Conformal
    num_rows: int  # training rows
    params: dict[str, Any] | None = None  # parameters of the estimator; None in files that do not store them
    variance_scale: Annotated[float, Range(1e-3, 1e3)] = 1.0  # factor of the variances of a mixture of `judged` members
    judged: int | None = None  # None: as many as there are
    guard: Guard | None = None  # the marginal distribution of the targets
    trees: tuple[Trees, ...] = ()  # the boosted trees that members of this kind read, for each column of targets
    scored: str = ""  # the rows that `metrics` are of
    conformal_folds: Int[Tensor, " n"] | None = None  # of calibration scores by folds: see calibration.Conformal
    input_range: Float[np.ndarray, "2 D"] | None = None  # smallest and largest value of each encoded column in training
    seen_rows: Hashes | None = None  # hashes of training rows; None if not known
    source: str = field(default="the model", metadata={"stored": False})  # its file if it was loaded, for errors

    def __post_init__(self) -> None:
        weights = self.weights
        if len(weights) != len(self.members) or not weights:
            raise InputError(
                f"expected one weight per member, got {len(self.members)} members and {len(weights)} weights"
            )
        if not all(weight > 0.0 for weight in weights) or abs(sum(weights) - 1.0) > WEIGHT_TOLERANCE:
            raise InputError(
                f"weights: expected positive numbers that sum to 1, got {str(weights)[:100]}; divide them by their sum"
            )
        if not (math.isfinite(self.variance_scale) and self.variance_scale > 0.0):
            raise InputError(f"variance_scale: expected a positive number, got {self.variance_scale}")
        if self.judged is not None and self.judged < 1:
            raise InputError(f"judged: expected at least one member, got {self.judged}")
        if not self.trees and any(member.reads_trees for member in self.members):
            raise InputError("expected the trees that some members read, got none")
        likelihoods = sorted({member.spec.model.likelihood for member in self.members})
        if len(likelihoods) > 1:
            raise InputError(f"expected members with the same likelihood, got the likelihoods {', '.join(likelihoods)}")
        if self.conformal_folds is not None:
            if self.conformal is not None:
                Conformal(self.conformal, self.conformal_folds)  # raises if they do not belong together
            for fold in self.conformal_folds.unique().tolist():
                self.without_others(fold)  # raises if no member, or not every kind, held it out

    def __repr__(self) -> str:
        names, count = ", ".join(self.target_names), len(self.members)
        shown = ", ".join(f"{name} {self.metrics[name]:.4g}" for name in HEADLINES if name in self.metrics)
        scores = f"; {shown} on {self.scored}" if shown and self.scored else ""
        members = f"{count} member{'s' if count > 1 else ''}"
        return f"<Fitted: {names} by {members}, {self.num_rows:,} rows{scores}{list_notes(self.notes)}>"

    @property
    def seconds(self) -> float:
        """Training time of all members."""
        return sum(member.seconds for member in self.members)

    @property
    def num_inputs(self) -> int:
        """D, the number of encoded columns."""
        return len(self.scale_X.mean)

    @property
    def target_names(self) -> tuple[str, ...]:
        """The names of the user's target columns."""
        return self.outcome.names

    @property
    def num_outputs(self) -> int:
        """T, the number of outputs."""
        return self.outcome.num_outputs

    @property
    def recalibration(self) -> Conformal | None:
        """Conformal recalibration of the intervals, if any."""
        if self.conformal is None:
            return None
        scores = self.conformal[:, 0] if self.num_outputs == 1 else self.conformal
        return Conformal(scores, self.conformal_folds)

    def distribution(self, X: Array, place: Place = IN_X) -> Predictive:
        """Return the predictive distribution, in the units of y, of each row of X (N, D), encoded but not scaled.

        Raises:
            InputError: X is not a table of finite numbers with D columns, or a number is too large for the model.
            NumericalError: A prediction is not finite.
        """
        return self.predict_standardised(self._standardise(check_X(X, may_be_empty=True), place), place)

    def predict_standardised(self, X: Inputs, place: Place = IN_X) -> Predictive:
        """Return the predictive distribution, in the units of y, of encoded and scaled rows."""
        return self._predict(X, place)[0]

    def _predict(self, X: Inputs, place: Place, folds: Sequence[int] = ()) -> tuple[Predictive, dict[int, Predictive]]:
        """Return the prediction of scaled rows, and those by the members of each of some folds."""
        with self.named_in_errors(place):
            run([partial(getattr, member, "predictor") for member in self.members if "predictor" not in vars(member)])
            columns, unknown = self.predict_trees(X), self.shares_unknown(X)
            parts = [member.predict(X, columns) for member in self.members]
            mixed = self.outcome.decode(self.mix(parts, unknown))
            if not bool((finite := mixed.finite).all()):
                row = int((~finite).int().argmax())
                raise NumericalError(f"the prediction of row {place.label(row)} is not finite")
            by_fold = {}
            for fold in folds:
                own = [part for part, member in zip(parts, self.members, strict=True) if member.fold == fold]
                by_fold[fold] = self.outcome.decode(self.without_others(fold).mix(own, unknown))
        return mixed, by_fold

    def predict_trees(self, X: Inputs) -> Float[np.ndarray, "N C"] | None:
        """Return what boosted trees predict for scaled rows; None: there are none."""
        rows = np.asarray(X, dtype=np.float64)
        return np.column_stack([trees.predict(rows) for trees in self.trees]) if self.trees else None

    @contextmanager
    def named_in_errors(self, place: Place) -> Iterator[None]:
        """Name the model and the rows in a `NumericalError`, whose own advice is for training."""
        try:
            yield
        except NumericalError as problem:
            raise NumericalError(
                f"{self.source} cannot predict {place.where}: {problem.finding}; the model is damaged (use another "
                "copy of its file), or a number in these rows is absurd"
            ) from None

    def _standardise(self, X: Float[np.ndarray, "N D"], place: Place) -> Float[np.ndarray, "N D"]:
        """Return encoded rows in standardised units, which are finite in the dtype of every member."""
        check_width(X, self.num_inputs)
        dtypes = {member.spec.model.dtype for member in self.members}
        shortest = "float32" if "float32" in dtypes else "float64"  # numbers must stay finite in it
        return standardise(X, self.scale_X, shortest, self.feature_names, place)

    def shares_unknown(self, X: Inputs) -> Float[Tensor, " N"] | None:
        """Return how little the training rows say about each row; None if all rows lie in their range."""
        if self._ends is None:
            return None
        share = share_unknown(np.asarray(X), self._ends)
        return torch.from_numpy(share) if share.any() else None

    @cached_property
    def _ends(self) -> Float[np.ndarray, "2 D"] | None:
        """The range of the training rows, standardised; mean targets of levels, whatever they are, lie inside."""
        if self.input_range is None:
            return None
        ends = self.scale_X.transform(self.input_range)
        if self.encoder is not None:
            ends[:, self.encoder.mean_features] = [[-math.inf], [math.inf]]
        return ends

    def mix(self, parts: Sequence[Predictive], unknown: Float[Tensor, " N"] | None = None) -> Predictive:
        """Mix the predictions of all members in standardised units; see `members.blend.mix`."""
        scale = variance_scale_of(self.variance_scale, self.judged, len(parts))
        floor = self.members[0].spec.model.noise_floor
        return mix(parts, self.weights, scale, self.guard, self.outcome, floor, unknown)

    def without_others(self, fold: int) -> Self:
        """Return the model of the members that held out a fold, in which kinds weigh as in the whole mixture.

        Raises:
            InputError: Not every kind has a member that held it out.
        """
        members, weights = tuple(member for member in self.members if member.fold == fold), self.weights
        if len(members) < len(self.members):
            mine, every = (Counter(member.kind for member in those) for those in (members, self.members))
            if mine.keys() != every.keys():
                got = f"got {len(members)} members"
                raise InputError(f"fold {fold}: expected members of every kind that held it out, {got}")
            shares = dict.fromkeys(mine, 0.0)
            for member, weight in zip(self.members, weights, strict=True):
                shares[member.kind] += weight
            weights = tuple(shares[member.kind] / mine[member.kind] for member in members)
        trees = self.trees if any(member.reads_trees for member in members) else ()
        return replace(self, members=members, weights=weights, trees=trees, conformal=None, conformal_folds=None)

    # ---------------------------------------------------------------- the user's tables

    def predict(self, table: Table, impute: bool = False) -> Predictive:
        """Return the predictive distribution of each row of a table.

        Args:
            table: The rows.
            impute: Whether to fill in missing values in columns without any in training: see `Column.encode`.

        Raises:
            InputError: A column is missing, or a value is not of the type seen in training.
        """
        return self._predict(self._standardise(self.encode(table, impute), table.place), table.place)[0]

    def encode(self, table: Table, impute: bool = False) -> Float[np.ndarray, "N D"]:
        """Return the encoded rows, not yet scaled."""
        return encode(self.inputs(table), self.encoder, impute)

    def inputs(self, table: Table) -> Table:
        """Return the table with the columns that the model reads, parsed; with names, if it has learned names.

        Predictions, scores and what is new of a table take each of its values from what is parsed here.

        Raises:
            InputError: The table has another number of columns than the array that the model was trained on.
        """
        if self.encoder is not None:
            return parse(table, self.encoder)
        if table.arrow is not None:
            table = table.select(name for name in table.names if name not in self.target_names)
            if len(table.names) != self.num_inputs:
                raise InputError(
                    f"{table.where}: expected {self.num_inputs} columns, got {len(table.names)}; the model was trained "
                    "on an array without column names, so columns are taken in order"
                )
        return table

    def predict_folds(
        self, encoded: Float[np.ndarray, "N D"], place: Place
    ) -> tuple[Predictive, dict[int, Predictive]]:
        """Return the prediction of encoded rows and, if recalibration needs them, those by the members of each fold."""
        folds = [] if self.conformal_folds is None else self.conformal_folds.unique().tolist()
        return self._predict(self._standardise(encoded, place), place, folds)

    def predictions(
        self,
        table: Table,
        quantiles: Sequence[float] = (),
        interval: float | Sequence[float] | None = None,
        components: bool = False,
        samples: int = 0,
        generator: torch.Generator | None = None,
        moments: bool = True,
        impute: bool = False,
        above: float | Sequence[float] = (),
    ) -> dict[str, Float[np.ndarray, " N"]]:
        """Return columns of predictions for a table, output by output.

        Args:
            table: The rows.
            quantiles: Probabilities of quantiles: TARGET_q0.05 and so on.
            interval: Coverage of central intervals: TARGET_lower and TARGET_upper; of several, TARGET_lower_0.5 and so
                on.
            components: Whether to add weight, mean and spread of each component: TARGET_weight_0 and so on.
            samples: Number of samples: TARGET_sample_0 and so on.
            generator: Generator of the samples.
            moments: Whether to add TARGET_mean and TARGET_std.
            impute: See `predict`.
            above: Thresholds in the units of the targets, for the probability of larger values: TARGET_above_30 and so
                on, for each target.
        """
        wanted = Wanted(
            moments, quantiles, interval_levels(interval), threshold_names(above), components, samples, generator
        )
        if wanted.levels:
            mixture, folds = self.predict_folds(self.encode(table, impute), table.place)
        else:
            mixture, folds = self.predict(table, impute), {}
        return self.outcome.columns(mixture, wanted, lambda coverage: self.recalibrate(mixture, folds, coverage))

    def recalibrate(
        self, mixture: Predictive, folds: Mapping[int, Predictive], coverage: float
    ) -> tuple[Float[Tensor, " N *T"], Float[Tensor, " N *T"]] | None:
        """Return recalibrated intervals for a prediction, or for those of each fold; None without scores."""
        found = self.recalibration
        if found is None:
            return None
        return found.interval(mixture if found.fold is None else folds, coverage)

    def why_infinite(self, coverage: float | Sequence[float] | None) -> str:
        """Return why recalibrated intervals of the largest coverage are infinite; empty if they are not."""
        levels = interval_levels(coverage).values()
        if not levels or self.recalibration is None:
            return ""
        why = self.recalibration.why_infinite(max(levels), self.target_names)
        return f"at a coverage of {max(levels):.6g} intervals are infinite: {why}" if why else ""


def interval_levels(interval: float | Sequence[float] | None) -> dict[str, float]:
    """Return the coverage of each interval by the end of its columns' names: "" for a number, "_0.9" in a list.

    Raises:
        InputError: It is neither a number nor a list of different numbers.
    """
    if interval is None:
        return {}
    if np.ndim(interval) == 0:
        check_number("coverage", interval)
        return {"": cast(float, interval)}
    try:
        given = [float(level) for level in cast(Sequence[float], interval)]
    except (TypeError, ValueError):
        given = []
    if not given or len(set(given)) < len(given):
        raise InputError(f"coverage: expected a number, or different numbers such as (0.5, 0.9), got {interval!r:.100}")
    return {f"_{level!r}": level for level in given}


def threshold_names(above: float | Sequence[float]) -> dict[str, float]:
    """Return each threshold by the end of its column's name, such as "above_30".

    Raises:
        InputError: They are not finite numbers.
    """
    try:
        values = np.atleast_1d(np.asarray(above, dtype=np.float64))
    except (TypeError, ValueError):
        values = np.array([math.nan])
    if values.ndim > 1 or not np.isfinite(values).all():
        raise InputError(f"above: expected numbers in the units of the target, such as (30, 60), got {above!r:.100}")
    return {f"above_{value!r}".removesuffix(".0"): value for value in (values + 0.0).tolist()}

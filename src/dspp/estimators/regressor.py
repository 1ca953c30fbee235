"""The base class of all estimators."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state, estimator_html_repr
from sklearn.utils.validation import check_is_fitted, validate_data

from dspp.errors import InputError
from dspp.notes import warn, warn_of_notes
from dspp.settings import Parameters, Settings
from dspp.table.files import dataset_columns, from_dataset, is_dataset
from dspp.table.frames import frame_like, is_frame
from dspp.table.memory import attach_roles, attach_targets, drop_weightless, to_table
from dspp.table.table import FileTable, Table

if TYPE_CHECKING:  # whatever needs torch is imported where it is used, so that an estimator is made at once
    from dspp.config import TrainConfig
    from dspp.evaluate import Evaluation
    from dspp.history import Epoch
    from dspp.predictive import Distribution
    from dspp.prepare import Prepared
    from dspp.presets import Spec

Array = NDArray[np.float64]


class Regressor(MultiOutputMixin, RegressorMixin, Parameters, BaseEstimator):  # type: ignore[misc]
    """Predicts a distribution for each row of a table; see `Parameters` for the parameters.

    `predict` returns arrays, as scikit-learn expects: TransformedTargetRegressor, StackingRegressor and its other
    estimators take data frames too. For a data frame, `predict_table`, `predict_quantiles` and `predict_interval`
    return a data frame of the same library with the same index.

    Attributes:
        fitted_: The fitted model (`dspp.fitted.Fitted`) with scales, encoding, history and notes. `fitted_.metrics` are
            its scores by name, such as `fitted_.metrics["nll"]`, on rows that `fitted_.scored` describes: out of fold
            for an ensemble, the validation rows for a single model.
        n_features_in_: The number of columns of X.
        feature_names_in_: The names of the columns of X, if it has any.

    Example:
        >>> import numpy as np
        >>> from dspp import PPGPRRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = PPGPRRegressor(epochs=2, inducing=8).fit(X, X[:, 0])
        >>> model.predict(X[:3]).shape, model.predict_quantiles(X[:3], [0.1, 0.9]).shape
        ((3,), (3, 2))
        >>> sorted(model.evaluate(X, X[:, 0]))[:3]
        ['coverage50', 'coverage80', 'coverage90']
    """

    _preset: ClassVar[str] = "dspp"

    def __sklearn_tags__(self) -> Tags:
        from dspp.outcomes import OUTCOMES

        tags = super().__sklearn_tags__()
        tags.input_tags.string = True  # in data frames
        return OUTCOMES[self.outcome].set_tags(tags) if self.outcome in OUTCOMES else tags

    # ---------------------------------------------------------------- settings

    def settings(self) -> Settings:
        """Return the settings for these parameters, with a seed drawn from `random_state`."""
        given = {"preset": self._preset} | self.get_params(deep=False)
        return Settings(**given | {"random_state": to_seed(self.random_state)})

    def spec(self, num_outputs: int = 1) -> "Spec":
        """Return the model and the objective for this number of outputs."""
        return self.settings().spec(num_outputs)

    def train_config(self, num_rows: int, seed: int) -> "TrainConfig":
        """Return the training settings for this number of rows."""
        return self.settings().train_config(num_rows).change(seed=seed)

    # ---------------------------------------------------------------- fitting

    def fit(
        self,
        X: Any,
        y: Any,
        X_val: Any = None,
        y_val: Any = None,
        *,
        sample_weight: Any = None,
        sample_weight_val: Any = None,
        groups: Any = None,
        time: Any = None,
        on_epoch: "Callable[[Epoch], None] | None" = None,
        should_stop: Callable[[], bool] | None = None,
        resume: bool = True,
    ) -> Self:
        """Fit the model to rows X with targets y, and warn (`DsppWarning`) of its notes, which `fitted_.notes` keeps.

        Args:
            X: A data frame, a 2-D array of numbers, or a `pyarrow.dataset.Dataset`, which is sampled if a fit of all of
                its rows would need more than `memory`.
            y: One target per row, or (N, T) for T outputs, in which NaN means "not observed". For a dataset, the name
                of the column to predict, or a list of names; rows without a target are left out. What belongs to rows
                of a dataset (the weights, groups and times below) is likewise the name of a column.
            X_val: Validation rows, for choosing the best epoch; None: `validation_fraction` of the rows of X.
            y_val: The targets of the validation rows.
            sample_weight: How much each row counts, in training and in scores: numbers ≥ 0 of which only the ratios
                matter. A row of weight 0 is left out. None: all rows count the same.
            sample_weight_val: The same for the validation rows.
            groups: A label per row. Rows of a group, such as those of one patient, are never on both sides of a split.
            time: A number, date or timestamp per row. The latest rows are held out, so that scores are of predictions
                forward in time. It is not an input; leave the column in X if it should be.
            on_epoch: Called with the record of each epoch; an exception it raises ends training.
            should_stop: Called after every step; returning True interrupts training, keeping the checkpoint.
            resume: Whether to resume from an existing `checkpoint`.

        Raises:
            InputError: X or y is not valid; the message names the row and the column.
        """
        from dspp.fitting import train  # imported here, as prediction needs no training code

        roles = {"sample_weight": sample_weight, "groups": groups, "time": time}
        settings = self.settings()
        prepared = prepare_rows(self, settings, X, y, X_val, y_val, sample_weight_val=sample_weight_val, **roles)
        self.fitted_, _ = train(prepared, settings, on_epoch=on_epoch, should_stop=should_stop, resume=resume)
        self.__dict__.update(self.fitted_.outcome.attributes)
        warn_of_notes(self.fitted_.notes)
        return self

    def _table(self, X: Any, reset: bool, name: str = "X", may_be_empty: bool = False) -> Table:
        """Return X as a table; with `reset`, store its column names, otherwise compare with the stored ones."""
        table = to_table(X, name, may_be_empty)
        self._check_columns(table.array if table.arrow is None else table.arrow, reset)
        return table

    def _check_columns(self, X: Any, reset: bool) -> None:
        try:
            validate_data(self, X, reset=reset, skip_check_array=True)
        except ValueError as problem:
            raise InputError(str(problem)) from None

    # ---------------------------------------------------------------- predicting

    def predict_dist(self, X: Any) -> "Distribution":
        """Return the predictive distribution of each row, a mixture in the units of y.

        Its methods take and return arrays; `.torch` is the same distribution with tensors.
        """
        from dspp.predictive import Distribution

        check_is_fitted(self, "fitted_")
        table = self.fitted_.inputs(self._table(X, reset=False, may_be_empty=True))
        predicted = self.fitted_.predict(table, self.settings().impute)
        self._warn_of_new(table)
        return Distribution(predicted)

    def pred_dist(self, X: Any) -> "Distribution":
        """Return `predict_dist(X)`; the name that NGBoost uses."""
        return self.predict_dist(X)

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        *,
        quantiles: float | Sequence[float] | None = None,
        interval: float | Sequence[float] | None = None,
    ) -> Any:
        """Return the mean of each row's distribution, or one of the other predictions, as arrays also for a data frame.

        Pipelines of scikit-learn pass the arguments on: `pipeline.predict(X, interval=0.9)`.

        Args:
            X: The rows.
            return_std: Whether to return the standard deviation too. The mean and it are (N,), or (N, T) for T outputs.
            quantiles: Return the quantiles at these levels instead, in the shape of `predict_quantiles`.
            interval: Return the intervals of this coverage instead, in the shape of `predict_interval`.
        """
        if (quantiles is not None) + (interval is not None) + bool(return_std) > 1:
            raise InputError("expected one of return_std, quantiles and interval, got several; use predict_table")
        if quantiles is not None:
            return self._quantiles(X, quantiles, as_frame=False)
        if interval is not None:
            return self._intervals(X, interval, as_frame=False)
        mixture = self.predict_dist(X)
        if return_std:
            return mixture.mean, mixture.std
        return np.asarray(self.fitted_.outcome.point(mixture.torch))

    def predict_table(
        self,
        X: Any,
        quantiles: Sequence[float] = (),
        interval: float | Sequence[float] | None = None,
        *,
        above: float | Sequence[float] = (),
        components: bool = False,
        samples: int = 0,
        random_state: Any = 0,
    ) -> Any:
        """Return a data frame with the columns of `dspp predict`: TARGET_mean, TARGET_std and those requested.

        Args:
            X: The rows; for an array, the result is an Arrow table.
            quantiles: Probabilities of quantiles: TARGET_q0.05 and so on.
            interval: The coverage of a central interval: TARGET_lower and TARGET_upper; or several: TARGET_lower_0.5
                and so on.
            above: Thresholds t in the units of y, for P(y > t): TARGET_above_30 and so on, for each target. With
                `conformal=True` they stay those of the model, as quantiles do.
            components: Whether to include weight, mean and std of each component: TARGET_weight_0 and so on.
            samples: The number of samples per row: TARGET_sample_0 and so on.
            random_state: The seed of the samples.
        """
        import torch

        generator = torch.Generator().manual_seed(to_seed(random_state))
        how: dict[str, Any] = {"above": above, "components": components, "samples": samples, "generator": generator}
        return frame_like(X, self._columns(X, quantiles=_probabilities(quantiles), interval=interval, **how))

    def predict_quantiles(self, X: Any, alpha: float | Sequence[float] = (0.05, 0.5, 0.95)) -> Any:
        """Return the quantiles at the K levels `alpha`: (N, K), or (N, K, T); for a frame, columns such as y_q0.05."""
        return self._quantiles(X, alpha, is_frame(X))

    def predict_interval(self, X: Any, coverage: float | Sequence[float] = 0.9) -> Any:
        """Return central intervals of this coverage: (N, 2), or (N, 2, T); for a frame, y_lower and y_upper.

        With a list of K coverages, they are (N, 2, K), or (N, 2, K, T), or the columns y_lower_0.5, y_upper_0.5 and so
        on.

        With `conformal=True` the intervals are recalibrated, so that they have about this coverage on new rows whatever
        the model: at least `coverage` for a single model and for ensembles that hold out one part of the rows, at least
        2 · coverage − 1, less a term that vanishes with many rows, for ensembles of folds. With too few calibration
        rows they are infinite, with a warning.
        """
        return self._intervals(X, coverage, is_frame(X))

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Return samples from each row's distribution: (n_samples, N), or (n_samples, N, T)."""
        return cast(Array, self.predict_dist(X).sample(n_samples, random_state=to_seed(random_state)))

    def _columns(self, X: Any, **what: Any) -> dict[str, Array]:
        check_is_fitted(self, "fitted_")
        table = self.fitted_.inputs(self._table(X, reset=False, may_be_empty=True))
        predicted = self.fitted_.predictions(table, impute=self.settings().impute, **what)
        self._warn_of_new(table)
        return predicted

    def _warn_of_new(self, table: Table) -> tuple[str, ...]:
        """Warn of what rows have that the training rows had not, and return the warnings."""
        from dspp.novelty import Novelty

        novelty = Novelty(self.fitted_, self.settings().impute)
        novelty.count(table)
        for warning in (found := tuple(novelty.warnings())):
            warn(warning, in_loops=False)  # whose folds have rows outside each other's range
        return found

    def _quantiles(self, X: Any, alpha: float | Sequence[float], as_frame: bool) -> Any:
        from dspp.outcomes.real import quantile_name

        probabilities = _probabilities(alpha)
        if as_frame and len(set(probabilities)) < len(probabilities):
            raise InputError(
                f"alpha: expected unique levels, as they name the columns of a data frame, got {alpha!r:.100}"
            )
        columns = self._columns(X, quantiles=probabilities, moments=False)
        return frame_like(X, columns) if as_frame else self._stack(columns, map(quantile_name, probabilities))

    def _intervals(self, X: Any, coverage: float | Sequence[float], as_frame: bool) -> Any:
        from dspp.fitted import interval_levels

        columns = self._columns(X, interval=coverage, moments=False)
        if why := self.fitted_.why_infinite(coverage):
            warn(why)
        if as_frame:
            return frame_like(X, columns)
        suffixes = interval_levels(coverage)
        found = self._stack(columns, [end + suffix for end in ("lower", "upper") for suffix in suffixes])
        N, _, *T = found.shape
        return found if np.ndim(coverage) == 0 else found.reshape(N, 2, len(suffixes), *T)

    def _stack(self, columns: dict[str, Array], labels: Iterable[str]) -> Array:
        """Return K numbers per row and output: (N, K), or (N, K, T)."""
        labels = list(labels)
        outputs = [
            np.stack([columns[f"{name}_{label}"] for label in labels], axis=1)
            for name in self.fitted_.outcome.output_names
        ]
        return outputs[0] if len(outputs) == 1 else np.stack(outputs, axis=-1)

    # ---------------------------------------------------------------- scores

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R² of the mean; for T outputs, the average over those that vary, each over its observed rows.

        The result is NaN if y does not vary, as in a single row.
        """
        check_is_fitted(self, "fitted_")
        return self._score(self.fitted_.outcome.score, X, y, sample_weight)

    def score_nll(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the mean negative log density of y, in nats per observed value. Lower is better."""
        return self._score("nll", X, y, sample_weight)

    def score_crps(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the mean continuous ranked probability score, in the units of y. Lower is better."""
        return self._score("crps", X, y, sample_weight)

    def _score(self, name: str, X: Any, y: Any, sample_weight: Any) -> float:
        check_is_fitted(self, "fitted_")
        if name not in (offered := self.fitted_.outcome.metrics):
            raise InputError(f"{name}: expected one of {', '.join(offered)}; the target has no other scores")
        return self.evaluation(X, y, sample_weight, [name]).comparison.scores([name])[name]

    def evaluate(self, X: Any, y: Any, sample_weight: Any = None) -> dict[str, float]:
        """Return all scores by name: nll, rmse, crps, r2, coverage and width of intervals, uniformity of the PIT."""
        return self.evaluation(X, y, sample_weight).scores

    def calibration(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """Return the calibration of the intervals on new rows; `.verdict()` describes it."""
        return self.evaluation(X, y, sample_weight).calibration

    def evaluation(
        self, X: Any, y: Any, sample_weight: Any = None, scores: Iterable[str] | None = None
    ) -> "Evaluation":
        """Return the predictive distribution of each row with the observed targets, and what follows from them.

        Of more than 32,768 rows, which are scored in batches, an evenly spaced sample is kept with its distributions.

        Args:
            X: The rows.
            y: Their targets.
            sample_weight: How much each row counts; a row of weight 0 is left out. None: all count the same.
            scores: Names of the only scores that are wanted; None: all.

        Raises:
            InputError: X, y or the weights are not valid, or y has a different number of outputs than the model.
        """
        from dspp.evaluate import evaluate

        check_is_fitted(self, "fitted_")
        table = self.fitted_.outcome.attach(self._table(X, reset=False), y)
        table = drop_weightless(attach_roles(table, sample_weight))
        evaluation = evaluate(self.fitted_, table, self.settings().impute, scores)
        return replace(evaluation, notes=self._warn_of_new(table))

    # ---------------------------------------------------------------- notebooks

    def _html_repr(self) -> str:
        """Return what a notebook shows: scikit-learn's diagram before `fit`, scores and calibration after it."""
        if not hasattr(self, "fitted_"):
            return cast(str, estimator_html_repr(self))
        from dspp.estimators.show import describe

        return describe(self)

    def _repr_html_inner(self) -> str:  # scikit-learn before 1.7 does not call `_html_repr`
        return self._html_repr()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        shown: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        return shown | {"text/html": self._html_repr()} if "text/html" in shown else shown

    # ---------------------------------------------------------------- saving

    def save(self, path: str | Path) -> None:
        """Save the estimator to a file that `dspp.load` reads.

        All parameters are saved except `checkpoint`, `progress` and a feature module of your own.
        """
        from dspp import modelfile

        check_is_fitted(self, "fitted_")
        modelfile.save(self.fitted_, path)


def prepare_rows(
    estimator: Regressor,
    settings: Settings,
    X: Any,
    y: Any,
    X_val: Any = None,
    y_val: Any = None,
    *,
    sample_weight: Any = None,
    sample_weight_val: Any = None,
    groups: Any = None,
    time: Any = None,
    processes: int | None = None,
) -> "Prepared":
    """Return the arguments of `fit` prepared for training; the estimator keeps the names of the columns.

    `settings` are those of the estimator, and `processes` is as in `prepare`.

    Raises:
        InputError: X, y or something else is not valid.
    """
    from dspp.outcomes import find_outcome
    from dspp.prepare import prepare

    if y is None:
        raise InputError("this regressor requires y to be passed, but the target y is None")
    attach = attach_targets
    how: dict[str, Any] = {}
    table: Table | FileTable
    if is_dataset(X):
        table = from_dataset(X)
        how = dataset_columns(X.schema.names, y, sample_weight, groups, time)
        no_inputs = [*how["targets"], *filter(None, (how["weight"], how["group"]))]
        estimator._check_columns(X.schema.empty_table().drop_columns(no_inputs), reset=True)
    else:
        kind, likelihood = find_outcome(*settings.named_outcome)
        outcome, table = kind.start(estimator._table(X, reset=True), y, likelihood)
        table = attach_roles(table, sample_weight, groups, time)
        how, attach = {"outcome": outcome}, outcome.attach
    if (X_val is None) != (y_val is None):
        raise InputError("expected both or neither of X_val and y_val, got only one; pass both")
    if X_val is not None:
        validation = attach(estimator._table(X_val, reset=False, name="X_val"), y_val, "y_val")
        how["validation"] = attach_roles(validation, sample_weight_val, weights_name="sample_weight_val")
    elif sample_weight_val is not None:
        raise InputError("sample_weight_val: expected X_val and y_val too, got none; pass all three")
    return prepare(table, settings, **how, processes=processes)


def to_seed(random_state: Any) -> int:
    """Return an integer seed for anything that scikit-learn accepts as a random state."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _probabilities(alpha: float | Sequence[float]) -> list[float]:
    try:
        return np.atleast_1d(np.asarray(alpha, dtype=np.float64)).tolist()  # type: ignore[no-any-return]
    except (TypeError, ValueError):
        raise InputError(f"alpha: expected probabilities such as (0.05, 0.5, 0.95), got {alpha!r:.100}") from None

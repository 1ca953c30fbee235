"""The estimator behind every name: fit a table, then ask for distributions in the units of its target."""

import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils import Tags, check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from dspp import metrics, modelfile
from dspp.calibration import Calibration
from dspp.config import TrainConfig
from dspp.errors import InputError
from dspp.fitted import Evaluation, quantile_name
from dspp.history import Epoch
from dspp.predictive import Predictive
from dspp.presets import Spec
from dspp.settings import Parameters, Settings, check_number
from dspp.table.checks import check_y
from dspp.table.frames import frame_like, is_frame, series_like
from dspp.table.joined import from_dataset, is_dataset
from dspp.table.memory import table_of, with_targets
from dspp.table.messages import listed
from dspp.table.table import MemoryTable, Table

Array = NDArray[np.float64]


class Regressor(MultiOutputMixin, RegressorMixin, Parameters, BaseEstimator):  # type: ignore[misc]
    """A predictive distribution for each row of a table; see `Parameters` for the parameters.

    A data frame in gives a column or a data frame out, with its index. Estimators of scikit-learn that reshape what
    others predict (TransformedTargetRegressor, StackingRegressor) take arrays only: give them `X.to_numpy()`, or a
    pipeline whose first step makes arrays.

    Attributes:
        fitted_: everything learned (`dspp.fitted.Fitted`): the model, the scales, the encoding, history and scores.
        n_features_in_: columns of X.
        feature_names_in_: their names, where X had names.
    """

    _preset: ClassVar[str] = "dspp"

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True  # in data frames
        return tags

    # ---------------------------------------------------------------- settings

    def settings(self) -> Settings:
        """What these parameters mean, with a seed drawn from `random_state`."""
        given = {"preset": self._preset} | self.get_params(deep=False)
        return Settings(**given | {"random_state": seed_of(self.random_state)})

    def spec(self, num_outputs: int = 1) -> Spec:
        """The model and the objective that these settings mean for so many outputs."""
        return self.settings().spec(num_outputs)

    def train_config(self, num_rows: int, seed: int) -> TrainConfig:
        """How so many rows would be trained on."""
        return self.settings().train_config(num_rows).change(seed=seed)

    # ---------------------------------------------------------------- fitting

    def fit(
        self,
        X: Any,
        y: Any,
        X_val: Any = None,
        y_val: Any = None,
        *,
        on_epoch: Callable[[Epoch], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        resume: bool = True,
        cache: str | Path | None = None,
        keep_cache: bool = False,
    ) -> Self:
        """Learn from rows X and their targets y.

        Args:
            X: a data frame, a 2-D array of numbers, or a `pyarrow.dataset.Dataset` that may be larger than memory.
            y: one target per row, or (N, T) for T outputs; NaN in some entries of those means "not observed". Of a
                dataset, the name of the column to predict, or a list of names; rows without a target are left out.
            X_val: rows that choose the best epoch; None: `validation_fraction` of the rows of X.
            y_val: their targets.
            on_epoch: called with the record of each epoch; what it raises ends training.
            should_stop: asked after every step; True interrupts training with its checkpoint kept.
            resume: with a `checkpoint`, whether to resume from the one that exists.
            cache: of a dataset, the folder for its rows as training reads them, 4 bytes per number; None: the folder of
                the checkpoint, or the system's for temporary files.
            keep_cache: whether these stay there; another fit on the same rows then begins at once.

        Raises:
            InputError: X or y cannot be used; the message names the row and the column.
        """
        from dspp.fitting import train  # here: a model that only predicts needs nothing that trains
        from dspp.prepare import OnDisk, prepare

        if y is None:
            raise InputError("this regressor requires y to be passed, but the target y is None")
        settings = self.settings()
        how: dict[str, Any] = {"should_stop": should_stop}
        table: Table
        if is_dataset(X):
            targets = _column_names(y, X.schema.names)
            self._note_columns(X.schema.empty_table().drop_columns(targets), reset=True)
            table, how = from_dataset(X), how | {"targets": targets, "disk": OnDisk(cache, keep_cache)}
        elif cache is not None or keep_cache:
            raise InputError("cache is for a pyarrow.dataset.Dataset; X is in memory already, leave it out")
        else:
            table = with_targets(self._table(X, reset=True), y)
        how["validation"] = self._validation(X_val, y_val)
        with prepare(table, settings, **how) as prepared:
            self.fitted_, _ = train(prepared, settings, on_epoch=on_epoch, should_stop=should_stop, resume=resume)
        return self

    def _validation(self, X_val: Any, y_val: Any) -> MemoryTable | None:
        if X_val is None and y_val is None:
            return None
        if X_val is None or y_val is None:
            raise InputError("got only one of X_val and y_val, expected both or neither")
        return with_targets(self._table(X_val, reset=False, name="X_val"), y_val, "y_val", every_output=False)

    def _table(self, X: Any, reset: bool, name: str = "X") -> MemoryTable:
        """X as a table, its width and names noted (`reset`) or held against those noted."""
        table = table_of(X, name)
        self._note_columns(table.array if table.arrow is None else table.arrow, reset)
        return table

    def _note_columns(self, X: Any, reset: bool) -> None:
        try:
            validate_data(self, X, reset=reset, skip_check_array=True)
        except ValueError as problem:
            raise InputError(str(problem)) from None

    # ---------------------------------------------------------------- predicting

    def predict_dist(self, X: Any) -> Predictive:
        """The predictive distribution of each row, in the units of y: a mixture."""
        check_is_fitted(self, "fitted_")
        return self.fitted_.predict(self._table(X, reset=False))

    def pred_dist(self, X: Any) -> Predictive:
        """`predict_dist`, as NGBoost calls it."""
        return self.predict_dist(X)

    @available_if(lambda self: "skpro" in sys.modules)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Predictive:
        """`predict_dist`, as skpro calls it; there only where skpro is in use.

        scikit-learn's contract forbids a regressor to have a method of this name.
        """
        return self.predict_dist(X)

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """The mean of each row's distribution, and its standard deviation if asked for.

        Returns an array (N,), or (N, T) for T outputs; for a data frame, a column or a data frame with its index.
        """
        mixture = self.predict_dist(X)
        mean = self._shaped(X, mixture.mean)
        return (mean, self._shaped(X, mixture.std, "_std")) if return_std else mean

    def predict_table(
        self,
        X: Any,
        quantiles: Sequence[float] = (),
        interval: float | None = None,
        *,
        components: bool = False,
        samples: int = 0,
        random_state: Any = 0,
    ) -> Any:
        """Predictions as a data frame with the columns of `dspp predict`: TARGET_mean, TARGET_std and what was asked.

        Args:
            X: the rows; an array gives an Arrow table.
            quantiles: probabilities: TARGET_q0.05 and so on.
            interval: the share that a central interval is to hold: TARGET_lower and TARGET_upper.
            components: whether to give weight, mean and spread of each component: TARGET_weight_0 and so on.
            samples: how many draws to give: TARGET_sample_0 and so on.
            random_state: of the draws.
        """
        generator = torch.Generator().manual_seed(seed_of(random_state))
        how: dict[str, Any] = {"components": components, "samples": samples, "generator": generator}
        return frame_like(X, self._columns(X, quantiles=_probabilities(quantiles), interval=interval, **how))

    def predict_quantiles(self, X: Any, alpha: float | Sequence[float] = (0.05, 0.5, 0.95)) -> Any:
        """Quantiles at each probability in `alpha`: (N, K), or (N, K, T); for a data frame, columns such as y_q0.05."""
        probabilities = _probabilities(alpha)
        if is_frame(X) and len(set(probabilities)) < len(probabilities):
            raise InputError(f"alpha: got {alpha!r:.100}, expected each once: columns of a data frame are known by it")
        columns = self._columns(X, quantiles=probabilities, moments=False)
        return self._several(X, columns, [quantile_name(p) for p in probabilities])

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Any:
        """The central interval that holds `coverage`: (N, 2), or (N, 2, T); for a data frame, y_lower and y_upper.

        With `conformal=True` the interval is recalibrated, and holds its share of new rows whatever the model. Where
        there were too few rows to recalibrate with, that takes an infinite one, with a warning.
        """
        check_number("coverage", coverage)
        columns = self._columns(X, interval=coverage, moments=False)
        if why := self.fitted_.why_infinite(coverage):
            warnings.warn(why, stacklevel=2)
        return self._several(X, columns, ["lower", "upper"])

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draws from each row's distribution: (n_samples, N), or (n_samples, N, T)."""
        generator = torch.Generator().manual_seed(seed_of(random_state))
        return cast(Array, self.predict_dist(X).sample(n_samples, generator).numpy())

    def _columns(self, X: Any, **what: Any) -> dict[str, Array]:
        check_is_fitted(self, "fitted_")
        return self.fitted_.predictions(self._table(X, reset=False), **what)

    def _shaped(self, X: Any, values: torch.Tensor, suffix: str = "") -> Any:
        """One number per row and output, in the shape and library that the user uses."""
        array = values.numpy()
        if not is_frame(X):
            return array
        names = [name + suffix for name in self.fitted_.target_names]
        if array.ndim == 1:
            return series_like(X, names[0], array)
        return frame_like(X, dict(zip(names, array.T, strict=True)))

    def _several(self, X: Any, columns: dict[str, Array], labels: Sequence[str]) -> Any:
        """Several numbers per row and output."""
        if is_frame(X):
            return frame_like(X, columns)
        outputs = [
            np.stack([columns[f"{name}_{label}"] for label in labels], axis=1) for name in self.fitted_.target_names
        ]
        return outputs[0] if len(outputs) == 1 else np.stack(outputs, axis=-1)

    # ---------------------------------------------------------------- scores

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of the mean; with T outputs the average over those that vary, each over the rows where it was observed.

        NaN where y does not vary, as in a single row.
        """
        judged = self.evaluation(X, y)
        weights = None if sample_weight is None else check_y(sample_weight, len(judged.y), "sample_weight")
        if weights is not None and weights[:1].size > 1:
            raise InputError(f"sample_weight: got shape {weights.shape}, expected ({len(weights)},): one for each row")
        if weights is not None and (weights < 0).any():
            raise InputError(f"sample_weight: got {weights.min():g}, expected numbers of at least 0")
        weights = None if weights is None else weights.reshape(-1)
        return metrics.r_squared(judged.distribution.mean.numpy(), judged.y, weights)

    def score_nll(self, X: Any, y: Any) -> float:
        """Mean negative log density of y, in nats; with T outputs, for each observed value. Lower is better."""
        return self.evaluation(X, y).comparison.scores(["nll"])["nll"]

    def score_crps(self, X: Any, y: Any) -> float:
        """Mean continuous ranked probability score, in the units of y. Lower is better."""
        return self.evaluation(X, y).comparison.scores(["crps"])["crps"]

    def evaluate(self, X: Any, y: Any) -> dict[str, float]:
        """Every score by name: nll, rmse, crps, r2, coverage and mean width of intervals, uniformity of the PIT."""
        return self.evaluation(X, y).scores

    def calibration(self, X: Any, y: Any) -> Calibration:
        """Whether the intervals hold what they promise on rows that were not trained on; `.verdict()` says it."""
        return self.evaluation(X, y).calibration

    def evaluation(self, X: Any, y: Any) -> Evaluation:
        """The predictive distribution of each row beside what was observed there.

        Raises:
            InputError: X or y cannot be used, or y has another number of outputs than the model.
        """
        check_is_fitted(self, "fitted_")
        return self.fitted_.evaluate(with_targets(self._table(X, reset=False), y, every_output=False))

    # ---------------------------------------------------------------- keeping

    def save(self, path: str | Path) -> None:
        """Write one safe file from which `dspp.load` makes an estimator that predicts the same.

        Its parameters come back too, but for those of the run (`checkpoint`, `progress`) and a module of your own.
        """
        check_is_fitted(self, "fitted_")
        modelfile.save(self.fitted_, path)


def seed_of(random_state: Any) -> int:
    """A whole number from what scikit-learn takes as a random state."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def _column_names(y: Any, columns: Sequence[str]) -> list[str]:
    """The targets of a dataset."""
    names = [y] if isinstance(y, str) else list(y) if isinstance(y, list | tuple) else []
    if not names or not all(name in columns for name in names):
        raise InputError(f"y: got {y!r:.100}, expected the name of a column of the dataset: {listed(columns, 10)}")
    return names


def _probabilities(alpha: float | Sequence[float]) -> list[float]:
    try:
        return np.atleast_1d(np.asarray(alpha, dtype=np.float64)).tolist()  # type: ignore[no-any-return]
    except (TypeError, ValueError):
        raise InputError(f"alpha: got {alpha!r:.100}, expected probabilities such as (0.05, 0.5, 0.95)") from None

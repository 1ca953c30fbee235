"""The estimator behind every name: fit a table, then ask for distributions in the units of its target."""

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from dspp import metrics, modelfile
from dspp.calibration import Calibration, check_calibration
from dspp.data.checks import check_y
from dspp.data.columns import quantile_name
from dspp.data.frames import frame_like, is_frame, series_like
from dspp.data.inputs import Inputs, target_names, targets
from dspp.data.messages import listed
from dspp.data.shards import Shards, is_dataset
from dspp.errors import InputError
from dspp.estimators.fitting import Array, Part, fit_rows, fit_table
from dspp.estimators.ondisk import Stored, stored
from dspp.estimators.settings import Settings, check_number, seed_of
from dspp.history import Epoch
from dspp.likelihoods import LIKELIHOODS
from dspp.predictive import Predictive, RealPredictive
from dspp.training.disk import BLOCK_ROWS, GROUP_BYTES, DiskRows


class Regressor(MultiOutputMixin, RegressorMixin, Settings):  # type: ignore[misc]
    """A predictive distribution for each row of a table; see `Settings` for the parameters.

    A data frame in gives a column or a data frame out, with its index. Estimators of scikit-learn that reshape what
    others predict (TransformedTargetRegressor, StackingRegressor) take arrays only: give them `X.to_numpy()`, or a
    pipeline whose first step makes arrays.
    """

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True  # in data frames
        return tags

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
            y: one target a row, or (N, T) for T outputs; NaN in some entries of those means "not observed". Of a
                dataset, the name of the column to predict, or a list of names; rows without a target are left out.
            X_val: rows that choose the best epoch; None: `validation_fraction` of the rows of X.
            y_val: their targets.
            on_epoch: called with the record of each epoch; what it raises ends training.
            should_stop: asked after every step; True interrupts training with its checkpoint kept.
            resume: with a `checkpoint`, whether to go on from the one that is there.
            cache: of a dataset, the folder for its rows as training reads them, 4 bytes a number; None: the folder of
                the checkpoint, or the system's for temporary files.
            keep_cache: whether these stay there; another fit on the same rows then begins at once.

        Raises:
            InputError: X or y cannot be used; the message names the row and the column.
        """
        if y is None:
            raise InputError("this regressor requires y to be passed, but the target y is None")
        given = X_val is not None or y_val is not None
        if is_dataset(X):
            columns = _names(y, X.schema.names)
            self._note_columns(X.schema.empty_table().drop_columns(columns), reset=True)
            validation = self._validation(X_val, y_val) if given else None
            where: dict[str, Any] = {"cache": cache, "keep_cache": keep_cache}
            with stored(Shards.of(X), columns, self, validation=validation, should_stop=should_stop, **where) as table:
                self.fit_stored(table, on_epoch=on_epoch, should_stop=should_stop, resume=resume)
            self._y_is_column = not isinstance(y, str) and len(columns) == 1
            return self
        if cache is not None or keep_cache:
            raise InputError("cache is for a pyarrow.dataset.Dataset; X is in memory already, leave it out")
        rows = self._inputs(X, reset=True)
        y_rows = targets(y, len(rows))
        self._y_is_column = y_rows.ndim == 2 and y_rows.shape[1] == 1
        whole = Part(rows, self._flat(y_rows))
        names, seed = target_names(y) or _default_names(whole.y), seed_of(self.random_state)
        spec = self.spec(len(names))
        LIKELIHOODS[spec.model.likelihood].codec.real(whole.y.reshape(len(rows), -1), names, range(len(rows)))
        train, *parts = self.parts(len(rows), seed, given, whole.y)
        val, held = (replace(_take(whole, index), labels=index.tolist()) for index in parts)
        self.fitted_ = fit_table(
            spec,
            self.train_config(len(train), seed),
            _take(whole, train),
            self._validation(X_val, y_val) if given else val,
            held,
            names,
            **self._how(on_epoch, should_stop, resume),
        )
        return self

    def fit_stored(
        self,
        table: Stored,
        *,
        on_epoch: Callable[[Epoch], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
        resume: bool = True,
        snapshot_steps: int = 50,
        block_rows: int = BLOCK_ROWS,
        group_bytes: int = GROUP_BYTES,
    ) -> Self:
        """Learn from a table on the disk that `ondisk.stored` has made ready.

        Args:
            table: the rows.
            on_epoch: see `fit`.
            should_stop: see `fit`.
            resume: see `fit`.
            snapshot_steps: see `dspp.training.fit`.
            block_rows: see `DiskRows`.
            group_bytes: see `DiskRows`.
        """
        self._note_columns(table.inputs.empty_table(), reset=True)
        spec, config = self.spec(table.cache.num_outputs), self.train_config(len(table), seed_of(self.random_state))
        with DiskRows(table.cache, spec, config, block_rows, group_bytes) as rows:
            how = self._how(on_epoch, should_stop, resume) | {"snapshot_steps": snapshot_steps}
            fitted = fit_rows(spec, config, table.learned, (rows, None), table.val, table.held, **how)
        notes = (*(note for note in table.notes if note not in fitted.notes), *fitted.notes)
        self.fitted_ = replace(fitted, notes=notes)
        return self

    def _how(
        self, on_epoch: Callable[[Epoch], None] | None, should_stop: Callable[[], bool] | None, resume: bool
    ) -> dict[str, Any]:
        """What `training.fit` is told beside the rows."""
        if self.time_budget is not None:
            check_number("time_budget", self.time_budget)
        return {
            "features": self.features if isinstance(self.features, nn.Module) else None,
            "progress": self.progress,
            "checkpoint": self.checkpoint,
            "resume": resume and self.checkpoint is not None,
            "time_budget": self.time_budget,
            "on_epoch": on_epoch,
            "should_stop": should_stop,
        }

    def _validation(self, X_val: Any, y_val: Any) -> Part:
        if X_val is None or y_val is None:
            raise InputError("got only one of X_val and y_val, expected both or neither")
        rows = self._inputs(X_val, reset=False, name="X_val")
        return Part(rows, self._flat(targets(y_val, len(rows), "y_val", every_output=False)), "X_val")

    def _flat(self, y: Array) -> Array:
        """(N,) for the (N, 1) of a single output."""
        return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y

    def _inputs(self, X: Any, reset: bool, name: str = "X") -> Inputs:
        """X as rows, its width and names noted (`reset`) or held against those noted."""
        rows = Inputs.of(X, name)
        self._note_columns(rows.array if rows.table is None else rows.table, reset)
        return rows

    def _note_columns(self, X: Any, reset: bool) -> None:
        try:
            validate_data(self, X, reset=reset, skip_check_array=True)
        except ValueError as problem:
            raise InputError(str(problem)) from None

    # ---------------------------------------------------------------- predicting

    def predict_dist(self, X: Any) -> Predictive:
        """The predictive distribution of each row, in the units of y: a mixture."""
        check_is_fitted(self, "fitted_")
        rows = self._inputs(X, reset=False)
        return self.fitted_.distribution(rows.encode(self.fitted_.encoder))

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

    def predict_quantiles(self, X: Any, alpha: float | Sequence[float] = (0.05, 0.5, 0.95)) -> Any:
        """Quantiles at each probability in `alpha`: (N, K), or (N, K, T); for a data frame, columns such as y_q0.05."""
        try:
            probabilities = np.atleast_1d(np.asarray(alpha, dtype=np.float64))
        except (TypeError, ValueError):
            raise InputError(f"alpha: got {alpha!r:.100}, expected probabilities such as (0.05, 0.5, 0.95)") from None
        if is_frame(X) and len(set(probabilities.tolist())) < probabilities.size:
            raise InputError(f"alpha: got {alpha!r:.100}, expected each once: columns of a data frame are known by it")
        ends = _by_output(self.predict_dist(X), lambda one: one.quantile(torch.from_numpy(probabilities)).T)
        return self._several(X, ends, [quantile_name(p) for p in probabilities])

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Any:
        """The central interval that holds `coverage`: (N, 2), or (N, 2, T); for a data frame, columns lower and upper.

        With `conformal=True` the interval is recalibrated, and holds its share of new rows whatever the model. Where
        there were too few rows to recalibrate with, that takes an infinite one, with a warning.
        """
        check_number("coverage", coverage)
        mixture, fitted = self.predict_dist(X), self.fitted_
        if (conformal := fitted.recalibration) is not None:
            ends = torch.stack(conformal.interval(mixture, coverage), dim=1).numpy()
            if why := conformal.why_infinite(coverage, fitted.target_names):
                warnings.warn(f"at a coverage of {coverage:.6g} intervals are infinite: {why}", stacklevel=2)
        else:
            ends = _by_output(mixture, lambda one: torch.stack(one.interval(coverage), dim=1))
        return self._several(X, ends, ["lower", "upper"])

    def sample(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draws from each row's distribution: (n_samples, N), or (n_samples, N, T)."""
        generator = torch.Generator().manual_seed(seed_of(random_state))
        return cast(Array, self.predict_dist(X).sample(n_samples, generator).numpy())

    def _shaped(self, X: Any, values: torch.Tensor, suffix: str = "") -> Any:
        """One number a row and output, in the shape and library that the user uses."""
        array = values.numpy()
        names = [name + suffix for name in self.fitted_.target_names]
        if is_frame(X):
            if array.ndim == 1:
                return series_like(X, names[0], array)
            return frame_like(X, dict(zip(names, array.T, strict=True)))
        return array[:, None] if getattr(self, "_y_is_column", False) else array

    def _several(self, X: Any, values: Array, labels: Sequence[str]) -> Any:
        """Several numbers a row and output."""
        if not is_frame(X):
            return values
        names = self.fitted_.target_names
        if values.ndim == 2:
            prefix = "" if list(labels) == ["lower", "upper"] else f"{names[0]}_"
            return frame_like(X, {f"{prefix}{label}": values[:, k] for k, label in enumerate(labels)})
        columns = {f"{name}_{label}": values[:, k, t] for t, name in enumerate(names) for k, label in enumerate(labels)}
        return frame_like(X, columns)

    # ---------------------------------------------------------------- scores

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of the mean; with T outputs the average over those that vary, each over the rows where it was observed.

        NaN where y does not vary, as in a single row.
        """
        mixture, y_rows = self.scored(X, y)
        weights = None if sample_weight is None else self._flat(check_y(sample_weight, len(mixture), "sample_weight"))
        if weights is not None and weights.ndim > 1:
            raise InputError(f"sample_weight: got shape {weights.shape}, expected ({len(weights)},): one for each row")
        if weights is not None and (weights < 0).any():
            raise InputError(f"sample_weight: got {weights.min():g}, expected numbers of at least 0")
        return metrics.r_squared(mixture.mean.numpy(), y_rows, weights)

    def score_nll(self, X: Any, y: Any) -> float:
        """Mean negative log density of y, in nats; with T outputs, for each observed value. Lower is better."""
        return metrics.Comparison(*self.scored(X, y)).nll()

    def score_crps(self, X: Any, y: Any) -> float:
        """Mean continuous ranked probability score, in the units of y. Lower is better."""
        return metrics.crps(*self.scored(X, y))

    def evaluate(self, X: Any, y: Any) -> dict[str, float]:
        """Every score of `dspp.metrics.METRICS` by name, such as nll, rmse, crps, r2, coverage90 and width90."""
        return metrics.all_scores(*self.scored(X, y))

    def calibration(self, X: Any, y: Any) -> Calibration:
        """Whether the intervals hold what they promise on rows that were not trained on; `.verdict()` says it."""
        mixture, y_rows = self.scored(X, y)
        return check_calibration(mixture, y_rows, self.fitted_.target_names, self.fitted_.recalibration)

    def scored(self, X: Any, y: Any) -> tuple[Predictive, Array]:
        """The predictive distribution of each row, and what was observed there in the same shape.

        Of several outputs some may not have been observed at all; scores are then of the others.

        Raises:
            InputError: X or y cannot be used, or y has another number of outputs than the model.
        """
        mixture = self.predict_dist(X)
        y_rows = self._flat(targets(y, len(mixture), every_output=False))
        if y_rows.shape != mixture.mean.shape:
            raise InputError(
                f"y: expected shape {tuple(mixture.mean.shape)}, as predicted, got {y_rows.shape}. "
                "Give the outputs that the model was fitted to."
            )
        return mixture, y_rows

    # ---------------------------------------------------------------- keeping

    def save(self, path: str | Path) -> None:
        """Write one safe file from which `dspp.load` makes an estimator that predicts the same.

        What only `fit` is told comes back at its default (`validation_fraction`, `calibration_fraction`, `time_budget`,
        `checkpoint`, `progress`), and where y was (N, 1), predictions are (N,).
        """
        check_is_fitted(self, "fitted_")
        modelfile.save(self.fitted_, path)


def _take(whole: Part, index: NDArray[np.intp]) -> Part:
    return Part(whole.rows.take(index), whole.y[index])


def _names(y: Any, columns: Sequence[str]) -> list[str]:
    """The targets of a dataset."""
    names = [y] if isinstance(y, str) else list(y) if isinstance(y, list | tuple) else []
    if not names or not all(name in columns for name in names):
        raise InputError(f"y: got {y!r:.100}, expected the name of a column of the dataset: {listed(columns, 10)}")
    return names


def _default_names(y: Array) -> tuple[str, ...]:
    return ("y",) if y.ndim == 1 else tuple(f"y{t}" for t in range(y.shape[1]))


def _by_output(mixture: Predictive, of_one: Callable[[RealPredictive], torch.Tensor]) -> Array:
    """(N, K) of one output, or (N, K, T)."""
    columns = [of_one(one) for one in mixture.outputs()]
    return cast(Array, (columns[0] if len(columns) == 1 else torch.stack(columns, dim=-1)).numpy())

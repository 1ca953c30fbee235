"""What an estimator is told: scikit-learn's parameters, and the settings of model and training they stand for."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from torch import nn

from dspp.config import TrainConfig
from dspp.data.split import split
from dspp.errors import InputError
from dspp.presets import Spec, preset
from dspp.quadrature import RULES

FEWEST_STEPS = 1000  # of Adam, when `epochs` is left to the estimator
SHARED_WIDTH = 20  # of hidden layers that several outputs share, when `width` is left to the estimator
FEWEST_ROWS_TO_HOLD_OUT = 20  # a smaller table is too small to give rows away
FEWEST_OBSERVED = 2  # rows of each of several outputs to train on
Index = NDArray[np.intp]
MODEL_SETTINGS = ("layers", "width", "inducing", "kernel", "rule", "sites", "topology", "beta", "likelihood")


class Settings(BaseEstimator):  # type: ignore[misc]
    """The parameters that all estimators share.

    Settings left at None are the preset's own. Anything else of `ModelConfig` and `TrainConfig` can be given through
    `model_settings` and `train_settings`.

    Args:
        layers: GP layers, the top one included.
        width: GPs in each hidden layer; None: 5, or 20 for several outputs, which share them.
        inducing: inducing points of each GP; more are slower and finer.
        kernel: matern52, matern32, matern12 or rbf.
        rule: how uncertainty crosses a hidden layer: qr3, qr1, qr2, gauss-hermite, monte-carlo.
        sites: sites of the rule.
        likelihood: how targets scatter: gaussian, student-t (outliers) or log-normal (positive targets).
        topology: what hidden layers after the first read.
        features: sizes of a neural network in front of the first layer, or a module of your own; None: nothing.
        beta: weight of the KL term; larger is smoother.
        epochs: passes over the training rows; None: 40, or more on small tables, to take at least 1,000 steps.
        batch_size: rows a step.
        learning_rate: of Adam at the start.
        restarts: short trials from different starts, of which the best is trained on.
        patience: stop after so many epochs without a better validation NLL; None: go on to the end.
        validation_fraction: share of the rows held out to choose the best epoch, when `fit` is given no validation
            rows; 0: none. Tables of fewer than 20 rows hold nothing out.
        conformal: whether intervals are recalibrated, with a finite-sample guarantee, on rows held out for it.
        calibration_fraction: the share of rows held out for that.
        time_budget: seconds that `fit` may take; it trains fewer epochs if need be.
        checkpoint: a file to keep the state of training in, so that a killed `fit` goes on where it was. It stays after
            a finished `fit`, which it can repeat at once; delete it before you fit other rows or settings.
        model_settings: further fields of `ModelConfig`.
        train_settings: further fields of `TrainConfig`.
        random_state: the same seed gives the same bits.
        device: cpu or cuda.
        progress: whether to show a bar; None: only on a terminal.

    Attributes:
        fitted_: everything learned (`dspp.fitted.Fitted`): the model, the scales, the encoding, history and scores.
        n_features_in_: columns of X.
        feature_names_in_: their names, where X had names.
    """

    _preset: ClassVar[str] = "dspp"

    def __init__(
        self,
        *,
        layers: int | None = None,
        width: int | None = None,
        inducing: int | None = None,
        kernel: str | None = None,
        rule: str | None = None,
        sites: int | None = None,
        likelihood: str = "gaussian",
        topology: str | None = None,
        features: Sequence[int] | nn.Module | None = None,
        beta: float | None = None,
        epochs: int | None = None,
        batch_size: int = 500,
        learning_rate: float = 0.05,
        restarts: int = 3,
        patience: int | None = None,
        validation_fraction: float = 0.1,
        conformal: bool = False,
        calibration_fraction: float = 0.1,
        time_budget: float | None = None,
        checkpoint: str | Path | None = None,
        model_settings: Mapping[str, Any] | None = None,
        train_settings: Mapping[str, Any] | None = None,
        random_state: Any = 0,
        device: str = "cpu",
        progress: bool | None = None,
    ) -> None:
        self.layers = layers
        self.width = width
        self.inducing = inducing
        self.kernel = kernel
        self.rule = rule
        self.sites = sites
        self.likelihood = likelihood
        self.topology = topology
        self.features = features
        self.beta = beta
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.restarts = restarts
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.conformal = conformal
        self.calibration_fraction = calibration_fraction
        self.time_budget = time_budget
        self.checkpoint = checkpoint
        self.model_settings = model_settings
        self.train_settings = train_settings
        self.random_state = random_state
        self.device = device
        self.progress = progress

    def spec(self, num_outputs: int = 1) -> Spec:
        """The model and the objective that these settings mean for so many outputs."""
        given = {name: getattr(self, name) for name in MODEL_SETTINGS if getattr(self, name) is not None}
        if self.features is not None and not isinstance(self.features, nn.Module):
            if not isinstance(self.features, Iterable):
                raise InputError(
                    f"features: got {self.features!r}, expected layer sizes such as (100, 50), or a module"
                )
            given["features"] = tuple(self.features)
        given |= self.model_settings or {}
        spec = preset(self._preset, **given)
        if num_outputs == 1 or spec.model.layers == 1 or "width" in given or RULES[spec.model.rule].grid:  # S^W sites
            return spec
        return replace(spec, model=spec.model.change(width=SHARED_WIDTH))

    def train_config(self, num_rows: int, seed: int) -> TrainConfig:
        """How so many rows would be trained on."""
        further = dict(self.train_settings or {})
        for name in further:
            parameter = "random_state" if name == "seed" else name
            if parameter in self.get_params(deep=False):
                raise InputError(f"train_settings: got {name!r}, expected further fields; pass {parameter}=... instead")
        given = {
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "restarts": self.restarts,
            "patience": self.patience,
            "seed": seed,
            "device": self.device,
        }
        config = TrainConfig().change(**given, **further)
        if self.epochs is not None:
            return config.change(epochs=self.epochs)
        steps_an_epoch = math.ceil(num_rows / config.batch_size)
        return config.change(epochs=max(config.epochs, math.ceil(FEWEST_STEPS / steps_an_epoch)))

    def shares(self, num_rows: int, given_validation: bool) -> tuple[float, float]:
        """The shares of the rows to choose the epoch by, and to recalibrate intervals with.

        Raises:
            InputError: They leave nothing to train on, or there are too few rows to recalibrate with.
        """
        shares = {
            "validation_fraction": 0.0 if given_validation else self.validation_fraction,
            "calibration_fraction": self.calibration_fraction if self.conformal else 0.0,
        }
        for name, share in shares.items():
            check_number(name, share)
        for name, share in shares.items():
            if not 0 <= share < 1 or sum(shares.values()) >= 1:
                raise InputError(f"got {name}={share!r}, expected a share in [0, 1) that leaves rows to train on")
        if num_rows < FEWEST_ROWS_TO_HOLD_OUT:
            if self.conformal:
                enough = f"at least {FEWEST_ROWS_TO_HOLD_OUT}"
                raise InputError(f"conformal=True needs {enough} rows, got {num_rows}; use conformal=False")
            return 0.0, 0.0
        return shares["validation_fraction"], shares["calibration_fraction"]

    def parts(
        self, num_rows: int, seed: int, given_validation: bool, y: NDArray[np.float64] | None = None
    ) -> tuple[Index, Index, Index]:
        """Rows to train on, to choose the epoch by, and to recalibrate intervals with; each in the order of the table.

        An output of y that chance has left with too few rows to train on gets some of those held out.

        Raises:
            InputError: The shares leave nothing to train on, there are too few rows to recalibrate with, or an output
                is observed too seldom.
        """
        shares = self.shares(num_rows, given_validation)
        sizes = [
            num_rows * (1 - sum(shares)),
            *(max(1.0, s * num_rows) if s else 0.0 for s in shares),
        ]
        cut = iter(split(num_rows, [size for size in sizes if size], seed))
        train, val, held = (np.sort(next(cut)) if size else np.empty(0, np.intp) for size in sizes)
        if y is None or y.ndim == 1:
            return train, val, held
        trained = _trained(~np.isnan(y), train)
        if len(held) and trained[held].all():
            raise InputError("no row is left to recalibrate with: the rare outputs of y need all; use conformal=False")
        return np.flatnonzero(trained), val[~trained[val]], held[~trained[held]]


def _trained(observed: NDArray[np.bool_], train: Index) -> NDArray[np.bool_]:
    """Whether a row is to be trained on: those in `train`, and the first others that an output lacks."""
    counts = observed.sum(axis=0)
    if counts.min() < FEWEST_OBSERVED:
        column = int(counts.argmin())
        raise InputError(
            f"y: got {counts[column]} observed value(s) in column {column}, expected at least {FEWEST_OBSERVED}; leave "
            "out this output"
        )
    trained = np.zeros(len(observed), bool)
    trained[train] = True
    for column in observed.T:
        lacking = FEWEST_OBSERVED - np.count_nonzero(column & trained)
        if lacking > 0:
            trained[np.flatnonzero(column & ~trained)[:lacking]] = True
    return trained


def check_number(name: str, value: object) -> None:
    """Raise `InputError` for what is no number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InputError(f"{name}: got {value!r:.100}, expected a number")


def seed_of(random_state: Any) -> int:
    """A whole number from what scikit-learn takes as a random state."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))

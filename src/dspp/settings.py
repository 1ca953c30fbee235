"""What a user can set: the parameters that estimators and the command line share, and what they mean."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from dspp.config import ModelConfig, TrainConfig
from dspp.errors import InputError
from dspp.presets import Spec, preset
from dspp.quadrature import RULES

FEWEST_STEPS = 1000  # of Adam, when `epochs` is left to the estimator
SHARED_WIDTH = 20  # of hidden layers that several outputs share, when `width` is left to the estimator
FEWEST_ROWS_TO_HOLD_OUT = 20  # a smaller table is too small to give rows away
MODEL_SETTINGS = ("layers", "width", "inducing", "kernel", "rule", "sites", "topology", "beta", "likelihood")
OF_THE_RUN = ("checkpoint", "progress")  # mean nothing to a model that is loaded elsewhere


@dataclass(kw_only=True, eq=False, repr=False)
class Parameters:
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
        likelihood: how targets scatter: gaussian, student-t (outliers) or log-normal (positive targets); None: the
            preset's own, gaussian for all presets of this package.
        topology: what hidden layers after the first read.
        features: sizes of a neural network in front of the first layer, or a module of your own; None: nothing.
        beta: weight of the KL term; larger is smoother.
        epochs: passes over the training rows; None: 40, or more on small tables, to take at least 1,000 steps.
        batch_size: rows per step.
        learning_rate: of Adam at the start.
        restarts: short trials from different starts, of which the best is trained on.
        patience: stop after so many epochs without a better validation NLL; None: go on to the end.
        validation_fraction: share of the rows held out to choose the best epoch, when `fit` is given no validation
            rows; 0: none. Tables of fewer than 20 rows hold nothing out.
        conformal: whether intervals are recalibrated, with a finite-sample guarantee, on rows held out for it.
        calibration_fraction: the share of rows held out for that.
        time_budget: seconds that `fit` may take; it trains fewer epochs if need be.
        checkpoint: a file to keep the state of training in, so that a killed `fit` resumes where it was. It stays after
            a finished `fit`, which it can repeat at once; delete it before you fit other rows or settings.
        model_settings: further fields of `ModelConfig`.
        train_settings: further fields of `TrainConfig`.
        random_state: the same seed gives the same bits.
        device: cpu or cuda.
        progress: whether to show a bar; None: only on a terminal.
    """

    layers: int | None = None
    width: int | None = None
    inducing: int | None = None
    kernel: str | None = None
    rule: str | None = None
    sites: int | None = None
    likelihood: str | None = None
    topology: str | None = None
    features: Sequence[int] | nn.Module | None = None
    beta: float | None = None
    epochs: int | None = None
    batch_size: int = 500
    learning_rate: float = 0.05
    restarts: int = 3
    patience: int | None = None
    validation_fraction: float = 0.1
    conformal: bool = False
    calibration_fraction: float = 0.1
    time_budget: float | None = None
    checkpoint: str | Path | None = None
    model_settings: Mapping[str, Any] | None = None
    train_settings: Mapping[str, Any] | None = None
    random_state: Any = 0
    device: str = "cpu"
    progress: bool | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class Settings(Parameters):
    """Parameters of a preset, and the settings of model and training that they stand for; `random_state` is a seed."""

    preset: str = "dspp"

    @property
    def module(self) -> nn.Module | None:
        """The user's own module in front of the first layer."""
        return self.features if isinstance(self.features, nn.Module) else None

    def spec(self, num_outputs: int = 1) -> Spec:
        """The model and the objective for so many outputs."""
        given = {name: getattr(self, name) for name in MODEL_SETTINGS if getattr(self, name) is not None}
        if self.features is not None and self.module is None:
            if not isinstance(self.features, Iterable):
                raise InputError(
                    f"features: got {self.features!r}, expected layer sizes such as (100, 50), or a module"
                )
            given["features"] = tuple(self.features)
        given |= self.model_settings or {}
        spec = preset(self.preset, **given)
        own_width = "width" in given or spec.model.width != ModelConfig().width
        if num_outputs == 1 or spec.model.layers == 1 or own_width or RULES[spec.model.rule].grid:  # S^W sites
            return spec
        return replace(spec, model=spec.model.change(width=SHARED_WIDTH))

    def train_config(self, num_rows: int) -> TrainConfig:
        """How so many rows are trained on."""
        further = dict(self.train_settings or {})
        known = {field.name for field in fields(Parameters)}
        for name in further:
            parameter = "random_state" if name == "seed" else name
            if parameter in known:
                raise InputError(f"train_settings: got {name!r}, expected further fields; pass {parameter}=... instead")
        given = {
            "batch_size": self.batch_size,
            "learning_rate": self.learning_rate,
            "restarts": self.restarts,
            "patience": self.patience,
            "seed": self.random_state,
            "device": self.device,
        }
        config = TrainConfig().change(**given, **further)
        if self.epochs is not None:
            return config.change(epochs=self.epochs)
        steps_per_epoch = math.ceil(num_rows / config.batch_size)
        return config.change(epochs=max(config.epochs, math.ceil(FEWEST_STEPS / steps_per_epoch)))

    def shares(self, num_rows: int, validation_given: bool) -> tuple[float, float]:
        """The shares of the rows to choose the epoch by, and to recalibrate intervals with.

        Raises:
            InputError: They leave nothing to train on, or there are too few rows to recalibrate with.
        """
        shares = {
            "validation_fraction": 0.0 if validation_given else self.validation_fraction,
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

    def params(self) -> dict[str, Any]:
        """What an estimator was told, as plain JSON values; not what concerns its run alone, nor a module."""
        given = {field.name: getattr(self, field.name) for field in fields(Parameters)}
        return {name: _plain(value) for name, value in given.items() if name not in OF_THE_RUN}


def _plain(value: Any) -> Any:
    """A parameter as JSON has it."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, Sequence | np.ndarray) and not isinstance(value, str):
        return [_plain(part) for part in value]
    return None if isinstance(value, nn.Module) else value


def check_number(name: str, value: object) -> None:
    """Raise `InputError` for what is no number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InputError(f"{name}: got {value!r:.100}, expected a number")

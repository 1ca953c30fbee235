"""The parameters shared by estimators and command line, and the settings they stand for."""

import inspect
import math
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from dspp.config import ModelConfig, TrainConfig, to_python
from dspp.errors import InputError
from dspp.presets import Spec, preset

if TYPE_CHECKING:  # imported where it is needed, as the command line checks its options before it imports torch
    from torch import nn

MAX_MEMBERS = 100
MISSING = ("refuse", "impute")  # what predictions do with missing values where the training rows had none
MIN_STEPS = 1000  # of Adam, if `epochs` is None
SHARED_WIDTH = 20  # of hidden layers shared by several outputs, if `width` is None
MIN_ROWS_TO_HOLD_OUT = 20  # smaller tables hold out no rows
TRAIN_SETTINGS = ("batch_size", "learning_rate", "restarts", "patience", "device")
MODEL_SETTINGS = ("layers", "width", "inducing", "kernel", "rule", "sites", "topology", "beta", "likelihood")
LARGE_MEMBERS = 4  # processes that train members of a large table at once, if `members` is "auto"
RUN_ONLY = ("checkpoint", "progress", "jobs", "engine", "address", "memory")  # of one run; not stored with a model


@dataclass(kw_only=True, eq=False, repr=False)
class Parameters:
    """The parameters that all estimators share.

    None means the default of the preset. Other fields of `ModelConfig` and `TrainConfig` can be set through
    `model_settings` and `train_settings`.

    Args:
        members: Number of models whose predictions are mixed; 1 is the paper's model. Each is trained from another
            start and holds out other rows, on which the mixture is scored and corrected. "auto": an ensemble whose size
            follows from the number of rows and the time budget for the preset dspp, 1 for all others and for tables of
            fewer than 20 rows.
        layers: GP layers, including the top one.
        width: GPs per hidden layer; None: 5, or 20 for several outputs, which share them.
        inducing: Inducing points per GP; more are slower and finer. None: 64 to 160 for members of an ensemble, by the
            number of rows, and for a single DSPP on tables of up to 10,000 rows; otherwise the paper's 300.
        kernel: Kernel of every layer: matern52, matern32, matern12 or rbf.
        rule: Quadrature rule of the hidden layers: qr3, qr1, qr2, gauss-hermite, monte-carlo.
        sites: Sites of the quadrature rule; each makes a component of the mixture.
        likelihood: Distribution of the noise: gaussian, student-t (outliers) or log-normal (positive targets); None:
            the preset's own, gaussian for all presets of this package. "auto": an ensemble chooses between gaussian and
            log-normal if all targets are positive, by the density of rows held out from boosted trees; otherwise as
            None.
        outcome: What the target is: real, positive or one of your own; "auto": the one of the likelihood.
        topology: Inputs of the hidden layers after the first.
        features: Layer sizes of a neural network in front of the first layer, or your own module; None: no network.
        beta: Weight of the KL term; larger is smoother.
        epochs: Passes over the training rows; None: in an ensemble by the size of the table, otherwise 40, or more on
            small tables, for at least 1,000 steps.
        batch_size: Rows per step; None: 500, or in an ensemble by the size of the table.
        learning_rate: Initial learning rate of Adam; None: 0.05, or 0.1 for the members of an ensemble on a small
            table, which make few steps.
        restarts: Short runs from different starts, of which the best continues; None: 3, or 1 for each member of an
            ensemble.
        patience: For a single model: stop after this many epochs without a better validation NLL; None: 60 for a DSPP
            on tables of up to 10,000 rows unless `epochs` is given, and otherwise never.
        validation_fraction: For a single model: fraction of the rows held out for choosing the best epoch, if `fit`
            gets no validation rows; 0: none. Tables of fewer than 20 rows hold out no rows.
        conformal: Whether to recalibrate intervals on held-out rows, with a finite-sample guarantee. These are the rows
            that members of an ensemble held out (coverage at least 1 − 2α with folds, 1 − α with one part), or rows
            held out for a single model (at least 1 − α). See `calibration.Conformal`.
        calibration_fraction: For a single model: fraction of the rows held out for recalibration.
        missing: What predictions do with missing values in a column of a data frame that had none in training:
            "refuse" them, or "impute" the training median, an unknown category, or halfway between true and false. It
            does not affect training, in which columns may have missing values.
        time_budget: Time limit of `fit` in seconds; it trains fewer epochs if needed.
        memory: Limit of the memory that `fit` takes with all of its processes, such as "4GB", or in bytes. A table in
            files that needs more is sampled: rows or, with groups, whole groups are drawn at random. None: half of what
            is free, rounded to one digit.
        checkpoint: A file for the state of training, or a folder if there are several members, from which an
            interrupted `fit` resumes. It is kept after `fit`, so that the same `fit` can be repeated at once; delete it
            before fitting other rows or settings.
        model_settings: Further fields of `ModelConfig`.
        train_settings: Further fields of `TrainConfig`.
        random_state: The same seed gives identical results.
        jobs: Processes that train the members of an ensemble; None: one per core. The result does not depend on it.
        engine: Where members of an ensemble are trained: "local", in processes of this machine, or "ray"
            (`pip install 'dspp[ray]'`), on a Ray cluster, where `jobs` is the number of CPUs to use.
        address: Address of the Ray cluster, HOST:PORT or "auto"; None: start Ray on this machine.
        device: cpu or cuda.
        progress: Whether to show a progress bar, or lines of text where there is no terminal; None: only on a terminal.

    Example:
        >>> from dspp import DSPPRegressor
        >>> model = DSPPRegressor(members=1, layers=3, beta=0.2)  # every estimator takes these parameters
        >>> model.set_params(beta=0.5).get_params()["beta"]
        0.5
    """

    members: int | str = "auto"
    layers: int | None = None
    width: int | None = None
    inducing: int | None = None
    kernel: str | None = None
    rule: str | None = None
    sites: int | None = None
    likelihood: str | None = "auto"
    outcome: str = "auto"
    topology: str | None = None
    features: "Sequence[int] | nn.Module | None" = None
    beta: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    restarts: int | None = None
    patience: int | None = None
    validation_fraction: float = 0.1
    conformal: bool = False
    calibration_fraction: float = 0.1
    missing: str = "refuse"
    time_budget: float | None = None
    memory: float | str | None = None
    checkpoint: str | Path | None = None
    model_settings: Mapping[str, Any] | None = None
    train_settings: Mapping[str, Any] | None = None
    random_state: Any = 0
    jobs: int | None = None
    engine: str = "local"
    address: str | None = None
    device: str = "cpu"
    progress: bool | None = None


@dataclass(kw_only=True, eq=False, repr=False)
class Settings(Parameters):
    """Parameters of a preset, which are converted to settings of model and training; `random_state` is a seed."""

    preset: str = "dspp"

    @property
    def module(self) -> "nn.Module | None":
        """The user's feature module, if any."""
        return self.features if _is_module(self.features) else None

    @property
    def impute(self) -> bool:
        """Whether predictions fill in missing values.

        Raises:
            InputError: The parameter `missing` is not valid.
        """
        if self.missing not in MISSING:
            raise InputError(f"missing: expected {' or '.join(map(repr, MISSING))}, got {self.missing!r:.100}")
        return self.missing == "impute"

    def is_ensemble(self, num_rows: int) -> bool:
        """Return whether a table of this many rows is fitted by several members.

        Raises:
            InputError: The number of members is not valid.
        """
        if self.members == "auto":
            return self.preset == "dspp" and num_rows >= MIN_ROWS_TO_HOLD_OUT
        if not isinstance(self.members, Integral) or isinstance(self.members, bool) or self.members < 1:
            raise InputError(f"members: expected 'auto' or a number >= 1, got {self.members!r:.100}")
        if self.members > MAX_MEMBERS:
            raise InputError(f"members: expected at most {MAX_MEMBERS}, got {self.members}")
        needed = max(MIN_ROWS_TO_HOLD_OUT, 2 * self.members)
        if self.members > 1 and num_rows < needed:
            raise InputError(
                f"members: expected at least {needed} rows for {self.members} members, got {num_rows}; use members=1"
            )
        return self.members > 1

    @property
    def named_outcome(self) -> tuple[str, str, bool]:
        """The outcome, the likelihood, and whether the user named the latter; see `outcomes.find_outcome`."""
        named = self.likelihood not in ("auto", None) or "likelihood" in (self.model_settings or {})
        return self.outcome, self.spec().model.likelihood, named

    @property
    def chooses_outcome(self) -> bool:
        """Whether an ensemble is to choose the outcome that suits the targets."""
        named = self.likelihood != "auto" or "likelihood" in (self.model_settings or {})
        return self.outcome == "auto" and not named

    @property
    def max_processes(self) -> int:
        """The processes that train members of a table which is too large for memory, however many cores there are."""
        if self.members == "auto":
            return LARGE_MEMBERS if self.preset == "dspp" else 0
        return int(self.members) if self.is_ensemble(sys.maxsize) else 0

    def spec(self, num_outputs: int = 1) -> Spec:
        """Return the model and the objective for this number of outputs."""
        given = {name: getattr(self, name) for name in MODEL_SETTINGS if getattr(self, name) is not None}
        if self.likelihood == "auto":
            del given["likelihood"]
        if self.features is not None and self.module is None:
            if not isinstance(self.features, Iterable):
                raise InputError(
                    f"features: expected layer sizes such as (100, 50), or a module, got {self.features!r}"
                )
            given["features"] = tuple(self.features)
        given |= self.model_settings or {}
        spec = preset(self.preset, **given)
        own_width = "width" in given or spec.model.width != ModelConfig().width
        if num_outputs == 1 or spec.model.layers == 1 or own_width:
            return spec
        from dspp.quadrature import RULES

        if RULES[spec.model.rule].grid:  # S^W sites
            return spec
        return replace(spec, model=spec.model.change(width=SHARED_WIDTH))

    def train_config(self, num_rows: int) -> TrainConfig:
        """Return the training settings for this number of rows."""
        further = dict(self.train_settings or {})
        known = {field.name for field in fields(Parameters)}
        for name in further:
            parameter = "random_state" if name == "seed" else name
            if parameter in known:
                raise InputError(f"train_settings: expected further fields, got {name!r}; pass {parameter}=... instead")
        given = {name: getattr(self, name) for name in TRAIN_SETTINGS if getattr(self, name) is not None}
        config = TrainConfig().change(seed=self.random_state, **given, **further)
        if self.epochs is not None:
            return config.change(epochs=self.epochs)
        steps_per_epoch = math.ceil(num_rows / config.batch_size)
        return config.change(epochs=max(config.epochs, math.ceil(MIN_STEPS / steps_per_epoch)))

    def shares(self, num_rows: int, validation_given: bool) -> tuple[float, float]:
        """Return the fractions of validation and calibration rows.

        Raises:
            InputError: They leave no training rows, or there are too few rows for recalibration.
        """
        shares = {
            "validation_fraction": 0.0 if validation_given else self.validation_fraction,
            "calibration_fraction": self.calibration_fraction if self.conformal else 0.0,
        }
        for name, share in shares.items():
            check_number(name, share)
        for name, share in shares.items():
            if not 0 <= share < 1 or sum(shares.values()) >= 1:
                raise InputError(f"{name}: expected a fraction in [0, 1) that leaves training rows, got {share!r}")
        if num_rows < MIN_ROWS_TO_HOLD_OUT:
            if self.conformal:
                needed = f"at least {MIN_ROWS_TO_HOLD_OUT} rows"
                raise InputError(f"conformal=True: expected {needed}, got {num_rows}; use conformal=False")
            return 0.0, 0.0
        return shares["validation_fraction"], shares["calibration_fraction"]

    def params(self) -> dict[str, Any]:
        """Return the parameters as JSON values, without those of one run and without a module."""
        given = {field.name: getattr(self, field.name) for field in fields(Parameters)}
        return {name: _to_json(value) for name, value in given.items() if name not in RUN_ONLY}


def _to_json(value: Any) -> Any:
    """Return a parameter as a JSON value."""
    if _is_module(value):
        return None
    if isinstance(value, Mapping):
        return {name: _to_json(part) for name, part in value.items()}
    value = to_python(value)
    return [_to_json(part) for part in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def _is_module(value: object) -> "TypeGuard[nn.Module]":
    torch = sys.modules.get("torch")  # whoever passes a module has imported it
    return torch is not None and isinstance(value, torch.nn.Module)


@cache
def descriptions() -> dict[str, str]:
    """Return the first sentence on each parameter, for the help of options."""
    _, _, text = (inspect.getdoc(Parameters) or "").partition("Args:\n")
    found = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", text, re.MULTILINE)
    sentences = {name: re.split(r"(?<=\.) ", " ".join(words.split()))[0] for name, words in found}
    return {name: sentence.replace("None:", "default:").replace("`", "") for name, sentence in sentences.items()}


def check_number(name: str, value: object) -> None:
    """Raise `InputError` unless the value is a number."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise InputError(f"{name}: expected a number, got {value!r:.100}")

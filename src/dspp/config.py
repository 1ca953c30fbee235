"""Settings of models and training as frozen dataclasses, validated on creation."""

import dataclasses
import sys
import types
import typing
from dataclasses import dataclass
from typing import Any, Self

from dspp.errors import InputError

PAPER_SIZES = (1000, 1000, 500, 50, 20)  # of the layers of the network that nn+ stands for


@dataclass(frozen=True)
class _Config:
    """Base class of settings."""

    def change(self, **changes: Any) -> Self:
        """Return a copy with some fields changed.

        Raises:
            InputError: A name is unknown, or a value is not valid.
        """
        known = [f.name for f in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise InputError(f"{type(self).__name__}: unknown setting {name!r}; choose from: {', '.join(known)}")
        return dataclasses.replace(self, **changes)

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for f in dataclasses.fields(self):
            value = to_python(getattr(self, f.name))
            object.__setattr__(self, f.name, value)
            if not _fits(value, hints[f.name]):
                expected = getattr(hints[f.name], "__name__", str(hints[f.name]))
                finite = " (finite)" if expected == "float" else ""
                raise InputError(f"{type(self).__name__}.{f.name}: expected {expected}{finite}, got {value!r:.100}")
            low = f.metadata.get("at_least")
            if low is not None and value is not None and not value >= low:
                raise InputError(f"{type(self).__name__}.{f.name}: expected at least {low}, got {value!r}")
            choices = f.metadata.get("choices")
            if choices and value not in choices:
                names = ", ".join(map(str, choices))
                raise InputError(f"{type(self).__name__}.{f.name}: expected one of {names}, got {value!r}")


def to_python(value: Any) -> Any:
    """Return NumPy numbers and arrays, also in tuples, as Python numbers and tuples, and anything else unchanged."""
    if type(value).__module__ == "numpy":
        value = value.tolist()
        return tuple(value) if isinstance(value, list) else value
    return tuple(map(to_python, value)) if isinstance(value, tuple) else value


def _fits(value: object, hint: Any) -> bool:
    """Return whether `value` has the type `hint`: a class, a union, or a tuple of one type of items.

    Booleans are not numbers, and numbers must lie in the range of float64.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return any(_fits(value, part) for part in inner)
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(item, inner[0]) for item in value)
    if hint in (int, float):
        numbers = int | float if hint is float else int
        return isinstance(value, numbers) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return isinstance(value, hint)


def _at_least(default: Any, low: float) -> Any:
    return dataclasses.field(default=default, metadata={"at_least": low})


def _one_of(default: str, *choices: str) -> Any:
    return dataclasses.field(default=default, metadata={"choices": choices})


@dataclass(frozen=True)
class ModelConfig(_Config):
    """Settings of a model. The defaults are the paper's 2-layer DSPP.

    Example:
        >>> from dspp import ModelConfig
        >>> config = ModelConfig(layers=3, kernel="matern32").change(width=8)
        >>> config.width, config.rule, config.sites
        (8, 'qr3', 10)
    """

    layers: int = _at_least(2, 1)  # GP layers, including the top one
    width: int = _at_least(5, 1)  # W, GPs per hidden layer
    inducing: int = _at_least(300, 1)  # M, inducing points per GP
    mean_inducing: int = _at_least(0, 0)  # inducing points of a separate basis for the mean (OD-SVGP); 0: none
    covariance: str = _one_of("diagonal", "diagonal", "full")  # of q(u), in the whitened basis
    kernel: str = "matern52"  # of every layer
    hidden_mean: str = "linear"  # mean function of hidden layers
    top_mean: str = "constant"  # mean function of the top layer
    topology: str = "feedforward"  # inputs of the hidden layers after the first: see model.TOPOLOGIES
    rule: str = "qr3"  # quadrature rule of the hidden layers: see quadrature.RULES
    sites: int = _at_least(10, 1)  # S, sites (or training samples) of the rule
    test_sites: int = _at_least(32, 1)  # samples in prediction, for the rule monte-carlo
    likelihood: str = "gaussian"  # distribution of the targets given the top layer: see likelihoods.LIKELIHOODS
    features: tuple[int, ...] = ()  # layer sizes of a network in front; (): none
    lengthscale: float = _at_least(0.0, 0.0)  # initial value, in standard deviations of a layer's input; 0: ½ √D
    noise: float = _at_least(0.1, 0.0)  # initial variance of the observation noise, in standardised units
    noise_floor: float = _at_least(1e-4, 0.0)  # lower bound of the noise variance, in standardised units
    jitter: float = _at_least(1e-5, 0.0)  # nugget of every kernel, relative to its output scale
    dtype: str = _one_of("float32", "float32", "float64")  # Cholesky factors are always float64


@dataclass(frozen=True)
class ObjectiveConfig(_Config):
    """Settings of the training objective.

    Example:
        >>> from dspp import ObjectiveConfig
        >>> ObjectiveConfig("elbo", beta=1.0)
        ObjectiveConfig(name='elbo', beta=1.0, gamma=1.03)
    """

    name: str = "predictive"  # elbo, gamma-elbo, predictive, or a registered one
    beta: float = _at_least(0.05, 0.0)  # β_reg, the weight of the KL term
    gamma: float = _at_least(1.03, 1.0)  # γ of the gamma-elbo


@dataclass(frozen=True)
class TrainConfig(_Config):
    """Settings of training.

    Example:
        >>> from dspp import TrainConfig
        >>> TrainConfig(epochs=10, patience=3).change(seed=1).seed
        1
    """

    epochs: int = _at_least(40, 1)  # passes over the training rows
    batch_size: int = _at_least(500, 1)  # rows per step
    learning_rate: float = _at_least(0.05, 0.0)  # initial learning rate of Adam
    schedule: str = "cosine"  # of the learning rate: see training.schedules.SCHEDULES
    warmup: float = _at_least(0.02, 0.0)  # cosine: share of the steps over which the rate rises
    milestones: tuple[float, ...] = (0.5, 0.75, 0.9)  # step: shares of the steps at which the rate falls
    decay: float = _at_least(0.1, 0.0)  # step: by this factor
    weight_decay: float = _at_least(0.0, 0.0)  # on the parameters of the feature network only
    freeze_statistics: float = _at_least(1.0, 0.0)  # network: share of the steps that normalise by their own batch
    restarts: int = _at_least(3, 1)  # short runs from different starts, of which the best continues
    restart_epochs: int = _at_least(1, 1)  # epochs of each short run, if there are several
    patience: int | None = _at_least(None, 1)  # with validation rows: stop after this many epochs without a better NLL
    max_recoveries: int = _at_least(5, 0)  # recoveries from non-finite losses before TrainingDiverged
    seed: int = _at_least(0, 0)  # equal seeds give identical results
    device: str = "cpu"  # or cuda
    threads: int | None = _at_least(None, 1)  # of torch; None: unchanged

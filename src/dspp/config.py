"""Settings as frozen dataclasses: one commented field a line, checked when made, JSON both ways, no globals."""

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dspp.errors import InputError


@dataclass(frozen=True)
class _Config:
    """Changing, writing and reading settings."""

    def change(self, **changes: Any) -> Self:
        """A copy with some fields changed; a misspelt name is an error."""
        known = [f.name for f in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise InputError(f"{type(self).__name__} has no setting {name!r}; choose from: {', '.join(known)}")
        return dataclasses.replace(self, **changes)

    def to_json(self) -> str:
        """These settings as a JSON object."""
        return json.dumps(dataclasses.asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Settings from what `to_json` wrote; fields left out take their defaults."""
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"{cls.__name__}: not valid JSON ({error})") from None
        if not isinstance(values, dict):
            raise InputError(f"{cls.__name__}: got a JSON {type(values).__name__}, expected an object")
        return cls().change(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for f in dataclasses.fields(self):
            value = _without_numpy(getattr(self, f.name))
            object.__setattr__(self, f.name, value)
            if not fits(value, hints[f.name]):
                expected = getattr(hints[f.name], "__name__", str(hints[f.name]))
                finite = " (finite)" if expected == "float" else ""
                raise InputError(f"{type(self).__name__}.{f.name}: got {value!r:.100}, expected {expected}{finite}")
            low = f.metadata.get("at_least")
            if low is not None and value is not None and not value >= low:
                raise InputError(f"{type(self).__name__}.{f.name}: got {value!r}, expected at least {low}")
            choices = f.metadata.get("choices")
            if choices and value not in choices:
                names = ", ".join(map(str, choices))
                raise InputError(f"{type(self).__name__}.{f.name}: got {value!r}; choose one of: {names}")


def _without_numpy(value: Any) -> Any:
    """Numbers of NumPy, alone or in a tuple or an array, as those of Python; anything else as it is."""
    if isinstance(value, np.generic):
        return value.item()
    return tuple(map(_without_numpy, value)) if isinstance(value, tuple | np.ndarray) else value


def fits(value: object, hint: Any) -> bool:
    """Whether `value` is of the type `hint`, item by item; True is no number, and numbers lie in the range of float64.

    Hints are classes, unions, and tuples, lists and dictionaries of one type of item.
    """
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return any(fits(value, part) for part in inner)
    if origin is dict:
        return isinstance(value, dict) and all(fits(item, inner[1]) for item in value.values())
    if origin is not None:
        return isinstance(value, origin) and all(fits(item, inner[0]) for item in typing.cast(Iterable[Any], value))
    if hint in (int, float):
        numbers = int | float if hint is float else int
        return isinstance(value, numbers) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return hint is Any or isinstance(value, hint)


def _at_least(default: Any, low: float) -> Any:
    return dataclasses.field(default=default, metadata={"at_least": low})


def _one_of(default: str, *choices: str) -> Any:
    return dataclasses.field(default=default, metadata={"choices": choices})


@dataclass(frozen=True)
class ModelConfig(_Config):
    """What a model is. The defaults are the paper's 2-layer DSPP."""

    layers: int = _at_least(2, 1)  # GP layers, the top one included
    width: int = _at_least(5, 1)  # W, GPs in each hidden layer
    inducing: int = _at_least(300, 1)  # M, inducing points of each GP
    mean_inducing: int = _at_least(0, 0)  # points of a separate basis for the mean (OD-SVGP); 0: none
    covariance: str = _one_of("diagonal", "diagonal", "full")  # of q(u), in the whitened basis
    kernel: str = "matern52"  # of every layer
    hidden_mean: str = "linear"  # mean function of hidden layers
    top_mean: str = "constant"  # mean function of the top layer
    topology: str = "feedforward"  # what the hidden layers after the first read: see model.TOPOLOGIES
    rule: str = "qr3"  # how uncertainty crosses a hidden layer
    sites: int = _at_least(10, 1)  # S, sites (or training samples) of the rule
    test_sites: int = _at_least(32, 1)  # samples when predicting, for the rule monte-carlo
    likelihood: str = "gaussian"  # how targets scatter about the top layer: see likelihoods.LIKELIHOODS
    features: tuple[int, ...] = ()  # layer sizes of a network in front; (): none
    lengthscale: float = _at_least(0.0, 0.0)  # start, in standard deviations of a layer's input; 0: ½ √D
    noise: float = _at_least(0.1, 0.0)  # start of the observation noise variance, standardised units
    noise_floor: float = _at_least(1e-4, 0.0)  # the noise variance never goes below it, standardised units
    jitter: float = _at_least(1e-5, 0.0)  # nugget of every kernel, relative to its output scale
    dtype: str = _one_of("float32", "float32", "float64")  # Cholesky factors are float64 always


@dataclass(frozen=True)
class ObjectiveConfig(_Config):
    """What training maximises."""

    name: str = "predictive"  # elbo, gamma-elbo, predictive, or one of your own
    beta: float = _at_least(0.05, 0.0)  # β_reg, the weight of the KL term
    gamma: float = _at_least(1.03, 1.0)  # γ of the gamma-elbo


@dataclass(frozen=True)
class TrainConfig(_Config):
    """How a model is fitted."""

    epochs: int = _at_least(40, 1)  # passes over the training rows
    batch_size: int = _at_least(500, 1)  # rows a step
    learning_rate: float = _at_least(0.05, 0.0)  # of Adam, at the start
    schedule: str = "cosine"  # how the rate falls: see training.schedules.SCHEDULES
    warmup: float = _at_least(0.02, 0.0)  # cosine: share of the steps over which the rate rises
    milestones: tuple[float, ...] = (0.5, 0.75, 0.9)  # step: shares of the steps at which the rate falls
    decay: float = _at_least(0.1, 0.0)  # step: by this factor
    weight_decay: float = _at_least(0.0, 0.0)  # on the parameters of the feature network only
    restarts: int = _at_least(3, 1)  # short trials from different starts, of which the best is trained on
    restart_epochs: int = _at_least(1, 1)  # epochs of each trial, when there is more than one
    patience: int | None = _at_least(None, 1)  # with validation rows: stop after so many epochs without a better NLL
    max_recoveries: int = _at_least(5, 0)  # returns to the last good state before TrainingDiverged
    seed: int = _at_least(0, 0)  # same seed, same bits
    device: str = "cpu"  # or cuda
    threads: int | None = _at_least(None, 1)  # of torch; None: leave as it is

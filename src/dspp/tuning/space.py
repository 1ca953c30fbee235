"""What a search may choose: ranges and choices by name, and which of them mean something to which model."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import optuna

from dspp.batches import derive_seed
from dspp.config import ModelConfig, TrainConfig
from dspp.errors import InputError
from dspp.estimators import from_preset
from dspp.estimators.regressor import Regressor
from dspp.model import TOPOLOGIES
from dspp.presets import PRESETS, preset
from dspp.quadrature import RULES
from dspp.registry import extension_modules
from dspp.settings import Settings

OWN = ("random_state", "seed", "time_budget", "checkpoint", "progress")  # set by the search itself
FURTHER = ("model_settings", "train_settings")  # hold further settings by name
FIXED = ("validation_fraction", "calibration_fraction", "conformal", "likelihood", *FURTHER, "device")
HIDDEN_LAYER = ("width", "rule", "sites", "test_sites", "hidden_mean")  # mean nothing to a single layer
LARGEST_GRID = 1000  # settings; a finite space up to this size is tried without repetition


@dataclass(frozen=True)
class Range:
    """From low to high, both included; whole numbers if both are."""

    low: float
    high: float
    log: bool = False

    def values(self) -> Sequence[Any] | None:
        """All values, where there are few enough to write down."""
        if isinstance(self.low, int) and isinstance(self.high, int) and self.high - self.low < LARGEST_GRID:
            return range(self.low, self.high + 1)
        return None

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        """Let the sampler choose."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def stored(self, value: Any) -> Any:
        """What a study keeps of a value."""
        return value

    read = stored


@dataclass(frozen=True)
class Choices:
    """One of several values."""

    options: tuple[Any, ...]

    def values(self) -> Sequence[Any]:
        """All of them."""
        return self.options

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        """Let the sampler choose."""
        return self.read(trial.suggest_categorical(name, [self.stored(option) for option in self.options]))

    def stored(self, value: Any) -> Any:
        """What a study keeps of a value: itself, or its text where JSON would not give it back."""
        return value if value is None or isinstance(value, bool | int | float | str) else repr(value)

    def read(self, stored: Any) -> Any:
        """The value of which a study has kept `stored`."""
        return next(option for option in self.options if self.stored(option) == stored)


Dimension = Range | Choices
DEFAULT: dict[str, Dimension] = {
    "layers": Choices((2, 3)),
    "width": Range(2, 20),
    "topology": Choices(tuple(TOPOLOGIES)),
    "beta": Range(0.01, 1.0, log=True),
}
GRID_WIDTH = Range(2, 5)  # instead, for a rule with S^W sites


class Space:
    """The settings that a search may try.

    Args:
        models: names of presets.
        given: for each parameter its choices or its range; None: those of the paper.
        base: parameters that stay as they are.

    Raises:
        InputError: a name or a range cannot be used.
    """

    def __init__(self, models: Sequence[str], given: Mapping[str, Any] | None, base: Mapping[str, Any]) -> None:
        _check_names(base, OWN, "base")
        self.modules = extension_modules()  # which hold the user's own parts, for workers
        self.base = {name: value for name, value in base.items() if value is not None}  # None: not given
        self._fixed = dict(self.base)  # by the names of the settings themselves
        for where in FURTHER:
            self._fixed |= self.base.get(where, {})
        self._is_default = given is None
        _check_names(given or {}, (*OWN, *FIXED), "space")
        for name in (given or {}).keys() & self._fixed.keys():
            raise InputError(f"{name!r} is both in space and in base; search it or fix it")
        dimensions = DEFAULT if given is None else {name: _dimension(name, values) for name, values in given.items()}
        if given is None and "rule" in self._fixed and RULES[self._fixed["rule"]].grid:
            dimensions = {**DEFAULT, "width": GRID_WIDTH}
        self.models = _known_models(models)
        ordered: dict[str, Dimension] = {"model": Choices(self.models)}
        ordered |= {name: dimensions[name] for name in sorted(dimensions, key=lambda name: name != "layers")}
        self.dimensions = {name: dimension for name, dimension in ordered.items() if name not in self._fixed}
        likelihoods = {self._fixed.get("likelihood") or preset(name).model.likelihood for name in self.models}
        if len(likelihoods) > 1:  # each has its own way to encode targets, which are encoded once for all trials
            names = ", ".join(sorted(likelihoods))
            raise InputError(f"models: got the likelihoods {names}, expected one; set 'likelihood' in base")

    def choose(self, choose: Callable[[str, Dimension], Any]) -> dict[str, Any]:
        """One setting: what `choose` says for each parameter that applies, given those before it.

        The model comes first and its layers next: the others depend on them.
        """
        chosen: dict[str, Any] = {}
        for name, dimension in self.dimensions.items():
            if self._applies(name, chosen):
                chosen[name] = choose(name, dimension)
        return chosen

    def suggest(self, trial: optuna.Trial) -> dict[str, Any]:
        """The setting that the sampler chooses."""
        return self.choose(lambda name, dimension: dimension.suggest(trial, name))

    def read(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """The setting of which a study has kept `stored`."""
        return {name: self.dimensions[name].read(value) for name, value in stored.items()}

    def start(self, num_outputs: int) -> dict[str, Any]:
        """The setting to begin with, as a study keeps it: the first model as it comes, in the default space."""
        if not self._is_default:
            return {}
        spec = self.estimator({"model": self.models[0]}).spec(num_outputs)
        own = {"model": spec.name, "beta": spec.objective.beta}
        return self.choose(lambda name, _: own.get(name) or getattr(spec.model, name))

    def grid(self, seed: int) -> list[dict[str, Any]] | None:
        """Every setting, as a study keeps it, in an order of the seed's; None if there are too many."""
        values = {name: dimension.values() for name, dimension in self.dimensions.items()}
        finite = [v for v in values.values() if v is not None]
        if len(finite) < len(values) or math.prod(map(len, finite)) > LARGEST_GRID:
            return None
        settings: list[dict[str, Any]] = []
        for combination in itertools.product(*finite):
            setting = self._stored(dict(zip(values, combination, strict=True)))
            if setting not in settings:  # those that differ in what does not apply are the same
                settings.append(setting)
        return [settings[i] for i in np.random.default_rng(derive_seed(seed)).permutation(len(settings))]

    def _stored(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The setting that has these values where they apply, as a study keeps it."""
        return self.choose(lambda name, dimension: dimension.stored(values[name]))

    def estimator(self, params: Mapping[str, Any], **more: Any) -> Regressor:
        """The estimator of a setting, not fitted."""
        given = {name: value for name, value in self.base.items() if self._applies(name, params)}
        given |= {name: value for name, value in params.items() if name != "model"}
        routed: dict[str, dict[str, Any]] = {where: dict(given.pop(where, {})) for where in FURTHER}
        own = Regressor._get_param_names()
        for name in [name for name in given if name not in own]:
            routed["model_settings" if name in _model_settings() else "train_settings"][name] = given.pop(name)
        given |= {where: settings for where, settings in routed.items() if settings}
        return from_preset(params["model"], **given, **more)

    def settings(self, params: Mapping[str, Any], seed: int, time_budget: float | None = None) -> Settings:
        """What a setting means."""
        return self.estimator(params, time_budget=time_budget, progress=False, random_state=seed).settings()

    def _applies(self, name: str, chosen: Mapping[str, Any]) -> bool:
        """Whether a parameter means something to the model chosen."""
        if name == "model":
            return True
        spec = preset(chosen["model"])
        deep = spec.model.layers > 1
        if name == "layers":
            return deep
        if name == "gamma":
            return spec.objective.name == "gamma-elbo"
        layers = chosen.get("layers") or self._fixed.get("layers") or spec.model.layers
        needed = 3 if name == "topology" else 2 if name in HIDDEN_LAYER else 1
        return needed == 1 or (deep and layers >= needed)


def _model_settings() -> set[str]:
    return {f.name for f in fields(ModelConfig)} | {"gamma"}


def _known_models(models: Sequence[str]) -> tuple[str, ...]:
    names = tuple(dict.fromkeys([models] if isinstance(models, str) else models))
    for name in names:
        if name not in PRESETS:
            raise InputError(f"models: got {name!r}; choose from: {', '.join(PRESETS)}")
    if not names:
        raise InputError(f"models: got none; choose from: {', '.join(PRESETS)}")
    return names


def _check_names(names: Mapping[str, Any], excluded: Sequence[str], where: str) -> None:
    known = {*Regressor._get_param_names(), *_model_settings(), *(f.name for f in fields(TrainConfig))}
    for name in names:
        if name == "model":
            raise InputError(f"{where}: models are chosen by models=[...], not by {name!r}")
        if name not in known - set(excluded):
            listed = ", ".join(sorted(known - set(excluded)))
            what = "is not for it to set" if name in excluded else "is no parameter"
            raise InputError(f"{where}: {name!r} {what}; choose from: {listed}")


def _dimension(name: str, values: Any) -> Dimension:
    """A tuple of two numbers, or of two numbers and "log", is a range; anything else in a sequence is a choice."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise InputError(
            f"space: {name} is {values!r}, expected a list of choices, (low, high) or (low, high, 'log'); a value that "
            "stays as it is belongs in base"
        )
    plain = [v.item() if isinstance(v, np.generic) else v for v in values]
    if not isinstance(values, tuple) or not _is_range(plain):
        return Choices(tuple(plain))
    low, high, *log = plain
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or (log and low <= 0):
        raise InputError(f"space: {name} is {values!r}, expected low < high, and 0 < low with 'log'")
    return Range(low, high, bool(log))


def _is_range(values: Sequence[Any]) -> bool:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return len(numbers) == 2 and list(values) in ([*numbers], [*numbers, "log"])

"""The search space: ranges and choices by name, and which of them apply to which model."""

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
from dspp.estimators import ESTIMATORS, from_preset
from dspp.estimators.regressor import Regressor, to_seed
from dspp.model import TOPOLOGIES
from dspp.presets import PRESETS, preset
from dspp.quadrature import RULES
from dspp.registry import extension_modules
from dspp.settings import Settings

OWN = ("seed", "time_budget", "checkpoint")  # set by the search
WHERE: dict[str, Any] = {"engine": "local", "jobs": 1, "address": None}  # trials run, unless `base` says otherwise
WHOLE = ("random_state", "progress", *WHERE)  # of the whole search
FURTHER = ("model_settings", "train_settings")  # contain further settings by name
FIXED = (
    *("validation_fraction", "calibration_fraction", "conformal", "likelihood", "outcome", "device"),
    *FURTHER,
    *WHOLE,
)
HIDDEN_LAYER = ("width", "rule", "sites", "test_sites", "hidden_mean")  # do not apply to a single layer
MAX_GRID = 1000  # a finite space up to this size is tried without repetition


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, inclusive; integers if both are."""

    low: float
    high: float
    log: bool = False

    def values(self) -> Sequence[Any] | None:
        """Return all values, or None if there are too many."""
        if isinstance(self.low, int) and isinstance(self.high, int) and self.high - self.low < MAX_GRID:
            return range(self.low, self.high + 1)
        return None

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        """Return a value suggested by Optuna's sampler."""
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)

    def encode(self, value: Any) -> Any:
        """Return the value as stored in a study."""
        return value

    decode = encode


@dataclass(frozen=True)
class Choices:
    """One of several values."""

    options: tuple[Any, ...]

    def values(self) -> Sequence[Any]:
        """Return all values."""
        return self.options

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        """Return a value suggested by Optuna's sampler."""
        return self.decode(trial.suggest_categorical(name, [self.encode(option) for option in self.options]))

    def encode(self, value: Any) -> Any:
        """Return the value as stored in a study: its repr if JSON cannot represent it."""
        return value if value is None or isinstance(value, bool | int | float | str) else repr(value)

    def decode(self, stored: Any) -> Any:
        """Return the value for what is stored in a study."""
        return next(option for option in self.options if self.encode(option) == stored)


Dimension = Range | Choices
DEFAULT: dict[str, Dimension] = {
    "layers": Choices((2, 3)),
    "width": Range(2, 20),
    "topology": Choices(tuple(TOPOLOGIES)),
    "beta": Range(0.01, 1.0, log=True),
}
GRID_WIDTH = Range(2, 5)  # for rules with S^W sites


class Space:
    """The space of settings to search.

    Args:
        models: Names of presets.
        given: The choices or the range of each parameter; None: those of the paper.
        base: Fixed parameters.

    Raises:
        InputError: A name or a range is not valid.
    """

    def __init__(self, models: Sequence[str], given: Mapping[str, Any] | None, base: Mapping[str, Any]) -> None:
        _check_names(base, OWN, "base")
        self.modules = extension_modules()  # with the user's own parts, for workers
        self.seed = to_seed(base.get("random_state", 0))
        self.progress = base.get("progress")
        self.where = {name: base.get(name, usual) for name, usual in WHERE.items()}
        self.base = {name: value for name, value in base.items() if value is not None and name not in WHOLE}
        self._fixed = dict(self.base)  # including the contents of FURTHER
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
        fixed = None if self._fixed.get("likelihood") == "auto" else self._fixed.get("likelihood")
        likelihoods = {fixed or preset(name).model.likelihood for name in self.models}
        if len(likelihoods) > 1:  # targets are encoded once for all trials
            names = ", ".join(sorted(likelihoods))
            raise InputError(f"models: expected models with the same likelihood, got {names}; set 'likelihood' in base")

    @property
    def identity(self) -> dict[str, str]:
        """What identifies a search in this space, by names for the error message."""
        return {
            "space or list of models": repr(self.dimensions),
            "base": repr(sorted(self.base.items(), key=lambda item: item[0])),
            "seed": repr(self.seed),
        }

    def choose(self, choose: Callable[[str, Dimension], Any]) -> dict[str, Any]:
        """Return a setting: the result of `choose` for each parameter that applies.

        The model comes first and its layers next, as the others depend on them.
        """
        chosen: dict[str, Any] = {}
        for name, dimension in self.dimensions.items():
            if self._applies(name, chosen):
                chosen[name] = choose(name, dimension)
        return chosen

    def suggest(self, trial: optuna.Trial) -> dict[str, Any]:
        """Return the setting that Optuna's sampler suggests."""
        return self.choose(lambda name, dimension: dimension.suggest(trial, name))

    def decode(self, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the setting for what is stored in a study."""
        return {name: self.dimensions[name].decode(value) for name, value in stored.items()}

    def start(self, num_outputs: int) -> dict[str, Any]:
        """Return the first setting to try in the default space, the defaults of the first model; else an empty dict."""
        if not self._is_default:
            return {}
        spec = self.estimator({"model": self.models[0]}).spec(num_outputs)
        own = {"model": spec.name, "beta": spec.objective.beta}
        return self.choose(lambda name, _: own.get(name) or getattr(spec.model, name))

    def grid(self) -> list[dict[str, Any]] | None:
        """Return all settings, as stored in a study, in random order; None if there are too many."""
        values = {name: dimension.values() for name, dimension in self.dimensions.items()}
        finite = [v for v in values.values() if v is not None]
        if len(finite) < len(values) or math.prod(map(len, finite)) > MAX_GRID:
            return None
        settings: list[dict[str, Any]] = []
        for combination in itertools.product(*finite):
            chosen = dict(zip(values, combination, strict=True))
            setting = self.choose(lambda name, dimension: dimension.encode(chosen[name]))  # noqa: B023 - called at once
            if setting not in settings:  # settings that differ only in parameters that do not apply are equal
                settings.append(setting)
        return [settings[i] for i in np.random.default_rng(derive_seed(self.seed)).permutation(len(settings))]

    def estimator(self, params: Mapping[str, Any], **more: Any) -> Regressor:
        """Return the unfitted estimator for a setting."""
        given = {name: value for name, value in self.base.items() if self._applies(name, params)}
        given |= {name: value for name, value in params.items() if name != "model"}
        routed: dict[str, dict[str, Any]] = {where: dict(given.pop(where, {})) for where in FURTHER}
        own = Regressor._get_param_names()
        for name in [name for name in given if name not in own]:
            routed["model_settings" if name in _model_settings() else "train_settings"][name] = given.pop(name)
        given |= {where: settings for where, settings in routed.items() if settings}
        return from_preset(params["model"], **{"members": 1, **given}, random_state=self.seed, **more)

    def settings(self, params: Mapping[str, Any], time_budget: float | None = None) -> Settings:
        """Return the `Settings` for a setting."""
        return self.estimator(params, time_budget=time_budget, progress=False).settings()

    def _applies(self, name: str, chosen: Mapping[str, Any]) -> bool:
        """Return whether a parameter applies to the chosen model."""
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
    known = ", ".join(dict.fromkeys([*ESTIMATORS, *PRESETS]))
    for name in names:
        if name not in PRESETS:
            raise InputError(f"models: unknown model {name!r}; choose from: {known}")
    if not names:
        raise InputError(f"models: expected at least one model, got none; choose from: {known}")
    return names


def _check_names(names: Mapping[str, Any], excluded: Sequence[str], where: str) -> None:
    known = {*Regressor._get_param_names(), *_model_settings(), *(f.name for f in fields(TrainConfig))}
    for name in names:
        if name == "model":
            raise InputError(f"{where}: got {name!r}; pass models=[...] instead")
        if name not in known - set(excluded):
            names_text = ", ".join(sorted(known - set(excluded)))
            what = "cannot be set here" if name in excluded else "is not a parameter"
            raise InputError(f"{where}: {name!r} {what}; choose from: {names_text}")


def _dimension(name: str, values: Any) -> Dimension:
    """Return a range for (low, high) or (low, high, "log"), and choices for any other sequence."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise InputError(
            f"space: {name}: expected a list of choices, (low, high) or (low, high, 'log'), got {values!r}; put fixed "
            "values in base"
        )
    plain = [v.item() if isinstance(v, np.generic) else v for v in values]
    if not isinstance(values, tuple) or not _is_range(plain):
        return Choices(tuple(plain))
    low, high, *log = plain
    if not (math.isfinite(low) and math.isfinite(high) and low < high) or (log and low <= 0):
        raise InputError(f"space: {name}: expected low < high, and 0 < low with 'log', got {values!r}")
    return Range(low, high, bool(log))


def _is_range(values: Sequence[Any]) -> bool:
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return len(numbers) == 2 and list(values) in ([*numbers], [*numbers, "log"])

"""The header: what of a `Fitted` is text, as JSON, and its fields read back with nothing taken on trust."""

import dataclasses
import json
import math
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from dspp.config import ModelConfig, ObjectiveConfig, TrainConfig
from dspp.data.encoding import TableEncoder
from dspp.errors import InputError
from dspp.fitted import Fitted
from dspp.presets import Spec
from dspp.training.state import Epoch
from dspp.upgrade import with_likelihood_setting

FORMAT, VERSION = "dspp-model", 2

Config = TypeVar("Config", ModelConfig, ObjectiveConfig, TrainConfig)


def write_header(fitted: Fitted, own_features: bool) -> dict[str, Any]:
    """Everything that is not a tensor."""
    spec = fitted.spec
    return {
        "format": FORMAT,
        "version": VERSION,
        "spec": {"name": spec.name, "model": _plain(spec.model), "objective": _plain(spec.objective)},
        "train": _plain(fitted.train),
        "num_inputs": fitted.num_inputs,
        "num_outputs": fitted.num_outputs,
        "num_rows": fitted.num_rows,
        "features": "custom" if own_features else "config",
        "encoder": None if fitted.encoder is None else fitted.encoder.to_json(),
        "feature_names": fitted.feature_names,
        "target_names": fitted.target_names,
        "history": [_finite_or_none(dataclasses.asdict(epoch)) for epoch in fitted.history],
        "best_epoch": fitted.best_epoch,
        "metrics": _finite_or_none({name: float(value) for name, value in fitted.metrics.items()}),
        "notes": fitted.notes,
        "model_notes": fitted.model.notes,
        "jitter_climbs": [layer.climbs for layer in fitted.model.gp_layers],
        "seconds": fitted.seconds,
        "versions": fitted.versions,
    }


def _plain(config: ModelConfig | ObjectiveConfig | TrainConfig) -> Any:
    return json.loads(config.to_json())


def _finite_or_none(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no NaN and no inf."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


def or_nan(value: float | None) -> float:
    """The way back; which of NaN and inf it was is lost."""
    return math.nan if value is None else float(value)


def get(values: Mapping[str, Any], name: str, hint: Any) -> Any:
    """A field that has to be there, of the type `hint`."""
    if name not in values:
        raise InputError(f"{name} is missing from the header")
    if not _fits(values[name], hint):
        raise InputError(f"{name}: got {str(values[name])[:50]!r}, expected {hint}")
    return values[name]


def _fits(value: object, hint: Any) -> bool:
    """Whether what JSON gave is of the type `hint`; numbers must be finite."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:
        return any(_fits(value, part) for part in inner)
    if origin is list:
        return isinstance(value, list) and all(_fits(item, inner[0]) for item in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(item, inner[1]) for item in value.values())
    if hint is float:
        return type(value) in (int, float) and math.isfinite(typing.cast(float, value))
    return hint is Any or type(value) is hint


def one_of(value: Any, allowed: Sequence[Any]) -> Any:
    """The value, if it is allowed."""
    if value not in allowed:
        raise InputError(f"got {str(value)[:50]!r}, expected one of {str(allowed)[:100]}")
    return value


def read_names(header: Mapping[str, Any], field: str, count: int) -> tuple[str, ...] | None:
    """As many names as there are columns; targets always have some."""
    names = get(header, field, list[str] if field == "target_names" else list[str] | None)
    if names is not None and len(names) != count:
        raise InputError(f"{field}: got {len(names)}, expected {count}")
    return None if names is None else tuple(names)


def read_encoder(values: dict[str, Any] | None, num_inputs: int) -> TableEncoder | None:
    """The encoder, which must make the columns that the model takes."""
    encoder = None if values is None else TableEncoder.from_json(values)
    if encoder is not None and len(encoder.feature_names) != num_inputs:
        raise InputError(f"encoder: it makes {len(encoder.feature_names)} columns, but the model takes {num_inputs}")
    return encoder


def read_spec(values: dict[str, Any], version: int) -> Spec:
    """The model's and the objective's settings."""
    model, objective = (get(values, name, dict[str, Any]) for name in ("model", "objective"))
    if version == 1:
        one_of(model.get("head", "auto"), ("auto", "single", "lmc"))
        model = with_likelihood_setting(model)
    return Spec(get(values, "name", str), read_config(ModelConfig, model), read_config(ObjectiveConfig, objective))


def read_config(kind: type[Config], values: dict[str, Any]) -> Config:
    """Settings through their own checks, and finite."""
    config = kind.from_json(json.dumps(values))
    for name, value in dataclasses.asdict(config).items():
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not abs(number) <= sys.float_info.max:
                raise InputError(f"{kind.__name__}.{name}: got {str(number)[:30]}, expected a finite number")
    return config


def read_epoch(values: dict[str, Any]) -> Epoch:
    """What one epoch left behind; null stands for NaN where there has to be a number."""
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(Epoch).items():
        value = get(values, name, float | None if hint is float else hint)
        found[name] = or_nan(value) if hint is float else value
    return Epoch(**found)

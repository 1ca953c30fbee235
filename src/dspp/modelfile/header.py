"""The header: what of a `Fitted` is text, as JSON, and its fields read back with nothing taken on trust."""

import dataclasses
import json
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from dspp.config import ModelConfig, ObjectiveConfig, TrainConfig, fits
from dspp.encoding.encoder import TableEncoder
from dspp.errors import InputError
from dspp.fitted import Fitted, Member
from dspp.history import Epoch
from dspp.notes import notes_to_json
from dspp.presets import Spec
from dspp.storage import to_plain

FORMAT, VERSION = "dspp-model", 2

Config = TypeVar("Config", ModelConfig, ObjectiveConfig, TrainConfig)


def write_header(fitted: Fitted, own_features: Sequence[bool]) -> dict[str, Any]:
    """Everything that is not a tensor; `own_features` says which members have a features module of the user's."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "members": [_write_member(*pair) for pair in zip(fitted.members, own_features, strict=True)],
        "weights": fitted.weights,
        "num_inputs": fitted.num_inputs,
        "num_outputs": fitted.num_outputs,
        "num_rows": fitted.num_rows,
        "encoder": None if fitted.encoder is None else fitted.encoder.to_json(),
        "feature_names": fitted.feature_names,
        "target_names": fitted.target_names,
        "metrics": to_plain({name: float(value) for name, value in fitted.metrics.items()}, non_finite=_null),
        "notes": notes_to_json(fitted.notes),
        **({} if fitted.params is None else {"params": fitted.params}),
        "versions": fitted.versions,
    }


def _write_member(member: Member, own_features: bool) -> dict[str, Any]:
    spec = member.spec
    return {
        "spec": {
            "name": spec.name,
            "model": dataclasses.asdict(spec.model),
            "objective": dataclasses.asdict(spec.objective),
        },
        "train": dataclasses.asdict(member.train),
        "features": "custom" if own_features else "config",
        "history": to_plain([dataclasses.asdict(epoch) for epoch in member.history], non_finite=_null),
        "best_epoch": member.best_epoch,
        "model_notes": member.model.notes,
        "jitter_climbs": [layer.climbs for layer in member.model.gp_layers],
        "seconds": member.seconds,
    }


def _null(number: float) -> None:
    """What the header has for NaN and infinity."""


def or_nan(value: float | None) -> float:
    """The way back; which of NaN and inf it was is lost."""
    return math.nan if value is None else float(value)


def get(values: Mapping[str, Any], name: str, hint: Any) -> Any:
    """A field that has to be there, of the type `hint`."""
    if name not in values:
        raise InputError(f"{name} is missing from the header")
    if not fits(values[name], hint):
        raise InputError(f"{name}: got {str(values[name])[:50]!r}, expected {hint}")
    return values[name]


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


def read_spec(values: dict[str, Any]) -> Spec:
    """The model's and the objective's settings."""
    model, objective = (get(values, name, dict[str, Any]) for name in ("model", "objective"))
    return Spec(get(values, "name", str), read_config(ModelConfig, model), read_config(ObjectiveConfig, objective))


def read_config(kind: type[Config], values: dict[str, Any]) -> Config:
    """Settings through their own checks."""
    return kind.from_json(json.dumps(values))


def read_epoch(values: dict[str, Any]) -> Epoch:
    """What one epoch left behind; null stands for NaN where there has to be a number."""
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(Epoch).items():
        value = get(values, name, float | None if hint is float else hint)
        found[name] = or_nan(value) if hint is float else value
    return Epoch(**found)

"""The JSON header: all fields of a `Fitted` that are not tensors, validated when read."""

import dataclasses
import json
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from dspp.config import ModelConfig, ObjectiveConfig, TrainConfig, fits
from dspp.encoding.encoder import TableEncoder
from dspp.errors import InputError
from dspp.fitted import Fitted
from dspp.history import Epoch
from dspp.members import Member
from dspp.modelfile.ranges import check_range
from dspp.notes import notes_to_json
from dspp.presets import Spec
from dspp.storage import to_plain

FORMAT, VERSION = "dspp-model", 4

Config = TypeVar("Config", ModelConfig, ObjectiveConfig, TrainConfig)


def write_header(fitted: Fitted, own_features: Sequence[bool]) -> dict[str, Any]:
    """Return everything that is not a tensor; `own_features` marks members with a custom features module."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "members": [_write_member(*pair) for pair in zip(fitted.members, own_features, strict=True)],
        "weights": fitted.weights,
        "spread": fitted.spread,
        "judged": fitted.judged,
        "guard": None if fitted.guard is None else fitted.guard.weight,
        "trees": fitted.trees is not None,
        "scored": fitted.scored,
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
        "kind": member.kind,
        "fold": member.fold,
    }


def _null(number: float) -> None:
    """Write NaN and infinity as null."""


def or_nan(value: float | None) -> float:
    """Read null as NaN, whether it was NaN or infinity."""
    return math.nan if value is None else float(value)


def get(values: Mapping[str, Any], name: str, hint: Any) -> Any:
    """Return a required field of type `hint`."""
    if name not in values:
        raise InputError(f"{name} is missing from the header")
    if not fits(values[name], hint):
        raise InputError(f"{name}: expected {hint}, got {str(values[name])[:50]!r}")
    return values[name]


def read_number(values: Mapping[str, Any], name: str) -> float:
    """Return a required number, which must lie in its range."""
    value = float(get(values, name, float))
    check_range(name, value, value)
    return value


def one_of(value: Any, allowed: Sequence[Any]) -> Any:
    """Return the value if it is allowed."""
    if value not in allowed:
        raise InputError(f"expected one of {str(allowed)[:100]}, got {str(value)[:50]!r}")
    return value


def read_names(header: Mapping[str, Any], field: str, count: int) -> tuple[str, ...] | None:
    """Return one name per column, or None if there are none; targets always have names."""
    names = get(header, field, list[str] if field == "target_names" else list[str] | None)
    if names is not None and len(names) != count:
        raise InputError(f"{field}: expected {count}, got {len(names)}")
    return None if names is None else tuple(names)


def read_encoder(values: dict[str, Any] | None, num_inputs: int) -> TableEncoder | None:
    """Return the encoder, which must produce the columns that the model takes."""
    encoder = None if values is None else TableEncoder.from_json(values)
    if encoder is not None and len(encoder.feature_names) != num_inputs:
        raise InputError(f"encoder: expected {num_inputs} columns, as in the model, got {len(encoder.feature_names)}")
    return encoder


def read_spec(values: dict[str, Any]) -> Spec:
    """Return the settings of the model and the objective."""
    model, objective = (get(values, name, dict[str, Any]) for name in ("model", "objective"))
    return Spec(get(values, "name", str), read_config(ModelConfig, model), read_config(ObjectiveConfig, objective))


def read_config(kind: type[Config], values: dict[str, Any]) -> Config:
    """Return validated settings."""
    return kind.from_json(json.dumps(values))


def read_epoch(values: dict[str, Any]) -> Epoch:
    """Return the results of one epoch; null is read as NaN where a number is required."""
    found: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(Epoch).items():
        value = get(values, name, float | None if hint is float else hint)
        found[name] = or_nan(value) if hint is float else value
    return Epoch(**found)

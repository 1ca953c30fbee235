"""Conversion of dataclasses to tensors and JSON and back, driven by type hints: a new field needs only its line.

A field is a number, text, None, another dataclass, a tuple of these, a dict of numbers (written as pairs), or a dict of
tensors, possibly nested, which needs a default in case it is empty. Tensors get dotted names, such as
`current.weights.layers.0.mean`; all else is JSON.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from torch import Tensor

from dspp.storage import to_plain

T = TypeVar("T")


def pack(value: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a dataclass by dotted name, and its other fields as JSON values."""
    tensors: dict[str, Tensor] = {}
    return tensors, _pack_fields(value, "", tensors)


def unpack(kind: type[T], tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> T:
    """Return the dataclass of type `kind` that `pack` converted; a missing field gets its default.

    Raises:
        TypeError, ValueError, KeyError: the values are of another type.
    """
    return _unpack_fields(kind, "", tensors, plain)


def _pack_fields(value: Any, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    plain = {}
    for name, hint in typing.get_type_hints(type(value)).items():
        part = getattr(value, name)
        if _holds_tensors(hint):
            tensors |= _flatten(part or {}, f"{prefix}{name}.")
        else:
            plain[name] = _pack(part, f"{prefix}{name}.", tensors)
    return plain


def _pack(value: Any, prefix: str, tensors: dict[str, Tensor]) -> Any:
    if dataclasses.is_dataclass(value):
        return _pack_fields(value, prefix, tensors)
    if isinstance(value, dict):
        return to_plain(list(value.items()))
    if isinstance(value, tuple):
        return [_pack(part, f"{prefix}{number}.", tensors) for number, part in enumerate(value)]
    return to_plain(value)


def _unpack_fields(kind: type[T], prefix: str, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> T:
    hints, found = typing.get_type_hints(kind), {}
    if not plain.keys() <= hints.keys():
        raise TypeError(f"{kind.__name__} has no field {sorted(plain.keys() - hints.keys())[0]}")
    for name, hint in hints.items():
        if _holds_tensors(hint):
            under = _under(tensors, f"{prefix}{name}.")
            if under:
                found[name] = _nest(hint, under)
        elif name in plain:
            found[name] = _unpack(hint, f"{prefix}{name}.", tensors, plain[name])
    return kind(**found)


def _unpack(hint: Any, prefix: str, tensors: Mapping[str, Tensor], plain: Any) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType:  # X | None
        return None if plain is None else _unpack(inner[0], prefix, tensors, plain)
    if origin is tuple:
        return tuple(_unpack(inner[0], f"{prefix}{n}.", tensors, part) for n, part in enumerate(plain))
    if origin is dict:
        return {inner[0](key): inner[1](part) for key, part in plain}
    if dataclasses.is_dataclass(hint):
        return _unpack_fields(typing.cast(type[Any], hint), prefix, tensors, plain)
    if hint is float:  # also parses the text for NaN and infinity
        return float(plain)
    if type(plain) is not hint:
        raise TypeError(f"{prefix}: expected {hint.__name__}, got {plain!r:.50}")
    return plain


# ---------------------------------------------------------------- dicts of tensors


def _holds_tensors(hint: Any) -> bool:
    """Return whether a field is a dict of tensors, possibly nested, or None."""
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is types.UnionType:
        return _holds_tensors(inner[0])
    return typing.get_origin(hint) is dict and (inner[1] is Tensor or _holds_tensors(inner[1]))


def _flatten(values: Mapping[Any, Any], prefix: str) -> dict[str, Tensor]:
    flat: dict[str, Tensor] = {}
    for key, value in values.items():
        flat |= {f"{prefix}{key}": value} if isinstance(value, Tensor) else _flatten(value, f"{prefix}{key}.")
    return flat


def _nest(hint: Any, flat: Mapping[str, Tensor]) -> dict[Any, Any]:
    """Invert `_flatten`; only keys of the innermost dicts may contain dots."""
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is types.UnionType:
        return _nest(inner[0], flat)
    if inner[1] is Tensor:
        return dict(flat)
    keys = dict.fromkeys(name.partition(".")[0] for name in flat)
    return {inner[0](key): _nest(inner[1], _under(flat, f"{key}.")) for key in keys}


def _under(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}

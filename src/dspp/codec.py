"""Dataclasses as plain JSON values and tensors, and back, by the type hints of their fields.

A type becomes storable by being a dataclass whose fields have hints of these kinds; nothing else needs to be written:

- `int`, `float`, `bool`, `str`; `dict[str, X]` and `Any` of plain JSON values; `tuple[X, ...]` of anything storable;
  other storable dataclasses; and any of these `| None`: in the JSON header, under the names of the fields;
- `Float[np.ndarray, "N D"]`, `Int[Tensor, " N"]` and the like, and `dict[str, Tensor]`: as tensors under dotted names,
  such as `members.0.model.layers.0.q.mean`.

Loading trusts nothing. A number must be of its type, and finite unless its hint is `AnyFloat`. An array must have the
type of its hint (`Float` and `Int` mean 64 bits) and its shape, where a letter is one length in all fields of an
object. `Annotated[X, Range(low, high)]` bounds numbers and arrays. Names that are no fields are refused; a missing
field has its default, so that files stay readable when a type gets a further field, unless the class says that it
`NEEDS_ALL`. What must hold between fields is checked in `__post_init__`, which raises `InputError`. A field of
`metadata={"stored": False}` is left out.

An abstract class with `KINDS`, a mapping of names to its subclasses, each with its name as `kind`, stands for any of
them: the object is stored with its kind. A type that is not a dataclass, such as a torch module, needs a `Converter`.
"""

import dataclasses
import math
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, cast

import numpy as np
from jaxtyping import AbstractArray

from dspp.errors import InputError
from dspp.registry import Registry
from dspp.storage import to_plain

if typing.TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")
Tensors = dict[str, "Tensor"]


@dataclass(frozen=True)
class Range:
    """Bounds of a number, or of all numbers of an array."""

    low: float
    high: float


FINITE = Range(-sys.float_info.max, sys.float_info.max)
POSITIVE = Range(math.ulp(0.0), sys.float_info.max)
FAR = Range(-1e17, 1e17)  # in standard deviations; a training row among N is at most √N from the mean
ANY = Range(-math.inf, math.inf)
AnyFloat = Annotated[float, ANY]  # may be NaN or infinite


@dataclass(frozen=True)
class Converter:
    """How objects of a type that is not a dataclass are stored.

    Attributes:
        pack: Returns the plain values and the tensors of an object, given it and the object whose field it is.
        unpack: Returns the object, given these and the fields of the object around it that come before it.
    """

    pack: Callable[[Any, Any], tuple[Any, Tensors]]
    unpack: Callable[[Any, Tensors, Mapping[str, Any]], Any]


Converters = Mapping[type, Converter]


def pack(value: Any, converters: Converters | None = None) -> tuple[Tensors, dict[str, Any]]:
    """Return the tensors of a storable object by dotted name, and its other fields as JSON values."""
    tensors: Tensors = {}
    return tensors, _pack_fields(value, "", tensors, converters or {})


def unpack(
    kind: type[T],
    tensors: Mapping[str, "Tensor"],
    plain: Any,
    converters: Converters | None = None,
    prefix: str = "",
) -> T:
    """Return the object that `pack` took apart.

    Args:
        kind: Its type.
        tensors: Its tensors.
        plain: The rest.
        converters: For types that are not dataclasses.
        prefix: The beginning of the names of its tensors, if it is a part of another object.

    Raises:
        InputError: The values are not those of such an object; nothing in them is trusted.
    """
    left = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    found = _Unpacker(left, converters or {}).unpack(kind, plain, prefix, kind.__name__)
    for name in left:
        raise InputError(f"{name:.100}: not a tensor of this file, which is damaged")
    return cast(T, found)


@cache
def stored_fields(kind: type) -> Mapping[str, Any]:
    """Return the hints of the fields of a dataclass that are stored."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.metadata.get("stored", True)}


# ---------------------------------------------------------------- taking apart


def _pack_fields(value: Any, name: str, tensors: Tensors, converters: Converters) -> dict[str, Any]:
    """Return the plain part of a dataclass; its tensors are added to `tensors`, under names that begin with `name`."""
    kind: Any = type(value)
    plain: dict[str, Any] = {"kind": value.kind} if hasattr(kind, "KINDS") else {}
    for field, hint in stored_fields(kind).items():
        part, full, bare = getattr(value, field), f"{name}{field}", _bare(hint)[0]
        own: Mapping[str, Tensor] = {}
        if _is_array(bare):
            own = {} if part is None else {"": part}
        elif _is_tensors(bare):
            own = {} if part is None else {f".{key}": tensor for key, tensor in part.items()}
        elif bare in converters:
            plain[field], weights = converters[bare].pack(part, value)
            own = {f".{key}": tensor for key, tensor in weights.items()}
        else:
            plain[field] = _pack(part, f"{full}.", tensors, converters)
        tensors |= {f"{full}{key}": _to_tensor(tensor) for key, tensor in own.items()}
    return plain


def _pack(value: Any, name: str, tensors: Tensors, converters: Converters) -> Any:
    if dataclasses.is_dataclass(value):
        return _pack_fields(value, name, tensors, converters)
    if isinstance(value, tuple):
        return [_pack(part, f"{name}{number}.", tensors, converters) for number, part in enumerate(value)]
    return to_plain(value)


def _to_tensor(value: "Tensor | np.ndarray") -> "Tensor":
    import torch

    return torch.tensor(value) if isinstance(value, np.ndarray) else value.detach().cpu()


# ---------------------------------------------------------------- putting together


class _Unpacker:
    """Puts objects together, and removes their tensors from those given."""

    def __init__(self, tensors: Tensors, converters: Converters) -> None:
        self._tensors, self._converters = tensors, converters

    def unpack(self, hint: Any, plain: Any, name: str, owner: str) -> Any:
        """Return the value of a hint.

        Args:
            hint: Its type.
            plain: Its plain part.
            name: The beginning of the names of its tensors.
            owner: What it is, for errors.
        """
        hint, bounds, is_optional = _bare(hint)
        origin, inner = typing.get_origin(hint), typing.get_args(hint)
        if is_optional and plain is None:
            return None
        if dataclasses.is_dataclass(hint):
            return self._unpack_fields(_kind_of(cast(type, hint), plain, owner), plain, name, owner)
        if origin is tuple:
            if not isinstance(plain, list):
                raise _unexpected(owner, "a list", plain)
            return tuple(self.unpack(inner[0], part, f"{name}{k}.", f"{owner}[{k}]") for k, part in enumerate(plain))
        if origin is dict:
            if not isinstance(plain, dict):
                raise _unexpected(owner, "an object", plain)
            return {key: self.unpack(inner[1], part, name, f"{owner}[{key!r:.50}]") for key, part in plain.items()}
        if hint is float:
            return _to_float(plain, bounds, owner)
        if hint is not Any and type(plain) is not hint:
            raise _unexpected(owner, hint.__name__, plain)
        if hint is int and not abs(plain) <= sys.float_info.max:
            raise _unexpected(owner, "a smaller int", plain)
        return plain

    def _unpack_fields(self, kind: type, plain: Any, name: str, owner: str) -> Any:
        if not isinstance(plain, dict):
            raise _unexpected(owner, f"an object, a {kind.__name__}", plain)
        hints, given = stored_fields(kind), dict(plain)
        if hasattr(kind, "KINDS"):
            del given["kind"]
        for unknown in given.keys() - hints.keys():
            raise InputError(f"{kind.__name__}: unknown setting {unknown!r:.100}; the file is damaged")
        found: dict[str, Any] = {}
        lengths: dict[str, Any] = {}  # of the letters in shapes
        for field, hint in hints.items():
            full, label, bare = f"{name}{field}", f"{kind.__name__}.{field}", _bare(hint)[0]
            if _is_array(bare):
                found[field] = self._take_array(hint, full, lengths)
            elif _is_tensors(bare):
                parts = self._take(f"{full}.")
                found[field] = None if _bare(hint)[2] and not parts else parts
            elif field not in given:
                if getattr(kind, "NEEDS_ALL", False):
                    raise InputError(f"{label}: the field is missing; the file is damaged")
            elif bare in self._converters:
                found[field] = self._converters[bare].unpack(given[field], self._take(f"{full}."), found)
            else:
                found[field] = self.unpack(hint, given[field], f"{full}.", label)
        try:
            return kind(**found)
        except (TypeError, OverflowError) as problem:  # a field is missing, or a check meets what it does not expect
            raise InputError(f"{owner}: {problem!s:.200}; the file is damaged") from None

    def _take(self, prefix: str) -> Tensors:
        """Return all tensors under a prefix, by the rest of their names."""
        names = [name for name in self._tensors if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._tensors.pop(name) for name in names}

    def _take_array(self, hint: Any, name: str, lengths: dict[str, Any]) -> Any:
        """Return an array, of which the lengths of letters in its shape are learned or checked."""
        hint, bounds, is_optional = _bare(hint)
        tensor = self._tensors.pop(name, None)
        if tensor is None:
            if is_optional:
                return None
            raise InputError(f"{name:.100}: the tensor is missing; the file is damaged")
        _check_array(hint, tensor, name, lengths)
        if tensor.is_floating_point() and tensor.numel():
            check_range(name, bounds, *map(float, tensor.aminmax()))
        return tensor.numpy() if hint.array_type is np.ndarray else tensor


def _kind_of(kind: type, plain: Any, owner: str) -> type:
    """Return the class of a stored object: the one that its kind names, or the class of the hint."""
    if not hasattr(kind, "KINDS"):
        return kind
    named = plain.get("kind") if isinstance(plain, dict) else None
    if isinstance(named, str) and (named in kind.KINDS or isinstance(kind.KINDS, Registry)):
        return cast(type, kind.KINDS[named])  # or the registry's own error
    raise InputError(f"{owner}: expected a kind from {', '.join(kind.KINDS)}, got {named!r:.50}; the file is damaged")


def _to_float(plain: Any, bounds: Range, owner: str) -> float:
    """Return a number, which may be the text of NaN or infinity where the bounds allow it."""
    if bounds is ANY and plain in ("nan", "inf", "-inf"):
        return float(plain)
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise _unexpected(owner, "float", plain)
    if not abs(plain) <= sys.float_info.max and (bounds is not ANY or isinstance(plain, int)):
        raise _unexpected(owner, "float (finite)", plain)
    if bounds is not ANY:
        check_range(owner, bounds, plain, plain)
    return float(plain)


def check_range(name: str, bounds: Range, low: float, high: float) -> None:
    """Raise `InputError` unless numbers from `low` to `high` are finite and within bounds."""
    if not (bounds.low <= low and high <= bounds.high):  # False for NaN
        got = f"{low:.6g} to {high:.6g}" if math.isfinite(low) and math.isfinite(high) else "NaN or inf"
        raise InputError(f"{name:.100}: expected finite numbers from {bounds.low:.6g} to {bounds.high:.6g}, got {got}")


def _unexpected(owner: str, expected: str, got: Any) -> InputError:
    return InputError(f"{owner}: expected {expected}, got {got!r:.50}; the file is damaged")


# ---------------------------------------------------------------- hints


@cache
def _bare(hint: Any) -> tuple[Any, Range, bool]:
    """Return a hint without `Annotated` and `| None`, its range, and whether it may be None."""
    bounds, is_optional = FINITE, False
    while True:
        if typing.get_origin(hint) is Annotated:
            hint, *more = typing.get_args(hint)
            bounds = next((part for part in more if isinstance(part, Range)), bounds)
        elif typing.get_origin(hint) in (types.UnionType, typing.Union):
            (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
            is_optional = True
        else:
            return hint, bounds, is_optional


@cache
def _is_array(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, AbstractArray)


@cache
def _is_tensors(hint: Any) -> bool:
    """Return whether a hint is a dict of tensors, without importing torch."""
    return typing.get_origin(hint) is dict and getattr(typing.get_args(hint)[1], "__name__", "") == "Tensor"


def _check_array(hint: Any, tensor: "Tensor", name: str, lengths: dict[str, Any]) -> None:
    """Raise `InputError` unless a tensor has the type and the shape of its hint."""
    names = [str(dtype) for dtype in hint.dtypes]
    dtype = next((wide for wide in ("float64", "int64") if wide in names), names[0])
    words: list[str] = hint.dim_str.split()
    shape: tuple[Any, ...] = tuple(tensor.shape)
    starred = next((k for k, word in enumerate(words) if word.startswith("*") or word == "..."), None)
    if starred is not None:  # the rest of the shape stands for one word
        rest = len(shape) - len(words) + 1
        shape = (*shape[:starred], shape[starred : starred + rest], *shape[starred + rest :]) if rest >= 0 else ()
    fits = len(words) == len(shape) and str(tensor.dtype) == f"torch.{dtype}"
    for word, length in zip(words, shape, strict=False):
        known = int(word) if word.isdigit() else length if word == "..." else lengths.setdefault(word, length)
        fits = fits and known == length
    if not fits:
        expected = f"{dtype} of shape ({', '.join(words)})"
        where = "".join(f", {word} = {length}" for word, length in lengths.items() if word in words)
        raise InputError(
            f"{name}: expected {expected}{where}, got {tensor.dtype} of {tuple(tensor.shape)}; the file is damaged"
        )

"""Dataclasses as plain JSON values and tensors, and back, by the type hints of their fields.

A type becomes storable by being a dataclass whose fields have hints of these kinds; nothing else needs to be written:

- `int`, `float`, `bool`, `str`; `dict[str, X]` and `Any` of plain JSON values; `tuple[X, ...]` of anything storable;
  other storable dataclasses; and any of these `| None`: in the JSON header, under the names of the fields;
- `Float[np.ndarray, "N D"]`, `Int[Tensor, " N"]` and the like, and dicts of tensors (`dict[str, Tensor]`, nested): as
  tensors under dotted names, such as `members.0.model.layers.0.q.mean`.

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


def pack(value: Any, converters: Mapping[type, Converter] | None = None) -> tuple[Tensors, dict[str, Any]]:
    """Return the tensors of a storable object by dotted name, and its other fields as JSON values."""
    tensors: Tensors = {}
    return tensors, _pack_fields(value, "", tensors, converters or {})


def unpack(
    kind: type[T],
    tensors: Mapping[str, "Tensor"],
    plain: Any,
    converters: Mapping[type, Converter] | None = None,
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
    unpacker = _Unpacker(tensors, converters or {})
    found = unpacker.unpack(kind, plain, prefix, kind.__name__)
    for name in tensors.keys() - unpacker.used:
        if name.startswith(prefix):
            raise InputError(f"{name:.100}: not a tensor of this file, which is damaged")
    return cast(T, found)


@cache
def stored_fields(kind: type) -> Mapping[str, Any]:
    """Return the hints of the fields of a dataclass that are stored."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.metadata.get("stored", True)}


def plain_fields(kind: type) -> frozenset[str]:
    """Return the names of the stored fields that are in the header."""
    hints = {name: _bare(hint)[0] for name, hint in stored_fields(kind).items()}
    return frozenset(name for name, hint in hints.items() if not _is_array(hint) and not _holds_tensors(hint))


@cache
def required_fields(kind: type) -> frozenset[str]:
    """Return the names of the stored fields that must not be missing."""
    if getattr(kind, "NEEDS_ALL", False):
        return frozenset(stored_fields(kind))
    missing = dataclasses.MISSING
    defaults = {f.name: (f.default, f.default_factory) for f in dataclasses.fields(kind)}
    return frozenset(name for name in stored_fields(kind) if defaults[name] == (missing, missing))


# ---------------------------------------------------------------- taking apart


def _pack_fields(value: Any, name: str, tensors: Tensors, converters: Mapping[type, Converter]) -> dict[str, Any]:
    """Return the plain part of a dataclass; its tensors are added to `tensors`, under names that begin with `name`."""
    kind: Any = type(value)
    plain: dict[str, Any] = {"kind": value.kind} if hasattr(kind, "KINDS") else {}
    for field, hint in stored_fields(kind).items():
        part, inner, bare = getattr(value, field), f"{name}{field}.", _bare(hint)[0]
        if _is_array(bare) or _holds_tensors(bare):
            if part is not None:
                tensors |= _flatten(part, inner)
        elif bare in converters and part is not None:
            plain[field], own = converters[bare].pack(part, value)
            tensors |= {f"{inner}{key}": tensor for key, tensor in own.items()}
        else:
            plain[field] = _pack(part, inner, tensors, converters)
    return plain


def _pack(value: Any, name: str, tensors: Tensors, converters: Mapping[type, Converter]) -> Any:
    if dataclasses.is_dataclass(value):
        return _pack_fields(value, name, tensors, converters)
    if isinstance(value, tuple):
        return [_pack(part, f"{name}{number}.", tensors, converters) for number, part in enumerate(value)]
    return to_plain(value)


def _flatten(value: Any, name: str) -> Tensors:
    """Return an array or a dict of tensors by dotted name."""
    import torch

    if isinstance(value, Mapping):
        parts = (_flatten(inner, f"{name}{key}.") for key, inner in value.items())
        return {full: tensor for part in parts for full, tensor in part.items()}
    tensor = torch.tensor(value) if isinstance(value, np.ndarray) else value
    return {name.removesuffix("."): tensor.detach().cpu()}


# ---------------------------------------------------------------- putting together


class _Unpacker:
    def __init__(self, tensors: Mapping[str, "Tensor"], converters: Mapping[type, Converter]) -> None:
        self.used: set[str] = set()
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
        if is_optional and plain is None:
            return None
        if dataclasses.is_dataclass(hint):
            return self._unpack_fields(_kind_of(cast(type, hint), plain, owner), plain, name, owner)
        if typing.get_origin(hint) is tuple:
            if not isinstance(plain, list):
                raise _unexpected(owner, "a list", plain)
            item = typing.get_args(hint)[0]
            return tuple(self.unpack(item, part, f"{name}{k}.", f"{owner}[{k}]") for k, part in enumerate(plain))
        if typing.get_origin(hint) is dict:
            if not isinstance(plain, dict):
                raise _unexpected(owner, "an object", plain)
            item = typing.get_args(hint)[1]
            return {key: self.unpack(item, part, name, f"{owner}[{key!r:.50}]") for key, part in plain.items()}
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
            inner, label = f"{name}{field}.", f"{kind.__name__}.{field}"
            bare, _, is_optional = _bare(hint)
            if _is_array(bare) or _holds_tensors(bare):
                if (value := self._unpack_tensors(hint, inner, lengths)) is not None or is_optional:
                    found[field] = value
                    continue
                raise InputError(f"{inner[:-1]:.100}: the tensor is missing; the file is damaged")
            if field not in given:
                if field in required_fields(kind):
                    raise InputError(f"{label}: the field is missing; the file is damaged")
            elif bare in self._converters and not (is_optional and given[field] is None):
                found[field] = self._converters[bare].unpack(given[field], self._take(inner), found)
            else:
                found[field] = self.unpack(hint, given[field], inner, label)
        try:
            return kind(**found)
        except (TypeError, OverflowError) as problem:  # of a check that meets what it does not expect
            raise InputError(f"{owner}: {problem!s:.200}; the file is damaged") from None

    def _take(self, prefix: str) -> Tensors:
        """Return all tensors under a prefix, by the rest of their names."""
        found = {name.removeprefix(prefix): value for name, value in self._tensors.items() if name.startswith(prefix)}
        self.used |= {f"{prefix}{name}" for name in found}
        return found

    def _unpack_tensors(self, hint: Any, name: str, lengths: dict[str, Any]) -> Any:
        """Return an array, or a dict of tensors; None if there is none."""
        hint, bounds, is_optional = _bare(hint)
        if not _is_array(hint):
            found = self._take(name)
            return None if is_optional and not found else _nest(hint, found)
        name = name.removesuffix(".")
        if name not in self._tensors:
            return None
        self.used.add(name)
        tensor = self._tensors[name]
        _check_array(hint, tensor, name, lengths)
        if tensor.is_floating_point() and tensor.numel():
            check_range(name, bounds, *map(float, tensor.aminmax()))
        return tensor.numpy() if hint.array_type is np.ndarray else tensor


def _kind_of(kind: type, plain: Any, owner: str) -> type:
    """Return the class of a stored object: the one that its kind names, or the class of the hint."""
    if not hasattr(kind, "KINDS"):
        return kind
    named = plain.get("kind") if isinstance(plain, dict) else None
    if not isinstance(named, str):
        raise InputError(f"{owner}: expected the kind of a {kind.__name__}, got {named!r:.50}; the file is damaged")
    if named not in kind.KINDS and not isinstance(kind.KINDS, Registry):
        raise InputError(
            f"{owner}: expected a kind from {', '.join(kind.KINDS)}, got {named!r:.50}; the file is damaged"
        )
    return cast(type, kind.KINDS[named])


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
    return InputError(f"{owner}: expected {expected}, got {_shorten(got)}; the file is damaged")


def _shorten(value: Any) -> str:
    """Return the beginning of a value, which may be an integer with too many digits to write."""
    try:
        return f"{value!r:.50}"
    except ValueError:
        return "a huge number"


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
def _holds_tensors(hint: Any) -> bool:
    """Return whether a hint is a dict of tensors, possibly nested."""
    from torch import Tensor

    inner = typing.get_args(hint)
    return typing.get_origin(hint) is dict and (inner[1] is Tensor or _holds_tensors(inner[1]))


def _nest(hint: Any, flat: Tensors) -> dict[Any, Any]:
    """Return the dict of a hint; only keys of the innermost dicts may contain dots."""
    key, inner = typing.get_args(hint)
    if not _holds_tensors(inner):
        return dict(flat)
    groups: dict[str, Tensors] = {}
    for name, tensor in flat.items():
        first, _, rest = name.partition(".")
        groups.setdefault(first, {})[rest] = tensor
    try:
        return {key(first): _nest(inner, group) for first, group in groups.items()}
    except ValueError as problem:
        raise InputError(f"expected names of tensors: {problem!s:.100}; the file is damaged") from None


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

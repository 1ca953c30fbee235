"""Registries of the parts that users can add: kernels, means, rules, likelihoods, objectives, presets and others.

A part registers itself where it is defined, so that adding one touches one file; presets, estimators, model files,
command line and the common tests then find it by name.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from dspp.errors import InputError

T = TypeVar("T")
_MODULES: dict[str, None] = {}  # that registered a part, in order
_REGISTRIES: dict[str, "Registry[Any]"] = {}  # those imported so far, by kind


class UnknownPartError(InputError):
    """No part has this name; `part` is its kind and name, such as "kernel 'mine'"."""

    part: str = ""


def unknown_part(kind: str, name: str, known: Iterable[str]) -> UnknownPartError:
    """Return (do not raise) the error for a name that is not among the known ones."""
    problem = UnknownPartError(
        f"unknown {kind} {name!r}; choose one of: {', '.join(sorted(known))}, or import the module that registers it "
        "(on the command line: --import MODULE)"
    )
    problem.part = f"{kind} {name!r:.100}"
    return problem


def extension_modules() -> tuple[str, ...]:
    """Return the modules outside this package that registered a part, which other processes must import."""
    return tuple(name for name in _MODULES if name != "__main__" and name.split(".")[0] != "dspp")


class Registry(Mapping[str, T]):
    """A mapping from names to parts of one kind; the error for an unknown name lists the known ones.

    Example:
        >>> from dspp.quadrature import RULES
        >>> sorted(RULES)
        ['gauss-hermite', 'monte-carlo', 'qr1', 'qr2', 'qr3']
        >>> RULES["qr4"]
        Traceback (most recent call last):
        dspp.registry.UnknownPartError: unknown rule 'qr4'; choose one of: ...
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, T] = {}
        _REGISTRIES[kind] = self

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that stores what it decorates under `name`."""
        module = sys._getframe(1).f_globals.get("__name__", "__main__")

        def decorator(part: T) -> T:
            if name in self._parts:
                raise InputError(f"{self.kind} {name!r} is already registered; choose another name")
            self._parts[name] = part
            _MODULES[module] = None
            return part

        return decorator

    @contextmanager
    def temporarily(self, name: str, part: T) -> Iterator[T]:
        """Register `part` under `name` while a block runs, then restore what was registered before."""
        with restored(self):
            self._parts[name] = part
            yield part

    def __getitem__(self, name: str) -> T:
        try:
            return self._parts[name]
        except (KeyError, TypeError):
            raise unknown_part(self.kind, name, self._parts) from None

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)


@contextmanager
def restored(*registries: Registry[Any]) -> Iterator[None]:
    """Let registries hold after a block what they held before it."""
    before = [dict(registry._parts) for registry in registries]
    try:
        yield
    finally:
        for registry, parts in zip(registries, before, strict=True):
            registry._parts = parts


def part_names(kind: str) -> tuple[str, ...]:
    """Return the names of the parts of a kind such as "kernel", without importing those of this package, or torch."""
    return tuple(dict.fromkeys([*_read_names()[kind], *_REGISTRIES.get(kind, ())]))


@cache
def _read_names() -> dict[str, list[str]]:
    """Return the names that this package registers, by kind, as its source says."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.rglob("*.py")))
    kinds = dict(re.findall(r'^([A-Z]+): .* = Registry\("(.+)"\)$', text, re.MULTILINE))
    names: dict[str, list[str]] = {kind: [] for kind in kinds.values()}
    for registry, name in re.findall(r'^@?([A-Z]+)\.register\("(.+?)"\)', text, re.MULTILINE):
        names[kinds[registry]].append(name)
    return names

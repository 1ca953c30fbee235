"""Registries of the parts that users can add: kernels, means, rules, likelihoods, objectives, presets.

A part registers itself where it is defined, so that adding one changes a single file; presets, command line and common
tests then find it by name.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from dspp.errors import InputError

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """A mapping from names to parts of one kind; the error for an unknown name lists the known ones."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that stores what it decorates under `name`."""

        def decorator(part: T) -> T:
            if name in self._parts:
                raise InputError(f"{self.kind} {name!r} is already registered; choose another name")
            self._parts[name] = part
            return part

        return decorator

    @contextmanager
    def temporarily(self, name: str, part: T) -> Iterator[T]:
        """Register `part` under `name` while a block runs, then restore what was registered before, if anything."""
        before = dict(self._parts)
        self._parts[name] = part
        try:
            yield part
        finally:
            if name in before:
                self._parts[name] = before[name]
            else:
                self._parts.pop(name, None)

    def __getitem__(self, name: str) -> T:
        try:
            return self._parts[name]
        except (KeyError, TypeError):
            known = ", ".join(sorted(self._parts))
            raise InputError(f"unknown {self.kind} {name!r}; choose one of: {known}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

"""Names for the parts a researcher may add: kernels, means, rules, likelihoods, objectives, presets and others.

A part registers itself where it is defined, so that adding one touches one file; presets, estimators, model files,
command line and the common tests then find it by name.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from dspp.errors import InputError

T = TypeVar("T")
_MODULES: dict[str, None] = {}  # those that registered a part, in that order


class UnknownPartError(InputError):
    """No part of this name is registered; `part` says which, such as "kernel 'mine'"."""

    part: str = ""


def extension_modules() -> tuple[str, ...]:
    """The modules outside this package that registered a part: what another process must import to know them."""
    return tuple(name for name in _MODULES if name != "__main__" and name.split(".")[0] != "dspp")


class Registry(Mapping[str, T]):
    """A mapping from names to parts of one kind, whose look-up error lists the names there are."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._parts: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Return a decorator that stores what it decorates under `name`."""
        module = sys._getframe(1).f_globals.get("__name__", "__main__")

        def decorator(part: T) -> T:
            if name in self._parts:
                raise InputError(f"the {self.kind} {name!r} is registered already; choose another name")
            self._parts[name] = part
            _MODULES[module] = None
            return part

        return decorator

    @contextmanager
    def temporarily(self, name: str, part: T) -> Iterator[T]:
        """Let `name` stand for `part` while a block runs, then put back what was registered before, if anything."""
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
            problem = UnknownPartError(
                f"unknown {self.kind} {name!r}; choose one of: {known}, or import the module that registers it (on the "
                "command line: --import MODULE)"
            )
            problem.part = f"{self.kind} {name!r:.100}"
            raise problem from None

    def __contains__(self, name: object) -> bool:
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

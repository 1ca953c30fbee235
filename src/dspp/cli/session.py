"""What all commands share: how they were called, where they may write, and how they end."""

import importlib
import os
import shlex
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dspp.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console


class Stopped(BaseException):
    """The command ends here because it was told to, with this exit code; no error, so nothing else catches it."""

    def __init__(self, code: int, what: str = "stopped") -> None:
        super().__init__(code, what)
        self.code, self.what = code, what


@dataclass
class Session:
    """One call of `dspp`. Results go to standard output; bars, warnings and errors to standard error."""

    program: str = "dspp"
    argv: tuple[str, ...] = ()  # what was typed after it
    quiet: bool = False
    debug: bool = False

    @property
    def bars(self) -> bool | None:
        """Whether to show progress; None: only on a terminal."""
        return False if self.quiet else None

    def say(self, *what: Any) -> None:
        """Print a result: text as it is, however long its lines, or a table of rich."""
        if not self.quiet:
            console = _console()
            for part in what:
                console.print(part, soft_wrap=isinstance(part, str))

    def warn(self, text: str) -> None:
        """Print one line that is no result."""
        if not self.quiet:
            complain(f"warning: {text}")

    def working(self, what: str) -> AbstractContextManager[Any]:
        """Show on a terminal that something takes a while."""
        if self.quiet or not sys.stderr.isatty():
            return nullcontext()
        return _console(stderr=True).status(what)

    def command(self, *more: str) -> str:
        """What was typed, with some more, ready to be pasted into a shell."""
        added = [word for word in more if word not in self.argv]
        return f"{self.program} {shlex.join([*self.argv, *added])}"


def import_modules(names: Iterable[str]) -> None:
    """Import modules of the user, from the current folder or wherever Python finds them.

    Raises:
        InputError: A name is no name of a module, there is no such module, or it fails.
    """
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")) or name.endswith(".py"):
            raise InputError(f"--import: got {name!r}, expected the name of a module such as mymodule, without .py")
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as problem:
            if problem.name is None or not f"{name}.".startswith(f"{problem.name}."):
                raise InputError(f"--import {name}: it imports {problem.name!r}, which is not installed") from problem
            raise InputError(
                f"--import {name}: there is no module {problem.name!r} in {os.getcwd()} or among those installed; "
                "check the name, or run dspp in the folder of the module"
            ) from None
        except (Exception, SystemExit) as problem:
            reason = f"{type(problem).__name__}: {problem}"
            raise InputError(f"--import {name}: it failed with {reason}; run it with --debug to see where") from problem


def complain(text: str) -> None:
    """Print one line to standard error, whatever is in `text`."""
    print(f"dspp: {' '.join(text.split())}", file=sys.stderr)


def _console(stderr: bool = False) -> "Console":
    """A console that shows names and values as they are: brackets in them are no markup."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)

"""State and output shared by all commands."""

import importlib
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dspp.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

INTERRUPTED = 130  # the exit code after Ctrl-C
# Control characters, which a terminal may obey, and those that reverse text or cannot be encoded.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


class Stopped(BaseException):
    """Raised to end a command with an exit code; not an `Exception`, so that no handler catches it."""

    def __init__(self, code: int, what: str = "stopped") -> None:
        super().__init__(code, what)
        self.code, self.what = code, what


@dataclass
class Session:
    """One invocation of `dspp`. Results go to stdout; progress, warnings and errors to stderr."""

    main: Callable[..., Any]  # runs a command
    program: str
    argv: tuple[str, ...]  # the arguments
    quiet: bool = False
    debug: bool = False
    begin: float = field(default_factory=time.monotonic)  # for time budgets

    @property
    def bars(self) -> bool:
        """Whether to show progress: bars on a terminal, a line every few seconds elsewhere."""
        return not self.quiet

    def say(self, *what: Any) -> None:
        """Print results: text, whose lines are not wrapped, or rich tables."""
        if not self.quiet:
            console = _console()
            for part in what:
                console.print(part, soft_wrap=isinstance(part, str))

    def warn(self, text: str) -> None:
        """Print a warning."""
        if not self.quiet:
            print_error(f"warning: {text}")

    def working(self, what: str) -> AbstractContextManager[Any]:
        """Show a spinner on a terminal while a block runs."""
        if self.quiet or not sys.stderr.isatty():
            return nullcontext()
        console = _console(stderr=True)
        return console.status(console.render_str(what))

    def command(self, *more: str) -> str:
        """Return the command line with further arguments, quoted for a shell."""
        added = [word for word in more if word not in self.argv]
        return f"{self.program} {shlex.join([*self.argv, *added])}"


def import_modules(names: Iterable[str]) -> None:
    """Import modules of the user, from the current folder or from sys.path.

    Raises:
        InputError: A name is not a module name, the module does not exist, or importing it fails.
    """
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")) or name.endswith(".py"):
            raise InputError(f"--import: expected the name of a module such as mymodule, without .py, got {name!r}")
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as problem:
            what = f"the import failed with {type(problem).__name__}: {problem}; rerun with --debug for the traceback"
            if isinstance(problem, ModuleNotFoundError):
                what = f"the module imports {problem.name!r}, which is not installed"
                if f"{name}.".startswith(f"{problem.name}."):
                    where = f"neither in {os.getcwd()} nor installed"
                    what = f"the module {problem.name!r} is {where}; check the name, or run dspp in its folder"
            raise InputError(f"--import {name}: {what}") from problem


def print_error(text: str) -> None:
    """Print text as one line on stderr."""
    print(f"dspp: {printable(' '.join(text.split()))}", file=sys.stderr)


def printable(text: str) -> str:
    r"""Return text with characters that a terminal may obey written as in Python, such as \x1b for Escape.

    Names in tables and model files may contain them.
    """
    return _UNSAFE.sub(lambda found: ascii(found[0])[1:-1], text)


def _console(stderr: bool = False) -> "Console":
    """Return a console that prints text literally: brackets in names are no markup, and see `printable`."""
    from rich.console import Console
    from rich.text import Text

    class LiteralConsole(Console):
        def render_str(self, text: str, **how: Any) -> Text:
            return super().render_str(printable(text), **how)

    return LiteralConsole(stderr=stderr, markup=False, emoji=False, highlight=False)

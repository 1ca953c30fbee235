"""State and output shared by all commands."""

import shlex
import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console


class Stopped(BaseException):
    """Raised to end a command with an exit code; not an `Exception`, so that no handler catches it."""

    def __init__(self, code: int, what: str = "stopped") -> None:
        super().__init__(code, what)
        self.code, self.what = code, what


@dataclass
class Session:
    """One invocation of `dspp`. Results go to stdout; progress bars, warnings and errors to stderr."""

    program: str = "dspp"
    argv: tuple[str, ...] = ()  # the arguments
    quiet: bool = False
    debug: bool = False

    @property
    def bars(self) -> bool | None:
        """Whether to show progress bars; None: only on a terminal."""
        return False if self.quiet else None

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
        return _console(stderr=True).status(what)

    def command(self, *more: str) -> str:
        """Return the command line with further arguments, quoted for a shell."""
        added = [word for word in more if word not in self.argv]
        return f"{self.program} {shlex.join([*self.argv, *added])}"


def print_error(text: str) -> None:
    """Print text as one line on stderr."""
    print(f"dspp: {' '.join(text.split())}", file=sys.stderr)


def _console(stderr: bool = False) -> "Console":
    """Return a console that prints brackets in names and values literally."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)

"""The commands as typer runs them: their help, exit codes and one-line error messages."""

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from dspp.cli.session import INTERRUPTED, Session, Stopped, print_error, printable
from dspp.errors import CheckpointError, DsppError, InputError, ModelFileError

ANYWHERE = ("--debug", "--quiet")  # global options that may also follow the command, as may
IMPORT = "--import"  # with its value
BAD_INPUT, UNEXPECTED = 2, 1  # exit codes


class _PlainHelp:
    """Help without names of types, which mean nothing to users: <bool> after flags, <path> after arguments."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the class this is mixed into
        for param in params:
            if param.metavar is None or param.param_type_name == "argument":
                param.display_type_rich = lambda ctx: None
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.strip("{}") for piece in pieces]  # as around required arguments


class Command(_PlainHelp, TyperCommand):
    """A command: typer makes a dataclass of its options, with a method `run(session)`."""


class Commands(_PlainHelp, TyperGroup):
    """The commands of `dspp`, which print a traceback only with --debug."""

    def main(  # type: ignore[override]  # the others are passed on by name
        self, args: Sequence[str] | None = None, *, standalone_mode: bool = True, **extra: Any
    ) -> Any:
        """Run a command; in standalone mode, exit with its exit code."""
        given = [*(sys.argv[1:] if args is None else args)]
        session = extra.pop("obj", None) or Session(self.main, _program(), tuple(given))
        how = extra | {"prog_name": "dspp", "standalone_mode": False, "obj": session}
        words = _shared_first(given) or ["--help"]
        if not standalone_mode:
            return super().main(words, **how)
        try:
            code = super().main(words, **how)
            sys.stdout.flush()  # here, so that a closed pipe is caught
        except BrokenPipeError:
            code = _silence_stdout()
        except Stopped as stopped:
            print_error(stopped.what)
            code = stopped.code
        except Exception as problem:
            if session.debug:
                print(printable(traceback.format_exc()), end="", file=sys.stderr)
            text, code = _explain(problem, session)
            print_error(text)
        sys.exit(code or 0)

    def invoke(self, ctx: Any) -> None:
        """Run a command, converting Ctrl-C for `main`."""
        try:
            super().invoke(ctx).run(ctx.obj)
        except KeyboardInterrupt:
            raise Stopped(INTERRUPTED) from None


def _shared_first(given: Sequence[str]) -> list[str]:
    """Return the arguments with the global options moved before the command."""
    if given and given[-1] == IMPORT:
        return [IMPORT]  # so that the error is about its missing value
    shared: list[str] = []
    others: list[str] = []
    for number, word in enumerate(given):
        value = number > 0 and given[number - 1] == IMPORT
        ours = value or word in (*ANYWHERE, IMPORT) or word.startswith(f"{IMPORT}=")
        (shared if ours else others).append(word)
    return [*shared, *others]


def _explain(problem: Exception, session: Session) -> tuple[str, int]:
    """Return a one-line message and the exit code for an error."""
    if type(problem) is typer.BadParameter and problem.param is not None:  # of a parser
        return f"{problem.param.opts[0]}: {problem.message}", BAD_INPUT
    if hasattr(problem, "format_message"):  # another usage error of typer
        path = getattr(getattr(problem, "ctx", None), "command_path", "dspp")
        return f"{problem.format_message()} (see {path} --help)", BAD_INPUT
    if isinstance(problem, InputError | ModelFileError | CheckpointError):
        return str(problem), BAD_INPUT
    if isinstance(problem, DsppError):
        return str(problem), UNEXPECTED
    if isinstance(problem, OSError) and problem.errno in (errno.ENOSPC, errno.EDQUOT):
        if problem.filename is None:  # commands name the files they write
            _silence_stdout()
        return f"no space left on {problem.filename or 'standard output'}", UNEXPECTED
    kind = type(problem).__name__
    again = "" if session.debug else "; rerun with --debug to see where"
    return f"unexpected {kind}: {problem}{again}" if str(problem) else f"unexpected {kind}{again}", UNEXPECTED


def _silence_stdout() -> int:
    """Redirect stdout, whose reader is gone or whose disk is full, so that nothing fails at exit."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # standard output may not be a file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return UNEXPECTED


def _program() -> str:
    return "python -m dspp" if Path(sys.argv[0]).parts[-2:] == ("dspp", "__main__.py") else "dspp"

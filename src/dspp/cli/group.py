"""Exit codes, and one-line error messages."""

import contextlib
import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from typer.core import TyperCommand, TyperGroup

from dspp.cli.session import Session, Stopped, print_error, printable
from dspp.errors import CheckpointError, DsppError, InputError, ModelFileError

ANYWHERE = ("--debug", "--quiet")  # global options that may also follow the command, as may
IMPORT = "--import"  # with its value
BAD_INPUT, UNEXPECTED, INTERRUPTED = 2, 1, 130


class PlainHelp:
    """Help without typer's names of types, which mean nothing to users: <bool> after flags, <path> after arguments."""

    params: list[Any]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters, of which help shows the names alone."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]  # of the class this is mixed into
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = param.metavar or ""
            elif param.param_type_name == "argument":
                param.display_type_rich = _no_type
        return params

    def get_help_option(self, ctx: Any) -> Any:
        """Return --help, hidden among options in groups, where it would be a group of its own."""
        option = super().get_help_option(ctx)  # type: ignore[misc]
        if option is not None:
            option.hidden = any(getattr(param, "rich_help_panel", None) for param in self.params)
        return option

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line, without braces around required arguments."""
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.strip("{}") for piece in pieces]


def _no_type(ctx: Any) -> None:
    return None


class Command(PlainHelp, TyperCommand):
    """A command of `dspp`."""


class Commands(PlainHelp, TyperGroup):
    """The commands of `dspp`, which print a traceback only with --debug."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command; in standalone mode, exit with its exit code."""
        given = [*(sys.argv[1:] if args is None else args)]
        session = extra.pop("obj", None) or Session(_program(), tuple(given))

        def run() -> Any:
            words = _shared_first(given)
            return super(Commands, self).main(
                words or ["--help"], "dspp", complete_var, False, windows_expand_args, obj=session, **extra
            )

        return sys.exit(exit_code(run, session)) if standalone_mode else run()

    def invoke(self, ctx: Any) -> Any:
        """Run a command, converting Ctrl-C for `exit_code`."""
        try:
            return super().invoke(ctx)
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


def exit_code(run: Callable[[], Any], session: Session) -> int:
    """Run a function, print any error, and return the exit code."""
    try:
        code = run()
        sys.stdout.flush()  # here, so that a closed pipe is caught
        return code if isinstance(code, int) else 0
    except BrokenPipeError:
        return _silence_stdout()
    except Stopped as stopped:
        print_error(stopped.what)
        return stopped.code
    except Exception as problem:
        if session.debug:
            print(printable(traceback.format_exc()), end="", file=sys.stderr)
        text, code = _explain(problem, session)
        print_error(text)
        return code


def _explain(problem: Exception, session: Session) -> tuple[str, int]:
    """Return a one-line message and the exit code for an error."""
    if hasattr(problem, "format_message"):  # a usage error of typer
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

"""Parsing of options (durations, lists, names), and commands built from dataclasses of options."""

import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_type_hints

import typer
from rich.markup import escape

from dspp.errors import InputError
from dspp.table.messages import check_encoding

if TYPE_CHECKING:
    from dspp.table.csvfile import CsvFormat

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s?)?")

Options = TypeVar("Options")
SEPARATOR = "What separates the cells of a CSV file: one character such as ';', or the word tab."
BLANKS = "Blank cells in columns that had none in training: refuse them, or impute the training median."
DECIMAL = "The decimal mark in a CSV file: '.' or ','."
ENCODING = "The encoding of a CSV file, such as latin-1, cp1252 or utf-16."


def option(
    what: str, metavar: str, panel: str | None = None, *names: str, choices: Sequence[str] = (), **more: Any
) -> Any:
    """Return an option with help text, metavar, help panel and completions."""
    if choices:
        more["autocompletion"] = lambda incomplete: [word for word in choices if word.startswith(incomplete)]
    return typer.Option(*names, help=escape(what), metavar=metavar, rich_help_panel=panel, **more)


def flag(name: str, what: str, panel: str | None = None) -> Any:
    """Return an option without a value."""
    return typer.Option(name, help=escape(what), metavar="", show_default=False, rich_help_panel=panel)


def make_command(kind: type[Options], run: Callable[[Options, Any], None], **fixed: Any) -> Callable[..., None]:
    """Return a command whose options are the fields of a dataclass, except those that are `fixed`.

    Numbers are parsed here and not by typer, so that errors are in our words: by a function (text, name of the option)
    among the annotations of the field, such as `share`, or else as numbers of the type of the field.
    """
    parsers: dict[str, Callable[[str, str], Any]] = {}

    def command(ctx: typer.Context, **given: Any) -> None:
        for name, parse in parsers.items():
            if given[name] is not None:
                given[name] = parse(given[name], f"--{name.replace('_', '-')}")
        run(kind(**given, **fixed), ctx.obj)

    hints = get_type_hints(kind, include_extras=True)
    parameters = [inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context)]
    for field in fields(kind):  # type: ignore[arg-type]  # a TypeVar cannot require a dataclass
        if field.name in fixed:
            continue
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        hint, parse = hints[field.name], _number_parser(hints[field.name])
        if parse is not None:
            parsers[field.name] = parse
            text: Any = list[str] | None if get_args(hint)[0] == list[float] | None else str | None
            hint, default = Annotated[text, hint.__metadata__[0]], None if default is None else str(default)
        parameters.append(
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        )
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _number_parser(hint: Any) -> Callable[[str, str], Any] | None:
    """Return the parser of an annotated number, or None for anything else."""
    kind, *more = get_args(hint)
    numbers = {int: at_least(None), float: number}
    own = next((part for part in more if inspect.isfunction(part)), None)
    return own or next((parse for type_, parse in numbers.items() if kind in (type_, type_ | None)), None)


def refuse_or_impute(text: str, name: str) -> str:
    """Parse what to do with blank cells."""
    if text not in ("refuse", "impute"):
        raise InputError(f"{name}: expected refuse or impute, got {text!r}")
    return text


def number(text: str, name: str) -> float:
    """Parse a number."""
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{name}: expected a number, got {text!r}") from None


def finite_numbers(texts: Sequence[str], name: str) -> list[float]:
    """Parse the values of a repeatable option."""
    values = [number(text, name) for text in texts]
    for text, value in zip(texts, values, strict=True):
        if not math.isfinite(value):
            raise InputError(f"{name}: expected a finite number, got {text}")
    return values


def at_least(low: int | None, high: float = math.inf) -> Callable[[str, str], int]:
    """Return a parser of whole numbers in a range."""

    def parse(text: str, name: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise InputError(f"{name}: expected a whole number, got {text!r}") from None
        if low is not None and value < low:
            raise InputError(f"{name}: expected a whole number of at least {low}, got {value}")
        if value > high:
            raise InputError(f"{name}: expected a whole number of at most {high}, got {value}")
        return value

    return parse


def share(text: str, name: str) -> float:
    """Parse a number inside (0, 1)."""
    value = _to_share(text)
    if not 0 < value < 1:
        meant = _meant_share(text) or "0.9"
        raise InputError(f"{name}: expected a number inside (0, 1), such as 0.9, got {text}; use {name} {meant}")
    return value


def fraction(text: str, name: str) -> float:
    """Parse a number in [0, 1)."""
    value = _to_share(text)
    if not 0 <= value < 1:
        meant = _meant_share(text) or "0.1"
        raise InputError(f"{name}: expected a number in [0, 1), such as 0.1, got {text}; use {name} {meant}")
    return value


def _to_share(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _meant_share(text: str) -> str:
    """Return the number that was probably meant by a percentage or a decimal comma, or an empty string."""
    value = _to_share(text.strip().rstrip("% ").replace(",", "."))
    if "%" in text or value >= 2:
        value /= 100
    return f"{value:g}" if 0 < value < 1 else ""


def duration(text: str | None, name: str) -> float | None:
    """Parse a duration such as 90, 90s, 5m, 2h or 1h30m, in seconds."""
    if text is None:
        return None
    match = _DURATION.fullmatch(text.strip().lower())
    try:
        parts = match.groups() if match else ()
        seconds = sum(float(part) * unit for part, unit in zip(parts, _UNITS.values(), strict=False) if part)
    except ValueError:
        seconds = 0.0
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"{name}: expected a duration such as 90s, 5m or 1h30m, got {text!r}")
    return seconds


def probabilities(text: str, name: str) -> tuple[float, ...]:
    """Parse a list of numbers inside (0, 1), without duplicates; empty text gives an empty tuple."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    values = tuple(dict.fromkeys(map(_to_share, parts)))
    if not all(0 < value < 1 for value in values):
        meant = [_meant_share(part) for part in parts]
        hint = ",".join(meant) if all(meant) else "0.05,0.5,0.95"
        raise InputError(
            f"{name}: expected numbers inside (0, 1), such as 0.05,0.5,0.95, got {text}; use {name} {hint}"
        )
    return values


def csv_format(separator: str | None, decimal: str, encoding: str) -> "CsvFormat":
    """Check --sep, one character or the word tab, --decimal and --encoding; return what they say.

    Raises:
        InputError: They are not such characters, or the same, or there is no such encoding.
    """
    from dspp.table.csvfile import CsvFormat

    mark = {"tab": "\t", "\\t": "\t"}.get(separator or "", separator)
    if mark is not None and (len(mark) != 1 or not mark.isascii() or mark.isalnum() or mark in '"\r\n'):
        raise InputError(f"--sep: expected one character such as ';', or the word tab, got {separator!r}")
    if decimal not in (".", ","):
        raise InputError(f"--decimal: expected '.' or ',', got {decimal!r}")
    if mark == decimal:
        raise InputError(f"--sep and --decimal: expected different characters, got {decimal!r} for both")
    return CsvFormat(mark, decimal, check_encoding(encoding, "--encoding"))


def sizes(text: str | None, name: str) -> tuple[int, ...] | None:
    """Parse a list of positive integers."""
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise InputError(f"{name}: expected layer sizes such as 100,50, got {text!r}")
    return tuple(int(part) for part in parts)

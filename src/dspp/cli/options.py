"""Options that commands share, and parsers of what is typed: numbers, shares, durations, lists and names of parts."""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from dspp.errors import InputError
from dspp.registry import part_names, unknown_part
from dspp.table.messages import check_encoding

if TYPE_CHECKING:
    from dspp.table.csvfile import CsvFormat

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
_DURATION = re.compile(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s?)?")

# ---------------------------------------------------------------- parsers, whose errors name no option: `app` adds it


def whole(low: int | None = None, high: float = math.inf) -> Callable[[str], int]:
    """Return a parser of whole numbers in a range."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise typer.BadParameter(f"expected a whole number, got {text!r}") from None
        if low is not None and value < low:
            raise typer.BadParameter(f"expected a whole number of at least {low}, got {value}")
        if value > high:
            raise typer.BadParameter(f"expected a whole number of at most {high}, got {value}")
        return value

    return parse


def number(text: str) -> float:
    """Parse a number."""
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"expected a number, got {text!r}") from None


def finite(text: str) -> float:
    """Parse a finite number."""
    value = number(text)
    if not math.isfinite(value):
        raise typer.BadParameter(f"expected a finite number, got {text}")
    return value


def share(option: str, usual: str, zero: bool = False) -> Callable[[str], float]:
    """Return a parser of numbers inside (0, 1) or, with `zero`, in [0, 1)."""
    where = "in [0, 1)" if zero else "inside (0, 1)"

    def parse(text: str) -> float:
        value = _to_share(text)
        if 0 < value < 1 or (zero and value == 0):
            return value
        meant = _meant_share(text) or usual
        raise typer.BadParameter(f"expected a number {where}, such as {usual}, got {text}; use {option} {meant}")

    return parse


def probabilities(text: str) -> tuple[float, ...]:
    """Parse --quantiles: numbers inside (0, 1), without duplicates; empty text gives an empty tuple."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    values = tuple(dict.fromkeys(map(_to_share, parts)))
    if not all(0 < value < 1 for value in values):
        meant = [_meant_share(part) for part in parts]
        hint = ",".join(meant) if all(meant) else "0.05,0.5,0.95"
        raise typer.BadParameter(
            f"expected numbers inside (0, 1), such as 0.05,0.5,0.95, got {text}; use --quantiles {hint}"
        )
    return values


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


def duration(text: str) -> float:
    """Parse a duration such as 90, 90s, 5m, 2h or 1h30m, in seconds."""
    match = _DURATION.fullmatch(text.strip().lower())
    try:
        parts = match.groups() if match else ()
        seconds = sum(float(part) * unit for part, unit in zip(parts, _UNITS.values(), strict=False) if part)
    except ValueError:
        seconds = 0.0
    if not (math.isfinite(seconds) and seconds > 0):
        raise typer.BadParameter(f"expected a duration such as 90s, 5m or 1h30m, got {text!r}")
    return seconds


def sizes(text: str) -> tuple[int, ...]:
    """Parse a list of positive integers."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise typer.BadParameter(f"expected layer sizes such as 100,50, got {text!r}")
    return tuple(int(part) for part in parts)


def member_count(text: str) -> int | str:
    """Parse a number of members, or auto."""
    if text != "auto" and (not text.isdecimal() or int(text) < 1):
        raise typer.BadParameter(f"expected auto or a number >= 1, got {text!r}")
    return text if text == "auto" else int(text)


def one_of(*words: str) -> Callable[[str], str]:
    """Return a parser of one of a few words."""

    def parse(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(f"expected {' or '.join(words)}, got {text!r}")
        return text

    return parse


# ---------------------------------------------------------------- options


def option(
    what: str,
    metavar: str,
    panel: str | None = None,
    parser: Callable[[str], Any] | None = None,
    choices: Sequence[str] = (),
) -> Any:
    """Return an option with help text, metavar, help panel, parser and completions."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in choices if word.startswith(incomplete)]

    more: dict[str, Any] = {"autocompletion": complete} if choices else {}
    return typer.Option(help=escape(what), metavar=metavar, rich_help_panel=panel, parser=parser, **more)


def flag(name: str, what: str, panel: str | None = None) -> Any:
    """Return an option without a value."""
    return typer.Option(name, help=escape(what), show_default=False, rich_help_panel=panel)


def part(kind: str, what: str, panel: str, *others: str, prefix: str = "") -> Any:
    """Return an option that takes the name of a registered part, or one of the other words."""
    names = (*others, *part_names(kind))

    def parse(text: str) -> str:
        known, name = (*others, *part_names(kind)), text.removeprefix(prefix)  # those of the user's modules, too
        if name not in known:
            raise typer.BadParameter(str(unknown_part(kind, name, known)))
        return text

    return option(f"{what}: {', '.join(names)}.", "NAME", panel, parse, names)


ModelFile = Annotated[Path, typer.Argument(help="The model file.", metavar="MODEL")]
Missing = Annotated[
    str,
    option(
        "Blank cells in columns that had none in training: refuse them, or impute the training median.",
        "WORD",
        parser=one_of("refuse", "impute"),
        choices=("refuse", "impute"),
    ),
]
CSV = "CSV files"
Separator = Annotated[
    str | None, option("What separates the cells: one character such as ';', or the word tab.", "CHAR", CSV)
]
Decimal = Annotated[str, option("The decimal mark: '.' or ','.", "CHAR", CSV)]
Encoding = Annotated[str, option("The encoding, such as latin-1, cp1252 or utf-16.", "NAME", CSV)]


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

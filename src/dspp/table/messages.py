"""Error messages about tables: the place of a problem, and lists of names."""

import codecs
import difflib
import glob
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dspp.errors import InputError

LIKE_A_NUMBER = r"(?i)^[+-]?(\.?[0-9]|inf|nan)"  # how text begins that may be meant as a number
WITH_A_UNIT = r"^[+-]?\s?([$€£¥₹]|[A-Z]{3} )?\s?[+-]?[0-9][0-9.,' ]*\s?([$€£¥₹%]|[A-Z]{3})?$"  # $1,500, 1.5 %


@dataclass(frozen=True)
class Place:
    """The position of values in a table, for errors.

    Attributes:
        where: The name of the table or file.
        column: The name of the column, if it has one.
        first_row: The number of the first row.
        label_of: What to call the row of a number; None: its number.
        line_of: For text files, a function from row numbers to lines.
    """

    where: str
    column: str = ""
    first_row: int = 0
    label_of: Callable[[int], object] | None = None
    line_of: Callable[[int], int] | None = None

    def of(self, column: str, after: int = 0) -> "Place":
        """Return the place of a column, `after` rows further down."""
        return replace(self, column=column, first_row=self.first_row + after)

    def error(self, problem: str, row: int | None = None) -> InputError:
        """Return (do not raise) an error that names the column and, if given, the row."""
        column = [f"column {self.column!r}"] if self.column else []
        if row is None:
            return InputError(": ".join([self.where, *column, problem]))
        label = self.label(row)
        line = f" (line {self.line_of(int(str(label)))})" if self.line_of is not None else ""
        return InputError(f"{self.where}: {', '.join([*column, f'row {label}{line}'])}: {problem}")

    def label(self, row: int) -> object:
        """Return the label of a row."""
        number = self.first_row + row
        return number if self.label_of is None else self.label_of(number)


def check_exists(path: Path) -> None:
    """Raise `InputError` unless there is a file or folder at this path, or it is a pattern such as data/*.parquet."""
    if re.match(r"[a-z][a-z0-9]+:/", str(path)):
        raise InputError(f"{path}: expected a file on this machine, got an address; download it first")
    if not path.exists() and not glob.has_magic(str(path)):
        raise InputError(f"{path}: the file does not exist; check the path")


def check_encoding(name: str, what: str) -> str:
    """Return Python's name of a text encoding such as latin-1; `what` is the option or argument, for the error."""
    try:
        " ".encode(name)  # unlike codecs.lookup, refuses codecs of bytes such as gzip
    except (LookupError, ValueError):
        raise InputError(f"{what}: expected a text encoding such as utf-8, latin-1 or utf-16, got {name!r}") from None
    return codecs.lookup(name).name


def check_names(names: list[Any], where: str) -> None:
    """Raise `InputError` unless there is at least one name and the names are unique strings."""
    odd = [name for name in names if not isinstance(name, str)]
    twice = sorted({str(name) for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if not names:
        raise InputError(f"{where}: got 0 feature(s) while a minimum of 1 is required; pass at least one column")
    if odd:
        raise InputError(f"{where}: expected column names to be strings, got {join_names(odd)}; rename these columns")
    if twice:
        raise InputError(f"{where}: expected unique column names, got {join_names(twice)} more than once; rename one")


def join_names(names: Sequence[object], limit: int = 5) -> str:
    """Return the first `limit` names as text and how many more there are, for a message."""
    more = f" and {len(names) - limit:,} more" if len(names) > limit else ""
    return ", ".join(repr(name) for name in names[:limit]) + more


def explain_classes(distinct: Iterable[str], rows: int) -> str:
    """Return why text cannot be a target, for a message, from its distinct values and the number of rows."""
    names = sorted(distinct)
    if len(names) <= min(20, rows // 2):
        got = f"{len(names)} class{'es' * (len(names) > 1)} ({join_names(names, 3)})"
    else:
        got = f"text such as {names[0]!r:.40}"
    if all(re.match(WITH_A_UNIT, name) for name in names):
        return f"expected numbers to predict, got {got}; remove the currency and commas, as in 1500 for $1,500"
    return f"expected numbers to predict, got {got}; dspp predicts numbers, not classes yet"


def closest(name: str, names: Sequence[str], cutoff: float = 0.6) -> str | None:
    """Return the name that was probably meant, or None if none is similar; upper and lower case count as the same."""
    folded = {other.casefold(): other for other in reversed(names)}
    close = difflib.get_close_matches(name.casefold(), list(folded), 1, cutoff)
    return folded[close[0]] if close else None


def first_line(problem: Exception) -> str:
    """Return the first line of an error message, shortened."""
    return (str(problem).splitlines() or [type(problem).__name__])[0][:200]

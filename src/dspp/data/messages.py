"""What errors about tables say: where the trouble is, and which names it is about."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dspp.errors import InputError


@dataclass(frozen=True)
class Place:
    """Where a column stands, for errors: the table or file it is in, its name, and the number of its first row.

    In a text file `line_of` gives the line of a row.
    """

    where: str
    column: str
    first_row: int = 0
    line_of: Callable[[int], int] | None = None

    def error(self, problem: str, row: int | None = None) -> InputError:
        """Return, not raise, an error that names the column and, if given, the row."""
        at_row = "" if row is None else f", row {self.first_row + row}"
        if row is not None and self.line_of is not None:
            at_row += f" (line {self.line_of(self.first_row + row)})"
        return InputError(f"{self.where}: column {self.column!r}{at_row}: {problem}")


def check_names(names: list[Any], where: str) -> None:
    """Raise `InputError` unless there are names, all of them strings, each there once."""
    odd = [name for name in names if not isinstance(name, str)]
    twice = sorted({str(name) for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if not names:
        raise InputError(f"{where}: got 0 feature(s) while a minimum of 1 is required. Give at least one column.")
    if odd:
        raise InputError(f"{where}: expected column names to be strings, got {listed(odd)}. Rename these columns.")
    if twice:
        raise InputError(f"{where}: expected each column name once, got {listed(twice)} more than once. Rename one.")


def listed(names: Sequence[object], limit: int = 5) -> str:
    """Return the first of these names, for a message."""
    return ", ".join(repr(name) for name in names[:limit]) + (", …" if len(names) > limit else "")


def first_line(problem: Exception) -> str:
    """Return what an error says, short enough for a message of ours."""
    return (str(problem).splitlines() or [type(problem).__name__])[0][:200]

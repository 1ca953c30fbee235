"""What errors about tables say: where the trouble is, and which names it is about."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dspp.errors import InputError


@dataclass(frozen=True)
class Place:
    """Where values stand, for errors.

    Attributes:
        where: What to call the table or file.
        column: The name of the column.
        first_row: The number of the first row.
        line_of: In a text file, the line of a row.
        labels: What to call each row of the table, by its place in it, where that is not its number.
    """

    where: str
    column: str = ""
    first_row: int = 0
    line_of: Callable[[int], int] | None = None
    labels: Any = None

    def of(self, column: str, after: int = 0) -> "Place":
        """The place of a column, `after` so many rows."""
        return replace(self, column=column, first_row=self.first_row + after)

    def at(self, where: str) -> "Place":
        """The same rows of another table."""
        return replace(self, where=where)

    def error(self, problem: str, row: int | None = None) -> InputError:
        """Return, not raise, an error that names the column and, if given, the row."""
        if row is None:
            return InputError(f"{self.where}: column {self.column!r}: {problem}")
        label = self.first_row + row if self.labels is None else self.labels[self.first_row + row]
        line = f" (line {self.line_of(int(str(label)))})" if self.line_of is not None else ""
        return InputError(f"{self.where}: column {self.column!r}, row {label}{line}: {problem}")


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

"""The building blocks of a report, before they become Markdown or HTML: tables, pictures and the parts around them."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

DASH = "–"
MINUS = "−"


def fixed(value: float | None, decimals: int = 3, sign: bool = False) -> str:
    """Format a number with the given decimals and a true minus sign; None becomes a dash."""
    if value is None:
        return DASH
    text = f"{abs(value):.{decimals}f}"
    zero = float(text) == 0
    return (MINUS if value < 0 and not zero else "+" if sign and not zero else "") + text


def with_error(mean: float | None, error: float | None, decimals: int = 3) -> str:
    """Format "mean ± s.e.", or the mean alone if there is no error, as with a single split."""
    return fixed(mean, decimals) + ("" if error is None or mean is None else f" ± {error:.{decimals}f}")


def join_names(names: list[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"


def plural(num: int, thing: str) -> str:
    """Return "1 pair", "2 pairs"."""
    return f"{num} {thing}{'' if num == 1 else 's'}"


@dataclass(frozen=True)
class Entry:
    """A cell of a table: our value, and below it the paper's."""

    text: str
    bold: bool = False
    second: str = ""  # empty: no second line
    second_bold: bool = False


@dataclass(frozen=True)
class Table:
    """Cells ready to print, with a caption that says where they come from."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    caption: str
    apart: frozenset[int] = frozenset()  # columns to separate visually: methods that are not the paper's
    words: frozenset[int] = frozenset()  # columns of text, aligned left like the first


def text_table(header: Sequence[str], rows: Iterable[Sequence[str | Entry]], words: Collection[int] = ()) -> Table:
    """Return a table without title and caption; text stands for an entry of it."""
    entries = tuple(tuple(Entry(cell) if isinstance(cell, str) else cell for cell in row) for row in rows)
    return Table("", tuple(header), entries, "", words=frozenset(words))


@dataclass(frozen=True)
class Picture:
    """A figure: inline for the page, and as files."""

    name: str  # of the files, without suffix
    title: str
    caption: str
    inline: Markup
    svg: bytes
    png: bytes
    width: float  # inches


@dataclass(frozen=True)
class Block:
    """A few sentences with their tables and figures; a folded block opens on click."""

    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    folded: bool = False


@dataclass(frozen=True)
class Part:
    """One protocol of an experiment."""

    protocol: str  # empty: there are no protocols to tell apart
    verdict: tuple[str, ...]
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Section:
    """One experiment."""

    name: str
    title: str
    question: str
    remarks: tuple[str, ...]
    parts: tuple[Part, ...]
    csv: tuple[tuple[str, ...], ...]  # rows of the tidy file, without its header

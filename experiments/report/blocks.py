"""What a report is made of, before it becomes Markdown or HTML: tables, pictures, and the parts that hold them."""

from dataclasses import dataclass

from markupsafe import Markup

DASH = "–"
MINUS = "−"


def fixed(value: float | None, decimals: int = 3, sign: bool = False) -> str:
    """Return a number with so many decimals and a true minus; a dash for what is not there."""
    if value is None:
        return DASH
    text = f"{abs(value):.{decimals}f}"
    zero = float(text) == 0
    return (MINUS if value < 0 and not zero else "+" if sign and not zero else "") + text


def with_error(mean: float | None, error: float | None, decimals: int = 3) -> str:
    """Return "mean ± s.e.", or the mean alone where one split cannot have an error."""
    return fixed(mean, decimals) + ("" if error is None or mean is None else f" ± {error:.{decimals}f}")


def listed(names: list[str]) -> str:
    """Return "a", "a and b", "a, b and c"."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else "none"


def plural(num: int, thing: str) -> str:
    """Return "1 pair", "2 pairs"."""
    return f"{num} {thing}{'' if num == 1 else 's'}"


@dataclass(frozen=True)
class Entry:
    """A cell of a table: ours, and below it the paper's."""

    text: str
    bold: bool = False
    second: str = ""  # "": no second line
    second_bold: bool = False


@dataclass(frozen=True)
class Table:
    """Cells ready to print, with the line below that says where they come from."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    caption: str
    apart: frozenset[int] = frozenset()  # columns that are set apart: methods that are not the paper's


@dataclass(frozen=True)
class Picture:
    """A figure: inline for the page, and as files."""

    name: str  # of the files, without ending
    title: str
    caption: str
    inline: Markup
    svg: bytes
    png: bytes
    width: float  # inches


@dataclass(frozen=True)
class Block:
    """A few sentences with their tables and figures; folded ones open at a click."""

    title: str
    lines: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    folded: bool = False


@dataclass(frozen=True)
class Part:
    """One protocol of an experiment."""

    protocol: str
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

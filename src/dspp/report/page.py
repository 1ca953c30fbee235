"""A page: sections of panels, and its rendering as one self-contained HTML file."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dspp import storage
from dspp.errors import ModelFileError
from dspp.extras import require
from dspp.numbers import tidy
from dspp.report.svg import Drawing, inline_svg

if TYPE_CHECKING:  # imported on first use, since they are optional
    import jinja2
    from markupsafe import Markup

FOLDER = Path(__file__).parent
_NUMBER = re.compile(r"(?:[\d.,−%×∞–⁻⁰¹²³⁴⁵⁶⁷⁸⁹<\s]|\bto\b|\bs$)*")


@dataclass(frozen=True)
class Card:
    """A score: its title, value and meaning, and the values of baselines by their names."""

    title: str
    value: str
    meaning: str = ""
    baselines: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TextTable:
    """Formatted cells; columns after `extra` are not printed."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    extra: int = 1_000

    @cached_property
    def is_text(self) -> list[bool]:
        """Whether each column is text, which is aligned on the left: the first one, and all that are not numbers."""
        columns = zip(*self.rows, strict=True) if self.rows else [[""]] * len(self.header)
        return [k == 0 or not all(_NUMBER.fullmatch(value) for value in column) for k, column in enumerate(columns)]


@dataclass(frozen=True)
class Figure:
    """One or several drawings with a caption that explains how to read them."""

    name: str  # its id, unique in the page
    title: str
    caption: str
    drawings: Mapping[str, "Markup"]  # by their titles, which are shown if there are several


@dataclass(frozen=True)
class Panel:
    """A title, a sentence and what they are about; any of them may be empty."""

    title: str = ""
    text: str = ""
    cards: Sequence[Card] = ()
    figures: Sequence[Figure] = ()
    table: TextTable | None = None
    points: Sequence[str] = ()


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    name: str
    title: str
    intro: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Page:
    """What the page shows."""

    title: str
    sections: Sequence[Section] = ()
    subtitle: str = ""  # which rows
    lead: str = ""  # what the model predicts
    verdict: str = ""  # on whether intervals are calibrated


def figure(name: str, title: str, caption: str, draw: Drawing | Mapping[str, Drawing]) -> Figure:
    """Return a figure of one drawing, or of several with titles, whose legend is in the caption.

    A drawing is a call of a function of `dspp.plots`.
    """
    if callable(draw):
        return Figure(name, title, caption, {title: inline_svg(draw, name, f"{title}. {caption}")})
    drawn = (
        inline_svg(one, f"{name}-{k}", f"{title}: {part}", legend=False) for k, (part, one) in enumerate(draw.items())
    )
    return Figure(name, title, caption, dict(zip(draw, drawn, strict=True)))


def render(page: Page) -> str:
    """Return the page as HTML that needs nothing else; the same data give the same text."""
    environment = templates(FOLDER)
    from markupsafe import Markup  # which jinja2 installs

    environment.filters["tidy"] = tidy
    style = Markup((FOLDER / "page.css").read_text(encoding="utf-8"))
    return environment.get_template("page.html").render(page=page, style=style)


def templates(folder: Path) -> "jinja2.Environment":
    """Return the templates of a folder; values are escaped, and undefined names are errors."""
    require("report", "a report")
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def write_page(page: Page, path: str | Path) -> None:
    """Write the page to `path`, atomically.

    Raises:
        ModelFileError: It could not be written; the previous file is unchanged.
    """
    storage.write_bytes(Path(path), render(page).encode("utf-8", errors="replace"), ModelFileError)

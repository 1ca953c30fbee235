"""Conversion of matplotlib figures to compact SVG with the font and colours of the page and unique ids."""

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from dspp.plots import PALETTE

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes

Drawing = Callable[[], "Axes"]
_COLOURS = {code: f"var(--{name})" for name, code in PALETTE.items()}
_COLOUR = re.compile("|".join(_COLOURS))
_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_GEOMETRY = re.compile(r' (d|x|y|width|height|transform)="([^"]*)"')
_METADATA = ("Date", "Creator", "Format", "Type")  # None omits each of them
_TAG = re.compile(r"<[^>]+>")  # matplotlib escapes < and > in text, so only tags match


def inline_svg(draw: Drawing, name: str, label: str, legend: bool = True) -> "Markup":
    """Return a figure as inline SVG, whose ids begin with `name`, with a label for screen readers."""
    from markupsafe import Markup, escape

    raw = _draw_svg(draw, legend)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', raw))
    body = raw[raw.index("<g ") : raw.rindex("</svg>")]
    body = re.sub(r">\s+<", "><", _TAG.sub(lambda tag: _adapt_tag(tag[0], name, used), body))
    (box,) = re.findall(r' viewBox="[^"]*"', raw)
    head = f'<svg{box} role="img" aria-label="{escape(label)}">'
    return Markup(head + body + "</svg>")  # the tags are matplotlib's, which escapes the text between them


def _draw_svg(draw: Drawing, legend: bool) -> str:
    """Return matplotlib's SVG, the same bytes every time, whatever the user's settings."""
    from matplotlib import style

    file = io.StringIO()
    with warnings.catch_warnings(), style.context(["default", {"svg.fonttype": "none", "svg.hashsalt": "dspp"}]):
        warnings.filterwarnings("ignore", r"Glyph .* missing", UserWarning)  # the browser has fonts for emoji
        ax = draw()
        if not legend and (box := ax.get_legend()) is not None:
            box.remove()
        figure = ax.get_figure(root=True)
        assert figure is not None  # `dspp.plots` made it
        figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(_METADATA))
    return file.getvalue()


def _adapt_tag(tag: str, name: str, used: set[str]) -> str:
    """Return a tag with the ids, colours, fonts and digits of the page."""
    tag = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", tag)
    tag = tag.replace("url(#", f"url(#{name}-").replace('xlink:href="#', f'href="#{name}-')
    tag = _COLOUR.sub(lambda m: _COLOURS[m[0]], tag)
    tag = re.sub(r"font: [^;\"]*?([\d.]+px)[^;\"]*", r"font-size: \1", tag)  # matplotlib before 3.11
    tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
    tag = re.sub(r' transform="rotate\(-0 [^"]*"', "", tag)
    return _GEOMETRY.sub(lambda m: f' {m[1]}="{_round_numbers(m[2])}"', tag)


def _round_numbers(geometry: str) -> str:
    rounded = _NUMBER.sub(lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), geometry)
    return " ".join(rounded.split())

"""A matplotlib figure as SVG that belongs to its page: the page's font and colours, ids of its own, few bytes."""

import io
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

from dspp.plots import PALETTE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Drawing = Callable[[], "Axes"]
_COLOURS = {code: f"var(--{name})" for name, code in PALETTE.items()}
_COLOUR = re.compile("|".join(_COLOURS))
_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_GEOMETRY = re.compile(r' (d|x|y|width|height|transform)="([^"]*)"')
_METADATA = ("Date", "Creator", "Format", "Type")  # None leaves each of them out
_TAG = re.compile(r"<[^>]+>")  # matplotlib escapes < and > in text, so that only tags are changed below


def inline_svg(draw: Drawing, name: str, label: str) -> Markup:
    """Return a figure for the middle of an HTML page.

    Args:
        draw: Calls a function of `dspp.plots`.
        name: Begins every id, so that two figures of a page never share one.
        label: What a screen reader says.
    """
    raw = _drawn(draw)
    used = set(re.findall(r'(?:url\(#|href="#)([^")]+)', raw))
    body = raw[raw.index("<g ") : raw.rindex("</svg>")]
    body = re.sub(r">\s+<", "><", _TAG.sub(lambda tag: _mended(tag[0], name, used), body))
    (box,) = re.findall(r' viewBox="[^"]*"', raw)
    head = f'<svg{box} role="img" aria-label="{escape(label)}">'
    return Markup(head + body + "</svg>")  # the tags are matplotlib's, which escapes the text between them


def _drawn(draw: Drawing) -> str:
    """The SVG that matplotlib writes, the same bytes every time, whatever the user's own settings are."""
    from matplotlib import style

    file = io.StringIO()
    with warnings.catch_warnings(), style.context(["default", {"svg.fonttype": "none", "svg.hashsalt": "dspp"}]):
        warnings.filterwarnings("ignore", r"Glyph .* missing", UserWarning)  # the browser has fonts for emoji
        figure = draw().get_figure(root=True)
        assert figure is not None  # `dspp.plots` made it
        figure.savefig(file, format="svg", transparent=True, metadata=dict.fromkeys(_METADATA))
    return file.getvalue()


def _mended(tag: str, name: str, used: set[str]) -> str:
    """One tag with ids, colours, fonts and digits as the page wants them."""
    tag = re.sub(r' id="([^"]*)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", tag)
    tag = tag.replace("url(#", f"url(#{name}-").replace('xlink:href="#', f'href="#{name}-')
    tag = _COLOUR.sub(lambda m: _COLOURS[m[0]], tag)
    tag = re.sub(r"font: [^;\"]*?([\d.]+px)[^;\"]*", r"font-size: \1", tag)  # matplotlib before 3.11
    tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
    tag = re.sub(r' transform="rotate\(-0 [^"]*"', "", tag)
    return _GEOMETRY.sub(lambda m: f' {m[1]}="{_shorter(m[2])}"', tag)


def _shorter(geometry: str) -> str:
    rounded = _NUMBER.sub(lambda m: f"{float(m[0]):.2f}".rstrip("0").rstrip("."), geometry)
    return " ".join(rounded.split())

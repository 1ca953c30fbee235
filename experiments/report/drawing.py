"""One figure as PNG, as SVG and inline for the page: always the same bytes, whatever the user's settings are."""

import io
import re
import textwrap
import warnings
from typing import TYPE_CHECKING

from markupsafe import Markup

from dspp.plots import FAINT, FONT_SIZE, INK, MUTED, PALETTE
from dspp.report.svg import Drawing, inline_svg
from experiments.report.blocks import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150
_SMALL, _CHARACTERS = 6, 19  # font size in points; characters per inch
_FONT = "'DejaVu Sans', Verdana, Arial, sans-serif"


def picture(name: str, title: str, caption: str, draw: Drawing) -> Picture:
    """Draw a figure once and return it in all three forms.

    Args:
        name: Name of its files, and prefix of its ids on the page.
        title: Its heading.
        caption: How to read it and where it comes from.
        draw: Draws into a new Figure and returns one of its Axes.
    """
    from matplotlib import style

    png = io.BytesIO()
    with warnings.catch_warnings(), style.context("default"):
        warnings.filterwarnings("ignore", r"Glyph .* missing", UserWarning)  # a name in another script
        ax = draw()
        figure = ax.get_figure(root=True)
        assert figure is not None  # `draw` made it
        inline = inline_svg(lambda: ax, name, f"{title}. {caption}")
        lines = textwrap.wrap(f"{title}. {caption}", int(figure.get_figwidth() * _CHARACTERS))
        note = "\n".join(lines).replace("$", r"\$")  # the file has no page around it
        figure.supxlabel(note, x=0.01, ha="left", fontsize=_SMALL, color=MUTED)
        figure.savefig(png, format="png", dpi=DPI, facecolor="white", metadata={"Software": None})
    return Picture(name, title, caption, inline, _standalone(inline), png.getvalue(), figure.get_figwidth())


def _standalone(inline: Markup) -> bytes:
    """Return the inline SVG as a file: on white, with colours in place of the page's variables."""
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', inline)
    assert box is not None  # `inline_svg` writes it
    size = f'xmlns="http://www.w3.org/2000/svg" width="{box[1]}pt" height="{box[2]}pt" font-family="{_FONT}"'
    page = '<rect width="100%" height="100%" fill="#ffffff"/>'
    text = str(inline).replace("<svg ", f"<svg {size} ", 1).replace(">", f">{page}", 1)
    for name, code in PALETTE.items():
        text = text.replace(f"var(--{name})", code)
    return text.encode("utf-8")


def panels(rows: int, columns: int, width: float, height: float) -> tuple["Figure", list["Axes"]]:
    """Return a new Figure of the given size in inches, and its styled Axes, row by row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = [figure.add_subplot(rows, columns, i + 1) for i in range(rows * columns)]
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.spines[["left", "bottom"]].set_color(MUTED)
        ax.tick_params(which="both", color=MUTED, labelcolor=MUTED, labelsize=FONT_SIZE, length=3)
        ax.grid(visible=True, color=FAINT, linewidth=0.6)
        ax.set_axisbelow(True)
    return figure, axes


def heading(ax: "Axes", text: str) -> None:
    """Set the title of a panel; dollar signs are not read as maths."""
    ax.set_title(text, loc="left", fontsize=FONT_SIZE, color=INK, fontweight="bold", parse_math=False)

"""What all figures share: colours, axes in the house style, and checks of columns."""

import math
import re
from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float
from torch import Tensor

from dspp.errors import InputError
from dspp.extras import require
from dspp.table.checks import Array, check_y

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.ticker import Formatter

INK, MUTED, FAINT = "#1c2430", "#5b6675", "#d5dae1"  # text and main lines; secondary; grid
MAIN, CONTRAST = "#0b66a8", "#c8500a"  # predictions; observations and errors
PALETTE = {"ink": INK, "muted": MUTED, "faint": FAINT, "main": MAIN, "contrast": CONTRAST}
FONT_SIZE = 9.0
DASHED: dict[str, Any] = {"color": INK, "linewidth": 1.0, "linestyle": (0, (4, 2))}  # lines of reference
Vector = Float[np.ndarray, " N"]


def house_axes(ax: "Axes | None", width: float = 4.8, height: float = 3.1) -> "Axes":
    """Return `ax` unchanged, or new Axes in the house style."""
    if ax is not None:
        return ax
    require("plot", "a figure")
    from matplotlib.figure import Figure

    ax = Figure(figsize=(width, height), layout="constrained").add_subplot()
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(MUTED)
    ax.tick_params(color=MUTED, labelcolor=MUTED, labelsize=FONT_SIZE, length=3)
    ax.grid(visible=True, color=FAINT, linewidth=0.6)
    ax.set_axisbelow(True)
    ax.margins(x=0.02)
    for axis in (ax.xaxis, ax.yaxis):
        axis.label.set(color=INK, fontsize=FONT_SIZE)
        axis.set_major_formatter(_comma_formatter())
    return ax


def _comma_formatter() -> "Formatter":
    """Return matplotlib's formatter of numbers, with commas between thousands."""
    from matplotlib.ticker import ScalarFormatter

    class Commas(ScalarFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            # not after the point: 0.0150 is not 0.150
            return re.sub(r"(?<![\d.])\d{4,}", lambda m: f"{int(m[0]):,}", super().__call__(x, pos), count=1)

    return Commas()


def log_axes(ax: "Axes", x: bool = False, y: bool = False) -> None:
    """Make axes logarithmic, with ticks that are numbers and not powers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for wanted, axis, scale in ((x, ax.xaxis, ax.set_xscale), (y, ax.yaxis, ax.set_yscale)):
        if not wanted:
            continue
        scale("log")
        low, high = axis.get_view_interval()
        decades = math.log10(high / low) if 0 < low < high else 1.0
        axis.set_major_locator(
            LogLocator(subs=(1.0, 2.0, 5.0) if decades < 2 else (1.0, 3.0) if decades < 4 else (1.0,))
        )
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
        axis.set_minor_formatter(NullFormatter())


def percent_axis(axis: "Axis") -> None:
    """Show shares as percentages."""
    from matplotlib.ticker import PercentFormatter

    axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol="\N{NO-BREAK SPACE}%"))


def name_rows(ax: "Axes", names: Sequence[str], limit: int = 26) -> None:
    """Name the rows of a figure, the first one on top, as written: "US$" is not a formula."""
    ax.set_yticks(range(len(names)), [shorten(name, limit) for name in names], parse_math=False)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    if ax.yaxis.label.get_color() == INK:  # in the house style
        ax.tick_params(axis="y", length=0, labelcolor=INK)


def label_axes(
    ax: "Axes", x: str, y: str, legend_columns: int = 3, legend_side: Literal["left", "right"] = "left"
) -> "Axes":
    """Label the axes and put the legend above them, where it hides nothing."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(
            loc="lower left" if legend_side == "left" else "lower right",
            bbox_to_anchor=(0.0 if legend_side == "left" else 1.0, 1.0),
            ncols=legend_columns,
            frameon=False,
            fontsize=FONT_SIZE,
            labelcolor=INK if ax.xaxis.label.get_color() == INK else None,
            handlelength=1.3,
            markerscale=1.5,
            columnspacing=1.2,
            borderaxespad=0.2,
        )
    return ax


def shorten(name: str, limit: int = 26) -> str:
    """Return a name of at most `limit` characters."""
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


def dots(size: float = 3.2) -> dict[str, Any]:
    """Return keywords that make `Axes.plot` draw points without a line."""
    return {"linestyle": "none", "marker": "o", "markersize": size, "markeredgewidth": 0.0}


def to_numpy(tensor: Tensor) -> Float[np.ndarray, "..."]:
    """Return a tensor as a float64 array."""
    return np.asarray(tensor.detach().cpu().double().numpy(), dtype=np.float64)


def check_column(values: Array, name: str, rows: int | None = None) -> Vector:
    """Check that there is one finite number per row, and return a new float64 array."""
    column = check_y(values, len(values) if isinstance(values, Sized) else 1, name)
    if column.ndim != 1 or rows not in (None, len(column)):
        expected = "(N,)" if rows is None else f"({rows},)"
        raise InputError(f"{name}: expected shape {expected}, got {column.shape}; pass one number per row")
    return column

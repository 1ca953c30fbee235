"""What all figures share: colours, axes in the house style, and checks of columns."""

import re
from collections.abc import Sized
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from dspp.errors import InputError
from dspp.table.checks import Array, check_y

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, FAINT = "#1c2430", "#5b6675", "#d5dae1"  # text and main lines; secondary; grid
MAIN, CONTRAST = "#0b66a8", "#c8500a"  # predictions; observations and errors
PALETTE = {"ink": INK, "muted": MUTED, "faint": FAINT, "main": MAIN, "contrast": CONTRAST}
FONT_SIZE = 9.0
Vector = Float[np.ndarray, " N"]


def house_axes(ax: "Axes | None", width: float = 4.8, height: float = 3.1) -> "Axes":
    """Return `ax` unchanged, or new Axes in the house style."""
    if ax is not None:
        return ax
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
    return ax


def label_axes(ax: "Axes", x: str, y: str, legend_columns: int = 3) -> "Axes":
    """Label the axes and put the legend above them, where it hides nothing."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    _separate_thousands(ax)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
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


def _separate_thousands(ax: "Axes") -> None:
    """Write numbers on the axes as everywhere else: 20,000."""
    from matplotlib.ticker import ScalarFormatter

    class Thousands(ScalarFormatter):
        def __call__(self, x: float, pos: int | None = None) -> str:
            text = super().__call__(x, pos)
            return re.sub(r"^(\D?)(\d{4,})", lambda match: f"{match[1]}{int(match[2]):,}", text)

    for axis in (ax.xaxis, ax.yaxis):
        if type(axis.get_major_formatter()) is ScalarFormatter:
            axis.set_major_formatter(Thousands())


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

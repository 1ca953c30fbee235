"""Figures of the columns of a table: their effect on predictions, and coverage in the groups they form."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.stats import beta

from dspp.errors import InputError
from dspp.plots.style import CONTRAST, INK, MAIN, dots, house_axes, label_axes, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BARS = 0.95  # confidence of the bars of `coverage_dots`


def effect(
    at: NDArray[np.generic], quantiles: Float[np.ndarray, "5 points"], *, ax: "Axes | None" = None, height: float = 3.1
) -> "Axes":
    """Draw the 5, 25, 50, 75 and 95 % quantiles of a prediction against numbers or times, or for each of some texts.

    Args:
        at: The values.
        quantiles: The quantiles at each value.
        ax: Where to draw; None for a new Figure.
        height: Of a new Figure, in inches.

    Example:
        >>> import numpy as np
        >>> from dspp import plots
        >>> size = np.array([50.0, 100.0, 150.0])
        >>> plots.effect(size, np.stack([size - 20.0, size - 10.0, size, size + 10.0, size + 20.0])).get_ylabel()
        'prediction'
    """
    if quantiles.shape != (5, len(at)):
        raise InputError(f"quantiles: expected shape (5, {len(at)}), got {quantiles.shape}; pass five per value")
    if at.dtype.kind in "US":
        return _effect_of_levels(at, quantiles, ax)
    ax, lowest = house_axes(ax, height=height), quantiles[0]
    ax.fill_between(at, lowest, quantiles[4], color=MAIN, alpha=0.14, linewidth=0, label="90 %")
    ax.fill_between(at, quantiles[1], quantiles[3], color=MAIN, alpha=0.26, linewidth=0, label="50 %")
    ax.plot(at, quantiles[2], color=MAIN, linewidth=1.8, marker="o" if len(at) <= 20 else "", markersize=2.6)
    ax.lines[-1].set_label("median")
    return label_axes(ax, "value", "prediction")


def _effect_of_levels(at: NDArray[np.generic], quantiles: Float[np.ndarray, "5 points"], ax: "Axes | None") -> "Axes":
    ax = house_axes(ax, height=0.95 + 0.27 * len(at))
    place = np.arange(len(at))
    ax.hlines(place, quantiles[0], quantiles[4], color=MAIN, alpha=0.3, linewidth=3.0, label="90 %")
    ax.hlines(place, quantiles[1], quantiles[3], color=MAIN, alpha=0.7, linewidth=6.0, label="50 %")
    ax.plot(quantiles[2], place, color=INK, label="median", **dots(5.0))
    _name_rows(ax, [str(level) for level in at])
    return label_axes(ax, "prediction", "")


def coverage_dots(
    names: Sequence[str],
    inside: Int[np.ndarray, " G"],
    totals: Int[np.ndarray, " G"],
    off: Sequence[bool],
    level: float = 0.9,
    *,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the share of rows inside their interval in each group, with 95 % confidence intervals (Clopper–Pearson).

    Args:
        names: The groups.
        inside: How many rows of each lie inside.
        totals: How many rows each has.
        off: Which groups to highlight.
        level: The probability of the intervals.
        ax: Where to draw; None for a new Figure.
    """
    if not len(names) == len(inside) == len(totals) == len(off) or not len(names):
        raise InputError(f"expected one number per group, got {len(names)} names and {len(inside)} counts")
    ax = house_axes(ax, height=0.95 + 0.25 * len(names))
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    tail = 0.5 * (1.0 - BARS)
    low = np.nan_to_num(beta.ppf(tail, inside, totals - inside + 1), nan=0.0)
    high = np.nan_to_num(beta.ppf(1.0 - tail, inside + 1, totals - inside), nan=1.0)
    place, blamed = np.arange(len(names)), np.asarray(off, dtype=bool)
    ax.axvline(level, color=INK, linewidth=1.0, linestyle=(0, (4, 2)))
    for mask, color, label in ((~blamed, MAIN, "may be chance"), (blamed, CONTRAST, "not chance")):
        if mask.any():
            ax.hlines(place[mask], low[mask], high[mask], color=color, alpha=0.6, linewidth=2.0)
            ax.plot((inside / totals)[mask], place[mask], color=color, label=label, **dots(5.5))
    ax.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))  # whole percentages
    ax.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol="\N{NO-BREAK SPACE}%"))
    ax.set_xlim(max(0.0, min(low.min() - 0.01, level - 0.1)), 1.0)
    _name_rows(ax, names, 42)
    return label_axes(ax, "rows inside their interval", "", legend_columns=2, legend_side="right")


def _name_rows(ax: "Axes", names: Sequence[str], limit: int = 26) -> None:
    ax.set_yticks(
        range(len(names)), [shorten(name, limit) for name in names], parse_math=False
    )  # "US$" is not a formula
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    if ax.yaxis.label.get_color() == INK:  # in the house style
        ax.tick_params(axis="y", length=0, labelcolor=INK)

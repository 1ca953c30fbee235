"""Figures of a model: its training, its sites and weights, and what the columns of a table do."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from dspp.errors import InputError
from dspp.history import Epoch
from dspp.numbers import are_years, percent
from dspp.plots.style import (
    CONTRAST,
    DASHED,
    INK,
    MAIN,
    MUTED,
    check_column,
    dots,
    house_axes,
    label_axes,
    name_rows,
    percent_axis,
)
from dspp.table.checks import Array, check_X

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_SITES = 20  # components shown by `sites_and_weights`
_KINDS = ((MAIN, "-"), (CONTRAST, "-"), (INK, "-"), (MUTED, "-"), (MAIN, ":"), (CONTRAST, ":"))  # of members


def training_curves(history: Sequence[Epoch], *, best_epoch: int | None = None, ax: "Axes | None" = None) -> "Axes":
    """Draw the training NLL and, if any, the validation NLL of each epoch.

    Args:
        history: The epochs, such as `FitResult.history`.
        best_epoch: The number of the epoch that was kept, to be marked.
        ax: Where to draw; None for a new Figure.

    Example:
        >>> import numpy as np
        >>> from dspp import Rows, TrainConfig, fit, plots, preset
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> result = fit(preset("ppgpr", inducing=8), Rows.of(X, X[:, 0]), config=TrainConfig(epochs=3, restarts=1))
        >>> plots.training_curves(result.history).get_xlabel()
        'epoch'
    """
    if not history:
        raise InputError("history: expected at least one epoch, got none; train a model first")
    ax = house_axes(ax)
    from matplotlib.ticker import MaxNLocator

    numbers = [epoch.number for epoch in history]
    dot = "o" if len(numbers) == 1 else ""  # a line of one point is invisible
    ax.plot(numbers, [e.train_nll for e in history], color=MUTED, linewidth=1.6, marker=dot, label="training")
    validation = [(e.number, e.val_nll) for e in history if e.val_nll is not None]
    if validation:
        ax.plot(*zip(*validation, strict=True), color=MAIN, linewidth=1.8, marker=dot, label="validation")
    if best_epoch is not None:
        ax.axvline(best_epoch, color=CONTRAST, linewidth=1.2, linestyle=(0, (1, 1.5)), label=f"kept: {best_epoch}")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return label_axes(ax, "epoch", "NLL, nats per row, standardised")


def member_curves(
    histories: Sequence[Sequence[Epoch]],
    kinds: Sequence[str],
    weights: Sequence[float],
    *,
    ax: "Axes | None" = None,
) -> "Axes":
    """Draw the training NLL of several members, coloured by kind; the heavier a member, the thicker its line.

    Args:
        histories: The epochs of each member.
        kinds: The kind of each member.
        weights: The weight of each member.
        ax: Where to draw; None for a new Figure.
    """
    if not len(histories) == len(kinds) == len(weights) or not any(histories):
        raise InputError(f"expected the epochs, kind and weight of each member, got {len(histories)} histories")
    ax = house_axes(ax)
    from matplotlib.ticker import MaxNLocator

    styles = dict(zip(dict.fromkeys(kinds), itertools.cycle(_KINDS), strict=False))
    for history, kind, weight in zip(histories, kinds, weights, strict=True):
        color, line = styles[kind]
        (curve,) = ax.plot([e.number for e in history], [e.train_nll for e in history], color=color, linestyle=line)
        curve.set(alpha=0.75, linewidth=0.7 + 1.3 * weight / max(weights), marker="o" if len(history) == 1 else "")
        if kind not in ax.get_legend_handles_labels()[1]:
            curve.set_label(kind)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return label_axes(ax, "epoch", "training NLL, standardised", legend_columns=2)


def sites_and_weights(sites: Array, weights: Array, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the sites ξ of a hidden layer, one column per component, heaviest first.

    The dots of a column are the sites of the W hidden units, in standard deviations; their area grows with the weight.

    Args:
        sites: ξ (S, W).
        weights: ω (S,), summing to one.
        ax: Where to draw; None for a new Figure.

    Example:
        >>> from dspp import plots
        >>> from dspp.quadrature import QR3
        >>> rule = QR3(widths=[5], num_sites=4)
        >>> plots.sites_and_weights(rule.sites(0).detach(), rule.log_weights().exp().detach()).get_ylabel()
        'site ξ'
    """
    xi = check_X(sites, "sites")
    omega, ax = check_column(weights, "weights", len(xi)), house_axes(ax)
    order = np.argsort(-omega, kind="stable")[:MAX_SITES]
    for height in (-1.0, 0.0, 1.0):
        ax.axhline(height, **DASHED | {"color": INK if height == 0.0 else MUTED, "linewidth": 0.8})
    column = np.repeat(np.arange(len(order)), xi.shape[1])
    area = np.repeat(8.0 + 110.0 * omega[order] / omega.max(), xi.shape[1])
    ax.scatter(column, xi[order].ravel(), s=area, color=MAIN, alpha=0.55, linewidth=0)
    ax.set_xlim(-0.7, len(order) - 0.3)
    shares = [percent(omega[s], 0 if omega[s] >= 0.095 else 1) for s in order]
    ax.set_xticks(range(len(order)), shares, rotation=60 if len(order) > 8 else 0)
    return label_axes(ax, "weight of the component", "site ξ")


def ranked_bars(
    names: Sequence[str],
    values: Array,
    label: str,
    *,
    ends: tuple[Array, Array] | None = None,
    ax: "Axes | None" = None,
    most: int = 20,
) -> "Axes":
    """Draw the `most` largest values as horizontal bars with their names, largest on top.

    Args:
        names: Name of each value.
        values: The values.
        label: What they are.
        ends: For each value, the ends of a line across the end of its bar.
        ax: Where to draw; None for a new Figure.
        most: How many to draw.

    Example:
        >>> from dspp import plots
        >>> axes = plots.ranked_bars(["size", "town"], [0.2, 0.5], "rise of the CRPS")
        >>> [label.get_text() for label in axes.get_yticklabels()]
        ['town', 'size']
    """
    numbers = check_column(values, "values", len(names))
    order = np.argsort(-numbers, kind="stable")[:most]
    ax, position = house_axes(ax, height=0.75 + 0.235 * len(order)), np.arange(len(order))
    ax.barh(position, numbers[order], height=0.7, color=MAIN)
    if ends is not None:
        low, high = (check_column(end, "ends", len(numbers))[order] for end in ends)
        ax.hlines(position, low, high, color=CONTRAST, linewidth=2.0)
    name_rows(ax, [str(names[i]) for i in order])
    return label_axes(ax, label, "")


def effect(at: NDArray[np.generic], quantiles: Float[np.ndarray, "5 points"], *, ax: "Axes | None" = None) -> "Axes":
    """Draw the 5, 25, 50, 75 and 95 % quantiles of a prediction against numbers or times, or for each of some texts.

    Args:
        at: The values.
        quantiles: The quantiles at each value.
        ax: Where to draw; None for a new Figure.

    Example:
        >>> import numpy as np
        >>> from dspp import plots
        >>> size = np.array([50.0, 100.0, 150.0])
        >>> plots.effect(size, np.stack([size - 20.0, size - 10.0, size, size + 10.0, size + 20.0])).get_ylabel()
        'prediction'
    """
    if quantiles.shape != (5, len(at)):
        raise InputError(f"quantiles: expected shape (5, {len(at)}), got {quantiles.shape}; pass five per value")
    lowest, low, median, high, highest = quantiles
    if at.dtype.kind in "US":
        ax, place = house_axes(ax, height=0.95 + 0.27 * len(at)), np.arange(len(at))
        ax.hlines(place, lowest, highest, color=MAIN, alpha=0.3, linewidth=3.0, label="90 %")
        ax.hlines(place, low, high, color=MAIN, alpha=0.7, linewidth=6.0, label="50 %")
        ax.plot(median, place, color=INK, label="median", **dots(5.0))
        name_rows(ax, [str(level) for level in at])
        return label_axes(ax, "prediction", "")
    ax = house_axes(ax)
    ax.fill_between(at, lowest, highest, color=MAIN, alpha=0.14, linewidth=0, label="90 %")
    ax.fill_between(at, low, high, color=MAIN, alpha=0.26, linewidth=0, label="50 %")
    (line,) = ax.plot(at, median, color=MAIN, linewidth=1.8, label="median")
    line.set(marker="o" if len(at) <= 20 else "", markersize=2.6)
    if at.dtype.kind == "M":
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(maxticks=5)  # type: ignore[no-untyped-call]
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    elif are_years(at):
        ax.xaxis.set_major_formatter("{x:.0f}")
    return label_axes(ax, "value", "prediction")


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
    from matplotlib.ticker import MaxNLocator
    from scipy.stats import beta

    low = np.nan_to_num(beta.ppf(0.025, inside, totals - inside + 1), nan=0.0)
    high = np.nan_to_num(beta.ppf(0.975, inside + 1, totals - inside), nan=1.0)
    place, flagged = np.arange(len(names)), np.asarray(off, dtype=bool)
    ax.axvline(level, **DASHED)
    for mask, color, label in ((~flagged, MAIN, "may be chance"), (flagged, CONTRAST, "not chance")):
        if mask.any():
            ax.hlines(place[mask], low[mask], high[mask], color=color, alpha=0.6, linewidth=2.0)
            ax.plot((inside / totals)[mask], place[mask], color=color, label=label, **dots(5.5))
    ax.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))  # whole percentages
    percent_axis(ax.xaxis)
    ax.set_xlim(max(0.0, min(low.min() - 0.01, level - 0.1)), 1.0)
    name_rows(ax, names, 42)
    return label_axes(ax, "rows inside their interval", "", legend_columns=2, legend_side="right")

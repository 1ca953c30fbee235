"""Figures of a model: its training, its sites and weights, and the relevance of its inputs."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dspp.errors import InputError
from dspp.history import Epoch
from dspp.numbers import percent
from dspp.plots.style import CONTRAST, INK, MAIN, MUTED, check_column, house_axes, label_axes, shorten
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
    ax, heaviest = house_axes(ax), max(weights)
    from matplotlib.ticker import MaxNLocator

    styles = dict(zip(dict.fromkeys(kinds), itertools.cycle(_KINDS), strict=False))
    for history, kind, weight in zip(histories, kinds, weights, strict=True):
        numbers, values = [e.number for e in history], [e.train_nll for e in history]
        named = kind in ax.get_legend_handles_labels()[1]
        width, dot = 0.7 + 1.3 * weight / heaviest, "o" if len(numbers) == 1 else ""
        color, line = styles[kind]
        ax.plot(
            numbers,
            values,
            color=color,
            alpha=0.75,
            linewidth=width,
            linestyle=line,
            marker=dot,
            label=None if named else kind,
        )
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
        ax.axhline(height, color=INK if height == 0.0 else MUTED, linewidth=0.8, linestyle=(0, (4, 2)))
    column = np.repeat(np.arange(len(order)), xi.shape[1])
    area = np.repeat(8.0 + 110.0 * omega[order] / omega.max(), xi.shape[1])
    ax.scatter(column, xi[order].ravel(), s=area, color=MAIN, alpha=0.55, linewidth=0)
    ax.set_xlim(-0.7, len(order) - 0.3)
    crowded = len(order) > 8
    shares = [percent(omega[s], 0 if omega[s] >= 0.095 else 1) for s in order]
    ax.set_xticks(range(len(order)), shares, rotation=60 if crowded else 0)
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
    ax.set_yticks(position, [shorten(str(names[i])) for i in order], parse_math=False)  # "US$" is not a formula
    ax.set_ylim(len(order) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    return label_axes(ax, label, "")

"""Figures of a model: how its training went, its sites and weights, and which inputs matter to it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from dspp.errors import InputError
from dspp.plots.style import CONTRAST, INK, MAIN, MUTED, checked_column, house_axes, labelled
from dspp.table.checks import Array, check_X

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_SITES = 20  # components shown by `sites_and_weights`


class EpochLike(Protocol):
    """What `training_curves` asks of an epoch; `dspp.training.Epoch` has it."""

    @property
    def number(self) -> int: ...  # noqa: D102
    @property
    def train_nll(self) -> float: ...  # noqa: D102
    @property
    def val_nll(self) -> float | None: ...  # noqa: D102


def training_curves(history: Sequence[EpochLike], *, best_epoch: int | None = None, ax: "Axes | None" = None) -> "Axes":
    """Draw the NLL of training and, where there is one, of validation after each epoch.

    Args:
        history: The epochs, such as `FitResult.history`.
        best_epoch: The number of the epoch that was kept, marked.
        ax: Where to draw; None: in a new Figure.
    """
    from matplotlib.ticker import MaxNLocator

    if not history:
        raise InputError("history: got no epochs, expected at least one; train a model first")
    ax = house_axes(ax)
    numbers = [epoch.number for epoch in history]
    dot = "o" if len(numbers) == 1 else ""  # a line of one point is invisible
    ax.plot(numbers, [e.train_nll for e in history], color=MUTED, linewidth=1.6, marker=dot, label="training")
    held_out = [(e.number, e.val_nll) for e in history if e.val_nll is not None]
    if held_out:
        ax.plot(*zip(*held_out, strict=True), color=MAIN, linewidth=1.8, marker=dot, label="validation")
    if best_epoch is not None:
        ax.axvline(best_epoch, color=CONTRAST, linewidth=1.2, linestyle=(0, (1, 1.5)), label=f"kept: {best_epoch}")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return labelled(ax, "epoch", "NLL, nats a row, standardised")


def sites_and_weights(sites: Array, weights: Array, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the sites ξ of a hidden layer, one column for each component, the heaviest first.

    The dots of a column are the sites of the W hidden units, in units' standard deviations; area follows weight.

    Args:
        sites: ξ (S, W).
        weights: ω (S,), summing to one.
        ax: Where to draw; None: in a new Figure.
    """
    xi = check_X(sites, "sites")
    omega, ax = checked_column(weights, "weights", len(xi)), house_axes(ax)
    order = np.argsort(-omega, kind="stable")[:MAX_SITES]
    for height in (-1.0, 0.0, 1.0):
        ax.axhline(height, color=INK if height == 0.0 else MUTED, linewidth=0.8, linestyle=(0, (4, 2)))
    column = np.repeat(np.arange(len(order)), xi.shape[1])
    area = np.repeat(8.0 + 110.0 * omega[order] / omega.max(), xi.shape[1])
    ax.scatter(column, xi[order].ravel(), s=area, color=MAIN, alpha=0.55, linewidth=0)
    ax.set_xlim(-0.7, len(order) - 0.3)
    crowded = len(order) > 8
    ax.set_xticks(range(len(order)), [_percent(omega[s]) for s in order], rotation=60 if crowded else 0)
    return labelled(ax, "weight of the component", "site ξ")


def ranked_bars(names: Sequence[str], values: Array, label: str, *, ax: "Axes | None" = None, most: int = 20) -> "Axes":
    """Draw the `most` largest values as horizontal bars with their names, the largest on top."""
    numbers = checked_column(values, "values", len(names))
    order = np.argsort(-numbers, kind="stable")[:most]
    ax, position = house_axes(ax, height=0.75 + 0.235 * len(order)), np.arange(len(order))
    ax.barh(position, numbers[order], height=0.7, color=MAIN)
    ax.set_yticks(position, [_shortened(str(names[i])) for i in order], parse_math=False)  # "US$" is no formula
    ax.set_ylim(len(order) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    return labelled(ax, label, "")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"


def _shortened(name: str, limit: int = 26) -> str:
    return name if len(name) <= limit else f"{name[: limit - 1]}…"

"""The figures of the page, each with a caption that explains how to read it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from dspp import plots
from dspp.numbers import number
from dspp.report.axes import choose_axes
from dspp.report.data import ReportData, TargetData
from dspp.report.svg import Drawing, inline_svg

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.axes import Axes

MAX_DOTS = 2_000  # rows in the scatter plots of a page
MIN_DOTS = 400  # per output, however many outputs there are
TYPICAL = (("certain", 0.1), ("typical", 0.5), ("uncertain", 0.9))  # rows by rank of their spread


@dataclass(frozen=True)
class Panel:
    """One drawing; its title is shown if a picture has several."""

    title: str
    svg: "Markup"


@dataclass(frozen=True)
class Picture:
    """A figure of the page."""

    name: str  # its id
    title: str
    caption: str
    panels: Sequence[Panel]


def picture(name: str, title: str, caption: str, draw: Drawing) -> Picture:
    """Return a figure of one drawing."""
    return Picture(name, title, caption, [Panel(title, inline_svg(draw, name, f"{title}. {caption}"))])


def reliability(target: TargetData, key: str) -> Picture:
    """Return the figure of nominal and observed coverage."""
    return picture(
        f"reliability-{key}",
        "Nominal and observed coverage",
        "80 % of the rows should lie inside their 80 % interval, and so on, so the line should follow the dashed "
        "diagonal. Above it, intervals are too wide; below it, too narrow. Differences inside the grey band may be due "
        "to chance.",
        partial(plots.reliability, target.scored_pit),
    )


def pit(target: TargetData, key: str) -> Picture:
    """Return the histogram of the PIT."""
    return picture(
        f"pit-{key}",
        "Position of observed values",
        "The position of each observed value in its predicted distribution (the PIT), from the lower tail at 0 to the "
        "upper tail at 1. For a calibrated model the histogram is flat. A hump in the middle means that intervals are "
        "too wide, high ends that they are too narrow, and a slope that predictions are biased. Bars that end in the "
        "grey band are consistent with chance.",
        partial(plots.pit_histogram, target.scored_pit, bins=max(5, min(20, len(target.scored_pit) // 20))),
    )


def predicted_observed(target: TargetData, key: str, num_outputs: int) -> Picture:
    """Return the figure of predicted and observed values."""
    shown = _space_evenly(len(target.y), max(MIN_DOTS, MAX_DOTS // num_outputs))
    some = target.mixture.rows(shown.tolist())
    ends = some.quantile(torch.tensor([0.05, 0.95], dtype=torch.float64)).cpu().numpy()
    axes = choose_axes(target.mean[shown], target.y[shown])
    of = (
        f" The figure shows {len(shown):,} of {len(target.y):,} rows, evenly spaced."
        if len(shown) < len(target.y)
        else ""
    )
    return picture(
        f"observed-{key}",
        "Predicted and observed",
        "Each dot is a row, with its predicted mean on the horizontal axis, its observed value on the vertical axis "
        "and its 90 % interval as a grey bar. Dots near the dashed diagonal were predicted well. Orange dots lie "
        f"outside their interval, as one in ten should.{of}{axes.note}",
        lambda: plots.predicted_observed(
            target.mean[shown], ends[0], ends[1], target.y[shown], limits=axes.limits, log=axes.log
        ),
    )


def crps_by_spread(target: TargetData, key: str) -> Picture:
    """Return the figure of errors by predicted spread."""
    groups = "ten groups of equal size" if len(target.y) >= 10 else "groups"
    log = _spans_orders(target)
    return picture(
        f"spread-{key}",
        "Error by predicted spread",
        f"Rows sorted by predicted spread, in {groups}. Bars that rise to the right show that the model knows when it "
        "is uncertain. Orange dots show the mean score of a calibrated Normal with the predicted spread (half of "
        "the 68 % interval)." + (" The vertical axis is logarithmic." if log else ""),
        partial(plots.crps_by_spread, target.spread, target.crps, log=log),
    )


def densities(target: TargetData, data: ReportData, key: str) -> Picture:
    """Return the densities of a certain, a typical and an uncertain prediction."""
    order = np.argsort(target.spread, kind="stable")
    name, panels = f"density-{key}", []
    for i, (kind, rank) in enumerate(TYPICAL):
        row = int(order[round(rank * (len(order) - 1))])
        title = f"{kind.capitalize()}: row {data.row_label(target.row(row))}, spread {number(target.spread[row])}"
        limits = _density_limits(target, row)
        if not limits[0] <= target.y[row] <= limits[1]:
            title += f"; observed {number(target.y[row])}, off the figure"
        label = f"Predicted density of {target.name}. {title}, observed {number(target.y[row])}"
        panels.append(Panel(title, inline_svg(partial(_small_density, target, row, limits), f"{name}-{i}", label)))
    return Picture(
        name,
        "Predictions for three rows",
        "The curve is the predicted density; the shaded area is the 90 % interval. Vertical lines mark the mean "
        "(solid), the median (dashed) and the observed value (orange). Thin grey curves are the components of the "
        "mixture. The rows are at 10 %, 50 % and 90 % of all rows, sorted by spread (half of the 68 % interval). Thin "
        "tails beyond the figure are left out.",
        panels,
    )


def _density_limits(target: TargetData, row: int) -> tuple[float, float]:
    """Return where to draw a density: twice its 95 % interval, or more if the observed value is not far away."""
    levels = torch.tensor([1e-9, 0.025, 0.975], dtype=torch.float64)
    lowest, low, high = target.mixture.rows([row]).quantile(levels).flatten().tolist()
    width, y = high - low, float(target.y[row])
    ends = [max(low - 0.5 * width, lowest), high + 0.5 * width]
    if low - 2.0 * width <= y <= high + 2.0 * width:
        ends += [y - 0.05 * width, y + 0.05 * width]
    return min(ends), max(ends)


def _small_density(target: TargetData, row: int, limits: tuple[float, float]) -> "Axes":
    ax = plots.density(target.mixture, row, y=float(target.y[row]), limits=limits)
    ax.set_xlabel(target.name, parse_math=False)
    return make_small(ax)


def make_small(ax: "Axes", height: float = 2.3) -> "Axes":
    """Return one of several panels side by side, whose legend is in the caption."""
    from matplotlib.figure import Figure

    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    figure.set_size_inches(3.3, height)
    legend = ax.get_legend()
    if legend is not None:
        legend.remove()
    return ax


def _spans_orders(target: TargetData) -> bool:
    """Return whether the mean scores of rows by spread differ so much that bars on a linear axis would vanish."""
    groups = np.array_split(np.argsort(target.spread, kind="stable"), min(10, len(target.y)))
    means = [target.crps[group].mean() for group in groups]
    return bool(0.0 < 20.0 * min(means) < max(means))


def members(data: ReportData, num_outputs: int) -> Picture:
    """Return the training curves of all members in one figure."""
    shown = [member for member in data.members if member.history]
    kinds, weights = [member.kind for member in shown], [member.weight for member in shown]
    return picture(
        "members",
        "Training of the members",
        "Each line is a member: the NLL of its training rows after each epoch; lower is better. Colours show what the "
        "members read, and heavier members have thicker lines. The NLL is computed on standardised targets"
        + (", jointly over all outputs" if num_outputs > 1 else "")
        + ", so its scale differs from that of the scores above.",
        partial(plots.member_curves, [member.history for member in shown], kinds, weights),
    )


def training(data: ReportData, num_outputs: int) -> Picture:
    """Return the training curves of the only model."""
    validated = any(epoch.val_nll is not None for epoch in data.history)
    kept = "" if data.best_epoch is None else " The dotted line marks the epoch whose state was kept."
    return picture(
        "training",
        "Training",
        "The NLL of each epoch; lower is better. It is computed on standardised targets"
        + (", jointly over all outputs" if num_outputs > 1 else "")
        + ", so its scale differs from that of the scores above. "
        + (
            "The model is not trained on validation rows: where their curve turns up, it overfits."
            if validated
            else "There were no validation rows, so the curve does not show overfitting."
        )
        + kept,
        partial(plots.training_curves, data.history, best_epoch=data.best_epoch),
    )


def sites(data: ReportData) -> list[Picture]:
    """Return the learned sites and weights of each hidden layer."""
    pictures = []
    for layer, (xi, weights) in enumerate(zip(data.sites, data.layer_weights(), strict=True)):
        num = len(weights)
        some = f" The figure shows the {plots.MAX_SITES} heaviest of {num:,}." if num > plots.MAX_SITES else ""
        one = picture(
            f"sites-{layer}",
            "Sites and weights" if len(data.sites) == 1 else f"Sites and weights, hidden layer {layer + 1}",
            "Each column is a component of the mixture, heaviest first, with its weight below. Its dots show at how "
            "many standard deviations from the mean it evaluates each hidden unit. If one column has nearly all the "
            f"weight, the mixture has collapsed to a single component.{some}",
            partial(plots.sites_and_weights, xi, weights),
        )
        pictures.append(one)
    return pictures


def relevance(data: ReportData, most: int = 20) -> Picture:
    """Return the relevance of the inputs."""
    names, values = zip(*data.relevance, strict=True)
    some = f" The figure shows the {most} largest of {len(names):,}." if len(names) > most else ""
    return picture(
        "relevance",
        "Relevance of the inputs",
        "How fast the first layer changes along each input (one over its length scale, for standardised inputs). An "
        f"input with a long bar matters much, one near zero hardly at all. The sign of the effect is not shown.{some}",
        partial(plots.ranked_bars, [str(name) for name in names], values, "1 / length scale", most=most),
    )


def _space_evenly(num: int, most: int) -> NDArray[np.intp]:
    """Return at most `most` row numbers out of `num`, evenly spaced."""
    return np.unique(np.linspace(0, num - 1, min(num, most)).round().astype(np.intp))

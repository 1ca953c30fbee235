"""The figures of the page, each with a caption that says how to read it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray

from dspp import plots
from dspp.report.data import MemberData, ReportData, TargetData
from dspp.report.numbers import count, number
from dspp.report.svg import Drawing, inline_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_DOTS = 2_000  # rows in the scatter plots of a page
MIN_DOTS = 400  # of each output, however many there are
TYPICAL = (("sure", 0.1), ("typical", 0.5), ("unsure", 0.9))  # rows by rank of their spread


@dataclass(frozen=True)
class Panel:
    """One drawing; its title is shown where a picture has several."""

    title: str
    svg: Markup


@dataclass(frozen=True)
class Picture:
    """A figure of the page."""

    name: str  # its id
    title: str
    caption: str
    panels: Sequence[Panel]


def _picture(name: str, title: str, caption: str, draw: Drawing) -> Picture:
    return Picture(name, title, caption, [Panel(title, inline_svg(draw, name, f"{title}. {caption}"))])


def reliability(target: TargetData, key: str) -> Picture:
    """Promised against observed coverage."""
    return _picture(
        f"reliability-{key}",
        "Promised and observed coverage",
        "Of the rows, 80 % should lie inside their 80 % interval, and so on: the line should follow the dashed "
        "diagonal. Above it the intervals are too wide, below it too narrow. Inside the grey band a difference may be "
        "chance.",
        partial(plots.reliability, target.pit),
    )


def pit(target: TargetData, key: str) -> Picture:
    """Where the observed values fell in their distributions."""
    return _picture(
        f"pit-{key}",
        "Where observed values fell",
        "The place of each observed value in its predicted distribution (the PIT), from the lower tail at 0 to the "
        "upper at 1. Flat is right. A hump in the middle: intervals too wide; high ends: too narrow; a slope: "
        "predictions lie to one side. Bars that end in the grey band are within chance.",
        partial(plots.pit_histogram, target.pit, bins=max(5, min(20, len(target.pit) // 20))),
    )


def predicted_observed(target: TargetData, key: str, num_outputs: int) -> Picture:
    """What happened against what was predicted."""
    shown = _evenly(len(target.y), max(MIN_DOTS, MAX_DOTS // num_outputs))
    some = target.mixture.rows(shown.tolist())
    ends = some.quantile(torch.tensor([0.05, 0.95], dtype=torch.float64)).cpu().numpy()
    of = (
        f" Shown: {count(len(shown))} of {count(len(target.y))} rows, evenly chosen."
        if len(shown) < len(target.y)
        else ""
    )
    return _picture(
        f"observed-{key}",
        "Predicted and observed",
        "Each dot is a row: its predicted mean to the right, what was observed upwards; its grey bar is the 90 % "
        "interval. Dots near the dashed diagonal were predicted well. Orange ones lie outside their interval, as one "
        f"row in ten should.{of}",
        lambda: plots.predicted_observed(target.mean[shown], ends[0], ends[1], target.y[shown]),
    )


def crps_by_spread(target: TargetData, key: str) -> Picture:
    """Whether the model knows when it does not know."""
    groups = "ten groups of equal size" if len(target.y) >= 10 else "groups"
    return _picture(
        f"spread-{key}",
        "Error by predicted spread",
        f"Rows sorted by how unsure the model was, in {groups}. Bars that rise to the right show that it knows when "
        "it does not know. Orange dots: the mean score of a calibrated Normal with the predicted spread.",
        partial(plots.crps_by_spread, target.std, target.crps),
    )


def densities(target: TargetData, data: ReportData, key: str) -> Picture:
    """The whole prediction for a sure row, a typical one and an unsure one."""
    order = np.argsort(target.std, kind="stable")
    name, panels = f"density-{key}", []
    for i, (kind, rank) in enumerate(TYPICAL):
        row = int(order[round(rank * (len(order) - 1))])
        title = f"{kind.capitalize()}: row {data.row_label(target.row(row))}, spread {number(target.std[row])}"
        label = f"Predicted density of {target.name}. {title}, observed {number(target.y[row])}"
        panels.append(Panel(title, inline_svg(partial(_small_density, target, row), f"{name}-{i}", label)))
    return Picture(
        name,
        "What the model says about three rows",
        "The curve is the predicted density; the shaded part under it holds 90 % of the probability. Upright lines: "
        "the mean (solid) and the median (dashed). Thin grey curves: the components that add up to it. Orange: what "
        "was observed. The rows stand at 10 %, 50 % and 90 % of all rows, sorted by spread (standard deviation).",
        panels,
    )


def _small_density(target: TargetData, row: int) -> "Axes":
    from matplotlib.figure import Figure

    ax = plots.density(target.mixture, row, y=float(target.y[row]))
    figure = ax.get_figure(root=True)
    assert isinstance(figure, Figure)
    figure.set_size_inches(3.3, 2.3)
    legend = ax.get_legend()
    if legend is not None:
        legend.remove()  # the caption has it, once for the three
    ax.set_xlabel(target.name, parse_math=False)
    return ax


def training(part: ReportData | MemberData, num_outputs: int, name: str = "training") -> Picture:
    """How the fit went, of the only model or of one of several."""
    held_out = any(epoch.val_nll is not None for epoch in part.history)
    kept = "" if part.best_epoch is None else " The dotted line marks the epoch whose state was kept."
    return _picture(
        name,
        "Training",
        "The NLL after each pass over the training rows; lower is better. It is that of standardised targets"
        + (", all outputs together" if num_outputs > 1 else "")
        + ", so its scale is not that of the scores above. "
        + ("Validation rows were not trained on: where their curve turns up, the model overfits." if held_out else "")
        + ("" if held_out else "There were no validation rows, so the curve says nothing about overfitting.")
        + kept,
        partial(plots.training_curves, part.history, best_epoch=part.best_epoch),
    )


def sites(data: ReportData) -> list[Picture]:
    """The learned quadrature of each hidden layer."""
    pictures = []
    for layer, (xi, weights) in enumerate(zip(data.sites, data.layer_weights(), strict=True)):
        num = len(weights)
        some = f" Shown: the {plots.MAX_SITES} heaviest of {count(num)}." if num > plots.MAX_SITES else ""
        picture = _picture(
            f"sites-{layer}",
            "Sites and weights" if len(data.sites) == 1 else f"Sites and weights, hidden layer {layer + 1}",
            "Each column is a component of the mixture, the heaviest first, with its weight below. Its dots say how "
            "many standard deviations from the mean it reads each hidden unit. Several heavy columns: the mixture "
            f"is used; one alone: the model has become a single Normal.{some}",
            partial(plots.sites_and_weights, xi, weights),
        )
        pictures.append(picture)
    return pictures


def relevance(data: ReportData, most: int = 20) -> Picture:
    """Which inputs matter."""
    names, values = zip(*data.relevance, strict=True)
    some = f" Shown: the {most} largest of {count(len(names))}." if len(names) > most else ""
    return _picture(
        "relevance",
        "Relevance of the inputs",
        "How fast the first layer changes along each input (one over its length scale, inputs standardised). A long "
        f"bar: small changes matter. Near zero: the input hardly matters. It does not say in which direction.{some}",
        partial(plots.ranked_bars, [str(name) for name in names], values, "1 / length scale", most=most),
    )


def _evenly(num: int, most: int) -> NDArray[np.intp]:
    """At most so many row numbers out of `num`, evenly spaced."""
    return np.unique(np.linspace(0, num - 1, min(num, most)).round().astype(np.intp))

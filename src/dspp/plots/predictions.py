"""Figures of predictive distributions, and of how they compare with observed values."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import binom

from dspp.errors import InputError
from dspp.plots.style import (
    CONTRAST,
    DASHED,
    INK,
    MAIN,
    MUTED,
    Vector,
    check_column,
    dots,
    house_axes,
    label_axes,
    log_axes,
    percent_axis,
    to_numpy,
)
from dspp.table.checks import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes


# Levels at which `reliability` measures coverage, and ids of what it has drawn, for the next model on the same Axes.
RELIABILITY_LEVELS = np.linspace(0.0, 1.0, 101)
_BAND, _DIAGONAL, _CURVE = "dspp-band", "dspp-diagonal", "dspp-coverage"


def density(
    mixture: Any,
    row: int = 0,
    *,
    y: float | None = None,
    ax: "Axes | None" = None,
    limits: tuple[float, float] | None = None,
) -> "Axes":
    """Draw the predictive density of one row, its 90 % interval, mean, median and components.

    Args:
        mixture: The predictive distributions of one output.
        row: The row.
        y: The observed value, drawn as a line.
        ax: Where to draw; None for a new Figure.
        limits: The values between which to draw; None for those of probability 0.999 and the observed one.

    Example:
        >>> import torch
        >>> from dspp import NormalMixture, plots
        >>> mixture = NormalMixture(torch.zeros(1), torch.zeros(1, 4), torch.ones(1, 4), torch.tensor(0.0))  # N(0, 1)
        >>> plots.density(mixture, row=0, y=1.0).get_xlabel()
        'value'
    """
    ax = house_axes(ax)
    one = getattr(mixture, "torch", mixture).rows([row])
    lower, median, upper = one.quantile(torch.tensor([0.05, 0.5, 0.95])).flatten().tolist()
    x = _grid(one, y, limits)
    at = torch.from_numpy(x).to(one.mean)
    with torch.no_grad():
        p = to_numpy(one.rows([0] * len(x)).log_prob(at).exp())
        each = to_numpy(one.rows([0] * len(x)).component_log_prob(at).exp())
    inside = (x >= lower) & (x <= upper)
    ax.fill_between(x, 0.0, p, where=inside.tolist(), color=MAIN, alpha=0.22, linewidth=0, label="90 % interval")
    weights = to_numpy(one.weights).ravel()
    visible = np.flatnonzero(weights > 0.005)
    for s in visible if len(visible) > 1 else ():
        ax.plot(x, weights[s] * each[s], color=MUTED, linewidth=0.7, alpha=0.9)
    ax.plot(x, p, color=MAIN, linewidth=1.8, label="density")
    ax.axvline(float(one.mean), color=INK, linewidth=1.0, label="mean")
    ax.axvline(median, label="median", **DASHED)
    if y is not None and x[0] <= y <= x[-1]:
        ax.axvline(float(y), color=CONTRAST, linewidth=1.8, label="observed")
    ax.set_ylim(bottom=0.0)
    return label_axes(ax, "value", "density", legend_columns=3)


def fan(
    mixture: Any,
    x: Array,
    *,
    y: Array | None = None,
    ax: "Axes | None" = None,
    levels: Sequence[float] = (0.5, 0.8, 0.95),
) -> "Axes":
    """Draw central intervals as bands and the median as a line, with rows sorted by `x`.

    Args:
        mixture: The predictive distributions of one output.
        x: The position of each row on the horizontal axis.
        y: The observed value of each row, drawn as points.
        ax: Where to draw; None for a new Figure.
        levels: The probabilities of the intervals.

    Example:
        >>> import torch
        >>> from dspp import NormalMixture, plots
        >>> mixture = NormalMixture(torch.zeros(1), torch.zeros(1, 4), torch.ones(1, 4), torch.tensor(0.0))  # N(0, 1)
        >>> plots.fan(mixture, x=[1.0, 2.0, 3.0, 4.0]).figure.savefig("fan.png")
    """
    mixture = getattr(mixture, "torch", mixture)
    at = check_column(x, "x", len(mixture))
    observed = None if y is None else check_column(y, "y", len(mixture))
    bad = [level for level in levels if not 0.0 < level < 1.0]
    if bad:
        raise InputError(f"levels: expected probabilities inside (0, 1), such as (0.5, 0.8, 0.95), got {bad[0]}")
    ax, order = house_axes(ax), np.argsort(at, kind="stable")
    for i, level in enumerate(sorted(levels, reverse=True)):
        tails = torch.tensor([0.5 - level / 2, 0.5 + level / 2], dtype=torch.float64)
        lower, upper = (to_numpy(edge)[order] for edge in mixture.quantile(tails))
        ax.fill_between(
            at[order], lower, upper, color=MAIN, alpha=min(0.12 + 0.1 * i, 0.5), linewidth=0, label=f"{100 * level:g} %"
        )
    ax.plot(at[order], to_numpy(mixture.quantile(0.5))[order], color=MAIN, linewidth=1.6, label="median")
    if observed is not None:
        ax.plot(at, observed, color=CONTRAST, alpha=0.8, label="observed", **dots())
    return label_axes(ax, "x", "value", legend_columns=5)


def pit_histogram(pit: Array, *, ax: "Axes | None" = None, bins: int = 20) -> "Axes":
    """Draw a histogram of the PIT, and the band that contains 95 % of the bars if the model is calibrated.

    Args:
        pit: F(y) of each row, between 0 and 1.
        ax: Where to draw; None for a new Figure.
        bins: Number of bars; a flat histogram has height 1.

    Example:
        >>> from dspp import plots
        >>> plots.pit_histogram([0.1, 0.3, 0.5, 0.8], bins=4).get_ylabel()  # the argument is `mixture.pit(y)`
        'relative frequency'
    """
    values = _probabilities(pit)
    if bins < 1:
        raise InputError(f"bins: expected at least 1, got {bins}")
    ax, each = house_axes(ax), len(values) / bins
    heights = np.histogram(values, bins=bins, range=(0.0, 1.0))[0] / each
    lower, upper = binom.ppf([0.025, 0.975], len(values), 1.0 / bins) / each
    ax.axhspan(lower, upper, color=MUTED, alpha=0.28, linewidth=0, label="95 % of bars, if calibrated")
    ax.bar((np.arange(bins) + 0.5) / bins, heights, width=0.9 / bins, color=MAIN, alpha=0.85, label="rows")
    ax.axhline(1.0, **DASHED)
    ax.set_xlim(0.0, 1.0)
    return label_axes(ax, "probability given to values below the observed", "relative frequency")


def reliability(
    pit: Array,
    *,
    ax: "Axes | None" = None,
    name: str = "observed",
    ref_line: bool = True,
    band: bool = True,
    **line: Any,
) -> "Axes":
    """Draw the share of rows inside their central interval against the interval's probability.

    The band contains 95 % of the observed shares at each level if the model is calibrated. Several models can share
    Axes; the diagonal and the band are then drawn once.

    Args:
        pit: F(y) of each row, between 0 and 1.
        ax: Where to draw; None for a new Figure.
        name: The name in the legend.
        ref_line: Whether to draw the diagonal.
        band: Whether to draw the band.
        **line: Keywords for `Axes.plot`.

    Example:
        >>> from dspp import plots
        >>> plots.reliability([0.1, 0.3, 0.5, 0.8]).get_ylabel()  # the argument is `mixture.pit(y)`
        'rows inside it'
    """
    values, ax = _probabilities(pit), house_axes(ax)
    drawn = [artist.get_gid() for artist in (*ax.collections, *ax.lines)]
    if band and not {_BAND, _DIAGONAL} & set(drawn):
        lower, upper = (binom.ppf(tail, len(values), RELIABILITY_LEVELS) / len(values) for tail in (0.025, 0.975))
        shade: dict[str, Any] = {"color": MUTED, "alpha": 0.28, "linewidth": 0, "gid": _BAND}
        ax.fill_between(RELIABILITY_LEVELS, lower, upper, label="95 % band, if calibrated", **shade)
    if ref_line and _DIAGONAL not in drawn:
        ax.plot([0.0, 1.0], [0.0, 1.0], gid=_DIAGONAL, **DASHED)
    colour = (MAIN, CONTRAST, INK, MUTED)[drawn.count(_CURVE) % 4]
    style: dict[str, Any] = {"color": colour, "linewidth": 1.8, "label": name, "gid": _CURVE} | line
    ax.plot(RELIABILITY_LEVELS, central_coverage(values, RELIABILITY_LEVELS), **style)
    ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    percent_axis(ax.xaxis)
    percent_axis(ax.yaxis)
    return label_axes(ax, "probability of the interval", "rows inside it")


def central_coverage(pit: Array, levels: Array) -> Float[np.ndarray, " L"]:
    """Return the share of rows inside their central interval of each probability: |F(y) − ½| <= level/2."""
    distance = np.sort(np.abs(_probabilities(pit) - 0.5))
    inside = np.searchsorted(distance, check_column(levels, "levels") / 2, side="right")
    return np.asarray(inside / len(distance), dtype=np.float64)


def predicted_observed(
    mean: Array,
    lower: Array,
    upper: Array,
    y: Array,
    *,
    ax: "Axes | None" = None,
    limits: tuple[tuple[float, float], tuple[float, float]] | None = None,
    log: bool = False,
) -> "Axes":
    """Draw observed against predicted values with intervals; rows outside their interval are highlighted.

    Args:
        mean: The prediction of each row.
        lower: The lower end of its interval.
        upper: The upper end of its interval.
        y: The observed values.
        ax: Where to draw; None for a new Figure.
        limits: The ends of the horizontal and the vertical axis; None for those of the data.
        log: Whether both axes are logarithmic; values that are not positive are then left out.

    Example:
        >>> from dspp import plots
        >>> axes = plots.predicted_observed(mean=[1.0, 2.0], lower=[0.5, 1.5], upper=[1.5, 2.5], y=[1.2, 3.0])
        >>> axes.set_xlabel("predicted price").get_text()
        'predicted price'
    """
    at = check_column(mean, "mean")
    low, high, observed = (check_column(v, n, len(at)) for v, n in ((lower, "lower"), (upper, "upper"), (y, "y")))
    ax, outside = house_axes(ax, height=3.6), (observed < low) | (observed > high)
    # One path with gaps: the bars blend evenly, and a page with thousands of them stays small.
    gaps = np.full_like(at, np.nan)
    ax.plot(np.repeat(at, 3), np.stack([low, high, gaps], axis=1).ravel(), color=MUTED, alpha=0.3, linewidth=0.8)
    if limits is None:
        ax.axline((at.mean(), at.mean()), slope=1.0, **DASHED)
    else:
        diagonal = min(map(min, limits)), max(map(max, limits))
        ax.plot(diagonal, diagonal, **DASHED)
    ax.plot(at[~outside], observed[~outside], color=MAIN, alpha=0.6, label="inside its interval", **dots())
    ax.plot(at[outside], observed[outside], color=CONTRAST, alpha=0.9, label="outside", **dots())
    if limits is not None:
        ax.set(xlim=limits[0], ylim=limits[1])
    log_axes(ax, x=log, y=log)
    return label_axes(ax, "predicted", "observed")


def crps_by_spread(std: Array, crps: Array, *, ax: "Axes | None" = None, log: bool = False) -> "Axes":
    """Draw the mean CRPS of each tenth of the rows, from the most to the least certain.

    The dots show the expected CRPS of a calibrated Normal with the same standard deviation, σ/√π.

    Args:
        std: The predicted standard deviation of each row.
        crps: The score of each row.
        ax: Where to draw; None for a new Figure.
        log: Whether the vertical axis is logarithmic.

    Example:
        >>> from dspp import plots
        >>> plots.crps_by_spread(std=[0.5, 1.0, 2.0], crps=[0.3, 0.5, 1.2]).get_ylabel()
        'CRPS'
    """
    spread = check_column(std, "std")
    score, ax = check_column(crps, "crps", len(spread)), house_axes(ax, height=3.6)
    groups = np.array_split(np.argsort(spread, kind="stable"), min(10, len(spread)))
    number = np.arange(1, len(groups) + 1)
    ax.bar(number, [score[g].mean() for g in groups], width=0.75, color=MAIN, label="mean CRPS")
    expected = [spread[g].mean() / math.sqrt(math.pi) for g in groups]
    ax.plot(number, expected, color=CONTRAST, label="calibrated Normal", **dots(6.0))
    ax.set_xticks(number)
    log_axes(ax, y=log)
    return label_axes(ax, "tenth of the rows, by predicted spread", "CRPS")


def _grid(one: Any, y: float | None, limits: tuple[float, float] | None) -> Vector:
    """Return the values at which to draw a density: evenly spaced, plus more around each component for its peak."""
    if limits is None:
        low, high = one.quantile(torch.tensor([5e-4, 1.0 - 5e-4], dtype=torch.float64)).flatten().tolist()
    else:
        low, high = limits
    if y is not None and limits is None:
        margin = 0.02 * (high - low)
        low, high = min(low, float(y) - margin), max(high, float(y) + margin)
    mean, std = to_numpy(one.component_mean), to_numpy(one.component_var.sqrt())  # (S, 1)
    near = (mean + std * np.linspace(-4.0, 4.0, 41)).ravel()
    return np.unique(np.concatenate([np.linspace(low, high, 301), near[(near > low) & (near < high)]]))


def _probabilities(pit: Array) -> Vector:
    values = check_column(pit, "pit")
    if values.min() < 0.0 or values.max() > 1.0:
        wrong = values[(values < 0.0) | (values > 1.0)][0]
        raise InputError(
            f"pit: expected probabilities F(y) in [0, 1], got {wrong:g}; pass the result of `mixture.pit(y)`"
        )
    return values

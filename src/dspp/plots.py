"""Figures of predictions: each function draws one thing into an Axes and returns it.

matplotlib is imported when a figure is drawn, without pyplot: no window, no display, no global setting changes. The
colours are few and safe for colour-blind readers; the report swaps them for its light and dark ones.
"""

import math
from collections.abc import Sequence, Sized
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import binom
from torch import Tensor

from dspp.data.checks import Table, check_X, check_y
from dspp.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, FAINT = "#1c2430", "#5b6675", "#d5dae1"  # text and main lines; secondary; grid
MAIN, CONTRAST = "#0b66a8", "#c8500a"  # what the model says; what happened, or went wrong
PALETTE = {"ink": INK, "muted": MUTED, "faint": FAINT, "main": MAIN, "contrast": CONTRAST}
FONT_SIZE = 9.0
MAX_SITES = 20  # components shown by `sites_and_weights`
Vector = Float[np.ndarray, " N"]


class MixtureLike(Protocol):
    """What the figures ask of a predictive distribution of one output; `NormalMixture` has all of it."""

    @property
    def weights(self) -> Float[Tensor, " S"]: ...  # noqa: D102 - as in NormalMixture
    @property
    def component_mean(self) -> Float[Tensor, "S N"]: ...  # noqa: D102
    @property
    def component_var(self) -> Float[Tensor, "S N"]: ...  # noqa: D102
    @property
    def mean(self) -> Float[Tensor, " N"]: ...  # noqa: D102
    def __len__(self) -> int: ...
    def rows(self, index: Sequence[int]) -> Self: ...  # noqa: D102
    def log_prob(self, y: Float[Tensor, " N"]) -> Float[Tensor, " N"]: ...  # noqa: D102
    def quantile(self, p: float | Float[Tensor, " K"]) -> Float[Tensor, " *K N"]: ...  # noqa: D102


class EpochLike(Protocol):
    """What `training_curves` asks of an epoch; `dspp.training.Epoch` has it."""

    @property
    def number(self) -> int: ...  # noqa: D102
    @property
    def train_nll(self) -> float: ...  # noqa: D102
    @property
    def val_nll(self) -> float | None: ...  # noqa: D102


def density(mixture: MixtureLike, row: int = 0, *, y: float | None = None, ax: "Axes | None" = None) -> "Axes":
    """Draw the predictive density of one row: 90 % interval shaded, mean and median marked, components thin.

    Args:
        mixture: The predictive distributions.
        row: Which of its rows.
        y: What was observed, drawn as a line.
        ax: Where to draw; None: in a new Figure.
    """
    ax = _axes(ax)
    one = mixture.rows([row])
    lower, median, upper = one.quantile(torch.tensor([0.05, 0.5, 0.95])).flatten().tolist()
    x = _grid(one, y)
    p = _density_at(one, x)
    inside = (x >= lower) & (x <= upper)
    ax.fill_between(x, 0.0, p, where=inside.tolist(), color=MAIN, alpha=0.22, linewidth=0, label="90 % interval")
    _draw_components(ax, one, x)
    ax.plot(x, p, color=MAIN, linewidth=1.8, label="density")
    ax.axvline(float(one.mean), color=INK, linewidth=1.0, label="mean")
    ax.axvline(median, color=INK, linewidth=1.0, linestyle=(0, (4, 2)), label="median")
    if y is not None:
        ax.axvline(float(y), color=CONTRAST, linewidth=1.8, label="observed")
    ax.set_ylim(bottom=0.0)
    return _label(ax, "value", "density", legend_columns=3)


def fan(
    mixture: MixtureLike,
    x: Table,
    *,
    y: Table | None = None,
    ax: "Axes | None" = None,
    levels: Sequence[float] = (0.5, 0.8, 0.95),
) -> "Axes":
    """Draw central intervals as filled bands and the median as a line, the rows sorted by `x`.

    Args:
        mixture: The predictive distributions.
        x: Where each row stands on the horizontal axis.
        y: What was observed in each row, drawn as points.
        ax: Where to draw; None: in a new Figure.
        levels: The probabilities of the intervals.
    """
    at = _column(x, "x", len(mixture))
    observed = None if y is None else _column(y, "y", len(mixture))
    bad = [level for level in levels if not 0.0 < level < 1.0]
    if bad:
        raise InputError(f"levels: got {bad[0]}, expected probabilities inside (0, 1), such as (0.5, 0.8, 0.95)")
    ax, order = _axes(ax), np.argsort(at, kind="stable")
    for i, level in enumerate(sorted(levels, reverse=True)):
        tails = torch.tensor([0.5 - level / 2, 0.5 + level / 2], dtype=torch.float64)
        lower, upper = (_numpy(edge)[order] for edge in mixture.quantile(tails))
        ax.fill_between(
            at[order], lower, upper, color=MAIN, alpha=min(0.12 + 0.1 * i, 0.5), linewidth=0, label=f"{100 * level:g} %"
        )
    ax.plot(at[order], _numpy(mixture.quantile(0.5))[order], color=MAIN, linewidth=1.6, label="median")
    if observed is not None:
        ax.plot(at, observed, color=CONTRAST, alpha=0.8, label="observed", **_dots())
    return _label(ax, "x", "value", legend_columns=5)


def pit_histogram(pit: Table, *, ax: "Axes | None" = None, bins: int = 20) -> "Axes":
    """Draw how the PIT values are spread, and the band that 95 % of the bars lie in if the model is calibrated.

    Args:
        pit: F(y) of each row, between 0 and 1.
        ax: Where to draw; None: in a new Figure.
        bins: Bars; a flat histogram has height 1.
    """
    values = _probabilities(pit)
    if bins < 1:
        raise InputError(f"got {bins} bins, expected at least 1; try 20")
    ax, each = _axes(ax), len(values) / bins
    heights = np.histogram(values, bins=bins, range=(0.0, 1.0))[0] / each
    lower, upper = binom.ppf([0.025, 0.975], len(values), 1.0 / bins) / each
    ax.axhspan(lower, upper, color=MUTED, alpha=0.28, linewidth=0, label="95 % of bars, if calibrated")
    ax.bar((np.arange(bins) + 0.5) / bins, heights, width=0.9 / bins, color=MAIN, alpha=0.85, label="rows")
    ax.axhline(1.0, color=INK, linewidth=1.0, linestyle=(0, (4, 2)))
    ax.set_xlim(0.0, 1.0)
    return _label(ax, "probability given to values below the observed", "relative frequency")


def reliability(pit: Table, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the share of rows inside their central interval against the interval's probability.

    The band holds 95 % of the observed shares at each level if the model is calibrated.

    Args:
        pit: F(y) of each row, between 0 and 1.
        ax: Where to draw; None: in a new Figure.
    """
    from matplotlib.ticker import PercentFormatter

    values, levels = _probabilities(pit), np.linspace(0.0, 1.0, 101)
    ax = _axes(ax)
    lower, upper = (binom.ppf(tail, len(values), levels) / len(values) for tail in (0.025, 0.975))
    ax.fill_between(levels, lower, upper, color=MUTED, alpha=0.28, linewidth=0, label="95 % band, if calibrated")
    ax.plot([0.0, 1.0], [0.0, 1.0], color=INK, linewidth=1.0, linestyle=(0, (4, 2)))
    ax.plot(levels, central_coverage(values, levels), color=MAIN, linewidth=1.8, label="observed")
    ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol="\N{NO-BREAK SPACE}%"))
    return _label(ax, "probability of the interval", "rows inside it")


def central_coverage(pit: Table, levels: Table) -> Float[np.ndarray, " L"]:
    """Return the share of rows inside their central interval of each probability: |F(y) − ½| <= level/2."""
    distance = np.sort(np.abs(_probabilities(pit) - 0.5))
    inside = np.searchsorted(distance, _column(levels, "levels") / 2, side="right")
    return np.asarray(inside / len(distance), dtype=np.float64)


def predicted_observed(mean: Table, lower: Table, upper: Table, y: Table, *, ax: "Axes | None" = None) -> "Axes":
    """Draw what happened against what was predicted, each row with its interval; rows outside theirs stand out.

    Args:
        mean: The prediction of each row.
        lower: The lower end of its interval.
        upper: The upper end.
        y: What was observed.
        ax: Where to draw; None: in a new Figure.
    """
    at = _column(mean, "mean")
    low, high, observed = (_column(v, n, len(at)) for v, n in ((lower, "lower"), (upper, "upper"), (y, "y")))
    ax, outside = _axes(ax, height=3.6), (observed < low) | (observed > high)
    # One path with gaps: the bars blend evenly, and a page with thousands of them stays small.
    gaps = np.full_like(at, np.nan)
    ax.plot(np.repeat(at, 3), np.stack([low, high, gaps], axis=1).ravel(), color=MUTED, alpha=0.3, linewidth=0.8)
    ax.axline((at.mean(), at.mean()), slope=1.0, color=INK, linewidth=1.0, linestyle=(0, (4, 2)))
    ax.plot(at[~outside], observed[~outside], color=MAIN, alpha=0.6, label="inside its interval", **_dots())
    ax.plot(at[outside], observed[outside], color=CONTRAST, alpha=0.9, label="outside", **_dots())
    return _label(ax, "predicted", "observed")


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
    ax = _axes(ax)
    numbers = [epoch.number for epoch in history]
    dot = "o" if len(numbers) == 1 else ""  # a line of one point is invisible
    ax.plot(numbers, [e.train_nll for e in history], color=MUTED, linewidth=1.6, marker=dot, label="training")
    held_out = [(e.number, e.val_nll) for e in history if e.val_nll is not None]
    if held_out:
        ax.plot(*zip(*held_out, strict=True), color=MAIN, linewidth=1.8, marker=dot, label="validation")
    if best_epoch is not None:
        ax.axvline(best_epoch, color=CONTRAST, linewidth=1.2, linestyle=(0, (1, 1.5)), label=f"kept: {best_epoch}")
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return _label(ax, "epoch", "NLL, nats a row")


def crps_by_spread(std: Table, crps: Table, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the mean CRPS of each tenth of the rows, from the surest to the least sure.

    The dots show the CRPS that a calibrated Normal of the same standard deviation has on average, σ/√π.

    Args:
        std: The predicted standard deviation of each row.
        crps: The score of each row.
        ax: Where to draw; None: in a new Figure.
    """
    spread = _column(std, "std")
    score, ax = _column(crps, "crps", len(spread)), _axes(ax, height=3.6)
    groups = np.array_split(np.argsort(spread, kind="stable"), min(10, len(spread)))
    number = np.arange(1, len(groups) + 1)
    ax.bar(number, [score[g].mean() for g in groups], width=0.75, color=MAIN, label="mean CRPS")
    expected = [spread[g].mean() / math.sqrt(math.pi) for g in groups]
    ax.plot(number, expected, color=CONTRAST, label="calibrated Normal", **_dots(6.0))
    ax.set_xticks(number)
    return _label(ax, "tenth of the rows, by predicted spread", "CRPS")


def sites_and_weights(sites: Table, weights: Table, *, ax: "Axes | None" = None) -> "Axes":
    """Draw the sites ξ of a hidden layer, one column for each component, the heaviest first.

    The dots of a column are the sites of the W hidden units, in units' standard deviations; area follows weight.

    Args:
        sites: ξ (S, W).
        weights: ω (S,), summing to one.
        ax: Where to draw; None: in a new Figure.
    """
    xi = check_X(sites, "sites")
    omega, ax = _column(weights, "weights", len(xi)), _axes(ax)
    order = np.argsort(-omega, kind="stable")[:MAX_SITES]
    for height in (-1.0, 0.0, 1.0):
        ax.axhline(height, color=INK if height == 0.0 else MUTED, linewidth=0.8, linestyle=(0, (4, 2)))
    column = np.repeat(np.arange(len(order)), xi.shape[1])
    area = np.repeat(8.0 + 110.0 * omega[order] / omega.max(), xi.shape[1])
    ax.scatter(column, xi[order].ravel(), s=area, color=MAIN, alpha=0.55, linewidth=0)
    ax.set_xlim(-0.7, len(order) - 0.3)
    crowded = len(order) > 8
    ax.set_xticks(range(len(order)), [_percent(omega[s]) for s in order], rotation=60 if crowded else 0)
    return _label(ax, "weight of the component", "site ξ")


def relevance(names: Sequence[str], lengthscales: Table, *, ax: "Axes | None" = None, most: int = 20) -> "Axes":
    """Draw 1/length scale of each input as bars, the largest on top: how fast predictions change along it.

    Args:
        names: The inputs.
        lengthscales: Their length scales, in standard deviations of each input.
        ax: Where to draw; None: in a new Figure.
        most: Bars drawn at most.
    """
    scales = _column(lengthscales, "lengthscales", len(names))
    if not (scales > 0.0).all():
        raise InputError(f"lengthscales: got {scales.min():g}, expected positive numbers")
    return ranked_bars(names, 1.0 / scales, "relevance, 1 / length scale", ax=ax, most=most)


def ranked_bars(names: Sequence[str], values: Table, label: str, *, ax: "Axes | None" = None, most: int = 20) -> "Axes":
    """Draw the `most` largest values as horizontal bars with their names, the largest on top."""
    numbers = _column(values, "values", len(names))
    order = np.argsort(-numbers, kind="stable")[:most]
    ax, position = _axes(ax, height=0.75 + 0.235 * len(order)), np.arange(len(order))
    ax.barh(position, numbers[order], height=0.7, color=MAIN)
    ax.set_yticks(position, [_shortened(str(names[i])) for i in order], parse_math=False)  # "US$" is no formula
    ax.set_ylim(len(order) - 0.5, -0.5)
    ax.grid(visible=False, axis="y")
    return _label(ax, label, "")


# ---------------------------------------------------------------- what the figures share


def _axes(ax: "Axes | None", width: float = 4.8, height: float = 3.1) -> "Axes":
    """The caller's Axes as they are, or new ones in the house style."""
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


def _label(ax: "Axes", x: str, y: str, legend_columns: int = 3) -> "Axes":
    """Name the axes and put the legend above them, where it hides nothing."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
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


def _dots(size: float = 3.2) -> dict[str, Any]:
    return {"linestyle": "none", "marker": "o", "markersize": size, "markeredgewidth": 0.0}


def _grid(one: MixtureLike, y: float | None) -> Vector:
    """Values at which a density is drawn: even ones, and more around each component, so that no peak is missed."""
    low, high = one.quantile(torch.tensor([5e-4, 1.0 - 5e-4], dtype=torch.float64)).flatten().tolist()
    if y is not None:
        margin = 0.02 * (high - low)
        low, high = min(low, float(y) - margin), max(high, float(y) + margin)
    mean, std = _numpy(one.component_mean), _numpy(one.component_var.sqrt())  # (S, 1)
    near = (mean + std * np.linspace(-4.0, 4.0, 41)).ravel()
    return np.unique(np.concatenate([np.linspace(low, high, 301), near[(near > low) & (near < high)]]))


def _density_at(one: MixtureLike, x: Vector) -> Vector:
    with torch.no_grad():
        return _numpy(one.rows([0] * len(x)).log_prob(torch.from_numpy(x).to(one.mean)).exp())


def _draw_components(ax: "Axes", one: MixtureLike, x: Vector) -> None:
    """Draw ω_s N(x | μ_s, v_s) of every component that would be seen; a single one is the density itself."""
    columns = zip(*(_numpy(v).ravel() for v in (one.weights, one.component_mean, one.component_var)), strict=True)
    heavy = [(weight, mean, var) for weight, mean, var in columns if weight > 0.005]
    for weight, mean, var in heavy if len(heavy) > 1 else []:
        p = weight * np.exp(-0.5 * (x - mean) ** 2 / var) / math.sqrt(2.0 * math.pi * var)
        ax.plot(x, p, color=MUTED, linewidth=0.7, alpha=0.9)


def _numpy(tensor: Tensor) -> Float[np.ndarray, "..."]:
    return np.asarray(tensor.detach().cpu().double().numpy(), dtype=np.float64)


def _column(values: Table, name: str, rows: int | None = None) -> Vector:
    """A new float64 array of finite numbers, one a row, or an `InputError`."""
    column = check_y(values, len(values) if isinstance(values, Sized) else 1, name)
    if column.ndim != 1 or rows not in (None, len(column)):
        expected = "(N,)" if rows is None else f"({rows},)"
        raise InputError(f"{name}: got shape {column.shape}, expected {expected}; give one number for each row")
    return column


def _probabilities(pit: Table) -> Vector:
    values = _column(pit, "pit")
    if values.min() < 0.0 or values.max() > 1.0:
        wrong = values[(values < 0.0) | (values > 1.0)][0]
        raise InputError(
            f"pit: got {wrong:g}, expected probabilities F(y) in [0, 1]; give what `mixture.pit(y)` returns"
        )
    return values


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.095 else f"{100 * share:.1f} %"


def _shortened(name: str, limit: int = 26) -> str:
    return name if len(name) <= limit else f"{name[: limit - 1]}…"

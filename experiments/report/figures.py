"""The figures of every comparison: dot plots with error bars, and critical-difference diagrams."""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dspp.plots import CONTRAST, FONT_SIZE, INK, MAIN, MUTED
from experiments.peers import PEERS
from experiments.report import tables
from experiments.report.blocks import Picture
from experiments.report.drawing import heading, panels, picture
from experiments.report.layout import HEADLINE, Layout
from experiments.report.paper import Paper
from experiments.report.ranks import Ranking, cliques
from experiments.report.records import Grid, Record, is_number

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLUMNS = 4  # panels side by side
MARKS = ("o", "D")  # one per variant
SIZES = (5.5, 4.6)
OURS, PAPERS, PEER = "ours", "the paper's", "peers (ours)"
SHAPE = "shape"  # a legend entry that explains a marker, whatever its colour


def dot_plot(grid: Grid, paper: Paper, layout: Layout) -> Picture:
    """Return a plot with a panel per data set and a row per method: ours filled, the paper's hollow, errors as bars."""
    goal = "left is better" if grid.metric.target is None else f"the line marks {grid.metric.target:g}"
    kinds = f" Circles: {layout.variants[0]}; diamonds: {layout.variants[1]}." if layout.variants else ""
    apart = f" Orange: peers ({', '.join(grid.present(PEERS))})." if grid.present(PEERS) else ""
    beside = " Hollow: the paper's." if layout.paper_cells and grid.metric.name in tables.PAPER_METRICS else ""
    caption = (
        f"{grid.source}. Filled: ours; bars: standard errors where there are two splits or more; {goal}."
        f"{beside}{kinds}{apart}"
    )
    name = f"{layout.name}-{grid.source.protocol}-{grid.metric.key}"
    return picture(name, f"{layout.title}: {grid.metric.name}", caption, partial(_draw_dots, grid, paper, layout))


Point = tuple[str, str, float, float | None]  # method, kind, mean, standard error


def _points(grid: Grid, paper: Paper, layout: Layout, dataset: str) -> list[Point]:
    points: list[Point] = []
    for method in grid.methods:
        cell, other = grid.cell(dataset, method), paper.cell(layout, grid.metric, dataset, method)
        if cell:
            points.append((method, PEER if method in PEERS else OURS, cell.mean, cell.error))
        if other:
            points.append((method, PAPERS, other.mean, other.error))
    return points


def _draw_dots(grid: Grid, paper: Paper, layout: Layout) -> "Axes":
    found = {dataset: _points(grid, paper, layout, dataset) for dataset in grid.datasets}
    found = {dataset: points for dataset, points in found.items() if points}
    used = {method for points in found.values() for method, *_ in points}
    rows = list(dict.fromkeys(layout.row(method)[0] for method in grid.methods if method in used))
    columns = min(COLUMNS, len(found))
    lines = math.ceil(len(found) / columns)
    width = 1.6 + 2.1 * columns if columns > 1 else 4.8
    step = 0.34 if layout.variants else 0.26
    figure, axes = panels(lines, columns, width, 0.75 + lines * (0.65 + step * len(rows)))
    for i, (ax, (dataset, points)) in enumerate(zip(axes, found.items(), strict=False)):
        heading(ax, dataset)
        _panel(ax, points, rows, layout, labels=i % columns == 0)
        if grid.metric.target is not None:
            ax.axvline(grid.metric.target, color=INK, linewidth=0.9, linestyle=(0, (3, 2)))
    for ax in axes[len(found) :]:
        ax.set_visible(False)
    figure.supxlabel(f"{grid.metric.name} ({grid.metric.unit})", fontsize=FONT_SIZE, color=INK)
    _legend(axes[0], {kind for points in found.values() for _, kind, *_ in points}, layout)
    return axes[0]


def _panel(ax: "Axes", points: Sequence[Point], rows: Sequence[str], layout: Layout, labels: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    for method, kind, mean, error in points:
        row, variant = layout.row(method)
        shift = (0.3 * (variant - 0.5) if layout.variants else 0.0) + (0.09 if kind == PAPERS else -0.09)
        ax.errorbar([mean], [rows.index(row) + shift], xerr=None if error is None else [error], **_look(kind, variant))
    ax.set_yticks(range(len(rows)), rows if labels else [""] * len(rows), parse_math=False)
    ax.set_ylim(len(rows) - 0.4, -0.6)  # the first method on top
    ax.margins(x=0.1)
    ax.xaxis.set_major_locator(MaxNLocator(4, min_n_ticks=2))
    ax.tick_params(axis="y", length=0, labelcolor=INK)


def _look(kind: str, variant: int) -> dict[str, Any]:
    colour = {OURS: MAIN, PAPERS: MUTED, PEER: CONTRAST, SHAPE: INK}[kind]
    return {
        "fmt": MARKS[variant],
        "color": colour,
        "markersize": SIZES[variant],
        "markerfacecolor": "none" if kind == PAPERS else colour,
        "markeredgewidth": 1.1,
        "elinewidth": 1.2,
    }


def _legend(ax: "Axes", kinds: set[str], layout: Layout) -> None:
    from matplotlib.lines import Line2D

    figure = ax.get_figure(root=True)
    assert figure is not None  # `panels` made it
    shown = [(kind, kind, 0) for kind in (OURS, PAPERS, PEER) if kind in kinds]
    shown += [(name, SHAPE, i) for i, name in enumerate(layout.variants)]
    handles = []
    for label, kind, variant in shown:
        look = _look(kind, variant)
        keys = ("color", "markersize", "markerfacecolor", "markeredgewidth")
        mark = {key: look[key] for key in keys}
        handles.append(Line2D([], [], linestyle="none", marker=MARKS[variant], label=label, **mark))
    figure.legend(
        handles=handles,
        loc="outside upper left",
        ncols=len(handles),
        frameon=False,
        fontsize=FONT_SIZE,
        labelcolor=INK,
        handletextpad=0.1,
        columnspacing=1.4,
    )


LARGE_ROWS = 100_000  # sets from this size on have a learning curve


def learning_curves(records: Sequence[Record], layout: Layout, protocol: str) -> Picture | None:
    """Return the validation NLL of large sets against the rows seen in training; None if no run stored its curve."""
    curves: dict[str, dict[str, tuple[int, list[float]]]] = {}
    for record in records:
        curve, rows = record.details.get("curve"), record.details.get("rows")
        if isinstance(curve, list) and isinstance(rows, int) and rows >= LARGE_ROWS and all(map(is_number, curve)):
            curves.setdefault(record.dataset, {})[record.method] = rows, [float(value) for value in curve]
    if not curves:
        return None
    caption = f"Protocol {protocol}. The NLL of the validation rows at the end of each epoch; lower is better."
    name = f"{layout.name}-{protocol}-curves"
    return picture(name, f"{layout.title}: NLL against rows seen", caption, partial(_draw_curves, curves))


def _draw_curves(curves: Mapping[str, Mapping[str, tuple[int, list[float]]]]) -> "Axes":
    _, axes = panels(1, len(curves), 1.2 + 3.6 * len(curves), 2.9)
    for ax, (dataset, found) in zip(axes, curves.items(), strict=True):
        heading(ax, dataset)
        for i, (method, (rows, values)) in enumerate(found.items()):
            colour = MAIN if method == HEADLINE else (INK, CONTRAST, MUTED)[i % 3]
            seen = [rows * (k + 1) / 1e6 for k in range(len(values))]
            ax.plot(seen, values, color=colour, marker="o", markersize=4, linewidth=1.4)
            ax.annotate(
                method,
                (seen[-1], values[-1]),
                (6, 0),
                textcoords="offset points",
                va="center",
                fontsize=FONT_SIZE,
                color=colour,
                annotation_clip=False,
                parse_math=False,
            )
        ax.set_xlim(0, max(rows * len(values) for rows, values in found.values()) * 1.3e-6)
        ax.set_xlabel("million rows seen", fontsize=FONT_SIZE, color=INK)
    axes[0].set_ylabel("validation NLL, nats", fontsize=FONT_SIZE, color=INK)
    return axes[0]


def critical_differences(found: Sequence[tuple[Grid, Ranking]], layout: Layout) -> Picture | None:
    """Return a diagram of average ranks for each metric that has a critical difference; None if no metric has one."""
    drawn = [(grid, ranking) for grid, ranking in found if ranking.critical is not None]
    if not drawn:
        return None
    pairs = sorted({len(ranking.pairs) for _, ranking in drawn})
    caption = (
        f"{drawn[0][0].source}. Average ranks over {' or '.join(map(str, pairs))} pairs of data set and split, the "
        "best on the left. A bar joins methods that the Nemenyi test cannot tell apart at the 5 % level."
    )
    name = f"{layout.name}-{drawn[0][0].source.protocol}-ranks"
    return picture(name, f"{layout.title}: average ranks", caption, partial(_draw_ranks, drawn))


def _draw_ranks(drawn: Sequence[tuple[Grid, Ranking]]) -> "Axes":
    depth = [1.9 + 0.2 * len(cliques(r)) + 0.38 * math.ceil(len(r.methods) / 2) for _, r in drawn]
    _, axes = panels(len(drawn), 1, 6.4, 0.62 * sum(depth))
    grid_spec = axes[0].get_gridspec()
    assert grid_spec is not None  # `panels` made it
    grid_spec.set_height_ratios(depth)
    for ax, (grid, ranking), height in zip(axes, drawn, depth, strict=True):
        heading(ax, grid.metric.name)
        ax.axis("off")
        _scale(ax, ranking)
        _hang(ax, ranking)
        ax.set_xlim(1 - 0.42 * len(ranking.methods), 1.42 * len(ranking.methods))
        ax.set_ylim(1.1 - height, 1.1)
    return axes[0]


def _scale(ax: "Axes", ranking: Ranking) -> None:
    """Draw a scale of ranks, the critical difference as a ruler above it, and bars over similar methods below."""
    num, critical = len(ranking.methods), ranking.critical or 0.0
    small: dict[str, Any] = {"fontsize": FONT_SIZE, "color": MUTED}
    ax.plot([1, num], [0, 0], color=INK, linewidth=1.2)
    for rank in range(1, num + 1):
        ax.plot([rank, rank], [0, 0.1], color=INK, linewidth=1.0)
        ax.text(rank, 0.16, str(rank), ha="center", va="bottom", **small)
    for i, (low, high) in enumerate(cliques(ranking)):
        ax.plot([low - 0.03, high + 0.03], [-0.2 * (i + 1)] * 2, color=CONTRAST, linewidth=3.2, solid_capstyle="butt")
    end = min(1 + critical, num)
    ax.plot([1, end], [0.72, 0.72], color=MUTED, linewidth=1.4, marker="|", markersize=6)
    wider = " (more than the scale)" if 1 + critical > num else ""
    ax.text(end + 0.02 * num, 0.72, f"critical difference {critical:.2f}{wider}", va="center", **small)


def _hang(ax: "Axes", ranking: Ranking) -> None:
    """Draw the methods below the scale: the better half on the left, the others on the right."""
    num, bars = len(ranking.methods), len(cliques(ranking))
    for i, (rank, method) in enumerate(sorted(zip(ranking.ranks, ranking.methods, strict=True))):
        left = i < math.ceil(num / 2)
        y = -0.2 * bars - 0.38 * ((i if left else num - 1 - i) + 1)
        x, colour = (0.8 if left else num + 0.2), (MAIN if method == HEADLINE else INK)
        ax.plot([rank, rank, x], [0, y, y], color=colour, linewidth=0.9)
        text = f"{method} {rank:.2f}" if left else f"{rank:.2f} {method}"
        side, gap = ("right", -0.015 * num) if left else ("left", 0.015 * num)
        ax.text(x + gap, y, text, ha=side, va="center", fontsize=FONT_SIZE, color=colour, parse_math=False)

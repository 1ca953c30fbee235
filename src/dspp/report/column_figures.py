"""The figures of the user's columns: importance, effects, and coverage in the groups they form."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from dspp import plots
from dspp.numbers import are_years, number
from dspp.plots.style import shorten
from dspp.report.effects import Effect, Group
from dspp.report.figures import Panel, Picture, make_small, picture
from dspp.report.importance import REPEATS, Importance
from dspp.report.svg import inline_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_BARS = 20
MOST_NAMED = 3  # groups whose coverage is off, in the caption


def importance(found: Importance) -> Picture:
    """Return the importance of the columns."""
    shown = min(len(found.names), MOST_BARS)
    unit = "standard deviations of the targets" if found.scaled else "the units of the target"
    total = len(found.names) + found.left_out
    some = f" The figure shows {shown:,} of {total:,} columns." if shown < total else ""
    return picture(
        "importance",
        "Importance of the columns",
        f"How much the {found.loss} rises when the values of a column are shuffled among the rows, in {unit}; it is "
        f"{number(found.before, 3)} with all columns as they are. A bar is the mean of {REPEATS} shuffles of "
        f"{found.num_rows:,} rows, its orange line their range. Of columns that say the same, each may seem to matter "
        f"little.{some}",
        partial(
            plots.ranked_bars,
            [str(name) for name in found.names],
            found.mean,
            f"increase of the {found.loss}",
            ends=(found.increase.min(axis=1), found.increase.max(axis=1)),
            most=MOST_BARS,
        ),
    )


def effects(found: Sequence[Effect], key: str) -> Picture:
    """Return the effects of columns on one output."""
    name, panels = f"effects-{key}", []
    for k, one in enumerate(found):
        label = f"Prediction of {one.target} by {one.column}"
        panels.append(Panel(one.column, inline_svg(partial(_draw_effect, one), f"{name}-{k}", label)))
    rows = found[0].num_rows
    return Picture(
        name,
        "Effect of the most important columns" if len(found) > 1 else f"Effect of {found[0].column}",
        f"What is predicted for {rows:,} rows if all have the same value of a column: the median (line or dot), "
        "the 50 % interval (dark) and the 90 % interval (light), each the median over the rows. Values of columns that "
        "go together in the data may not occur in these combinations.",
        panels,
    )


def _draw_effect(one: Effect) -> "Axes":
    ax = plots.effect(one.at, one.quantiles)
    if one.at.dtype.kind in "US":
        ax.set_xlabel(one.target, parse_math=False)
        return make_small(ax, max(2.3, 0.5 + 0.21 * len(one.at)))
    ax.set_xlabel("")  # the column is the title of the panel
    ax.set_ylabel(one.target, parse_math=False)
    if one.at.dtype.kind == "M":
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

        locator = AutoDateLocator(maxticks=5)  # type: ignore[no-untyped-call]
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    elif are_years(one.at):
        ax.xaxis.set_major_formatter("{x:.0f}")
    return make_small(ax)


def coverage_by_group(found: Sequence[Group], key: str) -> Picture:
    """Return the coverage in groups of rows."""
    names = [f"{shorten(group.column, 16)}: {shorten(group.label, 24)}" for group in found]
    return picture(
        f"groups-{key}",
        "Coverage in groups of rows",
        "The share of rows inside their 90 % interval, in the quarters of the most important columns or their most "
        f"frequent levels, with 95 % confidence intervals. {describe_groups(found)}",
        partial(
            plots.coverage_dots,
            names,
            np.array([group.inside for group in found]),
            np.array([group.num_rows for group in found]),
            [bool(group.off) for group in found],
        ),
    )


def describe_groups(found: Sequence[Group]) -> str:
    """Return a sentence on the groups whose coverage is off."""
    blamed = sorted((group for group in found if group.off), key=lambda group: -abs(group.coverage - 0.9))
    if not blamed:
        return f"None of the {len(found)} groups differs from 90 % by more than chance explains."
    each = "; ".join(
        f"{g.column}: {g.label} ({100 * g.coverage:.1f} % of {g.num_rows:,} rows, intervals {g.off})"
        for g in blamed[:MOST_NAMED]
    )
    each += f"; and {len(blamed) - MOST_NAMED} more" if len(blamed) > MOST_NAMED else ""
    differ = "differs" if len(blamed) == 1 else "differ"
    groups = f"{len(blamed)} of the {len(found)} groups {differ} from 90 %"
    return f"{groups} by more than chance explains, shown in orange: {each}."

"""The panels about single outputs: calibration, accuracy, typical predictions and surprises."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from jaxtyping import Float

from dspp import plots
from dspp.calibration import Calibration, chance_bounds, is_told_apart
from dspp.evaluate import Evaluation
from dspp.fitted import Fitted
from dspp.metrics import LEVELS, METRICS, Comparison
from dspp.numbers import are_years, cell, number, number_with_spread, percent
from dspp.plots.style import house_axes
from dspp.report.columns import effects_figure, groups_figure, measure_effects, measure_groups
from dspp.report.page import Figure, Panel, TextTable, figure
from dspp.report.probe import Rows, column_values
from dspp.table.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_OUTPUTS, TOP_OUTPUTS = 6, 2  # shown in full, and with the effects of columns
MAX_DOTS, MIN_DOTS = 2_000, 400  # rows in all scatter plots of a page, and in each
TYPICAL = (("certain", 0.1), ("typical", 0.5), ("uncertain", 0.9))  # rows by rank of their spread
MAX_SURPRISES = 10  # rows
MAX_PRINTED = 10  # columns of that table
MIN_EXTREME = 50  # rows to tell what is extreme
HEAVY = 0.4  # the range from 1 to 99 %, as a share of the whole range, of targets with heavy tails
SKEWED = 1.0  # skewness of positive targets that are drawn on logarithmic axes

Vector = Float[np.ndarray, " n"]
Ends = tuple[float, float]


def output_panels(
    evaluation: Evaluation, shown: Rows, matter: Sequence[str], inputs: Sequence[str]
) -> dict[str, list[Panel]]:
    """Return panels on each output of real numbers that was observed, by the section that they belong to.

    They draw the rows `shown` of the table. The columns that `matter` have their effects, and coverage in the groups
    they form; `inputs` are the columns beside surprises.
    """
    fitted, table, comparison = evaluation.fitted, evaluation.table, evaluation.comparison
    sections = defaultdict[str, list[Panel]](list)
    values = fitted.outcome.drawn_values(table.targets[shown])
    if values is None:
        return sections
    judged = cast(Calibration, evaluation.calibration)  # of real outputs
    pits = comparison.by_output(comparison.pit)
    observed = [
        (t, pit.double().numpy(), part)
        for (t, _), pit, part in zip(comparison.outputs, pits, judged.per_output or (judged,), strict=True)
        if not np.isnan(values[:, t]).all()
    ]
    several, scores = len(observed) > 1, []
    effects, averaged = measure_effects(evaluation, matter, [t for t, *_ in observed[:TOP_OUTPUTS]])
    distributions = evaluation.distribution.rows(torch.from_numpy(shown)).outputs()
    for k, (t, every_pit, calibration) in enumerate(observed):
        seen = ~np.isnan(values[:, t])
        rows, name, key = shown[seen], fitted.outcome.output_names[t], str(k)
        drawn = Comparison(distributions[t].rows(torch.from_numpy(seen)), values[seen, t])
        if several:
            found = drawn.scores(["nll", "rmse", "crps"])
            scores.append((name, *map(number, found.values()), percent(calibration.coverage[0.9])))
        if k >= MAX_OUTPUTS:
            continue
        part, spread = table.take(rows), half_width(drawn)
        at = rows if evaluation.index is None else evaluation.index[rows]
        pit = comparison.pit.cpu().double().numpy().reshape(len(comparison), -1)[at, t]
        groups = measure_groups({column: column_values(fitted, part, column) for column in matter}, pit)
        about = [groups_figure(groups, key)] if groups else []
        about += [effects_figure(effects, k, name, averaged)] if effects and k < TOP_OUTPUTS else []
        dots = max(MIN_DOTS, MAX_DOTS // len(observed))
        head = name if several else ""
        judgement = calibration_figures(every_pit, key)
        accuracy = [predicted_observed(drawn, dots, key), crps_by_spread(drawn, spread, key)]
        sections["calibration"].append(Panel(head, figures=judgement, table=coverage_table(calibration)))
        sections["accuracy"].append(Panel(head, figures=accuracy))
        sections["columns"] += [Panel(head, figures=about)] if about else []
        sections["rows"].append(Panel(head, figures=[densities(drawn, spread, name, part, key)]))
        sections["surprises"].append(Panel(head, table=surprises(drawn, fitted, part, inputs)))
    if several:
        titles = [METRICS[metric].title for metric in ("nll", "rmse", "crps", "coverage90")]
        more = f"The first {MAX_OUTPUTS} outputs are shown in full below." if len(observed) > MAX_OUTPUTS else ""
        sections["scores"] = [Panel("Each output", more, table=TextTable(("output", *titles), scores))]
    return sections


def half_width(drawn: Comparison) -> Vector:
    """Return half of the central 68 % interval of each row: σ of a Normal, and unlike σ, not made of thin tails."""
    low, high = quantiles(drawn, [0.15866, 0.84134])
    return np.asarray(0.5 * (high - low))


def quantiles(drawn: Comparison, levels: Sequence[float], rows: Rows | None = None) -> Float[np.ndarray, "levels n"]:
    """Return quantiles of a single output, of some rows or all."""
    one = drawn.mixture.outputs()[0]
    some = one if rows is None else one.rows(torch.from_numpy(rows))
    found = some.quantile(torch.tensor(levels, dtype=torch.float64))
    return np.asarray(found.detach().cpu().numpy())


# ---------------------------------------------------------------- calibration


def calibration_figures(pit: Vector, key: str) -> list[Figure]:
    """Draw nominal and observed coverage, and the histogram of the PIT."""
    return [
        figure(
            f"reliability-{key}",
            "Nominal and observed coverage",
            "80 % of the rows should lie inside their 80 % interval, and so on, so the line should follow the dashed "
            "diagonal. Above it, intervals are too wide; below it, too narrow. Differences inside the grey band may be "
            "due to chance.",
            partial(plots.reliability, pit),
        ),
        figure(
            f"pit-{key}",
            "Position of observed values",
            "The position of each observed value in its predicted distribution (the PIT), from the lower tail at 0 to "
            "the upper tail at 1. For a calibrated model the histogram is flat. A hump in the middle means that "
            "intervals are too wide, high ends that they are too narrow, and a slope that predictions are biased. Bars "
            "that end in the grey band are consistent with chance.",
            partial(plots.pit_histogram, pit, bins=max(5, min(20, len(pit) // 20))),
        ),
    ]


def coverage_table(found: Calibration) -> TextTable:
    """Return the observed coverage of each level, and its range for a calibrated model with as many rows."""
    rows = []
    for level in LEVELS:
        observed, num = found.coverage[level], found.num_rows
        low, high = chance_bounds(num, level)
        verdict = "too wide" if observed > high else "too narrow" if observed < low else ""
        digits = _digits_apart(observed, low if observed < low else high) if verdict else 1
        if not verdict:
            verdict = "calibrated" if is_told_apart(observed, num, level) else "too few rows to tell"
        by_chance = f"{percent(low, digits)} to {percent(high, digits)}"
        rows.append((percent(level, 0), percent(observed, digits), by_chance, verdict))
    return TextTable(("interval", "rows inside", "expected by chance", "intervals are"), rows)


def _digits_apart(a: float, b: float) -> int:
    """Return the decimals of a percentage with which two shares differ, at most 4."""
    return next((digits for digits in range(1, 4) if percent(a, digits) != percent(b, digits)), 4)


# ---------------------------------------------------------------- accuracy


def predicted_observed(drawn: Comparison, most: int, key: str) -> Figure:
    """Draw predicted and observed values of at most some rows."""
    total = len(drawn)
    some = np.unique(np.linspace(0, total - 1, min(total, most)).round().astype(np.int64))
    mean, y = drawn.mean.cpu().numpy()[some], drawn.y.cpu().numpy()[some]
    low, high = quantiles(drawn, [0.05, 0.95], some)
    limits, log, note = choose_axes(mean, y)
    of = f" The figure shows {len(some):,} of {total:,} rows, evenly spaced." if len(some) < total else ""
    return figure(
        f"observed-{key}",
        "Predicted and observed",
        "Each dot is a row, with its predicted mean on the horizontal axis, its observed value on the vertical axis "
        "and its 90 % interval as a grey bar. Dots near the dashed diagonal were predicted well. Orange dots lie "
        f"outside their interval, as one in ten should.{of}{note}",
        partial(plots.predicted_observed, mean, low, high, y, limits=limits, log=log),
    )


def choose_axes(mean: Vector, y: Vector) -> tuple[tuple[Ends, Ends] | None, bool, str]:
    """Return ends of both axes that a few extreme values do not ruin, whether they are logarithmic, and why.

    Values with heavy tails are those whose range from 1 to 99 % is a small share of their whole range. If they are
    nearly all positive and skewed, the axes are logarithmic, otherwise they span 98 % of the values.
    """
    both = np.concatenate([y, mean])
    low, high = np.quantile(both, [0.01, 0.99])
    if len(y) < MIN_EXTREME or not 0.0 < high - low < HEAVY * np.ptp(both):
        return None, False, ""
    skewness = np.mean(((y - y.mean()) / max(y.std(), np.finfo(float).tiny)) ** 3)
    log = bool(low > 0.0 and skewness > SKEWED)
    limits = tuple(_log_ends(values) if log else _inner_ends(values) for values in (mean, y))
    said = (
        "The tail of the values is long, so both axes are logarithmic"
        if log
        else "A few values are extreme, so the axes span 98 % of all"
    )
    seen = [(values >= ends[0]) & (values <= ends[1]) for values, ends in zip((mean, y), limits, strict=True)]
    beyond = int((~(seen[0] & seen[1])).sum())
    rows = f"; {beyond:,} row{' is' if beyond == 1 else 's are'} outside of the figure" if beyond else ""
    return (limits[0], limits[1]), log, f" {said}{rows}."


def _log_ends(values: Vector) -> Ends:
    """Return ends around all values, except those that are not positive or far below nearly all."""
    start = max(values[values > 0.0].min(), 0.3 * np.quantile(values, 0.01))
    return float(start / 1.15), float(values.max() * 1.15)


def _inner_ends(values: Vector) -> Ends:
    low, high = np.quantile(values, [0.01, 0.99])
    margin = 0.05 * (high - low) or 0.5
    return float(low - margin), float(high + margin)


def crps_by_spread(drawn: Comparison, spread: Vector, key: str) -> Figure:
    """Draw the errors by predicted spread."""
    crps, num_groups = drawn.crps_by_row.cpu().numpy(), min(10, len(spread))
    means = [crps[group].mean() for group in np.array_split(np.argsort(spread, kind="stable"), num_groups)]
    log = bool(0.0 < 20.0 * min(means) < max(means))  # bars on a linear axis would vanish
    groups = "ten groups of equal size" if num_groups == 10 else "groups"
    return figure(
        f"spread-{key}",
        "Error by predicted spread",
        f"Rows sorted by predicted spread, in {groups}. Bars that rise to the right show that the model knows when it "
        "is uncertain. Orange dots show the mean score of a calibrated Normal with the predicted spread (half of "
        "the 68 % interval)." + (" The vertical axis is logarithmic." if log else ""),
        partial(plots.crps_by_spread, spread, crps, log=log),
    )


# ---------------------------------------------------------------- single rows


def densities(drawn: Comparison, spread: Vector, name: str, table: Table, key: str) -> Figure:
    """Draw the densities of a certain, a typical and an uncertain prediction."""
    order, drawings = np.argsort(spread, kind="stable"), {}
    for kind, rank in TYPICAL:
        row = int(order[round(rank * (len(order) - 1))])
        y, limits = float(drawn.y[row]), _density_limits(drawn, row)
        title = f"{kind.capitalize()}: row {_label(table, row)}, spread {number(spread[row])}"
        if not limits[0] <= y <= limits[1]:
            title += f"; observed {number(y)}, off the figure"
        drawings[title] = partial(_draw_density, drawn, row, limits, name)
    return figure(
        f"density-{key}",
        "Predictions for three rows",
        "The curve is the predicted density; the shaded area is the 90 % interval. Vertical lines mark the mean "
        "(solid), the median (dashed) and the observed value (orange). Thin grey curves are the components of the "
        "mixture. The rows are at 10 %, 50 % and 90 % of all rows, sorted by spread (half of the 68 % interval). Thin "
        "tails beyond the figure are left out.",
        drawings,
    )


def _draw_density(drawn: Comparison, row: int, limits: Ends, name: str) -> "Axes":
    ax = plots.density(drawn.mixture, row, y=float(drawn.y[row]), limits=limits, ax=house_axes(None, 3.3, 2.3))
    ax.set_xlabel(name, parse_math=False)
    return ax


def _density_limits(drawn: Comparison, row: int) -> Ends:
    """Return where to draw a density: twice its 95 % interval, or more if the observed value is not far away."""
    lowest, low, high = quantiles(drawn, [1e-9, 0.025, 0.975], np.array([row])).ravel().tolist()
    width, y = high - low, float(drawn.y[row])
    ends = [max(low - 0.5 * width, lowest), high + 0.5 * width]
    if low - 2.0 * width <= y <= high + 2.0 * width:
        ends += [y - 0.05 * width, y + 0.05 * width]
    return min(ends), max(ends)


def surprises(drawn: Comparison, fitted: Fitted, table: Table, inputs: Sequence[str]) -> TextTable:
    """Return the rows whose observed value has the lowest predicted density, with their inputs."""
    worst = np.argsort(drawn.log_density.cpu().numpy(), kind="stable")[:MAX_SURPRISES]
    some = table.take(worst)
    columns = {name: _given_values(fitted, some, name) for name in inputs}
    years = {name: are_years(values) for name, values in columns.items()}
    rows = []
    for k, (row, ends) in enumerate(zip(worst.tolist(), quantiles(drawn, [0.05, 0.5, 0.95], worst).T, strict=True)):
        low, median, high = ends.tolist()
        spoken = [number_with_spread(value, high - low) for value in (float(drawn.y[row]), median, low, high)]
        given = [cell(values[k], commas=not years[name]) for name, values in columns.items()]
        rows.append((_label(some, k), *spoken[:2], " to ".join(spoken[2:]), *given))
    return TextTable(("row", "observed", "predicted median", "90 % interval", *columns), rows, extra=MAX_PRINTED)


def _label(table: Table, row: int) -> str:
    label = table.label(row)
    return f"{label:,}" if isinstance(label, int | np.integer) else str(label)


def _given_values(fitted: Fitted, table: Table, column: str) -> list[object]:
    """Return the values of a column as they are in the user's table."""
    return list(column_values(fitted, table, column) if table.arrow is None else table.arrow.column(column).to_pylist())

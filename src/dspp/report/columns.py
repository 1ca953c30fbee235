"""What the columns of the user's table do: their importance, their effects, and coverage in the groups they form."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from dspp import plots
from dspp.calibration import HEADLINE, chance_bounds
from dspp.evaluate import Evaluation
from dspp.fitted import Fitted
from dspp.numbers import are_years, cell, number, number_with_spread, percent
from dspp.plots.style import house_axes, shorten
from dspp.report.page import Figure, figure
from dspp.report.probe import Probe, Rows, Values, column_values, frequent_texts, is_missing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Rows that are predicted again for each column, shuffles of a column, and columns of a wide table that are shuffled and
# drawn. The cost of a CRPS is that of S² pairs of components: `SCORE_WORK` pairs take about 2 s.
MAX_ROWS, MIN_ROWS = 1_000, 200
REPEATS = 3
MAX_COLUMNS, MAX_BARS = 30, 20
SCORE_WORK = 1.2e8

# Quantiles of an effect, rows over which it is averaged, values of numbers and of texts at which it is measured, and
# quantiles of a column between which these lie. `EFFECT_WORK` components of rows and values take about half a second.
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
MAX_AVERAGED, MIN_AVERAGED = 200, 50
MAX_POINTS, MAX_LEVELS = 20, 10
INNER = 0.025, 0.975
EFFECT_WORK = 2.5e5

MIN_GROUP = 20  # rows
CHANCE = 0.05  # that any group of a calibrated model is flagged
MAX_NAMED = 3  # flagged groups in the caption


# ---------------------------------------------------------------- importance


@dataclass(frozen=True, eq=False)
class Importance:
    """Increase of the loss when a column is shuffled among the rows."""

    increase: Mapping[str, Float[np.ndarray, " repeats"]]  # by column, the most important one first
    before: float  # the loss of the same rows as they are
    num_rows: int
    num_columns: int  # of the table, of which some may not have been tried

    @property
    def matter(self) -> list[str]:
        """The columns whose increase is larger than the spread of the repeats, the most important first."""
        return [name for name, each in self.increase.items() if each.mean() > each.std()]


def permutation_importance(evaluation: Evaluation, seed: int = 0) -> Importance | None:
    """Shuffle each column in turn and predict again; None if there are too few rows.

    Rows held out in turn are predicted by the members that did not see them.
    """
    total = len(evaluation.table)
    if total < 2:
        return None
    generator = np.random.default_rng(seed)
    order = generator.permutation(total)
    probe = Probe(evaluation, np.sort(order[:MAX_ROWS]))
    names = _select_columns(probe)
    affordable = int(SCORE_WORK / (max(len(names), 1) * REPEATS * probe.components**2))
    at = generator.permutation(len(probe))[: max(affordable, MIN_ROWS)]
    scale = probe.fitted.outcome.loss_scale(probe.table.targets)
    weights = None if probe.table.weights is None else probe.table.weights[at]
    before = _mean_loss(probe.loss(at), scale, weights)
    shuffles = [at[shuffle(len(at), generator)] for _ in range(REPEATS)]  # the same for all columns
    increase = {
        name: np.array([_mean_loss(probe.loss(at, name, donors), scale, weights) - before for donors in shuffles])
        for name in names
    }
    ranked = sorted(increase.items(), key=lambda pair: -pair[1].mean())
    return Importance(dict(ranked), before, len(at), len(probe.features))


def relevance(fitted: Fitted) -> Float[np.ndarray, " D"] | None:
    """Return 1/length scale of each input in the first layer, averaged over GPs and members; None with a network."""
    models = [member.model for member in fitted.members]
    if any(model.features is not None for model in models):
        return None
    with torch.no_grad():
        each = [model.gp_layers[0].kernel.lengthscale.reciprocal().mean(0).cpu().double().numpy() for model in models]
    own = [values[: fitted.num_inputs] for values in each]  # without the prediction of trees
    return np.average(own, axis=0, weights=fitted.weights)


def _select_columns(probe: Probe) -> list[str]:
    """Return the columns to try, in the order of the table: those of the largest relevance if there are many."""
    names = list(probe.features)
    if len(names) <= MAX_COLUMNS:
        return names
    found = relevance(probe.fitted)
    values = np.zeros(probe.X[0].shape[1]) if found is None else found
    largest = sorted(names, key=lambda name: -values[probe.features[name]].max())[:MAX_COLUMNS]
    return [name for name in names if name in set(largest)]


def shuffle(num: int, generator: np.random.Generator) -> Rows:
    """Return a random cycle through all rows, so that every row gets the value of another one."""
    order = generator.permutation(num)
    donors = np.empty(num, np.int64)
    donors[order] = np.roll(order, 1)
    return donors


def _mean_loss(
    loss: Float[np.ndarray, "n L"], scale: Float[np.ndarray, " L"] | None, weights: Float[np.ndarray, " n"] | None
) -> float:
    """Return the mean over the observed values, by the weights of the rows."""
    each = np.broadcast_to(np.ones(len(loss))[:, None] if weights is None else weights[:, None], loss.shape)
    seen = ~np.isnan(loss)
    loss = loss if scale is None else loss / scale
    return float(np.average(loss[seen], weights=each[seen])) if each[seen].any() else 0.0


def importance_figure(found: Importance, evaluation: Evaluation) -> Figure:
    """Draw the importance of the columns."""
    outcome = evaluation.fitted.outcome
    is_scaled = outcome.loss_scale(evaluation.table.targets) is not None
    unit = "standard deviations of the targets" if is_scaled else "the units of the target"
    shown, increase = min(len(found.increase), MAX_BARS), np.array(list(found.increase.values()))
    some = f" The figure shows {shown:,} of {found.num_columns:,} columns." if shown < found.num_columns else ""
    return figure(
        "importance",
        "Importance of the columns",
        f"How much the {outcome.loss_name} rises when the values of a column are shuffled among the rows, in {unit}; "
        f"it is {number(found.before, 3)} with all columns as they are. A bar is the mean of {REPEATS} shuffles of "
        f"{found.num_rows:,} rows, its orange line their range. Of columns that say the same, each may seem to matter "
        f"little.{some}",
        partial(
            plots.ranked_bars,
            [str(name) for name in found.increase],
            increase.mean(axis=1),
            f"increase of the {outcome.loss_name}",
            ends=(increase.min(axis=1), increase.max(axis=1)),
            most=MAX_BARS,
        ),
    )


# ---------------------------------------------------------------- effects

Effect = tuple[Values, Float[np.ndarray, "T 5 points"]]


def measure_effects(
    evaluation: Evaluation, columns: Sequence[str], outputs: Sequence[int], seed: int = 0
) -> tuple[dict[str, Effect], int]:
    """Return how predictions of outputs change with each column, and over how many rows they were averaged.

    The effect of a column is some of its values, and for each output the `QUANTILES` of its prediction if all rows have
    that value: the median over the rows. Columns of a single value have none.
    """
    total = len(evaluation.table)
    probe = Probe(evaluation, np.sort(np.random.default_rng(seed).permutation(total)[:MAX_ROWS]))
    affordable = int(EFFECT_WORK / (MAX_POINTS * probe.components))
    count = min(len(probe), MAX_AVERAGED, max(affordable, MIN_AVERAGED))
    kept = np.linspace(0, len(probe) - 1, count).round().astype(np.int64)
    levels = torch.tensor(QUANTILES, dtype=torch.float64)
    effects = {}
    for column in columns:
        values = column_values(probe.fitted, probe.table, column)
        points = _points(values)
        if len(points) < 2:
            continue
        found = np.empty((len(outputs), len(levels), len(points) * count))
        for predictive, index in probe.predict(np.tile(kept, len(points)), column, np.repeat(points, count)):
            for k, t in enumerate(outputs):
                found[k][:, index] = predictive.outputs()[t].quantile(levels).cpu().numpy()
        effects[column] = values[points], np.median(found.reshape(*found.shape[:2], len(points), count), axis=3)
    return effects, count


def _points(values: Values) -> Rows:
    """Return one row for each value at which to measure an effect."""
    known = np.flatnonzero(~is_missing(values))
    if values.dtype.kind == "U":
        return np.array([np.argmax(values == level) for level in frequent_texts(values, MAX_LEVELS)], dtype=np.int64)
    distinct, first = np.unique(values[known], return_index=True)
    if len(distinct) > MAX_POINTS:
        numbers, scale = values[known].astype(np.float64), distinct.astype(np.float64)
        ranks = np.quantile(numbers, np.linspace(*INNER, MAX_POINTS // 2))
        low, high = np.quantile(numbers, INNER)
        even = np.linspace(low, high, MAX_POINTS // 2)
        wanted = np.concatenate([ranks, even])  # dense and sparse parts alike
        first = first[np.unique([int(np.abs(scale - value).argmin()) for value in wanted])]
    return np.asarray(known[first], dtype=np.int64)


def effects_figure(found: Mapping[str, Effect], k: int, name: str, num_rows: int) -> Figure:
    """Draw the effects of columns on the k-th output that was measured."""
    return figure(
        f"effects-{k}",
        "Effect of the most important columns" if len(found) > 1 else f"Effect of {next(iter(found))}",
        f"What is predicted for {num_rows:,} rows if all have the same value of a column: the median (line or dot), "
        "the 50 % interval (dark) and the 90 % interval (light), each the median over the rows. Values of columns that "
        "go together in the data may not occur in these combinations.",
        {column: partial(_draw_effect, at, quantiles[k], name) for column, (at, quantiles) in found.items()},
    )


def _draw_effect(at: Values, quantiles: Float[np.ndarray, "5 points"], name: str) -> "Axes":
    is_text = at.dtype.kind == "U"
    ax = plots.effect(at, quantiles, ax=house_axes(None, 3.3, max(2.3, 0.5 + 0.21 * len(at)) if is_text else 2.3))
    ax.set_xlabel(name if is_text else "", parse_math=False)  # the column is the title of the drawing
    ax.set_ylabel("" if is_text else name, parse_math=False)
    return ax


# ---------------------------------------------------------------- groups


@dataclass(frozen=True)
class Group:
    """Rows with similar values of a column, and how many of them lie inside their 90 % interval."""

    column: str
    label: str
    num_rows: int
    inside: int
    off: str = ""  # "too narrow" or "too wide", if that is not due to chance


def measure_groups(columns: Mapping[str, Values], pit: Float[np.ndarray, " n"]) -> list[Group]:
    """Return the coverage in the quarters of numbers and the most frequent levels of texts.

    A group is flagged if its coverage is outside of what chance explains; with a Bonferroni correction, a calibrated
    model is flagged for any of them in one report of twenty.
    """
    parts = [(name, label, mask) for name, values in columns.items() for label, mask in _split(values)]
    parts = [part for part in parts if part[2].sum() >= MIN_GROUP]
    groups = []
    for name, label, mask in parts:
        num = int(mask.sum())
        inside = int((np.abs(pit[mask] - 0.5) <= HEADLINE / 2).sum())
        low, high = chance_bounds(num, HEADLINE, CHANCE / len(parts))
        off = "too narrow" if inside / num < low else "too wide" if inside / num > high else ""
        groups.append(Group(name, label, num, inside, off))
    return groups


def _split(values: Values) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return groups of rows with their labels."""
    absent = is_missing(values)
    if values.dtype.kind == "U":
        return [(level, values == level) for level in frequent_texts(values, 4)] + [("missing", absent)]
    groups = []
    if not absent.all():
        exact = (values.astype("datetime64[us]").astype(np.int64) if values.dtype.kind == "M" else values).astype(float)
        edges = np.unique(np.quantile(exact[~absent], [0.25, 0.5, 0.75], method="lower"))
        which = np.where(absent, -1, np.searchsorted(edges, exact))  # values equal to an edge are below it
        groups = [(_range(values, which == k), which == k) for k in range(len(edges) + 1) if (which == k).any()]
    return [*groups, ("missing", absent)]


def _range(values: Values, mask: NDArray[np.bool_]) -> str:
    low, high = values[mask].min(), values[mask].max()
    if values.dtype.kind == "M":
        ends = [str(end.astype("datetime64[D]")) for end in (low, high)]
    elif are_years((low, high)):
        ends = [f"{end:.0f}" for end in (low, high)]
    else:
        numbers = values[~is_missing(values)].astype(np.float64)
        spread, whole = np.ptp(np.quantile(numbers, [0.05, 0.95])), bool((numbers % 1 == 0).all())
        ends = [cell(end) if whole else number_with_spread(end, spread) for end in (low, high)]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"


def groups_figure(found: Sequence[Group], key: str) -> Figure:
    """Draw the coverage in groups of rows."""
    return figure(
        f"groups-{key}",
        "Coverage in groups of rows",
        "The share of rows inside their 90 % interval, in the quarters of the most important columns or their most "
        f"frequent levels, with 95 % confidence intervals. {describe_groups(found)}",
        partial(
            plots.coverage_dots,
            [f"{shorten(group.column, 16)}: {shorten(group.label, 24)}" for group in found],
            np.array([group.inside for group in found]),
            np.array([group.num_rows for group in found]),
            [bool(group.off) for group in found],
        ),
    )


def describe_groups(found: Sequence[Group]) -> str:
    """Return a sentence on the groups whose coverage is off."""
    flagged = [(group.inside / group.num_rows, group) for group in found if group.off]
    flagged.sort(key=lambda pair: -abs(pair[0] - HEADLINE))
    if not flagged:
        return f"None of the {len(found)} groups differs from 90 % by more than chance explains."
    each = "; ".join(
        f"{g.column}: {g.label} ({percent(coverage)} of {g.num_rows:,} rows, intervals {g.off})"
        for coverage, g in flagged[:MAX_NAMED]
    )
    each += f"; and {len(flagged) - MAX_NAMED} more" if len(flagged) > MAX_NAMED else ""
    differ = "differs" if len(flagged) == 1 else "differ"
    groups = f"{len(flagged)} of the {len(found)} groups {differ} from 90 %"
    return f"{groups} by more than chance explains, shown in orange: {each}."

"""How predictions change with a column, and how well intervals cover in the groups it forms."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray

from dspp.calibration import chance_bounds
from dspp.evaluate import Evaluation
from dspp.numbers import are_years, cell, number_with_spread
from dspp.report.probe import Probe, Values

LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles of an effect
MOST_ROWS, FEWEST_ROWS = 200, 50  # over which an effect is averaged
MOST_DONORS = 1_000  # rows whose values are tried
MOST_POINTS, MOST_LEVELS = 20, 10  # of numbers, of texts
WORK = 2.5e5  # components of all rows and points of a column, about half a second
INNER = 0.025, 0.975  # quantiles of a column between which its effect is shown
SMALLEST_GROUP = 20  # rows
CHANCE = 0.05  # that any group of a calibrated model is blamed
COVERAGE = 0.9


@dataclass(frozen=True, eq=False)
class Effect:
    """Quantiles of the prediction when a column has the same value in all rows: the median over rows.

    Attributes:
        column: The column.
        target: The output.
        at: The values: numbers, times or texts.
        quantiles: Those of `LEVELS` at each value.
        num_rows: How many rows.
    """

    column: str
    target: str
    at: NDArray[np.generic]
    quantiles: Float[np.ndarray, "levels points"]
    num_rows: int


def measure_effects(
    evaluation: Evaluation, columns: Sequence[str], outputs: Sequence[int], seed: int = 0
) -> list[Effect]:
    """Return the effect of each column on each output; columns of a single value have none."""
    total = len(evaluation.table)
    probe = Probe(evaluation, np.sort(np.random.default_rng(seed).permutation(total)[:MOST_DONORS]))
    affordable = int(WORK / (MOST_POINTS * probe.components))
    count = min(len(probe.rows), MOST_ROWS, max(affordable, FEWEST_ROWS))
    kept = np.linspace(0, len(probe.rows) - 1, count).round().astype(np.int64)
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    effects = []
    for column in columns:
        values = probe.values(column)
        points = _points(values)
        if len(points) < 2:
            continue
        groups = probe.predict(np.tile(kept, len(points)), column, np.repeat(points, len(kept)))
        for output in outputs:
            found = np.empty((len(LEVELS), len(points) * len(kept)))
            for predictive, index in groups:
                found[:, index] = predictive.outputs()[output].quantile(levels).cpu().numpy()
            middle = np.median(found.reshape(len(LEVELS), len(points), len(kept)), axis=2)
            name = evaluation.fitted.target_names[output]
            effects.append(Effect(column, name, values.array[points], middle, len(kept)))
    return effects


def _points(values: Values) -> Int[np.ndarray, " points"]:
    """Return one row for each value at which to measure an effect."""
    known = np.flatnonzero(~values.missing)
    if values.kind == "text":
        return np.array([np.argmax(values.array == level) for level in values.levels(MOST_LEVELS)], dtype=np.int64)
    distinct, first = np.unique(values.array[known], return_index=True)
    if len(distinct) > MOST_POINTS:
        scale = distinct.astype(np.float64)
        low, high = np.quantile(values.array[known].astype(np.float64), INNER)
        ranks = np.quantile(values.array[known].astype(np.float64), np.linspace(*INNER, MOST_POINTS // 2))
        wanted = np.concatenate([ranks, np.linspace(low, high, MOST_POINTS // 2)])  # dense and sparse parts alike
        nearest = np.unique([int(np.abs(scale - value).argmin()) for value in wanted])
        first = first[nearest]
    return np.asarray(known[first], dtype=np.int64)


@dataclass(frozen=True)
class Group:
    """Rows with similar values of a column, and how many of them lie inside their 90 % interval."""

    column: str
    label: str
    num_rows: int
    inside: int
    off: str = ""  # "too narrow" or "too wide", if that is not due to chance

    @property
    def coverage(self) -> float:
        """The share of rows inside."""
        return self.inside / self.num_rows


def measure_groups(
    columns: Sequence[tuple[str, Values]], pit: Float[np.ndarray, " N"], coverage: float = COVERAGE
) -> list[Group]:
    """Return the coverage in the quarters of numbers and the most frequent levels of texts.

    A group is blamed if its coverage is outside of what chance explains; with a Bonferroni correction, a calibrated
    model is blamed for any of them in one report of twenty.
    """
    parts = [(name, label, mask) for name, values in columns for label, mask in _split(values)]
    parts = [part for part in parts if part[2].sum() >= SMALLEST_GROUP]
    groups = []
    for name, label, mask in parts:
        num = int(mask.sum())
        inside = int((np.abs(pit[mask] - 0.5) <= coverage / 2).sum())
        low, high = chance_bounds(num, coverage, CHANCE / len(parts))
        off = "too narrow" if inside / num < low else "too wide" if inside / num > high else ""
        groups.append(Group(name, label, num, inside, off))
    return groups


def _split(values: Values) -> list[tuple[str, NDArray[np.bool_]]]:
    """Return groups of rows with their labels."""
    missing = [("missing", values.missing)]
    if values.kind == "text":
        return [(level, values.array == level) for level in values.levels(4)] + missing
    known = values.array[~values.missing]
    if not len(known):
        return missing
    exact = known.astype(np.float64) if values.kind == "number" else known.astype("datetime64[us]").astype(np.int64)
    every = np.full(len(values.array), np.nan)
    every[~values.missing] = exact
    edges = np.unique(np.quantile(exact, [0.25, 0.5, 0.75], method="lower"))
    which = np.searchsorted(edges, every)  # values equal to an edge are below it; NaN is above all
    groups = []
    for k in range(len(edges) + 1):
        mask = (which == k) & ~values.missing
        if mask.any():
            groups.append((_range(values, mask), mask))
    return groups + missing


def _range(values: Values, mask: NDArray[np.bool_]) -> str:
    low, high = values.array[mask].min(), values.array[mask].max()
    if values.kind == "time":
        ends = [str(end.astype("datetime64[D]")) for end in (low, high)]
    elif are_years((low, high)):
        ends = [f"{end:.0f}" for end in (low, high)]
    else:
        spread = np.ptp(np.nanquantile(values.array.astype(np.float64), [0.05, 0.95]))
        whole = bool((values.array[~values.missing] % 1 == 0).all())
        ends = [cell(end) if whole else number_with_spread(end, spread) for end in (low, high)]
    return ends[0] if ends[0] == ends[1] else f"{ends[0]} to {ends[1]}"

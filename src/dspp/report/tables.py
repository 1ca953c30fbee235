"""The tables of the page: scores with what they mean, coverage, outputs side by side, and surprises."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dspp.calibration import chance_bounds
from dspp.metrics import LEVELS, METRICS, Metric
from dspp.plots import central_coverage
from dspp.report.data import ReportData, TargetData
from dspp.report.numbers import beside, cell, number, percent

SURPRISES = 10  # rows of the table of surprises
MAX_INPUTS = 30  # columns of inputs in it


@dataclass(frozen=True)
class Score:
    """A card: what it is called, its value, what it says ("" where the page cannot know)."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True)
class TextTable:
    """Cells ready to print. The first `labels` columns are text; those from `extra` on are left out of print."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    labels: int = 1
    extra: int = 1_000


def score_cards(scores: Mapping[str, float], several: bool = False) -> list[Score]:
    """Return the scores in the order of `METRICS`, then all others as they are.

    Args:
        scores: By name.
        several: Whether they are of several outputs.
    """
    known = [name for name in METRICS if name in scores]
    others = [name for name in scores if name not in METRICS]
    return [
        *(_card(METRICS[name], scores[name], several) for name in known),
        *(Score(name, number(scores[name]), "") for name in others),
    ]


def _card(metric: Metric, value: float, several: bool) -> Score:
    text = percent(value) if metric.format == "percent" else number(value)
    if metric.format == "p-value" and value < 1e-4:
        text = "< 0.0001"
    return Score(metric.title, text, metric.sentence(several))


def coverage_table(target: TargetData) -> TextTable:
    """Return promised against observed coverage, and what chance alone allows with so many rows."""
    num = len(target.pit)
    rows = []
    for level, observed in zip(LEVELS, central_coverage(target.pit, LEVELS), strict=True):
        low, high = chance_bounds(num, level)
        verdict = "as promised" if low <= observed <= high else "too wide" if observed > high else "too narrow"
        by_chance = f"{percent(low)} to {percent(high)}"
        rows.append((percent(level, 0), percent(observed), by_chance, verdict))
    return TextTable(("interval", "rows inside", "chance allows", "intervals are"), rows)


def outputs_table(targets: Sequence[TargetData]) -> TextTable:
    """Return the main scores of every output."""
    rows = [
        (
            target.name,
            number(-target.log_density.mean()),
            number(math.sqrt(np.square(target.mean - target.y).mean())),
            number(target.crps.mean()),
            percent(central_coverage(target.pit, [0.9])[0]),
        )
        for target in targets
    ]
    return TextTable(("output", "NLL", "RMSE", "CRPS", "90 % coverage"), rows)


def surprises(target: TargetData, data: ReportData) -> TextTable:
    """Return the rows whose observed value was given the lowest density, with their inputs."""
    worst = np.argsort(target.log_density, kind="stable")[:SURPRISES].tolist()
    quantiles = target.mixture.rows(worst).quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64))
    columns = {name: data.rows[name] for name in _shown_inputs(data)}
    rows = []
    for row, (low, median, high) in zip(worst, quantiles.T.tolist(), strict=True):
        observed, middle, *interval = (beside(v, high - low) for v in (target.y[row], median, low, high))
        inputs = [cell(values[target.row(row)]) for values in columns.values()]
        rows.append((data.row_label(target.row(row)), observed, middle, " to ".join(interval), *inputs))
    header = ("row", "observed", "predicted median", "90 % interval", *columns)
    return TextTable(header, rows, extra=10)


def _shown_inputs(data: ReportData) -> list[str]:
    """The inputs for the table: all, or where they are many the most relevant, in the order of the table."""
    if len(data.rows) <= MAX_INPUTS:
        return list(data.rows)
    rank = {name: i for i, (name, _) in enumerate(sorted(data.relevance, key=lambda pair: -pair[1]))}
    first = sorted(data.rows, key=lambda name: rank.get(name, len(rank)))[:MAX_INPUTS]
    return [name for name in data.rows if name in set(first)]

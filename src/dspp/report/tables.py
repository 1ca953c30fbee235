"""The tables of the page: scores with their meaning, coverage, outputs and surprises."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dspp.calibration import chance_bounds
from dspp.metrics import LEVELS, METRICS, Metric
from dspp.plots import central_coverage
from dspp.report.data import ReportData, TargetData
from dspp.report.numbers import column, is_number, number, number_with_spread, percent

SURPRISES = 10  # rows of the table of surprises
MAX_INPUTS = 30  # columns of inputs in it


@dataclass(frozen=True)
class Score:
    """A card: name, value and meaning of a score ("" if unknown)."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True)
class TextTable:
    """Formatted cells.

    Attributes:
        header: The names of the columns.
        rows: The cells.
        labels: How many of the first columns are text that may be wrapped.
        text: The numbers of further columns of text, which are left-aligned like labels; numbers are right-aligned.
        extra: Columns after this one are not printed.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    labels: int = 1
    text: Sequence[int] = ()
    extra: int = 1_000

    def kind(self, number: int) -> str:
        """Return the CSS classes of a column."""
        kind = "label" if number < self.labels else "text" if number in self.text else "number"
        return f"{kind} extra" if number >= self.extra else kind

    @property
    def crowded(self) -> bool:
        """Whether a phone is likely to be narrower than the table, which then scrolls."""
        return len(self.header) - self.labels >= 3


def score_cards(scores: Mapping[str, float], several: bool = False) -> list[Score]:
    """Return the scores in the order of `METRICS`, followed by all others.

    Args:
        scores: Scores by name.
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
    """Return the observed coverage of each level, and its range for a calibrated model with as many rows."""
    num = len(target.pit)
    rows = []
    for level, observed in zip(LEVELS, central_coverage(target.pit, LEVELS), strict=True):
        low, high = chance_bounds(num, level)
        verdict = "calibrated" if low <= observed <= high else "too wide" if observed > high else "too narrow"
        by_chance = f"{percent(low)} to {percent(high)}"
        rows.append((percent(level, 0), percent(observed), by_chance, verdict))
    return TextTable(("interval", "rows inside", "expected by chance", "intervals are"), rows, text=(3,))


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
    """Return the rows whose observed value has the lowest predicted density, with their inputs."""
    worst = np.argsort(target.log_density, kind="stable")[:SURPRISES].tolist()
    quantiles = target.mixture.rows(worst).quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64))
    columns = {name: [data.rows[name][target.row(row)] for row in worst] for name in _select_inputs(data)}
    inputs = zip(*(column(values) for values in columns.values()), strict=True) if columns else ([] for _ in worst)
    rows = []
    for row, (low, median, high), known in zip(worst, quantiles.T.tolist(), inputs, strict=True):
        observed, middle, *interval = (number_with_spread(v, high - low) for v in (target.y[row], median, low, high))
        rows.append((data.row_label(target.row(row)), observed, middle, " to ".join(interval), *known))
    header = ("row", "observed", "predicted median", "90 % interval", *columns)
    text = [i for i, values in enumerate(columns.values(), start=4) if not all(map(_is_number_or_missing, values))]
    return TextTable(header, rows, text=text, extra=10)


def _is_number_or_missing(value: object) -> bool:
    return value is None or is_number(value)


def _select_inputs(data: ReportData) -> list[str]:
    """Return the inputs to show: all, or the most relevant ones if there are many, in their original order."""
    if len(data.rows) <= MAX_INPUTS:
        return list(data.rows)
    rank = {name: i for i, (name, _) in enumerate(sorted(data.relevance, key=lambda pair: -pair[1]))}
    first = sorted(data.rows, key=lambda name: rank.get(name, len(rank)))[:MAX_INPUTS]
    return [name for name in data.rows if name in set(first)]

"""The tables of the page: scores with their meaning, coverage, outputs and surprises."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch

from dspp.calibration import chance_bounds, is_told_apart
from dspp.metrics import LEVELS, METRICS, Metric
from dspp.numbers import are_years, cell, number, number_with_spread, percent
from dspp.plots import central_coverage
from dspp.report.data import MemberData, ReportData, TargetData
from dspp.report.ensemble import EnsembleData

SURPRISES = 10  # rows of the table of surprises
MAX_INPUTS = 30  # columns of inputs in it
DISCRETE = "The target has few distinct values, on which a density can be made arbitrarily high: compare CRPS instead."
_NUMBER = re.compile(r"(?:[\d.,−%×∞–⁻⁰¹²³⁴⁵⁶⁷⁸⁹<\s]|\bto\b|\bs$)*")


@dataclass(frozen=True)
class Score:
    """A card: name, value and meaning of a score ("" if unknown), and the values of baselines by their name."""

    name: str
    value: str
    meaning: str
    baselines: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TextTable:
    """Formatted cells; columns after `extra` are not printed."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    extra: int = 1_000

    @cached_property
    def is_text(self) -> list[bool]:
        """Whether each column is text, which is aligned on the left: the first one, and all that are not numbers."""
        columns = zip(*self.rows, strict=True) if self.rows else [[""]] * len(self.header)
        return [k == 0 or not all(_NUMBER.fullmatch(value) for value in column) for k, column in enumerate(columns)]


def score_cards(
    scores: Mapping[str, float],
    several: bool = False,
    baselines: Mapping[str, Mapping[str, float]] | None = None,
    discrete: bool = False,
) -> list[Score]:
    """Return the scores in the order of `METRICS`, followed by all others.

    Args:
        scores: Scores by name.
        several: Whether they are of several outputs.
        baselines: Scores of simpler predictions, by their name.
        discrete: Whether the target has few distinct values: CRPS then comes first, and NLL last.
    """
    known = [name for name in METRICS if name in scores]
    if discrete:
        known.sort(key=lambda name: {"crps": 0, "nll": 2}.get(name, 1))
    others = [name for name in scores if name not in METRICS]
    cards = []
    for name in known:
        beside = {label: found[name] for label, found in (baselines or {}).items() if name in found}
        cards.append(_card(METRICS[name], scores[name], several, beside))
        if discrete and name == "nll":
            cards[-1] = replace(cards[-1], meaning=f"{cards[-1].meaning} {DISCRETE}")
    return [*cards, *(Score(name, number(scores[name]), "") for name in others)]


def _card(metric: Metric, value: float, several: bool, beside: Mapping[str, float]) -> Score:
    shown = {label: metric.text(other) for label, other in beside.items()}
    return Score(metric.title, metric.text(value), metric.sentence(several), shown)


def coverage_table(target: TargetData) -> TextTable:
    """Return the observed coverage of each level, and its range for a calibrated model with as many rows."""
    rows = []
    for level in LEVELS:
        observed, num = target.coverage(level)
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


def kinds_table(ensemble: EnsembleData) -> TextTable:
    """Return the kinds of members, the heaviest first, and the scores of each kind alone."""
    scores = list(ensemble.kinds[0].scores)
    rows = [
        (kind.name, f"{kind.members:,}", percent(kind.weight, 0), *(number(kind.scores[name]) for name in scores))
        for kind in ensemble.kinds
    ]
    return TextTable(("members that read", "members", "weight", *(METRICS[name].title for name in scores)), rows)


def members_table(members: Sequence[MemberData]) -> TextTable:
    """Return the weight and the training of each member; epochs and their NLL only of those that have them."""
    header = ("member", "reads", "weight", "training time", "epochs", "last training NLL")
    rows = []
    for k, member in enumerate(members, start=1):
        steps = ("–", "–")
        if member.history:
            steps = (f"{len(member.history):,}", number_with_spread(member.history[-1].train_nll, 0.1))
        rows.append((f"{k}", member.kind, percent(member.weight), f"{member.seconds:,.1f} s", *steps))
    if not any(member.history for member in members):
        return TextTable(header[:4], [row[:4] for row in rows])
    return TextTable(header, rows)


def settings_table(members: Sequence[MemberData]) -> TextTable:
    """Return all settings, with one column for the members in which they are the same."""
    groups: dict[str, list[int]] = {}
    for k, member in enumerate(members):
        groups.setdefault(repr(member.settings), []).append(k)
    columns = [members[group[0]].settings for group in groups.values()]
    rows = []
    for section in columns[0]:
        names = dict.fromkeys(name for settings in columns for name in settings[section])
        for k, name in enumerate(names):
            rows.append(("" if k else section, name, *(settings[section].get(name, "–") for settings in columns)))
    if len(columns) == 1:
        return TextTable(("", "setting", "all members" if len(members) > 1 else "value"), rows)
    return TextTable(("", "setting", *map(_name_members, groups.values())), rows)


def _name_members(numbers: Sequence[int]) -> str:
    """Return the name of a group of members, numbered from 1, such as "members 1–5, 8"."""
    ends: list[list[int]] = []
    for k in numbers:
        if ends and k == ends[-1][1] + 1:
            ends[-1][1] = k
        else:
            ends.append([k, k])
    spans = [f"{first + 1}" if first == last else f"{first + 1}–{last + 1}" for first, last in ends]
    return f"member{'' if len(numbers) == 1 else 's'} {', '.join(spans)}"


def surprises(target: TargetData, data: ReportData) -> TextTable:
    """Return the rows whose observed value has the lowest predicted density, with their inputs."""
    worst = np.argsort(target.log_density, kind="stable")[:SURPRISES].tolist()
    quantiles = target.mixture.rows(worst).quantile(torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64))
    columns = {name: data.rows[name] for name in _select_inputs(data)}
    years = {name: are_years(values[target.row(row)] for row in worst) for name, values in columns.items()}
    rows = []
    for row, (low, median, high) in zip(worst, quantiles.T.tolist(), strict=True):
        observed, middle, *interval = (number_with_spread(v, high - low) for v in (target.y[row], median, low, high))
        inputs = [cell(values[target.row(row)], commas=not years[name]) for name, values in columns.items()]
        rows.append((data.row_label(target.row(row)), observed, middle, " to ".join(interval), *inputs))
    header = ("row", "observed", "predicted median", "90 % interval", *columns)
    return TextTable(header, rows, extra=10)


def _select_inputs(data: ReportData) -> list[str]:
    """Return the inputs to show: all, or the most relevant ones if there are many, in their original order."""
    if len(data.rows) <= MAX_INPUTS:
        return list(data.rows)
    rank = {name: i for i, (name, _) in enumerate(sorted(data.relevance, key=lambda pair: -pair[1]))}
    first = sorted(data.rows, key=lambda name: rank.get(name, len(rank)))[:MAX_INPUTS]
    return [name for name in data.rows if name in set(first)]

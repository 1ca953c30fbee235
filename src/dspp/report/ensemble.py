"""The ensemble in words and numbers: which kind of member won, the spread, the guard and what was scored."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from dspp.evaluate import Evaluation
from dspp.fitted import Fitted
from dspp.members.blend import spread_of
from dspp.numbers import number, percent
from dspp.report.probe import Probe

MOST_ROWS = 1_000  # on which kinds are scored
WON = 0.55  # share of the weight with which a kind of two has won


@dataclass(frozen=True)
class KindData:
    """The members of one kind, and their scores if they alone predicted."""

    name: str
    members: int
    weight: float
    scores: dict[str, float]  # the headlines of the outcome


@dataclass(frozen=True)
class EnsembleData:
    """How members are mixed.

    Attributes:
        kinds: The heaviest kind first; the last one stands for all members.
        sentences: Plain sentences on the winner, the spread and the guard.
        num_rows: The rows on which kinds were scored.
    """

    kinds: Sequence[KindData]
    sentences: Sequence[str]
    num_rows: int


def describe_scored(evaluation: Evaluation) -> str:
    """Return a sentence on which members predicted the rows; empty for a single model."""
    if len(evaluation.fitted.members) == 1:
        return ""
    rows = f"{evaluation.num_rows:,} rows"
    if not evaluation.parts:
        return f"All scores and figures are of {rows} that the whole ensemble predicted."
    what = f"Each of the {rows} was predicted only by the members that did not see it in training"
    return f"{what}. All scores, the calibration and the figures are of these predictions."


def describe_ensemble(evaluation: Evaluation) -> EnsembleData | None:
    """Score each kind alone; None for a single model."""
    fitted = evaluation.fitted
    if len(fitted.members) == 1:
        return None
    shares: dict[str, float] = {}
    for member, weight in zip(fitted.members, fitted.weights, strict=True):
        shares[member.title] = shares.get(member.title, 0.0) + weight
    ranked = sorted(shares, key=lambda kind: -shares[kind])
    total = len(evaluation.table)
    rows = np.unique(np.linspace(0, total - 1, min(total, MOST_ROWS)).round().astype(np.int64))
    probe = Probe(evaluation, rows)
    counts = {kind: sum(member.title == kind for member in fitted.members) for kind in ranked}
    kinds = [KindData(kind, counts[kind], shares[kind], _scores(probe, kind)) for kind in ranked]
    whole = KindData("all members", len(fitted.members), 1.0, _scores(probe, None))
    spread = spread_of(fitted.spread, fitted.judged, len(fitted.members))
    learned = "Weights and corrections were learned from the same out-of-fold predictions." if evaluation.parts else ""
    said = [_winner(kinds), _spread(spread), _guard(fitted), learned]
    return EnsembleData([*kinds, whole] if len(kinds) > 1 else [whole], [one for one in said if one], len(rows))


def _scores(probe: Probe, kind: str | None) -> dict[str, float]:
    """Return the scores of the rows as predicted by the members of one kind, or by all."""
    models = [model if kind is None else _only(model, kind) for model in probe.models]
    parts, index = zip(*probe.predict(probe.all_rows, models=models), strict=True)
    predictive = type(parts[0]).concat(parts).rows(torch.from_numpy(np.concatenate(index).argsort()))
    outcome = probe.fitted.outcome
    return outcome.compare(predictive, probe.y, probe.table.weights).scores(outcome.headlines)


def _only(fitted: Fitted, kind: str) -> Fitted:
    """Return the model with the members of one kind alone, of which each fold has some."""
    pairs = [pair for pair in zip(fitted.members, fitted.weights, strict=True) if pair[0].title == kind]
    total = sum(weight for _, weight in pairs)
    members, weights = zip(*pairs, strict=True)
    shares = tuple(weight / total for weight in weights)
    return replace(fitted, members=members, weights=shares, conformal=None, conformal_folds=None)


def _winner(kinds: Sequence[KindData]) -> str:
    first = kinds[0]
    if len(kinds) == 1:
        return f"All members read {'the ' if first.name.startswith('columns') else ''}{first.name}."
    if len(kinds) == 2 and first.weight < WON:
        return f"No kind of member won: those that read {first.name} have {percent(first.weight, 0)} of the weight."
    return f"The members that read {first.name} won: they have {percent(first.weight, 0)} of the weight."


def _spread(spread: float) -> str:
    if spread == 1.0:
        return "The spread of the predictions is left as the members give it."
    wider = math.sqrt(spread) - 1.0
    what, how = ("too small", "wider") if wider > 0.0 else ("too large", "narrower")
    return (
        f"On held-out rows the spread of the members was {what}, so the variance of every component is multiplied by "
        f"{number(spread, 3)}: predictions are about {percent(abs(wider), 0)} {how}."
    )


def _guard(fitted: Fitted) -> str:
    if fitted.guard is None:
        return ""
    return (
        f"Every prediction contains {percent(fitted.guard.weight)} of the distribution of all training targets, a "
        "guard against confident errors."
    )

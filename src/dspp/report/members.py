"""The models behind the predictions: how they are mixed, how each was trained, and with which settings."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from dspp import plots
from dspp.evaluate import Evaluation
from dspp.fitted import Fitted
from dspp.members import Member
from dspp.members.blend import variance_scale_of
from dspp.metrics import METRICS
from dspp.numbers import number, number_with_spread, percent
from dspp.report.page import Figure, Panel, TextTable, figure
from dspp.report.probe import Probe

MAX_ROWS = 1_000  # on which kinds of members are scored
WON = 0.55  # share of the weight with which a kind of two has won


# ---------------------------------------------------------------- how members are mixed


def describe_scored(evaluation: Evaluation) -> str:
    """Return a sentence on which members predicted the rows; empty for a single model."""
    if len(evaluation.fitted.members) == 1:
        return ""
    rows = f"{evaluation.num_rows:,} rows"
    if not evaluation.parts:
        return f"All scores and figures are of {rows} that the whole ensemble predicted."
    what = f"Each of the {rows} was predicted only by the members that did not see it in training"
    return f"{what}. All scores, the calibration and the figures are of these predictions."


def ensemble_panels(evaluation: Evaluation) -> list[Panel]:
    """Describe the kinds of members, each scored alone, and every member; nothing for a single model."""
    fitted = evaluation.fitted
    if len(fitted.members) == 1:
        return []
    shares: dict[str, float] = {}
    for member, weight in zip(fitted.members, fitted.weights, strict=True):
        shares[member.title] = shares.get(member.title, 0.0) + weight
    ranked = dict(sorted(shares.items(), key=lambda pair: -pair[1]))
    scores = score_kinds(evaluation, [*ranked, ""] if len(ranked) > 1 else [""])
    counts = {kind: sum(member.title == kind for member in fitted.members) for kind in ranked}
    rows = [
        (
            kind or "all members",
            f"{counts.get(kind, len(fitted.members)):,}",
            percent(ranked.get(kind, 1.0), 0),
            *map(number, found.values()),
        )
        for kind, found in scores.items()
    ]
    titles = [METRICS[name].title for name in scores[""]]
    alone = f"Scores are of {min(len(evaluation.table), MAX_ROWS):,} rows, if only members of that kind predicted them."
    learned = "Weights and corrections were learned from the same out-of-fold predictions." if evaluation.parts else ""
    said = [_winner(ranked), _variance_scale(fitted), _guard(fitted), learned, alone]
    return [
        Panel(
            text=" ".join(sentence for sentence in said if sentence),
            table=TextTable(("members that read", "members", "weight", *titles), rows),
        ),
        Panel("Members", figures=_member_curves(fitted), table=members_table(fitted)),
    ]


def score_kinds(evaluation: Evaluation, kinds: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the headlines of some rows as predicted by the members of each kind alone, or by all of them (empty)."""
    total = len(evaluation.table)
    rows = np.unique(np.linspace(0, total - 1, min(total, MAX_ROWS)).round().astype(np.int64))
    probe, outcome, found = Probe(evaluation, rows), evaluation.fitted.outcome, {}
    for kind in kinds:
        models = [_only(model, kind) if kind else model for model in probe.models]
        parts, index = zip(*probe.predict(np.arange(len(rows)), models=models), strict=True)
        predictive = type(parts[0]).concat(parts).rows(torch.from_numpy(np.concatenate(index).argsort()))
        found[kind] = outcome.compare(predictive, probe.table.targets, probe.table.weights).scores(outcome.headlines)
    return found


def _only(fitted: Fitted, kind: str) -> Fitted:
    """Return the model with the members of one kind alone, of which each fold has some."""
    pairs = [pair for pair in zip(fitted.members, fitted.weights, strict=True) if pair[0].title == kind]
    total = sum(weight for _, weight in pairs)
    members, weights = zip(*pairs, strict=True)
    shares = tuple(weight / total for weight in weights)
    return replace(fitted, members=members, weights=shares, conformal=None, conformal_folds=None)


def _winner(shares: Mapping[str, float]) -> str:
    first, share = next(iter(shares.items()))
    if len(shares) == 1:
        return f"All members read {'the ' if first.startswith('columns') else ''}{first}."
    if len(shares) == 2 and share < WON:
        return f"No kind of member won: those that read {first} have {percent(share, 0)} of the weight."
    return f"The members that read {first} won: they have {percent(share, 0)} of the weight."


def _variance_scale(fitted: Fitted) -> str:
    scale = variance_scale_of(fitted.variance_scale, fitted.judged, len(fitted.members))
    if scale == 1.0:
        return "The spread of the predictions is left as the members give it."
    wider = math.sqrt(scale) - 1.0
    what, change = ("too small", "wider") if wider > 0.0 else ("too large", "narrower")
    return (
        f"On held-out rows the spread of the members was {what}, so the variance of every component is multiplied by "
        f"{number(scale, 3)}: predictions are about {percent(abs(wider), 0)} {change}."
    )


def _guard(fitted: Fitted) -> str:
    if fitted.guard is None:
        return ""
    return (
        f"Every prediction contains {percent(fitted.guard.weight)} of the distribution of all training targets, a "
        "guard against confident errors."
    )


# ---------------------------------------------------------------- training


def members_table(fitted: Fitted) -> TextTable:
    """Return the weight and the training of each member; epochs and their NLL only of those that have them."""
    header = ("member", "reads", "weight", "training time", "epochs", "last training NLL")
    rows = []
    for k, (member, weight) in enumerate(zip(fitted.members, fitted.weights, strict=True), start=1):
        history, steps = member.history, ("–", "–")
        if history:
            steps = (f"{len(history):,}", number_with_spread(history[-1].train_nll, 0.1))
        rows.append((f"{k}", member.title, percent(weight), f"{member.seconds:,.1f} s", *steps))
    if not any(member.history for member in fitted.members):
        return TextTable(header[:4], [row[:4] for row in rows])
    return TextTable(header, rows)


def _member_curves(fitted: Fitted) -> list[Figure]:
    trained = [pair for pair in zip(fitted.members, fitted.weights, strict=True) if pair[0].history]
    if not trained:
        return []
    histories, kinds = [member.history for member, _ in trained], [member.title for member, _ in trained]
    caption = (
        "Each line is a member: the NLL of its training rows after each epoch; lower is better. Colours show what the "
        f"members read, and heavier members have thicker lines. The NLL is {_scale_of_nll(fitted)}"
    )
    draw = partial(plots.member_curves, histories, kinds, [weight for _, weight in trained])
    return [figure("members", "Training of the members", caption, draw)]


def _scale_of_nll(fitted: Fitted) -> str:
    jointly = ", jointly over all outputs" if fitted.num_outputs > 1 else ""
    return f"computed on standardised targets{jointly}, so its scale differs from that of the scores above."


def single_model_panels(fitted: Fitted) -> list[Panel]:
    """Describe the training and the sites of a single model; nothing for several."""
    figures, member = [], fitted.members[0]
    if len(fitted.members) > 1:
        return []
    if member.history:
        validated = any(epoch.val_nll is not None for epoch in member.history)
        turns = (
            "The model is not trained on validation rows: where their curve turns up, it overfits."
            if validated
            else "There were no validation rows, so the curve does not show overfitting."
        )
        kept = "" if member.best_epoch is None else " The dotted line marks the epoch whose state was kept."
        caption = f"The NLL of each epoch; lower is better. It is {_scale_of_nll(fitted)} {turns}{kept}"
        draw = partial(plots.training_curves, member.history, best_epoch=member.best_epoch)
        figures.append(figure("training", "Training", caption, draw))
    figures += _site_figures(member)
    return [Panel(figures=figures)] if figures else []


def _site_figures(member: Member) -> list[Figure]:
    """Draw the learned sites and weights of each hidden layer."""
    rule = member.model.rule
    if rule is None:
        return []
    with torch.no_grad():
        sites = [rule.sites(layer).cpu().double().numpy() for layer in range(len(rule.widths))]
        weights = layer_weights([len(xi) for xi in sites], rule.log_weights().exp().cpu().double().numpy())
    figures = []
    for layer, (xi, omega) in enumerate(zip(sites, weights, strict=True)):
        num = len(omega)
        some = f" The figure shows the {plots.MAX_SITES} heaviest of {num:,}." if num > plots.MAX_SITES else ""
        title = "Sites and weights" if len(sites) == 1 else f"Sites and weights, hidden layer {layer + 1}"
        caption = (
            "Each column is a component of the mixture, heaviest first, with its weight below. Its dots show at how "
            "many standard deviations from the mean it evaluates each hidden unit. If one column has nearly all the "
            f"weight, the mixture has collapsed to a single component.{some}"
        )
        figures.append(figure(f"sites-{layer}", title, caption, partial(plots.sites_and_weights, xi, omega)))
    return figures


def layer_weights(sizes: Sequence[int], weights: Float[np.ndarray, " S"]) -> list[Float[np.ndarray, " sites"]]:
    """Return the weight of each site of each hidden layer, given the number of its sites.

    Aligned sites share the weights of the components. On a grid the components are all combinations of the layers'
    sites, the last layer varying fastest; the weight of a site is then summed over the other layers.
    """
    if all(size == len(weights) for size in sizes):
        return [weights for _ in sizes]
    grid, axes = weights.reshape(sizes), range(len(sizes))
    return [grid.sum(axis=tuple(a for a in axes if a != layer)) for layer in axes]


# ---------------------------------------------------------------- settings


def settings_table(fitted: Fitted) -> TextTable:
    """Return all settings, with one column for the members in which they are the same."""
    every = [_settings(member, fitted) for member in fitted.members]
    groups: dict[str, list[int]] = {}
    for k, settings in enumerate(every):
        groups.setdefault(repr(settings), []).append(k)
    columns = [every[group[0]] for group in groups.values()]
    rows = []
    for section in columns[0]:
        names = dict.fromkeys(name for settings in columns for name in settings[section])
        for k, name in enumerate(names):
            rows.append(("" if k else section, name, *(settings[section].get(name, "–") for settings in columns)))
    if len(columns) == 1:
        return TextTable(("", "setting", "all members" if len(every) > 1 else "value"), rows)
    return TextTable(("", "setting", *map(_name_members, groups.values())), rows)


def _settings(member: Member, fitted: Fitted) -> dict[str, dict[str, str]]:
    """Return the settings of a member as text, by section; of several members without those in which all differ."""
    parts: dict[str, dict[str, Any]] = member.settings | {
        "model": {"preset": member.spec.name} | member.settings["model"]
    }
    shown = {
        name.capitalize(): {key: "–" if value in (None, ()) else str(value) for key, value in part.items()}
        for name, part in parts.items()
    }
    shown["Training"] |= {"training rows": f"{fitted.num_rows:,}"}
    if len(fitted.members) > 1:
        del shown["Training"]["seed"]
    else:
        shown["Training"]["seconds"] = f"{member.seconds:.1f}"
    return shown


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

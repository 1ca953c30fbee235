"""How to mix members, learned from the rows they held out: weights, a factor of the variances, the guard's weight.

If all members hold out the same rows, each has a weight of its own. Members of different folds cannot be compared row
by row, so members of a kind then share one. Below, whatever has a weight has a label.

Stacking of predictive densities (Yao et al. 2018) maximises Σ_n log Σ_c w_c p_c(y_n) over the weights, where p_c(y_n)
is the density by the members with label c that did not see row n. The problem is convex and solved by expectation
maximisation.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dspp.folds import Split
from dspp.gp.threads import use_threads
from dspp.guard import Guard
from dspp.members.base import MEMBERS, Trained
from dspp.outcomes import Outcome
from dspp.predictive import Predictive

if TYPE_CHECKING:  # predicting does not need it
    from dspp.training.rows import Rows

VARIANCE_SCALES = np.exp(np.linspace(math.log(0.25), math.log(16.0), 49))  # tried; 1 is among them
VARIANCE_SCALE_PRIOR = 8.0  # rows' worth of evidence, per squared logarithm, that the variances are right as they are
PSEUDO_ROWS = 20.0  # of each label: shrinks weights towards equal when rows are few
GUARD = 0.005, 0.05  # smallest and largest weight of the guard
GUARD_ROWS = 200.0, 0.01  # as if the guard had this share of so many further rows
GUARD_WEIGHT = 0.01  # where there are no held-out rows to learn it from
MIN_WEIGHT = 0.02  # labels with less weight are dropped
STEPS = 200  # of expectation maximisation
PILOT_TOLERANCE = {True: 0.03, False: 0.01}  # nats per row by which longer training may be worse: mixing gains more


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """Rows that some members held out, and what these members predict for them, in standardised units."""

    rows: np.ndarray  # the row numbers
    y: Float[np.ndarray, "n T"]
    predictions: dict[str, list[Predictive]]  # by label
    fold: int = 0
    floor: float = 0.0  # a variance of the noise below which no scale may take it


@dataclass(frozen=True)
class Mixing:
    """How to mix: the weights by label, which sum to one, the factor of the variances, and the weight of the guard.

    `evidence` is the logarithm of its posterior density, without a constant.
    """

    weights: dict[str, float]
    variance_scale: float
    guard_weight: float
    evidence: float = 0.0


@dataclass(frozen=True, eq=False)
class Blend:
    """The members that have weight, their weights, and what `Fitted` has under the same names."""

    kept: tuple[Trained, ...]
    weights: tuple[float, ...]
    variance_scale: float = 1.0
    judged: int | None = None
    guard: Guard | None = None
    groups: tuple[HeldOutRows, ...] = ()  # the rows of each fold, from which that was learned


def blend(trained: Sequence[Trained], rows: "Rows", split: Split, outcome: Outcome, floor: float) -> Blend:
    """Learn how to mix the members that were trained, and drop those without weight."""
    good = [one for one in trained if one.member is not None]
    labels = [label_of(one, split) for one in good]
    own, weights = rows[: split.num_train], None if rows.weights is None else rows.weights.double().numpy()
    guard = outcome.fit_guard(own.y.double().numpy(), GUARD_WEIGHT, None if weights is None else weights[: len(own)])
    groups = hold_out(good, rows, split, floor)
    mixing = Mixing({label: 1.0 / len(set(labels)) for label in labels}, 1.0, GUARD_WEIGHT)
    if groups:
        mixing = stack(groups, guard, outcome, weights)
        if split.num_folds > 1 and not split.forward:
            mixing = replace(mixing, weights=discount(mixing.weights))
    kept = [(one, label) for one, label in zip(good, labels, strict=True) if label in mixing.weights]
    sizes = Counter(label for _, label in kept)
    judged = min((sum(len(g.predictions[label]) for label in mixing.weights) for g in groups), default=len(kept))
    return Blend(
        kept=tuple(one for one, _ in kept),
        weights=tuple(mixing.weights[label] / sizes[label] for _, label in kept),
        variance_scale=mixing.variance_scale,
        judged=len(kept) if split.forward else judged,
        guard=replace(guard, weight=mixing.guard_weight),
        groups=tuple(groups),
    )


def mix(
    parts: Sequence[Predictive],
    weights: Sequence[float],
    variance_scale: float,
    guard: Guard | None,
    outcome: Outcome,
    floor: float,
    unknown: Float[Tensor, " N"] | None,
) -> Predictive:
    """Return (1 − g) Σ_k w_k p_k(y) + g p_guard(y) in standardised units.

    The variances of all components are multiplied by `variance_scale`, which leaves that of the noise above its floor.
    Then each row's prediction goes as far towards the marginal distribution as is unknown of it.
    """
    if len(parts) == 1 and variance_scale == 1.0 and guard is None and unknown is None:
        return parts[0]
    exact = [part.to(torch.float64) for part in parts]  # members may differ in dtype
    mixed = type(exact[0]).mix(exact, weights)
    if variance_scale != 1.0:
        mixed = mixed.widen(variance_scale, floor)
    if unknown is not None:
        mixed = mixed.approach_standard(unknown)
    marginal = None if guard is None else outcome.marginal(guard, len(mixed))
    if guard is None or marginal is None:
        return mixed
    return type(mixed).mix([mixed, cast(Any, marginal)], [1.0 - guard.weight, guard.weight])


def variance_scale_of(scale: float, judged: int | None, members: int) -> float:
    """Return the variance scale of a mixture of `members`, given the one that suits a mixture of `judged` of them.

    Much of what makes a single member overconfident is that it differs from other members by chance, and that part of
    the variance falls like 1/m in a mixture of m. So does the variance that is missing: measured on small tables, the
    best factor was 1 + c/m to a good approximation.
    """
    if judged is None or members <= judged or scale <= 1.0:
        return scale
    return 1.0 + (scale - 1.0) * judged / members


def stack(
    groups: Sequence[HeldOutRows],
    guard: Guard,
    outcome: Outcome,
    row_weights: Float[np.ndarray, " N"] | None = None,
) -> Mixing:
    """Learn how to mix from the rows of each fold, with the same labels in all of them.

    Of the variance scales tried, the one with the largest posterior density is returned, with its weights.
    """
    importance = np.concatenate([np.ones(len(g.rows)) if row_weights is None else row_weights[g.rows] for g in groups])
    importance = importance * len(importance) / importance.sum()
    marginal = [_marginal(guard, outcome, group) for group in groups]
    best: Mixing | None = None
    for scale in VARIANCE_SCALES.tolist():
        each = [_densities(group, guarded, scale) for group, guarded in zip(groups, marginal, strict=True)]
        weights, value = expectation_maximisation(np.concatenate(each, axis=1), importance)
        value -= VARIANCE_SCALE_PRIOR * math.log(scale) ** 2
        if best is None or value > best.evidence + 1e-9:
            shares = zip(groups[0].predictions, weights[:-1] / weights[:-1].sum(), strict=True)
            kept = {label: float(share) for label, share in shares if share >= MIN_WEIGHT}
            total = sum(kept.values())
            shared = {label: share / total for label, share in kept.items()}
            best = Mixing(shared, scale, float(weights[-1]), value)
    assert best is not None
    return best


def hold_out(trained: Sequence[Trained], rows: "Rows", split: Split, floor: float) -> list[HeldOutRows]:
    """Return the held-out rows of each fold with the predictions of its members, without folds that lack a label."""
    labels = list(dict.fromkeys(label_of(one, split) for one in trained))
    groups = []
    for fold in split.judging:
        found: dict[str, list[Predictive]] = {label: [] for label in labels}
        for one in trained:
            if one.fold == fold and one.held_out is not None:
                found[label_of(one, split)].append(one.held_out)
        if all(found.values()):
            numbers = np.flatnonzero(split.held_out(fold))
            groups.append(HeldOutRows(numbers, rows.y[torch.from_numpy(numbers)].double().numpy(), found, fold, floor))
    return groups


def choose_epochs(pilots: Sequence[Trained], rows: "Rows", split: Split, outcome: Outcome, floor: float) -> int | None:
    """Return the number of epochs, chosen by what pilots predict for the rows of the first fold; None: as planned.

    Long training suits targets with little noise, and ruins the density of noisy ones. Pilots are compared with the
    variance scale that suits each; if the longest of them is not worse, members are trained to the end.
    """
    guard = outcome.fit_guard(rows.y.double().numpy(), GUARD_WEIGHT)
    scores: dict[int, float] = {}
    with use_threads(1):
        for one in pilots:
            for group in hold_out([one], rows, split, floor):
                assert one.member is not None
                scores[one.member.train.epochs] = calibrated_nll(group, guard, outcome)
    if not scores:  # all diverged
        return None
    enough = min(scores.values()) + PILOT_TOLERANCE[split.num_folds > 1]
    longest = max(epochs for epochs, score in scores.items() if score <= enough)
    return None if longest == max(scores) else longest


def calibrated_nll(group: HeldOutRows, guard: Guard, outcome: Outcome) -> float:
    """Return the NLL of the rows of one fold with the best variance scale for them, and the guard at its own weight."""
    marginal = _marginal(guard, outcome, group)
    logs = np.log(
        np.append(np.full(len(group.predictions), (1.0 - guard.weight) / len(group.predictions)), guard.weight)
    )
    each = (_densities(group, marginal, scale) + logs[:, None] for scale in VARIANCE_SCALES.tolist())
    return min(-float(np.logaddexp.reduce(densities, axis=0).mean()) for densities in each)


def label_of(one: Trained, split: Split) -> str:
    """Return what has a weight of its own in the mixture: a kind or, if all hold out the same rows, a member."""
    return one.kind if split.num_folds > 1 else f"{one.kind} {one.number}"


def discount(weights: Mapping[str, float]) -> dict[str, float]:
    """Return the weights by kind where each kind has kept its share; see `Member.share_in_folds`."""
    kept = {kind: weight * MEMBERS[kind].share_in_folds for kind, weight in weights.items()}
    total = sum(kept.values())
    return {kind: weight / total for kind, weight in kept.items()}


def _marginal(guard: Guard, outcome: Outcome, group: HeldOutRows) -> Float[np.ndarray, " n"]:
    """Return the log density of the guard."""
    marginal = outcome.marginal(guard, len(group.rows))
    if marginal is None:
        return np.full(len(group.rows), -np.inf)
    return marginal.log_prob(torch.from_numpy(group.y)).numpy()


def _densities(group: HeldOutRows, marginal: Float[np.ndarray, " n"], scale: float) -> Float[np.ndarray, "C+1 n"]:
    """Return the log density of each kind, the mean over its members, and last that of the guard."""
    y = torch.from_numpy(group.y)
    kinds = []
    for parts in group.predictions.values():
        exact = [part.to(torch.float64) for part in parts]
        each = torch.stack([(part if scale == 1.0 else part.widen(scale, group.floor)).log_prob(y) for part in exact])
        kinds.append((torch.logsumexp(each, dim=0) - math.log(len(parts))).numpy())
    return np.stack([*kinds, marginal])


def expectation_maximisation(
    log_densities: Float[np.ndarray, "C+1 n"], importance: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " C+1"], float]:
    """Return the weights with the largest posterior density, the guard's last, and its logarithm."""
    kinds = len(log_densities) - 1
    rows, share = GUARD_ROWS
    prior = np.append(np.full(kinds, PSEUDO_ROWS), rows * share)
    weights = np.append(np.full(kinds, 0.99 / kinds), 0.01)
    largest = log_densities.max(axis=0)
    densities = np.exp(log_densities - largest)
    for _ in range(STEPS):
        joint = weights[:, None] * densities
        counts = (joint / joint.sum(axis=0)) @ importance + prior
        previous, weights = weights, counts / counts.sum()
        weights[-1] = np.clip(weights[-1], *GUARD)
        weights[:-1] *= (1.0 - weights[-1]) / weights[:-1].sum()
        if np.abs(weights - previous).max() < 1e-6:
            break
    value = float(importance @ (np.log(weights @ densities) + largest) + prior @ np.log(weights))
    return weights, value

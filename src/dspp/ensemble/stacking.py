"""How to mix members, learned from the rows they held out: weights, the spread, a pull, the weight of the guard.

If all members hold out the same rows, each has a weight of its own. Members of different folds cannot be compared row
by row, so members of a kind then share one; below, a kind is whatever has a weight.

Stacking of predictive densities (Yao et al. 2018) maximises Σ_n log Σ_c w_c p_c(y_n) over the weights, where p_c(y_n)
is the density by the members of kind c that did not see row n. The problem is convex and solved by expectation
maximisation.

A mixture of members that err independently is wider than it needs to be: its mean is better than theirs, but the spread
between them is part of its variance. So members are also moved towards their common mean, by a share of the way that is
learned as the spread is; but only if all members hold out the same rows, so that the mixture judged is the one in use.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float

from dspp.guard import Guard
from dspp.outcomes import Outcome
from dspp.predictive import Predictive, pull_together

SPREADS = np.exp(np.linspace(math.log(0.25), math.log(16.0), 49))  # factors of the variances tried; 1 is among them
SPREAD_PRIOR = 8.0  # rows' worth of evidence, per squared log factor, that the spread is right as it is
PULLS = 0.0, 0.2, 0.4, 0.6, 0.8, 1.0  # shares of the way to the common mean of the members
NEAR = 0.7  # largest logarithm of the factor by which a pull may change the spread
PULL_PRIOR = 8.0  # rows' worth of evidence, per squared share, that members need no pull
PSEUDO_ROWS = 20.0  # of each kind: shrinks weights towards equal when rows are few
GUARD = 0.005, 0.05  # smallest and largest weight of the guard
GUARD_ROWS = 200.0, 0.01  # as if the guard had this share of so many further rows
LIGHT = 0.02  # kinds with less weight are dropped
STEPS = 200  # of expectation maximisation


@dataclass(frozen=True, eq=False)
class HeldOutRows:
    """Rows that some members held out, and what these members predict for them, in standardised units.

    Attributes:
        rows: The row numbers.
        y: The targets.
        predictions: By kind, the distributions of its members.
        fold: The fold.
        floor: A variance of the noise below which no spread may take it.
    """

    rows: np.ndarray
    y: Float[np.ndarray, "n T"]
    predictions: dict[str, list[Predictive]]
    fold: int = 0
    floor: float = 0.0

    def mix(self, weights: Mapping[str, float], pull: float) -> "HeldOutRows":
        """Return the same rows with one prediction: the mixture of the members, moved towards their common mean."""
        members = [
            (part.to(torch.float64), w / len(self.predictions[k]))
            for k, w in weights.items()
            for part in self.predictions[k]
        ]
        parts, shares = [part for part, _ in members], [share for _, share in members]
        mixed = type(parts[0]).mix(pull_together(parts, shares, pull), shares)
        return replace(self, predictions={"all": [mixed]})


@dataclass(frozen=True)
class Mixing:
    """How to mix: weights of the kinds (sum one), the factor of the variances, the weight of the guard, the pull."""

    weights: dict[str, float]
    spread: float
    guard_weight: float
    pull: float = 0.0


def stack(
    groups: Sequence[HeldOutRows],
    guard: Guard,
    outcome: Outcome,
    row_weights: Float[np.ndarray, " N"] | None = None,
    may_pull: bool = True,
) -> Mixing:
    """Learn how to mix from rows that were held out.

    Args:
        groups: The rows of each fold, with the same kinds in all of them.
        guard: The marginal distribution of the targets.
        outcome: What the target is.
        row_weights: One weight per row of the table; None: equal.
        may_pull: Whether all members hold out the same rows.
    """
    importance = np.concatenate([np.ones(len(g.rows)) if row_weights is None else row_weights[g.rows] for g in groups])
    importance = importance * len(importance) / importance.sum()
    marginal = [_marginal(guard, outcome, group) for group in groups]
    first = next(iter(groups[0].predictions.values()))[0]
    _, mixing = _best(groups, marginal, importance, SPREADS if hasattr(first, "widen") else [1.0])
    if not may_pull or len(groups) > 1 or not hasattr(first, "shift"):
        return mixing
    near = SPREADS[np.abs(np.log(SPREADS / mixing.spread)) < NEAR][::2]
    best = -math.inf
    learned = mixing
    for pull in PULLS:
        mixtures = [group.mix(mixing.weights, pull) for group in groups]
        value, found = _best(mixtures, marginal, importance, near)
        value -= PULL_PRIOR * pull**2
        if value > best + 1e-9:
            best = value
            learned = (
                replace(mixing, spread=found.spread, guard_weight=found.guard_weight, pull=pull) if pull else mixing
            )
    return learned


def _best(
    groups: Sequence[HeldOutRows],
    marginal: Sequence[Float[np.ndarray, " n"]],
    importance: Float[np.ndarray, " n"],
    spreads: Sequence[float] | Float[np.ndarray, " s"],
) -> tuple[float, Mixing]:
    """Return the spread with the largest posterior density, with its weights, and the logarithm of that density."""
    kinds = list(groups[0].predictions)
    best: tuple[float, Mixing] | None = None
    for spread in spreads:
        each = [_densities(group, guarded, float(spread)) for group, guarded in zip(groups, marginal, strict=True)]
        densities = np.concatenate(each, axis=1)
        weights, value = _expectation_maximisation(densities, importance)
        value -= SPREAD_PRIOR * math.log(spread) ** 2
        if best is None or value > best[0] + 1e-9:
            best = value, _to_mixing(kinds, weights, float(spread))
    assert best is not None
    return best


def calibrated_nll(group: HeldOutRows, guard: Guard, outcome: Outcome) -> float:
    """Return the NLL of the rows of one fold with the spread that suits them best, and the guard at its own weight."""
    marginal = _marginal(guard, outcome, group)
    logs = np.log(
        np.append(np.full(len(group.predictions), (1.0 - guard.weight) / len(group.predictions)), guard.weight)
    )
    widths = SPREADS if hasattr(next(iter(group.predictions.values()))[0], "widen") else [1.0]
    each = (_densities(group, marginal, float(spread)) + logs[:, None] for spread in widths)
    return min(-float(np.logaddexp.reduce(densities, axis=0).mean()) for densities in each)


def discount(mixing: Mixing, kind: str, share: float) -> Mixing:
    """Return the mixing with only a share of the weight of one kind, unless there is no other."""
    weights = {name: weight * (share if name == kind else 1.0) for name, weight in mixing.weights.items()}
    total = sum(weights.values())
    return replace(mixing, weights={name: weight / total for name, weight in weights.items()})


def shrink_spread(spread: float, judged: int, members: int) -> float:
    """Return the spread of a mixture of `members`, given the one that suits a mixture of `judged` of them.

    Much of what makes a single member overconfident is that it differs from other members by chance, and that part of
    the variance falls like 1/m in a mixture of m. So does what is missing from its spread: measured on small tables,
    the best factor was 1 + c/m to a good approximation.
    """
    return 1.0 + (spread - 1.0) * judged / members if spread > 1.0 else spread


def _marginal(guard: Guard, outcome: Outcome, group: HeldOutRows) -> Float[np.ndarray, " n"]:
    """Return the log density of the guard."""
    marginal = guard.predictive(outcome, len(group.rows))
    if marginal is None:
        return np.full(len(group.rows), -np.inf)
    return marginal.log_prob(torch.from_numpy(group.y)).numpy()


def _densities(group: HeldOutRows, marginal: Float[np.ndarray, " n"], spread: float) -> Float[np.ndarray, "C+1 n"]:
    """Return the log density of each kind, the mean over its members, and last that of the guard."""
    y = torch.from_numpy(group.y)
    kinds = []
    for parts in group.predictions.values():
        exact = [part.to(torch.float64) for part in parts]
        each = torch.stack([(part if spread == 1.0 else part.widen(spread, group.floor)).log_prob(y) for part in exact])
        kinds.append((torch.logsumexp(each, dim=0) - math.log(len(parts))).numpy())
    return np.stack([*kinds, marginal])


def _expectation_maximisation(
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


def _to_mixing(kinds: Sequence[str], weights: Float[np.ndarray, " C+1"], spread: float) -> Mixing:
    shares = weights[:-1] / weights[:-1].sum()
    kept = {kind: float(share) for kind, share in zip(kinds, shares, strict=True) if share >= LIGHT}
    total = sum(kept.values())
    return Mixing({kind: share / total for kind, share in kept.items()}, spread, float(weights[-1]))

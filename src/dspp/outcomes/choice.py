"""Choosing the outcome of positive targets: `real`, or `positive`.

Boosted trees predict y and log y of rows they did not see. Around each prediction stands a Normal whose spread depends
on the prediction, of y in one case and of log y in the other. The outcome whose density of y itself is higher on these
rows is taken: a log-normal where the spread grows with the size of the target, a Gaussian elsewhere.
"""

import math
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from dspp.folds import deal_groups
from dspp.notes import Note
from dspp.trees import fit_trees
from dspp.trees.ensemble import MAX_TREES

FOLDS = 3
MAX_ROWS = 6_000  # drawn at random from larger tables
MIN_ROWS = 100
TREES_PER_SECOND, MIN_TREES = 8, 40  # of a time budget
FEW_ZEROS = 0.01  # share of the rows up to which zeros look like mistakes
BINS = 10  # of the predictions, with a spread each
MIN_PER_BIN = 25
MIN_GAIN = 0.02  # nats per row by which a log-normal must be better
MIN_RATIO = 3.0  # of the largest to the smallest target, below which a logarithm hardly bends


def choose_outcome(
    X: Float[np.ndarray, "N D"],
    y: Float[np.ndarray, " N"],
    seed: int,
    weights: Float[np.ndarray, " N"] | None = None,
    groups: Int[np.ndarray, " N"] | None = None,
    time_budget: float | None = None,
) -> tuple[str, list[Note]]:
    """Return "real" or "positive", and a note on the choice if there was one.

    Rows of a group stay in one fold. A short time budget, in seconds for the whole fit, leaves time for few trees.
    """
    if len(y) >= MIN_ROWS and y.min() == 0.0 and (zeros := int((y == 0.0).sum())) <= FEW_ZEROS * len(y):
        text = (
            "so a log-normal cannot be used, and intervals may reach below 0; leave these rows out if they mean nothing"
        )
        return "real", [Note(f"the target is 0 in {zeros:,} row{'s' * (zeros > 1)} and positive elsewhere", text)]
    if len(y) < MIN_ROWS or not (y > 0.0).all() or y.max() < MIN_RATIO * y.min():
        return "real", []
    random, w = np.random.default_rng(seed), np.ones(len(y)) if weights is None else weights
    if len(y) > MAX_ROWS:
        chosen = random.choice(len(y), MAX_ROWS, replace=False)
        X, y, w, groups = X[chosen], y[chosen], w[chosen], None if groups is None else groups[chosen]
    together = groups is not None and np.ptp(groups) > 0
    fold = deal_groups(groups, FOLDS, seed) if groups is not None and together else random.permutation(len(y)) % FOLDS
    log_y = np.log(y)
    trees = MAX_TREES if time_budget is None else min(max(MIN_TREES, int(TREES_PER_SECOND * time_budget)), MAX_TREES)
    limits: dict[str, Any] = {"seed": seed, "stop_early": not together, "max_rounds": trees}
    # log p(y) = log p(log y) − log y
    logarithmic = score_by_trees(X, log_y, w, fold, limits) - float(np.average(log_y, weights=w))
    gain = logarithmic - score_by_trees(X, y, w, fold, limits)
    if gain <= MIN_GAIN:
        return "real", []
    text = f"its density is higher by {gain:.2f} nats per row out of fold; outcome='real' overrides it"
    return "positive", [Note("the target is positive and modelled as log-normal", text)]


def score_by_trees(
    X: Float[np.ndarray, "N D"],
    y: Float[np.ndarray, " N"],
    w: Float[np.ndarray, " N"],
    fold: Int[np.ndarray, " N"],
    limits: dict[str, Any],
) -> float:
    """Return the mean log density of y under Normals around out-of-fold predictions."""
    scale = float(y.std()) or 1.0
    standardised = (y - y.mean()) / scale
    predicted = np.empty_like(standardised)
    for k in range(int(fold.max()) + 1):
        others = fold != k
        trees = fit_trees(X[others], standardised[others], weights=w[others], **limits)
        predicted[fold == k] = trees.predict(X[fold == k])
    residual = standardised - predicted
    bins = max(1, min(BINS, len(y) // MIN_PER_BIN))
    edges = np.quantile(predicted, np.linspace(0.0, 1.0, bins + 1)[1:-1])
    place = np.searchsorted(edges, predicted)
    total = np.bincount(place, weights=w, minlength=bins)
    squares = np.bincount(place, weights=w * residual**2, minlength=bins)
    # Each row is left out of the variance of its own bin, which few large residuals may dominate.
    var = np.maximum((squares[place] - w * residual**2) / np.maximum(total[place] - w, w), 1e-6)
    log_density = -0.5 * (np.log(2.0 * math.pi * var) + residual**2 / var)
    worst = np.quantile(log_density, 0.01)  # a Normal is no model of outliers, nor are members without a guard
    return float(np.average(np.maximum(log_density, worst), weights=w)) - math.log(scale)

"""The scores of the page, beside those of simpler predictions of the same rows."""

from collections.abc import Mapping

import numpy as np
from jaxtyping import Float

from dspp.evaluate import Evaluation
from dspp.metrics import describe_scores, r_squared
from dspp.report.page import Card
from dspp.report.probe import Probe

MAX_ROWS = 50_000  # that boosted trees predict
CONSTANT = ("nll", "rmse", "crps", "width90")  # scores of the constant baseline
DISCRETE = "The target has few distinct values, on which a density can be made arbitrarily high: compare CRPS instead."


def score_cards(evaluation: Evaluation) -> list[Card]:
    """Return a card for each score, in the order of `METRICS`; CRPS first and NLL last for few distinct values."""
    observed = evaluation.comparison.y.reshape(evaluation.num_rows, -1).cpu().numpy()
    is_discrete = any(few is not None for few in evaluation.fitted.outcome.levels(observed))
    return make_cards(evaluation.scores, score_baselines(evaluation), is_discrete)


def make_cards(
    scores: Mapping[str, float], baselines: Mapping[str, Mapping[str, float]], is_discrete: bool
) -> list[Card]:
    """Return cards of scores, and of baselines by their names."""
    cards = []
    described = {title: describe_scores(found, "report") for title, found in baselines.items()}
    for name, (title, value, meaning) in describe_scores(scores, "report").items():
        beside = {label: found[name][1] for label, found in described.items() if name in found}
        caveat = f" {DISCRETE}" if is_discrete and name == "nll" else ""
        cards.append((name, Card(title, value, meaning + caveat, beside)))
    if is_discrete:
        cards.sort(key=lambda pair: {"crps": 0, "nll": 2}.get(pair[0], 1))
    return [card for _, card in cards]


def score_baselines(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Return the scores of each baseline by its name."""
    outcome, rows = evaluation.fitted.outcome, evaluation.comparison
    y, weights = rows.y.cpu().numpy(), None if rows.weights is None else rows.weights.cpu().numpy()
    found, constant = {}, outcome.constant(len(y))
    if constant is not None:
        compared = outcome.compare(constant[1], y.reshape(len(y), -1), weights)
        found[constant[0]] = compared.scores(name for name in CONSTANT if name in outcome.metrics)
    if len(y) <= MAX_ROWS and evaluation.every is None:
        mean = _predict_trees(evaluation)
        if mean is not None:
            rmse = float(np.sqrt(np.average(np.square(mean - y), weights=weights)))
            found["boosted trees alone"] = {"rmse": rmse, "r2": r_squared(mean, y, weights)}
    return found


def _predict_trees(evaluation: Evaluation) -> Float[np.ndarray, " N"] | None:
    """Return the mean that the trees read by some members predict for each row; None if there is none."""
    if not evaluation.fitted.trees:
        return None
    rows = np.arange(len(evaluation.table))
    probe, predicted = Probe(evaluation, rows), np.empty((len(rows), len(evaluation.fitted.trees)))
    for k, model in enumerate(probe.models):
        predicted[probe.owner == k] = model.predict_trees(probe.X[k][probe.owner == k])
    return evaluation.fitted.outcome.tree_mean(predicted)

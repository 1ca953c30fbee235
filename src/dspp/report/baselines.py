"""Scores of simpler predictions of the same rows, which put those of the model into perspective."""

import numpy as np
from jaxtyping import Float

from dspp.evaluate import Evaluation
from dspp.metrics import r_squared
from dspp.report.probe import Probe

MOST_ROWS = 50_000  # that boosted trees predict
CONSTANT = ("nll", "rmse", "crps", "width90")


def score_baselines(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Return the scores of each baseline by its name."""
    outcome, rows = evaluation.fitted.outcome, evaluation.comparison
    y, weights = rows.y.cpu().numpy(), None if rows.weights is None else rows.weights.cpu().numpy()
    found, constant = {}, outcome.constant(len(y))
    if constant is not None:
        compared = outcome.compare(constant[1], y.reshape(len(y), -1), weights)
        found[constant[0]] = compared.scores(name for name in CONSTANT if name in outcome.metrics)
    if len(y) <= MOST_ROWS and evaluation.every is None:
        mean = _predict_trees(evaluation)
        if mean is not None:
            rmse = float(np.sqrt(np.average(np.square(mean - y), weights=weights)))
            found["boosted trees alone"] = {"rmse": rmse, "r2": r_squared(mean, y, weights)}
    return found


def missing_baselines(evaluation: Evaluation) -> list[str]:
    """Return a note on boosted trees that cannot be compared."""
    fitted = evaluation.fitted
    return [] if not fitted.trees or not fitted.outcome.tree_note else [fitted.outcome.tree_note]


def _predict_trees(evaluation: Evaluation) -> Float[np.ndarray, " N"] | None:
    """Return the mean that the trees read by some members predict for each row; None if there is none."""
    if not evaluation.fitted.trees:
        return None
    rows = np.arange(len(evaluation.table))
    probe, predicted = Probe(evaluation, rows), np.empty((len(rows), len(evaluation.fitted.trees)))
    for k, model in enumerate(probe.models):
        predicted[probe.owner == k] = model.predict_trees(probe.X[k][probe.owner == k])
    return evaluation.fitted.outcome.tree_mean(predicted)

"""Scores of simpler predictions of the same rows, which put those of the model into perspective."""

import numpy as np
import torch
from jaxtyping import Float

from dspp.fitted import Evaluation
from dspp.likelihoods import LIKELIHOODS
from dspp.likelihoods.codec import Logarithm, Standardised
from dspp.metrics import Comparison, r_squared
from dspp.report.probe import Probe

MOST_ROWS = 50_000  # that boosted trees predict
CONSTANT = ("nll", "rmse", "crps", "width90")


def score_baselines(evaluation: Evaluation) -> dict[str, dict[str, float]]:
    """Return the scores of each baseline by its name."""
    fitted, rows = evaluation.fitted, evaluation.comparison
    y, weights = rows.y.cpu().numpy(), None if rows.weights is None else rows.weights.cpu().numpy()
    zeros = torch.zeros(1, len(y), fitted.num_outputs, dtype=torch.float64)
    weight = torch.zeros(1, dtype=torch.float64)
    normal = LIKELIHOODS["gaussian"].from_moments(weight, zeros, torch.ones_like(zeros))
    assert normal is not None
    real = isinstance(fitted.codec, Standardised)
    family = "Normal" if real else "log-normal" if isinstance(fitted.codec, Logarithm) else "distribution"
    name = f"one {family} for all rows"
    found = {name: Comparison(fitted.codec.decode(normal), y, weights).scores(CONSTANT)}
    if real and fitted.num_outputs == 1 and len(y) <= MOST_ROWS and evaluation.every is None:
        mean = _predict_trees(evaluation)
        if mean is not None:
            rmse = float(np.sqrt(np.average(np.square(mean - y), weights=weights)))
            found["boosted trees alone"] = {"rmse": rmse, "r2": r_squared(mean, y, weights)}
    return found


def missing_baselines(evaluation: Evaluation) -> list[str]:
    """Return a note on boosted trees that cannot be compared."""
    fitted = evaluation.fitted
    if fitted.trees is None or isinstance(fitted.codec, Standardised):
        return []
    return [f"boosted trees alone are not scored: they predict the logarithm of {fitted.target_names[0]}"]


def _predict_trees(evaluation: Evaluation) -> Float[np.ndarray, " N"] | None:
    """Return what the trees that some members read predict for each row; None without such trees."""
    if evaluation.fitted.trees is None:
        return None
    rows, scale = np.arange(len(evaluation.table)), evaluation.fitted.codec.scale
    probe, mean = Probe(evaluation, rows), np.empty(len(rows))
    for k, model in enumerate(probe.models):
        assert model.trees is not None
        mean[probe.owner == k] = model.trees.predict(probe.X[k][probe.owner == k])
    return np.asarray(scale.mean[0] + scale.scale[0] * mean)

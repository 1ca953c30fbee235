"""Scores on the test rows, in units standardised by the training rows."""

import math

import numpy as np

from dspp.metrics import Comparison
from dspp.predictive import Predictive

COVERAGES = (50, 90, 95)  # percent


def score(predicted: Predictive, y: np.ndarray, unit: float = 1.0) -> dict[str, float]:
    """Return the scores of predictive distributions by name.

    Args:
        predicted: The distributions.
        y: The observed targets, in the same units.
        unit: The standard deviation of the training targets in these units. For z = (y − m) / unit the density is
            p(z) = unit · p(y), so that −log p(z) = −log p(y) − log unit.
    """
    rows = Comparison(predicted, y)
    surprise = -rows.mixture.log_prob(rows.y).detach().cpu().numpy() - math.log(unit)
    return {
        "nll": float(surprise.mean()),
        "crps": rows.crps() / unit,
        "rmse": rows.rmse() / unit,
        **{f"coverage{percent}": rows.coverage(percent / 100) for percent in COVERAGES},
        "worst_surprise": float(surprise.max()),
        "median_surprise": float(np.median(surprise)),
    }

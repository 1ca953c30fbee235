"""The scores of `dspp.metrics` for scikit-learn's `cross_val_score`, `cross_validate` and `GridSearchCV`.

from dspp import scorers

cross_val_score(model, X, y, scoring=scorers.neg_crps)
cross_validate(model, X, y, scoring=scorers.evaluate)["test_coverage90"]  # all scores, as they are

For every metric there is a scorer of which greater is better: `neg_nll`, `neg_crps`, `neg_rmse`, `neg_width90` and so
on are minus the score; where a certain value is best, `neg_coverage90_error` and so on are minus the distance from it.
They take estimators of `dspp`, pipelines that end in one, and searches over these.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sklearn.utils.metadata_routing import MetadataRequest

from dspp.errors import InputError
from dspp.evaluate import Evaluation
from dspp.metrics import METRICS
from dspp.pipelines import last_step


@dataclass(frozen=True)
class Scorer:
    """A metric as a scorer of scikit-learn: `scorer(estimator, X, y)` is a number of which greater is better.

    With metadata routing it asks for `sample_weight`.

    Attributes:
        metric: The name of a metric, one of `METRICS`.

    Example:
        >>> import numpy as np
        >>> from sklearn.model_selection import cross_val_score
        >>> from dspp import PPGPRRegressor, scorers
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> cross_val_score(PPGPRRegressor(epochs=2, inducing=8), X, X[:, 0], scoring=scorers.neg_crps, cv=3).shape
        (3,)
        >>> scorers.neg_crps == scorers.Scorer("crps")
        True
    """

    metric: str

    def __call__(self, estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the score of a fitted estimator on these rows."""
        metric = METRICS[self.metric]
        evaluation = _evaluation(estimator, X, y, sample_weight, [self.metric])
        if self.metric not in evaluation.fitted.outcome.metrics:
            raise InputError(f"{self.metric}: expected {metric.targets}, got others; choose another score")
        score = metric.function(evaluation.comparison)
        return -score if metric.target is None else -abs(score - metric.target)

    def get_metadata_routing(self) -> MetadataRequest:
        """Return what scikit-learn is to pass on, if metadata routing is enabled."""
        request = MetadataRequest(owner=self)
        request.score.add_request(param="sample_weight", alias=True)
        return request


def evaluate(estimator: Any, X: Any, y: Any, sample_weight: Any = None) -> dict[str, float]:
    """Return all scores by name, as they are: `scoring=scorers.evaluate` in `cross_validate`.

    Example:
        >>> import numpy as np
        >>> from sklearn.model_selection import cross_validate
        >>> from dspp import PPGPRRegressor, scorers
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> found = cross_validate(PPGPRRegressor(epochs=2, inducing=8), X, X[:, 0], scoring=scorers.evaluate, cv=3)
        >>> found["test_coverage90"].shape
        (3,)
    """
    return _evaluation(estimator, X, y, sample_weight).scores


def _evaluation(estimator: Any, X: Any, y: Any, sample_weight: Any, scores: Iterable[str] | None = None) -> Evaluation:
    model, rows = last_step(estimator, X)
    found: Evaluation = model.evaluation(rows, y, sample_weight, scores)
    return found


def _names() -> dict[str, str]:
    """Return the metrics by the names of their scorers."""
    return {f"neg_{name}" if METRICS[name].target is None else f"neg_{name}_error": name for name in METRICS}


def __getattr__(name: str) -> Scorer:
    if name not in _names():
        raise AttributeError(f"module 'dspp.scorers' has no attribute {name!r}; expected one of {', '.join(_names())}")
    return Scorer(_names()[name])


def __dir__() -> list[str]:
    return sorted(("Scorer", "evaluate", *_names()))

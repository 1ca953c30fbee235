"""What stands inside scikit-learn's pipelines and searches."""

from typing import Any

from dspp.errors import InputError


def last_step(estimator: Any, X: Any) -> tuple[Any, Any]:
    """Return the estimator of `dspp` at the end of searches and pipelines, and the rows X as it takes them.

    Raises:
        InputError: The last estimator predicts no distributions.
    """
    while not hasattr(estimator, "predict_dist"):
        if hasattr(estimator, "best_estimator_"):
            estimator = estimator.best_estimator_
        elif hasattr(estimator, "steps"):
            estimator, X = estimator[-1], estimator[:-1].transform(X) if len(estimator) > 1 else X
        else:
            raise InputError(
                f"estimator: expected one that predicts distributions, such as DSPPRegressor, got "
                f"{type(estimator).__name__}; pass an estimator with predict_dist, or a pipeline that ends in one"
            )
    return estimator, X

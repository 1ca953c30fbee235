"""Scorers for scikit-learn: the registered metrics, greater is better, inside pipelines and searches."""

import pickle
from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dspp import InputError, PPGPRRegressor, metrics, scorers
from dspp.metrics import METRICS, Comparison, Metric
from dspp.scorers import Scorer

QUICK: dict[str, Any] = {"inducing": 6, "epochs": 5, "restarts": 1, "progress": False}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 2))
Y = X[:, 0] + 0.1 * RNG.normal(size=80)
WEIGHTS = RNG.uniform(0.5, 2.0, size=80)
NAMES = [name for name in dir(scorers) if name.startswith("neg_")]


@pytest.fixture(scope="module")
def model() -> PPGPRRegressor:
    return PPGPRRegressor(**QUICK).fit(X, Y)


def test_every_metric_has_a_scorer() -> None:
    assert {getattr(scorers, name).metric for name in NAMES} == set(METRICS)
    assert {"neg_nll", "neg_crps", "neg_coverage90_error"} <= set(NAMES)
    with pytest.raises(AttributeError, match="no attribute 'nll'; expected one of neg_nll, neg_rmse"):
        scorers.nll  # noqa: B018


@pytest.mark.parametrize("name", [name for name in NAMES if name != "neg_mrmse"])
def test_greater_is_better(name: str, model: PPGPRRegressor) -> None:
    scorer = getattr(scorers, name)
    target, found = METRICS[scorer.metric].target, model.evaluate(X, Y)[scorer.metric]
    assert scorer(model, X, Y) == (-found if target is None else -abs(found - target))
    assert pickle.loads(pickle.dumps(scorer)) == scorer


def test_a_score_of_several_outputs(model: PPGPRRegressor) -> None:
    with pytest.raises(InputError, match="mrmse: expected several outputs"):
        scorers.neg_mrmse(model, X, Y)
    both = PPGPRRegressor(**QUICK).fit(X, np.column_stack([Y, -Y]))
    mixture = both.predict_dist(X)
    assert scorers.neg_mrmse(both, X, np.column_stack([Y, -Y])) == -metrics.mrmse(
        mixture.torch, np.column_stack([Y, -Y])
    )


def test_pipelines_and_searches_are_opened(model: PPGPRRegressor) -> None:
    pipeline = make_pipeline(StandardScaler(), PPGPRRegressor(**QUICK)).fit(X, Y)
    expected = pipeline[-1].evaluate(pipeline[:-1].transform(X), Y)
    assert scorers.evaluate(pipeline, X, Y) == expected
    assert scorers.neg_crps(make_pipeline(model), X, Y) == scorers.neg_crps(model, X, Y)
    search = GridSearchCV(make_pipeline(StandardScaler(), PPGPRRegressor(**QUICK)), {}, cv=2, scoring=scorers.neg_nll)
    nested = make_pipeline(StandardScaler(), search).fit(X, Y)
    scaled = nested[:-1].transform(X)
    assert scorers.neg_nll(nested, X, Y) == scorers.neg_nll(search.best_estimator_, scaled, Y)
    by_hand = [
        -make_pipeline(StandardScaler(), PPGPRRegressor(**QUICK))
        .fit(scaled[a], Y[a])[-1]
        .score_nll(StandardScaler().fit(scaled[a]).transform(scaled[b]), Y[b])
        for a, b in KFold(2).split(X)
    ]
    assert [search.cv_results_[f"split{k}_test_score"][0] for k in range(2)] == pytest.approx(by_hand)
    with pytest.raises(InputError, match=r"expected one that predicts distributions, .* got LinearRegression"):
        scorers.neg_nll(LinearRegression().fit(X, Y), X, Y)


def test_all_scores_of_each_fold_as_they_are() -> None:
    found = cross_validate(PPGPRRegressor(**QUICK), X, Y, cv=2, scoring=scorers.evaluate, return_estimator=True)
    halves = [test for _, test in KFold(2).split(X)]
    for name in ("coverage90", "r2", "nll"):
        expected = [one.evaluate(X[half], Y[half])[name] for one, half in zip(found["estimator"], halves, strict=True)]
        assert found[f"test_{name}"].tolist() == expected


def test_weights_count_in_the_score(model: PPGPRRegressor) -> None:
    assert scorers.neg_crps(model, X, Y, WEIGHTS) == -model.evaluate(X, Y, WEIGHTS)["crps"]
    assert scorers.neg_crps(model, X, Y, WEIGHTS) != scorers.neg_crps(model, X, Y)
    one = PPGPRRegressor(**QUICK)
    with sklearn.config_context(enable_metadata_routing=True):
        routed = one.set_fit_request(sample_weight=True)
        found = cross_val_score(routed, X, Y, cv=2, scoring=scorers.neg_crps, params={"sample_weight": WEIGHTS})
    by_hand = [
        scorers.neg_crps(PPGPRRegressor(**QUICK).fit(X[a], Y[a], sample_weight=WEIGHTS[a]), X[b], Y[b], WEIGHTS[b])
        for a, b in KFold(2).split(X)
    ]
    assert found.tolist() == by_hand


def test_your_own_metric_has_a_scorer_too(model: PPGPRRegressor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS._parts, "mae", Metric("MAE", lambda rows: (rows.mean - rows.y).abs().mean().item()))
    assert scorers.neg_mae == Scorer("mae")
    assert scorers.neg_mae(model, X, Y) == -np.abs(Comparison(model.predict_dist(X), Y).mean.numpy() - Y).mean()

"""Scikit-learn's own tools around our estimators: outputs of transformers, metadata routing, searches, inspection."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from matplotlib._pylab_helpers import Gcf
from matplotlib.figure import Figure
from sklearn.compose import TransformedTargetRegressor, make_column_transformer
from sklearn.exceptions import UnsetMetadataPassedError
from sklearn.inspection import PartialDependenceDisplay, partial_dependence, permutation_importance
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from dspp import DSPPRegressor, InputError, PPGPRRegressor
from dspp.members import plan
from dspp.plots import CalibrationDisplay

QUICK: dict[str, Any] = {
    "members": 1,
    "inducing": 8,
    "epochs": 15,
    "restarts": 1,
    "sites": 3,
    "width": 2,
    "learning_rate": 0.1,
    "progress": False,
}
N = 80
RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(N, 3)), columns=["size", "age", "rooms"])
Y = (2.0 * X["size"] + 0.1 * RNG.normal(size=N)).rename("price")
WEIGHTS = RNG.uniform(0.5, 2.0, size=N)
GROUPS = np.arange(N) % 8


@pytest.fixture
def routing() -> Iterator[None]:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.fixture(scope="module")
def fitted() -> DSPPRegressor:
    return DSPPRegressor(**QUICK).fit(X, Y)


# ---------------------------------------------------------------- set_output


@pytest.mark.parametrize(("library", "kind"), [("pandas", pd.DataFrame), ("polars", pl.DataFrame)])
def test_frames_of_transformers_arrive_with_their_names(library: str, kind: type) -> None:
    scaled = make_column_transformer((StandardScaler(), ["size", "age"]), verbose_feature_names_out=False)
    pipeline = make_pipeline(scaled, PPGPRRegressor(**QUICK)).set_output(transform=library).fit(X, Y)
    assert isinstance(pipeline[:-1].transform(X), kind)
    assert list(pipeline[-1].feature_names_in_) == ["size", "age"]
    assert type(pipeline.predict(X)) is np.ndarray
    with sklearn.config_context(transform_output=library):
        again = make_pipeline(scaled, PPGPRRegressor(**QUICK)).fit(X, Y)
        np.testing.assert_array_equal(again.predict(X), pipeline.predict(X))
    interval = pipeline[-1].predict_interval(pipeline[:-1].transform(X))
    assert isinstance(interval, kind)


def test_a_pipeline_passes_questions_on() -> None:
    pipeline = make_pipeline(StandardScaler(), PPGPRRegressor(**QUICK)).fit(X, Y)
    model, rows = pipeline[-1], pipeline[:-1].transform(X)
    np.testing.assert_array_equal(pipeline.predict(X, interval=0.9), model.predict_interval(rows, 0.9))
    np.testing.assert_array_equal(pipeline.predict(X, interval=[0.5, 0.9]), model.predict_interval(rows, [0.5, 0.9]))
    np.testing.assert_array_equal(pipeline.predict(X, quantiles=[0.1, 0.5]), model.predict_quantiles(rows, [0.1, 0.5]))
    with sklearn.config_context(enable_metadata_routing=True):
        model.set_predict_request(interval=True)
        np.testing.assert_array_equal(pipeline.predict(X, interval=0.9), model.predict_interval(rows, 0.9))


def test_a_transformed_target_has_transformed_intervals() -> None:
    positive = np.exp(0.2 * Y)
    wrapped = TransformedTargetRegressor(PPGPRRegressor(**QUICK), func=np.log, inverse_func=np.exp).fit(X, positive)
    inner = wrapped.regressor_
    np.testing.assert_allclose(wrapped.predict(X, interval=0.9), np.exp(np.asarray(inner.predict_interval(X, 0.9))))
    np.testing.assert_allclose(
        wrapped.predict(X, quantiles=[0.1, 0.5]), np.exp(np.asarray(inner.predict_quantiles(X, [0.1, 0.5])))
    )


# ---------------------------------------------------------------- metadata routing


def test_weights_and_groups_are_requested(routing: None) -> None:
    model = DSPPRegressor(**QUICK).set_fit_request(sample_weight=True, groups="patients")
    assert model.get_metadata_routing().fit.requests["sample_weight"] is True
    assert model.get_metadata_routing().fit.requests["groups"] == "patients"
    assert {"groups", "sample_weight", "time"} <= set(DSPPRegressor().get_metadata_routing().fit.requests)
    assert "sample_weight" in DSPPRegressor().get_metadata_routing().score.requests
    with pytest.raises(TypeError, match="Unexpected args"):
        model.set_fit_request(weight=True)


@pytest.mark.filterwarnings("ignore:column .* outside the range seen in training")
def test_cross_validation_routes_weights_and_groups_to_fit_and_score(routing: None) -> None:
    model = PPGPRRegressor(**QUICK).set_fit_request(sample_weight=True, groups=True)
    model = model.set_score_request(sample_weight=True)
    how: dict[str, Any] = {"cv": GroupKFold(2), "error_score": "raise", "return_estimator": True}
    params = {"sample_weight": WEIGHTS, "groups": GROUPS}
    found = cross_validate(model, X, Y, params=params, return_indices=True, **how)
    for k, one in enumerate(found["estimator"]):
        train, test = (found["indices"][part][k] for part in ("train", "test"))
        given = {"sample_weight": WEIGHTS[train], "groups": GROUPS[train]}
        by_hand = PPGPRRegressor(**QUICK).fit(X.iloc[train], Y.iloc[train], **given)
        np.testing.assert_array_equal(one.predict(X), by_hand.predict(X))
        score = by_hand.score(X.iloc[test], Y.iloc[test], sample_weight=WEIGHTS[test])
        assert found["test_score"][k] == score
    with pytest.raises(UnsetMetadataPassedError, match="sample_weight"):
        cross_validate(PPGPRRegressor(**QUICK), X, Y, params=params, **how)


def test_a_pipeline_routes_weights_and_groups(routing: None) -> None:
    model = PPGPRRegressor(**QUICK).set_fit_request(sample_weight=True, groups=True)
    scaler = StandardScaler().set_fit_request(sample_weight=False)
    pipeline = make_pipeline(scaler, model).fit(X, Y, sample_weight=WEIGHTS, groups=GROUPS)
    scaled = StandardScaler().fit_transform(X)
    by_hand = PPGPRRegressor(**QUICK).fit(scaled, Y, sample_weight=WEIGHTS, groups=GROUPS)
    np.testing.assert_array_equal(pipeline.predict(X), by_hand.predict(scaled))
    assert not np.array_equal(by_hand.predict(scaled), PPGPRRegressor(**QUICK).fit(scaled, Y).predict(scaled))


# ---------------------------------------------------------------- searches


def test_a_grid_over_members_and_beta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "FOLDS", 2)
    grid = {"members": [1, 2], "beta": [0.05, 5.0]}
    search = GridSearchCV(DSPPRegressor(**QUICK), grid, cv=2, error_score="raise").fit(X, Y)
    assert len(search.cv_results_["params"]) == 4
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    best = search.best_estimator_
    assert (best.members, best.beta) == (search.best_params_["members"], search.best_params_["beta"])
    assert {member.spec.objective.beta for member in best.fitted_.members} == {best.beta}
    assert (len(best.fitted_.members) == 1) == (best.members == 1)
    assert search.predict(X).shape == (N,)


def test_a_grid_can_be_scored_by_likelihood() -> None:
    def likelihood(model: DSPPRegressor, X: Any, y: Any) -> float:
        return -model.score_nll(X, y)

    grid = {"beta": [0.05, 50.0]}
    search = GridSearchCV(DSPPRegressor(**QUICK), grid, cv=2, scoring=likelihood, refit=False).fit(X, Y)
    low, high = search.cv_results_["mean_test_score"]
    assert low > high  # so large a weight of the KL term forbids learning


# ---------------------------------------------------------------- inspection


def test_the_column_that_matters_is_the_most_important(fitted: DSPPRegressor) -> None:
    found = permutation_importance(fitted, X, Y, n_repeats=3, random_state=0)
    assert found.importances_mean.argmax() == 0
    assert found.importances_mean[0] > 10 * abs(found.importances_mean[1:]).max()
    by_error = permutation_importance(
        fitted, X, Y, n_repeats=2, random_state=0, scoring="neg_mean_absolute_error", sample_weight=WEIGHTS
    )
    assert by_error.importances_mean.argmax() == 0


def test_partial_dependence_follows_the_model(fitted: DSPPRegressor) -> None:
    display = PartialDependenceDisplay.from_estimator(
        fitted, X, ["size", "age", ("size", "age")], grid_resolution=5, ax=new_axes()
    )
    curve = display.pd_results[0]
    grid, average = curve["grid_values"][0], curve["average"][0]
    for value, expected in zip(grid, average, strict=True):
        assert fitted.predict(X.assign(size=value)).mean() == pytest.approx(expected, rel=1e-6)
    assert average[-1] - average[0] > 2.0
    assert display.pd_results[2]["average"][0].shape == (5, 5)


def test_partial_dependence_of_a_category_and_of_single_rows() -> None:
    frame = X.assign(town=np.where(np.arange(N) % 2, "Ghent", "Namur"))
    target = Y + np.where(frame["town"] == "Ghent", 3.0, 0.0)
    model = DSPPRegressor(**QUICK).fit(frame, target)
    found = partial_dependence(model, frame, ["town"], categorical_features=["town"])
    effect = dict(zip(found["grid_values"][0], found["average"][0], strict=True))
    assert effect["Ghent"] > effect["Namur"] + 1.0
    display = PartialDependenceDisplay.from_estimator(
        model, frame, ["town"], categorical_features=["town"], ax=new_axes()
    )
    assert display.bars_ is not None
    both = partial_dependence(model, frame, ["size"], kind="both", grid_resolution=4)
    assert both["individual"].shape == (1, N, 4)


def new_axes() -> Any:
    return Figure().add_subplot()


# ---------------------------------------------------------------- CalibrationDisplay


def test_the_display_draws_the_coverage_of_the_intervals(fitted: DSPPRegressor) -> None:
    display = CalibrationDisplay.from_estimator(fitted, X, Y)
    assert display.estimator_name == display.line_.get_label() == "DSPPRegressor"
    for level in (0.5, 0.9):
        lower, upper = np.asarray(fitted.predict_interval(X, level)).T
        share = np.mean((lower <= Y) & (upper >= Y))
        assert display.coverage[np.isclose(display.levels, level)] == pytest.approx(share, abs=1 / N)
    x, y = display.line_.get_data()
    np.testing.assert_array_equal(np.asarray(x), display.levels)
    np.testing.assert_array_equal(np.asarray(y), display.coverage)
    assert display.figure_ is display.ax_.figure
    assert display.band_ is not None
    assert Gcf.get_all_fig_managers() == []  # type: ignore[attr-defined]  # no pyplot


def test_displays_share_axes_diagonal_and_band(fitted: DSPPRegressor) -> None:
    first = CalibrationDisplay.from_estimator(fitted, X, Y, name="one")
    second = CalibrationDisplay.from_predictions(Y, fitted.predict_dist(X), name="two", ax=first.ax_, linestyle=":")
    assert second.ax_ is first.ax_
    assert second.band_ is None
    labels = first.ax_.get_legend_handles_labels()[1]
    assert sorted(labels) == ["95 % band, if calibrated", "one", "two"]
    assert len(first.ax_.lines) == 3  # the diagonal and both curves
    assert first.line_.get_color() != second.line_.get_color()
    assert second.line_.get_linestyle() == ":"
    bare = CalibrationDisplay(first.pit).plot(ref_line=False, band=False, name="again")
    assert [line.get_label() for line in bare.ax_.lines] == ["again"]


def test_the_display_looks_into_pipelines_and_searches() -> None:
    pipeline = make_pipeline(StandardScaler(), PPGPRRegressor(**QUICK))
    search = GridSearchCV(pipeline, {"ppgprregressor__beta": [0.1]}, cv=2).fit(X, Y)
    display = CalibrationDisplay.from_estimator(search, X, Y)
    mixture = search.best_estimator_[-1].predict_dist(search.best_estimator_[:-1].transform(X))
    np.testing.assert_array_equal(display.pit, mixture.pit(Y))
    same = make_pipeline(PPGPRRegressor(**QUICK)).fit(X, Y)
    assert CalibrationDisplay.from_estimator(same, X, Y).estimator_name == "PPGPRRegressor"


def test_the_display_of_one_of_several_outputs_leaves_out_what_was_not_observed() -> None:
    both = np.column_stack([Y, -Y])
    model = PPGPRRegressor(**QUICK).fit(X, both)
    both[::4, 1] = np.nan
    display = CalibrationDisplay.from_estimator(model, X, both, output=1)
    seen = ~np.isnan(both[:, 1])
    expected = model.predict_dist(X).outputs()[1][seen].pit(both[seen, 1])
    np.testing.assert_allclose(display.pit, expected)


def test_the_display_says_what_it_needs(fitted: DSPPRegressor) -> None:
    linear = LinearRegression().fit(X, Y)
    with pytest.raises(InputError, match=r"expected one that predicts distributions.*got LinearRegression"):
        CalibrationDisplay.from_estimator(linear, X, Y)
    with pytest.raises(InputError, match=r"expected one that predicts distributions.*got FunctionTransformer"):
        CalibrationDisplay.from_estimator(make_pipeline(FunctionTransformer()), X, Y)
    with pytest.raises(InputError, match=r"expected predictive distributions, got ndarray; pass predict_dist\(X\)"):
        CalibrationDisplay.from_predictions(Y, fitted.predict(X))
    with pytest.raises(InputError, match="output: expected a number from 0 to 0, got 1"):
        CalibrationDisplay.from_predictions(Y, fitted.predict_dist(X), output=1)
    with pytest.raises(InputError, match=r"y: expected shape \(80,\)"):
        CalibrationDisplay.from_predictions(Y[:5], fitted.predict_dist(X))
    with pytest.raises(InputError, match=r"expected probabilities F\(y\) in \[0, 1\]"):
        CalibrationDisplay([0.5, 1.5])

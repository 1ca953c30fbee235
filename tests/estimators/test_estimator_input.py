"""What the estimators do with odd input: an answer, or one line that says what is wrong and what to do."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

import dspp
from dspp import DSPPRegressor, InputError, metrics
from dspp.config import TrainConfig
from dspp.estimators import ESTIMATORS, Regressor
from dspp.prepare import split_rows
from dspp.report import report
from dspp.report.scores import score_cards

TINY = {"members": 1, "inducing": 4, "width": 2, "sites": 2, "epochs": 1, "restarts": 1, "progress": False}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=60)
BOTH = np.column_stack([Y, -Y])


def tiny(**settings: Any) -> Regressor:
    return DSPPRegressor(**TINY | settings)


@pytest.fixture(scope="module")
def one() -> Regressor:
    return tiny().fit(X, Y)


@pytest.fixture(scope="module")
def two() -> Regressor:
    return tiny().fit(X, BOTH)


# ---------------------------------------------------------------- scores and reports


def surprises(model: Regressor, X: Any, y: Any, labels: Any = None) -> list[Any]:
    """The tables of the most surprising rows, one per output."""
    evaluation = model.evaluation(X, y)
    if labels is not None:
        evaluation = replace(evaluation, table=replace(evaluation.table, label_of=labels.__getitem__))
    (section,) = [one for one in report(evaluation).sections if one.name == "surprises"]
    return [panel.table for panel in section.panels]


def surprising(model: Regressor, X: Any, y: Any, labels: Any = None, output: int = 0) -> dict[str, str]:
    """The observed values of the most surprising rows by their labels, as a report shows them."""
    return {label: observed for label, observed, *_ in surprises(model, X, y, labels)[output].rows}


def test_a_report_shows_the_row_numbers_it_is_given(one: Regressor, tmp_path: Path) -> None:
    lines = np.arange(1000, 1060)
    assert set(surprising(one, X, Y, lines)) <= {f"{line:,}" for line in lines}
    assert set(surprising(one, X, Y)) <= {str(i) for i in range(60)}
    dspp.write_model_report(one, X, Y, tmp_path / "page.html", row_labels=lines)
    assert all(f">{label}</td>" in (tmp_path / "page.html").read_text() for label in surprising(one, X, Y, lines))
    with pytest.raises(InputError, match=r"row_labels: expected 60, one per row of X, got 3"):
        dspp.write_model_report(one, X, Y, tmp_path / "page.html", row_labels=[1, 2, 3])


def test_a_report_is_a_web_page(one: Regressor, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"r\.pdf: expected a file name ending in \.html or \.htm"):
        dspp.write_model_report(one, X, Y, tmp_path / "r.pdf")
    dspp.write_model_report(one, X, Y, tmp_path / "R.HTM")
    assert [path.name for path in tmp_path.iterdir()] == ["R.HTM"]


def test_a_report_shows_the_numbers_of_the_rows_it_draws(two: Regressor) -> None:
    gaps = BOTH.copy()
    gaps[::2, 0] = np.nan
    gaps[1::2, 1] = np.nan  # no row has both
    for output, parity in ((0, 1), (1, 0)):
        found = surprising(two, X, gaps, range(100, 160), output)
        for label, observed in found.items():
            assert int(label) % 2 == parity
            assert float(observed.replace("−", "-")) == pytest.approx(gaps[int(label) - 100, output], abs=0.01)
        one, seen = two.predict_dist(X).outputs()[output], np.arange(parity, 60, 2)
        density = np.asarray(one[seen].log_prob(gaps[seen, output]))
        assert list(found) == [str(100 + seen[k]) for k in np.argsort(density)[:10]]


def test_an_output_that_was_not_observed_is_left_out_of_scores_and_report(two: Regressor, tmp_path: Path) -> None:
    y = BOTH.copy()
    y[:, 1] = np.nan
    first = two.predict_dist(X).marginal(0)
    scores = two.evaluate(X, y)
    assert scores["nll"] == two.score_nll(X, y) == pytest.approx(metrics.nll(first, y[:, 0]))
    assert scores["rmse"] == scores["mrmse"] == pytest.approx(metrics.rmse(first, y[:, 0]))
    assert scores["crps"] == two.score_crps(X, y) == pytest.approx(metrics.crps(first, y[:, 0]))
    assert two.score(X, y) == scores["r2"]
    assert len(surprises(two, X, y)) == 1
    dspp.write_model_report(two, X, y, tmp_path / "page.html")


def test_a_frame_whose_columns_have_no_names_is_reported_on(tmp_path: Path) -> None:
    frame = pd.DataFrame(X)
    dspp.write_model_report(tiny().fit(frame, Y), frame, Y, tmp_path / "page.html")


def test_weights_are_not_negative_and_quantiles_of_a_frame_differ(one: Regressor) -> None:
    with pytest.raises(InputError, match="sample_weight: row 0: expected a weight ≥ 0, got -1; use 0"):
        one.score(X, Y, sample_weight=-np.ones(60))
    assert one.predict_quantiles(X, [0.5, 0.5]).shape == (60, 2)
    with pytest.raises(InputError, match="expected unique levels"):
        one.predict_quantiles(pd.DataFrame(X), [0.5, 0.5])


@pytest.mark.parametrize("outputs", [1, 3])
def test_scores_want_the_outputs_of_the_model(two: Regressor, tmp_path: Path, outputs: int) -> None:
    y = np.column_stack([Y] * outputs)
    for ask in (two.score, two.score_nll, two.score_crps, two.evaluate, two.calibration):
        with pytest.raises(InputError, match=r"y: expected shape \(60, 2\), as predicted, got \(60"):
            ask(X, y)
    with pytest.raises(InputError, match="pass the outputs that the model was fitted to"):
        dspp.write_model_report(two, X, y, tmp_path / "page.html")


def test_scores_of_one_output_refuse_two(one: Regressor, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected shape \(60,\), as predicted, got \(60, 2\)"):
        one.score(X, BOTH)
    with pytest.raises(InputError, match=r"expected shape \(60,\), as predicted, got \(60, 2\)"):
        dspp.write_model_report(one, X, BOTH, tmp_path / "page.html")


def test_a_weight_is_wanted_for_each_row(one: Regressor) -> None:
    with pytest.raises(InputError, match="sample_weight: expected 60 rows, as many as in X, got 5"):
        one.score(X, Y, sample_weight=np.ones(5))
    assert one.score(X, Y, sample_weight=np.ones(60)) == pytest.approx(one.score(X, Y))


@pytest.mark.parametrize("rows", [1, 20])
def test_r2_of_what_does_not_vary_is_nan_and_a_dash(one: Regressor, tmp_path: Path, rows: int) -> None:
    flat = np.full(rows, 7.0)
    assert np.isnan(one.score(X[:rows], flat))
    assert np.isnan(one.evaluate(X[:rows], flat)["r2"])
    dspp.write_model_report(one, X[:rows], flat, tmp_path / "page.html")
    cards = {card.title: card.value for card in score_cards(one.evaluation(X[:rows], flat))}
    assert cards["R²"] == "–"


def test_a_report_needs_a_fitted_model(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        dspp.write_model_report(tiny(), X, Y, tmp_path / "page.html")


# ---------------------------------------------------------------- no rows

FRAME = pd.DataFrame(
    {"a": X[:, 0], "b": np.where(X[:, 1] > 0, "u", "v"), "day": pd.date_range("2024-01-01", periods=60)}
)
EMPTY: dict[str, Any] = {
    "pandas": FRAME[:0],
    "pandas without types": pd.DataFrame(columns=list(FRAME)),
    "polars": pl.from_pandas(FRAME)[:0],
    "arrow": pa.Table.from_pandas(FRAME)[:0],
    "numpy": X[:0],
}


def check_no_rows(model: Regressor, rows: Any) -> None:
    """No rows are predicted as no rows by every method, in the shape and the library of some rows."""
    T = () if len(model.fitted_.target_names) == 1 else (2,)
    mean, std = model.predict(rows, return_std=True)
    assert mean.shape == std.shape == model.predict(rows).shape == (0, *T)
    assert model.predict(rows, interval=0.9).shape == model.predict(rows, quantiles=[0.1, 0.9]).shape == (0, 2, *T)
    assert model.predict(rows, interval=[0.5, 0.9]).shape == (0, 2, 2, *T)
    assert model.sample(rows, 3).shape == (3, 0, *T)
    distribution = model.predict_dist(rows)
    assert distribution.mean.shape == (0, *T)
    assert distribution.sample(2).shape == (2, 0, *T)
    for one in distribution.outputs():
        assert one.quantile([0.1, 0.5]).shape == (2, 0)
        assert one.crps(np.zeros(0)).shape == one.cdf(np.zeros(0)).shape == (0,)
    table = model.predict_table(rows, [0.1], 0.9, components=True, samples=2)
    for frame in (table, model.predict_quantiles(rows), model.predict_interval(rows)):
        assert len(frame) == 0
    assert isinstance(table, type(rows) if isinstance(rows, pd.DataFrame | pl.DataFrame) else pa.Table)
    with pytest.raises(InputError, match=r"X: got 0 sample\(s\)"):
        model.evaluate(rows, np.zeros((0, *T)))


@pytest.mark.parametrize("library", EMPTY)
def test_no_rows_are_predicted_as_no_rows(library: str, two: Regressor) -> None:
    framed = library != "numpy"
    check_no_rows(tiny(members=2, conformal=True).fit(FRAME if framed else X, Y), EMPTY[library])
    if not framed:
        check_no_rows(two, EMPTY[library])


@pytest.mark.parametrize("name", ESTIMATORS)
def test_every_estimator_predicts_no_rows(name: str) -> None:
    check_no_rows(ESTIMATORS[name](members=1, inducing=4, epochs=1).fit(X, Y), X[:0])


@pytest.mark.parametrize("likelihood", ["student-t", "log-normal"])
def test_every_likelihood_predicts_no_rows(likelihood: str) -> None:
    check_no_rows(tiny(members=2, likelihood=likelihood).fit(X, np.exp(Y)), X[:0])


# ---------------------------------------------------------------- outputs that are seldom observed


def parts(estimator: Regressor, y: np.ndarray | None = None) -> tuple[np.ndarray, ...]:
    """Rows to train on, to validate with and to calibrate with."""
    return split_rows(estimator.settings(), 60, False, None if y is None else ~np.isnan(y))


def seldom(rows: Any) -> np.ndarray:
    """Two outputs, the first observed in these rows only."""
    y = BOTH.copy()
    y[np.setdiff1d(np.arange(60), rows), 0] = np.nan
    return y


@pytest.mark.parametrize("conformal", [False, True])
def test_an_output_keeps_rows_to_train_on(conformal: bool) -> None:
    estimator = tiny(conformal=conformal)
    usual = parts(estimator)
    rows = np.sort([usual[1][0], usual[1][-1], *usual[2][:1]])  # all of them held out
    y = seldom(rows)
    train, val, held = parts(estimator, y)
    assert list(train) == sorted([*usual[0], *rows[:2]])
    assert sorted([*train, *val, *held]) == list(range(60))
    fitted = estimator.fit(X, y).fitted_
    assert fitted.num_rows == len(train)
    assert fitted.outcome.scale.mean[0] == pytest.approx(y[rows[:2], 0].mean())
    assert {"nll", "rmse", "r2"} <= {name for name, value in fitted.metrics.items() if np.isfinite(value)}


def test_the_split_of_outputs_that_are_often_observed_is_as_ever() -> None:
    for y in (BOTH, seldom(np.arange(0, 60, 2)), Y):
        for usual, part in zip(parts(tiny()), parts(tiny(), y.reshape(60, -1)), strict=True):
            np.testing.assert_array_equal(part, usual)


def test_an_output_may_be_unobserved_in_the_rows_held_out(tmp_path: Path) -> None:
    estimator = tiny(conformal=True)
    train, val, _ = parts(estimator)
    model = estimator.fit(X, seldom(train[::5]))
    alone = model.predict_dist(X[val]).marginal(1)
    assert model.fitted_.metrics["nll"] == pytest.approx(metrics.nll(alone, BOTH[val, 1]))
    assert any(
        str(note).startswith("got 0 calibration rows of y0, need at least 9 for 90 % intervals")
        for note in model.fitted_.notes
    )
    model.save(tmp_path / "model.dspp")
    with pytest.warns(UserWarning, match="intervals are infinite"):
        intervals = dspp.load(tmp_path / "model.dspp").predict_interval(X, 0.5)
    assert np.isinf(intervals[..., 0]).all()
    assert np.isfinite(intervals[..., 1]).all()


@pytest.mark.parametrize("count", [0, 1])
def test_an_output_that_is_hardly_observed_is_refused(count: int) -> None:
    with pytest.raises(InputError, match=r"^y: .*column 0.*leave out th(is|ese) output"):
        tiny().fit(X, seldom(np.arange(count)))


def test_rows_to_recalibrate_with_are_left() -> None:
    estimator = tiny(conformal=True, calibration_fraction=0.02)
    held = parts(estimator)[2]
    y = seldom([*held, *parts(estimator)[1][:1]])
    with pytest.raises(InputError, match=r"expected calibration rows, got none.*use conformal=False"):
        estimator.fit(X, y)


# ---------------------------------------------------------------- too few rows for a promise


def test_an_infinite_interval_is_announced(tmp_path: Path) -> None:
    model = tiny(conformal=True).fit(X, Y)
    assert [str(note) for note in model.fitted_.notes if "calibration rows" in str(note)] == [
        "got 6 calibration rows of y, need at least 9 for 90 % intervals: such intervals are infinite; add rows or "
        "raise calibration_fraction"
    ]
    with pytest.warns(dspp.DsppWarning, match="0.9 intervals are infinite: got 6 calibration rows, need at least 9"):
        assert np.isinf(model.predict_interval(X)).all()
    with pytest.warns(dspp.DsppWarning, match="0.9 intervals are infinite") as found:
        several = model.predict(X, interval=[0.9, 0.8])
    assert [str(Path(one.filename)) for one in found] == [__file__]
    assert np.isinf(several[..., 0]).all()
    assert np.isfinite(several[..., 1]).all()
    assert np.isfinite(model.predict_interval(X, 0.8)).all()  # and no warning, which would be an error here
    texts = [panel.text for section in report(model.evaluation(X, Y)).sections for panel in section.panels]
    assert any("to contain 90 % of new rows, they are infinite" in text for text in texts)


def test_enough_rows_for_a_promise_are_not_announced() -> None:
    model = tiny(conformal=True, calibration_fraction=0.15).fit(X, Y)
    assert len(model.fitted_.conformal) == 9
    assert not any("promise" in str(note) for note in model.fitted_.notes)
    assert np.isfinite(model.predict_interval(X)).all()


# ---------------------------------------------------------------- parameters


def test_numbers_of_numpy_are_parameters() -> None:
    search = GridSearchCV(tiny(), {"width": np.arange(2, 4), "beta": np.array([0.1], np.float32)}, cv=2).fit(X, Y)
    assert type(search.best_estimator_.fitted_.members[0].spec.model.width) is int
    model = tiny(features=np.array([4, 2]), epochs=np.int64(1), learning_rate=np.float32(0.01)).fit(X, Y)
    assert model.fitted_.members[0].spec.model.features == (4, 2)
    assert type(model.fitted_.members[0].train.epochs) is int


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, np.float32("inf"), 10**400])
def test_a_setting_is_finite(value: float) -> None:
    with pytest.raises(InputError, match=r"TrainConfig.learning_rate: expected float \(finite\), got "):
        TrainConfig(learning_rate=value)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"features": 5}, r"features: expected layer sizes such as \(100, 50\), or a module, got 5"),
        ({"time_budget": "5m"}, "time_budget: expected a number, got '5m'"),
        ({"validation_fraction": "0.1"}, "validation_fraction: expected a number, got '0.1'"),
        ({"conformal": True, "calibration_fraction": None}, "calibration_fraction: expected a number, got None"),
        ({"train_settings": {"batch_size": 1}}, "train_settings: .*got 'batch_size'.*pass batch_size=... instead"),
        ({"train_settings": {"epochs": 1}}, "train_settings: .*got 'epochs'.*pass epochs=... instead"),
        ({"train_settings": {"seed": 1}}, "train_settings: .*got 'seed'.*pass random_state=... instead"),
    ],
)
def test_parameters_that_mean_nothing_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        tiny(**settings).fit(X, Y)


def test_a_level_is_a_number(one: Regressor) -> None:
    with pytest.raises(InputError, match=r"coverage: expected a number, got '0\.9'"):
        one.predict_interval(X, "0.9")
    with pytest.raises(InputError, match="alpha: expected probabilities"):
        one.predict_quantiles(X, "abc")


def test_no_two_quantiles_share_a_name() -> None:
    table = pd.DataFrame(X, columns=["a", "b"])
    model = tiny().fit(table, pd.Series(Y, name="y"))
    found = model.predict_quantiles(table, [0.05, 0.9999999, 0.99999999])
    assert list(found.columns) == ["y_q0.05", "y_q0.9999999", "y_q0.99999999"]


# ---------------------------------------------------------------- values


@pytest.mark.parametrize("value", [1e200, 1e-200])
def test_a_target_beyond_float64_squared_is_refused(value: float) -> None:
    y = Y * value if value < 1 else np.where(np.arange(60) == 7, value, Y)
    with pytest.raises(
        InputError, match=r"y: column 'y': expected a mean below .* and a standard deviation .*use other units"
    ):
        tiny(validation_fraction=0).fit(X, y)
    with pytest.raises(InputError, match="y: column 'y1': expected a mean"):
        tiny(validation_fraction=0).fit(X, np.column_stack([Y, y]))
    assert np.isfinite(tiny().fit(X, Y * 1e100).evaluate(X, Y * 1e100)["nll"])


@pytest.mark.parametrize("mark", [3.4e38, 1.797e308, -1e25])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_mark_for_a_missing_value_is_named_when_predicting(mark: float, dtype: str) -> None:
    table = pd.DataFrame(X, columns=["a", "b"])
    model = tiny(model_settings={"dtype": dtype}).fit(table, Y)
    odd = table.copy()
    odd.loc[3, "b"] = mark
    if dtype == "float64" and abs(mark) < 1e150:
        with pytest.warns(dspp.DsppWarning, match="column 'b': 1 value outside the range seen in training"):
            assert np.isfinite(model.predict(odd)).all()
        return
    with pytest.raises(
        InputError, match=rf"X: column 'b', row 3: .*got {re.escape(f'{mark:g}')}, .*missing value, clear it"
    ):
        model.predict(odd)
    with pytest.warns(dspp.DsppWarning, match=r"60 values outside the range seen in training"):
        assert np.isfinite(model.predict(table * 1e6)).all()


def test_an_error_in_validation_rows_says_so() -> None:
    table = pd.DataFrame(X, columns=["a", "b"])
    odd = table.assign(a=table["a"].astype(str))  # a column of text, as of a file
    odd.loc[3, "a"] = "abc"
    with pytest.raises(InputError, match="X_val: column 'a', row 3: "):
        tiny().fit(table, Y, odd, Y)


def test_gaps_in_validation_rows_do_not_stop_a_study(tmp_path: Path) -> None:
    table = pd.DataFrame(X, columns=["a", "b"])
    gaps = table.iloc[:20].copy()
    gaps.loc[2, "a"] = np.nan
    how = {"space": {"beta": [0.1]}, "base": TINY, "trials": 1, "study": tmp_path / "study"}
    found = dspp.tune(table, Y, X_val=gaps, y_val=Y[:20], **how)
    assert np.isfinite(found.best_estimator.predict(gaps)).all()


@pytest.mark.parametrize("conformal", [False, True])
def test_a_number_too_far_out_is_named_before_training_whichever_part_it_falls_into(conformal: bool) -> None:
    frame, epochs = pd.DataFrame(X, columns=["a", "b"]), []
    for row in range(0, 60, 5):
        odd = frame.copy()
        odd.loc[row, "b"] = 9.96921e36
        model = tiny(conformal=conformal)
        if row not in parts(model)[0]:
            with pytest.raises(InputError, match=rf"X: column 'b', row {row}: .*got 9.96921e\+36"):
                model.fit(odd, Y, on_epoch=epochs.append)
            far = Y.copy()
            far[row] = 1e25
            with pytest.raises(InputError, match=rf"y: column 'y', row {row}: expected .*, got 1e\+25"):
                model.fit(frame, far, on_epoch=epochs.append)
    assert epochs == []
    with pytest.raises(InputError, match=r"X_val: column 'x?0', row 1: expected .*, got 1e\+200"):
        tiny().fit(X, Y, np.array([[0.0, 0.0], [1e200, 0.0]]), [0.0, 0.0])
    with pytest.raises(InputError, match=r"y_val: column 'y', row 1: expected .*, got -1e\+30"):
        tiny().fit(X, Y, X[:2], [0.0, -1e30])

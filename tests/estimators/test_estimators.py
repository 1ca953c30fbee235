"""The front door in Python: units, frames, several outputs, leaks, batches, files, recalibration."""

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import nn

import dspp
from dspp import DSPPRegressor, InputError, PPGPRRegressor, SVGPRegressor, storage
from dspp.estimators import ESTIMATORS, Regressor
from dspp.prepare import split_rows
from dspp.settings import MIN_STEPS, SHARED_WIDTH

QUICK = {"members": 1, "inducing": 12, "epochs": 15, "restarts": 1, "sites": 4, "learning_rate": 0.05}
RNG = np.random.default_rng(0)
N = 120
X = RNG.normal(size=(N, 3))
Y = 100 + 20 * np.sin(X[:, 0]) + 5 * RNG.normal(size=N)


def frame(rows: int = N, seed: int = 1) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "size": rng.normal(50, 10, rows),
            "colour": rng.choice(["red", "green", "blue"], rows),
            "sold": pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.integers(0, 2000, rows), unit="h"),
            "garden": rng.random(rows) < 0.5,
            "rooms": np.where(rng.random(rows) < 0.2, np.nan, rng.integers(1, 6, rows)),
        },
        index=np.arange(rows) * 7 + 3,
    )


def price(table: pd.DataFrame) -> pd.Series:
    noise = np.random.default_rng(2).normal(size=len(table))
    return (2 * table["size"] + 30 * (table["colour"] == "red") + noise).rename("price")


@pytest.fixture(scope="module")
def houses() -> Regressor:
    table = frame()
    return DSPPRegressor(**QUICK).fit(table, price(table))


@pytest.fixture(scope="module")
def plain() -> Regressor:
    return DSPPRegressor(**QUICK).fit(X, Y)


# ---------------------------------------------------------------- names and settings


def test_the_lazy_names_are_those_shown_to_type_checkers() -> None:
    source = Path(dspp.__file__).read_text().split("if TYPE_CHECKING:")[1].split("__version__")[0]
    shown = {line.split(" as ")[1]: line.split()[1] for line in source.strip().splitlines()}
    assert {name: f"dspp.{home}" for name, home in dspp._HOME.items()} == shown
    for name in dspp.__all__:
        assert getattr(dspp, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = dspp.nonsense


def test_only_public_names_are_listed() -> None:
    listed = dir(dspp)
    assert [name for name in listed if not name.startswith("__")] == sorted([*dspp.__all__, "scorers"])
    assert {"__version__", "__doc__", "__file__"} <= set(listed)


def test_defaults_take_enough_steps_on_small_tables() -> None:
    steps = DSPPRegressor().train_config(200, seed=0).epochs
    assert steps == MIN_STEPS  # one step an epoch
    assert DSPPRegressor().train_config(1_000_000, seed=0).epochs == 40
    assert DSPPRegressor(epochs=3).train_config(200, seed=0).epochs == 3


def test_settings_reach_the_model() -> None:
    estimator = DSPPRegressor(width=5, beta=0.3, model_settings={"jitter": 1e-6}, train_settings={"warmup": 0.1})
    spec = estimator.spec()
    assert (spec.model.width, spec.objective.beta, spec.model.jitter) == (5, 0.3, 1e-6)
    assert estimator.train_config(100, 0).warmup == 0.1
    assert SVGPRegressor().spec().model.layers == 1  # the preset's own
    with pytest.raises(InputError, match="no setting 'jiter'"):
        DSPPRegressor(model_settings={"jiter": 1}).fit(X, Y)


# ---------------------------------------------------------------- units


def test_the_distribution_is_in_the_units_of_y(plain: Regressor) -> None:
    mixture = plain.predict_dist(X)
    scaled = DSPPRegressor(**QUICK).fit(X, 1000 * Y - 5).predict_dist(X)
    np.testing.assert_allclose(scaled.mean, 1000 * mixture.mean - 5, rtol=1e-4, atol=1e-2)
    shift = scaled.log_prob(1000 * Y - 5) - mixture.log_prob(Y)
    np.testing.assert_allclose(shift, np.full(N, -np.log(1000.0)), rtol=1e-3, atol=1e-3)


def test_all_answers_come_from_one_distribution(plain: Regressor) -> None:
    mixture = plain.predict_dist(X)
    mean, std = plain.predict(X, return_std=True)
    np.testing.assert_array_equal(mean, mixture.mean)
    np.testing.assert_array_equal(std, mixture.std)
    quantiles = plain.predict_quantiles(X, [0.05, 0.5, 0.95])
    np.testing.assert_allclose(mixture.cdf(quantiles.T), [[p] * N for p in (0.05, 0.5, 0.95)])
    np.testing.assert_array_equal(plain.predict_interval(X, 0.9), quantiles[:, [0, 2]])
    assert plain.sample(X, 7).shape == (7, N)
    np.testing.assert_array_equal(plain.sample(X, 2, random_state=1), plain.sample(X, 2, random_state=1))
    np.testing.assert_array_equal(plain.pred_dist(X).mean, mixture.mean)


def test_intervals_of_several_coverages(plain: Regressor) -> None:
    found = plain.predict_interval(X, (0.5, 0.9, 0.99))
    assert found.shape == (N, 2, 3)
    for k, coverage in enumerate((0.5, 0.9, 0.99)):
        np.testing.assert_array_equal(found[:, :, k], plain.predict_interval(X, coverage))
    assert plain.predict_interval(X, np.array([0.5])).shape == (N, 2, 1)
    for odd in ([], [0.5, 0.5], ["half"], [[0.5]]):
        with pytest.raises(InputError, match="coverage: expected a number, or different numbers"):
            plain.predict_interval(X, odd)
    with pytest.raises(InputError, match="coverage: expected a number inside"):
        plain.predict_interval(X, [0.5, 1.0])


@pytest.mark.parametrize("likelihood", ["gaussian", "log-normal", "student-t"])
def test_probabilities_above_a_value_are_in_the_units_of_y(likelihood: str) -> None:
    y = 1_500.0 * np.exp(0.5 * Y / Y.std())
    estimator = DSPPRegressor(**QUICK, likelihood=likelihood).fit(X, y)
    median = float(estimator.predict_dist(X).median[0])
    table = estimator.predict_table(X, above=[median, 2_000, -1e9, 1e12])
    assert table.column_names == [
        *("y_mean", "y_std", f"y_above_{median!r}", "y_above_2000", "y_above_-1000000000", "y_above_1000000000000")
    ]
    half, share, sure, never = (column.to_numpy() for column in table.columns[2:])
    assert half[0] == pytest.approx(0.5, abs=1e-6)
    frequency = (estimator.sample(X, 4_000) > 2_000).mean(axis=0)
    assert np.abs(frequency - share).max() < 4.5 * np.sqrt(0.25 / 4_000)
    assert sure.min() > 1.0 - 1e-6
    assert 0.0 <= never.min() <= never.max() < 1e-6
    assert not np.signbit(never).any()
    for odd in (np.nan, np.inf, "30 %", [[1.0]]):
        with pytest.raises(InputError, match="above: expected numbers in the units of the target"):
            estimator.predict_table(X, above=odd)


def test_predict_answers_what_pipelines_cannot_ask_otherwise(houses: Regressor) -> None:
    table = frame(9, seed=5)
    for coverage in (0.9, [0.5, 0.9]):
        expected = houses.predict_interval(table, coverage).to_numpy().reshape(9, -1, 2).swapaxes(1, 2)
        found = houses.predict(table, interval=coverage)
        np.testing.assert_array_equal(found, expected if isinstance(coverage, list) else expected[..., 0], strict=True)
    found = houses.predict(table, quantiles=[0.1, 0.5, 0.5])
    np.testing.assert_array_equal(found[:, :2], houses.predict_quantiles(table, [0.1, 0.5]).to_numpy(), strict=True)
    with pytest.raises(InputError, match="expected one of return_std, quantiles and interval"):
        houses.predict(table, True, interval=0.9)
    with pytest.raises(InputError, match="expected one of return_std, quantiles and interval"):
        houses.predict(table, quantiles=[0.5], interval=0.9)


def test_scores(plain: Regressor) -> None:
    mixture = plain.predict_dist(X)
    assert plain.score_nll(X, Y) == pytest.approx(-mixture.log_prob(Y).mean())
    assert plain.score_crps(X, Y) == pytest.approx(mixture.crps(Y).mean())
    scores = plain.evaluate(X, Y)
    assert scores["r2"] == pytest.approx(plain.score(X, Y))
    assert scores["coverage50"] == plain.calibration(X, Y).coverage[0.5]
    assert {"nll", "rmse", "crps", "coverage90", "width95", "pit_ks", "pit_pvalue"} <= scores.keys()
    assert set(scores) == set(plain.fitted_.metrics)  # the validation rows' are kept in the model


# ---------------------------------------------------------------- frames


def test_frames_in_frames_out(houses: Regressor) -> None:
    table = frame(9, seed=5)
    whole = houses.predict_table(table, [0.1], 0.5)
    assert list(whole.columns) == ["price_mean", "price_std", "price_q0.1", "price_lower", "price_upper"]
    pd.testing.assert_index_equal(whole.index, table.index)
    mean, std = houses.predict(table, return_std=True)  # arrays, as scikit-learn expects
    np.testing.assert_array_equal(mean, whole["price_mean"].to_numpy(), strict=True)
    np.testing.assert_array_equal(std, whole["price_std"].to_numpy(), strict=True)
    quantiles = houses.predict_quantiles(table, [0.1, 0.9])
    assert list(quantiles.columns) == ["price_q0.1", "price_q0.9"]
    pd.testing.assert_index_equal(quantiles.index, table.index)
    assert list(houses.predict_interval(table, 0.5).columns) == ["price_lower", "price_upper"]
    several = houses.predict_interval(table, [0.5, 0.9])
    assert list(several) == ["price_lower_0.5", "price_upper_0.5", "price_lower_0.9", "price_upper_0.9"]
    pd.testing.assert_frame_equal(several, houses.predict_table(table, interval=(0.5, 0.9)).iloc[:, 2:])


def test_pandas_polars_and_arrow_agree(houses: Regressor) -> None:
    table = frame(9, seed=5)
    expected = houses.predict(table)
    polars = pl.from_pandas(table.reset_index(drop=True))
    arrow = pa.Table.from_pandas(table, preserve_index=False)
    np.testing.assert_array_equal(houses.predict(polars), expected, strict=True)
    np.testing.assert_array_equal(houses.predict(arrow), expected, strict=True)
    assert isinstance(houses.predict_table(polars), pl.DataFrame)
    assert isinstance(houses.predict_table(arrow), pa.Table)


def test_columns_in_another_order_or_missing_are_named(houses: Regressor) -> None:
    table = frame(5)
    with pytest.raises(ValueError, match="same order"):
        houses.predict(table[table.columns[::-1]])
    with pytest.raises(ValueError, match="garden"):
        houses.predict(table.drop(columns="garden"))
    with pytest.raises(InputError, match="'size', row 2"):
        houses.predict(table.assign(size=[1.0, 2.0, np.nan, 4.0, 5.0]))


def test_a_category_never_seen_still_gets_a_distribution(houses: Regressor) -> None:
    table = frame(5).assign(colour="mauve")
    with pytest.warns(dspp.DsppWarning, match=r"column 'colour': 5 values not seen in training \('mauve'\)"):
        assert np.isfinite(houses.predict(table)).all()


def test_the_encoding_is_learned_on_training_rows_only() -> None:
    table = frame()
    fitted = DSPPRegressor(**QUICK).fit(table, price(table)).fitted_
    assert fitted.encoder is not None
    assert fitted.num_rows == N - N // 10
    assert "colour=red" in fitted.feature_names


def test_gaps_in_held_out_rows_only_are_taken() -> None:
    table = frame()
    estimator = DSPPRegressor(**QUICK, conformal=True)
    _, val, held = split_rows(estimator.settings(), N, False)
    sizes, colours = table["size"].to_numpy(copy=True), table["colour"].to_numpy(copy=True)
    sizes[val[0]], colours[held[0]] = np.nan, None
    fitted = estimator.fit(table.assign(size=sizes, colour=colours), price(table)).fitted_
    assert {"size is missing", "colour=(missing)"} <= set(fitted.feature_names)


def test_inside_scikit_learn_s_machinery() -> None:
    pipeline = make_pipeline(StandardScaler(), PPGPRRegressor(**QUICK))
    search = GridSearchCV(pipeline, {"ppgprregressor__beta": [0.05, 1.0]}, cv=2).fit(X, Y)
    assert search.best_params_["ppgprregressor__beta"] in (0.05, 1.0)
    nll = cross_val_score(PPGPRRegressor(**QUICK), X, Y, cv=2, scoring=lambda e, A, b: -e.score_nll(A, b))
    assert np.isfinite(nll).all()


# ---------------------------------------------------------------- several outputs


def test_several_outputs_some_not_observed() -> None:
    targets = np.column_stack([Y, -Y, X[:, 0]])
    targets[::3, 0] = np.nan
    estimator = DSPPRegressor(**QUICK).fit(X, targets)
    assert estimator.predict(X).shape == (N, 3)
    assert estimator.predict_quantiles(X, [0.1, 0.9]).shape == (N, 2, 3)
    assert estimator.predict_interval(X).shape == (N, 2, 3)
    assert estimator.predict_interval(X, [0.5, 0.9]).shape == (N, 2, 2, 3)
    np.testing.assert_array_equal(estimator.predict_interval(X, [0.5, 0.9])[:, :, 1], estimator.predict_interval(X))
    assert estimator.sample(X, 4).shape == (4, N, 3)
    table = estimator.predict_table(X, above=0.5)
    shares = np.column_stack([table[f"y{t}_above_0.5"] for t in range(3)])
    marginals = [one.cdf(0.5) for one in estimator.predict_dist(X).outputs()]
    np.testing.assert_allclose(shares, 1.0 - np.column_stack(marginals), atol=1e-14)
    assert np.isfinite(list(estimator.evaluate(X, targets).values())).all()
    seen = ~np.isnan(targets[:, 0])
    by_hand = [
        1 - ((t - m) ** 2).sum() / ((t - t.mean()) ** 2).sum()
        for t, m in zip(
            (targets[seen, 0], targets[:, 1], targets[:, 2]),
            (estimator.predict(X)[seen, 0], estimator.predict(X)[:, 1], estimator.predict(X)[:, 2]),
            strict=True,
        )
    ]
    assert estimator.score(X, targets) == pytest.approx(np.mean(by_hand))


def test_several_outputs_share_a_wider_hidden_layer() -> None:
    both = np.column_stack([Y, -Y])
    assert DSPPRegressor(**QUICK).fit(X, both).fitted_.members[0].spec.model.width == SHARED_WIDTH > 5
    assert DSPPRegressor(**QUICK).fit(X, both[:, :1]).fitted_.members[0].spec.model.width == 5
    assert DSPPRegressor(width=2).spec(2).model.width == 2
    assert DSPPRegressor(model_settings={"width": 3}).spec(2).model.width == 3
    assert DSPPRegressor(rule="qr2", sites=3).spec(2).model.width == 5  # of a grid of 3^W sites
    assert PPGPRRegressor().spec(2) == PPGPRRegressor().spec(1)


def test_what_was_not_observed_does_not_matter() -> None:
    targets = np.column_stack([Y, X[:, 0]])
    gaps = targets.copy()
    gaps[5:25, 1] = np.nan
    masked = np.ma.masked_invalid(gaps)
    masked.data[5:25, 1] = 1e9  # whatever lies under the mask
    a, b = (PPGPRRegressor(**QUICK).fit(X, t).predict(X) for t in (gaps, masked))
    np.testing.assert_array_equal(a, b)


def test_targets_keep_their_names() -> None:
    table = frame()
    both = pd.DataFrame({"price": price(table), "tax": -price(table)})
    estimator = PPGPRRegressor(**QUICK).fit(table, both)
    assert estimator.predict(table).shape == (N, 2)
    assert list(estimator.predict_table(table).columns) == ["price_mean", "price_std", "tax_mean", "tax_std"]
    assert list(estimator.predict_interval(table).columns) == ["price_lower", "price_upper", "tax_lower", "tax_upper"]


def test_nan_in_a_single_target_is_an_error() -> None:
    with pytest.raises(InputError, match="NaN"):
        DSPPRegressor(**QUICK).fit(X, np.where(np.arange(N) == 3, np.nan, Y))


# ---------------------------------------------------------------- promise 16: batches, order, threads


@pytest.mark.parametrize("kind", ESTIMATORS.values(), ids=list(ESTIMATORS))
def test_predictions_do_not_depend_on_batching_order_or_threads(kind: type[Regressor]) -> None:
    estimator = kind(**QUICK, model_settings={"dtype": "float64"}).fit(X, Y)
    rows = np.random.default_rng(3).normal(size=(50, 3))
    whole = estimator.predict_dist(rows)
    for size in (1, 7):
        parts = [estimator.predict_dist(rows[i : i + size]) for i in range(0, 50, size)]
        for name in ("mean", "var"):
            joined = np.concatenate([getattr(p, name) for p in parts])
            np.testing.assert_allclose(joined, getattr(whole, name), rtol=1e-10, atol=1e-10)
    order = np.random.default_rng(4).permutation(50)
    np.testing.assert_allclose(estimator.predict(rows[order]), estimator.predict(rows)[order], rtol=1e-10)
    torch.set_num_threads(8)
    try:
        np.testing.assert_allclose(estimator.predict(rows), whole.mean, rtol=1e-10)
    finally:
        torch.set_num_threads(1)


# ---------------------------------------------------------------- promise 17: nothing changes, nothing leaks


def fingerprint(*data: object) -> str:
    digest = hashlib.sha256()
    for item in data:
        digest.update(
            pd.util.hash_pandas_object(item).to_numpy().tobytes()
            if isinstance(item, pd.DataFrame | pd.Series)
            else np.ascontiguousarray(item).tobytes()
        )
    return digest.hexdigest()


def test_inputs_are_never_changed() -> None:
    table, y = frame(), price(frame())
    array, target = X.copy(), Y.copy()
    before = fingerprint(table, y, array, target)
    DSPPRegressor(**QUICK, conformal=True).fit(table, y, table, y).predict_interval(table)
    estimator = DSPPRegressor(**QUICK).fit(array, target)
    estimator.evaluate(array, target)
    array.setflags(write=False)
    estimator.fit(array, target)
    assert fingerprint(table, y, array, target) == before


def test_rows_held_out_for_calibration_do_not_reach_the_model() -> None:
    estimator = DSPPRegressor(**QUICK, conformal=True, calibration_fraction=0.2)
    _, val, held = split_rows(estimator.settings(), N, False)
    assert len(held) == N // 5
    assert not set(val) & set(held)
    other_X, other_Y = X.copy(), Y.copy()
    other_X[held], other_Y[held] = 1e3, -1e3
    a = estimator.fit(X, Y).fitted_
    b = estimator.fit(other_X, other_Y).fitted_
    for (name, p), q in zip(
        a.members[0].model.state_dict().items(), b.members[0].model.state_dict().values(), strict=True
    ):
        assert torch.equal(p, q), name
    np.testing.assert_array_equal(a.scale_X.mean, b.scale_X.mean)


def test_validation_rows_teach_neither_scale_nor_weights_of_the_last_epoch() -> None:
    estimator = DSPPRegressor(**QUICK)
    shifted = estimator.fit(X, Y, X + 100, Y + 100).fitted_
    straight = estimator.fit(X, Y, X, Y).fitted_
    np.testing.assert_array_equal(shifted.scale_X.mean, straight.scale_X.mean)
    np.testing.assert_array_equal(shifted.outcome.scale.scale, straight.outcome.scale.scale)
    assert [e.objective for e in shifted.members[0].history] == [e.objective for e in straight.members[0].history]


# ---------------------------------------------------------------- files


def test_save_and_load_give_the_same_bits(houses: Regressor, tmp_path) -> None:  # type: ignore[no-untyped-def]
    houses.save(tmp_path / "model.dspp")
    again = dspp.load(tmp_path / "model.dspp")
    assert type(again) is DSPPRegressor
    table = frame(9, seed=5)
    np.testing.assert_array_equal(again.predict(table), houses.predict(table), strict=True)
    assert again.get_params()["inducing"] == 12
    assert list(again.feature_names_in_) == list(table.columns)
    assert again.fitted_.metrics == houses.fitted_.metrics
    again.fit(table, price(table))  # it is an estimator like any other


def test_columns_that_say_nothing_may_stay_in_the_table(tmp_path) -> None:  # type: ignore[no-untyped-def]
    table = frame().assign(constant=1.0)
    estimator = PPGPRRegressor(**QUICK).fit(table, price(table))
    assert any("constant" in str(note) for note in estimator.fitted_.notes)
    estimator.save(tmp_path / "model.dspp")
    np.testing.assert_array_equal(dspp.load(tmp_path / "model.dspp").predict(table), estimator.predict(table))
    numbers = pd.DataFrame(X, columns=["a", "b", "c"]).assign(constant=1.0)
    estimator = PPGPRRegressor(**QUICK).fit(numbers, Y)
    with pytest.warns(UserWarning, match="feature names"):
        np.testing.assert_array_equal(estimator.predict(numbers.to_numpy()), estimator.predict(numbers))


def test_a_file_with_a_model_of_no_known_name(plain: Regressor, tmp_path) -> None:  # type: ignore[no-untyped-def]
    plain.save(tmp_path / "model.dspp")
    tensors, header = storage.read(tmp_path / "model.dspp", dspp.ModelFileError)
    header["members"][0]["spec"]["name"] = "nonsense"
    storage.write(tmp_path / "model.dspp", tensors, header, dspp.ModelFileError)
    with pytest.raises(dspp.ModelFileError, match="nonsense"):
        dspp.load(tmp_path / "model.dspp")


def test_a_loaded_estimator_has_the_settings_it_was_fitted_with(tmp_path) -> None:  # type: ignore[no-untyped-def]
    settings = {"model_settings": {"jitter": 1e-6, "dtype": "float64"}, "train_settings": {"warmup": 0.1}}
    estimator = DSPPRegressor(**QUICK, **settings, features=(5, 3), beta=0.3, kernel="rbf").fit(X, Y)
    estimator.save(tmp_path / "model.dspp")
    again = dspp.load(tmp_path / "model.dspp")
    assert again.spec() == estimator.spec()
    assert again.train_config(N, 0) == estimator.train_config(N, 0)


def test_a_loaded_estimator_has_the_parameters_it_was_given(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """Not what differs from the preset: also what only `fit` is told, and what a preset has anyway."""
    told = {"validation_fraction": 0.2, "calibration_fraction": 0.15, "conformal": True, "time_budget": 500.0}
    told |= {"width": np.int64(5), "model_settings": {"features": (4, 3)}, "random_state": 7}
    estimator = DSPPRegressor(**{**QUICK, **told}, checkpoint=tmp_path / "state").fit(X, Y)
    estimator.save(tmp_path / "model.dspp")
    again = dspp.load(tmp_path / "model.dspp")
    assert again.get_params() == estimator.get_params() | {"checkpoint": None, "progress": None}
    again.fit(X, Y)
    np.testing.assert_array_equal(again.predict(X), estimator.predict(X))


def test_a_module_of_the_user_s(tmp_path) -> None:  # type: ignore[no-untyped-def]
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh())
    estimator = PPGPRRegressor(**QUICK, features=module).fit(X, Y)
    estimator.save(tmp_path / "model.dspp")
    with pytest.raises(dspp.ModelFileError, match="features"):
        dspp.load(tmp_path / "model.dspp")
    again = dspp.load(tmp_path / "model.dspp", features=nn.Sequential(nn.Linear(3, 4), nn.Tanh()))
    np.testing.assert_array_equal(again.predict(X), estimator.predict(X))


def test_a_checkpoint_is_gone_on_from(tmp_path) -> None:  # type: ignore[no-untyped-def]
    calls = iter([False] * 8 + [True])
    estimator = PPGPRRegressor(**QUICK, checkpoint=tmp_path / "state")
    with pytest.raises(dspp.TrainingInterrupted):
        estimator.fit(X, Y, should_stop=lambda: next(calls))
    resumed = estimator.fit(X, Y).predict(X)
    np.testing.assert_array_equal(resumed, PPGPRRegressor(**QUICK).fit(X, Y).predict(X))


# ---------------------------------------------------------------- recalibration


def test_conformal_intervals_cover() -> None:
    rng = np.random.default_rng(8)
    A = rng.normal(size=(600, 2))
    b = A[:, 0] + rng.standard_t(2, size=600)
    estimator = SVGPRegressor(**QUICK, conformal=True, calibration_fraction=0.3).fit(A[:400], b[:400])
    lower, upper = estimator.predict_interval(A[400:], 0.8).T
    inside = np.mean((lower <= b[400:]) & (b[400:] <= upper))
    assert 0.8 - 3 * np.sqrt(0.16 / 200 + 0.16 / 120) < inside < 0.8 + 3 * np.sqrt(0.16 / 200 + 0.16 / 120)
    with pytest.raises(InputError, match="at least 20 rows"):
        SVGPRegressor(**QUICK, conformal=True).fit(A[:10], b[:10])


def test_off_by_default(plain: Regressor) -> None:
    assert plain.fitted_.conformal is None

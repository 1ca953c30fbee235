"""Scikit-learn's own meta-estimators around ours, on data frames of each library and on arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import BaggingRegressor, StackingRegressor, VotingRegressor
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_predict, cross_validate
from sklearn.multioutput import MultiOutputRegressor, RegressorChain

from dspp import DSPPRegressor, PPGPRRegressor

QUICK: dict[str, Any] = {
    "members": 1,
    "inducing": 10,
    "epochs": 20,
    "restarts": 1,
    "sites": 3,
    "width": 2,
    "learning_rate": 0.1,
}
N = 60
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 3))
Y = np.exp(1.0 + 0.5 * X[:, 0] + 0.1 * RNG.normal(size=N))
NAMES = ["size", "age", "rooms"]
TABLES: dict[str, tuple[Any, Any]] = {
    "array": (X, Y),
    "pandas": (pd.DataFrame(X, columns=NAMES, index=np.arange(N) * 3 + 5), pd.Series(Y, name="price")),
    "polars": (pl.DataFrame(X, schema=NAMES), pl.Series("price", Y)),
}
WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "transformed target": lambda one: TransformedTargetRegressor(one, func=np.log, inverse_func=np.exp),
    "stacking": lambda one: StackingRegressor([("dspp", one), ("ppgpr", PPGPRRegressor(**QUICK))], cv=2),
    "voting": lambda one: VotingRegressor([("dspp", one), ("linear", LinearRegression())]),
    "bagging": lambda one: BaggingRegressor(one, n_estimators=2, random_state=0),
}


@pytest.mark.parametrize("library", TABLES)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_wrappers_take_frames(wrapper: str, library: str) -> None:
    table, y = TABLES[library]
    y = np.asarray(y) if library == "polars" else y  # some wrappers need `len(y.shape)`
    fitted = WRAPPERS[wrapper](DSPPRegressor(**QUICK)).fit(table, y)
    predicted = fitted.predict(table)
    assert isinstance(predicted, np.ndarray)
    assert predicted.shape == (N,)
    assert fitted.score(table, y) > 0.5, "the target is a smooth function of the first column"
    expected = WRAPPERS[wrapper](DSPPRegressor(**QUICK)).fit(X, Y).predict(X)
    np.testing.assert_allclose(predicted, expected, rtol=1e-5)  # a frame holds the numbers of the array


@pytest.mark.parametrize("library", TABLES)
def test_cross_validation_takes_frames(library: str) -> None:
    table, y = TABLES[library]
    predicted = cross_val_predict(DSPPRegressor(**QUICK), table, y, cv=3)
    assert predicted.shape == (N,)
    assert np.corrcoef(predicted, Y)[0, 1] > 0.7
    scores = cross_validate(DSPPRegressor(**QUICK), table, y, cv=2, scoring=["r2", "neg_mean_absolute_error"])
    assert np.isfinite(scores["test_r2"]).all()


@pytest.mark.parametrize("library", TABLES)
def test_the_mean_and_standard_deviation_are_arrays(library: str) -> None:
    table, _ = TABLES[library]
    for targets, shape in ((Y, (N,)), (np.column_stack([Y, -Y]), (N, 2))):
        model = PPGPRRegressor(**QUICK).fit(table, targets)
        for array in model.predict(table, return_std=True):
            assert type(array) is np.ndarray
            assert (array.shape, array.dtype) == (shape, np.float64)
            array += 1.0  # the caller's own


@pytest.mark.parametrize("library", ["array", "pandas"])
def test_several_targets_one_estimator_each(library: str) -> None:
    table, _ = TABLES[library]
    both = np.column_stack([Y, -Y])
    for wrapper in (MultiOutputRegressor, RegressorChain):
        fitted = wrapper(clone(PPGPRRegressor(**QUICK))).fit(table, both)
        assert fitted.predict(table).shape == (N, 2)


def test_text_and_dates_pass_through_wrappers() -> None:
    frame = TABLES["pandas"][0].assign(town=np.where(X[:, 0] > 0, "Ghent", "Namur"))
    frame.loc[frame.index[::5], "age"] = np.nan
    for wrapper in ("transformed target", "stacking"):
        base = DSPPRegressor(**QUICK)
        fitted = WRAPPERS[wrapper](base).fit(frame, pd.Series(Y, index=frame.index))
        assert np.isfinite(fitted.predict(frame)).all()

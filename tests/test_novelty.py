"""What the training rows had not is counted and named, and far outside predictions approach the marginal."""

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dspp
from dspp import DsppWarning, PPGPRRegressor
from dspp.cli import app
from dspp.novelty import Novelty
from dspp.table.memory import to_table

TINY: dict[str, Any] = {"inducing": 20, "epochs": 60, "restarts": 1, "progress": False}
RNG = np.random.default_rng(0)
N = 200
FRAME = pd.DataFrame(
    {
        "age": RNG.uniform(20.0, 60.0, N),
        "town": RNG.choice(["Ulm", "Bonn", "Jena"], N),
        "day": pd.date_range("2020-01-01", periods=N, freq="D"),
    }
)
Y = pd.Series(10.0 * FRAME["age"] + RNG.normal(size=N), name="y")


@pytest.fixture(scope="module")
def model() -> PPGPRRegressor:
    return PPGPRRegressor(**TINY).fit(FRAME, Y)


def found(model: PPGPRRegressor, *batches: pd.DataFrame) -> list[str]:
    novelty = Novelty(model.fitted_)
    for batch in batches:
        novelty.count(to_table(batch))
    return novelty.warnings()


def test_rows_like_those_of_training_have_nothing_new(model: PPGPRRegressor) -> None:
    near = FRAME.assign(age=FRAME["age"] + 2.0)  # a little outside
    assert found(model, FRAME, near) == []


def test_what_is_new_is_counted_over_batches_and_named(model: PPGPRRegressor) -> None:
    new = FRAME[:4].assign(age=[30.0, 900.0, -400.0, np.nan], town=["Ulm", "Rome", None, "Rome"])
    low, high = FRAME["age"].min(), FRAME["age"].max()
    assert found(model, new, new[:2], FRAME[:3]) == [
        "column 'town': 3 values not seen in training ('Rome'); predictions ignore them",
        f"column 'age': 3 values outside the range seen in training ({low:.6g} to {high:.6g}), such as 900; far "
        "outside, predictions approach the distribution of all training rows",
    ]


def test_rows_later_than_all_that_were_trained_on_are_a_forecast(model: PPGPRRegressor) -> None:
    later = FRAME.assign(day=FRAME["day"] + pd.Timedelta(days=N))
    (warning,) = found(model, later)
    assert warning.startswith("column 'day': all 200 rows are later than the rows trained on, which end at 2020-07-18")
    assert "time=" in warning
    assert found(model, later, FRAME[-1:]) == []  # some are not


def test_python_warns_once_of_all_calls_that_predict(model: PPGPRRegressor) -> None:
    new = FRAME.assign(age=FRAME["age"] * 1_000.0)
    for call in (model.predict, model.predict_dist, model.predict_interval, model.predict_table):
        with pytest.warns(DsppWarning, match="column 'age': 200 values outside the range") as caught:
            call(new)
        assert len(caught) == 1
    with pytest.warns(DsppWarning, match="column 'age'"):
        model.evaluate(new, Y)


def test_columns_of_arrays_are_numbered() -> None:
    X = RNG.normal(size=(60, 2))
    model = PPGPRRegressor(**TINY).fit(X, X[:, 0])
    with pytest.warns(
        DsppWarning, match=r"column '1': 1 value outside the range seen in training \(-.*\), such as -50;"
    ):
        model.predict([[0.0, 0.0], [0.0, -50.0]])


@pytest.mark.parametrize("likelihood", ["gaussian", "student-t", "log-normal"])
def test_far_outside_the_prediction_is_that_of_all_training_rows(likelihood: str) -> None:
    y = np.exp(1.0 + FRAME["age"] / 30.0) if likelihood == "log-normal" else Y
    model = PPGPRRegressor(**TINY, likelihood=likelihood).fit(FRAME, y)
    new = FRAME.assign(age=FRAME["age"] * 1_000.0)
    with pytest.warns(DsppWarning):
        q = model.predict_quantiles(new, [0.16, 0.5, 0.84]).to_numpy()
    seen = np.log(y) if likelihood == "log-normal" else y
    q = np.log(q) if likelihood == "log-normal" else q
    np.testing.assert_allclose(q[:, 1], seen.mean(), atol=0.05 * seen.std())
    spread = (q[:, 2] - q[:, 0]) / 2.0
    np.testing.assert_allclose(spread, seen.std(), rtol=0.2)  # a Student-t has the variance, not these quantiles
    inside = model.predict_quantiles(FRAME, [0.16, 0.84]).to_numpy()
    assert np.all(np.isfinite(inside))


def test_the_prediction_widens_step_by_step() -> None:
    X = np.linspace(-1.0, 1.0, 200)[:, None]
    model = PPGPRRegressor(**TINY).fit(X, 3.0 * X[:, 0] + 0.1 * RNG.normal(size=200))
    with pytest.warns(DsppWarning):
        std = model.predict_dist([[1.0], [1.5], [2.0], [3.0], [20.0]]).std
    assert np.all(np.diff(std) > -1e-9)
    assert std[-1] == pytest.approx(np.std(3.0 * X), rel=0.05)


def test_ranges_are_saved(model: PPGPRRegressor, tmp_path: Any) -> None:
    model.save(tmp_path / "m.dspp")
    again = dspp.load(tmp_path / "m.dspp")
    new = FRAME.assign(age=FRAME["age"] * 1_000.0)
    assert found(again, new) == found(model, new)
    with pytest.warns(DsppWarning):
        np.testing.assert_array_equal(again.predict(new), model.predict(new))


def test_the_report_and_evaluate_name_what_is_new(model: PPGPRRegressor, tmp_path: Any) -> None:
    new, warning = FRAME.assign(age=FRAME["age"] * 1_000.0), "column 'age': 200 values outside the range"
    with pytest.warns(DsppWarning, match=warning):
        dspp.write_model_report(model, new, Y, tmp_path / "python.html")
    model.save(tmp_path / "m.dspp")
    new.assign(y=Y).to_csv(tmp_path / "new.csv", index=False)
    words = ["evaluate", tmp_path / "m.dspp", tmp_path / "new.csv", "--report", tmp_path / "shell.html", "--json"]
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["warnings"][0].startswith(warning)
    for page in ("python.html", "shell.html"):
        assert "200 values outside the range seen in training" in (tmp_path / page).read_text()


def test_a_target_with_the_name_of_an_input_cannot_be_evaluated_from_one_file(tmp_path: Any) -> None:
    PPGPRRegressor(**TINY).fit(FRAME, Y.rename("age")).save(tmp_path / "m.dspp")
    FRAME.to_csv(tmp_path / "new.csv", index=False)
    result = CliRunner().invoke(app, ["evaluate", str(tmp_path / "m.dspp"), str(tmp_path / "new.csv")])
    assert result.exit_code == 2
    assert "column 'age' is the target and, of another table, an input of the model" in " ".join(result.output.split())

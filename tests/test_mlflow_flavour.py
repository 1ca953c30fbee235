"""Models in a real MLflow, on a local file store: saved, logged, loaded, and served by pyfunc."""

import json
import re
import runpy
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from torch import nn

import dspp
from dspp import DSPPRegressor, InputError, ModelFileError, PPGPRRegressor
from dspp.estimators import Regressor

pytest.importorskip("mlflow", reason="run make test-integrations")

import mlflow

import dspp.mlflow

pytestmark = [  # warnings about MLflow's own code
    pytest.mark.filterwarnings("ignore:Operation with range is deprecated"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred as AnyType"),
]
QUICK = {"inducing": 6, "epochs": 2, "restarts": 1, "progress": False}


def houses(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "size": rng.normal(50, 10, rows),
            "rooms": rng.integers(1, 6, rows),
            "town": pd.Categorical(rng.choice(["Ghent", "Namur"], rows)),
            "sold": pd.Timestamp("2024-01-01", tz="UTC") + pd.to_timedelta(rng.integers(0, 2000, rows), unit="h"),
        },
        index=np.arange(rows) * 7 + 3,
    )


@pytest.fixture(scope="module")
def model() -> Regressor:
    X = houses()
    y = pd.Series(2 * X["size"] + 5 * X["rooms"], name="price")
    return PPGPRRegressor(**QUICK).fit(X, y)


@pytest.fixture(scope="module", autouse=True)
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A store of files for tracking and models, and nothing sent anywhere."""
    folder = tmp_path_factory.mktemp("mlflow") / "mlruns"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # without it, MLflow asks for a database
        before = mlflow.get_tracking_uri()
        mlflow.set_tracking_uri(folder.as_uri())
        yield folder
        mlflow.set_tracking_uri(before)


@pytest.fixture(scope="module")
def logged(model: Regressor, store: Path) -> str:
    with mlflow.start_run():
        info = dspp.mlflow.log_model(model, name="houses", input_example=houses(3), registered_model_name="price")
    assert info.registered_model_version == 1
    return str(info.model_uri)


@pytest.fixture(scope="module")
def served(logged: str) -> "mlflow.pyfunc.PyFuncModel":
    return mlflow.pyfunc.load_model(logged)


def test_a_logged_model_comes_back_as_the_same_estimator(model: Regressor, logged: str) -> None:
    for address in (logged, "models:/price/1"):
        loaded = dspp.mlflow.load_model(address)
        assert type(loaded) is PPGPRRegressor
        np.testing.assert_array_equal(loaded.predict(houses()), model.predict(houses()))


def test_the_folder_holds_the_model_file_and_nothing_that_is_executed(model: Regressor, tmp_path: Path) -> None:
    dspp.mlflow.save_model(model, tmp_path / "m")
    files = {str(path.relative_to(tmp_path / "m")) for path in (tmp_path / "m").rglob("*") if path.is_file()}
    assert files == {"MLmodel", "conda.yaml", "data/model.dspp", "python_env.yaml", "requirements.txt"}
    loaded = dspp.load(tmp_path / "m" / "data" / "model.dspp")
    np.testing.assert_array_equal(loaded.predict(houses()), model.predict(houses()))
    requirements = (tmp_path / "m" / "requirements.txt").read_text().splitlines()
    assert f"dspp=={dspp.__version__}" in requirements
    assert not any("+" in line for line in requirements), "a local version cannot be installed"


@pytest.mark.parametrize(
    ("params", "columns"),
    [
        (None, ["price_mean"]),
        ({"output": "std"}, ["price_std"]),
        ({"output": "quantiles"}, ["price_q0.05", "price_q0.5", "price_q0.95"]),
        ({"output": "quantiles", "quantiles": [0.25]}, ["price_q0.25"]),
        ({"output": "interval", "level": 0.8}, ["price_lower", "price_upper"]),
        (
            {"output": "table", "quantiles": [0.25]},
            ["price_mean", "price_std", "price_q0.25", "price_lower", "price_upper"],
        ),
    ],
)
def test_parameters_choose_the_output(model: Regressor, served: "mlflow.pyfunc.PyFuncModel", params, columns) -> None:
    found = served.predict(houses(9), params=params)
    level = (params or {}).get("level", 0.9)
    pd.testing.assert_frame_equal(found, model.predict_table(houses(9), [0.05, 0.25, 0.5, 0.95], level)[columns])


def test_an_unknown_output_is_refused(served: "mlflow.pyfunc.PyFuncModel") -> None:
    with pytest.raises(InputError, match="output: expected one of mean, std, quantiles, interval, table, got 'median'"):
        served.predict(houses(3), params={"output": "median"})


def test_rows_that_the_model_takes_are_not_refused_by_mlflow(
    model: Regressor, served: "mlflow.pyfunc.PyFuncModel"
) -> None:
    """Other orders, further columns, categories as text, numbers and dates in another form."""
    rows, mean = houses(9), model.predict(houses(9))
    other = rows.assign(
        town=rows["town"].astype(str), rooms=rows["rooms"].astype(float), sold=rows["sold"].astype(str), extra=1
    )[["town", "extra", "sold", "rooms", "size"]]
    np.testing.assert_array_equal(served.predict(other)["price_mean"], mean)
    for same in (other.to_dict("list"), other.to_dict("records"), pl.from_pandas(other)):
        np.testing.assert_array_equal(served.predict(same)["price_mean"], mean)


def test_a_missing_column_is_named(served: "mlflow.pyfunc.PyFuncModel") -> None:
    with pytest.raises(InputError, match="rooms"):
        served.predict(houses(3).drop(columns="rooms"))


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_requests_to_the_scoring_server_are_understood(kind: str, model: Regressor, logged: str, tmp_path) -> None:
    rows = houses(3).assign(sold=lambda table: table["sold"].astype(str))
    asked, answer = tmp_path / "asked", tmp_path / "answer.json"
    request = {"dataframe_split": json.loads(rows.to_json(orient="split")), "params": {"output": "std"}}
    asked.write_text(json.dumps(request) if kind == "json" else rows.to_csv(index=False))
    mlflow.models.predict(logged, input_path=asked, content_type=kind, output_path=answer, env_manager="local")
    name, expected = ("price_std", 1) if kind == "json" else ("price_mean", 0)
    found = [row[name] for row in json.loads(answer.read_text())["predictions"]]
    np.testing.assert_allclose(found, model.predict(houses(3), return_std=True)[expected])


def test_models_of_arrays_and_of_several_outputs(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(40, 2))
    model = PPGPRRegressor(**QUICK).fit(X, X)
    dspp.mlflow.save_model(model, tmp_path / "m", input_example=X[:2])
    served = mlflow.pyfunc.load_model(str(tmp_path / "m"))
    assert served.predict(X[:5], params={"output": "interval"}).columns.tolist() == [
        "y0_lower",
        "y0_upper",
        "y1_lower",
        "y1_upper",
    ]
    for rows in (X[:5], pd.DataFrame(X[:5]), pd.DataFrame(X[:5], columns=["a", "b"])):
        np.testing.assert_allclose(served.predict(rows).to_numpy(), model.predict(X[:5]), rtol=1e-12)
    assert isinstance(served.get_raw_model(), PPGPRRegressor)


def test_infinite_intervals_are_explained(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    model = PPGPRRegressor(conformal=True, **QUICK).fit(X, X[:, 0])
    with pytest.warns(UserWarning, match="intervals are infinite"):
        found = dspp.mlflow.PyfuncModel(model).predict(X, {"output": "interval", "level": 0.99})
    assert np.isinf(found.to_numpy()).all()


def test_an_own_signature_keeps_its_columns_and_gets_the_parameters(model: Regressor, tmp_path: Path) -> None:
    rows = houses()[["size", "rooms"]].astype(float)
    two = PPGPRRegressor(**QUICK).fit(rows, rows["size"].rename("price"))
    signature = mlflow.models.infer_signature(rows, two.predict(rows))
    dspp.mlflow.save_model(two, tmp_path / "m", signature=signature, input_example=rows[:3])
    served = mlflow.pyfunc.load_model(str(tmp_path / "m"))
    assert served.metadata.signature.inputs == signature.inputs
    assert served.predict(rows, params={"output": "std"}).columns.tolist() == ["price_std"]


def test_a_model_file_can_be_logged_by_its_path(model: Regressor, tmp_path: Path) -> None:
    model.save(tmp_path / "model.dspp")
    dspp.mlflow.save_model(tmp_path / "model.dspp", tmp_path / "m", metadata={"owner": "me"})
    assert mlflow.models.Model.load(str(tmp_path / "m")).metadata == {"owner": "me"}
    np.testing.assert_array_equal(dspp.mlflow.load_model(tmp_path / "m").predict(houses()), model.predict(houses()))


def test_an_own_feature_module_is_passed_on_loading(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(40, 3))
    model = PPGPRRegressor(features=nn.Linear(3, 2), **QUICK).fit(X, X[:, 0])
    dspp.mlflow.save_model(model, tmp_path / "m")
    loaded = dspp.mlflow.load_model(tmp_path / "m", features=nn.Linear(3, 2))
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    with pytest.raises(ModelFileError, match="custom features module"):
        mlflow.pyfunc.load_model(str(tmp_path / "m"))


@pytest.mark.parametrize("other", [DSPPRegressor(), object(), None])
def test_what_is_not_a_fitted_estimator_is_refused(other: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a fitted estimator of dspp"):
        dspp.mlflow.save_model(other, tmp_path / "m")
    with pytest.raises(InputError, match=r"mlflow\.sklearn"):
        dspp.mlflow.log_model(other)


def test_models_of_other_flavours_are_refused(tmp_path: Path) -> None:
    mlflow.models.Model(flavors={"sklearn": {}}).save(str(tmp_path / "MLmodel"))
    with pytest.raises(ModelFileError, match="expected a model with the flavour 'dspp', got sklearn"):
        dspp.mlflow.load_model(tmp_path)


def test_a_damaged_file_is_refused(model: Regressor, tmp_path: Path) -> None:
    dspp.mlflow.save_model(model, tmp_path / "m")
    file = tmp_path / "m" / "data" / "model.dspp"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    for load in (dspp.mlflow.load_model, mlflow.pyfunc.load_model):
        with pytest.raises(ModelFileError, match="damaged"):
            load(str(tmp_path / "m"))


def test_without_mlflow_one_line_names_the_extra() -> None:
    program = "import sys; sys.modules['mlflow'] = None\nimport dspp.mlflow"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "MissingExtraError: dspp.mlflow needs mlflow, which is not installed" in done.stderr.splitlines()[-1]
    assert done.stderr.endswith("run pip install 'dspp[mlflow]'\n")


def test_the_example_sends_curves_and_scores_here() -> None:
    path = Path(__file__).parents[1] / "examples" / "track_training.py"
    example = runpy.run_path(str(path))
    (block,) = re.findall(r"^    import mlflow\n.*?(?=^\S)", example["__doc__"], re.MULTILINE | re.DOTALL)
    model, X = PPGPRRegressor(**QUICK), houses()
    exec(textwrap.dedent(block), {"Tracker": example["Tracker"], "model": model, "X": X, "y": X["size"]})
    run = mlflow.last_active_run()
    assert run.data.metrics["nll"] == pytest.approx(model.fitted_.metrics["nll"])
    curve = mlflow.MlflowClient().get_metric_history(run.info.run_id, "member1/train_nll")
    assert [(point.step, point.value) for point in curve] == [
        (epoch.number, epoch.train_nll) for epoch in model.fitted_.members[0].history
    ]

"""Models of dspp in MLflow: saving, logging and loading them, and predictions through `mlflow.pyfunc`.

import dspp.mlflow

with mlflow.start_run():
    info = dspp.mlflow.log_model(model, name="model", input_example=X[:5])
model = dspp.mlflow.load_model(info.model_uri)                  # the estimator
served = mlflow.pyfunc.load_model(info.model_uri)
served.predict(X_new, params={"output": "interval", "level": 0.9})

The logged model holds the model file of dspp: nothing is pickled, and `load_model` executes nothing. It needs the extra
`mlflow`, which `import dspp` does not import.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dspp.errors import InputError, ModelFileError
from dspp.estimators import load
from dspp.estimators.regressor import Regressor
from dspp.extras import require
from dspp.notes import warn
from dspp.outcomes.real import quantile_name
from dspp.table.frames import is_frame, to_arrow

require("mlflow", "dspp.mlflow")

import pandas as pd  # noqa: E402 - after the check
from mlflow import pyfunc  # noqa: E402
from mlflow.artifacts import download_artifacts  # noqa: E402
from mlflow.models import Model, ModelSignature  # noqa: E402
from mlflow.types import ColSpec, DataType, ParamSchema, ParamSpec, Schema  # noqa: E402

FLAVOR_NAME = "dspp"
FILE = "model.dspp"
OUTPUTS = ("mean", "std", "quantiles", "interval", "table")
DEFAULTS: dict[str, Any] = {"output": "mean", "level": 0.9, "quantiles": [0.05, 0.5, 0.95]}
REQUIREMENTS = ("dspp", "torch", "numpy", "scikit-learn", "pandas")  # pinned in the requirements of a model


def get_default_pip_requirements() -> list[str]:
    """Return the requirements of a saved model: dspp and what predictions depend on, in the installed versions.

    Example:
        >>> import dspp.mlflow
        >>> [requirement.split("==")[0] for requirement in dspp.mlflow.get_default_pip_requirements()]
        ['dspp', 'torch', 'numpy', 'scikit-learn', 'pandas']
    """
    return [f"{name}=={version(name).partition('+')[0]}" for name in REQUIREMENTS]  # "2.13.0+cpu" is on no index


def save_model(
    model: Regressor | str | Path,
    path: str | Path,
    *,
    signature: ModelSignature | None = None,
    input_example: Any = None,
    conda_env: Any = None,
    pip_requirements: Sequence[str] | str | None = None,
    extra_pip_requirements: Sequence[str] | str | None = None,
    metadata: Mapping[str, Any] | None = None,
    mlflow_model: Model | None = None,
) -> None:
    """Save a model to a new folder in MLflow's format.

    Args:
        model: A fitted estimator, or the path of a model file.
        path: The folder, which must not exist or must be empty.
        signature: What MLflow checks and converts before each prediction; the parameters of `predict` are added. None:
            nothing, as the model checks its columns itself. That of `mlflow.models.infer_signature` refuses whatever
            has another type than the rows it was inferred from: integers for decimal numbers, categories, time zones.
        input_example: A few rows, saved with the model; or a pair of rows and parameters of `predict`.
        conda_env: The environment, as in all flavours of MLflow.
        pip_requirements: The requirements; None: those of `get_default_pip_requirements`.
        extra_pip_requirements: Further requirements.
        metadata: Anything to be saved with the model.
        mlflow_model: The description to complete; `log_model` passes it.

    Raises:
        InputError: The model is not a fitted estimator of dspp.
        ModelFileError: The model file cannot be read or written.

    Example:
        >>> import numpy as np
        >>> import dspp.mlflow
        >>> from dspp import PPGPRRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = PPGPRRegressor(epochs=2, inducing=8).fit(X, X[:, 0])
        >>> dspp.mlflow.save_model(model, "folder")
        >>> bool((dspp.mlflow.load_model("folder").predict(X) == model.predict(X)).all())
        True
    """
    estimator = _check_model(model)
    rows, params = input_example if isinstance(input_example, tuple) else (input_example, None)
    rows = _to_pandas(rows) if is_frame(rows) else rows
    description = Model() if mlflow_model is None else mlflow_model
    description.add_flavor(FLAVOR_NAME, data=f"data/{FILE}", dspp_version=version("dspp"))
    description.signature = _complete(signature, estimator)
    if conda_env is None and pip_requirements is None:
        pip_requirements = get_default_pip_requirements()
    with tempfile.TemporaryDirectory(prefix="dspp-") as folder:
        estimator.save(Path(folder) / FILE)
        pyfunc.save_model(
            str(path),
            loader_module=__name__,
            data_path=str(Path(folder) / FILE),
            mlflow_model=description,
            signature=None if rows is None else description.signature,  # with it, MLflow demands an example
            input_example=rows if params is None else (rows, params),
            conda_env=conda_env,
            pip_requirements=pip_requirements,
            extra_pip_requirements=extra_pip_requirements,
            metadata=metadata,
        )


def log_model(
    model: Regressor | str | Path, name: str = "model", *, registered_model_name: str | None = None, **options: Any
) -> Any:
    """Log a model to the current run of MLflow, and return MLflow's description of it.

    Args:
        model: A fitted estimator, or the path of a model file.
        name: The name of the model in the run.
        registered_model_name: Also register the model under this name.
        **options: Options of `save_model`, such as `input_example`, or of `mlflow.models.Model.log`, such as `tags`.

    Example:
        >>> import mlflow
        >>> import numpy as np
        >>> import dspp.mlflow
        >>> from dspp import PPGPRRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = PPGPRRegressor(epochs=2, inducing=8).fit(X, X[:, 0])
        >>> mlflow.set_tracking_uri("sqlite:///mlflow.db")
        >>> with mlflow.start_run():
        ...     info = dspp.mlflow.log_model(model, name="price")
        >>> mlflow.pyfunc.load_model(info.model_uri).predict(X[:5], params={"output": "interval", "level": 0.9}).shape
        (5, 2)
    """
    return Model.log(
        artifact_path=None,
        name=name,
        flavor=sys.modules[__name__],
        model=_check_model(model),
        registered_model_name=registered_model_name,
        **options,
    )


def load_model(model_uri: str | Path, dst_path: str | None = None, features: Any = None) -> Regressor:
    """Load the estimator of a saved or logged model. Nothing is executed.

    Args:
        model_uri: A folder, or an address of MLflow such as `models:/price/3` or `runs:/RUN/model`.
        dst_path: Where to download the files of a remote model; None: a temporary folder.
        features: Your own feature module, if the model has one: see `dspp.load`.

    Raises:
        ModelFileError: It is not a model of dspp, or its file is damaged.

    Example:
        >>> import numpy as np
        >>> import dspp.mlflow
        >>> from dspp import PPGPRRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = PPGPRRegressor(epochs=2, inducing=8).fit(X, X[:, 0])
        >>> dspp.mlflow.save_model(model, "folder")
        >>> dspp.mlflow.load_model("folder").predict_interval(X[:5], 0.9).shape
        (5, 2)
    """
    folder = Path(download_artifacts(artifact_uri=str(model_uri), dst_path=dst_path))
    flavors = Model.load(str(folder)).flavors
    if FLAVOR_NAME not in flavors:
        raise ModelFileError(
            f"{model_uri}: expected a model with the flavour {FLAVOR_NAME!r}, got {', '.join(flavors) or 'none'}; load "
            "it with mlflow.pyfunc.load_model"
        )
    return load(folder / flavors[FLAVOR_NAME]["data"], features)


class PyfuncModel:
    """What `mlflow.pyfunc.load_model` wraps: predictions as data frames of pandas.

    Example:
        >>> import numpy as np
        >>> import dspp.mlflow
        >>> from dspp import PPGPRRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = PPGPRRegressor(epochs=2, inducing=8).fit(X, X[:, 0])
        >>> served = dspp.mlflow.PyfuncModel(model)
        >>> list(served.predict(X[:5], {"output": "quantiles", "quantiles": [0.1, 0.9]}).columns)
        ['y_q0.1', 'y_q0.9']
    """

    def __init__(self, model: Regressor) -> None:
        self.model = model

    def get_raw_model(self) -> Regressor:
        """Return the estimator; the name that MLflow uses."""
        return self.model

    def predict(self, model_input: Any, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Return predictions for some rows, in columns named as by `dspp predict`, such as price_mean.

        Args:
            model_input: A data frame, an array, or records as the scoring server passes them. Columns may be in any
                order, and further ones are ignored.
            params: `output` is one of mean (the default), std, quantiles, interval, and table for all of them; `level`
                is the coverage of the interval, 0.9 by default; `quantiles` are probabilities.

        Raises:
            InputError: The output is unknown, or the rows are not valid.
        """
        chosen = {**DEFAULTS, **(params or {})}
        output, level = chosen["output"], chosen["level"]
        if output not in OUTPUTS:
            raise InputError(f"output: expected one of {', '.join(OUTPUTS)}, got {output!r:.100}")
        quantiles = [float(p) for p in chosen["quantiles"]] if output in ("quantiles", "table") else []
        interval = float(level) if output in ("interval", "table") else None
        if why := self.model.fitted_.why_infinite(interval):
            warn(why)
        table = self.model.predict_table(self._rows(model_input), quantiles, interval)
        frame = table if isinstance(table, pd.DataFrame) else table.to_pandas()  # Arrow, if the rows are an array
        outcome = self.model.fitted_.outcome
        if output == "mean":
            return frame[list(outcome.point_columns)]
        moments = {"std": ["std"], "table": ["mean", "std"]}.get(output, [])
        ends = [] if interval is None else ["lower", "upper"]
        wanted = [*moments, *map(quantile_name, quantiles), *ends]
        return frame[[f"{target}_{name}" for target in outcome.output_names for name in wanted]]

    def _rows(self, model_input: Any) -> Any:
        """Return the rows as the estimator takes them: its own columns in its own order, or an array."""
        if isinstance(model_input, Mapping | list):
            model_input = pd.DataFrame(model_input)
        if not is_frame(model_input):
            return model_input
        frame, names = _to_pandas(model_input), getattr(self.model, "feature_names_in_", None)
        if names is None:
            return frame.to_numpy()
        return frame[list(names)] if set(names) <= set(frame.columns) else frame  # the estimator names what is missing


def _load_pyfunc(path: str) -> PyfuncModel:
    """Load a model for `mlflow.pyfunc`, which calls this with the path of the model file."""
    return PyfuncModel(load(path))


def _check_model(model: Any) -> Regressor:
    if isinstance(model, str | Path):
        return load(model)
    if not isinstance(model, Regressor) or not hasattr(model, "fitted_"):
        raise InputError(
            f"model: expected a fitted estimator of dspp or the path of a model file, got {model!r:.100}; log other "
            "estimators and pipelines with mlflow.sklearn"
        )
    return model


def _complete(signature: ModelSignature | None, estimator: Regressor) -> ModelSignature:
    """Return the signature with the parameters of `predict`; if there is none, one without inputs."""
    if signature is None:
        types = {float: DataType.double, str: DataType.string}
        columns = estimator.fitted_.outcome.point_columns.items()
        signature = ModelSignature(outputs=Schema([ColSpec(types[kind], name) for name, kind in columns]))
    if signature.params is not None:
        return signature
    params = [
        ParamSpec("output", DataType.string, DEFAULTS["output"]),
        ParamSpec("level", DataType.double, DEFAULTS["level"]),
        ParamSpec("quantiles", DataType.double, DEFAULTS["quantiles"], shape=(-1,)),
    ]
    return ModelSignature(signature.inputs, signature.outputs, ParamSchema(params))


def _to_pandas(frame: Any) -> pd.DataFrame:
    if isinstance(frame, pd.DataFrame | pd.Series):
        return frame
    return to_arrow(frame).to_pandas()

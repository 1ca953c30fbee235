"""Scikit-learn estimators that predict distributions in the units of the target.

`Regressor` implements them all; each model of the paper is a subclass that names its preset, and `PresetRegressor`
takes the name of any preset, such as your own. Data frames (pandas, polars, Arrow) may contain numbers, Booleans,
strings, dates and missing values; arrays contain numbers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dspp.errors import ModelFileError
from dspp.estimators.regressor import Regressor
from dspp.presets import PRESETS
from dspp.registry import UnknownPartError

if TYPE_CHECKING:
    from torch import nn

    from dspp.fitted import Fitted


class DSPPRegressor(Regressor):
    """Deep sigma point process (Jankowiak et al. 2020): a deep GP trained on the distribution it predicts with.

    Example:
        >>> import numpy as np
        >>> from dspp import DSPPRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = DSPPRegressor(members=2, epochs=2, inducing=8).fit(X, X[:, 0])  # the defaults train for longer
        >>> model.predict(X[:3]).shape
        (3,)
        >>> model.predict_interval(X[:3], 0.9).shape
        (3, 2)
    """


class PPGPRRegressor(Regressor):
    """Parametric predictive GP regression (Jankowiak et al. 2020): one layer, trained on its predictive density.

    Example:
        >>> from dspp import PPGPRRegressor
        >>> spec = PPGPRRegressor().spec()
        >>> spec.model.layers, spec.objective.name
        (1, 'predictive')
    """

    _preset = "ppgpr"


class SVGPRegressor(Regressor):
    """Sparse variational GP (Hensman et al. 2013): one layer, ELBO.

    Example:
        >>> from dspp import SVGPRegressor
        >>> spec = SVGPRegressor().spec()
        >>> spec.model.layers, spec.objective.name
        (1, 'elbo')
    """

    _preset = "svgp"


class ODSVGPRegressor(Regressor):
    """Orthogonally decoupled sparse variational GP (Salimbeni et al. 2018): a larger basis for the mean.

    Example:
        >>> from dspp import ODSVGPRegressor
        >>> spec = ODSVGPRegressor().spec()
        >>> spec.model.layers, spec.objective.name
        (1, 'elbo')
    """

    _preset = "od-svgp"


class DGPRegressor(Regressor):
    """Doubly stochastic deep GP (Salimbeni & Deisenroth 2017): Monte Carlo through the layers, ELBO.

    Example:
        >>> from dspp import DGPRegressor
        >>> spec = DGPRegressor().spec()
        >>> spec.model.layers, spec.objective.name
        (2, 'elbo')
    """

    _preset = "dgp"


class GammaDGPRegressor(Regressor):
    """The robust deep GP of Knoblauch (2019).

    Example:
        >>> from dspp import GammaDGPRegressor
        >>> spec = GammaDGPRegressor().spec()
        >>> spec.model.layers, spec.objective.name
        (2, 'gamma-elbo')
    """

    _preset = "gamma-dgp"


class BPDGPRegressor(Regressor):
    """A deep GP trained on a biased Monte Carlo estimate of its predictive density.

    Example:
        >>> from dspp import BPDGPRegressor
        >>> spec = BPDGPRegressor().spec()
        >>> spec.model.layers, spec.objective.name
        (2, 'predictive')
    """

    _preset = "bpdgp"


@dataclass(kw_only=True, eq=False, repr=False)
class PresetRegressor(Regressor):
    """The estimator of any preset: `PresetRegressor(preset="mine")` if "mine" is registered in `PRESETS`.

    Example:
        >>> import numpy as np
        >>> from dspp import PresetRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = PresetRegressor(preset="nn+ppgpr", features=(8, 2), epochs=2, inducing=8).fit(X, X[:, 0])
        >>> model.predict(X[:3]).shape
        (3,)
    """

    preset: str = "dspp"


ESTIMATORS: dict[str, type[Regressor]] = {
    kind._preset: kind
    for kind in (
        DSPPRegressor,
        PPGPRRegressor,
        SVGPRegressor,
        ODSVGPRegressor,
        DGPRegressor,
        GammaDGPRegressor,
        BPDGPRegressor,
    )
}


def load(path: str | Path, features: "nn.Module | None" = None) -> Regressor:
    """Load an estimator written by `save`. Nothing in the file is executed.

    Args:
        path: The file.
        features: Your own feature module, if the model has one: the file contains its weights, not its code.

    Raises:
        ModelFileError: The file does not exist, is not a model file or is damaged, or it names a part or preset that is
            not registered: import its module first.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> import dspp
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = dspp.PPGPRRegressor(epochs=2, inducing=8).fit(X, X[:, 0])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(Path(folder) / "model.dspp")
        ...     again = dspp.load(Path(folder) / "model.dspp")
        >>> bool((again.predict(X) == model.predict(X)).all())
        True
    """
    from dspp import modelfile

    fitted = modelfile.load(path, features)
    try:
        estimator = from_fitted(fitted)
        _ = estimator.settings().impute  # may raise: predictions need these parameters
    except UnknownPartError as problem:
        raise ModelFileError(f"{path}: unknown {problem.part}; import the module that registers it first") from None
    except ValueError as problem:
        raise ModelFileError(f"{path} is damaged: {problem!s:.500}") from None
    return estimator


def from_fitted(fitted: "Fitted") -> Regressor:
    """Return the estimator of a fitted model, of the class of its first member, with its parameters."""
    name, params = fitted.members[0].spec.name, fitted.params or {}
    PRESETS[name.removeprefix("nn+")]  # raises if unknown: the estimator could not be refitted
    known = Regressor._get_param_names()
    return attach(from_preset(name, **{k: _from_json(value) for k, value in params.items() if k in known}), fitted)


def from_preset(name: str, **params: Any) -> Regressor:
    """Return the unfitted estimator of a preset, of its own class if there is one."""
    return ESTIMATORS[name](**params) if name in ESTIMATORS else PresetRegressor(preset=name, **params)


def attach(estimator: Regressor, fitted: "Fitted") -> Regressor:
    """Return the estimator with the attributes that fitting this model would have set."""
    estimator.fitted_ = fitted
    estimator.n_features_in_ = fitted.num_inputs
    estimator.__dict__.update(fitted.outcome.attributes)
    if fitted.encoder is not None:
        estimator.feature_names_in_ = np.array([column.name for column in fitted.encoder.columns], dtype=object)
        estimator.n_features_in_ = len(fitted.encoder.columns)
    return estimator


def _from_json(value: Any) -> Any:
    """Convert a list, as JSON stores tuples, back to a tuple."""
    if isinstance(value, dict):
        return {name: _from_json(part) for name, part in value.items()}
    return tuple(value) if isinstance(value, list) else value

"""Calibrated predictive distributions for tables: Deep Sigma Point Processes and the models they are compared with.

from dspp import TrainConfig, fit, preset

result = fit(preset("dspp", width=5), X, y, config=TrainConfig(epochs=40))
mixture = result.model.predictor()(X_new)      # a NormalMixture: mean, std, quantile, interval, crps, ...
"""

from dspp.config import ModelConfig, ObjectiveConfig, TrainConfig
from dspp.errors import DsppError, InputError, NumericalError, TrainingDiverged
from dspp.mixture import MultivariateNormalMixture, NormalMixture
from dspp.model import Model, Predictor, build
from dspp.presets import PRESETS, Spec, preset
from dspp.training import FitResult, fit

__version__ = "0.1.0"

__all__ = [
    "PRESETS",
    "DsppError",
    "FitResult",
    "InputError",
    "Model",
    "ModelConfig",
    "MultivariateNormalMixture",
    "NormalMixture",
    "NumericalError",
    "ObjectiveConfig",
    "Predictor",
    "Spec",
    "TrainConfig",
    "TrainingDiverged",
    "build",
    "fit",
    "preset",
]

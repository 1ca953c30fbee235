"""Calibrated predictive distributions for tables: Deep Sigma Point Processes and the models they are compared with.

from dspp import DSPPRegressor, load

model = DSPPRegressor().fit(X, y)              # a data frame, or an array
mixture = model.predict_dist(X_new)            # arrays: mean, std, quantile(p), interval(0.9), crps(y), ...
model.save("model.dspp"); load("model.dspp")   # one safe file

Names are imported on first use, so that `import dspp` and the command line's help need not import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dspp.calibration import Calibration as Calibration
    from dspp.calibration import Conformal as Conformal
    from dspp.config import ModelConfig as ModelConfig
    from dspp.config import ObjectiveConfig as ObjectiveConfig
    from dspp.config import TrainConfig as TrainConfig
    from dspp.errors import CheckpointError as CheckpointError
    from dspp.errors import DsppError as DsppError
    from dspp.errors import DsppWarning as DsppWarning
    from dspp.errors import InputError as InputError
    from dspp.errors import ModelFileError as ModelFileError
    from dspp.errors import NumericalError as NumericalError
    from dspp.errors import TrainingDiverged as TrainingDiverged
    from dspp.errors import TrainingInterrupted as TrainingInterrupted
    from dspp.estimators import BPDGPRegressor as BPDGPRegressor
    from dspp.estimators import DGPRegressor as DGPRegressor
    from dspp.estimators import DSPPRegressor as DSPPRegressor
    from dspp.estimators import GammaDGPRegressor as GammaDGPRegressor
    from dspp.estimators import ODSVGPRegressor as ODSVGPRegressor
    from dspp.estimators import PPGPRRegressor as PPGPRRegressor
    from dspp.estimators import PresetRegressor as PresetRegressor
    from dspp.estimators import SVGPRegressor as SVGPRegressor
    from dspp.estimators import load as load
    from dspp.model import Model as Model
    from dspp.model import Predictor as Predictor
    from dspp.model import build as build
    from dspp.predictive import Distribution as Distribution
    from dspp.predictive import LogNormalMixture as LogNormalMixture
    from dspp.predictive import MultivariateNormalMixture as MultivariateNormalMixture
    from dspp.predictive import NormalMixture as NormalMixture
    from dspp.predictive import StudentTMixture as StudentTMixture
    from dspp.presets import PRESETS as PRESETS
    from dspp.presets import Spec as Spec
    from dspp.presets import preset as preset
    from dspp.report import write_model_report as write_model_report
    from dspp.training import Budget as Budget
    from dspp.training import Checkpoint as Checkpoint
    from dspp.training import FitResult as FitResult
    from dspp.training import Rows as Rows
    from dspp.training import fit as fit
    from dspp.tuning import TuneResult as TuneResult
    from dspp.tuning import tune as tune

    __version__: str
    from dspp import scorers as scorers

_NAMES = {
    "calibration": "Calibration Conformal",
    "config": "ModelConfig ObjectiveConfig TrainConfig",
    "errors": "CheckpointError DsppError DsppWarning InputError ModelFileError NumericalError TrainingDiverged "
    "TrainingInterrupted",
    "estimators": "BPDGPRegressor DGPRegressor DSPPRegressor GammaDGPRegressor ODSVGPRegressor PPGPRRegressor "
    "PresetRegressor SVGPRegressor load",
    "predictive": "Distribution LogNormalMixture MultivariateNormalMixture NormalMixture StudentTMixture",
    "model": "Model Predictor build",
    "presets": "PRESETS Spec preset",
    "report": "write_model_report",
    "training": "Budget Checkpoint FitResult Rows fit",
    "tuning": "TuneResult tune",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOME)  # a test compares these names with those above
_MODULES = ("scorers",)  # that are attributes without an import of their own


def __getattr__(name: str) -> Any:
    if name == "__version__":  # it stands in pyproject.toml, from which pip copies it
        from importlib.metadata import version

        return version("dspp")
    if name in _MODULES:
        return importlib.import_module(f"dspp.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'dspp' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"dspp.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__", *(name for name in globals() if name.startswith("__"))})

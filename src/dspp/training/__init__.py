"""Fitting models."""

from dspp.history import Epoch
from dspp.training.result import FitResult
from dspp.training.run import fit
from dspp.training.signals import StopFlag, stop_on_signals

__all__ = ["Epoch", "FitResult", "StopFlag", "fit", "stop_on_signals"]

"""Fitting models."""

from dspp.training.loop import FitResult
from dspp.training.run import fit
from dspp.training.signals import StopFlag, stop_on_signals
from dspp.training.state import Epoch

__all__ = ["Epoch", "FitResult", "StopFlag", "fit", "stop_on_signals"]

"""Fitting models."""

from dspp.history import Epoch
from dspp.training.budget import Budget
from dspp.training.checkpoint import Checkpoint
from dspp.training.result import FitResult
from dspp.training.rows import Rows
from dspp.training.run import fit
from dspp.training.signals import StopFlag, stop_on_signals

__all__ = ["Budget", "Checkpoint", "Epoch", "FitResult", "Rows", "StopFlag", "fit", "stop_on_signals"]

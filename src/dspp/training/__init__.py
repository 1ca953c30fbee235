"""Fitting models."""

from dspp.training.loop import FitResult, fit

__all__ = ["FitResult", "fit"]

"""Hyper-parameter search for the best validation NLL, with early stopping of weak trials and a time budget.

`space.py` defines the search space, `study.py` stores a search so that it can be resumed, `search.py` runs the trials.
"""

from dspp.tuning.result import TrialRecord, TuneResult
from dspp.tuning.run import tune

__all__ = ["TrialRecord", "TuneResult", "tune"]

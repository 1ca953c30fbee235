"""Hyper-parameter search: the settings with the best validation NLL, weak ones ended early, in the time there is.

`space.py` says what may be searched and what applies to which model, `study.py` keeps a search so that it can go on,
`search.py` runs the trials.
"""

from dspp.tuning.result import TrialRecord, TuneResult
from dspp.tuning.run import tune

__all__ = ["TrialRecord", "TuneResult", "tune"]

"""Ensembles: several models trained from different starts on different parts of the rows, mixed into one distribution.

`members` trains them, `stacking` learns from the rows they held out how to mix them, and `train` puts it together. How
many and how large they are is in `dspp.size`, which rows they hold out in `dspp.folds`.
"""

from dspp.ensemble.train import Ensemble, EnsembleRows, train_ensemble

__all__ = ["Ensemble", "EnsembleRows", "train_ensemble"]

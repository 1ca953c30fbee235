"""Boosted regression trees whose out-of-fold predictions are one more input column of a model.

`fit_trees` fits an ensemble, `cross_fit` the ensembles of all folds; `Trees` predicts and needs NumPy only.
"""

from dspp.trees.crossfit import CrossFitted, assign_inner, cross_fit
from dspp.trees.ensemble import Trees
from dspp.trees.fit import fit_trees

__all__ = ["CrossFitted", "Trees", "assign_inner", "cross_fit", "fit_trees"]

"""Predictive distributions: a finite mixture per row, of one output or of T correlated outputs.

Training scores the same object that users get: a likelihood makes it from the latent mixture of a model, an objective
evaluates its density, users ask for its quantiles, through a `Distribution` that returns arrays. S components, N rows,
T outputs; `*T` is empty for one output. With T outputs, NaN in y means "not observed": only the observed outputs of the
row count.
"""

from dspp.predictive.base import LatentMixture, Mixture, Predictive, RealPredictive
from dspp.predictive.border import Distribution, unwrap
from dspp.predictive.lognormal import LogNormalMixture
from dspp.predictive.multivariate import MultivariateNormalMixture
from dspp.predictive.normal import NormalMixture
from dspp.predictive.student import StudentTMixture

__all__ = [
    "Distribution",
    "LatentMixture",
    "LogNormalMixture",
    "Mixture",
    "MultivariateNormalMixture",
    "NormalMixture",
    "Predictive",
    "RealPredictive",
    "StudentTMixture",
    "unwrap",
]

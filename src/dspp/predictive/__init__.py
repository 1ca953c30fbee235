"""Predictive distributions: a finite mixture for each row, of one output or of T correlated ones.

Training scores the very object that the user is handed: a likelihood makes it from the latent mixture of a model, an
objective asks for its density, the user asks it for quantiles. S components, N rows, T outputs; `*T` is nothing when
there is one output. With T outputs, NaN in y means "not observed": only the observed outputs of that row count.
"""

from dspp.predictive.base import Mixture
from dspp.predictive.latent import LatentMixture
from dspp.predictive.lognormal import LogNormalMixture
from dspp.predictive.multivariate import MultivariateNormalMixture
from dspp.predictive.normal import NormalMixture
from dspp.predictive.protocol import Predictive, RealPredictive
from dspp.predictive.student import StudentTMixture

__all__ = [
    "LatentMixture",
    "LogNormalMixture",
    "Mixture",
    "MultivariateNormalMixture",
    "NormalMixture",
    "Predictive",
    "RealPredictive",
    "StudentTMixture",
]

"""Likelihoods: how the latent mixture of a model becomes a predictive distribution and a training score.

One file each. A new likelihood is a class with `forward` that registers itself in `LIKELIHOODS`; all other code finds
it by name.
"""

from dspp.likelihoods.base import LIKELIHOODS, Likelihood
from dspp.likelihoods.gaussian import Gaussian
from dspp.likelihoods.log_normal import LogNormal
from dspp.likelihoods.student_t import StudentT

__all__ = ["LIKELIHOODS", "Gaussian", "Likelihood", "LogNormal", "StudentT"]

"""Likelihoods: what turns the latent mixture of a model into the user's distribution and into the score of training.

One file for each. A new one is a class with `forward` that registers itself in `LIKELIHOODS`; everything else finds it
by name.
"""

from dspp.likelihoods.base import LIKELIHOODS, Likelihood
from dspp.likelihoods.codec import Codec
from dspp.likelihoods.gaussian import Gaussian
from dspp.likelihoods.log_normal import LogNormal
from dspp.likelihoods.student_t import StudentT

__all__ = ["LIKELIHOODS", "Codec", "Gaussian", "Likelihood", "LogNormal", "StudentT"]

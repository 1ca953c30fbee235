"""The predictive distribution: a mixture of Normals for each row, of one output or of T correlated ones.

Training scores the very object that the user is handed: a head makes it, an objective calls `log_prob`, the
user asks it for quantiles. S components, N rows, T outputs; `*T` is nothing when there is one output.
With T outputs, NaN in y means "not observed": only the observed outputs of that row count.
"""

from dspp.mixture.base import Mixture
from dspp.mixture.multivariate import MultivariateNormalMixture
from dspp.mixture.normal import NormalMixture

AnyMixture = NormalMixture | MultivariateNormalMixture  # what a model predicts; `Mixture` is what the two share

__all__ = ["AnyMixture", "Mixture", "MultivariateNormalMixture", "NormalMixture"]

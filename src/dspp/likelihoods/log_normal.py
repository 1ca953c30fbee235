"""Log-normal targets: positive, with a spread that grows with their size."""

from typing import ClassVar

from dspp.likelihoods.base import LIKELIHOODS, check_single
from dspp.likelihoods.gaussian import Gaussian


@LIKELIHOODS.register("log-normal")
class LogNormal(Gaussian):
    """A Gaussian of log y, for one positive output: the outcome takes the logarithm and reports everything in y.

    Example:
        >>> import numpy as np
        >>> from dspp import PPGPRRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = PPGPRRegressor(likelihood="log-normal", epochs=2, inducing=8).fit(X, np.exp(X[:, 0]))
        >>> bool((model.predict_quantiles(X, [0.001]) > 0.0).all())
        True
    """

    outcome: ClassVar[str] = "positive"

    @classmethod
    def num_latents(cls, num_outputs: int) -> int:
        """Return 1; more outputs are refused."""
        return check_single("log-normal", num_outputs)

"""Log-normal targets: positive, with a spread that grows with their size."""

from typing import ClassVar

from dspp.likelihoods.base import LIKELIHOODS, check_single
from dspp.likelihoods.gaussian import Gaussian


@LIKELIHOODS.register("log-normal")
class LogNormal(Gaussian):
    """A Gaussian of log y, for one positive output: the outcome takes the logarithm and reports everything in y."""

    outcome: ClassVar[str] = "positive"

    @classmethod
    def num_latents(cls, num_outputs: int) -> int:
        """Return 1; more outputs are refused."""
        return check_single("log-normal", num_outputs)

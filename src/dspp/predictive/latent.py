"""The latent mixture: what the layers and the rule of a model pass to its likelihood."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LatentMixture:
    """q(f_n) = Σ_s ω_s Π_l N(f_nl | μ_snl, v_snl): L latent functions at N rows.

    Attributes:
        log_weights: log ω, with Σ_s ω_s = 1.
        mean: μ, the mean of each latent function.
        var: v, its variance.

    Example:
        >>> import torch
        >>> from dspp.predictive import LatentMixture
        >>> latent = LatentMixture(torch.zeros(2), torch.zeros(2, 3, 1), torch.ones(2, 3, 1))  # S = 2, N = 3, L = 1
        >>> latent.weights.tolist()
        [0.5, 0.5]
    """

    log_weights: Float[Tensor, " S"]
    mean: Float[Tensor, "S N L"]
    var: Float[Tensor, "S N L"]

    @property
    def weights(self) -> Float[Tensor, " S"]:
        """ω, renormalised in case the logarithms were rounded to a shorter dtype."""
        return torch.softmax(self.log_weights, dim=0)

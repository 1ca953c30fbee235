"""A mixture of Normals of which only intervals may be observed: in the role of a file of `likelihoods/`.

A row says that y lies in [a, b]; for a mixture, log p = log Σ_s ω_s [Φ((b − μ_s)/σ_s) − Φ((a − μ_s)/σ_s)], and the log
density where a = b.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from dspp.likelihoods import LIKELIHOODS, Gaussian
from dspp.predictive import NormalMixture

# Width in standard deviations up to which a mass is the density times the width, to second order.
NARROW = 0.05
CLOSED, OPEN_ABOVE, OPEN_BELOW = 0.0, 1.0, -1.0


@dataclass(frozen=True, eq=False, repr=False)
class IntervalMixture(NormalMixture):
    """The same mixture, which also scores intervals: rows of (a, b), NaN where open, or of (point, width, side)."""

    def log_prob(self, y: Any) -> Tensor:
        y = torch.as_tensor(y).to(self.component_mean)
        if y.ndim == 1:
            return super().log_prob(y)
        point, width, side = y.unbind(1) if y.shape[1] == 3 else encode_ends(*y.unbind(1))
        std = self.component_var.sqrt()
        log_mass = interval_log_mass((point - self.component_mean) / std, width / std, side)
        exact = (width == 0.0) & (side == CLOSED)
        each = torch.where(exact, self.component_log_prob(point), log_mass)
        return torch.logsumexp(self._log_weights_by_row + each, dim=0)

    def affine(self, shift: Any, scale: Any) -> "IntervalMixture":
        return IntervalMixture(**vars(super().affine(shift, scale)))


def encode_ends(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the middle of each interval or its known end, its width, and which end is open."""
    side = torch.where(b.isnan(), OPEN_ABOVE, torch.where(a.isnan(), OPEN_BELOW, CLOSED)).to(a)
    point = torch.where(side == CLOSED, 0.5 * (a + b), torch.where(side == OPEN_ABOVE, a, b))
    return point, torch.where(side == CLOSED, b - a, 0.0), side


def interval_log_mass(z: Tensor, w: Tensor, side: Tensor) -> Tensor:
    """Return log P of standard Normal intervals of middle (or end) z and width w; finite in both tails."""
    tail = torch.special.log_ndtr(torch.where(side == OPEN_ABOVE, -z, z))
    m = -z.abs()  # by symmetry the middle lies in the lower tail
    low, high = (torch.special.log_ndtr(m + sign * 0.5 * w.clamp_min(NARROW)) for sign in (-1.0, 1.0))
    wide = high + torch.log(-torch.expm1(low - high))
    curvature = w.clamp_max(NARROW).square() * (m.square() - 1.0) / 24.0  # Φ(m + w/2) − Φ(m − w/2) = φ(m) w (1 + …)
    log_w = torch.where(w > 0.0, w, 1.0).log()
    narrow = -0.5 * (m.square() + math.log(2.0 * math.pi)) + log_w + torch.log1p(curvature.clamp(-0.5, 0.5))
    return torch.where(side == CLOSED, torch.where(w > NARROW, wide, narrow), tail)


@LIKELIHOODS.register("interval")
class IntervalGaussian(Gaussian):
    """Gaussian noise around a latent function of which intervals are observed."""

    outcome: ClassVar[str] = "interval"
    closed_form: ClassVar[bool] = False

    def forward(self, latent: Any) -> IntervalMixture:
        return IntervalMixture(**vars(super().forward(latent)))

    @classmethod
    def from_moments(cls, log_weights: Tensor, mean: Tensor, var: Tensor) -> IntervalMixture:
        return IntervalMixture(**vars(super().from_moments(log_weights, mean, var)))

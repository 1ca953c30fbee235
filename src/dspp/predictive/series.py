"""The CRPS of mixtures of many Normals: some twenty frequencies of a Fourier series in place of S² pairs of components.

For |x| <= L, with odd k and t = πk/L, |x| = L/2 − (4L/π²) Σ_k cos(t x)/k². So with φ(t) = E exp(itX),

    ½ E|X − X'| = L/4 − (2L/π²) Σ_k |φ(t)|²/k²,    φ(t) = Σ_s ω_s exp(itμ_s − ½t²σ_s²).

Errors. L covers differences to `_REACH` standard deviations of every pair; what lies beyond adds less than 1e-11 of the
largest one. For the smallest σ, |φ(t)| <= exp(−½t²σ²), so frequencies up to t = `_DECAY`/σ leave less than 1e-11 L.
A few components that are wide or far would make L large, and a few narrow ones would need many frequencies. The former
are summed pair by pair with all others, the latter among themselves, if that costs less.

Shapes: S components, n rows of a block, K frequencies.
"""

import math

import numpy as np
import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from dspp.predictive import maths

_MIN_COMPONENTS = 32  # for fewer, pairs are as fast
_REACH, _DECAY = 6.5, 6.6
_PAIR, _START, _FREQUENCY = 9.0, 14.0, 1.2  # measured nanoseconds: a pair; of a component, the start and a frequency


def crps(
    weights: Float[Tensor, " S *n"], y: Float[Tensor, " n"], mean: Float[Tensor, "S n"], var: Float[Tensor, "S n"]
) -> Float[Tensor, " n"]:
    """Return CRPS(F, y) = E|X − y| − ½ E|X − X'|, by all pairs for few components or if gradients are needed."""
    graph = torch.is_grad_enabled() and any(part.requires_grad for part in (weights, y, mean, var))
    split = None if graph or len(mean) < _MIN_COMPONENTS or not len(y) else _split(weights, mean, var.sqrt())
    if split is None:
        return maths.mixture_crps(weights, y, mean, var)
    score = maths.mixture_distance(weights, y, mean, var)
    order, wide, narrow = split
    weights, mean, var = weights[order], mean[order], var[order]
    score -= maths.half_spread(weights, mean, var, wide)
    weights, mean, var = weights[wide:], mean[wide:], var[wide:]
    score -= maths.half_spread(weights[:narrow], mean[:narrow], var[:narrow])
    return score - _half_spread(weights if weights.ndim == 2 else weights[:, None], mean, var.sqrt(), narrow)


def _split(
    weights: Float[Tensor, " S *n"], mean: Float[Tensor, "S n"], std: Float[Tensor, "S n"]
) -> tuple[Int[Tensor, " S"], int, int] | None:
    """Choose, at the least cost, what is not left to the series; None if all pairs cost less.

    Returns:
        The order of the components: first wide or far ones, then narrow ones, then the others.
        The number of wide or far ones.
        The number of narrow ones.
    """
    S, centre = len(mean), maths.weighted_sum(weights, mean)
    reach = ((mean - centre).abs() + math.sqrt(0.5) * _REACH * std).amax(1).cpu().numpy()  # of the block
    thin = std.amin(1).cpu().numpy()
    by_reach, narrow = np.argsort(-reach), np.arange(S // 8)
    least, found = 0.5 * _PAIR * S**2, None
    for wide in narrow.tolist():
        rest = by_reach[wide:]
        count = (
            reach[rest[0]] * np.where(narrow, _DECAY, math.sqrt(0.5) * _DECAY) / math.pi / np.sort(thin[rest])[narrow]
        )
        cost = (S - wide) * (_START + _FREQUENCY * (1.0 + count)) + _PAIR * (wide * S + 0.5 * narrow**2)
        best = int(np.argmin(cost))
        if cost[best] < least:  # false for NaN
            least, found = float(cost[best]), (wide, best)
    if found is None:
        return None
    rest = by_reach[found[0] :]
    order = np.concatenate([by_reach[: found[0]], rest[np.argsort(thin[rest])]])
    return torch.from_numpy(order).to(mean.device), *found


def _half_spread(
    weights: Float[Tensor, "S _"], mean: Float[Tensor, "S n"], std: Float[Tensor, "S n"], narrow: int
) -> Float[Tensor, " n"]:
    """Return Σ ω_r ω_s ½ E|X_r − X_s| over all pairs but those of two of the first `narrow` components."""
    low, high = mean.aminmax(dim=0)
    L = (high - low) + math.sqrt(2.0) * _REACH * std.amax(0)
    last = (_DECAY if narrow else math.sqrt(0.5) * _DECAY) / std[narrow:].amin(
        0
    )  # |φ|² without narrow ones: exp(−t²σ²)
    step = 2.0 * math.pi / L
    count = int((last / step).amax()) + 1
    power, mass = _transform(weights, mean, std, step, count).abs().square(), weights.sum(0).square()  # mass: |φ(0)|²
    if narrow:
        few = weights[:narrow], mean[:narrow], std[:narrow]
        power, mass = power - _transform(*few, step, count).abs().square(), mass - few[0].sum(0).square()
    k = torch.arange(1, 2 * count, 2, dtype=mean.dtype, device=mean.device)
    return L * (0.25 * mass - (2.0 / math.pi**2) * (k.pow(-2) @ power))


def _transform(
    weights: Float[Tensor, "S _"],
    mean: Float[Tensor, "S n"],
    std: Float[Tensor, "S n"],
    step: Float[Tensor, " n"],
    count: int,
) -> Complex[Tensor, "K n"]:
    """Return φ at (j + ½)Δ: from one to the next, terms grow by exp(iμΔ − (j + 1)σ²Δ²), which is a product too."""
    angle, decay = 0.5 * mean * step, -(std * step).square()
    turn = torch.complex(angle.cos(), angle.sin())
    slower = torch.complex(decay.exp(), torch.zeros_like(decay))  # a complex factor is twice as fast as a real one
    term = weights * torch.exp(0.125 * decay) * turn
    factor = turn.square_().mul_(slower)
    found = [term.sum(0)]
    for _ in range(count - 1):
        found.append(term.mul_(factor).sum(0))
        factor.mul_(slower)
    return torch.stack(found)

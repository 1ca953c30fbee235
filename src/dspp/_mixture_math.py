"""The maths of Normal mixtures as pure functions of tensors: density, cdf, quantile, CRPS, small Cholesky.

Shapes: S components, N rows, T outputs, K values asked for in each row, B = S·N matrices in a stack.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.special import ndtri

from dspp.errors import NumericalError

LOG_2PI = math.log(2.0 * math.pi)
_CHUNK_ELEMENTS = 2**20  # the largest temporary, in numbers: 8 MB of float64 keeps memory flat and the cache warm
_STACK_CHUNK = 2**15  # T x T matrices factorised at a time, so that predicting many rows stays in memory
_NEWTON_STEPS, _ALL_STEPS = 40, 160  # 120 halvings take any bracket down to neighbouring floats


def normal_log_prob(y: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """log N(y | μ, v) elementwise; z is formed before its square, so large units do not overflow."""
    z = (y - mean) * var.rsqrt()
    return -0.5 * (z * z + var.log() + LOG_2PI)


def expected_normal_log_prob(y: Tensor, mean: Tensor, latent_var: Tensor, noise_var: Tensor) -> Tensor:
    """E[log N(y | f, σ²)] over f ~ N(μ, v) = log N(y | μ, σ²) − ½ v/σ², elementwise."""
    return normal_log_prob(y, mean, noise_var) - 0.5 * latent_var / noise_var


def over_row_chunks(function: Callable[..., Tensor], elements_per_row: int, *by_row: Tensor) -> Tensor:
    """Apply `function` to blocks of rows (the last axis of every tensor) and join the blocks."""
    step = max(1, _CHUNK_ELEMENTS // max(1, elements_per_row))
    blocks = zip(*(tensor.split(step, dim=-1) for tensor in by_row), strict=True)
    return torch.cat([function(*block) for block in blocks], dim=-1)


def mixture_cdf(
    weights: Float[Tensor, " S"], y: Float[Tensor, "*K N"], mean: Float[Tensor, "S N"], std: Float[Tensor, "S N"]
) -> Float[Tensor, "*K N"]:
    """F(y) = Σ_s ω_s Φ((y − μ_s) / σ_s)."""
    return weights @ _normal_cdf((y.unsqueeze(-2) - mean) / std)


def mixture_quantile(
    weights: Float[Tensor, " S"], p: Float[Tensor, "K 1"], mean: Float[Tensor, "S N"], std: Float[Tensor, "S N"]
) -> Float[Tensor, "K N"]:
    """Solve F(x) = p by Newton's method inside a bracket that every step shrinks.

    The equation solved is Φ⁻¹(F(x)) = Φ⁻¹(p), which is a straight line in x for one Normal and nearly so in the
    tails of a mixture. A step that leaves the bracket, or does not halve the gap, is replaced by a bisection.
    """
    z, eps = ndtri(p), torch.finfo(p.dtype).eps
    tolerance = torch.maximum(1e-11 * torch.minimum(p, 1.0 - p), 2.0 * eps * p)  # relative in either tail
    component_quantile = mean + std * z.unsqueeze(-1)  # (K, S, N)
    low, high = component_quantile.aminmax(dim=1)  # below the smallest no component has passed p, so neither has F
    x, last_gap = weights @ component_quantile, torch.full_like(low, math.inf)
    for step in range(_ALL_STEPS):
        probability = mixture_cdf(weights, x, mean, std)
        too_low = probability < p
        low, high = torch.where(too_low, x, low), torch.where(too_low, high, x)
        done = (probability - p).abs() <= tolerance
        if bool((done | (torch.nextafter(low, high) >= high)).all()):
            break
        reached = ndtri(probability)
        # dΦ⁻¹(F)/dx = f(x) / φ(Φ⁻¹(F))
        slope = weights @ (_phi((x.unsqueeze(-2) - mean) / std) / std) / _phi(reached)
        newton, gap = x - (reached - z) / slope, (reached - z).abs()
        trusted = (newton > low) & (newton < high) & (gap <= 0.5 * last_gap) & (step < _NEWTON_STEPS)
        x = torch.where(done, x, torch.where(trusted, newton, low + 0.5 * (high - low)))
        last_gap = gap
    return x


def _normal_cdf(z: Tensor) -> Tensor:
    """Return Φ(z); `torch.special.ndtr` is no use below: it rounds Φ(−10) to 0."""
    return 0.5 * torch.erfc(-z * math.sqrt(0.5))


def _phi(z: Tensor) -> Tensor:
    """Return the standard Normal density φ(z)."""
    return torch.exp(-0.5 * (z * z + LOG_2PI))


def mean_abs(mean: Tensor, std: Tensor) -> Tensor:
    """E|X| for X ~ N(μ, σ²): μ (2Φ(μ/σ) − 1) + 2σ φ(μ/σ)."""
    z = mean / std
    return mean * torch.erf(z * math.sqrt(0.5)) + 2.0 * std * _phi(z)


def mixture_crps(
    weights: Float[Tensor, " S"], y: Float[Tensor, " N"], mean: Float[Tensor, "S N"], var: Float[Tensor, "S N"]
) -> Float[Tensor, " N"]:
    """CRPS(F, y) = E|X − y| − ½ E|X − X'| with X, X' independent draws from F."""
    score = weights @ mean_abs(y - mean, var.sqrt())
    half_spread = weights.square() @ (var / math.pi).sqrt()  # X, X' from one component: E|X − X'| = 2σ/√π
    for s in range(1, len(weights)):  # one component against those before it: S N numbers at a time, never S² N
        between = mean_abs(mean[:s] - mean[s], (var[:s] + var[s]).sqrt())
        half_spread = half_spread + weights[s] * (weights[:s] @ between)
    return score - half_spread


def stacked_cholesky(stack: Float[Tensor, "T T B"]) -> Float[Tensor, "T T B"]:
    """Lower triangles L with L Lᵀ = stack[:, :, b], all b at once.

    With T of a few and B of many thousands, LAPACK is called B times for almost no work; here T steps each sweep the
    whole stack, because b is the last axis.

    Raises:
        NumericalError: A matrix is not positive definite. No jitter is added.
    """
    L = stack.clone()
    for t in range(len(L)):
        L[t:, t] *= L[t, t].rsqrt()
        L[t, t + 1 :] = 0.0
        L[t + 1 :, t + 1 :] -= L[t + 1 :, None, t] * L[None, t + 1 :, t]
    bad = ~(torch.diagonal(L) > 0.0)  # (B, T); NaN, from the root of a pivot <= 0, counts as bad
    if bool(bad.any()):
        b, t = (int(i) for i in bad.nonzero()[0])
        raise NumericalError(
            f"{int(bad.any(1).sum())} of {len(bad)} component covariances are not positive definite or not finite "
            f"(the first is matrix {b}, at output {t}); raise the noise variance or use float64"
        )
    return L


class _StackedNormalLogProb(torch.autograd.Function):
    """log N(r | 0, Σ) for a stack of (Σ, r), with the gradient in closed form.

    With α = Σ⁻¹ r: ∂/∂r = −α and ∂/∂Σ = ½ (α αᵀ − Σ⁻¹). Autograd through the factorisation costs five times as much.
    """

    @staticmethod
    def forward(ctx: Any, stack: Float[Tensor, "T T B"], residual: Float[Tensor, "T B"]) -> Float[Tensor, " B"]:
        L = stacked_cholesky(stack)
        T = len(L)
        identity = torch.eye(T, dtype=L.dtype, device=L.device).unsqueeze(-1).expand_as(L)
        solved = torch.cat([residual.unsqueeze(1), identity], dim=1)  # becomes L⁻¹ [r, I], row by row
        for t in range(T):  # row t ends at column t + 1: L⁻¹ is lower triangular too
            solved[t, : t + 2] /= L[t, t]
            solved[t + 1 :, : t + 2] -= L[t + 1 :, None, t] * solved[t, : t + 2]
        z, L_inverse = solved[:, 0], solved[:, 1:]
        ctx.save_for_backward(z, L_inverse)
        return -0.5 * (z.square().sum(0) + T * LOG_2PI) - torch.diagonal(L).log().sum(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Float[Tensor, " B"]) -> tuple[Tensor, Tensor]:
        z, L_inverse = ctx.saved_tensors
        alpha = (L_inverse * z.unsqueeze(1)).sum(0)  # α = L⁻ᵀ z
        by_stack = alpha.unsqueeze(1) * alpha
        for t, row in enumerate(L_inverse, start=1):  # Σ⁻¹ = Σ_t ℓ_t ℓ_tᵀ over the rows ℓ_t of L⁻¹
            by_stack[:t, :t] -= row[:t, None] * row[:t]
        return 0.5 * grads[0] * by_stack, -grads[0] * alpha


def multivariate_normal_log_prob(
    y: Float[Tensor, "N T"], mean: Float[Tensor, "S N T"], cov: Float[Tensor, "S N T T"]
) -> Float[Tensor, "S N"]:
    """log N(y | μ, Σ), computed in float64: 1e12 from a tail and a log-determinant do not share a float32."""
    T = y.shape[-1]
    residual = (y - mean).double().reshape(-1, T).T.contiguous()  # (T, B)
    stack = cov.double().reshape(-1, T, T).movedim(0, -1).contiguous()  # (T, T, B)
    blocks = zip(stack.split(_STACK_CHUNK, -1), residual.split(_STACK_CHUNK, -1), strict=True)
    log_prob = torch.cat([_StackedNormalLogProb.apply(*block) for block in blocks])
    return log_prob.reshape(mean.shape[:-1]).to(mean.dtype)

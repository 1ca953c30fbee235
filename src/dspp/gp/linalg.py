"""The only Cholesky factorisation of kernel matrices, and its gradient.

Everything is written in terms of B = L⁻¹, where K_ZZ + jitter = L Lᵀ: a product with B is twice as fast as a triangular
solve and, unlike K⁻¹, B preserves the digits of the variance in float32.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dspp.derivatives import first_only
from dspp.errors import NumericalError
from dspp.gp.native import addresses, library, load
from dspp.gp.threads import num_threads

JITTER_LADDER = (1.0, 10.0, 100.0, 1000.0, 10_000.0)
MIN_POINTS = 12  # of a compiled product
FULL, LOWER, UPPER = range(3)  # shapes of a matrix, as in algebra.cpp


@dataclass(frozen=True)
class Whitening:
    """B = L⁻¹ for W kernel matrices, and the jitter it needed."""

    inverse_root: Float[Tensor, "W M M"]  # float64, lower triangular
    jitter: Float[Tensor, " W"]  # added to each diagonal of the unit kernel
    jitter_increases: int  # increases above the configured jitter, summed over the W matrices


def factorise(K: Float[Tensor, "W M M"], jitter: float, where: str, compiled: bool = False) -> Whitening:
    """Factorise K + jitter·1 in float64, with more jitter (counted) for the matrices that need it.

    The last bits of compiled code differ from torch's. Errors name the layer, `where`.

    Raises:
        NumericalError: A matrix holds NaN or inf, or is not positive definite even with the largest jitter.
    """
    K = K.detach().to(torch.float64)
    solve = _compiled_inverse_root if compiled else _inverse_root
    used = torch.full(K.shape[:1], jitter, dtype=torch.float64, device=K.device)
    B, failed = solve(K, used)
    jitter_increases = 0
    for rung in JITTER_LADDER[1:]:
        again = failed > 0
        if not bool(again.any()):
            break
        jitter_increases += int(again.sum())
        used = torch.where(again, max(jitter, 1e-10) * rung, used)
        B, failed = solve(K, used)
    if bool((failed > 0).any()) or not bool(torch.isfinite(B.diagonal(dim1=-2, dim2=-1).sum())):
        raise NumericalError(_explain(K, where, float(used.max())))
    return Whitening(B, used, jitter_increases)


def _inverse_root(K: Float[Tensor, "W M M"], jitter: Float[Tensor, " W"]) -> tuple[Tensor, Tensor]:
    """Return L⁻¹, where K + jitter = L Lᵀ, and which matrices (W,) have none."""
    L, failed = torch.linalg.cholesky_ex(_with_diagonal(K, jitter))
    return (_triangular_inverse(L) if not bool(failed.any()) else L), failed


def _compiled_inverse_root(K: Float[Tensor, "W M M"], jitter: Float[Tensor, " W"]) -> tuple[Tensor, Tensor]:
    """As `_inverse_root`, by compiled code."""
    W, M, _ = K.shape
    K, B, failed = K.contiguous(), torch.empty_like(K), torch.empty(W, dtype=torch.int32)
    scratch = K.new_empty(W, library().root_numbers(M))
    library().inverse_root(W, M, num_threads(), *addresses(K, jitter, scratch, B, failed))
    return B, failed


def negative_log_normal(K: Float[Tensor, "n n"], y: Float[Tensor, " n"]) -> tuple[float, Float[Tensor, "n n"]] | None:
    """Return −log N(y | 0, K), without its constant, and its gradient ½ (K⁻¹ − α αᵀ) with α = K⁻¹ y.

    None if K is not positive definite.
    """
    L, failed = torch.linalg.cholesky_ex(K)
    if bool(failed) or not bool(torch.isfinite(L).all()):
        return None
    alpha = torch.cholesky_solve(y.unsqueeze(-1), L)
    value = 0.5 * float(y @ alpha[:, 0]) + float(L.diagonal().log().sum())
    return value, 0.5 * (torch.cholesky_inverse(L) - alpha @ alpha.mT)


def transposed_root(A: Float[Tensor, "W M M"], jitter: float) -> Float[Tensor, "W M M"] | None:
    """Return the lower triangular R with Rᵀ R = A + jitter, or None if one of the matrices is not positive definite."""
    factor, failed = torch.linalg.cholesky_ex(_with_diagonal(A.flip(-1, -2), A.new_full(A.shape[:1], jitter)))
    return None if bool(failed.any()) else factor.flip(-1, -2).mT


def lower_root(S: Float[Tensor, "M M"]) -> Float[Tensor, "M M"]:
    """Return the lower triangular root of a covariance, raised by 1e-12 against rounding."""
    root: Tensor = torch.linalg.cholesky(_with_diagonal(S[None], S.new_full((1,), 1e-12)))[0]
    return root


def _with_diagonal(K: Tensor, jitter: Tensor) -> Tensor:
    K = K.clone()
    K.diagonal(dim1=-2, dim2=-1).add_(jitter[:, None])
    return K


def _triangular_inverse(L: Float[Tensor, "W M M"], leaf: int = 160) -> Float[Tensor, "W M M"]:
    """Compute L⁻¹ by halves: [[L₁, 0], [C, L₂]]⁻¹ = [[L₁⁻¹, 0], [−L₂⁻¹ C L₁⁻¹, L₂⁻¹]]; mostly products, hence fast."""
    M = L.shape[-1]
    if leaf >= M:
        eye = torch.eye(M, dtype=L.dtype, device=L.device)
        inverse: Tensor = torch.linalg.solve_triangular(L, eye.expand_as(L), upper=False)
        return inverse
    h = M // 2
    top, bottom = _triangular_inverse(L[:, :h, :h], leaf), _triangular_inverse(L[:, h:, h:], leaf)
    B = torch.zeros_like(L)
    B[:, :h, :h], B[:, h:, h:] = top, bottom
    B[:, h:, :h] = -(bottom @ (L[:, h:, :h] @ top))
    return B


def _explain(K: Tensor, where: str, jitter: float) -> str:
    if not bool(torch.isfinite(K).all()):
        return (
            f"{where}: the kernel matrix of the inducing points holds NaN or inf; the parameters have diverged or "
            "the inputs are too large: standardise the inputs, or lower the learning rate"
        )
    return (
        f"{where}: the kernel matrix of the inducing points is not positive definite, even with jitter {jitter:.0e}; "
        "use fewer inducing points, a larger `jitter`, or shorter length scales"
    )


def compiles_products(like: Tensor) -> bool:
    """Return whether there is compiled code for the products of such matrices."""
    cpu = like.device.type == "cpu" and like.dtype == torch.float32
    return cpu and like.shape[-1] >= MIN_POINTS and load() is not None


def transposed_product(
    X: Float[Tensor, "W M M"], Y: Float[Tensor, "W M M"], x: int = FULL, y: int = FULL, lower: bool = False
) -> Float[Tensor, "W M M"]:
    """Return Xᵀ Y, skipping the zeros of triangular factors; if `lower`, only the lower triangle is valid."""
    if not compiles_products(X):
        return X.mT @ Y
    W, M, _ = X.shape
    X, Y, out = X.contiguous(), Y.contiguous(), X.new_empty(W, M, M)
    library().transposed_product(W, M, num_threads(), x, y, lower, *addresses(X, Y, out))
    return out


def kernel_gradient(B: Float[Tensor, "W M M"], dAAt: Float[Tensor, "W M M"]) -> Float[Tensor, "W M M"]:
    """Return dLoss/dK_ZZ of a loss that depends on A = B K_Zx, from (dLoss/dA) Aᵀ alone.

    With G = dLoss/dB = (dLoss/dA) K_Zxᵀ, dLoss/dK_ZZ = −sym(Bᵀ Φ(G Bᵀ) B), where Φ keeps the lower triangle and halves
    the diagonal; and G Bᵀ = (dLoss/dA) Aᵀ, so neither K_Zx nor G is needed.
    """
    P = dAAt.tril()
    P.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    if compiles_products(P):
        PB = transposed_product(P.mT, B, UPPER, LOWER, lower=True)
        dK = transposed_product(B, PB, LOWER, LOWER)
        return (dK + dK.mT).mul_(-0.5)
    h = P.shape[-1] // 2  # P, B and P B are lower triangular: by halves, 9 of 16 quarter products are non-zero
    dK = torch.empty_like(P)
    right = P[:, h:, h:] @ B[:, h:, h:]
    dK[:, :, h:] = B[:, h:].mT @ right
    top, bottom = P[:, :h, :h] @ B[:, :h, :h], P[:, h:] @ B[:, :, :h]
    dK[:, :h, :h] = (B[:, :h, :h].mT @ top).add_(B[:, h:, :h].mT @ bottom)
    dK[:, h:, :h] = B[:, h:, h:].mT @ bottom
    return (dK + dK.mT).mul_(-0.5)


def matrix_gradients(RR: Tensor, B: Tensor, m: Tensor, C: Tensor, S1: Tensor, dm: Tensor) -> tuple[Tensor, Tensor]:
    """Return dK_ZZ and dC from R, of which only the lower triangle is needed if S is diagonal."""
    rank_one = m.unsqueeze(-1) * dm.unsqueeze(-2)  # m (A gμ)ᵀ
    if C.dim() == 2:
        dC = C * RR.diagonal(dim1=-2, dim2=-1)
        return kernel_gradient(B, rank_one.add_(S1.unsqueeze(-1) * RR)), dC
    dC = transposed_product(RR, C.tril(), y=LOWER, lower=True).tril()  # dC = 2 dS C = R C
    return kernel_gradient(B, rank_one.add_(transposed_product(S1, RR, lower=True))), dC


class _Whiten(torch.autograd.Function):
    """v = B w for vectors w, differentiable in w and in the K_ZZ behind B."""

    @staticmethod
    def forward(ctx, w, K, B):  # type: ignore[no-untyped-def]
        v = (B @ w.unsqueeze(-1)).squeeze(-1)
        ctx.save_for_backward(B, v)
        return v

    @staticmethod
    @first_only
    def backward(ctx, dv):  # type: ignore[no-untyped-def]
        B, v = ctx.saved_tensors
        dK = kernel_gradient(B, dv.unsqueeze(-1) * v.unsqueeze(-2))
        return (B.mT @ dv.unsqueeze(-1)).squeeze(-1), dK, None


def whiten(w: Float[Tensor, "W M"], K: Float[Tensor, "W M M"], B: Float[Tensor, "W M M"]) -> Float[Tensor, "W M"]:
    """Return L⁻¹ w; `K` is needed only for its gradient, `B` = L⁻¹ comes from `factorise`."""
    return _Whiten.apply(w, K, B)  # type: ignore[no-any-return, no-untyped-call]

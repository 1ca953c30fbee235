"""The hot path: mean and variance of q(f(x)) for W GPs at R rows. Nearly all time is spent here.

In the whitened basis (NOTATION.md), for a unit-variance kernel with nugget j, A = L⁻¹ k(Z, x), q(v) = N(m, S):

    mean = Aᵀ m                          paper eq. 7
    var  = 1 + j + Aᵀ (S − 1) A          paper eq. 8

`conditional` has a hand-written backward pass: with gμ, gv the gradients of the loss with respect to mean and var,
H = (S − 1) A and R = A diag(2 gv) Aᵀ,

    dA   = m gμᵀ + 2 H diag(gv)          dk(Z, x) = Bᵀ dA              B = L⁻¹
    dm   = A gμ                          dC       = R C                S = C Cᵀ
    dA Aᵀ = m (A gμ)ᵀ + (S − 1) R        dK_ZZ from it: `linalg.kernel_gradient`

These are three M×M×R products, each with a triangular matrix or result, whose zero halves are skipped block by block.
Points are rows here (A is stored as Aᵀ, shape (R, M)), so that a chunk of rows is contiguous and stays in cache.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from dspp.derivatives import first_only
from dspp.gp.compiled import Packed, compiled_conditional
from dspp.gp.kernels import KernelKind, augment, available
from dspp.gp.linalg import UPPER, matrix_gradients, transposed_product, transposed_root
from dspp.gp.workspace import Lease

TILE = 16  # in whole registers, sums and powers round alike wherever a number is
CHUNK_ROWS = 63 * TILE  # rows of k(x, Z) handled at a time: 1.2 MB for M = 300 in float32
ROUNDING = 32  # times ε: eigenvalues of S that are above 1 by less count as 1, and a variance changes by no more
BLOCKS = 3  # a triangular matrix is cut into; a third of each product is skipped

Moments = tuple[Float[Tensor, "W R"], Float[Tensor, "W R"]]


def conditional(
    kind: type[KernelKind],
    x: Float[Tensor, "W R D"],  # rows, scaled by the length scales
    z: Float[Tensor, "W M D"],  # inducing points, scaled likewise
    K: Float[Tensor, "W M M"],  # the unit kernel matrix of z, only for its gradient
    B: Float[Tensor, "W M M"],  # L⁻¹ of K + jitter, in the dtype of x
    m: Float[Tensor, "W M"],  # whitened mean of q(u)
    C: Float[Tensor, "W M *M"],  # root of its whitened covariance S = C Cᵀ: the diagonal, or lower triangular
    jitter: Float[Tensor, " W"],  # the nugget j of each GP
) -> Moments:
    """Return mean and variance of W unit-variance GPs at R rows."""
    S1 = covariance_excess(C)
    centre = z.detach().mean(-2, keepdim=True)  # does not change distances, but saves digits in float32
    function = compiled_conditional if available(kind, z) else _Conditional.apply
    mean, update = function(x - centre, z - centre, K, B, m, C, S1, kind)
    return mean, _variance(update, jitter)


@dataclass(frozen=True)
class Frozen:
    """What predictions need of the inducing points: B, m and E with mean = (B k)ᵀ m and var = 1 + j + (B k)ᵀ E (B k).

    For a diagonal S these are L⁻¹, the whitened mean and S − 1; for a full one see `_diagonalise`.
    M is padded to whole registers with points of zero weight, so that a row's result does not depend on the rows
    predicted together with it. If there is compiled code, `packed` is its copy.
    """

    kind: type[KernelKind]
    z: Float[Tensor, "W M D"]  # scaled
    B: Float[Tensor, "W O M"]
    m: Float[Tensor, "W O"]
    excess: Float[Tensor, "W O"]  # E
    jitter: Float[Tensor, " W"]
    triangular: bool  # whether the first M rows of B are
    packed: Packed | None

    @classmethod
    def make(cls, kind: type[KernelKind], z: Tensor, B: Tensor, m: Tensor, C: Tensor, jitter: Tensor) -> "Frozen":
        """Freeze the arguments of `conditional`."""
        more, E, triangular = -z.shape[-2] % TILE, covariance_excess(C), True
        z = torch.cat([z, z[:, :1].expand(-1, more, -1)], dim=-2)
        B, m, E = pad(B, (0, more, 0, more)), pad(m, (0, more)), pad(E, (0, more) * (E.dim() - 1))
        if C.dim() == 3:
            B, m, E, triangular = _diagonalise(B, m, E)
        rest = -B.shape[-2] % TILE
        B, m, E = pad(B, (0, 0, 0, rest)), pad(m, (0, rest)), pad(E, (0, rest))
        packed = Packed.make(kind, z, B, m, E, triangular) if available(kind, z) else None
        return cls(kind, z, B, m, E, jitter, triangular, packed)

    def moments(self, x: Float[Tensor, "W R D"]) -> Moments:
        """Return mean and variance, as `conditional` does."""
        if self.packed is not None and self.packed.usable:
            mean, update, _ = self.packed.moments(x)
            return mean, _variance(update, self.jitter)
        centre = self.z.mean(-2, keepdim=True)
        xa, za = augment(x - centre, self.z - centre)
        mean, update, _ = _moments(self.kind, xa, za, self.B, self.m, self.excess, False, self.triangular)
        return mean, _variance(update, self.jitter)


def _diagonalise(
    B: Float[Tensor, "W M M"], m: Float[Tensor, "W M"], S1: Float[Tensor, "W M M"]
) -> tuple[Float[Tensor, "W O M"], Float[Tensor, "W O"], Float[Tensor, "W O"], bool]:
    """Return B, m and E of `Frozen` for a full S − 1 = U E Uᵀ, and whether the first M rows of B are triangular.

    Training makes most of E negative. That part of Bᵀ (S − 1) B is −Tᵀ T, where T, from a QR decomposition of
    |E|^½ Uᵀ B, is lower triangular. T, a row per positive eigenvalue and one for the mean have about half as many
    numbers as Uᵀ B, which is used if more than a third of E is positive. If none is, as in a GP in closed form, a
    Cholesky factorisation of 1 − S, from the last row to the first, gives T in a fraction of the time.
    """
    dtype, (W, M), least = S1.dtype, m.shape, ROUNDING * torch.finfo(S1.dtype).eps
    B, m, S1 = B.to(torch.float64), m.to(torch.float64), S1.to(torch.float64)
    root = transposed_root(-S1, torch.finfo(dtype).eps)
    if root is not None:
        B = torch.cat([root @ B, m.unsqueeze(-2) @ B], dim=-2)
        E = torch.cat([m.new_full((W, M), -1.0), m.new_zeros(W, 1)], dim=-1)
        m = torch.cat([m.new_zeros(W, M), m.new_ones(W, 1)], dim=-1)
        return B.to(dtype), m.to(dtype), E.to(dtype), True
    E, U = torch.linalg.eigh(S1)  # ascending
    B, m = U.mT @ B, (U.mT @ m.unsqueeze(-1)).squeeze(-1)
    positive = int((least < E).sum(-1).max())
    triangular = positive <= M // 3
    if triangular:
        scaled = E.clamp_max(0.0).neg().sqrt().unsqueeze(-1) * B
        T = torch.linalg.qr(scaled.flip(-1), mode="r").R.flip(-1, -2)  # QR makes an upper triangle
        B = torch.cat([T, B[:, M - positive :], m.unsqueeze(-2) @ B], dim=-2)
        E = torch.cat([E.new_full((W, M), -1.0), E[:, M - positive :].clamp_min(0.0), E.new_zeros(W, 1)], dim=-1)
        m = torch.cat([m.new_zeros(W, M + positive), m.new_ones(W, 1)], dim=-1)
    return B.to(dtype), m.to(dtype), E.to(dtype), triangular


def _variance(update: Float[Tensor, "W R"], jitter: Float[Tensor, " W"]) -> Float[Tensor, "W R"]:
    """Return 1 + j + Aᵀ (S − 1) A, clamped to var ≥ j, which holds in exact arithmetic."""
    return torch.maximum(1 + jitter.unsqueeze(-1) + update, jitter.unsqueeze(-1))


@torch.no_grad()
def covariance_excess(C: Float[Tensor, "W M *M"]) -> Float[Tensor, "W M *M"]:
    """Return S − 1 for S = C Cᵀ, without gradient: the backward pass below adds that of C."""
    if C.dim() == 2:
        return C.square() - 1
    Ct = C.tril().mT.contiguous()
    S1 = transposed_product(Ct, Ct, UPPER, UPPER)
    S1.diagonal(dim1=-2, dim2=-1).sub_(1)
    return S1


class _Conditional(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, z, K, B, m, C, S1, kind):  # type: ignore[no-untyped-def]
        xa, za = augment(x, z)
        mean, update, ctx.leases = _moments(kind, xa, za, B, m, S1, keep=any(ctx.needs_input_grad))
        ctx.save_for_backward(xa, za, B, m, C, S1)
        ctx.slope_factor = kind.slope_factor
        return mean, update

    @staticmethod
    @first_only
    def backward(ctx, g_mean, g_var):  # type: ignore[no-untyped-def]
        xa, za, B, m, C, S1 = ctx.saved_tensors
        A, slope, *maybe_H = (lease.tensor for lease in ctx.leases)
        H = maybe_H[0] if maybe_H else None
        W, R, M = A.shape
        g2 = 2 * g_var.unsqueeze(-1)
        Bt_m = (B.mT @ m.unsqueeze(-1)).squeeze(-1)
        root = B if H is not None else S1.unsqueeze(-1) * B  # dk = (2 gv A) (S − 1) B + gμ mᵀ B, by rows
        RR = A.new_zeros(W, M, M)
        from_x, from_z = torch.empty_like(xa), torch.zeros_like(za)
        scratch = Lease((2, min(R, CHUNK_ROWS), M), like=A)
        scaled, dk = scratch.tensor
        for w, rows, n in _chunks(W, R):
            a, s, d = A[w, rows], scaled[:n], dk[:n]
            torch.mul(a, g2[w, rows], out=s)
            _add_lower_of_product(RR[w], s, a)
            if H is not None:
                torch.mul(H[w, rows], g2[w, rows], out=s)
            _times_lower(s, root[w], out=d)
            d.addr_(g_mean[w, rows], Bt_m[w]).mul_(slope[w, rows])  # dLoss/dt²
            torch.mm(d, za[w].mT, out=from_x[w, rows])
            from_z[w].addmm_(xa[w, rows].mT, d)
        dm = (g_mean.unsqueeze(-2) @ A).squeeze(-2)
        if H is not None:
            RR = RR.tril() + RR.tril(-1).mT
        dK, dC = matrix_gradients(RR, B, m, C, S1, dm)
        dx, dz = _point_gradients(xa, za, from_x, from_z.mT, ctx.slope_factor)
        return dx, dz, dK, None, dm, dC, None, None


def _moments(
    kind: type[KernelKind],
    xa: Tensor,
    za: Tensor,
    B: Tensor,
    m: Tensor,
    S1: Tensor,
    keep: bool,
    triangular: bool = True,
) -> tuple[Tensor, Tensor, list[Lease]]:
    """Return Aᵀ m, Aᵀ (S − 1) A and, if `keep`, A, the kernel's slope and (for a full S) H for the backward pass."""
    (W, R, _), M = xa.shape, B.shape[-1]
    full = S1.dim() == 3
    mean, update = xa.new_empty(W, R), xa.new_empty(W, R)
    n_max = min(R, CHUNK_ROWS)
    leases = [Lease((W, R, size) if keep else (n_max, size), like=xa) for size in (B.shape[-2], *[M] * (1 + full))]
    scratch = Lease((2, n_max, M), like=xa)
    t2, k = scratch.tensor
    for w, rows, n in _chunks(W, R):
        a, slope, *maybe_h = (lease.tensor[w, rows] if keep else lease.tensor[:n] for lease in leases)
        torch.mm(xa[w, rows], za[w], out=t2[:n])
        kind.fill(t2[:n].clamp_(0.0, kind.horizon), k[:n], slope)
        if triangular:
            _times_lower_transpose(k[:n], B[w], out=a)
        else:
            torch.mm(k[:n], B[w].mT, out=a)
        torch.mv(a, m[w], out=mean[w, rows])
        if full:
            (h,) = maybe_h
            torch.sum(torch.mul(a, torch.mm(a, S1[w], out=h), out=k[:n]), -1, out=update[w, rows])
        else:
            torch.mv(torch.mul(a, a, out=k[:n]) if keep else a.square_(), S1[w], out=update[w, rows])
    return mean, update, leases if keep else []


def _point_gradients(
    xa: Tensor, za: Tensor, from_x: Tensor, from_z: Tensor, slope_factor: float
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and z from products of dLoss/dt² with augmented factors: d|x − z|²/dx = 2 (x − z)."""
    x, z = -0.5 * xa[..., :-2], za.mT[..., :-2]
    g_z, g_rows = from_x[..., :-2], from_x[..., -2:-1]  # g z and Σ_z g, by rows of x
    g_x, g_columns = -0.5 * from_z[..., :-2], from_z[..., -1:]  # gᵀ x and Σ_x g, by rows of z
    factor = 2 * slope_factor
    return factor * (x * g_rows - g_z), factor * (z * g_columns - g_x)


def _chunks(W: int, R: int) -> Iterator[tuple[int, slice, int]]:
    for w in range(W):
        for start in range(0, R, CHUNK_ROWS):
            n = min(CHUNK_ROWS, R - start)
            yield w, slice(start, start + n), n


def _edges(M: int) -> list[tuple[int, int]]:
    """Return the blocks into which a triangular M×M matrix is cut."""
    blocks = BLOCKS if M >= 96 else 1
    cuts = [M * i // blocks // 16 * 16 for i in range(blocks)] + [M]  # 16: whole registers for the product's kernel
    return list(itertools.pairwise(cuts))


def _times_lower_transpose(k: Tensor, B: Tensor, out: Tensor) -> Tensor:
    """Compute K Bᵀ for B that begins with a lower triangle: columns [i, j) of it need only those of K before j."""
    for i, j in _edges(len(B)):
        torch.mm(k[:, :j], B[i:j, :j].mT, out=out[:, i:j])
    return out


def _times_lower(a: Tensor, B: Tensor, out: Tensor) -> Tensor:
    """Compute A B for lower triangular B: column block [i, j) needs only the columns of A from i on."""
    for i, j in _edges(len(B)):
        torch.mm(a[:, i:], B[i:, i:j], out=out[:, i:j])
    return out


def _add_lower_of_product(total: Tensor, s: Tensor, a: Tensor) -> None:
    """Add sᵀ a to `total`, but only the blocks on and below the diagonal."""
    for i, j in _edges(len(total)):
        total[i:, i:j].addmm_(s[:, i:].mT, a[:, i:j])

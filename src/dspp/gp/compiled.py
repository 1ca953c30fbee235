"""The hot path by compiled code (`moments.cpp`): what `conditional.py` computes, for float32 on the CPU.

The code reads matrices in panels of columns, and needs M to be a multiple of their width. M is therefore padded, in
front so that the triangle of a lower triangular matrix stays one, with `lead` points of zero weight.
"""

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from dspp.derivatives import first_only
from dspp.gp.kernels import COMPILED, KernelKind
from dspp.gp.linalg import matrix_gradients
from dspp.gp.native import addresses, library, load
from dspp.gp.threads import num_threads
from dspp.gp.workspace import Lease

_LONG, _POINTER = ctypes.c_long, ctypes.c_void_p


class _Points(ctypes.Structure):
    """The struct of this name in moments.cpp."""

    _fields_ = [
        *((name, _LONG) for name in ("W", "D", "M", "lead", "O", "B_size")),
        *((name, _POINTER) for name in ("zt", "B", "S1", "m")),
        ("kind", ctypes.c_int),
        ("horizon", ctypes.c_float),
        ("full", ctypes.c_int),
        ("triangular", ctypes.c_int),
    ]


class _Gradients(ctypes.Structure):
    """The struct of this name in moments.cpp."""

    _fields_ = [
        *((name, _LONG) for name in ("R", "root_size")),
        *((name, _POINTER) for name in ("x", "A", "H", "root", "Bt_m", "g_mean", "g_var")),
        *((name, _POINTER) for name in ("from_x", "from_z", "RR", "dm")),
    ]


@dataclass(frozen=True)
class Packed:
    """Inducing points and what is known of them, in the order in which the compiled code reads them.

    M and O, the number of rows of B, count the padding.
    """

    kind: type[KernelKind]
    zt: Float[Tensor, "W D M"]  # scaled points
    B: Float[Tensor, "W P"]  # panels of Bᵀ
    m: Float[Tensor, "W O"]  # whitened mean
    S1: Float[Tensor, "W Q"]  # diagonal of S − 1, or its panels
    lead: int  # points of padding
    full: bool  # whether S1 is panels
    triangular: bool  # whether B is lower triangular
    width: int  # columns of a panel, which depends on the processor

    @classmethod
    def make(
        cls, kind: type[KernelKind], z: Tensor, B: Tensor, m: Tensor, S1: Tensor, triangular: bool = True
    ) -> "Packed":
        """Pack the arguments of `conditional`, S1 as `covariance_excess` returns it."""
        width = library().panel_columns()
        lead, full = -z.shape[-2] % width, S1.dim() == 3
        tail = -(lead + m.shape[-1]) % width
        zt = torch.cat([z[:, :1].expand(-1, lead, -1), z], dim=-2).mT.contiguous()
        Bt = pad(B, (lead, 0, lead, tail)).mT
        ends = range(width, Bt.shape[-1] + 1, width)
        panels = [Bt[:, lead : end if triangular else None, end - width : end] for end in ends]
        if full:
            S1 = _pad(S1, lead, 2)
            S1 = _join([S1[:, lead:, end - width : end] for end in ends])
        else:
            S1 = pad(S1, (lead, tail))
        return cls(kind, zt, _join(panels), pad(m, (lead, tail)), S1, lead, full, triangular, width)

    @property
    def usable(self) -> bool:
        """Whether it was packed on this kind of machine."""
        return load() is not None and library().panel_columns() == self.width

    def moments(
        self, x: Float[Tensor, "W R D"], keep: bool = False
    ) -> tuple[Float[Tensor, "W R"], Float[Tensor, "W R"], list[Lease]]:
        """Return Aᵀ m, Aᵀ (S − 1) A and, if `keep`, A and (for a full S) H."""
        x = x.contiguous()
        (W, R, _), M = x.shape, self.zt.shape[-1]
        mean, update = x.new_empty(W, R), x.new_empty(W, R)
        leases = [Lease((W, R, M), like=x) for _ in range(1 + self.full)] if keep else []
        kept = [*(lease.tensor for lease in leases), *[None] * (2 - len(leases))]
        points = self.points()
        library().forward(ctypes.byref(points), R, num_threads(), *addresses(x, *kept, mean, update))
        return mean, update, leases

    def points(self) -> _Points:
        """Return the addresses of all this."""
        (W, D, M), tensors = self.zt.shape, addresses(self.zt, self.B, self.S1, self.m)
        sizes = (W, D, M, self.lead, self.m.shape[-1], self.B.shape[-1])
        return _Points(*sizes, *tensors, COMPILED.index(self.kind), self.kind.horizon, self.full, self.triangular)


def _pad(matrix: Tensor, lead: int, dims: int) -> Tensor:
    """Return a contiguous tensor with `lead` zeros in front of each of the last dimensions."""
    return pad(matrix, (lead, 0) * dims).contiguous()


def _join(panels: list[Tensor]) -> Float[Tensor, "W P"]:
    return torch.cat([panel.flatten(1) for panel in panels], dim=1)


class _CompiledConditional(torch.autograd.Function):
    """As `conditional._Conditional`."""

    @staticmethod
    def forward(ctx, x, z, K, B, m, C, S1, kind):  # type: ignore[no-untyped-def]
        packed = Packed.make(kind, z, B, m, S1)
        mean, update, ctx.leases = packed.moments(x, keep=any(ctx.needs_input_grad) or packed.full)
        ctx.save_for_backward(x, z, B, m, C, S1)
        ctx.packed = packed
        return mean, update

    @staticmethod
    @first_only
    def backward(ctx, g_mean, g_var):  # type: ignore[no-untyped-def]
        x, z, B, m, C, S1 = ctx.saved_tensors
        (RR, dm, from_x, from_z), factor = _products(ctx, x, B, m, S1, g_mean, g_var), 2 * ctx.packed.kind.slope_factor
        dK, dC = matrix_gradients(RR, B, m, C, S1, dm)
        dz = factor * (z * from_z[..., -1:] - from_z[..., :-1])  # d|x − z|²/dz = 2 (z − x)
        dx = None if from_x is None else factor * (x * from_x[..., -1:] - from_x[..., :-1])
        return dx, dz, dK, None, dm, dC, None, None


def _products(
    ctx: Any, x: Tensor, B: Tensor, m: Tensor, S1: Tensor, g_mean: Tensor, g_var: Tensor
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Return R, A gμ, and dLoss/dt² times [z, 1] (if x needs a gradient) and times [x, 1]."""
    packed: Packed = ctx.packed
    A, *maybe_H = (lease.tensor for lease in ctx.leases)
    H, lead, width = maybe_H[0] if maybe_H else None, packed.lead, packed.width
    (W, R, D), M = x.shape, A.shape[-1]
    root = _pad(B if H is not None else S1.unsqueeze(-1) * B, lead, 2)  # dk = (2 gv A) (S − 1) B + gμ mᵀ B, by rows
    panels = _join([root[:, max(i, lead) :, i : i + width] for i in range(0, M, width)])
    Bt_m = _pad((B.mT @ m.unsqueeze(-1)).squeeze(-1), lead, 1)
    from_x = x.new_empty(W, R, D + 1) if ctx.needs_input_grad[0] else None
    from_z = x.new_zeros(W, library().backward_tasks(M, R), D + 1, M)
    RR, dm = x.new_empty(W, M, M), x.new_empty(W, M)
    inputs = (x.contiguous(), A, H, panels, Bt_m, g_mean.contiguous(), g_var.contiguous())
    points = packed.points()
    gradients = _Gradients(R, panels.shape[-1], *addresses(*inputs, from_x, from_z, RR, dm))
    library().backward(ctypes.byref(points), ctypes.byref(gradients), num_threads())
    return RR[:, lead:, lead:], dm[:, lead:], from_x, from_z.sum(1)[..., lead:].mT


def compiled_conditional(
    x: Tensor, z: Tensor, K: Tensor, B: Tensor, m: Tensor, C: Tensor, S1: Tensor, kind: type[KernelKind]
) -> tuple[Float[Tensor, "W R"], Float[Tensor, "W R"]]:
    """Return Aᵀ m and Aᵀ (S − 1) A, differentiable in x, z, K, m and C; arguments as in `conditional`."""
    return _CompiledConditional.apply(x, z, K, B, m, C, S1, kind)  # type: ignore[no-any-return, no-untyped-call]

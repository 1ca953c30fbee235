"""Stationary kernels with one length scale per input dimension (ARD).

A kernel kind is a function of one number, the scaled squared distance t² = factor · Σ_d ((x_d − z_d)/ℓ_d)², and is
written twice: `value` is the formula, differentiable by autograd; `fill` writes its value and slope dk/dt² to given
buffers, for the hot path (`conditional.py`). No square root is differentiated, so coincident points are safe.
"""

import math
from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from dspp.derivatives import first_only
from dspp.gp.native import addresses, library, load
from dspp.gp.threads import num_threads
from dspp.registry import Registry

KERNELS: Registry[type["KernelKind"]] = Registry("kernel")


class KernelKind(ABC):
    """The shape of a unit-variance stationary kernel as a function of t²."""

    factor: ClassVar[float]  # t² = factor · r², so that the formulas below have no constants
    slope_factor: ClassVar[float]  # dk/dt² = slope_factor · slope
    horizon: ClassVar[float]  # a t² with k < 1e-26, at which t² is clamped: denormal numbers are slow
    kink: ClassVar[bool] = False  # at t = 0 with infinite slope, where rounding errors of t² would matter

    @staticmethod
    @abstractmethod
    def value(t2: Tensor) -> Tensor:
        """Return k(t²)."""

    @staticmethod
    @abstractmethod
    def fill(t2: Tensor, k: Tensor, slope: Tensor) -> None:
        """Write k(t²) to `k` and (dk/dt²) / slope_factor to `slope`; `t2` is not modified."""


def _safe_sqrt(t2: Tensor) -> Tensor:
    """Return √t² with gradient 0 instead of infinity at 0."""
    positive = t2 > 0
    return torch.where(positive, torch.where(positive, t2, 1.0).sqrt(), 0.0)


_LOG2_E = math.log2(math.e)


def _exp_minus(t: Tensor, out: Tensor) -> Tensor:
    """Write e⁻ᵗ to `out`, as a power of 2: torch's exp2 takes half the time of its exp."""
    return torch.mul(t, -_LOG2_E, out=out).exp2_()


@KERNELS.register("rbf")
class RBF(KernelKind):
    """k = exp(−t²/2), t = r;  dk/dt² = −k/2."""

    factor = 1.0
    slope_factor = -0.5
    horizon = 140.0

    @staticmethod
    def value(t2: Tensor) -> Tensor:
        return torch.exp(-0.5 * t2)

    @staticmethod
    def fill(t2: Tensor, k: Tensor, slope: Tensor) -> None:
        torch.mul(t2, -0.5 * _LOG2_E, out=k).exp2_()
        slope.copy_(k)


@KERNELS.register("matern12")
class Matern12(KernelKind):
    """k = exp(−t), t = r;  dk/dt² = −exp(−t)/(2t), taken as 0 at t = 0 where k has a kink."""

    factor = 1.0
    slope_factor = -0.5
    horizon = 4900.0
    kink = True

    @staticmethod
    def value(t2: Tensor) -> Tensor:
        return torch.exp(-_safe_sqrt(t2))

    @staticmethod
    def fill(t2: Tensor, k: Tensor, slope: Tensor) -> None:
        torch.sqrt(t2, out=slope)
        _exp_minus(slope, out=k)
        slope.reciprocal_().mul_(k).masked_fill_(t2 <= 0, 0.0)


@KERNELS.register("matern32")
class Matern32(KernelKind):
    """k = (1 + t) exp(−t), t = √3 r;  dk/dt² = −exp(−t)/2."""

    factor = 3.0
    slope_factor = -0.5
    horizon = 4900.0

    @staticmethod
    def value(t2: Tensor) -> Tensor:
        t = _safe_sqrt(t2)
        return (1 + t) * torch.exp(-t)

    @staticmethod
    def fill(t2: Tensor, k: Tensor, slope: Tensor) -> None:
        torch.sqrt(t2, out=k)
        _exp_minus(k, out=slope)
        torch.addcmul(slope, k, slope, out=k)


@KERNELS.register("matern52")
class Matern52(KernelKind):
    """k = (1 + t + t²/3) exp(−t), t = √5 r;  dk/dt² = −(1 + t) exp(−t)/6."""

    factor = 5.0
    slope_factor = -1.0 / 6.0
    horizon = 4900.0

    @staticmethod
    def value(t2: Tensor) -> Tensor:
        t = _safe_sqrt(t2)
        return (1 + t + t2 / 3) * torch.exp(-t)

    @staticmethod
    def fill(t2: Tensor, k: Tensor, slope: Tensor) -> None:
        torch.sqrt(t2, out=slope)  # t
        _exp_minus(slope, out=k)  # e⁻ᵗ
        torch.addcmul(k, slope, k, out=slope)  # (1 + t) e⁻ᵗ
        torch.addcmul(slope, t2, k, value=1 / 3, out=k)  # (1 + t + t²/3) e⁻ᵗ


COMPILED: list[type[KernelKind]] = [RBF, Matern12, Matern32, Matern52]  # in the order of the compiled code


def available(kind: type[KernelKind], z: Tensor) -> bool:
    """Return whether there is compiled code for this kernel, dtype and device."""
    return kind in COMPILED and z.dtype == torch.float32 and z.device.type == "cpu" and load() is not None


def compiled_matrix(z: Float[Tensor, "W M D"], kind: type[KernelKind]) -> tuple[Tensor, Tensor]:
    """Return k(z, z) in float64 and its slope in float32, by compiled code."""
    W, M, D = z.shape
    zt, K, slope = z.mT.contiguous(), z.new_empty(W, M, M, dtype=torch.float64), z.new_empty(W, M, M)
    position = COMPILED.index(kind)
    library().kernel_matrix(W, D, M, position, kind.horizon, num_threads(), *addresses(zt, K, slope))
    return K, slope


class _KernelMatrix(torch.autograd.Function):
    """K_ij = k(|x_i − z_j|²) for scaled inputs, with the analytic slope in the backward pass."""

    @staticmethod
    def forward(ctx, x, z, kind):  # type: ignore[no-untyped-def]
        t2 = squared_distance(x, z).clamp_(max=kind.horizon)
        k, slope = torch.empty_like(t2), torch.empty_like(t2)
        kind.fill(t2, k, slope)
        ctx.save_for_backward(x, z, slope)
        ctx.slope_factor = kind.slope_factor
        return k

    @staticmethod
    @first_only
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, z, slope = ctx.saved_tensors
        g = grad * slope
        factor = 2 * ctx.slope_factor  # d|x − z|²/dx = 2 (x − z)
        dx = factor * (x * g.sum(-1, keepdim=True) - g @ z) if ctx.needs_input_grad[0] else None
        dz = factor * (z * g.sum(-2).unsqueeze(-1) - g.mT @ x) if ctx.needs_input_grad[1] else None
        return dx, dz, None


class _SelfKernelMatrix(torch.autograd.Function):
    """The matrix of points with themselves, in float64; its gradient, from the symmetric part, in the dtype of x."""

    @staticmethod
    def forward(ctx, x, kind):  # type: ignore[no-untyped-def]
        if available(kind, x):
            k, slope = compiled_matrix(x, kind)
        else:
            exact = x.to(torch.float64)
            t2 = squared_distance(exact, exact).clamp_(max=kind.horizon)
            if kind.kink:
                t2.diagonal(dim1=-2, dim2=-1).zero_()
            k, slope = torch.empty_like(t2), torch.empty_like(t2)
            kind.fill(t2, k, slope)
        ctx.save_for_backward(x, slope.to(x.dtype))
        ctx.slope_factor = kind.slope_factor
        return k

    @staticmethod
    @first_only
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        x, slope = ctx.saved_tensors
        grad = grad.to(x.dtype)
        g = (grad + grad.mT).mul_(slope)
        return (x * g.sum(-1, keepdim=True) - g @ x).mul_(2 * ctx.slope_factor), None


def squared_distance(x: Float[Tensor, "W R D"], z: Float[Tensor, "W M D"]) -> Float[Tensor, "W R M"]:
    """Return |x − z|² for all pairs, as a product of centred points, so that a common offset costs no digits."""
    centre = z.mean(-2, keepdim=True)
    return torch.matmul(*augment(x - centre, z - centre)).clamp_min_(0.0)


def augment(x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Return factors whose product is |x − z|²: [−2x, |x|², 1] and [z, 1, |z|²]ᵀ."""
    x2, z2 = x.square().sum(-1, keepdim=True), z.square().sum(-1, keepdim=True)
    return (
        torch.cat([-2 * x, x2, torch.ones_like(x2)], dim=-1),
        torch.cat([z, torch.ones_like(z2), z2], dim=-1).mT,
    )


class ARDKernel(nn.Module):
    """W kernels of one kind, each with its own length scales ℓ (W, D) and output scale σ² (W,).

    The output scale stays outside the matrices: `unit_matrix` has ones on its diagonal, and the layer multiplies.
    """

    def __init__(self, kind: str, width: int, num_inputs: int, lengthscale: float = 1.0) -> None:
        super().__init__()
        self.kind = KERNELS[kind]
        f32 = torch.float32  # whatever torch's default, so that the same seed gives the same model
        self.raw_lengthscale = nn.Parameter(torch.full((width, num_inputs), inverse_softplus(lengthscale), dtype=f32))
        self.raw_outputscale = nn.Parameter(torch.full((width,), inverse_softplus(1.0), dtype=f32))

    @property
    def lengthscale(self) -> Float[Tensor, "W D"]:
        """Length scales ℓ > 0."""
        return softplus(self.raw_lengthscale)

    @property
    def outputscale(self) -> Float[Tensor, " W"]:
        """Prior variance σ² > 0 of each GP."""
        return softplus(self.raw_outputscale)

    @property
    def rate(self) -> Float[Tensor, "W 1 D"]:
        """What points are multiplied by, so that t² is a squared distance."""
        rate: Tensor = (self.kind.factor**0.5 / self.lengthscale).unsqueeze(-2)
        return rate

    def scale(self, x: Float[Tensor, "*W R D"]) -> Float[Tensor, "W R D"]:
        """Divide by the length scales, so that t² is a squared distance."""
        return x * self.rate

    def unit_matrix(self, x: Float[Tensor, "W R D"], z: Float[Tensor, "W M D"]) -> Float[Tensor, "W R M"]:
        """Return the kernel matrix of scaled points, without the output scale."""
        if x is z:
            return self.exact_matrix(x).to(x.dtype)
        return _KernelMatrix.apply(x, z, self.kind)  # type: ignore[no-any-return, no-untyped-call]

    def exact_matrix(self, z: Float[Tensor, "W M D"]) -> Float[Tensor, "W M M"]:
        """Return the unit kernel matrix of scaled points with themselves, in float64, to be factorised."""
        return _SelfKernelMatrix.apply(z, self.kind)  # type: ignore[no-any-return, no-untyped-call]

    def forward(self, x: Float[Tensor, "*W R D"], z: Float[Tensor, "*W M D"]) -> Float[Tensor, "W R M"]:
        """Return the kernel matrix of unscaled points, including the output scale."""
        return self.outputscale[:, None, None] * self.unit_matrix(self.scale(x), self.scale(z))


def inverse_softplus(value: float) -> float:
    """Return the number whose softplus is `value` > 0."""
    v = torch.tensor(value, dtype=torch.float64)
    return float(v + torch.log(-torch.expm1(-v)))

"""M × M matrices of the inducing points by compiled code (`algebra.cpp`), for models in float32 on the CPU."""

from enum import IntEnum

import torch
from jaxtyping import Float
from torch import Tensor

from dspp.gp.native import library, load
from dspp.gp.threads import num_threads

MIN_POINTS = 12  # of a compiled product


class Shape(IntEnum):
    """Of a matrix, as in algebra.cpp."""

    FULL = 0
    LOWER = 1  # triangular
    UPPER = 2


FULL, LOWER, UPPER = Shape


def kernel_matrix(z: Float[Tensor, "W M D"], kind: int, horizon: float) -> tuple[Tensor, Tensor]:
    """Return k(z, z) in float64 and its slope in float32; `kind` is a position in `kernels.COMPILED`."""
    W, M, D = z.shape
    zt, K, slope = z.mT.contiguous(), z.new_empty(W, M, M, dtype=torch.float64), z.new_empty(W, M, M)
    library().kernel_matrix(W, D, M, kind, horizon, num_threads(), *_addresses(zt, K, slope))
    return K, slope


def inverse_root(K: Float[Tensor, "W M M"], jitter: Float[Tensor, " W"]) -> tuple[Tensor, Tensor]:
    """Return L⁻¹, where K + jitter = L Lᵀ, and which matrices (W,) have none; all numbers are in float64."""
    W, M, _ = K.shape
    K, B, failed = K.contiguous(), torch.empty_like(K), torch.empty(W, dtype=torch.int32)
    scratch = K.new_empty(W, library().root_numbers(M))
    library().inverse_root(W, M, num_threads(), *_addresses(K, jitter, scratch, B, failed))
    return B, failed


def compiles_products(like: Tensor) -> bool:
    """Return whether there is compiled code for the products of such matrices."""
    cpu = like.device.type == "cpu" and like.dtype == torch.float32
    return cpu and like.shape[-1] >= MIN_POINTS and load() is not None


def transposed_product(
    X: Float[Tensor, "W M M"], Y: Float[Tensor, "W M M"], x: Shape = FULL, y: Shape = FULL, lower: bool = False
) -> Float[Tensor, "W M M"]:
    """Return Xᵀ Y, skipping the zeros of triangular factors; if `lower`, only the lower triangle is valid."""
    if not compiles_products(X):
        return X.mT @ Y
    W, M, _ = X.shape
    X, Y, out = X.contiguous(), Y.contiguous(), X.new_empty(W, M, M)
    library().transposed_product(W, M, num_threads(), x, y, lower, *_addresses(X, Y, out))
    return out


def _addresses(*tensors: Tensor) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]

"""A layer of W sparse GPs: (S, N, D) -> mean and variance, each (S, N, W)."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from dspp.errors import NumericalError
from dspp.gp.conditional import TILE, Frozen, conditional
from dspp.gp.inducing import WhitenedGaussian
from dspp.gp.kernels import ARDKernel, available
from dspp.gp.linalg import Whitening, factorise, whiten
from dspp.gp.means import Mean

LayerMoments = tuple[Float[Tensor, "S N W"], Float[Tensor, "S N W"]]
Basis = tuple[Tensor, Tensor, Tensor]  # of the decoupled mean: scaled points, coefficients, KL


@dataclass(frozen=True)
class _Solved:
    """Everything about the inducing points that does not depend on x."""

    z: Float[Tensor, "W M D"]  # scaled
    K: Float[Tensor, "W M M"]
    B: Float[Tensor, "W M M"]
    m: Float[Tensor, "W M"]
    C: Float[Tensor, "W M *M"]
    jitter: Float[Tensor, " W"]
    basis: Basis | None = None


@dataclass(frozen=True)
class _Cached:
    """Everything that predictions need and that does not depend on x."""

    basis: Basis | None
    frozen: Frozen
    rate: Float[Tensor, "W 1 D"]
    outputscale: Float[Tensor, " W"]


class GPLayer(nn.Module):
    """W GPs with inducing points Z (W, M, D), a whitened q(u) each, a kernel and a mean function.

    With `mean_points` the layer is orthogonally decoupled (Cheng & Boots 2017; Salimbeni et al. 2018): a second, cheap
    basis Z' with coefficients a serves the mean only, orthogonal to the first:

        mean = Aᵀ m + (k(x, Z') − Aᵀ A') a,   A' = L⁻¹ k(Z, Z'),   KL += ½ aᵀ (K_Z'Z' − A'ᵀ A') a
    """

    def __init__(
        self,
        mean: Mean,
        kernel: ARDKernel,
        points: Float[Tensor, "M D"],  # initial inducing points, the same for all W GPs
        *,
        full: bool,  # whether q(u) has a full covariance
        jitter: float,  # the nugget of the unit kernel
        mean_points: Float[Tensor, "P D"] | None = None,  # initial points of the mean basis
        name: str = "layer",  # in error messages
    ) -> None:
        super().__init__()
        width = mean.width
        self.mean, self.kernel = mean, kernel
        self.inducing_points = nn.Parameter(points.detach().expand(width, *points.shape).clone())
        self.q = WhitenedGaussian(width, len(points), full)
        self.jitter, self.name = jitter, name
        self.jitter_increases = 0  # increases of the jitter so far
        self.mean_points: nn.Parameter | None = None
        if mean_points is not None:
            self.mean_points = nn.Parameter(mean_points.detach().expand(width, *mean_points.shape).clone())
            self.mean_coefficients = nn.Parameter(torch.zeros(width, len(mean_points), dtype=torch.float32))
        self._cached: _Cached | None = None

    def forward(self, x: Float[Tensor, "S N D"], mean_x: Float[Tensor, "S N E"] | None = None) -> LayerMoments:
        """Return mean and variance at each row; the mean function reads `mean_x` if given (skip connections)."""
        S, N, D = x.shape
        kernel, cached = self.kernel, self._cached
        rows = x.reshape(1, S * N, D) * (kernel.rate if cached is None else cached.rate)
        if cached is not None:
            basis, outputscale = cached.basis, cached.outputscale
            mean, var = cached.frozen.moments(rows)
        else:
            s = self._solve(count=True)
            basis, outputscale = s.basis, kernel.outputscale
            mean, var = conditional(kernel.kind, rows, s.z, s.K, s.B, s.m, s.C, s.jitter)
        if basis is not None:
            points, coefficients, _ = basis
            mean = mean + (kernel.unit_matrix(rows, points) @ coefficients.unsqueeze(-1)).squeeze(-1)
        scale = outputscale.unsqueeze(-1)
        mean, var = scale.sqrt() * mean, scale * var  # (W, S·N)
        prior_mean = self.mean(x if mean_x is None else mean_x)
        return self._check_finite(prior_mean + mean.mT.reshape(S, N, -1), var.mT.reshape(S, N, -1))

    def _check_finite(self, mean: Tensor, var: Tensor) -> LayerMoments:
        if not math.isfinite(float(mean.detach().sum() + var.detach().sum())):
            raise NumericalError(
                f"{self.name}: mean or variance is not finite; standardise the inputs, lower the learning rate, or use "
                "dtype='float64'"
            )
        return mean, var

    def kl(self) -> Float[Tensor, ""]:
        """Return KL(q(u) | p(u)), summed over the W GPs."""
        kl = self.q.kl()
        if self.mean_points is None:
            return kl
        basis = (self._cached or self._solve()).basis
        assert basis is not None
        return kl + basis[2]

    def cache(self, keep: bool) -> None:
        """Cache what does not depend on x, or clear the cache; a cached layer ignores changes of its parameters."""
        self._cached = None
        if keep:
            with torch.no_grad():
                s, kernel = self._solve(count=True), self.kernel
                frozen = Frozen.make(kernel.kind, s.z, s.B, s.m, s.C, s.jitter)
                self._cached = _Cached(_pad_basis(s.basis), frozen, kernel.rate, kernel.outputscale)

    @property
    def compiled(self) -> bool:
        """Whether there is a cache that compiled code reads."""
        packed = None if self._cached is None else self._cached.frozen.packed
        return packed is not None and packed.usable

    def _solve(self, count: bool = False) -> _Solved:
        z = self.kernel.scale(self.inducing_points)
        K = self.kernel.exact_matrix(z)
        result = factorise(K, self.jitter, self.name, available(self.kernel.kind, z))
        self.jitter_increases += result.jitter_increases if count else 0  # once per step, once per predictor
        B, jitter = result.inverse_root.to(z.dtype), result.jitter.to(z.dtype)
        solved = _Solved(z, K, B, self.q.mean, self.q.root, jitter)
        return solved if self.mean_points is None else self._decouple(solved, result)

    def _decouple(self, s: _Solved, whitening: Whitening) -> _Solved:
        """Fold −A'a into m, and leave k(x, Z') a to `forward`."""
        assert self.mean_points is not None
        points, a = self.kernel.scale(self.mean_points), self.mean_coefficients
        points64, z64 = points.to(torch.float64), s.z.to(torch.float64)
        a64 = a.to(torch.float64).unsqueeze(-1)
        projected = whiten(
            (self.kernel.unit_matrix(z64, points64) @ a64).squeeze(-1), s.K, whitening.inverse_root
        )  # A'a
        prior = a64 * (self.kernel.unit_matrix(points64, points64) @ a64 + whitening.jitter[:, None, None] * a64)
        kl = 0.5 * (prior.sum() - projected.square().sum()).to(s.m.dtype)
        return replace(s, m=s.m - projected.to(s.m.dtype), basis=(points, a, kl))


def _pad_basis(basis: Basis | None) -> Basis | None:
    """Pad the mean basis with points of zero weight, for the reason given in `Frozen`."""
    if basis is None:
        return None
    points, a, kl = basis
    more = -points.shape[-2] % TILE
    return torch.cat([points, points[:, :1].expand(-1, more, -1)], -2), pad(a, (0, more)), kl

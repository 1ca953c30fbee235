"""Slow, obvious oracles: the paper's equations as loops over NumPy numbers, and the tolerances of all tests.

Nothing here is fast, and nothing here imports the maths of `dspp`: a layer's parameters are read out as plain arrays
(`read_layer`), and everything after that follows the paper, in its unwhitened form. The nugget j of `dspp` is part of
the kernel: k(x, x') = σ² (k₁(r) + j [x is x']), and a point of the data is never the same point as one of Z.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor

from dspp.gp.inducing import WhitenedGaussian
from dspp.gp.kernels import KERNELS as REGISTERED_KERNELS
from dspp.gp.kernels import KernelKind
from dspp.gp.layer import GPLayer
from dspp.gp.means import Mean
from dspp.model import Model

Array = NDArray[np.float64]

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}  # of `assert_close`, relative to the largest number


def assert_close(got: Tensor | Array | float, expected: Tensor | Array | float, tol: float | None = None) -> None:
    """Same shape, finite, max |got − expected| ≤ tol · max(1, max |expected|); tol by dtype where not given."""
    a, b = (t.detach() if isinstance(t, Tensor) else torch.tensor(t, dtype=torch.float64) for t in (got, expected))
    assert a.shape == b.shape, f"shape {tuple(a.shape)}, expected {tuple(b.shape)}"
    tol = TOLERANCE[a.dtype] if tol is None else tol
    assert bool(torch.isfinite(a).all()), f"not finite: {a}"
    error = (a.double() - b.double()).abs().max().item() if a.numel() else 0.0
    scale = max(1.0, b.abs().max().item() if b.numel() else 0.0)
    assert error <= tol * scale, f"differs by {error:.3g} (scale {scale:.3g}, tolerance {tol:.3g})"


def assert_same_gradient(got: Tensor | None, expected: Tensor | None, tol: float, what: str) -> None:
    """Relative: max |got − expected| ≤ tol · max |expected|, however small the gradient is."""
    assert got is not None, f"{what}: no gradient"
    assert expected is not None, f"{what}: no gradient to compare with"
    assert got.shape == expected.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(expected.shape)}"
    error, scale = (got - expected).abs().max().item(), expected.abs().max().item()
    assert scale > 0, f"{what}: the gradient to compare with is 0 everywhere"
    assert error <= tol * scale, f"{what}: differs by {error:.3g} of {scale:.3g}"


# ---------------------------------------------------------------- kernels

KERNELS: dict[str, Callable[[float], float]] = {  # unit kernels of the scaled distance r
    "rbf": lambda r: math.exp(-(r**2) / 2),
    "matern12": lambda r: math.exp(-r),
    "matern32": lambda r: (1 + math.sqrt(3) * r) * math.exp(-math.sqrt(3) * r),
    "matern52": lambda r: (1 + math.sqrt(5) * r + 5 * r**2 / 3) * math.exp(-math.sqrt(5) * r),
}


def kernel_matrix(kind: str, X: Array, Z: Array, lengthscale: Array, outputscale: float = 1.0) -> Array:
    """σ² k₁(√Σ_d ((x_d − z_d)/ℓ_d)²), entry by entry, without the nugget."""
    K = np.empty((len(X), len(Z)))
    for i, x in enumerate(X):
        for j, z in enumerate(Z):
            r = math.sqrt(sum(((x[d] - z[d]) / lengthscale[d]) ** 2 for d in range(len(x))))
            K[i, j] = outputscale * KERNELS[kind](r)
    return K


# ---------------------------------------------------------------- one GP


@dataclass(frozen=True)
class SparseGP:
    """One GP of a layer as the paper writes it: q(u) = N(m, S) at Z, not whitened."""

    kind: str
    Z: Array  # (M, D)
    lengthscale: Array  # (D,)
    outputscale: float
    nugget: float  # added to the variance of every point, output scale included
    m: Array  # (M,)
    S: Array  # (M, M)
    prior_mean: Callable[[Array], float]
    mean_points: Array | None = None  # (P, D), the orthogonal basis of the mean (OD-SVGP)
    mean_coefficients: Array | None = None  # (P,), of the kernel with its output scale

    def k(self, X: Array, Z: Array) -> Array:
        return kernel_matrix(self.kind, X, Z, self.lengthscale, self.outputscale)

    @property
    def K_MM(self) -> Array:
        return self.k(self.Z, self.Z) + self.nugget * np.eye(len(self.Z))

    def moments(self, x: Array, mean_x: Array | None = None) -> tuple[float, float]:
        """μ_f(x) and σ_f(x)² (eqs. 7 and 8) at one row; the mean function reads `mean_x` where it is given."""
        k_i = self.k(x[None], self.Z)[0]
        weights = np.linalg.solve(self.K_MM, k_i)  # K_MM⁻¹ k_i
        mean = self.prior_mean(x if mean_x is None else mean_x) + weights @ self.m
        var = self.outputscale + self.nugget - k_i @ weights + weights @ self.S @ weights
        if self.mean_points is not None and self.mean_coefficients is not None:
            k_basis = self.k(x[None], self.mean_points)[0] - weights @ self.k(self.Z, self.mean_points)
            mean += k_basis @ self.mean_coefficients
        return float(mean), float(var)


def read_layer(layer: GPLayer) -> list[SparseGP]:
    """The W GPs of a layer, from whitened (v = L⁻¹ u) to unwhitened: m_u = L m_v, S_u = L S_v Lᵀ."""

    gps = []
    kind = next(name for name, registered in REGISTERED_KERNELS.items() if registered is layer.kernel.kind)
    for w in range(layer.mean.width):
        Z, lengthscale = _numbers(layer.inducing_points[w]), _numbers(layer.kernel.lengthscale[w])
        scale = layer.kernel.outputscale[w].item()
        nugget = scale * layer.jitter
        L = np.linalg.cholesky(kernel_matrix(kind, Z, Z, lengthscale, scale) + nugget * np.eye(len(Z)))
        C = _numbers(layer.q.root[w])
        C = np.tril(C) if layer.q.full else np.diag(C)
        basis: tuple[Array, Array] | tuple[None, None] = (None, None)
        if layer.mean_points is not None:
            # ours multiply the unit kernel and then √σ²; the coefficients here multiply σ² k₁
            basis = (_numbers(layer.mean_points[w]), _numbers(layer.mean_coefficients[w]) / math.sqrt(scale))

        prior_mean = _read_mean(layer.mean, w)
        m, S = L @ _numbers(layer.q.mean[w]), L @ C @ C.T @ L.T
        gps.append(SparseGP(kind, Z, lengthscale, scale, nugget, m, S, prior_mean, *basis))
    return gps


def covariance(q: WhitenedGaussian) -> Tensor:
    """S of q(v), its diagonal (W, M) or the full matrix (W, M, M)."""
    C = q.root.tril() if q.full else q.root
    return C @ C.mT if q.full else C.square()


def conditional(
    kind: type[KernelKind], x: Tensor, z: Tensor, K: Tensor, m: Tensor, S: Tensor, jitter: Tensor
) -> tuple[Tensor, Tensor]:
    """Eqs. 7 and 8 for autograd; arguments as in `dspp.gp.conditional.conditional`, with S for C and no B."""
    L = torch.linalg.cholesky(K + torch.diag_embed(jitter[:, None].expand(K.shape[:-1])))
    t2 = (z.unsqueeze(-2) - x.unsqueeze(-3)).square().sum(-1)
    A = torch.linalg.solve_triangular(L, kind.value(t2), upper=False)  # (W, M, R)
    SA = S @ A if S.dim() == 3 else S.unsqueeze(-1) * A
    return (A.mT @ m.unsqueeze(-1)).squeeze(-1), 1 + jitter[:, None] + (A * (SA - A)).sum(-2)


def _numbers(t: Tensor) -> Array:
    return t.detach().double().numpy()


def _read_mean(mean: Mean, w: int) -> Callable[[Array], float]:
    parameters = {name: _numbers(p) for name, p in mean.named_parameters()}
    if "weight" in parameters:
        return lambda x: float(sum(x[d] * parameters["weight"][d, w] for d in range(len(x))) + parameters["bias"][w])
    return lambda x: float(parameters["constant"][w]) if "constant" in parameters else 0.0


# ---------------------------------------------------------------- exact GP regression


def exact_posterior(K_star: Array, K: Array, y: Array, noise_var: float, prior_var: Array) -> tuple[Array, Array]:
    """Mean and variance at new rows: K_* (K + σ²)⁻¹ y and k_** − K_* (K + σ²)⁻¹ K_*ᵀ."""
    C = K + noise_var * np.eye(len(K))
    mean, var = np.empty(len(K_star)), np.empty(len(K_star))
    for i, k in enumerate(K_star):
        mean[i] = k @ np.linalg.solve(C, y)
        var[i] = prior_var[i] - k @ np.linalg.solve(C, k)
    return mean, var


def log_marginal_likelihood(K: Array, y: Array, noise_var: float) -> float:
    """log N(y | 0, K + σ²) (eq. 2)."""
    C = K + noise_var * np.eye(len(K))
    return float(-0.5 * (y @ np.linalg.solve(C, y) + np.linalg.slogdet(C)[1] + len(y) * math.log(2 * math.pi)))


# ---------------------------------------------------------------- KL


def gaussian_kl(m: Array, S: Array, m0: Array, S0: Array) -> float:
    """KL(N(m, S) | N(m0, S0)), dense."""
    d = m0 - m
    trace = np.trace(np.linalg.solve(S0, S))
    log_det = np.linalg.slogdet(S0)[1] - np.linalg.slogdet(S)[1]
    return float(0.5 * (trace - len(m) + d @ np.linalg.solve(S0, d) + log_det))


def sparse_kl(gp: SparseGP) -> float:
    """KL(q | p) of one GP: over u at Z or, decoupled, over (u, u') at Z and the mean's points together."""
    if gp.mean_points is None or gp.mean_coefficients is None:
        return gaussian_kl(gp.m, gp.S, np.zeros(len(gp.m)), gp.K_MM)
    Z, P, K = gp.Z, gp.mean_points, gp.K_MM
    K_zp, K_pp = gp.k(Z, P), gp.k(P, P) + gp.nugget * np.eye(len(P))
    prior = np.block([[K, K_zp], [K_zp.T, K_pp]])
    T = np.linalg.solve(K, K_zp).T  # E[u' | u] = T u
    conditional = K_pp - T @ K_zp
    mean = np.concatenate([gp.m, T @ gp.m + conditional @ gp.mean_coefficients])
    cov = np.block([[gp.S, gp.S @ T.T], [T @ gp.S, conditional + T @ gp.S @ T.T]])
    return gaussian_kl(mean, cov, np.zeros(len(mean)), prior)


# ---------------------------------------------------------------- deep models

Component = tuple[float, Array]  # a weight, and the hidden values g (W,) that come with it


def lined_up(
    weights: Array, sites: Sequence[Array]
) -> Callable[[Sequence[Sequence[SparseGP]], Array], Iterator[Component]]:
    """QR3 (eq. 23) and Monte Carlo: in every hidden layer, component s takes site s, `sites[layer][s]` (W,)."""

    def components(hidden: Sequence[Sequence[SparseGP]], x: Array) -> Iterator[Component]:
        for s, weight in enumerate(weights):
            g = x
            for layer, xi in zip(hidden, sites, strict=True):
                moments = [gp.moments(g) for gp in layer]
                g = np.array([mu + xi[s][w] * math.sqrt(var) for w, (mu, var) in enumerate(moments)])
            yield float(weight), g

    return components


def grids(
    weights: Sequence[Callable[[tuple[int, ...]], float]], columns: Sequence[Array]
) -> Callable[[Sequence[Sequence[SparseGP]], Array], Iterator[Component]]:
    """QR1, QR2 (eq. 22) and Gauss–Hermite (eqs. 18 to 20): every multi-index (s_1, …, s_W) in every hidden layer.

    `weights[layer]` maps a multi-index to its weight; `columns[layer]` holds ξ_w^(s) as (S, W).
    """

    def components(hidden: Sequence[Sequence[SparseGP]], x: Array) -> Iterator[Component]:
        below: list[Component] = [(1.0, x)]
        for layer, weight, xi in zip(hidden, weights, columns, strict=True):
            here: list[Component] = []
            for outer, g in below:
                moments = [gp.moments(g) for gp in layer]
                for s in itertools.product(range(len(xi)), repeat=len(layer)):
                    value = [mu + xi[s[w]][w] * math.sqrt(var) for w, (mu, var) in enumerate(moments)]
                    here.append((outer * weight(s), np.array(value)))
            below = here
        yield from below

    return components


def dspp_density(
    y: Array,
    X: Array,
    layers: Sequence[Sequence[SparseGP]],
    components: Callable[[Sequence[Sequence[SparseGP]], Array], Iterator[Component]],
    noise_var: float,
) -> Array:
    """p(y_i | x_i) = Σ_s ω_s N(y_i | μ_f(g_s), σ_f(g_s)² + σ_obs²) (eq. 20, with the σ_obs² that it lost)."""
    (top,) = layers[-1]
    density = np.zeros(len(y))
    for i, x in enumerate(X):
        for weight, g in components(layers[:-1], x):
            mu, var = top.moments(g)
            density[i] += weight * norm.pdf(y[i], mu, math.sqrt(var + noise_var))
    return density


# ---------------------------------------------------------------- models to test with


def random_rows(seed: int, rows: int, columns: int) -> Tensor:
    """Rows from N(0, 1), in float64."""
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@torch.no_grad()
def randomize(module: torch.nn.Module, seed: int, spread: float = 0.3) -> None:
    """Move every parameter off its starting value, so that no two GPs, sites or weights are alike."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in sorted(module.named_parameters()):
        step = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        wide = name.endswith(("q.mean", "mean_coefficients", "constant", "bias", "raw_outputscale"))
        p.add_((1.0 if wide else spread) * step)


def read_model(model: Model) -> list[list[SparseGP]]:
    """Every layer of a model as plain GPs."""
    return [read_layer(layer) for layer in model.gp_layers]

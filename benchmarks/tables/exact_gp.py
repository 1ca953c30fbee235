"""An exact Gaussian process: Matérn-5/2 kernel with one lengthscale per input, and noise, by marginal likelihood.

The hyperparameters are learned by L-BFGS on at most `LEARNING_ROWS` random training rows, from the best of a few starts
on fewer rows. Predictions are conditioned on all training rows, so a table may have at most `MAX_ROWS` of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from dspp.predictive import NormalMixture

MAX_ROWS = 10_000
LEARNING_ROWS = 3_000
START_ROWS = 750
STARTS = 4
START_STEPS = 60  # of L-BFGS per start
STEPS = 40  # of L-BFGS on LEARNING_ROWS
BLOCK = 2_000  # rows predicted at once
ROOT5 = math.sqrt(5.0)


@dataclass(frozen=True, eq=False)
class Kernel:
    """k(x, x') = s² (1 + √5 r + 5/3 r²) exp(−√5 r) with r² = Σ_d (x_d − x'_d)² / ℓ_d², and the noise variance."""

    lengthscale: np.ndarray
    signal: float
    noise: float

    @classmethod
    def of(cls, theta: np.ndarray, floor: float) -> "Kernel":
        """Return the kernel for log lengthscales, log s² and log (noise − floor)."""
        return cls(np.exp(theta[:-2]), math.exp(theta[-2]), floor + math.exp(theta[-1]))

    def squared_distance(self, A: np.ndarray, B: np.ndarray) -> np.ndarray:
        """Return r² for each pair."""
        a, b = A / self.lengthscale, B / self.lengthscale
        return np.maximum(np.square(a).sum(1)[:, None] + np.square(b).sum(1) - 2.0 * a @ b.T, 0.0)

    def __call__(self, A: np.ndarray, B: np.ndarray) -> np.ndarray:
        """Return k for each pair, without noise."""
        r = np.sqrt(self.squared_distance(A, B))
        return self.signal * (1.0 + ROOT5 * r + 5.0 / 3.0 * r * r) * np.exp(-ROOT5 * r)


def negative_log_marginal(theta: np.ndarray, X: np.ndarray, y: np.ndarray, floor: float) -> tuple[float, np.ndarray]:
    """Return −log N(y | 0, K + σ²I) / N and its gradient."""
    kernel, num = Kernel.of(theta, floor), len(y)
    r2 = kernel.squared_distance(X, X)
    np.fill_diagonal(r2, 0.0)
    r = np.sqrt(r2)
    decay = kernel.signal * np.exp(-ROOT5 * r)
    K = decay * (1.0 + ROOT5 * r + 5.0 / 3.0 * r2)
    L = cholesky(K + kernel.noise * np.eye(num), lower=True, check_finite=False)
    alpha = cho_solve((L, True), y, check_finite=False)
    value = 0.5 * y @ alpha + np.log(np.diag(L)).sum() + 0.5 * num * math.log(2.0 * math.pi)
    by_K = 0.5 * (cho_solve((L, True), np.eye(num), check_finite=False) - np.outer(alpha, alpha))  # ∂/∂K
    by_r2 = by_K * decay * (-5.0 / 6.0) * (1.0 + ROOT5 * r)  # ∂k/∂r² = −5/6 s² (1 + √5 r) exp(−√5 r)
    scaled = X / kernel.lengthscale
    spread = by_r2.sum(1) @ np.square(scaled) - np.einsum("nd,nd->d", scaled, by_r2 @ scaled)  # ½ Σ_ij ∂r² (x_i − x_j)²
    gradient = np.concatenate([-4.0 * spread, [np.sum(by_K * K)], [np.trace(by_K) * (kernel.noise - floor)]])
    return value / num, gradient / num


def learn(X: np.ndarray, y: np.ndarray, floor: float, seed: int) -> tuple[np.ndarray, float]:
    """Return the hyperparameters with the highest marginal likelihood found, and its negative per row."""
    rng = np.random.default_rng(seed)
    order, width = rng.permutation(len(y)), X.shape[1]
    few, more = order[:START_ROWS], order[:LEARNING_ROWS]
    centre = np.concatenate([np.full(width, math.log(math.sqrt(width))), [0.0], [math.log(0.1)]])
    starts = [centre, *(centre + rng.normal(0.0, 1.0, centre.shape) for _ in range(STARTS - 1))]
    best = min((_descend(start, X[few], y[few], floor, START_STEPS) for start in starts), key=lambda found: found[1])
    return _descend(best[0], X[more], y[more], floor, STEPS) if len(more) > len(few) else best


def _descend(start: np.ndarray, X: np.ndarray, y: np.ndarray, floor: float, steps: int) -> tuple[np.ndarray, float]:
    bounds = [(-5.0, 8.0)] * X.shape[1] + [(-5.0, 8.0), (-16.0, 3.0)]
    start = np.clip(start, *np.array(bounds).T)
    found = minimize(
        negative_log_marginal,
        start,
        (X, y, floor),
        method="L-BFGS-B",
        jac=True,
        bounds=bounds,
        options={"maxiter": steps, "maxfun": 2 * steps},
    )
    return found.x, float(found.fun)


def fit(
    X: np.ndarray, y: np.ndarray, *, floor: float, seed: int
) -> tuple[Callable[[np.ndarray], NormalMixture], dict[str, Any]]:
    """Fit standardised rows; return a function that predicts, and details."""
    theta, value = learn(X, y, floor, seed)
    kernel = Kernel.of(theta, floor)
    L = cholesky(kernel(X, X) + kernel.noise * np.eye(len(y)), lower=True, check_finite=False)
    alpha = cho_solve((L, True), y, check_finite=False)

    def predict(rows: np.ndarray) -> NormalMixture:
        blocks = [rows[i : i + BLOCK] for i in range(0, len(rows), BLOCK)]
        moments = [_moments(kernel, X, L, alpha, block) for block in blocks]
        mean, var = (torch.from_numpy(np.concatenate(part))[None] for part in zip(*moments, strict=True))
        noise = torch.tensor(kernel.noise, dtype=torch.float64)
        return NormalMixture(torch.zeros(1, dtype=torch.float64), mean, var, noise)

    return predict, {"negative_log_marginal": value, "noise": kernel.noise}


def _moments(
    kernel: Kernel, X: np.ndarray, L: np.ndarray, alpha: np.ndarray, rows: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    Kxs = kernel(X, rows)
    explained = np.square(solve_triangular(L, Kxs, lower=True, check_finite=False)).sum(0)
    return Kxs.T @ alpha, np.maximum(kernel.signal - explained, 0.0)

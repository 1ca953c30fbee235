"""A single GP, fitted in closed form instead of by steps: seconds where training takes minutes.

The hyperparameters maximise the exact marginal likelihood of a few hundred rows (L-BFGS). Given these, inducing points
Z are rows at which the GP is uncertain given the points before, and the noise variance and q(u) are the best ones for
all rows (Titsias 2009). With A = L⁻¹ k(Z, X), unit kernel, output scale s and noise variance σ²,

    −2 log bound = N log 2πσ² + log |1 + s A Aᵀ/σ²| + (|y|² − s |S^½ A y|²/σ² + s tr(K_XX − Aᵀ A)) / σ²
    q(v) = N(m, S),   S = (1 + s A Aᵀ/σ²)⁻¹,   m = √s S A y / σ²

If all rows are inducing points, this is the exact GP. The result is an ordinary model of one layer. Its float32
predictions were as good as in float64 on six tables, so there is no note on precision.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dspp.config import ModelConfig, ObjectiveConfig
from dspp.errors import NumericalError, TrainingInterrupted
from dspp.gp.kernels import ARDKernel, inverse_softplus
from dspp.gp.linalg import factorise, lower_root, negative_log_normal
from dspp.members.base import MEMBERS, Control, Member, Task
from dspp.model import Model, compose, plain_layer
from dspp.presets import Spec

if TYPE_CHECKING:  # predicting does not need it
    from dspp.training.result import FitResult
    from dspp.training.rows import Rows

LEARNING_ROWS = 400  # from which hyperparameters are learned
STEPS = 40  # of L-BFGS
MAX_CANDIDATES = 4_000  # rows among which inducing points are chosen
LENGTHSCALES = 0.01, 400.0  # bounds, in standard deviations of an input,
OUTPUTSCALES = 0.02, 50.0  # and in variances of the target
MAX_NOISE = 2.0
EXACT = torch.float64
POINTS = 1_024  # inducing points; half as many in each of several folds


@MEMBERS.register("gp")
class Gp(Member):
    """A single GP in closed form. Those of all folds are alike, while DSPPs gain by averaging, so it weighs less."""

    kind: ClassVar[str] = "gp"
    title: ClassVar[str] = "columns alone (single GPs)"
    in_steps: ClassVar[bool] = False
    share_in_folds: ClassVar[float] = 0.5

    @classmethod
    def applies(cls, kinds: Sequence[str], model: ModelConfig, has_trees: bool) -> bool:
        """Return whether a closed form exists: nothing stands in front of the GP."""
        return has_trees and cls.kind in kinds and not model.features and not model.mean_inducing

    @classmethod
    def spec_from(cls, spec: Spec, num_folds: int, num_columns: int = 1) -> Spec:
        """Return a model of one layer with a full q(u)."""
        points = POINTS if num_folds == 1 else POINTS // 2
        model = spec.model.change(layers=1, covariance="full", inducing=points, top_mean=ModelConfig.top_mean)
        return Spec("svgp", model, ObjectiveConfig("elbo", beta=1.0))

    @classmethod
    def fit(cls, task: Task, rows: "Rows", validation: "Rows | None", control: Control) -> "FitResult":
        """Solve for the model."""
        return fit_gp(task.spec.model, rows, task.config.seed, control.should_stop or (lambda: False))


def fit_gp(
    config: ModelConfig, rows: "Rows", seed: int = 0, should_stop: Callable[[], bool] = lambda: False
) -> "FitResult":
    """Fit a model of one layer with a full q(u) and Gaussian noise to standardised rows with one target.

    The seed chooses the rows from which hyperparameters are learned.

    Raises:
        NumericalError: The kernel matrix could not be factorised.
        TrainingInterrupted: `should_stop`, which is called regularly, returned True.
    """
    began = time.perf_counter()
    generator = torch.Generator().manual_seed(seed)
    x, y = rows.x.to(EXACT), rows.y[:, 0].to(EXACT)
    weights = torch.ones_like(y) if rows.weights is None else rows.weights.to(EXACT)
    few = torch.randperm(len(y), generator=generator)[:LEARNING_ROWS]
    lengthscale, outputscale, noise = _learn(config, x[few], y[few], weights[few], should_stop)
    kernel = ARDKernel(config.kernel, 1, x.shape[1]).to(EXACT)
    set_parameter(kernel.raw_lengthscale, [inverse_softplus(value) for value in lengthscale])
    set_parameter(kernel.raw_outputscale, [inverse_softplus(outputscale)])
    with torch.no_grad():
        candidates = x[torch.randperm(len(y), generator=generator)[:MAX_CANDIDATES]]
        points = candidates[choose_points(kernel, candidates, config.inducing, should_stop)]
        model = _solve(config, kernel, points, x, y, weights, noise, generator)
    return closed_form(model, began)


def negative_log_marginal(
    theta: Float[Tensor, " D+2"], config: ModelConfig, x: Float[Tensor, "n D"], y: Float[Tensor, " n"], weights: Tensor
) -> tuple[float, Float[Tensor, " D+2"]]:
    """Return −log N(y | 0, s K + σ²/w) per row, without its constant, and the gradient.

    θ holds the logarithms of the length scales, the output scale s, and the noise variance above its floor.
    """
    theta = theta.detach().requires_grad_()
    kernel = ARDKernel(config.kernel, 1, x.shape[1])
    scaled = x * (kernel.kind.factor**0.5 / theta[:-2].exp())
    noise = (config.noise_floor + theta[-1].exp()) / weights
    K = theta[-2].exp() * kernel.exact_matrix(scaled.unsqueeze(0))[0] + torch.diag(noise)
    with torch.no_grad():
        found = negative_log_normal(K, y)
    if found is None:
        return math.inf, torch.zeros_like(theta)
    value, by_K = found
    K.backward(by_K)
    assert theta.grad is not None
    return value / len(y), theta.grad / len(y)


def choose_points(
    kernel: ARDKernel, x: Float[Tensor, "N D"], most: int, should_stop: Callable[[], bool] = lambda: False
) -> Int[Tensor, " M"]:
    """Return the numbers of at most `most` rows, each the one with the largest variance given those before it.

    This is the Cholesky factorisation of K_XX with pivots; rows that are known to within the nugget end it.
    """
    scaled = kernel.scale(x.unsqueeze(0))
    variance = torch.ones_like(x[:, 0])
    root = x.new_empty(min(most, len(x)), len(x))
    chosen: list[int] = []
    while len(chosen) < len(root):
        place, i = len(chosen), int(variance.argmax())
        if variance[i] < 1e-6:
            break
        if place % 50 == 0 and should_stop():
            raise TrainingInterrupted("training was stopped; repeat the same call to resume")
        row = kernel.unit_matrix(scaled[:, i : i + 1], scaled)[0, 0]
        torch.sub(row, root[:place, i] @ root[:place], out=root[place])
        root[place] /= variance[i].sqrt()
        variance = (variance - root[place].square()).clamp_min(0.0)
        variance[i] = 0.0
        chosen.append(i)
    return torch.tensor(chosen)


def _learn(
    config: ModelConfig, x: Tensor, y: Tensor, weights: Tensor, should_stop: Callable[[], bool]
) -> tuple[list[float], float, float]:
    """Return length scales, output scale and noise variance."""
    from scipy.optimize import minimize  # imported here: predicting does not need it

    D = x.shape[1]

    def objective(theta: Float[np.ndarray, " D+2"]) -> tuple[float, Float[np.ndarray, " D+2"]]:
        if should_stop():
            raise TrainingInterrupted("training was stopped; repeat the same call to resume")
        value, gradient = negative_log_marginal(torch.from_numpy(theta), config, x, y, weights)
        return (value, gradient.numpy()) if math.isfinite(value) else (1e10, gradient.numpy())

    start = np.log([*[config.lengthscale or 0.5 * D**0.5] * D, 1.0, config.noise])
    bounds = np.log([*[LENGTHSCALES] * D, OUTPUTSCALES, (1e-6, MAX_NOISE)])
    options = {"maxiter": STEPS, "maxfun": 2 * STEPS}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    *lengthscale, outputscale, noise = np.exp(found.x)
    return [float(one) for one in lengthscale], float(outputscale), float(config.noise_floor + noise)


def _solve(
    config: ModelConfig,
    kernel: ARDKernel,
    points: Float[Tensor, "M D"],
    x: Float[Tensor, "N D"],
    y: Float[Tensor, " N"],
    weights: Float[Tensor, " N"],
    noise: float,
    generator: torch.Generator,
) -> Model:
    """Return the model with the best noise variance and q(u) for these rows.

    Everything is computed from the parameters as the model stores them, so that their rounding costs nothing.
    """
    from scipy.optimize import minimize_scalar

    layer = plain_layer(config, 0, 1, x.shape[1], points, None).to(getattr(torch, config.dtype))
    layer.kernel.load_state_dict(kernel.state_dict())
    stored = ARDKernel(config.kernel, 1, x.shape[1]).to(EXACT)
    stored.load_state_dict(layer.kernel.state_dict())
    z = stored.scale(layer.inducing_points.to(EXACT))
    whitening = factorise(stored.exact_matrix(z), config.jitter, layer.name)
    A = whitening.inverse_root[0] @ stored.unit_matrix(z, stored.scale(x.unsqueeze(0)))[0]  # (M, N)
    scale, nugget = stored.outputscale[0], whitening.jitter[0]
    missing = weights @ (1.0 + nugget - A.square().sum(0)).clamp_min(0.0)
    A = A * weights.sqrt()  # a weight divides the noise variance of its row
    y = y * weights.sqrt()
    if not torch.isfinite(A).all():
        raise NumericalError(f"{layer.name}: the kernel matrix of the rows is not finite; standardise the inputs")
    eigenvalues, U = torch.linalg.eigh(scale * A @ A.mT)  # s A Aᵀ = U Λ Uᵀ
    eigenvalues = eigenvalues.clamp_min(0.0)
    c = U.mT @ (scale.sqrt() * A @ y)

    def bound(log_noise: float) -> float:
        v = math.exp(log_noise)
        rest = float(y @ y - (c.square() / (v + eigenvalues)).sum() + scale * missing)
        return len(y) * log_noise + float(torch.log1p(eigenvalues / v).sum()) + rest / v

    lowest = config.noise_floor * (1.0 + 1e-3)  # softplus, which adds to the floor, is never 0
    limits = math.log(max(lowest, 1e-6)), math.log(max(MAX_NOISE, 2.0 * noise))
    noise = math.exp(float(minimize_scalar(bound, bounds=limits, method="bounded", options={"xatol": 1e-3}).x))

    S = (U * (noise / (noise + eigenvalues))) @ U.mT
    layer.q.root.copy_(lower_root(S).unsqueeze(0))
    layer.q.mean.copy_((U @ (c / (noise + eigenvalues))).unsqueeze(0))
    model = compose(config, [layer], 1, x.shape[1], generator).to(layer.inducing_points.dtype)
    model.likelihood.set_noise(noise - config.noise_floor)
    return model


def closed_form(model: Model, began: float) -> "FitResult":
    """Return the result of a fit without steps that began at this time (`time.perf_counter`)."""
    from dspp.training.result import FitResult

    return FitResult(model.eval(), seconds=time.perf_counter() - began)


def set_parameter(parameter: Tensor, values: list[float]) -> None:
    """Set a parameter to these values."""
    with torch.no_grad():
        parameter.copy_(torch.tensor(values).reshape(parameter.shape))

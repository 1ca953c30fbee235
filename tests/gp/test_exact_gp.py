"""Promise 1: with Z = X and the optimal q(u), the sparse GP is the exact GP; a layer is the paper's eqs. 7 and 8."""

import numpy as np
import pytest
import reference as ref
import torch
from given import predicted
from reference import assert_close

from dspp.config import ModelConfig
from dspp.gp.kernels import KERNELS, ARDKernel
from dspp.gp.layer import GPLayer
from dspp.gp.means import MEANS, ConstantMean
from dspp.model import Model, build
from dspp.objectives import elbo

N, D, JITTER = 14, 2, 1e-12
LENGTHSCALE, OUTPUTSCALE, CONSTANT = np.array([0.4, 0.6]), 1.7, 0.3


def grid_rows(seed: int = 0) -> torch.Tensor:
    """N rows that keep their distance, so that K is well conditioned for every kernel."""
    axis = torch.arange(4, dtype=torch.float64) * 0.8
    rows = torch.cartesian_prod(axis, axis)[:N]
    return rows + 0.05 * ref.random_rows(seed, N, D)


def exact_model(kind: str, x: torch.Tensor, y: torch.Tensor, noise: float) -> Model:
    """An SVGP on Z = X whose q(u) is the exact posterior, found in NumPy."""
    config = ModelConfig(
        layers=1,
        covariance="full",
        kernel=kind,
        inducing=N,
        jitter=JITTER,
        noise=noise,
        noise_floor=0.0,
        dtype="float64",
    )
    model = build(config, x)
    layer = model.gp_layers[0]
    K = ref.kernel_matrix(kind, x.numpy(), x.numpy(), LENGTHSCALE, OUTPUTSCALE)
    L = np.linalg.cholesky(K + OUTPUTSCALE * JITTER * np.eye(N))
    A = np.linalg.solve(L, K)  # f = Aᵀ v + a rest that is 0 for Z = X
    S = np.linalg.inv(np.eye(N) + A @ A.T / noise)  # posterior of v given y
    with torch.no_grad():
        layer.inducing_points.copy_(x)
        layer.kernel.raw_lengthscale.copy_(torch.tensor(LENGTHSCALE).expm1().log())  # softplus⁻¹
        layer.kernel.raw_outputscale.copy_(torch.tensor([OUTPUTSCALE], dtype=torch.float64).expm1().log())
        model.likelihood.raw_noise.copy_(torch.tensor([noise], dtype=torch.float64).expm1().log())
        layer.q.mean.copy_(torch.tensor(S @ A @ (y.numpy() - CONSTANT) / noise))
        layer.q.root.copy_(torch.tensor(np.linalg.cholesky(S)))
        assert isinstance(layer.mean, ConstantMean)
        layer.mean.constant.fill_(CONSTANT)
    return model


@pytest.mark.parametrize("kind", ref.KERNELS)
@pytest.mark.parametrize("noise", [0.02, 0.5])
def test_with_inducing_points_on_the_rows_the_exact_gp_comes_out(kind: str, noise: float) -> None:
    x, y = grid_rows(), 2 * ref.random_rows(1, N, 1)[:, 0]
    model = exact_model(kind, x, y, noise)
    K = ref.kernel_matrix(kind, x.numpy(), x.numpy(), LENGTHSCALE, OUTPUTSCALE)
    for rows in (x, 1.2 + ref.random_rows(2, 9, D)):  # the training rows, and others
        K_star = ref.kernel_matrix(kind, rows.numpy(), x.numpy(), LENGTHSCALE, OUTPUTSCALE)
        mean, var = ref.exact_posterior(K_star, K, y.numpy() - CONSTANT, noise, np.full(len(rows), OUTPUTSCALE))
        mixture = predicted(model, rows)
        assert_close(mixture.mean, CONSTANT + mean, 1e-8)
        assert_close(mixture.latent_var[0], var, 1e-8)
        assert_close(mixture.var, var + noise, 1e-8)
    bound = N * elbo(model.likelihood, model(x), y[:, None], model.kl(), N, beta=1.0)
    assert_close(bound, ref.log_marginal_likelihood(K, y.numpy() - CONSTANT, noise), 1e-8)


@pytest.mark.parametrize("kind", ref.KERNELS)
def test_the_exact_posterior_is_where_the_elbo_is_highest(kind: str) -> None:
    x, y = grid_rows(), ref.random_rows(1, N, 1)[:, 0]
    model = exact_model(kind, x, y, 0.1)
    elbo(model.likelihood, model(x), y[:, None], model.kl(), N).backward()
    q = model.gp_layers[0].q
    assert_close(q.mean.grad, torch.zeros_like(q.mean), 1e-8)
    assert_close(q.root.grad, torch.zeros_like(q.root), 1e-8)
    best = elbo(model.likelihood, model(x), y[:, None], model.kl(), N).item()
    ref.randomize(q, seed=3, spread=0.01)
    assert elbo(model.likelihood, model(x), y[:, None], model.kl(), N).item() < best - 1e-4


@pytest.mark.parametrize("jitter", [1e-6, 0.05])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("basis", [False, True])
@pytest.mark.parametrize("kind", ref.KERNELS)
def test_a_layer_is_the_papers_unwhitened_equations(kind: str, basis: bool, full: bool, jitter: float) -> None:
    width, points = 3, ref.random_rows(0, 6, D)
    mean_points = ref.random_rows(1, 4, D) if basis else None
    mean, kernel = MEANS["linear"](D, width), ARDKernel(kind, width, D)
    layer = GPLayer(mean, kernel, points, full=full, jitter=jitter, mean_points=mean_points).double()
    ref.randomize(layer, seed=4)
    rows = ref.random_rows(5, 10, D).reshape(2, 5, D)
    mean_f, var_f = layer(rows)
    assert mean_f.shape == var_f.shape == (2, 5, width)
    for w, gp in enumerate(ref.read_layer(layer)):
        for s in range(2):
            for n in range(5):
                mu, var = gp.moments(rows[s, n].numpy())
                assert_close(mean_f[s, n, w], mu, 1e-9)
                assert_close(var_f[s, n, w], var, 1e-9)
    assert layer.jitter_increases == 0


def test_the_mean_function_reads_rows_of_its_own_where_they_are_given() -> None:
    mean, kernel = MEANS["linear"](3, 2), ARDKernel("matern52", 2, D)
    layer = GPLayer(mean, kernel, ref.random_rows(0, 6, D), full=False, jitter=1e-6).double()
    ref.randomize(layer, seed=4)
    rows, mean_rows = ref.random_rows(5, 4, D), ref.random_rows(6, 4, 3)
    got, _ = layer(rows[None], mean_rows[None])
    for w, gp in enumerate(ref.read_layer(layer)):
        expected = [gp.moments(x.numpy(), z.numpy())[0] for x, z in zip(rows, mean_rows, strict=True)]
        assert_close(got[0, :, w], np.array(expected))


@pytest.mark.parametrize("kind", ref.KERNELS)
def test_kernel_matrices_are_their_formulas(kind: str) -> None:
    x, z = ref.random_rows(0, 5, 3), ref.random_rows(1, 4, 3)
    z[0] = x[0]
    kernel = ARDKernel(kind, 2, 3).double()
    ref.randomize(kernel, seed=2, spread=1.0)
    K = kernel(x, z)
    value = kernel.kind.value((kernel.scale(x)[:, :, None] - kernel.scale(z)[:, None]).square().sum(-1))
    for w in range(2):
        lengthscale, scale = kernel.lengthscale[w].detach().numpy(), kernel.outputscale[w].item()
        expected = ref.kernel_matrix(kind, x.numpy(), z.numpy(), lengthscale, scale)
        assert_close(K[w], expected, 1e-7 if kind == "matern12" else 1e-12)  # √ of a rounding error, where x = z
        assert_close(scale * value[w], expected, 1e-12)


def test_every_registered_kernel_has_ones_on_its_diagonal_and_falls() -> None:
    t2 = torch.linspace(0, 30, 50, dtype=torch.float64)
    for kind in KERNELS.values():
        values = kind.value(t2)
        assert values[0] == 1
        assert bool((values.diff() < 0).all())

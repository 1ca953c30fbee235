"""A GP in closed form: its marginal likelihood, its inducing points, and that nothing about q(u) could be better."""

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from dspp.config import ModelConfig
from dspp.errors import TrainingInterrupted
from dspp.gp.kernels import KERNELS, ARDKernel
from dspp.members.gp import choose_points, fit_gp, negative_log_marginal
from dspp.model import Model
from dspp.objectives import elbo
from dspp.training.rows import Rows
from tests.reference import assert_close, kernel_matrix, read_layer

CONFIG = ModelConfig(layers=1, covariance="full", inducing=12, dtype="float64")
RNG = np.random.default_rng(3)
X = RNG.normal(size=(40, 2))
Y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * RNG.normal(size=40)
WEIGHTS = RNG.uniform(0.2, 1.8, size=40)
WEIGHTS /= WEIGHTS.mean()


def rows(weighted: bool = False) -> Rows:
    x, y, w = (torch.from_numpy(values) for values in (X, Y, WEIGHTS))
    return Rows(x, y[:, None], w if weighted else None)


def bound(model: Model, data: Rows) -> torch.Tensor:
    return elbo(model.likelihood, model(data.x), data.y, model.kl(), len(data), weights=data.weights)


@pytest.mark.parametrize("kind", sorted(KERNELS))
def test_marginal_likelihood_is_that_of_a_normal_distribution(kind: str) -> None:
    theta = np.log([0.7, 1.9, 1.3, 0.2])
    config = CONFIG.change(kernel=kind)
    x, y, w = (torch.from_numpy(values) for values in (X, Y, WEIGHTS))

    def value(at: np.ndarray) -> float:
        return negative_log_marginal(torch.from_numpy(at), config, x, y, w)[0]

    K = kernel_matrix(kind, X, X, np.exp(theta[:2]), np.exp(theta[2]))
    K += np.diag((config.noise_floor + np.exp(theta[3])) / WEIGHTS)
    expected = -multivariate_normal(np.zeros(len(Y)), K).logpdf(Y) / len(Y) - 0.5 * np.log(2 * np.pi)
    assert value(theta) == pytest.approx(expected, abs=1e-10)
    steps = 1e-6 * np.eye(4)
    numeric = [(value(theta + step) - value(theta - step)) / 2e-6 for step in steps]
    gradient = negative_log_marginal(torch.from_numpy(theta), config, x, y, w)[1]
    assert_close(gradient, torch.tensor(numeric, dtype=torch.float64), tol=1e-6)


def test_with_all_rows_as_points_it_is_the_exact_gp() -> None:
    model = fit_gp(CONFIG.change(inducing=100), rows()).model
    (gp,) = read_layer(model.gp_layers[0])
    new = RNG.normal(size=(7, 2))
    noise = float(model.likelihood.noise_var.detach())
    K, k = gp.k(X, X), gp.k(X, new)
    solved = np.linalg.solve(K + noise * np.eye(len(X)), np.column_stack([Y, k]))
    found = model.predictor()(new)
    assert_close(found.mean, k.T @ solved[:, 0], tol=1e-3)  # the nugget is part of the prior here
    variance = gp.outputscale - np.einsum("ij,ij->j", k, solved[:, 1:]) + noise
    assert_close(found.std, np.sqrt(variance), tol=1e-3)


@pytest.mark.parametrize("weighted", [False, True])
def test_no_other_q_or_noise_has_a_higher_bound(weighted: bool) -> None:
    data = rows(weighted)
    model = fit_gp(CONFIG, data).model
    assert len(model.gp_layers[0].inducing_points[0]) == 12
    (-bound(model, data)).backward()  # type: ignore[no-untyped-call]
    q = model.gp_layers[0].q
    for what, parameter, tol in (
        ("mean", q.mean, 1e-8),
        ("root", q.root, 1e-6),
        ("noise", model.likelihood.raw_noise, 1e-3),
    ):
        assert parameter.grad is not None
        gradient = parameter.grad.tril() if what == "root" else parameter.grad
        assert float(gradient.abs().max()) < tol, what
    with torch.no_grad():
        best = float(bound(model, data))
        q.mean += 0.05
        assert float(bound(model, data)) < best


def test_points_are_the_rows_that_are_least_known() -> None:
    kernel = ARDKernel("matern52", 1, 2).double()
    doubled = torch.from_numpy(np.concatenate([X, X[:10]]))
    with torch.no_grad():
        everything = choose_points(kernel, doubled, 100)
        few = choose_points(kernel, doubled, 8)
        K = kernel.unit_matrix(*(kernel.scale(doubled[None]),) * 2)[0]
    assert len(everything) == 40, "repeated rows add nothing"
    assert sorted({row % 40 for row in everything.tolist()}) == list(range(40))
    assert few.tolist() == everything[:8].tolist()
    for place in range(1, 8):
        known = few[:place]
        left = K.diagonal() - (K[:, known] @ torch.linalg.inv(K[known][:, known]) * K[:, known]).sum(1)
        assert float(left[few[place]]) == pytest.approx(float(left.max()), abs=1e-9)


def test_the_same_seed_gives_the_same_bits_and_float32_the_same_numbers() -> None:
    one, two = (fit_gp(CONFIG, rows(), seed=1).model.state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    exact = fit_gp(CONFIG, rows()).model.predictor()(X)
    short = fit_gp(CONFIG.change(dtype="float32"), Rows(rows().x.float(), rows().y.float())).model.predictor()(X)
    assert_close(short.mean, exact.mean, tol=1e-3)
    assert_close(short.std, exact.std, tol=1e-3)


def test_a_constant_input_and_noise_alone_are_no_trouble() -> None:
    x = torch.cat([torch.zeros(40, 1), torch.from_numpy(X)], dim=1).float()
    y = torch.from_numpy(RNG.normal(size=(40, 1))).float()
    result = fit_gp(CONFIG.change(dtype="float32"), Rows(x, y))
    found = result.model.predictor()(x.numpy())
    assert 0.5 < float(found.std.mean()) < 2.0
    assert result.history == ()


def test_it_stops_when_asked_to() -> None:
    with pytest.raises(TrainingInterrupted, match="repeat the same call"):
        fit_gp(CONFIG, rows(), should_stop=lambda: True)

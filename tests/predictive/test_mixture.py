"""Promises 6 and 11: the mixture is a distribution, its far tails are safe; each method against an oracle."""

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pandas as pd
import pytest
import scoringrules
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.autograd import gradcheck
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal, Normal

from dspp.errors import InputError, NumericalError
from dspp.predictive import Mixture, MultivariateNormalMixture, NormalMixture, maths

F64 = torch.float64
TAILS = torch.tensor([1e-6, 1e-4, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1 - 1e-4, 1 - 1e-6], dtype=F64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal_mixture(S: int = 4, N: int = 5, seed: int = 0, spread: float = 1.0) -> NormalMixture:
    g = seeded(seed)
    log_weights = torch.randn(S, generator=g, dtype=F64).log_softmax(0)
    mean = spread * torch.randn(S, N, generator=g, dtype=F64)
    latent_var = 0.05 + torch.rand(S, N, generator=g, dtype=F64)
    return NormalMixture(log_weights, mean, latent_var, torch.tensor(0.1, dtype=F64))


def multivariate_mixture(S: int = 3, N: int = 4, T: int = 3, seed: int = 0) -> MultivariateNormalMixture:
    g = seeded(seed)
    root = torch.randn(S, N, T, T, generator=g, dtype=F64)
    return MultivariateNormalMixture(
        torch.randn(S, generator=g, dtype=F64).log_softmax(0),
        torch.randn(S, N, T, generator=g, dtype=F64),
        root @ root.mT,
        0.1 + torch.rand(T, generator=g, dtype=F64),
    )


def targets(mixture: Mixture, seed: int = 1) -> Tensor:
    return 2.0 * torch.randn(mixture.component_mean.shape[1:], generator=seeded(seed), dtype=F64)


Make = Callable[..., Mixture]


def repeat(mixture: Mixture, row: int, times: int) -> Mixture:
    return mixture.rows(torch.full((times,), row))


BOTH = pytest.mark.parametrize("make", [normal_mixture, multivariate_mixture])


def same(a: Mixture, b: Mixture) -> bool:
    return type(a) is type(b) and all(torch.equal(vars(a)[name], vars(b)[name]) for name in vars(a))


# ------------------------------------------------------------ density


def test_density_integrates_to_one() -> None:
    mixture = normal_mixture(S=5, N=3, spread=3.0)
    grid = torch.linspace(-30.0, 30.0, 20_001, dtype=F64)
    for n in range(len(mixture)):
        density = repeat(mixture, n, len(grid)).log_prob(grid).exp()
        assert torch.trapezoid(density, grid).item() == pytest.approx(1.0, abs=1e-6)


def test_joint_density_integrates_to_one_and_to_the_marginals() -> None:
    mixture = multivariate_mixture(S=3, N=1, T=2)
    axis = torch.linspace(-20.0, 20.0, 301, dtype=F64)
    y = torch.cartesian_prod(axis, axis)
    joint = repeat(mixture, 0, len(y)).log_prob(y).exp().reshape(len(axis), len(axis))
    for t in range(2):
        by_integral = torch.trapezoid(joint, axis, dim=1 - t)
        closed = repeat(mixture.marginal(t), 0, len(axis)).log_prob(axis).exp()
        torch.testing.assert_close(by_integral, closed, atol=1e-9, rtol=0)
        assert torch.trapezoid(by_integral, axis).item() == pytest.approx(1.0, abs=1e-6)


def test_log_prob_agrees_with_torch() -> None:
    mixture = normal_mixture(S=6, N=50)
    y = targets(mixture)
    components = Normal(mixture.component_mean.T, mixture.component_var.T.sqrt())
    oracle = MixtureSameFamily(Categorical(logits=mixture.log_weights.expand(50, -1)), components)
    torch.testing.assert_close(mixture.log_prob(y), oracle.log_prob(y), atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(mixture.component_log_prob(y), components.log_prob(y[:, None]).T)


@pytest.mark.parametrize("T", [1, 2, 5])
@pytest.mark.parametrize("noise_by_row", [False, True])
def test_multivariate_log_prob_agrees_with_torch(T: int, noise_by_row: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maths, "_STACK_CHUNK", 7)
    mixture = multivariate_mixture(S=4, N=9, T=T)
    if noise_by_row:
        mixture = mixture.with_noise(0.2 + torch.rand(9, T, generator=seeded(), dtype=F64))
    y = targets(mixture)
    cov = mixture.latent_cov + torch.diag_embed(mixture.noise_var)
    components = MultivariateNormal(mixture.component_mean.movedim(0, 1), cov.movedim(0, 1))
    oracle = MixtureSameFamily(Categorical(logits=mixture.log_weights.expand(9, -1)), components)
    torch.testing.assert_close(mixture.log_prob(y), oracle.log_prob(y), atol=1e-11, rtol=1e-11)
    torch.testing.assert_close(mixture.component_log_prob(y), components.log_prob(y[:, None]).T)


def test_one_output_is_the_same_in_both_classes() -> None:
    wide = multivariate_mixture(T=1)
    narrow, y = wide.marginal(0), targets(wide)
    for method in ("log_prob", "component_log_prob", "expected_log_lik", "crps"):
        a, b = getattr(wide, method)(y), getattr(narrow, method)(y[:, 0])
        torch.testing.assert_close(a.reshape(b.shape), b, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("side", [-1.0, 1.0])
@BOTH
def test_far_tails(make: Make, side: float, dtype: torch.dtype) -> None:
    leaves = {name: field.to(dtype).requires_grad_() for name, field in vars(make()).items()}
    mixture = type(make())(**leaves)
    y = (mixture.mean + side * 1e6 * mixture.std).detach().requires_grad_()
    log_prob = mixture.log_prob(y)
    log_prob.sum().backward()
    gradients = [y.grad, *(leaf.grad for leaf in leaves.values())]
    assert log_prob.dtype == dtype
    assert log_prob.isfinite().all()
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)
    assert ((log_prob < -1e11) & (log_prob > -1e15)).all()
    assert y.grad is not None
    assert (y.grad.sum(-1) * side < 0).all() if y.ndim == 1 else (y.grad != 0).all()


def test_far_tail_value_is_that_of_the_widest_component() -> None:
    mixture = NormalMixture(
        torch.tensor([0.25, 0.75], dtype=F64).log(),
        torch.zeros(2, 1, dtype=F64),
        torch.tensor([[3.0], [0.0]], dtype=F64),
        torch.tensor(1.0, dtype=F64),
    )
    y = torch.tensor([1e6], dtype=F64)
    exact = math.log(0.25) - 0.5 * (1e12 / 4 + math.log(2 * math.pi * 4))
    assert mixture.log_prob(y).item() == pytest.approx(exact, rel=1e-15)


def test_a_component_without_weight_changes_nothing() -> None:
    two = NormalMixture(
        torch.tensor([0.0, -math.inf], dtype=F64, requires_grad=True),
        torch.tensor([[1.0], [5.0]], dtype=F64, requires_grad=True),
        torch.ones(2, 1, dtype=F64),
        torch.tensor(0.0, dtype=F64),
    )
    log_prob = two.log_prob(torch.tensor([5.0], dtype=F64))
    log_prob.sum().backward()
    assert log_prob.item() == pytest.approx(stats.norm(1, 1).logpdf(5.0))
    assert two.component_mean.grad is not None
    assert two.component_mean.grad.tolist() == [[4.0], [0.0]]


def tensors_of(mixture: Mixture) -> list[Tensor]:
    return [field.clone().requires_grad_() for field in vars(mixture).values()]


@pytest.mark.parametrize("method", ["log_prob", "component_log_prob", "expected_log_lik", "cdf", "crps"])
def test_gradients(method: str) -> None:
    mixture = normal_mixture(S=3, N=3)

    def score(y: Tensor, logits: Tensor, *rest: Tensor) -> Tensor:
        result: Tensor = getattr(NormalMixture(logits.log_softmax(0), *rest), method)(y)
        return result

    assert gradcheck(score, (targets(mixture).requires_grad_(), *tensors_of(mixture)))


@pytest.mark.parametrize("method", ["log_prob", "expected_log_lik", "crps"])
def test_multivariate_gradients(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maths, "_STACK_CHUNK", 2)
    mixture = multivariate_mixture(S=2, N=2, T=3)

    def score(y: Tensor, logits: Tensor, mean: Tensor, half: Tensor, noise: Tensor) -> Tensor:
        rebuilt = MultivariateNormalMixture(logits.log_softmax(0), mean, 0.5 * (half + half.mT), noise)
        result: Tensor = getattr(rebuilt, method)(y)
        return result

    assert gradcheck(score, (targets(mixture).requires_grad_(), *tensors_of(mixture)))


def test_float32_log_prob_is_honest() -> None:
    for make in (normal_mixture, multivariate_mixture):
        mixture = make()
        y = targets(mixture)
        short = mixture.to(torch.float32).log_prob(y.float())
        assert short.dtype == torch.float32
        torch.testing.assert_close(short.double(), mixture.log_prob(y), atol=1e-4, rtol=1e-5)


def test_float32_survives_outputs_that_move_together() -> None:
    ones = torch.ones(1, 4, 3, 3)
    mixture = MultivariateNormalMixture(torch.zeros(1), torch.zeros(1, 4, 3), ones, torch.full((3,), 1e-5))
    y = torch.randn(4, 1, generator=seeded()) + 1e-3 * torch.randn(4, 3, generator=seeded())
    exact = mixture.to(F64).log_prob(y.double())
    torch.testing.assert_close(mixture.log_prob(y).double(), exact, rtol=1e-6, atol=0)
    assert mixture.sample(1).isfinite().all()


# ------------------------------------------------------------ ELBO term


def test_expected_log_lik_is_the_integral() -> None:
    mixture = normal_mixture()
    y = targets(mixture)
    nodes, weights = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(12))
    f = mixture.component_mean + mixture.latent_var.sqrt() * nodes[:, None, None]
    log_lik = Normal(f, mixture.noise_var.sqrt()).log_prob(y)
    oracle = torch.einsum("g,gsn->sn", weights / weights.sum(), log_lik)
    torch.testing.assert_close(mixture.expected_log_lik(y), oracle, atol=1e-10, rtol=1e-10)


def test_multivariate_expected_log_lik_is_the_integral() -> None:
    mixture = multivariate_mixture(T=2)
    y = targets(mixture)
    x, w = (torch.from_numpy(a) for a in np.polynomial.hermite_e.hermegauss(8))
    nodes, weights = torch.cartesian_prod(x, x), torch.cartesian_prod(w, w).prod(-1)
    L = torch.linalg.cholesky(mixture.latent_cov)
    f = mixture.component_mean + torch.einsum("snij,gj->gsni", L, nodes)
    log_lik = Normal(f, mixture.noise_var.sqrt()).log_prob(y).sum(-1)
    oracle = torch.einsum("g,gsn->sn", weights / weights.sum(), log_lik)
    torch.testing.assert_close(mixture.expected_log_lik(y), oracle, atol=1e-10, rtol=1e-10)


@BOTH
def test_with_noise_changes_the_noise_alone(make: Make) -> None:
    mixture = make()
    louder = mixture.with_noise(4.0 * vars(mixture)["noise_var"])
    extra = louder.component_var - mixture.component_var
    torch.testing.assert_close(extra, (3.0 * vars(mixture)["noise_var"]).expand_as(extra))
    assert same(louder.with_noise(vars(mixture)["noise_var"]), mixture)


# ------------------------------------------------------------ moments


def test_moments_of_two_known_normals() -> None:
    mixture = NormalMixture(
        torch.tensor([0.25, 0.75], dtype=F64).log(),
        torch.tensor([[0.0], [4.0]], dtype=F64),
        torch.tensor([[1.0], [2.0]], dtype=F64),
        torch.tensor(0.5, dtype=F64),
    )
    assert mixture.mean.item() == pytest.approx(3.0)
    assert mixture.var.item() == pytest.approx(0.25 * 1.5 + 0.75 * 2.5 + 0.25 * 9.0 + 0.75 * 1.0)
    assert mixture.std.item() == pytest.approx(math.sqrt(5.25))
    assert mixture.weights.tolist() == pytest.approx([0.25, 0.75])


@BOTH
def test_moments_agree_with_samples(make: Make) -> None:
    mixture = make()
    num = 100_000
    draws = mixture.sample(num, seeded(2))
    centred = draws - mixture.mean
    error = mixture.std / math.sqrt(num)
    assert draws.shape == (num, *mixture.component_mean.shape[1:])
    assert ((draws.mean(0) - mixture.mean).abs() < 5.0 * error).all()
    error = centred.square().std(0) / math.sqrt(num)
    assert ((centred.square().mean(0) - mixture.var).abs() < 5.0 * error).all()
    rows = centred / mixture.std
    assert (rows[:, 0] * rows[:, 1]).mean(0).abs().max() < 5.0 / math.sqrt(num)  # rows are drawn independently


def test_covariance_agrees_with_samples() -> None:
    mixture = multivariate_mixture()
    centred = mixture.sample(100_000, seeded(3)) - mixture.mean
    products = centred.unsqueeze(-1) * centred.unsqueeze(-2)
    error = products.std(0) / math.sqrt(len(products))
    assert ((products.mean(0) - mixture.cov).abs() < 5.0 * error).all()
    torch.testing.assert_close(mixture.cov.diagonal(dim1=-2, dim2=-1), mixture.var)
    for t in range(mixture.num_outputs):
        torch.testing.assert_close(mixture.marginal(t).var, mixture.var[:, t])
        torch.testing.assert_close(mixture.marginal(t).mean, mixture.mean[:, t])


@BOTH
def test_samples_come_from_the_generator(make: Make) -> None:
    mixture = make()
    first, again, other = (mixture.sample(3, seeded(s)) for s in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert mixture.to(torch.float32).sample(2).dtype == torch.float32


def test_pit_of_its_own_samples_is_uniform() -> None:
    mixture = normal_mixture(S=4, N=4000, spread=3.0)
    u = mixture.pit(mixture.sample(1, seeded(4))[0])
    assert stats.kstest(u.numpy(), "uniform").pvalue > 0.01


@pytest.mark.parametrize("T", [1, 2])
def test_entropy_of_one_normal(T: int) -> None:
    g = multivariate_mixture(S=1, N=3, T=T)
    exact = MultivariateNormal(g.component_mean[0], g.component_cov[0]).entropy()
    error = math.sqrt(T / 2 / 500)  # log p = const − ½ χ²_T
    assert ((g.entropy(500, seeded(5)) - exact).abs() < 5.0 * error).all()
    assert (
        (g.marginal(0).entropy(500, seeded(5)) - 0.5 * (2 * math.pi * math.e * g.var[:, 0]).log()).abs() < 0.16
    ).all()


# ------------------------------------------------------------ cdf and quantile


def test_cdf_agrees_with_scipy_into_the_tails() -> None:
    mixture = normal_mixture(S=3, N=4)
    y = mixture.mean + mixture.std * torch.linspace(-8.0, 8.0, 33, dtype=F64)[:, None]
    component = stats.norm(mixture.component_mean.numpy(), mixture.component_var.sqrt().numpy())
    oracle = np.einsum("s,ksn->kn", mixture.weights.numpy(), component.cdf(y.numpy()[:, None]))
    np.testing.assert_allclose(mixture.cdf(y).numpy(), oracle, rtol=1e-10)
    np.testing.assert_allclose(mixture.cdf(y[3]).numpy(), oracle[3], rtol=1e-10)


def test_all_the_probability_of_a_float32_mixture_is_one() -> None:
    mixture = normal_mixture(S=243, N=2).to(torch.float32)
    assert ((mixture.cdf(torch.full((2,), 1e6)) - 1.0).abs() < 1e-14).all()


def test_cdf_is_the_integral_of_the_density() -> None:
    mixture = normal_mixture(S=3, N=1)
    grid = torch.linspace(-12.0, 12.0, 20_001, dtype=F64)
    integral = torch.cumulative_trapezoid(repeat(mixture, 0, len(grid)).log_prob(grid).exp(), grid)
    torch.testing.assert_close(mixture.cdf(grid[1:, None])[:, 0], integral, atol=1e-7, rtol=0)


def kinds() -> dict[str, NormalMixture]:
    base = normal_mixture(S=6, N=40)
    tiny = torch.logspace(-8, 3, 6, dtype=F64)[:, None].expand(6, 40)
    even = torch.full((6,), -math.log(6.0), dtype=F64)
    light = torch.tensor([1.0 - 1e-9, 1e-9], dtype=F64).log()
    zero = torch.tensor(0.0, dtype=F64)
    apart = torch.arange(6, dtype=F64)[:, None].expand(6, 40)
    return {
        "overlapping": base,
        "one": normal_mixture(S=1),
        "separated": NormalMixture(base.log_weights, 1e3 * base.component_mean, base.latent_var, base.noise_var),
        "tiny variances": NormalMixture(even, base.component_mean, tiny, zero),
        "plateaus at sixths": NormalMixture(even, 1e4 * apart, base.latent_var, zero),
        "a weight of 1e-9": NormalMixture(light, base.component_mean[:2], base.latent_var[:2], zero),
        "large units": base.affine(1e6, 1e3),
        "small units": base.affine(0.0, 1e-100),
    }


@pytest.mark.parametrize("kind", kinds())
def test_quantile_inverts_the_cdf(kind: str) -> None:
    mixture = kinds()[kind]
    x = mixture.quantile(TAILS)
    assert x.shape == (len(TAILS), len(mixture))
    assert ((mixture.cdf(x) - TAILS[:, None]).abs() <= 1e-8).all()
    assert (x.diff(dim=0) > 0).all()
    assert torch.equal(mixture.quantile(0.25), mixture.quantile(torch.tensor([0.25]))[0])


def test_newton_needs_few_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, cdf = [], maths.mixture_cdf
    monkeypatch.setattr(maths, "mixture_cdf", lambda *args: calls.append(1) or cdf(*args))
    m = normal_mixture(S=6, N=200)
    maths._solve_normal_quantile(m.weights, TAILS[:, None], m.component_mean, m.component_var.sqrt())
    assert 5 <= len(calls) <= 15  # bisection alone takes 40


def test_few_steps_solve_most_rows_and_all_agree_with_the_bracket(monkeypatch: pytest.MonkeyPatch) -> None:
    mixture = normal_mixture(S=6, N=2000)
    levels = torch.tensor([0.01, 0.05, 0.25, 0.5, 0.9, 0.999], dtype=F64)
    weights, mean, std = mixture.weights, mixture.component_mean, mixture.component_var.sqrt()
    bracketed, solve = maths._solve_normal_quantile(weights, levels[:, None], mean, std), maths._solve_normal_quantile
    left: list[int] = []
    monkeypatch.setattr(maths, "_solve_normal_quantile", lambda w, p, m, s: left.append(p.numel()) or solve(w, p, m, s))
    torch.testing.assert_close(mixture.quantile(levels), bracketed, rtol=0, atol=1e-8)
    assert sum(left) < 0.05 * levels.numel() * len(mixture)


def test_quantiles_of_separate_components_are_exact_in_every_row() -> None:
    g = seeded(0)
    mean, std = 3.0 * torch.randn(10, 20_000, generator=g, dtype=F64), torch.randn(10, 20_000, generator=g, dtype=F64)
    log_weights = (1.5 * torch.randn(10, generator=g, dtype=F64)).log_softmax(0)
    mixture = NormalMixture(log_weights, mean, std.exp().square(), torch.tensor(0.0, dtype=F64))
    levels = torch.tensor([0.05, 0.5, 0.95], dtype=F64)
    reached = mixture.cdf(mixture.quantile(levels))
    assert ((reached - levels[:, None]).abs() <= 1e-9).all()


@given(
    logits=st.lists(st.floats(-30, 5), min_size=1, max_size=6),
    seed=st.integers(0, 2**31),
    log_gap=st.floats(-3, 3),
    p=st.floats(1e-6, 1 - 1e-6),
)
@settings(max_examples=60, deadline=None)
def test_quantile_inverts_the_cdf_of_any_mixture(logits: list[float], seed: int, log_gap: float, p: float) -> None:
    S, g = len(logits), seeded(seed)
    mean = 10.0**log_gap * torch.randn(S, 8, generator=g, dtype=F64)
    var = 10.0 ** (6.0 * torch.rand(S, 8, generator=g, dtype=F64) - 4.0)
    log_weights = torch.tensor(logits, dtype=F64).log_softmax(0)
    mixture = NormalMixture(log_weights, mean, var, torch.tensor(1e-6, dtype=F64))
    assert ((mixture.cdf(mixture.quantile(p)) - p).abs() <= 1e-8).all()


def test_quantile_of_a_float32_mixture_is_as_exact() -> None:
    mixture = normal_mixture(S=6, N=40, spread=5.0).to(torch.float32)
    x = mixture.quantile(TAILS)
    assert x.dtype == F64
    assert ((mixture.cdf(x) - TAILS[:, None]).abs() <= 1e-8).all()


def test_quantile_of_one_normal_keeps_its_relative_tail() -> None:
    one = NormalMixture(*(torch.tensor(v, dtype=F64) for v in ([0.0], [[2.0]], [[9.0]], 0.0)))
    p = torch.tensor([1e-300, 1e-15, 0.3], dtype=F64)
    np.testing.assert_allclose(one.quantile(p)[:, 0], stats.norm(2, 3).ppf(p.numpy()), rtol=1e-13)


def test_quantile_in_the_tail_of_a_mixture_is_relatively_right() -> None:
    mixture = normal_mixture(S=5, N=20, spread=4.0)
    for p in (1e-12, 1e-100):
        assert ((mixture.cdf(mixture.quantile(p)) / p - 1).abs() < 1e-9).all()


def test_quantile_beyond_the_digits_of_float64_ends_between_neighbours() -> None:
    sharp = NormalMixture(
        *(torch.tensor(v, dtype=F64) for v in ([math.log(0.5)] * 2, [[1e8], [2e8]], [[1e-20], [1e-20]], 0.0))
    )
    x = sharp.quantile(torch.tensor([0.1, 0.4, 0.6, 0.9], dtype=F64))[:, 0]
    torch.testing.assert_close(x, torch.tensor([1e8, 1e8, 2e8, 2e8], dtype=F64), rtol=1e-15, atol=0)


def test_chunks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    mixture = normal_mixture(S=4, N=11)
    y = targets(mixture)
    whole = mixture.quantile(TAILS), mixture.cdf(torch.stack([y, y + 1])), mixture.crps(y)
    monkeypatch.setattr(maths, "_CHUNK_ELEMENTS", 17)
    parts = mixture.quantile(TAILS), mixture.cdf(torch.stack([y, y + 1])), mixture.crps(y)
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("coverage", [0.05, 0.5, 0.9, 0.999])
def test_interval_is_central_and_covers(coverage: float) -> None:
    mixture = normal_mixture(S=5, N=30, spread=4.0)
    lower, upper = mixture.interval(coverage)
    tail = torch.full((30,), 0.5 * (1 - coverage), dtype=F64)
    torch.testing.assert_close(mixture.cdf(lower), tail, atol=1e-8, rtol=0)
    torch.testing.assert_close(1 - mixture.cdf(upper), tail, atol=1e-8, rtol=0)


# ------------------------------------------------------------ CRPS


def test_crps_of_the_standard_normal_at_zero() -> None:
    one = NormalMixture(*(torch.tensor(v, dtype=F64) for v in ([0.0], [[0.0]], [[0.75]], 0.25)))
    exact = math.sqrt(2 / math.pi) - 1 / math.sqrt(math.pi)  # 0.2337
    assert one.crps(torch.zeros(1)).item() == pytest.approx(exact, abs=1e-15)


def test_crps_is_the_integral() -> None:
    mixture = normal_mixture(S=5, N=6, spread=3.0)
    y = targets(mixture)
    for n in range(len(mixture)):
        row, at = mixture.rows([n]), y[n].item()
        below, above = (torch.linspace(a, b, 40_001, dtype=F64) for a, b in ((-40.0, at), (at, 40.0)))
        integral = torch.trapezoid(row.cdf(below[:, None])[:, 0] ** 2, below)
        integral = integral + torch.trapezoid((1 - row.cdf(above[:, None])[:, 0]) ** 2, above)
        assert row.crps(y[n : n + 1]).item() == pytest.approx(integral.item(), abs=1e-6)


@pytest.mark.parametrize(("S", "spread"), [(1, 1.0), (2, 10.0), (7, 0.0), (40, 2.0)])
def test_crps_agrees_with_scoringrules(S: int, spread: float) -> None:
    mixture = normal_mixture(S=S, N=25, spread=spread)
    y = targets(mixture)
    oracle = scoringrules.crps_mixnorm(
        y.numpy(),
        mixture.component_mean.T.numpy(),
        mixture.component_var.sqrt().T.numpy(),
        mixture.weights.expand(25, S).numpy(),
        backend="numpy",
    )
    np.testing.assert_allclose(mixture.crps(y).numpy(), oracle, rtol=1e-11)


def test_multivariate_crps_is_that_of_the_marginals() -> None:
    mixture = multivariate_mixture()
    y = targets(mixture)
    score = mixture.crps(y)
    assert score.shape == y.shape
    for t in range(mixture.num_outputs):
        assert torch.equal(score[:, t], mixture.marginal(t).crps(y[:, t]))


# ------------------------------------------------------------ affine


@given(shift=st.floats(-1e3, 1e3), log_scale=st.floats(-7, 7))
@settings(max_examples=25, deadline=None)
def test_affine_moves_the_whole_distribution(shift: float, log_scale: float) -> None:
    mixture, scale = normal_mixture(), math.exp(log_scale)
    y = targets(mixture)
    moved, moved_y = mixture.affine(shift, scale), shift + scale * y
    close = {"rtol": 1e-7, "atol": 1e-7}
    torch.testing.assert_close(moved.log_prob(moved_y), mixture.log_prob(y) - log_scale, **close)
    torch.testing.assert_close(moved.cdf(moved_y), mixture.cdf(y), **close)
    torch.testing.assert_close(moved.mean, shift + scale * mixture.mean, **close)
    torch.testing.assert_close(moved.std, scale * mixture.std, **close)
    torch.testing.assert_close(moved.crps(moved_y), scale * mixture.crps(y), **close)
    torch.testing.assert_close(moved.noise_var, scale**2 * mixture.noise_var)
    torch.testing.assert_close(moved.expected_log_lik(moved_y), mixture.expected_log_lik(y) - log_scale, **close)


def test_affine_of_several_outputs() -> None:
    mixture = multivariate_mixture()
    y = targets(mixture)
    shift, scale = torch.tensor([5.0, -1.0, 0.0], dtype=F64), torch.tensor([0.5, 3.0, 20.0], dtype=F64)
    moved, moved_y = mixture.affine(shift, scale), shift + scale * y
    torch.testing.assert_close(moved.log_prob(moved_y), mixture.log_prob(y) - scale.log().sum())
    torch.testing.assert_close(moved.mean, shift + scale * mixture.mean)
    torch.testing.assert_close(moved.cov, torch.diag(scale) @ mixture.cov @ torch.diag(scale))
    torch.testing.assert_close(moved.expected_log_lik(moved_y), mixture.expected_log_lik(y) - scale.log().sum())
    same_scale = mixture.affine(1.0, 2.0)
    torch.testing.assert_close(same_scale.log_prob(1.0 + 2.0 * y), mixture.log_prob(y) - 3 * math.log(2.0))


# ------------------------------------------------------------ parts


@BOTH
@pytest.mark.parametrize("noise_by_row", [False, True])
def test_rows_and_concat(make: Make, noise_by_row: bool) -> None:
    mixture = make(N=7)
    if noise_by_row:
        mixture = mixture.with_noise(0.1 + torch.rand(mixture.component_mean.shape[1:], dtype=F64))
    y = targets(mixture)
    assert (len(mixture), mixture.num_rows) == (7, 7)
    assert same(type(mixture).concat([mixture.rows(slice(0, 3)), mixture.rows(slice(3, 7))]), mixture)
    assert same(type(mixture).concat([mixture.rows(slice(i, i + 1)) for i in range(7)]), mixture)
    whole = mixture.log_prob(y)
    mask = torch.tensor([True, False, False, True, True, False, True])
    for index in (slice(1, 6, 2), [3, 3, 0], [-1], torch.tensor([6, 2]), mask, slice(0, 0)):
        part = mixture.rows(index)
        assert len(part) == len(whole[index])
        torch.testing.assert_close(part.log_prob(y[index]), whole[index])


@BOTH
def test_joining_different_noises_gives_each_row_its_own(make: Make) -> None:
    mixture = make(N=7)
    y, noise = targets(mixture), vars(mixture)["noise_var"]
    louder = mixture.with_noise(3.0 * noise)
    joined = type(mixture).concat([mixture.rows([0]), louder.rows(slice(1, 7))])
    oracle = torch.where(torch.arange(7) < 1, mixture.log_prob(y), louder.log_prob(y))
    torch.testing.assert_close(joined.log_prob(y), oracle)
    shared = type(mixture).concat([mixture, mixture])
    assert torch.equal(vars(shared)["noise_var"], noise)


def test_no_rows_at_all() -> None:
    empty = normal_mixture().rows([])
    nothing = torch.zeros(0, dtype=F64)
    assert [empty.log_prob(nothing).shape, empty.quantile(0.5).shape, empty.crps(nothing).shape] == [(0,)] * 3
    assert multivariate_mixture().rows([]).log_prob(torch.zeros(0, 3, dtype=F64)).shape == (0,)
    assert empty.sample(4).shape == (4, 0)
    assert type(empty).mix([empty, replace(empty, noise_var=torch.zeros(1, 0, dtype=F64))], [0.5, 0.5]).mean.shape == (
        0,
    )


@BOTH
def test_to_and_sizes(make: Make) -> None:
    mixture = make(S=4, N=6)
    short = mixture.to(torch.float32)
    assert all(field.dtype == torch.float32 for field in vars(short).values())
    assert all(field.device.type == "cpu" for field in vars(mixture.to(device="cpu")).values())
    assert same(mixture.to(device="cpu"), mixture)
    assert (mixture.num_components, mixture.num_rows) == (4, 6)
    with pytest.raises(FrozenInstanceError):
        mixture.log_weights = mixture.log_weights  # type: ignore[misc]


def test_marginal_picks_its_output() -> None:
    mixture = multivariate_mixture()
    middle = mixture.marginal(1)
    assert torch.equal(middle.component_mean, mixture.component_mean[..., 1])
    assert torch.equal(middle.latent_var, mixture.latent_cov[..., 1, 1])
    assert torch.equal(middle.noise_var, mixture.noise_var[..., 1])


def test_noise_shapes_of_one_output() -> None:
    scalar = normal_mixture(N=5)
    y = targets(scalar)
    assert scalar.with_noise(torch.tensor([0.1], dtype=F64)).noise_var.shape == (1, 1)
    by_row = scalar.with_noise(torch.full((5,), 0.1, dtype=F64))
    assert by_row.noise_var.shape == (1, 5)
    torch.testing.assert_close(by_row.log_prob(y), scalar.log_prob(y))


# ------------------------------------------------------------ errors

ONE, MANY = normal_mixture(S=2, N=3), multivariate_mixture(S=2, N=3, T=2)
MANY_OF_3 = replace(multivariate_mixture(S=2, N=3, T=3), log_weights=MANY.log_weights)
W, M, V, _ = vars(ONE).values()
WT, MT, CT, RT = vars(MANY).values()
R = torch.tensor(0.1, dtype=F64)

BAD_CALLS = {
    "no components": (lambda: NormalMixture(W[:0], M[:0], V[:0], R), r"S >= 1, got \(0,\), \(0, 3\)"),
    "weights of another S": (
        lambda: NormalMixture(W[:1], M, V, R),
        r"shapes \(S\).*got \(1,\), \(2, 3\)",
    ),
    "weights a row": (lambda: NormalMixture(W[:, None], M, V, R), r"got \(2, 1\)"),
    "variance of another N": (lambda: NormalMixture(W, M, V[:, :2], R), r"expected.*\(2, 3\), \(2, 2\)"),
    "mean with T": (
        lambda: NormalMixture(W, MT, CT, RT),
        r"expected .* \(S\), \(S, N\), \(S, N\), and \(\) or \(N\)",
    ),
    "noise of another N": (lambda: NormalMixture(W, M, V, torch.ones(2)), r"expected.* \(2,\)$"),
    "covariance without T": (
        lambda: MultivariateNormalMixture(WT, MT, CT[..., 0], RT),
        r"\(S\), \(S, N, T\), \(S, N, T, T\), and \(T\) or .* \(2, 3, 2\), \(2, 3, 2\), \(1, 1, 2\)$",
    ),
    "mean without T": (lambda: MultivariateNormalMixture(WT, M, V, R), r"expected .* \(S\), \(S, N, T\)"),
    "scalar noise for T": (lambda: MANY.with_noise(R), r"expected.* \(\)$"),
    "weights, not logarithms": (
        lambda: NormalMixture(W.exp(), M, V, R),
        r"expected .* to sum to 1, got .*; pass log_softmax",
    ),
    "y too long": (
        lambda: ONE.log_prob(torch.zeros(4)),
        r"y: expected shape \(3,\), got \(4,\); pass one value",
    ),
    "y with K": (lambda: ONE.component_log_prob(torch.zeros(2, 3)), r"y: expected shape \(3,\), got \(2, 3\)"),
    "y in the ELBO": (lambda: ONE.expected_log_lik(torch.zeros(1)), r"y: expected shape \(3,\), got \(1,\)"),
    "y in the CRPS": (lambda: ONE.crps(torch.zeros(1)), r"y: expected shape \(3,\), got \(1,\)"),
    "y in the PIT": (lambda: ONE.pit(torch.zeros(2, 3)), r"y: expected shape \(3,\), got \(2, 3\)"),
    "y in the cdf": (
        lambda: ONE.cdf(torch.zeros(3, 2)),
        r"y: expected shape \(3,\), or \(K, 3\) .*got \(3, 2\); pass",
    ),
    "a scalar in the cdf": (lambda: ONE.cdf(torch.tensor(0.0)), r"y: expected .*got \(\)"),
    "a cube in the cdf": (lambda: ONE.cdf(torch.zeros(2, 2, 3)), r"y: expected .*got \(2, 2, 3\)"),
    "y without T": (lambda: MANY.log_prob(torch.zeros(3)), r"y: expected shape \(3, 2\), got \(3,\)"),
    "T in the ELBO": (
        lambda: MANY.expected_log_lik(torch.zeros(3, 1)),
        r"y: expected shape \(3, 2\), got \(3, 1\)",
    ),
    "T in the CRPS": (lambda: MANY.crps(torch.zeros(2)), r"y: expected shape \(3, 2\), got \(2,\)"),
    "p = 0": (lambda: ONE.quantile(0.0), r"p: expected .* inside \(0, 1\), got 0.0"),
    "p = 1 among others": (lambda: ONE.quantile(torch.tensor([0.5, 1.0])), r"inside \(0, 1\)"),
    "p = NaN": (lambda: ONE.quantile(math.nan), r"inside \(0, 1\), got nan"),
    "p with two axes": (lambda: ONE.quantile(torch.full((2, 2), 0.5)), r"expected one number or a list"),
    "coverage of everything": (lambda: ONE.interval(1.0), r"coverage: expected .* such as 0.9, got 1.0"),
    "coverage of nothing": (lambda: ONE.interval(0.0), r"coverage: expected .* got 0.0"),
    "no samples": (lambda: ONE.sample(0), r"expected at least 1 sample, got 0"),
    "no samples of T": (lambda: MANY.sample(-1), r"sample, got -1"),
    "no samples for the entropy": (lambda: ONE.entropy(0), r"sample, got 0"),
    "negative scale": (lambda: ONE.affine(0.0, -1.0), r"scale: expected positive numbers, got -1.0"),
    "zero among scales": (lambda: MANY.affine(0.0, torch.tensor([1.0, 0.0])), r"expected positive"),
    "NaN scale": (lambda: ONE.affine(0.0, math.nan), r"positive numbers, got nan"),
    "scale a row": (
        lambda: ONE.affine(0.0, torch.ones(3)),
        r"expected shift and scale of shape \(\).*got \(\) and \(3,\)",
    ),
    "shift of another T": (
        lambda: MANY.affine(torch.ones(3), 1.0),
        r"expected shift and scale of shape \(\) or \(2,\), got \(3,\)",
    ),
    "output too high": (lambda: MANY.marginal(2), r"expected an output from 0 to 1, got 2"),
    "output too low": (lambda: MANY.marginal(-1), r"expected an output from 0 to 1, got -1"),
    "row that is not there": (lambda: ONE.rows([0, 3]), r"cannot select rows \[0, 3\] of 3: "),
    "mask too short": (lambda: ONE.rows(torch.tensor([True])), r"cannot select rows .* of 3: "),
    "rows by fractions": (lambda: ONE.rows(torch.tensor([0.5])), r"cannot select rows .* of 3: "),
    "one row as a number": (lambda: ONE.rows(1), r"expected a slice .*got 1; use \[i\] for one row"),  # type: ignore[arg-type]
    "nothing to join": (lambda: NormalMixture.concat([]), r"expected at least one mixture to concatenate, got none"),
    "other dtype": (lambda: NormalMixture.concat([ONE, ONE.to(torch.float32)]), r"mixture 1 differs"),
    "other outputs": (
        lambda: MultivariateNormalMixture.concat([MANY, MANY_OF_3]),
        r"mixture 1 differs from mixture 0 in type, outputs or dtype; concatenate predictions of one kind",
    ),
    "other class": (lambda: Mixture.concat([ONE, MANY]), r"mixture 1 differs"),
}


@pytest.mark.parametrize("what", BAD_CALLS)
def test_bad_calls_say_what_was_wrong(what: str) -> None:
    call, message = BAD_CALLS[what]
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("bad", [0.0, -0.2, math.nan])
def test_a_variance_must_be_positive(bad: float) -> None:
    var = V.clone()
    var[1, 2] = bad
    with pytest.raises(
        NumericalError, match=r"expected a positive variance, got .* for component 1 in row 2; raise the noise"
    ):
        NormalMixture(W, M, var, torch.zeros((), dtype=F64))


@pytest.mark.parametrize("bad", [0.0, -0.2, math.nan, math.inf])
def test_a_covariance_must_be_positive_definite(bad: float) -> None:
    cov = CT.clone()
    cov[1, 0] = torch.diag(torch.tensor([1.0, bad], dtype=F64))
    broken = MultivariateNormalMixture(WT, MT, cov, torch.zeros(2, dtype=F64))
    message = r"1 of 6 component covariances are not positive definite.*matrix 3 first, at output 1.*raise"
    for call in (lambda: broken.log_prob(torch.zeros(3, 2)), lambda: broken.sample(1)):
        with pytest.raises(NumericalError, match=message):
            call()


# ------------------------------------------------------------ what users hand in


@pytest.mark.parametrize("kind", [np.asarray, pd.Series, list, tuple])
def test_arrays_columns_and_lists_are_targets_too(kind: Callable[..., object]) -> None:
    mixture = normal_mixture()
    y = targets(mixture)
    for ask in (mixture.log_prob, mixture.cdf, mixture.pit, mixture.crps, mixture.component_log_prob):
        assert torch.equal(ask(kind(y.tolist())), ask(y))
    assert torch.equal(mixture.cdf([y.tolist()] * 2), mixture.cdf(torch.stack([y, y])))
    several = multivariate_mixture()
    table = targets(several)
    for ask in (several.log_prob, several.crps):
        assert torch.equal(ask(table.numpy()), ask(table))
        assert torch.equal(ask(pd.DataFrame(table.numpy())), ask(table))


@pytest.mark.parametrize("y", [0.0, "text", None, [[1.0], [2.0, 3.0]], ["a"] * 5, {}, np.zeros(4)])
def test_other_targets_are_refused_in_words(y: object) -> None:
    mixture = normal_mixture()
    for ask in (mixture.log_prob, mixture.cdf, mixture.crps):
        with pytest.raises(InputError, match=r"pass one value|expected one number"):
            ask(y)

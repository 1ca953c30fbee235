"""Student-t: its distribution against SciPy and integrals, its sigma points, its limits, its gradients."""

import itertools
import math

import numpy as np
import pytest
import reference as ref
import scoringrules
import torch
from given import predicted
from reference import assert_close
from scipy import stats
from scipy.integrate import quad
from scipy.special import logsumexp
from torch import Tensor
from torch.autograd import gradcheck

from dspp.config import ModelConfig
from dspp.errors import InputError, NumericalError
from dspp.likelihoods import StudentT
from dspp.model import build
from dspp.objectives import OBJECTIVES
from dspp.predictive import LatentMixture, NormalMixture, StudentTMixture

F64, S, N = torch.float64, 3, 4
SMALL = {"inducing": 8, "width": 2, "sites": 3, "test_sites": 5, "dtype": "float64", "likelihood": "student-t"}


def mixture_of(scale: float = 0.4, df: float = 2.7, spread: float = 1.5, rows: int = N) -> StudentTMixture:
    weights = torch.log_softmax(ref.random_rows(0, S, 1)[:, 0], 0)
    parameters = (torch.tensor(value, dtype=F64) for value in (scale, df))
    return StudentTMixture(weights, spread * ref.random_rows(1, S, rows), *parameters)


def frozen(mixture: StudentTMixture, n: int):
    """SciPy's components of a row, and their weights."""
    centres = mixture.component_mean[:, n].numpy()
    return stats.t(mixture.df.item(), centres, mixture.scale.item()), mixture.weights.numpy()


@pytest.mark.parametrize("df", [2.05, 2.7, 10.0, 1e3])
def test_density_cdf_and_quantiles_are_scipys(df: float) -> None:
    mixture, y = mixture_of(df=df), torch.tensor([-30.0, 0.1, 1.0, 1e4], dtype=F64)
    for n in range(N):
        components, weights = frozen(mixture, n)
        log_prob = logsumexp(components.logpdf(y[n].item()), b=weights)
        assert mixture.log_prob(y)[n].item() == pytest.approx(log_prob, rel=1e-9, abs=1e-9)
        assert mixture.cdf(y)[n].item() == pytest.approx(weights @ components.cdf(y[n].item()), rel=1e-10)
        p = torch.tensor([1e-10, 1e-3, 0.5, 0.9, 1 - 1e-9], dtype=F64)
        found = np.array([weights @ components.cdf(x) for x in mixture.quantile(p)[:, n].tolist()])
        np.testing.assert_allclose(found, p, rtol=1e-9)
    lower, upper = mixture.interval(0.8)
    assert_close(mixture.cdf(upper) - mixture.cdf(lower), torch.full((N,), 0.8, dtype=F64), 1e-9)
    assert_close(mixture.pit(y), mixture.cdf(y), 0.0)


@pytest.mark.parametrize("df", [2.2, 5.0, 100.0])
def test_density_integrates_to_one(df: float) -> None:
    mixture = mixture_of(df=df).rows([0])

    def density(x: float) -> float:
        return mixture.log_prob(torch.tensor([x], dtype=F64)).exp().item()

    inside = quad(density, -50, 50, points=mixture.component_mean.flatten().tolist(), limit=400)[0]
    tails = quad(density, 50, math.inf)[0] + quad(density, -math.inf, -50)[0]
    assert inside + tails == pytest.approx(1.0, abs=1e-8)


def test_moments_are_those_of_samples_and_of_scipy() -> None:
    mixture = mixture_of(df=9.0)
    draws = mixture.sample(200_000, torch.Generator().manual_seed(0))
    assert draws.shape == (200_000, N)
    assert bool(((draws.mean(0) - mixture.mean).abs() < 4 * mixture.std / math.sqrt(200_000)).all())
    assert_close(draws.std(0), mixture.std, 0.02 * mixture.std.max().item())
    assert stats.kstest(mixture.pit(draws[0]).numpy(), "uniform").pvalue > 1e-3
    for n in range(N):
        components, weights = frozen(mixture, n)
        mean = weights @ components.mean()
        assert mixture.mean[n].item() == pytest.approx(mean, rel=1e-12)
        second = weights @ (components.var() + components.mean() ** 2)
        assert mixture.var[n].item() == pytest.approx(second - mean**2, rel=1e-10)
    again = mixture.sample(5, torch.Generator().manual_seed(3))
    assert torch.equal(again, mixture.sample(5, torch.Generator().manual_seed(3)))


@pytest.mark.parametrize("scale", [1e-3, 0.3, 5.0])
@pytest.mark.parametrize("df", [2.1, 4.0, 50.0])
def test_crps_of_one_component_is_the_closed_form(df: float, scale: float) -> None:
    one = StudentTMixture(torch.zeros(1, dtype=F64), torch.zeros(1, 5, dtype=F64), *torch.tensor([scale, df]).double())
    y = torch.tensor([0.0, 0.2, -1.0, 30.0, -1e3], dtype=F64) * scale
    expected = scoringrules.crps_t(y.numpy(), one.df.item(), 0.0, one.scale.item())
    np.testing.assert_allclose(one.crps(y), expected, rtol=1e-6, atol=1e-6 * scale)


@pytest.mark.parametrize(("df", "spread"), [(2.3, 0.2), (2.3, 20.0), (6.0, 1.0)])
def test_crps_of_a_mixture_is_the_integral(df: float, spread: float) -> None:
    """∫ (F(x) − 1{y <= x})² dx, with panels about every component, to 1e-6."""
    mixture, y = mixture_of(df=df, spread=spread), torch.tensor([0.0, -1.0, 7.0, 100.0], dtype=F64)
    steps = [0.0, *(sign * size for size in (0.5, 2, 6, 20, 100, 1e3, 1e5, 1e7) for sign in (-1, 1))]
    for n in range(N):
        components, weights = frozen(mixture, n)
        centres, value = mixture.component_mean[:, n].tolist(), y[n].item()
        ends = sorted({value, *(c + mixture.scale.item() * step for c in centres for step in steps)})

        def gap(x: float, after: float, components=components, weights=weights) -> float:
            return (weights @ components.cdf(x) - after) ** 2

        total = sum(quad(gap, a, b, args=(float(a >= value),), epsabs=1e-11)[0] for a, b in itertools.pairwise(ends))
        assert mixture.crps(y)[n].item() == pytest.approx(total, abs=1e-6)


def test_many_different_degrees_of_freedom_give_the_same_crps() -> None:
    """The tables of the cdf pay for a few of them; more are computed without."""
    df = 3.0 + torch.arange(S * 40, dtype=F64).reshape(S, 40)
    weights, mean = torch.log_softmax(ref.random_rows(0, S, 1)[:, 0], 0), ref.random_rows(1, S, 40)
    mixture, y = StudentTMixture(weights, mean, torch.tensor(0.3, dtype=F64), df), ref.random_rows(2, 40, 1)[:, 0]
    row_by_row = torch.cat([mixture.rows([n]).crps(y[n : n + 1]) for n in range(40)])
    assert_close(mixture.crps(y), row_by_row, 1e-7)


def test_shift_and_scale_move_the_distribution() -> None:
    mixture, y = mixture_of(), ref.random_rows(5, N, 1)[:, 0]
    moved = mixture.affine(3.0, 2.0)
    assert_close(moved.log_prob(3 + 2 * y), mixture.log_prob(y) - math.log(2), 1e-12)
    assert_close(moved.quantile(0.7), 3 + 2 * mixture.quantile(0.7), 1e-9)
    assert_close(moved.crps(3 + 2 * y), 2 * mixture.crps(y), 1e-6)
    assert_close(mixture.to_torch().log_prob(y), mixture.log_prob(y), 1e-9)


def test_many_degrees_of_freedom_are_the_gaussian() -> None:
    """t → N(μ + ξσ, c²), component by component: the same latents, density, quantiles and CRPS."""
    student = mixture_of(df=1e7)
    normal = NormalMixture(
        student.log_weights, student.component_mean, torch.zeros(S, N, dtype=F64), student.scale.square()
    )
    y = ref.random_rows(5, N, 1)[:, 0]
    for name in ("log_prob", "cdf", "crps"):
        assert_close(getattr(student, name)(y), getattr(normal, name)(y), 1e-6)
    assert_close(student.quantile(0.95), normal.quantile(0.95), 1e-6)
    assert_close(student.std, normal.std, 1e-6)
    gap = [(mixture_of(df=df).log_prob(y) - normal.log_prob(y)).abs().max().item() for df in (1e3, 1e4)]
    assert gap[0] / gap[1] == pytest.approx(10, rel=0.1)  # the law of the limit: 1/ν


def test_what_is_no_distribution_is_refused() -> None:
    parts = list(vars(mixture_of()).values())
    for df, scale, error, message in (
        (2.0, 1.0, InputError, "expected more than 2 degrees of freedom, got 2"),
        (math.nan, 1.0, InputError, "degrees of freedom"),
        (5.0, 0.0, NumericalError, "expected a positive variance"),
    ):
        with pytest.raises(error, match=message):
            StudentTMixture(*parts[:2], torch.tensor(scale).double(), torch.tensor(df).double())
    with pytest.raises(InputError, match="expected"):
        StudentTMixture(*parts[:2], torch.ones(N + 1), parts[3])
    with pytest.raises(InputError, match=r"inside \(0, 1\)"):
        mixture_of().quantile(1.0)


# ---------------------------------------------------------------- the likelihood


def latent_of(components: int = S, spread: float = 1.0) -> LatentMixture:
    logits, mean, var = (ref.random_rows(i, components, N) for i in range(3))
    return LatentMixture(torch.log_softmax(logits[:, 0], 0), mean[..., None], spread**2 * var.exp()[..., None])


def likelihood_of(components: int | None) -> StudentT:
    generator = torch.Generator().manual_seed(0)
    return StudentT(1, ModelConfig(noise=0.3, noise_floor=0.01), components, generator).double()


def test_sigma_points_line_up_with_the_components() -> None:
    likelihood, latent = likelihood_of(S), latent_of()
    mixture = likelihood(latent)
    assert mixture.num_components == S
    std = latent.var[..., 0].sqrt()
    assert_close(mixture.component_mean, latent.mean[..., 0] + likelihood.sites[:, None] * std, 1e-12)
    assert mixture.scale.square().item() == pytest.approx(0.3, rel=1e-6)
    assert mixture.df.item() == pytest.approx(5.0, rel=1e-6)
    with pytest.raises(InputError, match=r"expected 5 components, .*got 3"):
        likelihood_of(5)(latent)


def test_without_a_rule_three_sites_cross_each_component() -> None:
    likelihood, latent = likelihood_of(None), latent_of(2)
    mixture = likelihood(latent)
    assert mixture.num_components == 6
    assert_close(mixture.weights.sum(), 1.0)
    mean, var = latent.mean[..., 0], latent.var[..., 0]
    assert_close(mixture.mean, latent.weights @ mean, 1e-6)  # Gauss and Hermite: exact for the first two moments
    spread = latent.weights @ (var + mean.square()) - (latent.weights @ mean).square()
    assert_close(mixture.var - mixture.component_var[0], spread, 1e-6)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("components", [S, None])
def test_gradients_of_every_objective(name: str, components: int | None) -> None:
    likelihood, latent, y = likelihood_of(components), latent_of(), ref.random_rows(7, N, 1)
    parameters = dict(likelihood.named_parameters())

    def value(log_weights: Tensor, mean: Tensor, var: Tensor, *values: Tensor) -> Tensor:
        given = dict(zip(parameters, values, strict=True))
        latents = LatentMixture(torch.log_softmax(log_weights, 0), mean, var)
        objective = Scored(likelihood, OBJECTIVES[name])
        return torch.func.functional_call(objective, {f"likelihood.{k}": v for k, v in given.items()}, (latents, y))

    leaves = [latent.log_weights, latent.mean, latent.var, *(p.detach() for p in parameters.values())]
    assert gradcheck(value, [leaf.clone().requires_grad_() for leaf in leaves])
    if name == "predictive":
        value(*leaves[:3], *parameters.values()).backward()
        assert all(bool(p.grad.any()) for p in parameters.values())


class Scored(torch.nn.Module):
    def __init__(self, likelihood, objective) -> None:
        super().__init__()
        self.likelihood, self.objective = likelihood, objective

    def forward(self, latent: LatentMixture, y: Tensor) -> Tensor:
        return self.objective(self.likelihood, latent, y, torch.zeros((), dtype=F64), 50, gamma=1.2)


@pytest.mark.parametrize("gamma", [1.03, 1.5])
def test_elbo_and_gamma_elbo_are_the_integrals(gamma: float) -> None:
    likelihood, latent, y = likelihood_of(None), latent_of(spread=0.1), ref.random_rows(7, N, 1)
    nu, c = likelihood.df.item(), likelihood.scale.item()
    integral = quad(lambda v: stats.t.pdf(v, nu, 0, c) ** gamma, -math.inf, math.inf, epsabs=1e-13)[0]
    elbo = likelihood.expected_log_prob(latent, y).detach()
    score = likelihood.gamma_score(latent, y, gamma, -(gamma - 1) / gamma).detach()
    for s in range(S):
        for n in range(N):
            mean, std = latent.mean[s, n, 0].item(), latent.var[s, n, 0].sqrt().item()

            def over(function, mean: float = mean, std: float = std) -> float:
                def weighted(f: float) -> float:
                    return stats.norm.pdf(f, mean, std) * function(f)

                return quad(weighted, mean - 12 * std, mean + 12 * std, epsabs=1e-11, limit=400)[0]

            target = y[n, 0].item()
            expected = over(lambda f, t=target: stats.t.logpdf(t, nu, f, c))
            assert elbo[s, n].item() == pytest.approx(expected, abs=1e-6)
            tempered = over(lambda f, t=target: stats.t.pdf(t, nu, f, c) ** (gamma - 1))
            published = gamma / (gamma - 1) * tempered / integral ** ((gamma - 1) / gamma)
            assert score[s, n].item() == pytest.approx(published, rel=1e-6)


@pytest.mark.parametrize("rule", ["qr1", "qr2", "qr3", "gauss-hermite"])
def test_predictions_prune_the_sites_with_their_components(rule: str) -> None:
    model = build(ModelConfig(**SMALL, rule=rule), ref.random_rows(0, 30, 3))
    ref.randomize(model, seed=1, spread=0.3)
    with torch.no_grad():
        for name, p in model.rule.named_parameters():
            if "log_weights" in name:
                p[1] = p.max() - 25.0
    x, y = ref.random_rows(5, 9, 3), ref.random_rows(6, 9, 1)[:, 0]
    whole, predictor = predicted(model, x), model.predictor(min_weight=1e-9)
    assert predictor.num_components == whole.num_components - (rule != "gauss-hermite")
    assert_close(predictor(x).log_prob(y), whole.log_prob(y), 1e-6)
    assert len(model.likelihood.sites) == whole.num_components  # the model itself is left alone
    assert_close(model.predictor()(x).log_prob(y), whole.log_prob(y), 1e-9)


def test_several_outputs_are_refused() -> None:
    with pytest.raises(InputError, match="'student-t' expected 1 output, got 3"):
        build(ModelConfig(**SMALL), ref.random_rows(0, 30, 3), 3)

"""Objectives against numerical integration, the propriety of the gamma score, and several outputs against one."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import reference as ref
import torch
from given import given
from reference import Array, assert_close
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily, MultivariateNormal, Normal

from dspp.config import ModelConfig
from dspp.errors import InputError
from dspp.likelihoods import Gaussian
from dspp.likelihoods.gaussian import AnyNormal, coregionalise, gamma_score
from dspp.objectives import OBJECTIVES, elbo, gamma_elbo, predictive
from dspp.predictive import LatentMixture, MultivariateNormalMixture, NormalMixture

S, N, T = 3, 4, 3
GAMMAS = (1.01, 1.03, 1.1, 1.5)
Make = Callable[[], tuple[AnyNormal, Tensor]]
NO_KL = torch.zeros((), dtype=torch.float64)


def log_weights() -> Tensor:
    return torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()


def one_output() -> tuple[NormalMixture, Tensor]:
    mean, var = ref.random_rows(0, S, N), ref.random_rows(1, S, N).exp()
    mixture = NormalMixture(log_weights(), mean, var, torch.tensor(0.3, dtype=torch.float64))
    return mixture, ref.random_rows(2, N, 1)[:, 0]


def several_outputs() -> tuple[MultivariateNormalMixture, Tensor]:
    """Correlated outputs, each with its noise."""
    roots = ref.random_rows(3, S * N * T, T).reshape(S, N, T, T)
    noise = torch.tensor([0.2, 0.5, 0.9], dtype=torch.float64)
    mean = ref.random_rows(4, S * N, T).reshape(S, N, T)
    return MultivariateNormalMixture(log_weights(), mean, 0.1 * roots @ roots.mT, noise), ref.random_rows(5, N, T)


def integrate(function: Callable[[float], float], centre: float, width: float) -> float:
    """∫ over ±12 widths, to 1e-12."""
    low, high = centre - 12 * width, centre + 12 * width
    return quad(function, low, high, epsabs=1e-13, epsrel=1e-13, limit=400)[0]


def over_latents(mixture: AnyNormal, function: Callable[[Array, int], Array]) -> Array:
    """E[function(f, row)] over f ~ N(μ, v) or N(μ, C), for each component and row: (S, N).

    One output: adaptive integration. T outputs: a grid of 24^T Gauss–Hermite nodes, (K, T) at once.
    """
    out = np.empty((S, N))
    for s, n in itertools.product(range(S), range(N)):
        mean = mixture.component_mean[s, n].numpy()
        if mean.ndim == 0:
            sd = math.sqrt(mixture.latent_var[s, n])
            out[s, n] = integrate(lambda f, m=mean, d=sd, i=n: norm.pdf(f, m, d) * function(np.array([f]), i), mean, sd)
            continue
        sites, weights = np.polynomial.hermite_e.hermegauss(24)
        L = np.linalg.cholesky(mixture.latent_cov[s, n].numpy())
        nodes = np.array(list(itertools.product(sites, repeat=len(mean))))
        mass = np.prod(list(itertools.product(weights / weights.sum(), repeat=len(mean))), axis=1)
        out[s, n] = mass @ function(mean + nodes @ L.T, n)
    return out


def log_likelihood(mixture: AnyNormal, y: Tensor, f: Array, n: int) -> Array:
    """log p(y_n | f) for f (..., T), outputs independent given f."""
    return norm.logpdf(y[n].numpy(), f, np.sqrt(mixture.noise_var.numpy()[0, 0])).sum(-1)


# ---------------------------------------------------------------- elbo


@pytest.mark.parametrize("make", [one_output, several_outputs])
def test_elbo_is_the_expected_log_likelihood(make: Make) -> None:
    mixture, y = make()
    expected = over_latents(mixture, lambda f, n: log_likelihood(mixture, y, f, n))
    assert_close(mixture.expected_log_lik(y), expected, 1e-8)
    weights = mixture.log_weights.exp().numpy()
    kl = torch.tensor(7.0, dtype=torch.float64)
    assert_close(elbo(*given(mixture), y, kl, 50, beta=0.4), (weights @ expected).mean() - 0.4 * 7.0 / 50, 1e-8)


def test_elbo_is_below_the_predictive_objective() -> None:
    for make in (one_output, several_outputs):
        mixture, y = make()
        assert elbo(*given(mixture), y, NO_KL, N).item() < predictive(*given(mixture), y, NO_KL, N).item()  # Jensen


# ---------------------------------------------------------------- gamma-elbo


def published_score(mixture: AnyNormal, y: Tensor, gamma: float) -> Array:
    """γ/(γ−1) E[p(y|f)^(γ−1)] / (∫ p(y'|f)^γ dy')^((γ−1)/γ), everything integrated numerically."""
    tempered = over_latents(mixture, lambda f, n: np.exp((gamma - 1) * log_likelihood(mixture, y, f, n)))
    integral = 1.0
    for sd in np.sqrt(mixture.noise_var.numpy().ravel()):  # a product over outputs, the same for every f
        integral *= integrate(lambda v, sd=sd: norm.pdf(v, 1.7, sd) ** gamma, 1.7, sd)
    return gamma / (gamma - 1) * tempered / integral ** ((gamma - 1) / gamma)


@pytest.mark.parametrize("make", [one_output, several_outputs])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_gamma_elbo_is_the_published_loss_by_integration(gamma: float, make: Make) -> None:
    mixture, y = make()
    expected = published_score(mixture, y, gamma)
    assert_close(gamma_score(mixture, y, gamma, -(gamma - 1) / gamma), expected, 1e-7)
    weights = mixture.log_weights.exp().numpy()
    kl = torch.tensor(7.0, dtype=torch.float64)
    got = gamma_elbo(*given(mixture), y, kl, 50, beta=0.4, gamma=gamma)
    assert_close(got, (weights @ expected).mean() - 0.4 * 7.0 / 50, 1e-6)


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("gamma", GAMMAS)
def test_the_gamma_score_is_proper_with_the_published_power_and_not_with_gpytorchs(gamma: float, outputs: int) -> None:
    """E[score] over y ~ N(0, r₀) as a function of the assumed noise r: highest at r = r₀, and only with that power."""
    true, c = 0.4, gamma - 1
    axis = torch.linspace(-8, 8, 1601 if outputs == 1 else 161, dtype=torch.float64) * math.sqrt(true)
    y = torch.cartesian_prod(*[axis] * outputs).reshape(-1, outputs)
    density = torch.tensor(norm.pdf(y.numpy(), 0, math.sqrt(true)).prod(-1)) * (axis[1] - axis[0]) ** outputs
    assert_close(density.sum(), 1.0, 1e-9)
    mixing, mean = torch.eye(outputs).double(), torch.zeros(1, len(y), outputs, dtype=torch.float64)

    def expected_score(rate: Tensor, power: float) -> Tensor:
        latent = LatentMixture(NO_KL[None], mean, mean)  # f = 0 for certain
        mixture = coregionalise(latent, mixing, (true * rate).expand(outputs))
        return density @ gamma_score(mixture, y, gamma, power)[0]

    rates = torch.logspace(-1, 1, 41, base=4, dtype=torch.float64)  # r / r₀, of which the middle is 1
    assert int(torch.stack([expected_score(rate, -c / gamma) for rate in rates]).argmax()) == 20
    rate = torch.ones((), dtype=torch.float64, requires_grad=True)
    (published,) = torch.autograd.grad(expected_score(rate, -c / gamma), rate)
    (multiplied,) = torch.autograd.grad(expected_score(rate, +c / gamma), rate)
    assert abs(published.item()) < 1e-8
    assert multiplied.item() < -0.3 * c * outputs  # still falling: the noise would be underestimated


@pytest.mark.parametrize("make", [one_output, several_outputs])
def test_the_gamma_score_tends_to_the_elbo(make: Make) -> None:
    """γ/(γ−1) (p^(γ−1) − 1) → log p as γ → 1."""
    mixture, y = make()
    gamma = 1 + 1e-6
    score = gamma_score(mixture, y, gamma, -(gamma - 1) / gamma) - gamma / (gamma - 1)
    assert_close(score, mixture.expected_log_lik(y), 1e-4)


@pytest.mark.parametrize("gamma", [1.0, 0.5, -1.0])
def test_a_gamma_of_one_or_less_is_refused(gamma: float) -> None:
    mixture, y = one_output()
    with pytest.raises(InputError, match=f"gamma: expected a number > 1, got {gamma}"):
        gamma_elbo(*given(mixture), y, NO_KL, N, gamma=gamma)


# ---------------------------------------------------------------- predictive


def test_predictive_is_the_log_density_of_torchs_mixture() -> None:
    mixture, y = one_output()
    std = (mixture.latent_var + mixture.noise_var).sqrt()
    same = MixtureSameFamily(Categorical(logits=log_weights().expand(N, S)), Normal(mixture.component_mean.T, std.T))
    kl = torch.tensor(7.0, dtype=torch.float64)
    assert_close(predictive(*given(mixture), y, kl, 50, beta=0.4), same.log_prob(y).mean() - 0.4 * kl / 50)


def test_predictive_of_several_outputs_is_the_log_density_of_torchs_mixture() -> None:
    mixture, y = several_outputs()
    cov = mixture.latent_cov + torch.diag_embed(mixture.noise_var)
    components = MultivariateNormal(mixture.component_mean.transpose(0, 1), cov.transpose(0, 1))
    same = MixtureSameFamily(Categorical(logits=log_weights().expand(N, S)), components)
    kl = torch.tensor(7.0, dtype=torch.float64)
    assert_close(predictive(*given(mixture), y, kl, 50, beta=0.4), same.log_prob(y).mean() - 0.4 * kl / 50)


# ---------------------------------------------------------------- the Gaussian, and every objective there is


def random_gaussian(outputs: int) -> Gaussian:
    likelihood = Gaussian(outputs, ModelConfig(noise=0.3, noise_floor=1e-4)).double()
    ref.randomize(likelihood, seed=6, spread=0.7)
    return likelihood


def test_coregionalisation_is_the_linear_map_of_its_latent_gps() -> None:
    """y = Aᵀ f + ε by torch.distributions: covariance Aᵀ diag(v) A + diag(noise), component by component."""
    likelihood = random_gaussian(T)
    mean, var = ref.random_rows(7, S * N, T).reshape(S, N, T), ref.random_rows(8, S * N, T).exp().reshape(S, N, T)
    mixture, y = likelihood(LatentMixture(log_weights(), mean, var)), ref.random_rows(9, N, T)
    A, noise = likelihood.mixing.detach(), (1e-4 + torch.nn.functional.softplus(likelihood.raw_noise)).detach()
    for s, n in itertools.product(range(S), range(N)):
        cov = A.T @ torch.diag(var[s, n]) @ A
        assert_close(mixture.component_mean[s, n], A.T @ mean[s, n])
        assert_close(mixture.latent_cov[s, n], cov)
        component = MultivariateNormal(A.T @ mean[s, n], cov + torch.diag(noise))
        assert_close(mixture.component_log_prob(y)[s, n], component.log_prob(y[n]))


def test_a_gaussian_refuses_what_it_cannot_be() -> None:
    for noise, floor in ((1e-4, 1e-4), (0.1, 0.2)):
        with pytest.raises(InputError, match="expected 0 <= noise_floor < noise"):
            Gaussian(1, ModelConfig(noise=noise, noise_floor=floor))
    gaussian = Gaussian(1, ModelConfig(noise=0.1, noise_floor=0.02)).double()
    assert_close(gaussian.noise_var, torch.tensor([0.1]).double(), 1e-7)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_coregionalisation_of_one_output_is_the_single_output(name: str) -> None:
    single = random_gaussian(1)
    mean, var = ref.random_rows(7, S, N)[..., None], ref.random_rows(8, S, N).exp()[..., None]
    y, kl = ref.random_rows(9, N, 1), torch.tensor(3.0, dtype=torch.float64)
    latent = LatentMixture(log_weights(), mean, var)
    several = coregionalise(latent, torch.eye(1).double(), single.noise_var)
    values = [
        OBJECTIVES[name](*likelihood, y, kl, 50, beta=0.4, gamma=1.1)
        for likelihood in ((single, latent), given(several))
    ]
    assert_close(values[1], values[0], 1e-12)


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("make", [one_output, several_outputs])
def test_an_objective_is_a_mean_over_rows_minus_the_kl(make: Make, name: str) -> None:
    mixture, y = make()
    objective = OBJECTIVES[name]
    each = [objective(*given(mixture.rows([n])), y[n : n + 1], NO_KL, 50, gamma=1.1) for n in range(N)]
    kl = torch.tensor(3.0, dtype=torch.float64)
    assert_close(objective(*given(mixture), y, NO_KL, 50, gamma=1.1), torch.stack(each).mean())
    assert_close(objective(*given(mixture), y, kl, 50, beta=0.4, gamma=1.1), torch.stack(each).mean() - 0.4 * 3 / 50)
    assert_close(objective(*given(mixture), y, kl, 50, gamma=1.1), torch.stack(each).mean() - 3 / 50)  # β is 1


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("make", [one_output, several_outputs])
def test_noise_may_differ_from_row_to_row(make: Make, name: str) -> None:
    """A mixture may carry one noise variance a row; no row may then see another row's."""
    mixture, y = make()
    by_row = mixture.with_noise(mixture.noise_var * torch.arange(1, N + 1).reshape([N] + [1] * (mixture.mean.ndim - 1)))
    each = [
        OBJECTIVES[name](
            *given(mixture.rows([n]).with_noise(mixture.noise_var * (n + 1))), y[n : n + 1], NO_KL, 50, gamma=1.1
        )
        for n in range(N)
    ]
    assert_close(OBJECTIVES[name](*given(by_row), y, NO_KL, 50, gamma=1.1), torch.stack(each).mean())

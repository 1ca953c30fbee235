"""Promise 8: the KL divergence is that of torch.distributions and of the dense, unwhitened formula; 0 at the prior."""

import pytest
import reference as ref
import torch
from reference import assert_close
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from dspp.config import ModelConfig
from dspp.gp.inducing import WhitenedGaussian
from dspp.gp.kernels import ARDKernel
from dspp.gp.layer import GPLayer
from dspp.gp.means import MEANS
from dspp.model import build

WIDTH, M, D = 3, 6, 2


def random_q(full: bool, seed: int) -> WhitenedGaussian:
    q = WhitenedGaussian(WIDTH, M, full).double()
    ref.randomize(q, seed, spread=0.4)
    return q


def as_torch(q: WhitenedGaussian) -> torch.distributions.Distribution:
    if not q.full:
        return Independent(Normal(q.mean, q.root.abs()), 1)
    C = q.root.tril()
    return MultivariateNormal(q.mean, C @ C.mT)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_kl_is_that_of_torch_distributions(full: bool, seed: int) -> None:
    q = random_q(full, seed)
    prior = Independent(Normal(torch.zeros(WIDTH, M).double(), torch.ones(WIDTH, M).double()), 1)
    if full:
        prior = MultivariateNormal(torch.zeros(WIDTH, M).double(), torch.eye(M).double().expand(WIDTH, M, M))
    assert_close(q.kl(), kl_divergence(as_torch(q), prior).sum(), 1e-10)


@pytest.mark.parametrize("full", [False, True])
def test_kl_does_not_see_signs_nor_the_upper_triangle_of_the_root(full: bool) -> None:
    q, other = random_q(full, 0), random_q(full, 0)
    with torch.no_grad():
        if full:
            other.root.add_(torch.ones(M, M).double().triu(1))
            other.root.mul_(torch.tensor([1.0, -1, 1, -1, 1, 1]).double())  # columns: the same C Cᵀ
        else:
            other.root.neg_()
    assert_close(ref.covariance(other), ref.covariance(q), 1e-14)
    assert_close(other.kl(), q.kl(), 1e-14)


@pytest.mark.parametrize("full", [False, True])
def test_kl_is_zero_at_the_prior_and_only_there(full: bool) -> None:
    q = WhitenedGaussian(WIDTH, M, full).double()
    assert q.kl().item() == 0
    q.kl().backward()
    assert q.mean.grad is not None
    assert q.root.grad is not None
    assert not q.mean.grad.any()
    assert not q.root.grad.any()
    for seed in range(5):
        assert random_q(full, seed).kl().item() > 0.1


def test_kl_stays_finite_for_a_root_driven_to_zero() -> None:
    for full in (False, True):
        q = random_q(full, 0)
        with torch.no_grad():
            q.root[:, 2] = 0.0
        q.kl().backward()
        assert torch.isfinite(q.kl())
        assert q.root.grad is not None
        assert bool(torch.isfinite(q.root.grad).all())


@pytest.mark.parametrize("jitter", [1e-6, 0.05])
@pytest.mark.parametrize("basis", [False, True])
@pytest.mark.parametrize("full", [False, True])
def test_kl_of_a_layer_is_the_dense_kl_of_the_unwhitened_gaussians(full: bool, basis: bool, jitter: float) -> None:
    """Decoupled: the KL between the joint Gaussians over u = f(Z) and u' = f(Z'), the mean's points included."""
    mean_points = ref.random_rows(1, 4, D) if basis else None
    mean, kernel = MEANS["constant"](D, WIDTH), ARDKernel("matern52", WIDTH, D, 0.7)
    points = ref.random_rows(0, M, D)
    layer = GPLayer(mean, kernel, points, full=full, jitter=jitter, mean_points=mean_points).double()
    ref.randomize(layer, seed=2)
    assert_close(layer.kl(), sum(ref.sparse_kl(gp) for gp in ref.read_layer(layer)), 1e-8)


def test_kl_of_a_model_is_the_sum_over_its_gps() -> None:
    config = ModelConfig(layers=3, width=2, inducing=5, mean_inducing=3, dtype="float64")
    model = build(config, ref.random_rows(0, 20, D))
    assert model.kl().item() == 0  # starts at the prior
    ref.randomize(model, seed=1)
    gps = [gp for layer in ref.read_model(model) for gp in layer]
    assert len(gps) == 2 + 2 + 1
    assert_close(model.kl(), sum(ref.sparse_kl(gp) for gp in gps), 1e-8)

"""Promise 2: on equal parameters, values and gradients are GPyTorch's, to 1e-6 relative, over 20 seeds.

GPyTorch's nugget is a number, ours is relative to the output scale. To compare gradients in the output scale too, the
nugget given to GPyTorch is `jitter · outputscale` as a differentiable tensor, which its `add_jitter` would detach: a
fixture lets it through. Everything else of GPyTorch is as it comes.
"""

import warnings
from collections.abc import Iterator

import pytest
import reference as ref
import torch
from given import given, predicted
from reference import assert_close, assert_same_gradient
from torch import Tensor, nn

from dspp.config import ModelConfig
from dspp.gp.layer import GPLayer
from dspp.likelihoods.gaussian import AnyNormal, gamma_score
from dspp.model import Model, build
from dspp.objectives import elbo, gamma_elbo, predictive
from dspp.quadrature import QR3

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "`torch.jit.script` is deprecated", DeprecationWarning)  # when it is imported
    import gpytorch
    from gpytorch.mlls import (
        DeepApproximateMLL,
        DeepPredictiveLogLikelihood,
        GammaRobustVariationalELBO,
        PredictiveLogLikelihood,
        VariationalELBO,
    )
    from linear_operator.operators import LinearOperator

    from benchmarks.peers import peer_of

SEEDS = range(20)
TOLERANCE = 1e-6
KINDS = ("matern52", "matern32", "matern12", "rbf")
N, D, NUM_DATA = 18, 3, 70  # rows of the batch, inputs, rows of the data it stands for


@pytest.fixture(autouse=True)
def differentiable_jitter(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_jitter(self: LinearOperator, jitter_val: float | Tensor = 1e-3) -> LinearOperator:
        return self.add_diagonal(torch.as_tensor(jitter_val, dtype=self.dtype))

    monkeypatch.setattr(LinearOperator, "add_jitter", add_jitter)


def model_pair(seed: int, jitter: float = 1e-4, **settings: object) -> tuple[Model, nn.Module, Tensor, Tensor]:
    """Our model with random parameters, GPyTorch's with the same, and a batch. Each seed has its kernel and sizes."""
    config = ModelConfig(
        kernel=KINDS[seed % 4],
        inducing=7,
        noise=0.05 + 0.02 * seed,
        jitter=jitter,
        dtype="float64",
        width=2,
        sites=4,
    ).change(**settings)
    x, y = ref.random_rows(seed, N, D), ref.random_rows(1000 + seed, N, 1)[:, 0]
    model = build(config, x, seed=seed)
    ref.randomize(model, seed=seed)
    assert config.noise_floor == 1e-4  # GPyTorch's
    peer = peer_of(model, config)
    for ours, theirs in zip(model.gp_layers, stack(peer), strict=True):
        mirror_jitter(ours, theirs)
    return model, peer, x, y


def stack(peer: nn.Module) -> list[nn.Module]:
    return list(getattr(peer, "stack", [peer]))


def mirror_jitter(ours: GPLayer, theirs: nn.Module) -> None:
    scale = theirs.covar_module.outputscale
    jitter = ours.jitter * (scale.unsqueeze(-1) if scale.dim() else scale)
    theirs.variational_strategy.jitter_val = jitter
    if ours.mean_points is not None:
        theirs.variational_strategy.base_variational_strategy.jitter_val = jitter


def gradient_pairs(model: Model, peer: nn.Module) -> Iterator[tuple[str, Tensor | None, Tensor | None]]:
    """The gradient of every parameter of ours, and of GPyTorch's parameter that stands for it, in the same shape.

    Both sides use softplus for the same raw parameters, so that gradients compare without a chain rule.
    """
    pairs: list[tuple[str, Tensor, Tensor]] = [
        ("noise", model.likelihood.raw_noise, peer.likelihood.noise_covar.raw_noise)
    ]
    linear = 0
    for i, (ours, theirs) in enumerate(zip(model.gp_layers, stack(peer), strict=True)):
        strategy = theirs.variational_strategy
        if ours.mean_points is not None:
            coefficients = strategy._variational_distribution.variational_mean
            pairs.append((f"{i} mean points", ours.mean_points, strategy.inducing_points))
            pairs.append((f"{i} mean coefficients", ours.mean_coefficients, coefficients))
            strategy = strategy.base_variational_strategy
        q = strategy._variational_distribution
        pairs += [
            (
                f"{i} lengthscale",
                ours.kernel.raw_lengthscale,
                theirs.covar_module.base_kernel.raw_lengthscale,
            ),
            (f"{i} outputscale", ours.kernel.raw_outputscale, theirs.covar_module.raw_outputscale),
            (f"{i} Z", ours.inducing_points, strategy.inducing_points),
            (f"{i} q mean", ours.q.mean, q.variational_mean),
            (f"{i} q root", ours.q.root, q.chol_variational_covar if ours.q.full else q._variational_stddev),
        ]
        if "weight" in dict(ours.mean.named_parameters()):
            pairs += [(f"{i} bias", ours.mean.bias, theirs.mean_module.bias)]
            linear += 1
            weights = theirs.mean_module.weights.grad
            yield f"{i} weight", ours.mean.weight.grad, None if weights is None else weights.squeeze(-1).mT
        else:
            pairs.append((f"{i} constant", ours.mean.constant, theirs.mean_module.constant))
    if isinstance(model.rule, QR3):
        pairs.append(("weights", model.rule.raw_log_weights, peer.raw_quad_weights))
        pairs += [
            (f"{i} sites", sites, layer.quad_sites)
            for i, (sites, layer) in enumerate(zip(model.rule.raw_sites, stack(peer)[1:], strict=True))
        ]
    assert len(pairs) + linear == len(list(model.parameters()))
    for what, mine, other in pairs:
        yield what, mine.grad, None if other.grad is None else other.grad.reshape(mine.shape)


def assert_same(model: Model, peer: nn.Module, ours: Tensor, theirs: Tensor) -> None:
    """The two objectives and all their gradients."""
    assert_close(ours, theirs.squeeze(), TOLERANCE)
    ours.backward()
    theirs.backward()
    for what, mine, other in gradient_pairs(model, peer):
        assert_same_gradient(mine, other, TOLERANCE, what)


@pytest.mark.parametrize("seed", SEEDS)
def test_svgp(seed: int) -> None:
    model, peer, x, y = model_pair(seed, layers=1, covariance="full")
    ours = elbo(model.likelihood, model(x), y[:, None], model.kl(), NUM_DATA, beta=0.7)
    theirs = VariationalELBO(peer.likelihood, peer, NUM_DATA, beta=0.7)(peer(x), y)
    assert_same(model, peer, ours, theirs)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("seed", SEEDS)
def test_ppgpr(seed: int, covariance: str) -> None:
    model, peer, x, y = model_pair(seed, layers=1, covariance=covariance)
    ours = predictive(model.likelihood, model(x), y[:, None], model.kl(), NUM_DATA, beta=0.3)
    theirs = PredictiveLogLikelihood(peer.likelihood, peer, NUM_DATA, beta=0.3)(peer(x), y)
    assert_same(model, peer, ours, theirs)


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_dspp(seed: int, layers: int) -> None:
    model, peer, x, y = model_pair(seed, layers=layers)
    ours = predictive(model.likelihood, model(x), y[:, None], model.kl(), NUM_DATA, beta=0.05)
    theirs = DeepPredictiveLogLikelihood(peer.likelihood, peer, NUM_DATA, beta=0.05)(peer(x), y)
    assert_same(model, peer, ours, theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_dgp_on_equal_samples(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, peer, x, y = model_pair(seed, layers=2 + seed % 2, covariance="full", rule="monte-carlo", sites=5)
    generator = torch.Generator().manual_seed(seed)  # as the model makes it from its noise_seed

    def same_samples(shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=dtype, device=device)

    monkeypatch.setattr("torch.distributions.normal._standard_normal", same_samples)
    ours = elbo(model.likelihood, model(x, noise_seed=seed), y[:, None], model.kl(), NUM_DATA, beta=0.7)
    with gpytorch.settings.num_likelihood_samples(5):
        theirs = DeepApproximateMLL(VariationalELBO(peer.likelihood, peer, NUM_DATA, beta=0.7))(peer(x), y)
    assert_same(model, peer, ours, theirs)


def multiplied_gamma_elbo(mixture: AnyNormal, y: Tensor, kl: Tensor, gamma: float, beta: float) -> Tensor:
    """Our gamma-elbo with the power of the normalising integral that GPyTorch has, +(γ − 1)/γ.

    The published loss (Knoblauch 2019) divides by I^((γ−1)/γ); GPyTorch multiplies by it. `test_objectives.py` shows by
    integration that dividing is right; so the comparison turns our sign, and a line of it shows that the signs differ.
    """
    score = mixture.weights @ gamma_score(mixture, y, gamma, integral_power=+(gamma - 1) / gamma)
    return score.mean() - beta * kl / NUM_DATA


@pytest.mark.parametrize("seed", SEEDS)
def test_gamma_objective(seed: int) -> None:
    model, peer, x, y = model_pair(seed, layers=1, covariance="full")
    gamma = (1.01, 1.03, 1.1, 1.5)[seed // 4 % 4]
    ours = multiplied_gamma_elbo(predicted(model, x), y, model.kl(), gamma, beta=0.7)
    mll = GammaRobustVariationalELBO(peer.likelihood, peer, gamma, num_data=NUM_DATA, beta=0.7)
    assert_same(model, peer, ours, mll(peer(x), y))
    divided = gamma_elbo(model.likelihood, model(x), y[:, None], model.kl(), NUM_DATA, beta=0.7, gamma=gamma)
    assert abs(divided.item() - ours.item()) > 1e-4


# ---------------------------------------------------------------- orthogonally decoupled SVGP


def decoupled_pair(seed: int) -> tuple[Model, nn.Module, Tensor, Tensor]:
    """Our OD-SVGP and GPyTorch's, on the same points; the parameters of the means are still to be mapped."""
    model, peer, x, y = model_pair(seed, layers=1, covariance="full", mean_inducing=9)
    with torch.no_grad():
        model.gp_layers[0].kernel.raw_outputscale.fill_((-1.5, 0.0, 1.0, 3.0)[seed // 4 % 4])
        peer.covar_module.raw_outputscale.copy_(model.gp_layers[0].kernel.raw_outputscale.squeeze())
    mirror_jitter(model.gp_layers[0], peer)
    return model, peer, x, y


def projected(layer: GPLayer, a: Tensor) -> Tensor:
    """p = A'a with A' = L⁻¹ k(Z, Z') of the unit kernel, by autograd all the way."""
    assert layer.mean_points is not None
    z, points = layer.kernel.scale(layer.inducing_points), layer.kernel.scale(layer.mean_points)
    K = layer.kernel.unit_matrix(z, z) + layer.jitter * torch.eye(z.shape[-2], dtype=torch.float64)
    A = torch.linalg.solve_triangular(torch.linalg.cholesky(K), layer.kernel.unit_matrix(z, points), upper=False)
    return (A @ a.unsqueeze(-1)).squeeze(-1)


class MixtureAndKL(nn.Module):
    """A model's mixture and KL in one call, for `functional_call`."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> tuple[AnyNormal, Tensor]:
        return predicted(self.model, x), self.model.kl()


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")  # both in linear_operator's sparse.py
@pytest.mark.filterwarnings("ignore:torch.sparse.SparseTensor.* is deprecated:UserWarning")
@pytest.mark.parametrize("seed", SEEDS)
def test_od_svgp(seed: int) -> None:
    """The same family in other parameters, and a KL that differs by what is written below.

    GPyTorch takes the posterior covariance of the base strategy between x and Z', S included, where the paper it cites
    takes the prior's: mean = Aᵀ (m_g + S A' a) + (k(x, Z') − Aᵀ A') a. So m = m_g + S p with p = A' a; and as its
    coefficients multiply the kernel with its output scale, ours the unit kernel and then the root, a = √σ² a_g.
    Its KL is that of N(m_g, S) plus ½ aᵀ C a with C the posterior covariance at Z'. Ours is the KL between the two
    processes (`test_kl.py` has it by brute force), larger by m_gᵀ S p + ½ |S p|² − ½ pᵀ S p.
    """
    model, peer, x, y = decoupled_pair(seed)
    layer = model.gp_layers[0]
    m_g, a_g = layer.q.mean, layer.mean_coefficients  # hold GPyTorch's numbers
    a = layer.kernel.outputscale.sqrt().unsqueeze(-1) * a_g
    p = projected(layer, a)
    Sp = (ref.covariance(layer.q) @ p.unsqueeze(-1)).squeeze(-1)
    mapped = {"model.layers.0.q.mean": m_g + Sp, "model.layers.0.mean_coefficients": a}
    mixture, kl = torch.func.functional_call(MixtureAndKL(model), mapped, (x,))
    difference = (m_g * Sp + 0.5 * Sp.square() - 0.5 * p * Sp).sum()
    assert abs(difference.item()) > 1e-3

    prediction = peer(x)
    assert_close(mixture.component_mean[0], prediction.mean, TOLERANCE)
    assert_close(mixture.latent_var[0], prediction.variance, TOLERANCE)
    assert_close(kl - difference, peer.variational_strategy.kl_divergence(), TOLERANCE)
    ours = elbo(*given(mixture), y, kl - difference, NUM_DATA, beta=0.7)
    theirs = VariationalELBO(peer.likelihood, peer, NUM_DATA, beta=0.7)(prediction, y)
    assert_same(model, peer, ours, theirs)

"""Promise 3: a deep model whose hidden layers do nothing is the shallow one; and limits of its parts."""

import pytest
import reference as ref
import torch
from given import predicted
from reference import assert_close

from dspp.config import ModelConfig
from dspp.errors import NumericalError
from dspp.gp.kernels import inverse_softplus
from dspp.gp.linalg import factorise
from dspp.gp.means import LinearMean
from dspp.model import Model, build
from dspp.quadrature import RULES

N, D = 20, 3


def deep_and_shallow(layers: int, rule: str, hidden_outputscale: float, outputs: int | None) -> tuple[Model, Model]:
    """A PPGPR, and a deep model with the same top layer and head whose hidden layers pass their input on."""
    x = ref.random_rows(0, N, D)
    config = ModelConfig(layers=layers, width=D, inducing=8, sites=3 if layers == 2 else 2, rule=rule, dtype="float64")
    shallow = build(config.change(layers=1), x, outputs or 1)
    deep = build(config, x, outputs or 1)
    ref.randomize(shallow, seed=1)
    ref.randomize(deep, seed=2)
    deep.layers[-1].load_state_dict(shallow.layers[0].state_dict())
    deep.likelihood.load_state_dict(shallow.likelihood.state_dict())
    with torch.no_grad():
        for layer in deep.gp_layers[:-1]:
            assert isinstance(layer.mean, LinearMean)
            layer.mean.weight.copy_(torch.eye(D))
            layer.mean.bias.zero_()
            layer.kernel.raw_outputscale.fill_(inverse_softplus(hidden_outputscale))
            layer.q.root.mul_(1e-3)
    return deep, shallow


@pytest.mark.parametrize("outputs", [None, 2])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("layers", [2, 3])
def test_without_hidden_variance_deep_is_shallow(layers: int, rule: str, outputs: int | None) -> None:
    rows = ref.random_rows(5, N, D)
    y = ref.random_rows(6, N, 2)[:, 0] if outputs is None else ref.random_rows(6, N, outputs)
    deep, shallow = deep_and_shallow(layers, rule, 1e-16, outputs)
    for noise_seed in (None, 0):
        assert_close(predicted(deep, rows, noise_seed).log_prob(y), predicted(shallow, rows).log_prob(y), 1e-6)
    assert_close(predicted(deep, rows).mean, predicted(shallow, rows).mean, 1e-6)
    assert_close(predicted(deep, rows).var, predicted(shallow, rows).var, 1e-6)
    other, _ = deep_and_shallow(layers, rule, 0.5, outputs)  # the test can fail
    assert (predicted(other, rows).log_prob(y) - predicted(shallow, rows).log_prob(y)).abs().max() > 1e-2


def test_far_from_the_inducing_points_the_prior_comes_back() -> None:
    config = ModelConfig(layers=1, covariance="full", inducing=8, jitter=1e-3, dtype="float64")
    model = build(config, ref.random_rows(0, N, D))
    ref.randomize(model, seed=1)
    layer = model.gp_layers[0]
    mixture = predicted(model, 1e4 * torch.ones(2, D, dtype=torch.float64))
    assert_close(mixture.mean, layer.mean(torch.zeros(1, 2, D))[0, :, 0].expand(2))
    assert_close(mixture.latent_var[0], (layer.kernel.outputscale * (1 + 1e-3)).expand(2))


def test_the_prior_q_gives_the_prior_variance_everywhere() -> None:
    model = build(ModelConfig(layers=1, inducing=8, jitter=1e-3, dtype="float64"), ref.random_rows(0, N, D))
    expected = (model.gp_layers[0].kernel.outputscale * (1 + 1e-3)).expand(1, 9)
    assert_close(predicted(model, ref.random_rows(1, 9, D)).latent_var, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_certain_q_leaves_the_nugget_at_the_inducing_points(dtype: str) -> None:
    """Where float32 has rounded the variance away, or to less than nothing, the nugget is still there."""
    config = ModelConfig(layers=1, inducing=100, jitter=1e-7, dtype=dtype)
    model = build(config, ref.random_rows(0, 200, D).to(getattr(torch, dtype)))
    layer = model.gp_layers[0]
    with torch.no_grad():
        layer.q.root.zero_()
    _, var = layer(layer.inducing_points)
    assert bool((var >= 1e-7 * layer.kernel.outputscale * (1 - 1e-6)).all())
    if dtype == "float64":  # 2 j − j² (K + j)⁻¹: both k(x, x) and K_ZZ have the nugget
        assert bool((var <= 2.01e-7 * layer.kernel.outputscale).all())


def test_jitter_increases_only_where_it_must_and_is_counted() -> None:
    good = eye = torch.eye(4, dtype=torch.float64)
    bad = torch.ones(4, 4, dtype=torch.float64) - 3e-4 * eye  # has the eigenvalue −3e-4
    matrices = (good, bad, good, bad)
    result = factorise(torch.stack(matrices), 1e-6, "here")
    assert result.jitter_increases == 3 + 3  # 1e-5, 1e-4, 1e-3 for each of the bad ones
    assert_close(result.jitter, torch.tensor([1e-6, 1e-3, 1e-6, 1e-3], dtype=torch.float64), 1e-15)
    for K, B, jitter in zip(matrices, result.inverse_root, result.jitter, strict=True):
        assert_close(B @ (K + jitter * eye) @ B.mT, eye)
        assert not B.triu(1).any()


@pytest.mark.parametrize("size", [1, 95, 97, 193, 300])
def test_the_inverse_root_is_the_inverse_of_the_factor(size: int) -> None:
    x = ref.random_rows(0, size, 2 * size)
    K = torch.stack([x @ x.T / size, torch.eye(size, dtype=torch.float64)])
    B = factorise(K, 1e-3, "here").inverse_root
    L = torch.linalg.cholesky(K + 1e-3 * torch.eye(size))
    assert_close(B @ L, torch.eye(size, dtype=torch.float64).expand_as(K))
    assert not B.triu(1).any()


@pytest.mark.parametrize(
    ("K", "complaint"),
    [
        (-torch.eye(3), "layer 7: .* not positive definite, even with jitter 1e-01"),
        (torch.eye(3) * torch.nan, "layer 7.*NaN"),
    ],
)
def test_a_hopeless_matrix_is_an_error_that_names_the_layer(K: torch.Tensor, complaint: str) -> None:
    with pytest.raises(NumericalError, match=complaint):
        factorise(K[None], 1e-5, "layer 7")

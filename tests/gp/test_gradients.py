"""Promise 5: gradients are right, by finite differences and against autograd, coincident points included."""

import copy
from collections.abc import Callable, Sequence

import pytest
import reference as ref
import torch
from reference import assert_close, assert_same_gradient
from torch import Tensor
from torch.autograd import gradcheck

import dspp.gp.conditional as hot_path
from dspp.config import ModelConfig
from dspp.gp.conditional import conditional
from dspp.gp.inducing import WhitenedGaussian
from dspp.gp.kernels import KERNELS, ARDKernel, KernelKind
from dspp.gp.layer import GPLayer
from dspp.gp.linalg import factorise, kernel_gradient, whiten
from dspp.gp.means import MEANS
from dspp.likelihoods import Gaussian
from dspp.model import TOPOLOGIES, build
from dspp.objectives import OBJECTIVES
from dspp.predictive import LatentMixture
from dspp.predictive.maths import multivariate_normal_log_prob
from dspp.presets import PRESETS, preset
from dspp.quadrature import RULES

JITTER = 1e-3
EXACT, ROUNDED = 1e-10, 1e-7  # the hot path against autograd of the oracle, relative


def accuracy(kind: str) -> float:
    """Matérn-1/2 takes the root of t², which is a rounding error where points coincide: half of the digits remain."""
    return ROUNDED if kind == "matern12" else EXACT


def leaf(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def check(function: Callable[[], object], tensors: Sequence[Tensor], fast: bool = False, eps: float = 1e-6) -> None:
    """`gradcheck` of a function of no arguments in the tensors it reads; it moves them in place."""
    trainable = [t for t in tensors if t.numel()]
    assert gradcheck(lambda *_: function(), trainable, eps=eps, atol=1e-6, rtol=1e-5, fast_mode=fast)


# ---------------------------------------------------------------- kernels


@pytest.mark.parametrize("kind", KERNELS)
def test_kernel_matrix(kind: str) -> None:
    kernel = ARDKernel(kind, 2, 3).double()
    ref.randomize(kernel, seed=0)
    x, z = leaf(1, 5, 3), leaf(2, 4, 3)
    check(lambda: kernel(x, z), [x, z, *kernel.parameters()])


@pytest.mark.parametrize("kind", KERNELS)
def test_kernel_matrix_of_points_with_themselves_in_float32(kind: str) -> None:
    """K_ZZ of the default dtype: the diagonal of t², a rounding error, must not look like a distance."""
    exact, z = ARDKernel(kind, 2, 3).double(), leaf(1, 40, 3)
    ref.randomize(exact, seed=0)
    single, z32 = copy.deepcopy(exact).float(), z.detach().float().requires_grad_()
    weights = leaf(2, 2, 40, 40).detach()

    def gradient(kernel: ARDKernel, points: Tensor) -> list[Tensor]:
        total = (kernel.exact_matrix(kernel.scale(points)) * weights).sum()
        return list(torch.autograd.grad(total, [points, kernel.raw_lengthscale]))

    for got, expected in zip(gradient(single, z32), gradient(exact, z), strict=True):
        assert_close(got.double(), expected, 2e-3 * expected.abs().max().item())


def test_a_second_derivative_is_refused_not_wrong() -> None:
    kernel, x, z = ARDKernel("rbf", 1, 2).double(), leaf(1, 1, 2), leaf(2, 4, 2)
    mean, y = leaf(3, 1, 5, 2), leaf(4, 5, 2)
    cov = torch.eye(2, dtype=torch.float64).expand(1, 5, 2, 2).clone().requires_grad_()
    for function, at in (
        (lambda: kernel(x, z).sum(), x),
        (lambda: multivariate_normal_log_prob(y, mean, cov).sum(), y),
    ):
        with pytest.raises(NotImplementedError, match="second derivatives are not supported"):
            torch.autograd.grad(function(), at, create_graph=True)


@pytest.mark.parametrize("kind", KERNELS)
def test_kernel_matrix_of_coincident_points(kind: str) -> None:
    """The differences are symmetric, so even the kink of Matérn-1/2 has the slope 0 that is stated for it."""
    kernel = ARDKernel(kind, 1, 2).double()
    points = torch.tensor([[[0.0, 0.5], [1.0, -0.25], [0.25, 1.0], [0.75, -0.25]]], dtype=torch.float64)  # exact
    x, z = points[:, :3].clone().requires_grad_(), points.clone().requires_grad_()
    check(lambda: kernel.unit_matrix(x, z), [x, z], eps=1e-4)
    check(lambda: kernel.unit_matrix(z, z), [z], eps=1e-4)
    K = kernel.unit_matrix(x, z)
    assert_close(K[0].diagonal(), torch.ones(3, dtype=torch.float64), 1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KERNELS)
def test_no_nan_where_all_points_are_one(kind: str, dtype: torch.dtype) -> None:
    layer = GPLayer(MEANS["linear"](2, 2), ARDKernel(kind, 2, 2), torch.full((3, 2), 0.3), full=True, jitter=1e-2)
    layer = layer.to(dtype)
    x = torch.full((1, 4, 2), 0.3, dtype=dtype, requires_grad=True)
    mean, var = layer(x)
    (mean.sum() + var.log().sum() + layer.kl()).backward()
    for p in (x, *layer.parameters()):
        assert p.grad is not None
        assert bool(torch.isfinite(p.grad).all())


@pytest.mark.parametrize("kind", KERNELS.values(), ids=KERNELS)
def test_value_and_slope_into_buffers_are_those_of_the_formula(kind: type[KernelKind]) -> None:
    t2 = torch.logspace(-6, 2, 30, dtype=torch.float64).requires_grad_()
    value = kind.value(t2)
    (slope,) = torch.autograd.grad(value.sum(), t2)
    k, s = torch.empty_like(t2), torch.empty_like(t2)
    before = t2.detach().clone()
    kind.fill(t2.detach(), k, s)
    assert_close(k, value, 1e-14)
    assert_close(kind.slope_factor * s / slope, torch.ones_like(t2), 1e-9)
    assert torch.equal(t2, before)


# ---------------------------------------------------------------- conditional


def inputs(W: int, R: int, M: int, D: int, full: bool, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, z, m and a root of S, all leaves; some rows coincide with inducing points."""
    x, z, m = leaf(seed, W, R, D), leaf(seed + 1, W, M, D), leaf(seed + 2, W, M)
    with torch.no_grad():
        x[:, 0] = z[:, -1]
        root = torch.diag_embed(torch.ones(W, M)) if full else torch.ones(W, M)
        root = root + 0.3 * leaf(seed + 3, *root.shape) / (M**0.5 if full else 1)
    return x, z, m, root.requires_grad_()


def both(kind: str, x: Tensor, z: Tensor, m: Tensor, root: Tensor) -> tuple[Callable[[], object], Callable[[], object]]:
    """The hot path and the oracle as functions of the same leaves."""
    kernel = ARDKernel(kind, len(x), x.shape[-1])
    jitter = torch.linspace(1, 2, len(x), dtype=torch.float64) * JITTER  # another nugget for each GP

    def covariance() -> Tensor:
        return root.square() if root.dim() == 2 else root.tril() @ root.tril().mT

    def fast() -> tuple[Tensor, Tensor]:
        K = kernel.unit_matrix(z, z)
        B = torch.cat([factorise(K[w : w + 1], float(jitter[w]), "test").inverse_root for w in range(len(K))])
        return conditional(kernel.kind, x, z, K, B, m, root, jitter)

    def slow() -> tuple[Tensor, Tensor]:
        t2 = (z.unsqueeze(-2) - z.unsqueeze(-3)).square().sum(-1)
        return ref.conditional(kernel.kind, x, z, kernel.kind.value(t2), m, covariance(), jitter)

    return fast, slow


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", KERNELS)
def test_conditional_by_finite_differences(kind: str, full: bool) -> None:
    leaves = inputs(2, 4, 3, 2, full)
    with torch.no_grad():  # no kink: coincident points are compared with the oracle below
        leaves[0][:, 0] += 0.3
    fast, slow = both(kind, *leaves)
    check(fast, leaves)
    check(slow, leaves)


@pytest.mark.parametrize("chunk", [1000, 7])
@pytest.mark.parametrize("M", [5, 95, 96, 100])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", KERNELS)
def test_conditional_is_the_plain_one(
    kind: str, full: bool, M: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and all gradients, below and above the size that is cut into blocks, in one chunk of rows and in four."""
    monkeypatch.setattr(hot_path, "CHUNK_ROWS", chunk)
    leaves = inputs(2, 25, M, 6, full)
    fast, slow = both(kind, *leaves)
    (mean, var), (plain_mean, plain_var) = fast(), slow()
    assert_close(mean, plain_mean, accuracy(kind))
    assert_close(var, plain_var, accuracy(kind))
    with torch.no_grad():  # nothing kept for a backward pass
        for kept, not_kept in zip((mean, var), fast(), strict=True):
            assert torch.equal(kept, not_kept)
    g_mean, g_var = leaf(9, 2, 25).detach(), leaf(10, 2, 25).detach()
    for outputs in ((0,), (1,), (0, 1)):  # each moment alone, then both
        grads = [
            torch.autograd.grad(
                [pair[o] for o in outputs], leaves, [(g_mean, g_var)[o] for o in outputs], allow_unused=True
            )
            for pair in (fast(), slow())
        ]
        for name, got, expected in zip(("x", "z", "m", "S"), *grads, strict=True):
            if expected is not None and expected.any():
                assert_same_gradient(got, expected, 10 * accuracy(kind), f"{name}, outputs {outputs}")
            else:
                assert got is None or not got.any()


@pytest.mark.parametrize("rows", [1, 6, 7, 8, 14])
def test_chunks_of_every_length_give_the_same(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    leaves = inputs(3, rows, 5, 2, True)
    fast, _ = both("matern52", *leaves)
    whole = torch.autograd.grad(sum(o.square().sum() for o in fast()), leaves)
    monkeypatch.setattr(hot_path, "CHUNK_ROWS", 7)
    chunked = torch.autograd.grad(sum(o.square().sum() for o in fast()), leaves)
    for a, b in zip(chunked, whole, strict=True):
        assert_close(a, b)


def test_graphs_in_waiting_keep_what_they_need() -> None:
    """Buffers are used again, but not while a backward pass may still come, be it the second one."""
    many = [inputs(2, 9, 5, 2, full, seed=10 * i) for i, full in enumerate((False, True, False, True))]

    def loss_of(leaves: tuple[Tensor, ...]) -> Tensor:
        return sum(moment.square().sum() for moment in both("matern52", *leaves)[0]())

    alone = [torch.autograd.grad(loss_of(leaves), leaves) for leaves in many]
    losses = [loss_of(leaves) for leaves in many]
    for _ in range(2):
        for loss, leaves, expected in zip(losses, many, alone, strict=True):
            for a, b in zip(torch.autograd.grad(loss, leaves, retain_graph=True), expected, strict=True):
                assert torch.equal(a, b)


def test_float32_keeps_its_digits_far_from_the_origin() -> None:
    leaves = inputs(2, 30, 8, 3, False)
    _, slow = both("matern52", *leaves)
    exact = [t.detach() for t in slow()]
    with torch.no_grad():
        leaves[0].add_(1e3)
        leaves[1].add_(1e3)
    x, z, m, root = (t.detach().float() for t in leaves)
    kernel = ARDKernel("matern52", 2, 3)
    K = kernel.unit_matrix(z.double(), z.double())
    jitter = torch.linspace(1, 2, 2, dtype=torch.float64) * JITTER
    B = torch.cat([factorise(K[w : w + 1], float(jitter[w]), "test").inverse_root for w in range(2)]).float()
    moments = conditional(kernel.kind, x, z, K, B, m, root, jitter.float())
    for got, expected in zip(moments, exact, strict=True):
        assert got.dtype == torch.float32
        assert_close(got, expected, 2e-3)  # the inputs themselves have lost 3 of 7 digits


def test_kernel_gradient_is_that_of_the_cholesky_factor() -> None:
    """Symmetric, as K is: the gradient of a loss in A = L⁻¹ k, from (dLoss/dA) Aᵀ alone."""
    z = leaf(0, 1, 5, 2).detach()
    K = (ARDKernel("matern52", 1, 2).unit_matrix(z, z)[0] + JITTER * torch.eye(5)).detach().requires_grad_()
    k, dA = leaf(1, 5, 7).detach(), leaf(2, 5, 7).detach()
    A = torch.linalg.solve_triangular(torch.linalg.cholesky(K), k, upper=False)
    (expected,) = torch.autograd.grad(A, K, dA)
    got = kernel_gradient(factorise(K[None], 0.0, "test").inverse_root, (dA @ A.detach().T)[None])[0]
    assert_same_gradient(got, 0.5 * (expected + expected.T), EXACT, "K")
    assert torch.equal(got, got.T)


def test_whitened_vectors() -> None:
    z, w, kernel = leaf(0, 2, 4, 2), leaf(1, 2, 4), ARDKernel("matern52", 2, 2)

    def function() -> Tensor:
        K = kernel.unit_matrix(z, z)
        return whiten(w, K, factorise(K, JITTER, "test").inverse_root)

    check(function, [z, w])
    K = kernel.unit_matrix(z, z)
    L = torch.linalg.cholesky(K + JITTER * torch.eye(4, dtype=torch.float64))
    assert_close(function(), torch.linalg.solve_triangular(L, w.unsqueeze(-1), upper=False).squeeze(-1))


# ---------------------------------------------------------------- layer, means, q(u), rules


@pytest.mark.parametrize("basis", [False, True])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("kind", KERNELS)
def test_layer(kind: str, full: bool, basis: bool) -> None:
    points, mean_points = ref.random_rows(0, 3, 2), ref.random_rows(1, 2, 2) if basis else None
    mean, kernel = MEANS["linear"](2, 2), ARDKernel(kind, 2, 2)
    layer = GPLayer(mean, kernel, points, full=full, jitter=JITTER, mean_points=mean_points).double()
    ref.randomize(layer, seed=2)
    x = leaf(3, 2, 2, 2)
    check(lambda: (*layer(x), layer.kl()), [x, *layer.parameters()])


@pytest.mark.parametrize("name", MEANS)
def test_mean_function(name: str) -> None:
    mean = MEANS[name](3, 2).double()
    mean.start(ref.random_rows(0, 8, 3), torch.Generator().manual_seed(0))
    ref.randomize(mean, seed=0)
    x = leaf(1, 2, 4, 3)
    check(lambda: mean(x).expand(2, 4, 2) + 0 * x[..., :2], [x, *mean.parameters()])


@pytest.mark.parametrize("full", [False, True])
def test_kl(full: bool) -> None:
    q = WhitenedGaussian(2, 3, full).double()
    ref.randomize(q, seed=0)
    check(lambda: (q.kl(), ref.covariance(q)), list(q.parameters()))


@pytest.mark.parametrize("sampling", [False, True])
@pytest.mark.parametrize("sites", [2, 3])
@pytest.mark.parametrize("name", RULES)
def test_rule(name: str, sites: int, sampling: bool) -> None:
    rule = RULES[name]([2, 1], sites, 4).double()
    ref.randomize(rule, seed=0)
    mean, std, extra = leaf(1, 1, 3, 2), leaf(2, 1, 3, 2), leaf(3, 1, 3, 1)

    def function() -> tuple[Tensor, Tensor]:
        noise = torch.Generator().manual_seed(5) if sampling else None
        h = rule.expand(0, mean, std, noise)
        top = rule.expand(1, (h * extra).sum(-1, keepdim=True), h[..., :1].square(), noise)
        return top, rule.log_weights(sampling)

    check(function, [mean, std, extra, *rule.parameters()])
    assert len(function()[0]) == len(function()[1])


# ---------------------------------------------------------------- likelihoods and objectives


@pytest.mark.parametrize("T", [1, 2])
def test_gaussian(T: int) -> None:
    likelihood = Gaussian(T, ModelConfig(noise=0.3)).double()
    ref.randomize(likelihood, seed=0)
    logits, mean, raw_var = leaf(1, 3), leaf(2, 3, 4, T), leaf(3, 3, 4, T)
    y = ref.random_rows(4, 4, T).squeeze(-1 if T == 1 else -2)

    def function() -> tuple[Tensor, ...]:
        mixture = likelihood(LatentMixture(torch.log_softmax(logits, 0), mean, raw_var.exp()))
        return mixture.component_mean, mixture.component_var, mixture.log_prob(y), mixture.mean, mixture.var

    check(function, [logits, mean, raw_var, *likelihood.parameters()])


@pytest.mark.parametrize("T", [1, 2])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_objective(name: str, T: int) -> None:
    likelihood = Gaussian(T, ModelConfig(noise=0.3)).double()
    ref.randomize(likelihood, seed=0)
    logits, mean, raw_var, kl = leaf(1, 3), leaf(2, 3, 4, T), leaf(3, 3, 4, T), leaf(5)
    y = leaf(4, 4, T)

    def function() -> Tensor:
        latent = LatentMixture(torch.log_softmax(logits, 0), mean, raw_var.exp())
        return OBJECTIVES[name](likelihood, latent, y, kl, 50, beta=0.3, gamma=1.2)

    check(function, [logits, mean, raw_var, kl, y, *likelihood.parameters()])
    (slope,) = torch.autograd.grad(function(), kl)
    assert_close(slope, -0.3 / 50)


# ---------------------------------------------------------------- whole models, along random directions


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("name", [prefix + name for name in PRESETS for prefix in ("", "nn+")])
def test_preset(name: str, outputs: int) -> None:
    features = {"features": (5, 3)} if name.startswith("nn+") else {}
    spec = preset(
        name, inducing=4, mean_inducing=3 * (name == "od-svgp"), width=2, sites=3, dtype="float64", **features
    )
    check_model(spec.model, spec.objective.name, outputs)


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_topology(topology: str) -> None:
    config = ModelConfig(layers=4, width=2, inducing=4, sites=3, topology=topology, dtype="float64")
    check_model(config, "predictive", 1)


def check_model(config: ModelConfig, objective: str, outputs: int) -> None:
    x = ref.random_rows(0, 9, 3)
    y = ref.random_rows(1, 9, 2)[:, :outputs]
    model = build(config, x, outputs)
    ref.randomize(model, seed=2, spread=0.1)

    def function() -> Tensor:
        return OBJECTIVES[objective](model.likelihood, model(x, noise_seed=3), y, model.kl(), 50, beta=0.3, gamma=1.1)

    check(function, list(model.parameters()), fast=True)

"""Noise that belongs to each component, and mixtures of mixtures: sums of densities, whatever their noises."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from dspp.errors import InputError
from dspp.predictive import LogNormalMixture, MultivariateNormalMixture, NormalMixture, StudentTMixture

F64, N, T = torch.float64, 5, 3
SHAPES = ((), (N,), (1, N), ("S", 1), ("S", N))


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def sized(shape: tuple, S: int) -> tuple[int, ...]:
    return tuple(S if size == "S" else size for size in shape)


def normal(seed: int = 0, S: int = 3, shape: tuple = ()) -> NormalMixture:
    noise = 0.1 + random(seed + 3, *sized(shape, S)).square()
    return NormalMixture(
        torch.log_softmax(random(seed, S), 0), random(seed + 1, S, N), random(seed + 2, S, N).square(), noise
    )


def several(seed: int = 0, S: int = 3, shape: tuple = ()) -> MultivariateNormalMixture:
    root, noise = random(seed + 2, S, N, T, T), 0.1 + random(seed + 3, *sized(shape, S), T).square()
    return MultivariateNormalMixture(
        torch.log_softmax(random(seed, S), 0), random(seed + 1, S, N, T), root @ root.mT, noise
    )


def student(seed: int = 0, S: int = 3, shape: tuple = ()) -> StudentTMixture:
    scale, df = (0.2 + random(seed + i, *sized(shape, S)).square() for i in (2, 3))
    return StudentTMixture(torch.log_softmax(random(seed, S), 0), random(seed + 1, S, N), scale, 2.0 + df)


def log_normal(seed: int = 0, S: int = 3, shape: tuple = ()) -> LogNormalMixture:
    return LogNormalMixture(normal(seed, S, shape))


KINDS = (normal, several, student, log_normal)
every_kind = pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)


def targets(mixture) -> Tensor:
    return mixture.sample(1, torch.Generator().manual_seed(9))[0]


def fields(mixture) -> dict[str, Tensor]:
    return vars(mixture.log if isinstance(mixture, LogNormalMixture) else mixture)


def same(a, b) -> bool:
    return type(a) is type(b) and all(torch.equal(fields(a)[name], fields(b)[name]) for name in fields(a))


def alone(mixture, s: int, n: int):
    """One component at one row, its parameters written out."""
    if isinstance(mixture, LogNormalMixture):
        return LogNormalMixture(alone(mixture.log, s, n))
    mean = mixture.component_mean
    parts = {name: part.expand(mean.shape) for name, part in fields(mixture).items() if name in mixture._PARAMETERS}
    parts |= {name: part for name, part in fields(mixture).items() if name not in (*parts, "log_weights")}
    taken = {name: part[s : s + 1, n : n + 1] for name, part in parts.items()}
    return type(mixture)(log_weights=torch.zeros(1, dtype=F64), **taken)


@every_kind
@every_shape
def test_a_parameter_of_any_shape_is_that_of_each_component_and_row(make, shape: tuple) -> None:
    mixture = make(shape=shape)
    y = targets(mixture)
    expected = torch.stack(
        [
            torch.cat([alone(mixture, s, n).log_prob(y[n : n + 1]) for n in range(N)])
            for s in range(mixture.num_components)
        ]
    )
    torch.testing.assert_close(mixture.component_log_prob(y), expected, rtol=1e-12, atol=1e-12)


@every_kind
@every_shape
def test_rows_concat_and_to_keep_each_component_its_own(make, shape: tuple) -> None:
    mixture = make(shape=shape)
    y = targets(mixture)
    whole = mixture.log_prob(y)
    for index in (slice(1, 4), [3, 3, 0], torch.tensor([4, 2]), slice(0, 0)):
        torch.testing.assert_close(mixture.rows(index).log_prob(y[index]), whole[index])
    joined = type(mixture).concat([mixture.rows(slice(0, 2)), mixture.rows([2]), mixture.rows(slice(3, None))])
    torch.testing.assert_close(joined.log_prob(y), whole, rtol=0, atol=0)
    assert joined.to(torch.float32).mean.dtype == torch.float32
    if hasattr(mixture, "affine"):
        moved = mixture.affine(2.0, 3.0)
        outputs = mixture.num_outputs
        torch.testing.assert_close(moved.log_prob(2.0 + 3.0 * y), whole - outputs * torch.tensor(3.0, dtype=F64).log())


@every_kind
def test_a_mix_of_one_is_that_one(make) -> None:
    mixture = make()
    assert type(mixture).mix([mixture], [1.0]) is mixture or same(type(mixture).mix([mixture], [1.0]), mixture)
    other = make(seed=20)
    assert same(type(mixture).mix([other, mixture], [0.0, 1.0]), mixture)


@every_kind
@pytest.mark.parametrize("shapes", [((), ()), (("S", 1), (N,)), ((), ("S", N))], ids=str)
def test_the_density_of_a_mix_is_the_weighted_sum_of_densities(make, shapes: tuple) -> None:
    parts = [make(0, 3, shapes[0]), make(10, 5, shapes[1]), make(30, 2)]
    weights = [0.5, 0.2, 0.3]
    mix = type(parts[0]).mix(parts, weights)
    assert mix.num_components == 10
    y = targets(mix)
    density = sum(w * part.log_prob(y).exp() for w, part in zip(weights, parts, strict=True))
    torch.testing.assert_close(mix.log_prob(y).exp(), density, rtol=1e-12, atol=1e-12)
    mean = sum(w * part.mean for w, part in zip(weights, parts, strict=True))
    second = sum(w * (part.var + part.mean.square()) for w, part in zip(weights, parts, strict=True))
    torch.testing.assert_close(mix.mean, mean, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(mix.std, (second - mean.square()).sqrt(), rtol=1e-9, atol=1e-9)


@every_kind
def test_cdf_quantiles_and_crps_of_a_mix_follow_from_it(make) -> None:
    parts, weights = [make(0, 3), make(10, 2, ("S", 1))], [0.3, 0.7]
    mix = type(parts[0]).mix(parts, weights)
    each = [part.outputs() for part in parts]
    for t, one in enumerate(mix.outputs()):
        y = targets(one)
        cdf = sum(w * outputs[t].cdf(y) for w, outputs in zip(weights, each, strict=True))
        torch.testing.assert_close(one.cdf(y), cdf, rtol=1e-12, atol=1e-12)
        p = torch.tensor([0.01, 0.5, 0.97], dtype=F64)
        torch.testing.assert_close(one.cdf(one.quantile(p)), p[:, None].expand(3, N), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(one.crps(y), crps_by_panels(one, y), rtol=1e-5, atol=1e-5)


def crps_by_panels(one, y: Tensor) -> Tensor:
    """∫ (F(x) − 1{y <= x})² dx from one far quantile to the other, between which y lies, by 40 Gauss nodes a panel."""
    levels = torch.tensor([1e-9, 1e-6, 1e-4, 0.01, 0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 0.95, 0.99], dtype=F64)
    ends = torch.cat([one.quantile(torch.cat([levels, 1.0 - levels])), y[None]]).sort(dim=0).values
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(40))
    total = torch.zeros(N, dtype=F64)
    for low, high in itertools.pairwise(ends):
        x = low + (nodes[:, None] + 1.0) / 2.0 * (high - low)
        total += weights @ (one.cdf(x) - (x > y).double()).square() * (high - low) / 2.0
    return total


def test_what_cannot_be_mixed_is_refused() -> None:
    one, longer = normal(), NormalMixture.concat([normal(), normal()])
    for parts, weights, message in (
        ([one, one], [1.0], "got 2 distributions and 1 weights"),
        ([], [], "got 0 distributions"),
        ([one, one], [0.5, 0.6], "that sum to 1"),
        ([one, one], [1.5, -0.5], ">= 0"),
        ([one, longer], [0.5, 0.5], "distribution 1 differs from distribution 0"),
        ([one, student()], [0.5, 0.5], "distribution 1 differs"),
        ([one, one.to(torch.float32)], [0.5, 0.5], "distribution 1 differs"),
    ):
        with pytest.raises(InputError, match=message):
            NormalMixture.mix(parts, weights)
    with pytest.raises(InputError, match="expected distributions of one type"):
        LogNormalMixture.mix([log_normal(), one], [0.5, 0.5])

"""Rows predicted by different models in one mixture: every number is that of the row's own model."""

import math

import numpy as np
import pytest
import torch
from test_mix import KINDS, N, T, random, several, student, targets
from torch import Tensor
from torch.autograd import gradcheck

from dspp.predictive import LogNormalMixture, NormalMixture, StudentTMixture

F64 = torch.float64
ORDER = torch.tensor([3, 0, 9, 4, 7, 1, 8, 2, 5, 6])  # of the rows of the first model, then of the second
every_kind = pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
one_output = pytest.mark.parametrize("make", [kind for kind in KINDS if kind is not several], ids=lambda f: f.__name__)
every_size = pytest.mark.parametrize("sizes", [(3, 2), (1, 4), (3, 3)], ids=str)
every_shape = pytest.mark.parametrize("shape", [(), ("S", 1), (N,), ("S", N)], ids=str)


def models(make, sizes: tuple[int, int] = (3, 2), shape: tuple = ()) -> tuple:
    return make(0, sizes[0], shape), make(7, sizes[1], shape)


def joined(make, sizes: tuple[int, int] = (3, 2), shape: tuple = ()):
    first, second = models(make, sizes, shape)
    return type(first).concat([first, second]).rows(ORDER.argsort())


def observed(make) -> Tensor:
    return torch.cat([targets(part) for part in models(make)])[ORDER.argsort()]


def alone(make, row: int, sizes: tuple[int, int] = (3, 2), shape: tuple = ()):
    """The distribution of one row by its own model."""
    place = int(ORDER.argsort()[row])
    return models(make, sizes, shape)[place // N].rows([place % N])


@every_kind
@every_size
@every_shape
def test_every_number_is_that_of_the_rows_own_model(make, sizes: tuple[int, int], shape: tuple) -> None:
    whole, y = joined(make, sizes, shape), observed(make)
    assert (len(whole), whole.num_components) == (2 * N, max(sizes))
    for row in range(2 * N):
        one, at = alone(make, row, sizes, shape), y[row : row + 1]
        for name in ("mean", "median", "std"):
            torch.testing.assert_close(getattr(whole, name)[row], getattr(one, name)[0], rtol=1e-12, atol=1e-13)
        for name in ("log_prob", "pdf", "crps"):
            found = getattr(whole, name)(y)[row]
            torch.testing.assert_close(found, getattr(one, name)(at)[0], rtol=1e-10, atol=1e-12)


@one_output
def test_probabilities_of_one_output(make) -> None:
    whole, y = joined(make), observed(make)
    levels = torch.tensor([1e-6, 0.1, 0.5, 0.95], dtype=F64)
    many = torch.stack([y, y + 1.0])
    lower, upper = whole.interval(0.8)
    for row in range(2 * N):
        one, at = alone(make, row), slice(row, row + 1)
        close = {"rtol": 1e-12, "atol": 1e-14}
        torch.testing.assert_close(whole.cdf(y)[at], one.cdf(y[at]), **close)
        torch.testing.assert_close(whole.pit(y)[at], one.pit(y[at]), **close)
        torch.testing.assert_close(whole.cdf(many)[:, at], one.cdf(many[:, at]), **close)
        torch.testing.assert_close(whole.mean_distance(y)[at], one.mean_distance(y[at]), **close)
        torch.testing.assert_close(whole.quantile(levels)[:, at], one.quantile(levels), rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(torch.stack([lower[at], upper[at]]), torch.stack(one.interval(0.8)))
    assert torch.equal(whole.cdf(y.numpy()), whole.cdf(y))


def test_rows_that_need_a_bracket_get_their_own_weights() -> None:
    """Components far apart, which no few steps solve."""
    parts = []
    for S in (6, 3):
        even, apart = torch.full((S,), -math.log(S), dtype=F64), 1e4 * torch.arange(S, dtype=F64)[:, None].expand(S, N)
        parts.append(NormalMixture(even, apart, torch.ones(S, N, dtype=F64), torch.tensor(0.0, dtype=F64)))
    levels = torch.tensor([0.01, 1 / 6, 1 / 3, 0.4, 0.99], dtype=F64)
    reached = NormalMixture.concat(parts).cdf(NormalMixture.concat(parts).quantile(levels))
    torch.testing.assert_close(reached, levels[:, None].expand_as(reached), rtol=0, atol=1e-8)


def test_several_outputs() -> None:
    whole, y = joined(several), observed(several)
    hidden = torch.where(random(1, 2 * N, T) > 0, y, torch.nan)
    for row in range(2 * N):
        one, at = alone(several, row), slice(row, row + 1)
        torch.testing.assert_close(whole.cov[at], one.cov)
        torch.testing.assert_close(whole.log_prob(hidden)[at], one.log_prob(hidden[at]))
        for t, output in enumerate(whole.outputs()):
            torch.testing.assert_close(output.cdf(y[:, t])[at], one.outputs()[t].cdf(y[at, t]))
    torch.testing.assert_close(whole.select([2, 0]).mean, whole.mean[:, [2, 0]])


@every_kind
@pytest.mark.parametrize(
    "rows", [slice(None), slice(2, 9, 3), [9, 0, 1], [7, 7, 3], torch.tensor([8, 1]), torch.arange(10) > 4, []], ids=str
)
def test_some_of_the_rows(make, rows) -> None:
    whole, y = joined(make), observed(make)
    part, picked = whole.rows(rows), torch.arange(2 * N)[rows]
    assert len(part) == len(picked)
    torch.testing.assert_close(part.mean, whole.mean[picked])
    torch.testing.assert_close(part.log_prob(y[picked]), whole.log_prob(y)[picked])
    assert part.sample(3).shape == (3, *y[picked].shape)


@every_kind
def test_joined_again_mixed_corrected_and_converted_row_by_row(make) -> None:
    whole, y = joined(make), observed(make)
    kind, first = type(whole), make(40, 4)
    longer = kind.concat([whole, first, whole])
    torch.testing.assert_close(
        longer.log_prob(torch.cat([y, y[:N], y])), torch.cat([log_prob(w, y) for w in (whole, first, whole)])
    )
    same_weights = kind.concat([make(20, 2), make(20, 2)])
    for other in (joined(make, (2, 4)), same_weights):
        mixed = kind.mix([whole, other], [0.25, 0.75])
        parts = torch.stack([math.log(0.25) + whole.log_prob(y), math.log(0.75) + other.log_prob(y)])
        torch.testing.assert_close(mixed.log_prob(y), torch.logsumexp(parts, 0))
    share = torch.linspace(0.0, 1.0, 2 * N, dtype=F64)
    wide, nearer = whole.widen(4.0), whole.approach_standard(share)
    for row in range(2 * N):
        one, at = alone(make, row), slice(row, row + 1)
        torch.testing.assert_close(wide.log_prob(y)[at], one.widen(4.0).log_prob(y[at]))
        torch.testing.assert_close(nearer.log_prob(y)[at], one.approach_standard(share[at]).log_prob(y[at]))
    assert whole.to(torch.float32).mean.dtype == torch.float32


def log_prob(mixture, y: Tensor) -> Tensor:
    return mixture.log_prob(y[: len(mixture)])


def test_equal_weights_stay_shared() -> None:
    first, second = several(0, 3), several(0, 3)
    assert type(first).concat([first, second]).log_weights.shape == (3,)
    assert joined(several).log_weights.shape == (3, 2 * N)
    assert joined(several).rows([4]).log_weights.shape == (3, 1)


@every_kind
def test_samples_have_the_moments_of_their_rows(make) -> None:
    whole = joined(make)
    drawn = whole.sample(4_000, torch.Generator().manual_seed(0))
    assert drawn.shape == (4_000, *whole.mean.shape)
    if make is not student:  # whose variance may be infinite
        below = (drawn <= whole.median).double().mean(dim=0)
        assert bool((below - 0.5).abs().max() < 0.04)
    assert torch.equal(drawn, whole.sample(4_000, torch.Generator().manual_seed(0)))


@every_kind
def test_torch_has_the_same_density(make) -> None:
    whole, y = joined(make), observed(make)
    if not isinstance(whole, LogNormalMixture):
        torch.testing.assert_close(whole.to_torch().log_prob(y), whole.log_prob(y))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_gradients_are_finite_far_out_and_0_without_weight(dtype: torch.dtype) -> None:
    first, second = models(several)
    leaves = {name: value.to(dtype).requires_grad_() for name, value in vars(second).items()}
    whole = type(first).concat([first.to(dtype), type(first)(**leaves)])
    y = (whole.mean + 1e6 * whole.std).detach().requires_grad_()
    whole.log_prob(y).sum().backward()
    assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in (y, *leaves.values()))

    def score(mean: Tensor) -> Tensor:
        part = NormalMixture(torch.zeros(1, dtype=F64), mean, torch.ones(1, N, dtype=F64), torch.tensor(0.0, dtype=F64))
        mixture = NormalMixture.concat([KINDS[0](0, 3), part])
        at = torch.linspace(-1.0, 1.0, 2 * N, dtype=F64)
        return mixture.log_prob(at) + mixture.crps(at) + mixture.cdf(at)

    assert gradcheck(score, (random(5, 1, N).requires_grad_(),))


def test_weights_must_sum_to_one_in_every_row() -> None:
    log_weights = torch.log_softmax(random(0, 3, 2), 0)
    mean, scale = torch.zeros(3, 2, dtype=F64), torch.tensor(1.0, dtype=F64)
    assert StudentTMixture(log_weights, mean, scale, 4.0 * scale).mean.tolist() == [0.0, 0.0]
    log_weights[0, 1] += 0.5
    with pytest.raises(ValueError, match=r"expected exp\(log_weights\) to sum to 1, got 1\."):
        StudentTMixture(log_weights, mean, scale, 4.0 * scale)


def test_chunks_of_rows_take_their_own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    for make in KINDS:
        whole, y = joined(make), observed(make)
        expected = whole.crps(y)
        monkeypatch.setattr("dspp.predictive.maths._CHUNK_ELEMENTS", 7)
        np.testing.assert_allclose(whole.crps(y), expected, rtol=1e-13)
        monkeypatch.undo()

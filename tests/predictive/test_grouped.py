"""Rows in groups: every number is that of the row's own group, in the order of the rows."""

import numpy as np
import pytest
import torch
from test_mix import KINDS, N, T, fields, random, several, student, targets

from dspp.errors import InputError
from dspp.predictive import GroupedPredictive

every_kind = pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
INDEX = (torch.tensor([3, 0, 9, 4, 7]), torch.tensor([1, 8, 2, 5, 6]))


def grouped(make) -> GroupedPredictive:
    return GroupedPredictive((make(0, 3), make(7, 2)), INDEX)


def observed(make) -> torch.Tensor:
    whole = grouped(make)
    y = torch.empty_like(whole.mean)
    for part, index in zip(whole.parts, INDEX, strict=True):
        y[index] = targets(part)
    return y


def alone(whole: GroupedPredictive, row: int):
    """The distribution of one row, from the group it is in."""
    k = int(row in INDEX[1].tolist())
    return whole.parts[k].rows([INDEX[k].tolist().index(row)])


@every_kind
def test_every_number_is_that_of_the_rows_own_group(make) -> None:
    whole, y = grouped(make), observed(make)
    assert (len(whole), whole.num_rows, whole.num_outputs) == (2 * N, 2 * N, whole.parts[0].num_outputs)
    for row in range(2 * N):
        one, at = alone(whole, row), y[row : row + 1]
        for name in ("mean", "median", "std"):
            torch.testing.assert_close(getattr(whole, name)[row], getattr(one, name)[0], rtol=1e-12, atol=0)
        for name in ("log_prob", "pdf", "crps"):
            found = getattr(whole, name)(y)[row]
            torch.testing.assert_close(found, getattr(one, name)(at)[0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("make", [kind for kind in KINDS if kind is not several], ids=lambda make: make.__name__)
def test_probabilities_of_one_output(make) -> None:
    whole, y = grouped(make), observed(make)
    levels = torch.tensor([0.1, 0.5, 0.95], dtype=torch.float64)
    many = torch.stack([y, y + 1.0])
    lower, upper = whole.interval(0.8)
    assert whole.cdf(many).shape == (2, 2 * N)
    assert whole.quantile(0.3).shape == (2 * N,)
    for row in range(2 * N):
        one, at = alone(whole, row), slice(row, row + 1)
        torch.testing.assert_close(whole.cdf(y)[at], one.cdf(y[at]))
        torch.testing.assert_close(whole.pit(y)[at], one.pit(y[at]))
        torch.testing.assert_close(whole.cdf(many)[:, at], one.cdf(many[:, at]))
        torch.testing.assert_close(whole.quantile(levels)[:, at], one.quantile(levels))
        torch.testing.assert_close(torch.stack([lower[at], upper[at]]), torch.stack(one.interval(0.8)))
    np.testing.assert_array_equal(whole.cdf(y.numpy()), whole.cdf(y))


def test_outputs_are_grouped_alike() -> None:
    whole, y = grouped(several), observed(several)
    assert len(whole.outputs()) == T
    for t, output in enumerate(whole.outputs()):
        assert output.num_outputs == 1
        torch.testing.assert_close(output.mean, whole.mean[:, t])
        for row in range(2 * N):
            one = alone(whole, row).outputs()[t]
            torch.testing.assert_close(output.cdf(y[:, t])[row : row + 1], one.cdf(y[row : row + 1, t]))
    hidden = torch.where(random(1, 2 * N, T) > 0, y, torch.nan)
    hidden[:, 0] = y[:, 0]
    joint = whole.log_prob(hidden)
    for row in range(2 * N):
        torch.testing.assert_close(joint[row], alone(whole, row).log_prob(hidden[row : row + 1])[0])


@every_kind
@pytest.mark.parametrize(
    "rows", [slice(None), slice(2, 9, 3), [9, 0, 1], [7, 7, 3], torch.tensor([8, 1]), torch.arange(10) > 4], ids=str
)
def test_some_of_the_rows(make, rows) -> None:
    whole, y = grouped(make), observed(make)
    part = whole.rows(rows)
    picked = torch.arange(2 * N)[rows]
    assert len(part) == len(picked)
    torch.testing.assert_close(part.mean, whole.mean[picked])
    torch.testing.assert_close(part.log_prob(y[picked]), whole.log_prob(y)[picked])
    assert isinstance(whole.rows([3, 4]), type(whole.parts[0])), "of one group: its own kind"


@every_kind
def test_joined_mixed_widened_and_converted_group_by_group(make) -> None:
    whole, y = grouped(make), observed(make)
    twice = GroupedPredictive.concat([whole, whole])
    torch.testing.assert_close(twice.log_prob(torch.cat([y, y])), whole.log_prob(y).repeat(2))
    other = GroupedPredictive((make(20, 2), make(30, 3)), INDEX)
    mixed = GroupedPredictive.mix([whole, other], [0.25, 0.75])
    parts = torch.stack([np.log(0.25) + whole.log_prob(y), np.log(0.75) + other.log_prob(y)])
    torch.testing.assert_close(mixed.log_prob(y), torch.logsumexp(parts, 0))
    wide = whole.widen(4.0)
    for part, before in zip(wide.parts, whole.parts, strict=True):
        for name, value in fields(part).items():
            torch.testing.assert_close(value, fields(before.widen(4.0))[name])
    assert whole.to(torch.float32).mean.dtype == torch.float32


@every_kind
def test_samples_have_the_moments_of_their_rows(make) -> None:
    whole = grouped(make)
    drawn = whole.sample(4_000, torch.Generator().manual_seed(0))
    assert drawn.shape == (4_000, *whole.mean.shape)
    if make is not student:  # whose variance may be infinite
        median = drawn.median(dim=0).values
        below = (drawn <= median).double().mean(dim=0)
        assert bool((below - 0.5).abs().max() < 0.01)
    again = whole.sample(4_000, torch.Generator().manual_seed(0))
    assert torch.equal(drawn, again)


def test_rows_in_no_group_or_several_are_refused() -> None:
    first, second = INDEX
    for index in ((first, first), (first, second + 1), (first,)):
        with pytest.raises(InputError, match="each row in exactly one group"):
            GroupedPredictive((several(0), several(7)), index)
    with pytest.raises(InputError, match="cannot select rows"):
        grouped(several).rows([99])

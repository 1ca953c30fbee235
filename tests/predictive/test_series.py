"""The CRPS of many components by a Fourier series is that of all pairs, whatever the components."""

import pytest
import torch
from torch import Tensor

from dspp import NormalMixture
from dspp.predictive import maths

S, N = 120, 40


def mixture(kind: str) -> NormalMixture:
    rng = torch.Generator().manual_seed(7)
    mean = torch.randn(S, N, generator=rng, dtype=torch.float64)
    std = 0.3 + torch.rand(S, N, generator=rng, dtype=torch.float64)
    logits = torch.randn(S, generator=rng, dtype=torch.float64)
    match kind:
        case "alike":
            mean, std = 0.1 * mean, torch.full_like(std, 0.5)
        case "wide and far":
            std[3], mean[5], mean[60, 1] = 40.0, 300.0, -80.0
        case "narrow":
            std[[2, 7, 110]], std[9, 4] = 1e-3, 1e-8
        case "all at once":
            std[3], mean[5], std[7] = 40.0, 1e5, 1e-6
            logits[[3, 5]] = -12.0
        case "a place of its own in each row":
            mean = mean + 1e3 * torch.arange(N)
        case "weights by row":
            logits = torch.randn(S, N, generator=rng, dtype=torch.float64)
        case "some without weight":
            logits[::2] = -torch.inf
        case "separate":
            mean, std = 50.0 * mean, 0.01 * std
        case "millions":
            mean, std = 1e6 * mean, 1e6 * std
    return NormalMixture(logits.log_softmax(0), mean, std.square(), torch.zeros((), dtype=torch.float64))


def by_pairs(one: NormalMixture, y: Tensor) -> Tensor:
    return maths.mixture_crps(one.weights, y, one.component_mean, one.component_var)


KINDS = (
    "plain",
    "alike",
    "wide and far",
    "narrow",
    "all at once",
    "a place of its own in each row",
    "weights by row",
    "some without weight",
    "separate",
    "millions",
)


@pytest.mark.parametrize("kind", KINDS)
def test_the_series_agrees_with_all_pairs(kind: str) -> None:
    one = mixture(kind)
    for y in (one.mean, one.mean + 3.0 * one.std, one.mean - 1e3 * one.std):
        torch.testing.assert_close(one.crps(y), by_pairs(one, y), rtol=1e-10, atol=1e-10 * float(one.std.min()))


def test_rows_do_not_depend_on_others() -> None:
    one = mixture("narrow")
    y = one.mean + one.std
    rows = torch.cat([one.rows([n]).crps(y[n : n + 1]) for n in range(N)])
    torch.testing.assert_close(rows, one.crps(y), rtol=1e-10, atol=0.0)


def test_pairs_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of components that differ by some standard deviations, few are compared with each other."""
    elements, mean_abs = 0, maths.mean_abs

    def count(mean: Tensor, std: Tensor) -> Tensor:
        nonlocal elements
        elements += mean.numel()
        return mean_abs(mean, std)

    monkeypatch.setattr(maths, "mean_abs", count)
    for kind in ("alike", "plain", "wide and far"):
        one, elements = mixture(kind), 0
        one.crps(one.mean)
        assert elements < 0.25 * N * S**2 / 2


def test_gradients_are_those_of_pairs() -> None:
    one = mixture("alike")
    mean = one.component_mean.clone().requires_grad_()
    free = NormalMixture(one.log_weights, mean, one.latent_var, one.noise_var)
    free.crps(one.mean).sum().backward()
    assert mean.grad is not None
    again = one.component_mean.clone().requires_grad_()
    maths.mixture_crps(one.weights, one.mean, again, one.component_var).sum().backward()
    assert again.grad is not None
    torch.testing.assert_close(mean.grad, again.grad)


def test_rows_that_are_not_finite_stay_alone() -> None:
    one = mixture("alike")
    mean = one.component_mean.clone()
    mean[3, 5], mean[4, 6] = torch.nan, torch.inf
    broken = NormalMixture(one.log_weights, mean, one.latent_var, one.noise_var)
    found, good = broken.crps(one.mean), torch.ones(N, dtype=torch.bool)
    good[[5, 6]] = False
    torch.testing.assert_close(found[good], one.crps(one.mean)[good], rtol=1e-10, atol=0.0)
    assert not found[~good].isfinite().any()

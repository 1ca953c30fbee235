"""NaN in y of several outputs means "not observed": every score is that of the outputs observed, row by row."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from given import given
from reference import assert_close
from scipy import stats
from torch import Tensor
from torch.autograd import gradcheck

from dspp import metrics
from dspp.errors import InputError, NumericalError
from dspp.objectives import OBJECTIVES
from dspp.predictive import MultivariateNormalMixture, NormalMixture, maths

F64, NAN = torch.float64, math.nan
S, N, T = 3, 8, 3
NO_KL = torch.zeros((), dtype=F64)
# Every pattern of missing outputs there is, the last row with nothing left.
MISSING = torch.tensor([[n >> t & 1 for t in range(T)] for n in range(2**T)], dtype=torch.bool)


def mixture_of(rows: int = N, outputs: int = T, noise_by_row: bool = False) -> MultivariateNormalMixture:
    g = torch.Generator().manual_seed(0)
    root = torch.randn(S, rows, outputs, outputs, generator=g, dtype=F64)
    return MultivariateNormalMixture(
        torch.randn(S, generator=g, dtype=F64).log_softmax(0),
        torch.randn(S, rows, outputs, generator=g, dtype=F64),
        root @ root.mT,
        0.1 + torch.rand(*([rows] if noise_by_row else []), outputs, generator=g, dtype=F64),
    )


def full_targets() -> Tensor:
    return 2.0 * torch.randn(N, T, generator=torch.Generator().manual_seed(1), dtype=F64)


def partial_targets() -> Tensor:
    return full_targets().masked_fill(MISSING, NAN)


def row_by_row(mixture: MultivariateNormalMixture, y: Tensor) -> list[tuple[MultivariateNormalMixture, Tensor]]:
    """Each row that has something observed, as a mixture of its observed outputs alone."""
    pairs = []
    for n, row in enumerate(y):
        seen = (~row.isnan()).nonzero()[:, 0].tolist()
        if seen:
            pairs.append((mixture.rows([n]).select(seen), row[seen].unsqueeze(0)))
    return pairs


# ------------------------------------------------------------ the mixture


@pytest.mark.parametrize("noise_by_row", [False, True])
@pytest.mark.parametrize("method", ["component_log_prob", "log_prob", "expected_log_lik"])
def test_a_score_is_that_of_the_observed_outputs(
    method: str, noise_by_row: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maths, "_STACK_CHUNK", 5)
    mixture, y = mixture_of(noise_by_row=noise_by_row), partial_targets()
    score = getattr(mixture, method)(y)
    each = [getattr(part, method)(observed) for part, observed in row_by_row(mixture, y)]
    assert_close(score[..., :-1], torch.cat(each, dim=-1), 1e-10)
    assert score[..., -1].abs().max() < 1e-14  # nothing observed
    assert torch.equal(
        score[..., 0], getattr(mixture, method)(full_targets())[..., 0]
    )  # nothing missing: the same bits


def test_the_density_of_the_observed_is_the_integral_over_the_missing() -> None:
    mixture = mixture_of(rows=1, outputs=2)
    axis = torch.linspace(-30.0, 30.0, 4001, dtype=F64)
    many = mixture.rows([0] * len(axis))
    whole = torch.stack([torch.full_like(axis, 0.7), axis], dim=1)
    integral = torch.trapezoid(many.log_prob(whole).exp(), axis)
    assert_close(mixture.log_prob(torch.tensor([[0.7, NAN]], dtype=F64)).exp(), integral.unsqueeze(0), 1e-10)


def test_the_density_agrees_with_scipy() -> None:
    mixture, y = mixture_of(), partial_targets()
    for n, missing in enumerate(MISSING[:-1].numpy()):
        seen = np.flatnonzero(~missing)
        density = sum(
            w * stats.multivariate_normal(mean[seen], cov[np.ix_(seen, seen)]).pdf(y[n].numpy()[seen])
            for w, mean, cov in zip(
                mixture.weights.numpy(),
                mixture.component_mean[:, n].numpy(),
                mixture.component_cov[:, n].numpy(),
                strict=True,
            )
        )
        assert mixture.log_prob(y)[n].item() == pytest.approx(math.log(density), abs=1e-10)


def test_the_crps_of_a_missing_entry_is_nan_and_spoils_no_other() -> None:
    mixture, y = mixture_of(), partial_targets()
    score = mixture.crps(y)
    assert torch.equal(score.isnan(), MISSING)
    assert torch.equal(score[~MISSING], mixture.crps(full_targets())[~MISSING])


def leaves_of(mixture: MultivariateNormalMixture) -> list[Tensor]:
    return [field.clone().requires_grad_() for field in vars(mixture).values()]


def rebuilt(logits: Tensor, mean: Tensor, half: Tensor, noise: Tensor) -> MultivariateNormalMixture:
    return MultivariateNormalMixture(logits.log_softmax(0), mean, 0.5 * (half + half.mT), noise)


@pytest.mark.parametrize("method", ["log_prob", "component_log_prob", "expected_log_lik", "crps"])
def test_gradients_of_scores(method: str) -> None:
    y = partial_targets()[3:5].requires_grad_()

    def score(y: Tensor, *leaves: Tensor) -> Tensor:
        values: Tensor = getattr(rebuilt(*leaves), method)(y)
        return values[~values.isnan()]

    assert gradcheck(score, (y, *leaves_of(mixture_of().rows(slice(3, 5)))))


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize("method", ["log_prob", "expected_log_lik", "crps"])
def test_what_is_missing_gets_no_gradient_and_overflows_nothing(method: str, dtype: torch.dtype) -> None:
    """The missing outputs sit at 1e30, with an infinite square in float32; those observed have their own gradients."""
    mixture = mixture_of().to(dtype)
    far = mixture.component_mean.masked_fill(MISSING, 1e30)
    leaves = {name: field.clone().requires_grad_() for name, field in vars(mixture).items()}
    leaves["component_mean"] = far.requires_grad_()
    score = getattr(MultivariateNormalMixture(**leaves), method)(partial_targets().to(dtype))
    assert score.dtype == (F64 if method == "crps" else dtype)
    score.nansum().backward()
    grads = {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}
    assert len(grads) >= 3
    assert all(grad.isfinite().all() for grad in grads.values())
    assert (grads["component_mean"][:, MISSING] == 0.0).all()
    assert (grads["component_mean"][:, ~MISSING] != 0.0).any(0).all()
    by_cov = grads.get("latent_cov")
    if by_cov is not None:
        gone = MISSING.unsqueeze(-1) | MISSING.unsqueeze(-2)
        assert (by_cov[:, gone] == 0.0).all()


def test_one_look_is_all_that_whole_targets_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, isnan = [], Tensor.isnan
    monkeypatch.setattr(Tensor, "isnan", lambda tensor: looks.append(tensor.shape) or isnan(tensor))
    monkeypatch.setattr(maths, "_mask_missing", None)  # would raise if called
    mixture, y = mixture_of(), full_targets()
    for method in ("log_prob", "expected_log_lik", "crps"):
        looks.clear()
        getattr(mixture, method)(y)
        assert looks == [(N, T)]


def test_a_bad_covariance_is_found_among_the_observed_only() -> None:
    mixture = mixture_of(rows=1, outputs=2)
    broken = MultivariateNormalMixture(
        mixture.log_weights, mixture.component_mean, torch.diag(torch.tensor([1.0, -5.0])).double().expand(S, 1, 2, 2),
        mixture.noise_var,
    )  # fmt: skip
    assert broken.log_prob(torch.tensor([[1.0, NAN]])).isfinite().all()
    with pytest.raises(NumericalError, match="not positive definite"):
        broken.log_prob(torch.tensor([[NAN, 1.0]]))


# ------------------------------------------------------------ objectives


@pytest.mark.parametrize("noise_by_row", [False, True])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_is_the_mean_over_rows_of_that_of_the_observed_outputs(name: str, noise_by_row: bool) -> None:
    mixture, y = mixture_of(noise_by_row=noise_by_row).rows(slice(0, N - 1)), partial_targets()[:-1]
    objective = OBJECTIVES[name]
    each = [objective(*given(part), observed, NO_KL, 50, gamma=1.1) for part, observed in row_by_row(mixture, y)]
    assert len(each) == N - 1
    kl = torch.tensor(3.0, dtype=F64)
    expected = torch.stack(each).mean() - 0.4 * 3.0 / 50
    assert_close(objective(*given(mixture), y, kl, 50, beta=0.4, gamma=1.1), expected, 1e-10)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_output_that_is_observed_alone_is_a_single_output(name: str) -> None:
    mixture, y = mixture_of(), full_targets()
    alone = y.clone()
    alone[:, [0, 2]] = NAN
    one = OBJECTIVES[name](*given(mixture.marginal(1)), y[:, 1], NO_KL, 50, gamma=1.1)
    assert_close(OBJECTIVES[name](*given(mixture), alone, NO_KL, 50, gamma=1.1), one, 1e-10)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_of_objectives(name: str) -> None:
    y = partial_targets()[3:5]

    def value(*leaves: Tensor) -> Tensor:
        return OBJECTIVES[name](*given(rebuilt(*leaves)), y, NO_KL, 50, gamma=1.1)

    assert gradcheck(value, leaves_of(mixture_of().rows(slice(3, 5))))


# ------------------------------------------------------------ metrics


def seen_rows() -> tuple[MultivariateNormalMixture, Tensor]:
    return mixture_of().rows(slice(0, N - 1)), partial_targets()[:-1]


def observed_columns() -> list[tuple[NormalMixture, Tensor]]:
    mixture, y = seen_rows()
    return [(mixture.marginal(t).rows(~y[:, t].isnan()), y[:, t][~y[:, t].isnan()]) for t in range(T)]


def test_the_nll_is_joint_and_evaluate_divides_it_by_what_was_observed() -> None:
    mixture, y = seen_rows()
    total = sum(-part.log_prob(observed).item() for part, observed in row_by_row(mixture, y))
    assert metrics.nll(mixture, y) == pytest.approx(total / (N - 1), abs=1e-12)
    assert metrics.evaluate(mixture, y)["nll"] == pytest.approx(total / int((~y.isnan()).sum()), abs=1e-12)
    whole = full_targets()[:-1]
    assert metrics.evaluate(mixture, whole)["nll"] == metrics.nll(mixture, whole) / T


@pytest.mark.parametrize("score", [metrics.rmse, metrics.crps, metrics.coverage])
def test_marginal_scores_pool_the_observed_entries(score: Callable[..., float]) -> None:
    power = 2 if score is metrics.rmse else 1
    columns = observed_columns()
    pooled = sum(score(one, y) ** power * len(y) for one, y in columns) / sum(len(y) for _, y in columns)
    assert score(*seen_rows()) == pytest.approx(pooled ** (1 / power), abs=1e-12)


def test_each_output_has_its_own_rmse_and_pit() -> None:
    mixture, y = seen_rows()
    columns = observed_columns()
    expected = np.mean([metrics.rmse(one, observed) for one, observed in columns])
    assert metrics.mrmse(mixture, y) == pytest.approx(expected, abs=1e-12)
    u = metrics.pit(mixture, y)
    assert torch.equal(u.isnan(), y.isnan())
    for t, (one, observed) in enumerate(columns):
        assert_close(u[:, t][~u[:, t].isnan()], one.pit(observed), 1e-14)


def test_evaluate_takes_masked_arrays_and_leaves_them_alone() -> None:
    mixture, y = seen_rows()
    masked = np.ma.masked_array(full_targets()[:-1].numpy(), mask=y.isnan().numpy())
    before = masked.copy()
    assert metrics.evaluate(mixture, masked) == metrics.evaluate(mixture, y.numpy()) == metrics.evaluate(mixture, y)
    assert (masked.data == before.data).all()
    assert (masked.mask == before.mask).all()


def test_a_nan_of_the_model_is_not_taken_for_a_missing_target() -> None:
    mixture, y = seen_rows()
    sick = mixture.component_mean.clone()
    sick[:, 0, 0] = NAN
    broken = MultivariateNormalMixture(mixture.log_weights, sick, mixture.latent_cov, mixture.noise_var)
    for score in (metrics.nll, metrics.rmse, metrics.mrmse, metrics.crps):
        assert math.isnan(score(broken, y))


def test_a_single_output_must_be_observed() -> None:
    one = mixture_of().marginal(0)
    with pytest.raises(InputError, match="expected finite numbers, got NaN at row 2"):
        metrics.nll(one, full_targets()[:, 0].index_fill(0, torch.tensor([2]), NAN))
    with pytest.raises(InputError, match="got none in row 7"):
        metrics.nll(mixture_of(), partial_targets())


# ------------------------------------------------------------ some outputs


def test_select_is_the_joint_distribution_of_some_outputs() -> None:
    mixture, y = mixture_of(noise_by_row=True), full_targets()
    part = mixture.select([2, 0])
    assert torch.equal(part.mean, mixture.mean[:, [2, 0]])
    assert torch.equal(part.cov, mixture.cov[:, [2, 0]][:, :, [2, 0]])
    assert torch.equal(part.noise_var, mixture.noise_var[..., [2, 0]])
    missing = y.clone()
    missing[:, 1] = NAN
    assert_close(part.log_prob(y[:, [2, 0]]), mixture.log_prob(missing), 1e-12)
    assert_close(mixture.select([1]).log_prob(y[:, [1]]), mixture.marginal(1).log_prob(y[:, 1]), 1e-12)
    whole = mixture.select(range(T))
    assert all(torch.equal(vars(whole)[name], field) for name, field in vars(mixture).items())


@pytest.mark.parametrize(
    ("outputs", "complaint"),
    [
        ([0, 3], "expected an output from 0 to 2, got 3"),
        ([-1], "expected an output from 0 to 2, got -1"),
        ([], r"expected at least one output, each only once, got \[\]"),
        ([1, 1], r"expected at least one output, each only once, got \[1, 1\]"),
    ],
)
def test_outputs_that_cannot_be_selected(outputs: list[int], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        mixture_of().select(outputs)


# ------------------------------------------------------------ torch.distributions


@pytest.mark.parametrize("outputs", [None, 1, 4])
def test_to_torch_is_the_same_distribution(outputs: int | None) -> None:
    many = mixture_of(outputs=outputs or 1)
    mixture = many.marginal(0) if outputs is None else many
    y = torch.randn(mixture.mean.shape, generator=torch.Generator().manual_seed(2), dtype=F64)
    same = mixture.to_torch()
    assert same.batch_shape == (N,)
    assert same.event_shape == mixture.mean.shape[1:]
    assert_close(same.log_prob(y), mixture.log_prob(y), 1e-10)
    assert_close(same.mean, mixture.mean, 1e-10)
    assert_close(same.variance, mixture.var, 1e-10)
    if outputs is None:
        assert_close(same.cdf(y), mixture.cdf(y), 1e-10)


@pytest.mark.parametrize("outputs", [None, 3])
def test_to_torch_has_the_same_gradients(outputs: int | None) -> None:
    many = mixture_of(outputs=outputs or 1)
    mixture = many.marginal(0) if outputs is None else many
    y, gradients = torch.zeros_like(mixture.mean), []
    for form in ("log_prob", "to_torch"):
        leaves = {name: field.clone().requires_grad_() for name, field in vars(mixture).items()}
        rebuilt_mixture = type(mixture)(**leaves)
        scored = rebuilt_mixture if form == "log_prob" else rebuilt_mixture.to_torch()
        scored.log_prob(y).sum().backward()
        gradients.append({name: leaf.grad for name, leaf in leaves.items() if name != "log_weights"})
    for name, gradient in gradients[0].items():  # torch normalises the weights: those gradients differ by a constant
        assert_close(gradients[1][name], gradient, 1e-9)


def test_to_torch_keeps_the_dtype_and_says_when_it_is_too_short() -> None:
    assert mixture_of().to(torch.float32).to_torch().mean.dtype == torch.float32
    ones = torch.ones(1, 2, 3, 3, dtype=F64)
    together = MultivariateNormalMixture(
        torch.zeros(1).double(), ones[..., 0], ones, torch.full((3,), 1e-10, dtype=F64)
    )
    assert_close(together.to_torch().log_prob(ones[0, ..., 0]), together.log_prob(ones[0, ..., 0]), 1e-5)
    with pytest.raises(
        NumericalError, match=r"not positive definite in torch.float32; call .to\(torch.float64\) first"
    ):
        together.to(torch.float32).to_torch()


# ------------------------------------------------------------ figures


def test_plot_methods_draw_their_mixture() -> None:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    mixture = mixture_of(rows=N).marginal(0)
    y = full_targets()[:, 0].numpy()
    ax = Figure().subplots()
    assert mixture.plot_density(3, y=0.5, ax=ax) is ax
    drawn = [line for line in ax.lines if len(line.get_xdata()) > 50 and line.get_label() == "density"]
    x, p = (torch.as_tensor(values) for values in drawn[0].get_data())
    assert_close(mixture.rows([3] * len(x)).log_prob(x).exp(), p, 1e-9)
    assert any(set(np.asarray(line.get_xdata())) == {0.5} for line in ax.lines)  # what was observed

    ax = Figure().subplots()
    assert mixture.plot_fan(np.arange(N), y=y, ax=ax, levels=(0.5, 0.9)) is ax
    assert len(ax.collections) == 2  # one band a level
    (median,) = (line for line in ax.lines if line.get_label() == "median")
    assert_close(torch.as_tensor(median.get_ydata()), mixture.quantile(0.5), 1e-12)

    ax = mixture.plot_pit(y)
    assert isinstance(ax, Axes)
    heights = [bar.get_height() for bar in ax.patches if bar.get_width() < 0.1]
    counts = np.histogram(mixture.pit(torch.from_numpy(y)).numpy(), bins=len(heights), range=(0, 1))[0]
    np.testing.assert_allclose(heights, counts * len(heights) / N)
    assert isinstance(mixture.plot_reliability(y), Axes)
    for draw in (mixture.plot_pit, mixture.plot_reliability):
        with pytest.raises(InputError, match="expected 8 rows"):
            draw(y[:3])

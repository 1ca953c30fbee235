"""Promise 4: the rules agree with each other, with loops over the paper's equations, and with what they integrate."""

import copy
import math
from collections.abc import Callable

import numpy as np
import pytest
import reference as ref
import torch
from given import predicted
from reference import assert_close
from torch import Tensor

from dspp.config import ModelConfig
from dspp.errors import InputError, NumericalError
from dspp.model import Model, build
from dspp.objectives import predictive
from dspp.predictive import NormalMixture
from dspp.quadrature import MAX_COMPONENTS, QR1, QR2, QR3, RULES, FixedSites, GaussHermite, MonteCarlo, Rule

N, D = 6, 3
GRIDS = [name for name, rule in RULES.items() if rule.grid]


def make_model(rule: str, layers: int = 2, width: int = 2, sites: int = 3, test_sites: int = 5) -> Model:
    config = ModelConfig(
        layers=layers, width=width, inducing=6, rule=rule, sites=sites, test_sites=test_sites, dtype="float64"
    )
    model = build(config, ref.random_rows(0, 30, D))
    ref.randomize(model, seed=1)
    return model


def with_rule(model: Model, rule: Rule) -> Model:
    other = copy.copy(model)
    other._modules = dict(model._modules)
    other.rule = rule.double()
    return other


def components_of(rule: Rule) -> Callable[..., object]:
    """How the paper would combine this rule's sites and weights, from its parameters alone."""
    if isinstance(rule, GaussHermite):
        sites, weights = np.polynomial.hermite_e.hermegauss(rule.num_sites)
        weights = weights / math.sqrt(2 * math.pi)
        columns = [np.repeat(sites[:, None], width, axis=1) for width in rule.widths]
        return ref.grids([lambda s: math.prod(weights[i] for i in s)] * len(columns), columns)
    if isinstance(rule, QR1 | QR2):
        columns = [rule.columns(i).detach().numpy() for i in range(len(rule.widths))]
        tables = [
            np.exp(raw.detach().numpy()).reshape([rule.num_sites] * width)
            for raw, width in zip(rule.raw_log_weights, rule.widths, strict=True)
        ]
        return ref.grids([lambda s, t=t: float(t[s] / t.sum()) for t in tables], columns)
    sites = [rule.sites(i).detach().numpy() for i in range(len(rule.widths))]
    weights = np.full(rule.num_test_sites, 1 / rule.num_test_sites)
    if isinstance(rule, QR3):
        weights = np.exp(rule.raw_log_weights.detach().numpy())
    return ref.lined_up(weights / weights.sum(), sites)


@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("rule", ["gauss-hermite", "qr1", "qr2", "qr3", "monte-carlo"])
def test_the_density_is_the_papers_composition_by_loops(rule: str, layers: int) -> None:
    model = make_model(rule, layers)
    X, y = ref.random_rows(2, N, D), ref.random_rows(3, N, 1)[:, 0]
    expected = ref.dspp_density(
        y.numpy(), X.numpy(), ref.read_model(model), components_of(model.rule), model.likelihood.noise_var.item()
    )
    assert_close(predicted(model, X).log_prob(y), np.log(expected), 1e-9)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("widths", [(1,), (2,), (2, 1), (1, 3)])
def test_components_come_in_the_order_of_their_weights(name: str, widths: tuple[int, ...]) -> None:
    """`expand` is compared with loops, component by component; `log_weights` must then have as many, in that order."""
    rule = RULES[name](widths, 2, 5).double()
    ref.randomize(rule, seed=3)
    values = ref.random_rows(0, N, widths[0])[None]
    tags = [()]  # which site each component took in each layer
    for i, width in enumerate(widths):
        mean = values if i == 0 else torch.cat([values, values, values], -1)[..., :width]
        std = ref.random_rows(4, N, width).abs().expand(len(values), -1, -1)
        sites = rule.sites(i)
        got = rule.expand(i, mean, std)
        if rule.grid:
            tags = [(*tag, s) for tag in tags for s in range(len(sites))]
        else:
            tags = [(s,) * (i + 1) for s in range(len(sites))]
        assert len(got) == len(tags)
        for c, tag in enumerate(tags):
            below = 0 if i == 0 else (c // len(sites) if rule.grid else c)
            for n in range(N):
                for w in range(width):
                    expected = mean[below, n, w] + sites[tag[-1], w] * std[below, n, w]
                    assert abs(got[c, n, w].item() - expected.item()) < 1e-12
        values = got
    logs = rule.log_weights()
    assert logs.shape == (len(tags),)
    if isinstance(rule, QR1 | QR2):
        each = [torch.log_softmax(raw, 0) for raw in rule.raw_log_weights]
        expected_logs = [sum(each[i][s].item() for i, s in enumerate(tag)) for tag in tags]
        assert_close(logs, np.array(expected_logs))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("sites", [1, 2, 3, 5])
def test_weights_are_on_the_simplex(name: str, sites: int) -> None:
    for widths in ([1], [2], [1, 2]):
        rule = RULES[name](widths, sites, 7).double()
        ref.randomize(rule, seed=sites, spread=2.0)
        for sampling in (False, True):
            logs = rule.log_weights(sampling)
            assert bool(torch.isfinite(logs).all())
            assert_close(logs.exp().sum(), 1.0, 1e-12)
        if rule.grid:
            assert len(logs) == sites ** sum(widths)


@pytest.mark.parametrize("sites", range(1, 9))
def test_gauss_hermite_integrates_polynomials_up_to_degree_2S_minus_1(sites: int) -> None:
    rule = GaussHermite([1], sites).double()
    x, weights = rule.sites(0)[:, 0], rule.log_weights().exp()
    for degree in range(2 * sites + 1):
        moment = 0.0 if degree % 2 else float(math.prod(range(degree - 1, 0, -2)))  # E x^k = (k − 1)!!
        error = abs((weights @ x**degree).item() - moment) / (weights @ x.abs() ** degree).clamp_min(1).item()
        assert error < 1e-11 if degree < 2 * sites else error > 1e-3, f"degree {degree} of S = {sites}"


def test_gauss_hermite_has_the_papers_points_and_weights() -> None:
    rule = GaussHermite([2], 3).double()  # the paper's third point, −√3, is a slip
    points, weights = [-math.sqrt(3), 0.0, math.sqrt(3)], [1 / 6, 2 / 3, 1 / 6]
    expected = [
        ((a, b), p * q) for a, p in zip(points, weights, strict=True) for b, q in zip(points, weights, strict=True)
    ]
    assert_close(rule.sites(0), np.array([site for site, _ in expected]), 1e-14)
    assert_close(rule.log_weights().exp(), np.array([weight for _, weight in expected]), 1e-14)
    assert not list(rule.parameters())


@pytest.mark.parametrize("name", ["qr1", "qr2"])
def test_learned_grids_start_at_gauss_hermite(name: str) -> None:
    for widths in ([2], [1, 2]):
        rule, start = RULES[name](widths, 3).double(), GaussHermite(widths, 3).double()
        for i in range(len(widths)):
            assert_close(rule.sites(i), start.sites(i), 1e-6)
        assert_close(rule.log_weights(), start.log_weights(), 1e-6)


@pytest.mark.parametrize("name", GRIDS)
@pytest.mark.parametrize("width", [1, 2, 3])
def test_a_qr3_that_lists_the_grid_is_the_grid(name: str, width: int) -> None:
    model = make_model(name, width=width)
    grid = model.rule
    assert grid is not None
    listed = QR3([width], 3**width).double()
    with torch.no_grad():
        listed.raw_sites[0].copy_(grid.sites(0))
        listed.raw_log_weights.copy_(grid.log_weights() + 0.7)  # a shift changes nothing
    x, y = ref.random_rows(5, 20, D), ref.random_rows(6, 20, 1)[:, 0]
    assert_close(predicted(with_rule(model, listed), x).log_prob(y), predicted(model, x).log_prob(y), 1e-12)


@pytest.mark.parametrize("sites", [1, 2, 3, 4, 5])
def test_qr2_stays_symmetric_after_every_step(sites: int) -> None:
    model = make_model("qr2", sites=sites)
    rule = model.rule
    assert isinstance(rule, QR2)
    x, y = ref.random_rows(5, 20, D), ref.random_rows(6, 20, 1)[:, 0]
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    start = rule.columns(0).detach().clone()
    for _ in range(5):
        optimizer.zero_grad()
        (-predictive(model.likelihood, model(x), y[:, None], model.kl(), 20)).backward()
        optimizer.step()
        columns = rule.columns(0)
        assert torch.equal(columns, -columns.flip(0))
        if sites % 2:
            assert not columns[sites // 2].any()
        assert columns.shape == (sites, 2)
    moved = (rule.columns(0) - start).abs() > 1e-3
    assert bool(moved.all(-1).sum() == sites - sites % 2)  # all but the middle learn


def test_gauss_hermite_and_monte_carlo_agree_within_3_standard_errors() -> None:
    model = make_model("gauss-hermite", sites=20)
    with torch.no_grad():
        for layer in model.gp_layers:  # smooth and narrow enough for 20 points to be exact
            layer.kernel.raw_lengthscale.fill_(2.0)
        model.gp_layers[0].kernel.raw_outputscale.fill_(-1.0)
    samples = MonteCarlo([2], 1, 20_000, torch.Generator().manual_seed(7))
    x = ref.random_rows(8, 3, D)
    exact, sampled = predicted(model, x), predicted(with_rule(model, samples), x)
    coarse = predicted(with_rule(model, GaussHermite([2], 12)), x)
    assert sampled.num_components == 20_000
    for offset in (-2.0, -0.5, 0.0, 1.0, 2.5):
        y = exact.mean + offset * exact.std
        density = exact.log_prob(y).exp()
        assert_close(coarse.log_prob(y).exp(), density, 1e-6)  # so that quadrature error plays no part
        draws = sampled.component_log_prob(y).exp()
        error = draws.std(0) / math.sqrt(20_000)
        z = (draws.mean(0) - density) / error
        assert bool((z.abs() < 3).all()), z
        assert bool((error < 0.02 * density).all())  # the test can fail
    assert_close(sampled.log_prob(y).exp(), draws.mean(0))


def test_monte_carlo_draws_fresh_samples_in_training_and_fixed_ones_to_predict() -> None:
    model = make_model("monte-carlo", sites=4, test_sites=6)
    x = ref.random_rows(5, N, D)
    assert torch.equal(predicted(model, x).component_mean, predicted(model, x).component_mean)
    assert predicted(model, x).num_components == 6
    first, again, other = (
        predicted(model, x, noise_seed=1),
        predicted(model, x, noise_seed=1),
        predicted(model, x, noise_seed=2),
    )
    assert first.num_components == 4
    assert torch.equal(first.component_mean, again.component_mean)
    assert not torch.equal(first.component_mean, other.component_mean)
    rule = MonteCarlo([3, 3], 4000)
    mean, std = torch.full((1, 5, 3), 2.0).double(), torch.full((1, 5, 3), 0.5).double()
    noise = torch.Generator().manual_seed(0)
    draws, deeper = rule.expand(0, mean, std, noise), rule.expand(1, mean, std, noise)
    assert draws.shape == (4000, 5, 3)
    assert_close(draws.mean(0), mean[0], 0.03)
    assert_close(draws.std(0), std[0], 0.03)
    flat = torch.cat([draws, deeper], -1).flatten(1)  # samples of rows, GPs and layers are independent
    assert (torch.corrcoef(flat.T) - torch.eye(30)).abs().max() < 0.08


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_that_is_too_large_is_refused_by_its_count(name: str) -> None:
    with pytest.raises(InputError, match=rf"at most {MAX_COMPONENTS} components, got 59049.*QR3"):
        RULES[name]([5, 5], 3)
    assert len(RULES[name]([5, 5], 2).log_weights()) == 1024  # as many as allowed


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_that_is_not_refused_is_finite(name: str) -> None:
    for sites in (100, 400, MAX_COMPONENTS):
        try:
            rule = RULES[name]([1], sites)
        except InputError:
            continue
        assert bool(torch.isfinite(rule.sites(0)).all())
        assert bool(torch.isfinite(rule.log_weights()).all())


@pytest.mark.parametrize("name", RULES)
def test_less_than_one_site_is_refused(name: str) -> None:
    for sites, test_sites in ((0, 5), (-3, 5), (5, 0)):
        with pytest.raises(InputError, match=rf"expected at least 1 site, got {sites} \({test_sites} to predict\)"):
            RULES[name]([2], sites, test_sites)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("layers", [2, 3])
def test_pruning_moves_the_nll_by_less_than_a_millionth(name: str, layers: int) -> None:
    model = make_model(name, layers)
    rule = model.rule
    assert rule is not None
    with torch.no_grad():  # one weight carries next to nothing
        for parameter_name, p in rule.named_parameters():
            if "log_weights" in parameter_name:
                p[1] = p.max() - 25.0
    x, y = ref.random_rows(5, 20, D), ref.random_rows(6, 20, 1)[:, 0]
    before = predicted(model, x)
    everything, pruned = rule.prune(0.0), rule.prune(1e-9)
    listed = predicted(with_rule(model, everything), x)
    assert listed.num_components == before.num_components
    assert_close(listed.log_prob(y), before.log_prob(y), 1e-12)
    after = predicted(with_rule(model, pruned), x)
    assert abs((after.log_prob(y) - before.log_prob(y)).mean().item()) < 1e-6
    has_weights = any("log_weights" in n for n, _ in rule.named_parameters())
    if has_weights and not (rule.grid and layers == 3):
        assert after.num_components == before.num_components - 1
    assert_close(pruned.log_weights().exp().sum(), 1.0, 1e-12)
    assert rule.prune(1.1).log_weights().numel() >= 1  # the heaviest always stays


def test_predictions_keep_light_components_for_the_tails() -> None:
    """Where the others do not reach, a broad one that weighs 1e-11 is all there is: of log p(1), 2000 nats and more."""
    weights = torch.tensor([1.0, 1e-11], dtype=torch.float64)
    narrow_and_broad = torch.tensor([[2e-4], [1.0]], dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    whole = NormalMixture(weights.log(), torch.zeros(2, 1, dtype=torch.float64), narrow_and_broad, zero)
    heavy = NormalMixture(zero, torch.zeros(1, 1, dtype=torch.float64), narrow_and_broad[:1], zero)
    assert (whole.log_prob(zero + 1) - heavy.log_prob(zero + 1)).item() > 2000
    model = make_model("qr3", 2)
    with torch.no_grad():
        model.rule.raw_log_weights[0] = model.rule.raw_log_weights.max() - 25.0
    assert model.predictor().num_components == model.rule.num_sites
    assert model.predictor(min_weight=1e-9).num_components == model.rule.num_sites - 1


def test_a_rule_that_crosses_a_layer_its_own_way_predicts_that_way() -> None:
    class Wide(QR3):
        def expand(self, layer: int, mean: Tensor, std: Tensor, noise: torch.Generator | None = None) -> Tensor:
            return super().expand(layer, mean, 3 * std, noise)

    model = make_model("qr3", 2)
    model.rule.__class__ = Wide
    x = ref.random_rows(5, 20, D)
    assert_close(model.predictor()(x).mean, predicted(model, x).mean.detach(), 1e-9)


def test_pruning_keeps_the_heaviest_components_with_their_sites() -> None:
    logs = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    sites = [ref.random_rows(i, 4, width) for i, width in enumerate((2, 3))]
    pruned = FixedSites(sites, logs).prune(0.1)
    assert_close(pruned.log_weights().exp(), torch.tensor([0.5, 0.3, 0.15], dtype=torch.float64) / 0.95, 1e-14)
    for i in range(2):
        assert torch.equal(pruned.sites(i), sites[i][:3])
    alone = FixedSites(sites, logs).prune(0.9)
    assert torch.equal(alone.sites(0), sites[0][:1])
    assert alone.log_weights().tolist() == [0.0]


@pytest.mark.parametrize("name", RULES)
def test_parameters_that_are_nan_are_a_numerical_problem(name: str) -> None:
    """Training goes back to an earlier state for these, but not for what a user could have given otherwise."""
    model = make_model(name)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(math.nan)
    with pytest.raises(NumericalError):
        model.predictor()(ref.random_rows(0, 5, D))
    rule = model.rule
    assert rule is not None
    if rule.log_weights().isnan().any():
        with pytest.raises(NumericalError, match=f"weights of the rule {type(rule).__name__} are not finite"):
            rule.prune(1e-30)

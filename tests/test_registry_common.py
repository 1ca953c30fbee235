"""What every kernel, mean, rule, likelihood, objective, preset and topology must do, found by name: new ones too."""

from collections.abc import Iterator

import pytest
import reference as ref
import torch
from given import predicted
from reference import assert_close
from torch import Tensor

from dspp.config import ModelConfig
from dspp.errors import InputError
from dspp.features import FeatureNetwork
from dspp.gp.inducing import kmeans_points
from dspp.gp.kernels import KERNELS
from dspp.gp.means import MEANS
from dspp.likelihoods import LIKELIHOODS
from dspp.metrics import METRICS
from dspp.model import TOPOLOGIES, Model, Predictor, build
from dspp.objectives import OBJECTIVES
from dspp.predictive import LatentMixture, MultivariateNormalMixture, NormalMixture
from dspp.presets import PRESETS, preset
from dspp.quadrature import RULES
from dspp.registry import Registry

N, D = 60, 3
SMALL = {"inducing": 12, "width": 2, "sites": 3, "test_sites": 5, "dtype": "float64"}
REGISTRIES = (KERNELS, MEANS, RULES, LIKELIHOODS, OBJECTIVES, PRESETS, TOPOLOGIES, METRICS)


def cases() -> Iterator[tuple[str, ModelConfig, str]]:
    """A name, a model and the objective that trains it, for every part of every registry."""
    for name in PRESETS:
        for full_name in (name, "nn+" + name):
            changes = SMALL | ({"features": (8, 4)} if full_name != name else {})
            spec = preset(full_name, **changes)
            spec = preset(full_name, **changes, mean_inducing=15) if spec.model.mean_inducing else spec
            for layers in (2, 3) if spec.model.layers > 1 else (1,):
                yield f"{full_name}-{layers}", spec.model.change(layers=layers), spec.objective.name
    base = ModelConfig(**SMALL)
    yield from ((f"kernel-{name}", base.change(kernel=name), "predictive") for name in KERNELS)
    yield from ((f"hidden-mean-{name}", base.change(hidden_mean=name), "predictive") for name in MEANS)
    yield from ((f"top-mean-{name}", base.change(top_mean=name), "predictive") for name in MEANS)
    yield from ((f"rule-{name}-{n}", base.change(rule=name, layers=n), "predictive") for name in RULES for n in (2, 3))
    yield from ((f"topology-{name}", base.change(topology=name, layers=4), "predictive") for name in TOPOLOGIES)
    yield from ((f"objective-{name}", base, name) for name in OBJECTIVES)
    decoupled = base.change(mean_inducing=15, covariance="full", layers=3)
    yield "decoupled-deep", decoupled, "elbo"


CASES = list(cases())
every_case = pytest.mark.parametrize(("config", "objective"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
one_and_three = pytest.mark.parametrize("outputs", [None, 3])


def data(outputs: int | None) -> tuple[Tensor, Tensor]:
    x = ref.random_rows(0, N, D)
    return x, x[:, 0].sin() if outputs is None else x[:, :outputs].sin()


def made(config: ModelConfig, outputs: int | None) -> Model:
    model = build(config, data(outputs)[0], outputs or 1)
    ref.randomize(model, seed=1, spread=0.1)
    return model


@one_and_three
@every_case
def test_it_builds_and_predicts(config: ModelConfig, objective: str, outputs: int | None) -> None:
    x, y = data(outputs)
    model = build(config, x, outputs or 1)  # as it starts
    for sampling in (None, 3):
        mixture = predicted(model, x, sampling)
        assert isinstance(mixture, NormalMixture if outputs is None else MultivariateNormalMixture)
        assert mixture.component_mean.shape == (mixture.num_components, N, *y.shape[1:])
        for values in (mixture.mean, mixture.var, mixture.std):
            assert values.shape == y.shape
            assert values.dtype == torch.float64
            assert bool(torch.isfinite(values).all())
        assert mixture.log_prob(y).shape == (N,)
        assert bool(torch.isfinite(mixture.log_prob(y)).all())
        assert bool((mixture.component_var > mixture.noise_var).all())
        assert_close(mixture.log_weights.exp().sum(), 1.0)
    assert model.kl().shape == ()
    assert model.jitter_increases == 0
    short = [layer for layer in model.gp_layers if layer.inducing_points.shape[1] < config.inducing]
    assert len(model.notes) == len(short)  # fewer points than asked for is never silent


@one_and_three
@every_case
def test_every_parameter_gets_a_gradient(config: ModelConfig, objective: str, outputs: int | None) -> None:
    """A parameter that gets no gradient does not exist."""
    x, y = data(outputs)
    model = made(config, outputs)
    value = OBJECTIVES[objective](model.likelihood, model(x, noise_seed=3), y.reshape(N, -1), model.kl(), 1000)
    assert value.shape == ()
    value.backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert bool(torch.isfinite(p.grad).all()), name
        assert p.numel() == 0 or bool(p.grad.any()), f"{name} has no influence"


@one_and_three
@every_case
def test_the_predictor_is_the_model_whatever_the_batches(
    config: ModelConfig, objective: str, outputs: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data(outputs)
    model = made(config, outputs)
    model.train()
    model(x)  # batch normalisation has seen something
    model.eval()
    x, y = x[:15], y[:15]
    with torch.no_grad():
        expected = predicted(model, x)
    predictor = model.train().predictor()  # it predicts, whatever the model is doing
    order = torch.randperm(15, generator=torch.Generator().manual_seed(0))
    predictions = [
        predictor(x),
        type(expected).concat([predictor(rows) for rows in x.split(7)]),
        type(expected).concat([predictor(rows) for rows in x.split(1)]),
        predictor(x[order]).rows(order.argsort()),
    ]
    monkeypatch.setattr(Predictor, "BATCH_ROWS", 4 * predictor.num_components)
    predictions.append(predictor(x))
    for got in predictions:
        assert not got.mean.requires_grad
        assert_close(got.log_prob(y), expected.log_prob(y))
        assert_close(got.mean, expected.mean)
        assert_close(got.var, expected.var)


@every_case
def test_the_predictor_is_a_copy(config: ModelConfig, objective: str) -> None:
    x, y = data(None)
    model = made(config, None).eval()
    predictor = model.predictor()
    before, trained = predictor(x).log_prob(y), predicted(model, x).log_prob(y)
    ref.randomize(model, seed=9)  # as training on would
    assert torch.equal(predictor(x).log_prob(y), before)
    assert_close(before, trained)
    assert all(p.requires_grad for p in model.parameters())
    assert not torch.equal(predicted(model, x).log_prob(y), trained)  # nothing is cached in the model itself


LIKELIHOOD_CASES = [
    (name, {"layers": 1} if rule is None else {"rule": rule}) for name in LIKELIHOODS for rule in (None, *RULES)
]
every_likelihood = pytest.mark.parametrize(("name", "changes"), LIKELIHOOD_CASES, ids=str)


@every_likelihood
def test_a_likelihood_predicts_what_it_scores(name: str, changes: dict) -> None:
    """Its density is that of the user's distribution, in training as in prediction, and moves every parameter."""
    x, y = data(None)
    model = build(ModelConfig(**SMALL, **changes, likelihood=name), x)
    ref.randomize(model, seed=1, spread=0.1)
    latent = model(x)
    assert latent.mean.shape == latent.var.shape == (len(latent.log_weights), N, 1)
    distribution = model.likelihood(latent)
    assert (len(distribution), distribution.num_outputs) == (N, 1)
    assert_close(model.likelihood.log_prob(latent, y[:, None]), distribution.log_prob(y), 1e-12)
    assert distribution.outputs() == [distribution]
    predicted_again = model.predictor()(x)
    assert type(predicted_again) is type(distribution)
    assert_close(predicted_again.log_prob(y), distribution.log_prob(y).detach())
    parts = [model.predictor()(rows) for rows in x.split(25)]
    assert_close(type(parts[0]).concat(parts).log_prob(y), distribution.log_prob(y).detach())
    mixed = type(distribution).mix([predicted_again, distribution], [0.25, 0.75])
    assert_close(mixed.log_prob(y), distribution.log_prob(y))
    OBJECTIVES["predictive"](model.likelihood, model(x, noise_seed=3), y[:, None], model.kl(), 1000).backward()
    for parameter_name, p in model.named_parameters():
        assert p.grad is not None, parameter_name
        assert bool(torch.isfinite(p.grad).all()), parameter_name
        assert p.numel() == 0 or bool(p.grad.any()), f"{parameter_name} has no influence"


@every_likelihood
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_likelihood_serves_every_objective(name: str, changes: dict, objective: str) -> None:
    x, y = data(None)
    model = build(ModelConfig(**SMALL, **changes, likelihood=name), x)
    latent = model(x, noise_seed=3)
    value = OBJECTIVES[objective](model.likelihood, latent, y[:, None], model.kl(), 1000, gamma=1.1)
    assert value.shape == ()
    assert bool(torch.isfinite(value))


@every_case
def test_the_same_seed_builds_the_same_model(config: ModelConfig, objective: str) -> None:
    x, _ = data(None)
    state = torch.get_rng_state()
    models = [build(config, x, seed=seed) for seed in (5, 5, 6)]
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is left alone
    first, again, other = (dict(model.state_dict()) for model in models)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
def test_unknown_names_are_refused_with_the_names_there_are(registry: Registry[object]) -> None:
    assert len(registry) >= 2
    with pytest.raises(InputError, match=f"unknown {registry.kind} 'nonsense'; choose .*{sorted(registry)[-1]}"):
        registry["nonsense"]
    taken = next(iter(registry))
    with pytest.raises(InputError, match=f"{taken!r} is already registered"):
        registry.register(taken)(object())
    assert "nonsense" not in registry


@pytest.mark.parametrize("field", ["kernel", "hidden_mean", "top_mean", "rule", "likelihood", "topology"])
def test_a_model_of_unknown_parts_is_refused(field: str) -> None:
    with pytest.raises(InputError, match=r"unknown .* 'nonsense'; choose one of"):
        build(ModelConfig(**SMALL, **{field: "nonsense"}), data(None)[0])


def test_a_preset_refuses_what_it_does_not_know() -> None:
    with pytest.raises(InputError, match="unknown preset 'gp'"):
        preset("gp")
    with pytest.raises(InputError, match=r"no setting 'widht'; choose from: beta, gamma, .*width"):
        preset("dspp", widht=5)
    spec = preset("gamma-dgp", beta=0.2, gamma=1.1, width=5)
    assert (spec.objective.beta, spec.objective.gamma, spec.model.width) == (0.2, 1.1, 5)


def test_the_presets_are_the_papers_table() -> None:
    rows = {
        "svgp": (1, "full", None, "elbo"),
        "od-svgp": (1, "full", None, "elbo"),
        "ppgpr": (1, "diagonal", None, "predictive"),
        "dgp": (2, "full", "monte-carlo", "elbo"),
        "gamma-dgp": (2, "full", "monte-carlo", "gamma-elbo"),
        "bpdgp": (2, "diagonal", "monte-carlo", "predictive"),
        "dspp": (2, "diagonal", "qr3", "predictive"),
    }
    for name, row in rows.items():
        m, objective = preset(name).model, preset(name).objective
        assert (m.layers, m.covariance, m.rule if m.layers > 1 else None, objective.name) == row
        assert m.mean_inducing == 3 * m.inducing * (name == "od-svgp")
        assert preset(name, inducing=20).model.mean_inducing == 60 * (name == "od-svgp")
        assert preset("nn+" + name).model == m.change(features=(1000, 1000, 500, 50, 20))
        assert preset("nn+" + name).objective == objective


@pytest.mark.parametrize("topology", ["feedforward", "mean-from-input", "mean-from-both", "all-from-both"])
def test_topologies_read_what_they_say(topology: str) -> None:
    """Only hidden layers after the first; composed here by hand."""
    x, y = data(None)
    model = made(ModelConfig(**SMALL, layers=3, topology=topology), None)
    first, second, top = model.gp_layers
    rule = model.rule
    assert rule is not None
    mean, var = first(x[None])
    h = rule.expand(0, mean, var.sqrt())
    both = torch.cat([h, x.expand(3, N, D)], -1)
    mean_reads = {"feedforward": h, "mean-from-input": x[None]}.get(topology, both)
    mean, var = second(both if topology == "all-from-both" else h, mean_reads)
    h = rule.expand(1, mean, var.sqrt())
    assert_close(
        model.likelihood(LatentMixture(rule.log_weights(), *top(h))).log_prob(y), predicted(model, x).log_prob(y)
    )


@pytest.mark.parametrize("columns", [1, 4, 60])
def test_a_linear_mean_starts_with_hidden_units_of_unit_scale(columns: int) -> None:
    """Whatever the number of inputs, and however they are correlated."""
    rows = 3 + ref.random_rows(0, 500, columns) @ ref.random_rows(1, columns, columns)
    mean = MEANS["linear"](columns, 5).double()
    mean.start(rows, torch.Generator().manual_seed(0))
    h = mean(rows[None])[0]
    assert_close(h.std(0, correction=0), torch.ones(5, dtype=torch.float64), 1e-6)
    assert torch.linalg.matrix_rank(h - h.mean(0)) == min(5, columns)  # no two GPs alike
    mean.start(torch.ones(10, columns), torch.Generator().manual_seed(0))
    assert bool(torch.isfinite(mean(rows[None])).all())  # nothing to divide by


def test_inducing_points_start_at_the_centres_of_clusters() -> None:
    centres = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 10.0], [10.0, 10.0]], dtype=torch.float64)
    rows = (centres[:, None] + 0.1 * ref.random_rows(0, 4 * 20, 2).reshape(4, 20, 2)).flatten(0, 1)
    points = kmeans_points(rows, 4, torch.Generator().manual_seed(0))
    expected = torch.stack([cluster.mean(0) for cluster in rows.split(20)])
    assert_close(torch.cdist(points, expected).min(0).values, torch.zeros(4, dtype=torch.float64), 0.05)
    distinct = kmeans_points(rows[:7].repeat(9, 1), 12, torch.Generator().manual_seed(0))
    assert_close(distinct, rows[:7].unique(dim=0), 1e-12)  # there are no more
    with pytest.raises(InputError, match="expected at least 1 inducing point, got 0"):
        kmeans_points(rows, 0, torch.Generator())


def test_the_feature_network_is_the_papers() -> None:
    """Linear, batch normalisation, ReLU; at the end features that come out z-scored, by no learned scale and shift."""
    network = FeatureNetwork(D, (8, 6, 4)).double()
    kinds = [type(layer).__name__ for layer in network]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU"] * 2 + ["Linear", "BatchNorm1d"]
    assert [p.shape[0] for p in network.parameters()] == [8] * 4 + [6] * 4 + [4] * 2
    features = network(data(None)[0])
    assert_close(features.mean(0), torch.zeros(4, dtype=torch.float64))
    assert_close(features.var(0, correction=0), torch.ones(4, dtype=torch.float64), 0.05)


def test_features_of_the_users_own_are_trained_with_the_rest() -> None:
    x, y = data(None)
    features = torch.nn.Sequential(torch.nn.Linear(D, 5), torch.nn.Tanh())
    model = build(ModelConfig(**SMALL), x, features=features)
    assert model.gp_layers[0].inducing_points.shape == (2, 12, 5)
    ref.randomize(model, seed=1)  # at the start all is the prior, which does not depend on x
    predicted(model, x).log_prob(y).sum().backward()
    for p in features.parameters():
        assert p.grad is not None
        assert bool(p.grad.any())


def test_fewer_rows_than_points_are_noted_for_both_bases() -> None:
    rows = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    notes = build(preset("od-svgp", inducing=10).model, rows).notes
    assert notes == ("layer 1 of 1: expected 30 points of the mean, but there are only 20 distinct rows; using 20",)
    assert len(build(preset("od-svgp", inducing=30).model, rows).notes) == 2


def test_a_part_can_be_registered_or_replaced_for_a_while() -> None:
    registry: Registry[int] = Registry("number")
    registry.register("one")(1)
    registry.register("two")(2)
    with registry.temporarily("one", 10) as part, registry.temporarily("three", 3):
        assert (part, dict(registry)) == (10, {"one": 10, "two": 2, "three": 3})
    assert list(registry.items()) == [("one", 1), ("two", 2)]
    with pytest.raises(ZeroDivisionError), registry.temporarily("one", 10), registry.temporarily("three", 3):
        raise ZeroDivisionError
    assert dict(registry) == {"one": 1, "two": 2}

"""Laws of every outcome of the package, for each likelihood that suits it."""

import numpy as np
import pytest
import torch

from dspp.codec import pack, unpack
from dspp.likelihoods import LIKELIHOODS
from dspp.metrics import METRICS
from dspp.outcomes import OUTCOMES, Outcome, find_outcome
from dspp.table.messages import Place
from dspp.table.table import Table

RNG = np.random.default_rng(0)
VALUES = np.exp(RNG.normal(1.0, 0.6, size=(400, 1)))
PLACE = Place("y")


@pytest.fixture(params=[(name, likelihood) for name in OUTCOMES for likelihood in LIKELIHOODS], ids="-".join)
def outcome(request: pytest.FixtureRequest) -> Outcome:
    name, likelihood = request.param
    if LIKELIHOODS[likelihood].outcome != name:
        pytest.skip("another outcome's likelihood")
    return OUTCOMES[name](("y",), likelihood).fit(VALUES, PLACE)


def test_its_name_and_its_own_likelihood_belong_to_it() -> None:
    for name, kind in OUTCOMES.items():
        assert kind.kind == name
        assert LIKELIHOODS[kind.default_likelihood].outcome == name
        assert find_outcome(name, kind.default_likelihood, is_named=True) == (kind, kind.default_likelihood)
        assert find_outcome("auto", kind.default_likelihood, is_named=False) == (kind, kind.default_likelihood)


def test_encoded_columns_are_standardised(outcome: Outcome) -> None:
    y = outcome.encode(VALUES, PLACE)
    assert y.shape == (400, len(outcome.encoded_names))
    np.testing.assert_allclose([y.mean(axis=0), y.std(axis=0)], [[0.0], [1.0]], atol=1e-12)
    np.testing.assert_array_equal(outcome.encode(VALUES, PLACE, "float64"), y)


def test_the_guard_is_a_distribution_of_the_user_s_values(outcome: Outcome) -> None:
    marginal = outcome.marginal(outcome.fit_guard(outcome.encode(VALUES, PLACE), 0.01), 1)
    assert marginal is not None
    (one,) = outcome.decode(marginal).outputs()
    x = torch.linspace(max(one.support[0], -400.0), 400.0, 400_001, dtype=torch.float64)[1:]
    tails = one.cdf(x[:1]) + 1.0 - one.cdf(x[-1:])
    mass = torch.trapezoid(one.rows([0] * len(x)).pdf(x), x) + tails
    assert mass.item() == pytest.approx(1.0, abs=1e-5)
    assert one.cdf(torch.tensor([float(np.median(VALUES))])).item() == pytest.approx(0.5, abs=0.15)


def test_its_state_is_stored_by_its_fields(outcome: Outcome) -> None:
    tensors, plain = pack(outcome)
    again = unpack(Outcome, tensors, plain)  # type: ignore[type-abstract]
    assert type(again) is type(outcome)
    assert (again.names, again.likelihood) == (outcome.names, outcome.likelihood)
    np.testing.assert_array_equal(again.encode(VALUES, PLACE), outcome.encode(VALUES, PLACE))


def test_scores_of_the_constant_prediction_are_finite(outcome: Outcome) -> None:
    assert set(outcome.headlines) | {outcome.score, outcome.tunes} <= set(outcome.metrics) <= set(METRICS)
    constant = outcome.constant(400)
    assert constant is not None
    rows = outcome.compare(constant[1], VALUES)
    found = rows.scores(outcome.metrics)
    assert list(found) == list(outcome.metrics)
    assert np.isfinite(list(found.values())).all()
    assert outcome.loss(constant[1], VALUES).mean().item() == pytest.approx(found["crps"])
    assert outcome.calibration(rows).verdict().startswith("Predictions are no better than a constant")
    assert outcome.observed(VALUES).sum() == 400
    assert outcome.notes(Table("t", array=VALUES, y=VALUES, target_names=("y",))) == []

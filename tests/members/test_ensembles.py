"""What ensembles promise of their predictions: no row was seen by those who are judged on it, and none can surprise."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from dspp import DSPPRegressor, training
from dspp.errors import InputError, TrainingDiverged, TrainingInterrupted
from dspp.fitting import train
from dspp.folds import assign_folds
from dspp.guard import WIDE, WIDE_STDS
from dspp.members.run import member_seed
from dspp.objectives import OBJECTIVES
from dspp.prepare import prepare
from dspp.settings import Settings
from dspp.table.memory import attach_targets, to_table
from tests.members.ensembles import TINY, N, X, Y, bits, fit_and_look, log_density, weights_of

pytestmark = pytest.mark.usefixtures("two_folds")
RNG = np.random.default_rng(5)
X_VAL, Y_VAL = X[:20] + RNG.normal(size=(20, 2)), Y[:20] + RNG.normal(size=20)


@pytest.fixture(scope="module")
def looked_at(two_folds: None) -> tuple[DSPPRegressor, Any, Any]:
    return fit_and_look()


@pytest.fixture(scope="module")
def model(looked_at: tuple[DSPPRegressor, Any, Any]) -> DSPPRegressor:
    return looked_at[0]


# ---------------------------------------------------------------- what members have seen


def test_no_member_depends_on_the_targets_that_it_held_out(looked_at: tuple[DSPPRegressor, Any, Any]) -> None:
    """Promise 29: with other targets in a fold, members without it are the same to the bit, and so is their column."""
    _, trained, trees = looked_at
    fold = assign_folds(N, 2, seed=0)
    one, other = (int(row) for row in np.flatnonzero(fold == 0)[:2])
    other = next(int(row) for row in np.flatnonzero(fold == 0) if Y[row] != Y[one])
    swapped = Y.copy()
    swapped[[one, other]] = Y[[other, one]]
    again, trained_again, trees_again = fit_and_look(swapped)
    assert (Y.mean(), Y.std()) == (swapped.mean(), swapped.std())
    assert again.fitted_.outcome.scale.scale.tobytes() == looked_at[0].fitted_.outcome.scale.scale.tobytes()
    assert {first.fold for first in trained} == {0, 1}
    for first, second in zip(trained, trained_again, strict=True):
        same = bits(first.held_out) == bits(second.held_out)
        assert same == (first.fold == 0), first.number
    (trees,), (trees_again,) = trees, trees_again
    assert trees.columns[0].tobytes() == trees_again.columns[0].tobytes()
    assert trees.columns[1].tobytes() != trees_again.columns[1].tobytes()


def test_members_differ_and_each_is_seeded_by_its_number(model: DSPPRegressor) -> None:
    members = model.fitted_.members
    assert [member.kind for member in members] == ["plain", "plain", "trees", "trees", "gp", "gp"]
    assert [member.train.seed for member in members] == [member_seed(0, number) for number in range(6)]
    assert len(set(weights_of(model))) > len(members)
    again = DSPPRegressor(**TINY).fit(X, Y)
    assert weights_of(again) == weights_of(model)
    assert bits(again.fitted_.distribution(X)) == bits(model.fitted_.distribution(X))
    other = DSPPRegressor(**TINY, random_state=1).fit(X, Y)
    assert bits(other.fitted_.distribution(X)) != bits(model.fitted_.distribution(X))


# ---------------------------------------------------------------- the mixture


def test_the_prediction_is_the_formula(model: DSPPRegressor) -> None:
    """p(y) = (1 − g) Σ_k w_k p_k(y) + g p_guard(y), with the variances of p_k multiplied by the variance scale."""
    fitted = replace(model.fitted_, variance_scale=1.7, judged=None)
    assert fitted.guard is not None
    assert len(fitted.trees) == 1
    scale, rows = fitted.outcome.scale, fitted.scale_X.transform(X)
    z, column = ((Y - scale.mean) / scale.scale)[None], fitted.predict_trees(rows)
    density = np.zeros(N)
    for member, weight in zip(fitted.members, fitted.weights, strict=True):
        read = np.column_stack([rows, column]) if member.kind == "trees" else rows
        part = member.model.predictor()(read).to(torch.float64)
        each = stats.norm.pdf(z, part.component_mean, np.sqrt(1.7 * part.component_var.numpy()))  # (S, N)
        density += (1.0 - fitted.guard.weight) * weight * (part.weights.numpy() @ each)
    guard = stats.norm.pdf(z, fitted.guard.mean, fitted.guard.var.sqrt())  # (G, N)
    density += fitted.guard.weight * (fitted.guard.log_weights.exp().numpy() @ guard)
    expected = np.log(density) - math.log(scale.scale[0])
    np.testing.assert_allclose(
        log_density(fitted.distribution(X), Y), expected, rtol=0, atol=1e-7
    )  # weights in float32
    assert sum(fitted.weights) == pytest.approx(1.0)


def test_no_value_in_the_range_is_more_of_a_surprise_than_the_guard_allows(model: DSPPRegressor) -> None:
    """Promise 32, for members that are ten times too sure of themselves."""
    sure = replace(model.fitted_, variance_scale=1e-4)
    guard, scale = sure.guard, float(sure.outcome.scale.scale[0])
    assert guard is not None
    width = 0.5 * np.ptp(Y) / scale / WIDE_STDS
    marginal = -math.log(WIDE) + math.log(scale * width * math.sqrt(2.0 * math.pi)) + 0.5 * WIDE_STDS**2
    bound, worst, unguarded = marginal - math.log(guard.weight), 0.0, 0.0
    for y in np.linspace(Y.min(), Y.max(), 41):
        surprise = -log_density(sure.distribution(X), np.full(N, y))
        alone = -log_density(sure.outcome.decode(sure.outcome.marginal(guard, N)), np.full(N, y))
        assert (surprise <= alone - math.log(guard.weight) + 1e-9).all()
        worst = max(worst, float(surprise.max()))
        unguarded = max(unguarded, float(-log_density(replace(sure, guard=None).distribution(X), np.full(N, y)).min()))
    assert worst <= bound + 1e-9
    assert unguarded > bound, "or the guard was not needed"


# ---------------------------------------------------------------- scores


def evaluation_of(**settings: Any) -> Any:
    given = Settings(**TINY | settings)
    prepared = prepare(attach_targets(to_table(X), Y), given)
    return train(prepared, given)


def test_all_rows_are_judged_by_members_that_did_not_see_them(looked_at: tuple[DSPPRegressor, Any, Any]) -> None:
    model, trained, _ = looked_at
    fitted, evaluation = evaluation_of()
    assert fitted.metrics == model.fitted_.metrics == evaluation.scores
    assert len(evaluation.table) == N
    assert f"{N} rows" in fitted.scored
    np.testing.assert_array_equal(evaluation.y, Y)
    assert len(evaluation.parts) == 2
    fold, found = assign_folds(N, 2, seed=0), log_density(evaluation.distribution, Y)
    shares = {"plain": sum(fitted.weights[:2]), "trees": sum(fitted.weights[2:4]), "gp": sum(fitted.weights[4:])}
    for k in range(2):
        mine = [one for one in trained if one.fold == k]
        assert [one.kind for one in mine] == ["plain", "trees", "gp"]
        weights = tuple(shares[one.kind] for one in mine)
        judge = replace(fitted, members=tuple(one.member for one in mine), weights=weights)
        mixed = judge.mix([one.held_out for one in mine])
        expected = log_density(fitted.outcome.decode(mixed), Y[fold == k])
        np.testing.assert_allclose(found[fold == k], expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("members", [2, 3])
def test_validation_rows_that_are_given_are_judged_and_not_learned_from(members: int) -> None:
    model = DSPPRegressor(members=members, **TINY).fit(X, Y, X_VAL, Y_VAL)
    fitted = model.fitted_
    assert fitted.scored == "20 rows that no member was trained on"
    assert (fitted.num_rows, len(fitted.members)) == (N, members)
    assert fitted.metrics == pytest.approx(model.evaluate(X_VAL, Y_VAL), rel=1e-9)
    other = DSPPRegressor(members=members, **TINY).fit(X, Y, X_VAL, Y_VAL[::-1])
    assert weights_of(other) == weights_of(model)
    if fitted.trees and other.fitted_.trees:
        rows = fitted.scale_X.transform(X_VAL)
        np.testing.assert_array_equal(fitted.predict_trees(rows), other.fitted_.predict_trees(rows))


@pytest.mark.parametrize("likelihood", ["gaussian", "student-t", "log-normal"])
def test_every_likelihood_has_ensembles(likelihood: str) -> None:
    y = np.exp(Y / 10.0)
    model = DSPPRegressor(**TINY | {"likelihood": likelihood}).fit(X, y)
    assert model.fitted_.members[0].spec.model.likelihood == likelihood
    assert model.fitted_.guard is not None
    assert all(math.isfinite(value) for value in model.fitted_.metrics.values())
    assert np.isfinite(model.predict(X)).all()
    lower, upper = model.predict_interval(X, 0.8).T
    assert (lower < upper).all()


def test_several_outputs_partly_observed() -> None:
    both = np.stack([Y, X[:, 1] - 2 * Y], axis=1)
    both[::3, 0] = np.nan
    both[1::3, 1] = np.nan
    model = DSPPRegressor(members=3, **TINY).fit(X, both)
    fitted = model.fitted_
    assert {member.kind for member in fitted.members} == {"plain"}
    assert math.isfinite(fitted.metrics["nll"])
    assert fitted.guard is not None
    assert fitted.guard.mean.shape[1] == 2
    assert model.predict(X).shape == (N, 2)
    assert np.isfinite(log_density(model.fitted_.distribution(X), both)).all()


def test_an_output_that_is_seen_seldom_is_learned_by_every_member() -> None:
    """Folds are random, so a fold may have all rows of a rare output."""
    both = np.stack([Y, np.full(N, np.nan)], axis=1)
    both[:3, 1] = [1.0, 2.0, 4.0]
    for seed in range(4):
        model = DSPPRegressor(members=2, **TINY, random_state=seed).fit(X, both)
        assert np.isfinite(model.predict(X)).all()
    both[1:, 1] = np.nan
    with pytest.raises(InputError, match="column 1: expected at least 2 observed values, got 1"):
        DSPPRegressor(members=2, **TINY).fit(X, both)


# ---------------------------------------------------------------- members that fail


def test_a_member_that_diverges_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    original = training.fit

    def fail_second(spec: Any, *given: Any, config: Any, **more: Any) -> Any:
        if config.seed == member_seed(0, 1):
            raise TrainingDiverged("numbers grew without bound")
        return original(spec, *given, config=config, **more)

    monkeypatch.setattr(training, "fit", fail_second)
    fitted, evaluation = evaluation_of(members=3)
    assert [member.train.seed for member in fitted.members] == [member_seed(0, 0), member_seed(0, 2)]
    assert fitted.weights == (0.5, 0.5)
    notes = [str(note) for note in fitted.notes]
    assert any("member 2 is left out" in note and "numbers grew" in note for note in notes)
    fold = assign_folds(N, 3, seed=0)
    np.testing.assert_array_equal(evaluation.y, Y[fold != 1])
    assert fitted.metrics["nll"] == pytest.approx(-log_density(evaluation.distribution, Y[fold != 1]).mean())


def test_if_all_members_diverge_it_is_an_error() -> None:
    def diverge(*given: Any, **options: Any) -> Any:
        return objective(*given, **options) * math.nan

    objective = OBJECTIVES["predictive"]
    with (
        OBJECTIVES.temporarily("predictive", diverge),
        pytest.raises(TrainingDiverged, match="all 3 members diverged"),
    ):
        DSPPRegressor(**TINY, members=3).fit(X, Y)


@pytest.mark.parametrize("members", [0, -1, 1.5, True, "many", 101, None])
def test_numbers_of_members_that_are_none(members: Any) -> None:
    with pytest.raises(InputError, match="members: expected"):
        DSPPRegressor(**TINY, members=members).fit(X, Y)


def test_small_tables_get_one_model_unless_several_are_asked_for() -> None:
    assert len(DSPPRegressor(**TINY).fit(X[:19], Y[:19]).fitted_.members) == 1
    assert len(DSPPRegressor(**TINY).fit(X[:20], Y[:20]).fitted_.members) == 6
    with pytest.raises(InputError, match="at least 20 rows for 2 members, got 19; use members=1"):
        DSPPRegressor(**TINY, members=2).fit(X[:19], Y[:19])


def test_the_likelihood_that_is_chosen_suits_validation_rows() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 2))
    y = np.exp(2.0 * rows[:, 0] + 0.5 * rng.normal(size=200))
    settings = TINY | {"members": 2, "likelihood": "auto"}
    chosen = [DSPPRegressor(**settings).fit(rows, y, rows[:9], y[:9] - shift).fitted_ for shift in (0.0, y[:9].max())]
    assert [one.members[0].spec.model.likelihood for one in chosen] == ["log-normal", "gaussian"]


def test_a_few_zeros_in_a_positive_target_are_named() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 2))
    y = np.exp(2.0 * rows[:, 0])
    y[:2] = 0.0
    settings = TINY | {"members": 2, "likelihood": "auto", "epochs": 1}
    subject = "the target is 0 in 2 rows and positive elsewhere"
    assert [note.subject for note in DSPPRegressor(**settings).fit(rows, y).fitted_.notes].count(subject) == 1
    y[:3] = 0.0  # more than a hundredth of the rows: not a mistake
    assert not any("is 0 in" in note.subject for note in DSPPRegressor(**settings).fit(rows, y).fitted_.notes)


def test_a_time_budget_that_ends_training_is_said_once_for_all_members() -> None:
    fitted = DSPPRegressor(**TINY | {"epochs": 10**6, "time_budget": 1.0}, members=4, jobs=1).fit(X, Y).fitted_
    (note,) = [note for note in fitted.notes if "time budget" in str(note)]
    assert str(note).startswith("the time budget ended training: each member had ")
    assert str(note).endswith(" of 1000000 epochs")


def test_pilots_can_be_stopped() -> None:
    calls: list[int] = []

    def stop() -> bool:
        calls.append(1)
        return True

    with pytest.raises(TrainingInterrupted):
        DSPPRegressor(**TINY | {"epochs": None}, jobs=1).fit(X, Y, should_stop=stop)
    assert len(calls) == 1, "at the first step of the first pilot"

"""How large an ensemble is, and which rows its members hold out: functions of the table and the budget alone."""

import itertools
import math
from typing import Any

import numpy as np
import pytest

from dspp.errors import InputError
from dspp.folds import HELD_OUT_SHARE, MAX_HELD_OUT, NEVER, assign_folds
from dspp.members.plan import (
    CORES,
    FOLDS,
    INDUCING,
    MAX_ROWS_IN_FOLDS,
    MAX_ROWS_WITH_GP,
    MAX_STEPS,
    MIN_STEPS,
    OVERHEAD,
    Plan,
    make_plan,
)
from dspp.outcomes import Real, find_outcome
from dspp.settings import Settings

MEMBER_KINDS = ("plain", "trees", "gp")
ROWS = (20, 500, 1_000, 2_500, MAX_ROWS_IN_FOLDS, MAX_ROWS_IN_FOLDS + 1, 30_000, 200_000, 5_000_000)
BUDGETS = (0.5, 3.0, 10.0, 60.0, 600.0, 1e6)


def choose(rows: int, kinds: tuple[str, ...] = ("plain",), **settings: Any) -> Plan:
    return make_plan(Settings(**settings), rows, kinds=kinds)


def steps_of(plan: Plan, rows: int) -> tuple[float, float]:
    """Between which numbers of steps a member was given, before its epochs were rounded to a whole number."""
    per_epoch, epochs = math.ceil(rows / plan.config.batch_size), plan.config.epochs
    return ((epochs - 0.5) * per_epoch if epochs > 1 else 0.0), (epochs + 0.5) * per_epoch


def seconds(plan: Plan, rows: int) -> float:
    """The shortest time that the rule may have expected of all steps, in one thread."""
    return (
        plan.seconds(rows) * steps_of(plan, rows)[0] / (plan.config.epochs * math.ceil(rows / plan.config.batch_size))
    )


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("kinds", [MEMBER_KINDS, MEMBER_KINDS[:1]])
def test_budgets_are_kept_and_more_time_is_never_less_work(rows: int, kinds: tuple[str, ...]) -> None:
    plans = [choose(rows, kinds, time_budget=budget) for budget in BUDGETS]
    assert plans[-1] == choose(rows, kinds), "a long budget changes nothing"
    for plan, budget in zip(plans, BUDGETS, strict=True):
        fewest, most = steps_of(plan, rows)
        if fewest > MIN_STEPS:
            assert seconds(plan, rows) <= (1.0 - OVERHEAD) * CORES * budget
        assert most >= MIN_STEPS
        assert fewest <= MAX_STEPS
        assert plan.spec.model.inducing in INDUCING
    for less, more in itertools.pairwise(plans):
        points = less.spec.model.inducing, more.spec.model.inducing
        assert (len(less.slots), points[0]) <= (len(more.slots), points[1])
        assert seconds(less, rows) <= more.seconds(rows) * (1 + 1e-9) or points[0] < points[1]


def test_larger_tables_take_longer_up_to_a_limit() -> None:
    times = [choose(rows).seconds(rows) for rows in (100, 1_000, 4_000, 20_000, 100_000, 1_000_000)]
    assert all(less <= more * 1.01 for less, more in itertools.pairwise(times))
    assert times[-1] < 2 * 1_200


@pytest.mark.parametrize("kinds", [MEMBER_KINDS, MEMBER_KINDS[:1]])
@pytest.mark.parametrize("members", [None, *range(2, 26), 100])
@pytest.mark.parametrize("rows", [1_000, 10_000])
def test_every_fold_is_held_out_by_every_kind(rows: int, members: int | None, kinds: tuple[str, ...]) -> None:
    size = choose(rows, kinds, members=members or "auto")
    assert len(size.slots) == (members or len(size.slots))
    used = {kind for kind, _ in size.slots}
    assert {(kind, fold) for kind in used for fold in range(size.folds)} == set(size.slots)
    assert size.folds == (1 if rows > MAX_ROWS_IN_FOLDS else min(size.folds, 2 * FOLDS))
    assert size.slots[0] == ("plain", 0)


def test_only_rows_and_budget_matter() -> None:
    two = Real(("a", "b"), "gaussian")
    assert make_plan(Settings(), 1_000, one_part=True).folds == 1
    assert make_plan(Settings(members=3), 200).slots == (("plain", 0), ("plain", 1), ("plain", 2))
    assert {kind for kind, _ in make_plan(Settings(), 200).slots} == set(MEMBER_KINDS)
    assert {kind for kind, _ in make_plan(Settings(), 200, 2, kinds=two.member_kinds).slots} == {"plain"}


def kinds_of(settings: Settings) -> set[str]:
    kind, likelihood = find_outcome("auto", settings.spec().model.likelihood, is_named=True)
    return {kind for kind, _ in make_plan(settings, 200, kinds=kind(("y",), likelihood).member_kinds).slots}


@pytest.mark.parametrize(
    "settings",
    [
        {"likelihood": "student-t"},
        {"model_settings": {"likelihood": "student-t"}},
        {"features": (4,)},
        {"model_settings": {"mean_inducing": 9}},
    ],
)
def test_models_that_have_no_closed_form_have_no_gp(settings: dict[str, Any]) -> None:
    assert kinds_of(Settings(**settings)) == {"plain", "trees"}
    assert "gp" in kinds_of(Settings(likelihood="log-normal"))
    assert {kind for kind, _ in make_plan(Settings(), 200, trees=False).slots} == {"plain"}


def test_more_workers_of_a_cluster_buy_members_of_large_tables() -> None:
    def count(rows: int, **given: Any) -> int:
        return len(make_plan(Settings(**given), rows).slots)

    for rows, usual in ((1_000, 15), (30_000, 4)):
        assert {count(rows, jobs=jobs) for jobs in (None, 1, 16)} == {usual}, "on one machine"
        assert count(rows, engine="ray") == count(rows, engine="ray", jobs=3) == usual
    assert count(1_000, engine="ray", jobs=8) == 15
    assert [count(30_000, engine="ray", jobs=jobs) for jobs in (4, 8, 100)] == [8, 16, 16]
    assert count(30_000, engine="ray", jobs=8, members=4) == 4
    one, more = (make_plan(Settings(engine="ray", jobs=jobs), 30_000) for jobs in (None, 8))
    assert (one.spec, one.config) == (more.spec, more.config), "as large and as long"


@pytest.mark.parametrize("rows", [20, 63, 64, 1_000])
@pytest.mark.parametrize("folds", [2, 3, 5, 9])
def test_every_row_is_in_one_fold_and_folds_are_equal(rows: int, folds: int) -> None:
    fold = assign_folds(rows, folds, seed=3)
    sizes = np.bincount(fold, minlength=folds)
    assert fold.shape == (rows,)
    assert fold.min() >= 0
    assert len(sizes) == folds
    assert sizes.max() - sizes.min() <= 1
    np.testing.assert_array_equal(fold, assign_folds(rows, folds, seed=3))
    assert (fold != assign_folds(rows, folds, seed=4)).any()


@pytest.mark.parametrize("rows", [20, 1_000, 500_000])
def test_a_single_part_is_a_tenth_of_the_rows(rows: int) -> None:
    fold = assign_folds(rows, 1, seed=3)
    assert set(fold.tolist()) == {0, NEVER}
    assert np.count_nonzero(fold == 0) == min(round(HELD_OUT_SHARE * rows), MAX_HELD_OUT)


@pytest.mark.parametrize(
    ("rows", "settings", "expected"),
    [
        (300, {}, 5),
        (4_001, {}, 1),
        (MAX_ROWS_WITH_GP, {}, 1),
        (MAX_ROWS_WITH_GP + 1, {}, 0),
        (300, {"members": 15}, 0),  # a number fixes them
        (300, {"time_budget": 2.0}, 0),  # a short time is for the members that need it
    ],
)
def test_a_gp_joins_every_fold_where_it_costs_little(rows: int, settings: dict[str, Any], expected: int) -> None:
    size = choose(rows, MEMBER_KINDS, **settings)
    folds = [fold for kind, fold in size.slots if kind == "gp"]
    assert folds == list(range(expected))
    others = choose(rows, MEMBER_KINDS[:2], **settings)
    assert [slot for slot in size.slots if slot[0] != "gp"] == list(others.slots)
    assert (size.spec, size.config) == (others.spec, others.config)


def test_a_single_dspp_is_small_and_stops_early_on_small_tables() -> None:
    def seen(rows: int, **given: Any) -> tuple[int, int | None]:
        plan = make_plan(Settings(members=1, **given), rows)
        return plan.spec.model.inducing, plan.config.patience

    assert seen(1_000) == (64, 60)
    assert seen(3_000) == (96, 60)
    assert seen(10_000) == (128, 60)
    assert seen(10_001) == (300, None), "the paper's model"
    assert seen(1_000, inducing=200, patience=5) == (200, 5)
    assert seen(1_000, model_settings={"inducing": 30}) == (30, 60)
    assert seen(1_000, epochs=10) == (64, None), "as many epochs as were asked for"
    for preset in ("svgp", "ppgpr", "dgp"):  # made for many points, or not prone to overfit
        assert seen(1_000, preset=preset) == (300, None)


@pytest.mark.parametrize("given", [{"batch_size": 0}, {"batch_size": 0, "epochs": 3}, {"epochs": 0}, {"restarts": 0}])
def test_settings_that_no_member_can_have_are_named(given: dict[str, int]) -> None:
    name = next(name for name, value in given.items() if value == 0)
    with pytest.raises(InputError, match=f"{name}: expected at least 1, got 0"):
        make_plan(Settings(**given), 100)

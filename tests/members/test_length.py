"""The length of training on small tables: short pilots notice when longer training only learns the noise."""

import re

import numpy as np
import pytest
import torch
from scipy import stats

from dspp import DSPPRegressor
from dspp.guard import Guard
from dspp.members import run
from dspp.members.base import Run, Task
from dspp.members.blend import HeldOutRows, calibrated_nll
from dspp.members.plan import make_plan
from dspp.outcomes import Real
from dspp.predictive import NormalMixture
from dspp.settings import Settings

RNG = np.random.default_rng(5)
X = RNG.normal(size=(120, 3))
SETTINGS = {"members": 5, "inducing": 24, "width": 2, "sites": 3, "jobs": 1}


def test_noise_is_trained_for_a_fraction_of_the_epochs() -> None:
    settings = Settings(**SETTINGS)
    usual = make_plan(settings, 120).config.epochs
    fitted = DSPPRegressor(**SETTINGS).fit(X, RNG.normal(size=120)).fitted_
    assert max(member.train.epochs for member in fitted.members) < usual / 3
    assert fitted.metrics["coverage90"] > 0.8


def test_noise_is_noticed_by_the_one_part_that_all_members_hold_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dspp.members.plan.MOST_ROWS_IN_FOLDS", 500)
    settings = Settings(**SETTINGS)
    usual = make_plan(settings, 600, one_part=True).config.epochs
    X = RNG.normal(size=(600, 3))
    fitted = DSPPRegressor(**SETTINGS).fit(X, RNG.normal(size=600), time=np.arange(600)).fitted_
    assert {member.fold for member in fitted.members} == {0}
    assert max(member.train.epochs for member in fitted.members) < usual / 2


def test_given_epochs_are_kept() -> None:
    model = DSPPRegressor(**SETTINGS, epochs=3).fit(X, RNG.normal(size=120))
    assert {member.train.epochs for member in model.fitted_.members} == {3}


def test_the_score_of_a_pilot_does_not_depend_on_its_spread() -> None:
    y = RNG.normal(size=(200, 1))
    guard = Guard.fit(y, 0.01)
    zeros = torch.zeros(1, 200, dtype=torch.float64)

    def score(var: float) -> float:
        normal = NormalMixture(torch.zeros(1, dtype=torch.float64), zeros, zeros + var, torch.tensor(0.0).double())
        return calibrated_nll(HeldOutRows(np.arange(200), y, {"plain": [normal]}, 0), guard, Real(("y",), "gaussian"))

    assert score(0.25) == pytest.approx(score(1.0), abs=2e-3)
    assert score(1.0) < 1.5


def test_members_are_trained_even_if_the_workers_start_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten members in two processes with 10 s have 2 s each, and 0.6 s if all of the time has passed."""
    clock = [0.0]
    monkeypatch.setattr("dspp.members.base.time.monotonic", lambda: clock[0])
    plan = make_plan(Settings(members=10), 120)
    tasks = run.share_time((Task(k, "plain", 0) for k in range(10)), plan, lambda: 2, Run(None, 10.0))
    assert next(tasks).seconds == pytest.approx(2.0)
    clock[0] = 9.0
    assert next(tasks).seconds == pytest.approx(0.6)
    clock[0] = 30.0
    assert [task.seconds for task in tasks] == pytest.approx([0.6] * 8)


def test_the_start_of_a_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member whose process is ready 3 s late has 3 s less, and at least 30 % of its time."""
    for seconds, left in ((0.0, 10.0), (3.0, 7.0), (9.0, 3.0)):
        monkeypatch.setattr(run, "waited", lambda seconds=seconds: seconds)
        assert run.time_left(Task(0, "plain", 0, seconds=10.0)) == pytest.approx(left)
        assert run.time_left(Task(0, "plain", 0)) is None


def test_a_budget_too_short_for_members_is_met_by_boosted_trees() -> None:
    rng = np.random.default_rng(0)
    carat, depth = np.exp(0.6 * rng.normal(size=4_000)), rng.normal(size=4_000)
    cut, colour = rng.integers(0, 5, 4_000), rng.integers(0, 7, 4_000)
    price = 4_000 * carat**1.7 * np.exp(0.05 * cut * (cut > 2) - 0.08 * colour + 0.1 * rng.normal(size=4_000))
    X = np.column_stack([carat, cut, colour, depth])
    model = DSPPRegressor(time_budget=1.0, jobs=1, likelihood="gaussian", progress=False, random_state=0)
    fitted = model.fit(X[:3_000], price[:3_000]).fitted_
    assert {member.kind for member in fitted.members} >= {"boosted"}
    (note,) = [str(note) for note in fitted.notes if "too short" in str(note)]
    assert re.search(r"^the budget was too short for the sigma-point members: .* \d+ % of the weight", note)
    scores = model.evaluate(X[3_000:], price[3_000:])
    normal = stats.norm(price[:3_000].mean(), price[:3_000].std()).logpdf(price[3_000:])
    assert scores["r2"] > 0.8
    assert scores["nll"] < -normal.mean() - 0.5

"""The length of training on small tables: short pilots notice when longer training only learns the noise."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from dspp import DSPPRegressor, TrainConfig
from dspp.guard import Guard
from dspp.members import run
from dspp.members.base import Task
from dspp.members.blend import HeldOutRows, calibrated_nll
from dspp.members.plan import make_plan
from dspp.outcomes import Real
from dspp.predictive import NormalMixture
from dspp.presets import preset
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
    monkeypatch.setattr("dspp.members.plan.MAX_ROWS_IN_FOLDS", 500)
    settings = Settings(**SETTINGS)
    usual = make_plan(settings, 600, one_part=True).config.epochs
    X = RNG.normal(size=(600, 3))
    fitted = DSPPRegressor(**SETTINGS).fit(X, RNG.normal(size=600), time=np.arange(600)).fitted_
    assert {member.fold for member in fitted.members} == {0}
    assert max(member.train.epochs for member in fitted.members) < usual / 2


def test_given_epochs_are_kept() -> None:
    model = DSPPRegressor(**SETTINGS, epochs=3).fit(X, RNG.normal(size=120))
    assert {member.train.epochs for member in model.fitted_.members} == {3}


def test_the_score_of_a_pilot_does_not_depend_on_its_variance_scale() -> None:
    y = RNG.normal(size=(200, 1))
    guard = Guard.fit(y, 0.01)
    zeros = torch.zeros(1, 200, dtype=torch.float64)

    def score(var: float) -> float:
        normal = NormalMixture(torch.zeros(1, dtype=torch.float64), zeros, zeros + var, torch.tensor(0.0).double())
        return calibrated_nll(HeldOutRows(np.arange(200), y, {"plain": [normal]}, 0), guard, Real(("y",), "gaussian"))

    assert score(0.25) == pytest.approx(score(1.0), abs=2e-3)
    assert score(1.0) < 1.5


def test_members_are_trained_even_if_the_workers_start_late() -> None:
    """Ten members in two processes with 10 s have 2 s each, and 0.6 s if all of the time has passed."""

    def share(left: float, members_left: int) -> float:
        return run.share_of_time(left, 10.0, members_left, 10, workers=2)

    assert share(10.0, 10) == pytest.approx(2.0)
    assert share(1.0, 9) == pytest.approx(0.6)
    assert [share(-20.0, left) for left in range(8, 0, -1)] == pytest.approx([0.6] * 8)


def test_the_start_of_a_process_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member whose process is ready 3 s late has 3 s less, and at least 30 % of its time."""
    for seconds, left in ((0.0, 10.0), (3.0, 7.0), (9.0, 3.0)):
        monkeypatch.setattr(run, "waited", lambda seconds=seconds: seconds)
        task = Task(0, "plain", 0, preset("dspp"), TrainConfig())
        assert run.time_left(replace(task, seconds=10.0)) == pytest.approx(left)
        assert run.time_left(task) is None


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

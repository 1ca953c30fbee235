"""Time budgets: the schedule is made to end in time, and what is left out is said."""

import shutil
import time

import pytest
import torch
from runs import CONFIG, X_VAL, Y_VAL, StopAfter, X, Y, fit, train, untimed

from dspp import preset
from dspp.errors import InputError, TrainingInterrupted
from dspp.objectives import OBJECTIVES


def test_a_budget_that_suffices_changes_nothing():
    begin = time.perf_counter()
    result = train(time_budget=600.0)
    assert 0 < result.seconds <= time.perf_counter() - begin, "the clock is that of the machine"
    assert untimed(result) == untimed(train())
    assert (result.stopped, result.planned_epochs, result.notes) == ("finished", 4, ())


class Pretend:
    """Steps of a tiny model and scores, each of a given length on a clock of the test's own: no test waits for them."""

    SPEC = preset("ppgpr", inducing=2)

    def __init__(self, seconds, validation=0.0):
        self.now, self.seconds, self.validation = 0.0, seconds, validation
        self._objective = OBJECTIVES[self.SPEC.objective.name]

    def train(self, config, **options):
        options |= {"X_val": X_VAL, "y_val": Y_VAL, "lap_steps": 2, "clock": lambda: self.now, "score": self.score}
        with OBJECTIVES.temporarily(self.SPEC.objective.name, self.objective):
            return fit(self.SPEC, X, Y, config=config, **options)

    def objective(self, *given, **options):
        self.now += self.seconds
        return self._objective(*given, **options)

    def score(self, model, rows):
        self.now += self.validation
        return 0.0


LONG = CONFIG.change(epochs=1000, restarts=1, batch_size=20)  # 10 steps an epoch
ENDED = 0.01 * CONFIG.learning_rate  # the cosine is there at its last 6 %


def test_a_time_budget_is_kept_and_the_schedule_ends():
    result = Pretend(0.01).train(CONFIG.change(epochs=100_000), time_budget=3.0)
    assert 2.8 < result.seconds < 3.02
    assert result.stopped == "time"
    assert len(result.history) == result.planned_epochs < 100_000
    assert result.history[-1].learning_rate < 0.05 * CONFIG.learning_rate, "the cosine came to its end"
    assert "the time budget of 3 s allowed " in result.notes[-1]
    assert result.notes[-1].endswith(" of 100000 epochs")
    assert len(result.restart_nll) == 2


def test_seconds_are_those_of_the_clock(tmp_path):
    """Of the run and of each epoch of 10 steps, also of one that was interrupted."""
    config, pretend, path = LONG.change(epochs=3), Pretend(0.25, validation=1.0), tmp_path / "run"
    with pytest.raises(TrainingInterrupted):
        pretend.train(config, checkpoint=path, checkpoint_seconds=0, should_stop=StopAfter(15))
    pretend.now = 1000.0  # a new process, another clock
    result = pretend.train(config, checkpoint=path, resume=True)
    assert [epoch.seconds for epoch in result.history] == [3.5] * 3
    assert result.seconds == 10.5 + 0.25, "one step was made twice"


@pytest.mark.parametrize("validation", [0.0, 2.0])
def test_the_plan_fits_the_budget(validation):
    """At 0.1 s a step and 10 steps an epoch, with the validation at the end of each."""
    pretend = Pretend(0.1, validation)
    result = pretend.train(LONG, time_budget=60.0)
    assert 0.94 * 60 <= result.seconds <= 60 + validation
    assert result.seconds == pretend.now
    expected = 60 / (1 + validation)
    assert expected - 2 <= result.planned_epochs <= expected + 1
    assert result.history[-1].learning_rate < ENDED


def test_a_budget_of_less_than_an_epoch_still_ends_the_schedule():
    pretend = Pretend(0.1, validation=0.8)  # what validation is taken to cost before it has been measured
    result = pretend.train(LONG.change(batch_size=2), time_budget=8.0)  # 100 steps an epoch
    assert result.planned_epochs == len(result.history) == 1
    assert result.history[0].learning_rate < ENDED
    assert result.notes == ("the time budget of 8 s allowed 0.7 of 1000 epochs",)
    assert result.seconds == pytest.approx(7.8)


def test_restarts_that_would_take_too_much_are_left_out():
    pretend = Pretend(0.1)
    config = LONG.change(restarts=3)  # 3 s for the trials
    assert len(pretend.train(config, time_budget=11.0).restart_nll) == 3
    result = pretend.train(config, time_budget=9.0)
    assert result.restart_nll == ()
    assert result.notes[0] == "the time budget of 9 s is too short to try 3 starts; only the first was trained"
    assert result.history[-1].learning_rate < ENDED
    assert [epoch.number for epoch in result.history] == list(range(1, result.planned_epochs + 1))


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_machine_that_changes_its_pace_is_followed(factor):
    pretend = Pretend(0.1)

    def change(epoch):
        if epoch.number == 10:
            pretend.seconds *= factor

    result = pretend.train(LONG, time_budget=60.0, on_epoch=change)
    assert 0.94 * 60 <= result.seconds <= 60.2
    assert result.planned_epochs == pytest.approx(10 + 50 / factor, rel=0.06)
    assert result.history[-1].learning_rate < ENDED


def test_time_before_a_resume_counts(tmp_path):
    path = tmp_path / "run"
    pretend = Pretend(0.1)
    with pytest.raises(TrainingInterrupted):
        pretend.train(LONG, time_budget=20.0, checkpoint=path, should_stop=StopAfter(120))
    pretend.now = 1000.0  # a new process, another clock
    result = pretend.train(LONG, time_budget=20.0, checkpoint=path, resume=True)
    assert result.seconds == pytest.approx(20, abs=0.8)
    assert result.planned_epochs <= 20
    again = pretend.train(LONG, time_budget=20.0, checkpoint=path, resume=True)
    assert (again.seconds, again.notes, again.stopped) == (result.seconds, result.notes, "time")


def test_a_larger_budget_after_a_resume_makes_a_new_plan(tmp_path):
    config, path = LONG.change(epochs=40), tmp_path / "run"
    pretend = Pretend(0.1)
    with pytest.raises(TrainingInterrupted):
        pretend.train(config, time_budget=10.0, checkpoint=path, should_stop=StopAfter(97))
    result = pretend.train(config, time_budget=1000.0, checkpoint=path, resume=True)
    assert (result.planned_epochs, len(result.history), result.stopped, result.notes) == (40, 40, "finished", ())


@pytest.mark.parametrize(("restarts", "budget"), [(3, 6.0), (10, 20.0)])
def test_starts_of_one_or_two_steps_do_not_use_up_the_budget(restarts, budget):
    pretend = Pretend(1.0)
    result = pretend.train(LONG.change(batch_size=100, restarts=restarts), time_budget=budget)  # 2 steps an epoch
    tried = len(result.restart_nll)
    assert 1 <= tried < restarts
    assert 2 * tried <= 0.3 * budget + 2
    assert f"the time budget of {budget:g} s allowed {tried} of {restarts} starts to be tried" in result.notes
    assert len(result.history) >= 2


def test_without_a_budget_a_resumed_run_is_whole_again(tmp_path):
    config, path, pretend = LONG.change(epochs=40), tmp_path / "run", Pretend(0.1)
    with pytest.raises(TrainingInterrupted):
        pretend.train(config, time_budget=10.0, checkpoint=path, should_stop=StopAfter(60))
    copy = shutil.copy(path, tmp_path / "copy")
    assert pretend.train(config, time_budget=10.0, checkpoint=copy, resume=True).planned_epochs < 12
    result = pretend.train(config, checkpoint=path, resume=True)
    assert (result.planned_epochs, len(result.history), result.stopped) == (40, 40, "finished")


def test_a_tiny_budget_makes_one_step():
    result = train(time_budget=1e-6)
    assert result.stopped == "time"
    assert len(result.history) == 1
    assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())


@pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf")])
def test_a_budget_that_makes_no_sense_is_refused(budget):
    with pytest.raises(InputError, match=r"time_budget: expected seconds > 0.*got "):
        train(time_budget=budget)

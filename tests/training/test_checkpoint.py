"""Checkpoints (promises 19, 21 and 22): whatever stops a run, going on gives the bits of a run that never stopped."""

import dataclasses
import errno
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest
import torch
from runs import (
    CONFIG,
    ONE_START,
    SPEC,
    X_VAL,
    Y_VAL,
    StopAfter,
    X,
    Y,
    at_call,
    fit,
    no_step,
    parameters_of,
    step_in,
    train,
    untimed,
)

import dspp
from dspp import preset, storage
from dspp.errors import CheckpointError, InputError, TrainingDiverged, TrainingInterrupted
from dspp.objectives import OBJECTIVES
from dspp.training.schedules import SCHEDULES

GENERATOR = np.random.default_rng(3)


@pytest.fixture(scope="module")
def never_stopped():
    return train()


def mean_nll(model, rows):
    return -model.predictor()(rows.x).log_prob(rows.y).double().mean().item()


# ---------------------------------------------------------------- stopping and going on, in one process


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_a_run_stopped_anywhere_goes_on_bit_for_bit(tmp_path, never_stopped, seconds):
    """Every third step, trials included; with checkpoints at every snapshot or only when stopped."""
    path = tmp_path / "run"
    messages = []
    while True:
        try:
            result = train(checkpoint=path, resume=True, checkpoint_seconds=seconds, should_stop=StopAfter(3))
            break
        except TrainingInterrupted as stopped:
            messages.append(str(stopped))
    assert len(messages) >= 8
    assert all(f"resume from {path} with the same call" in message for message in messages)
    assert untimed(result) == untimed(never_stopped)
    assert os.listdir(tmp_path) == ["run"], "no lock, no temporary file"


@pytest.mark.parametrize(
    ("name", "changes"),
    [("dgp", {}), ("svgp", {}), ("od-svgp", {}), ("nn+ppgpr", {"features": (4, 3)}), ("dspp", {"dtype": "float64"})],
)
def test_other_models_go_on_too(tmp_path, name, changes):
    spec, how = preset(name, inducing=10, **changes), {"config": ONE_START, "lap_steps": 2}
    whole = fit(spec, X, Y, **how)
    with pytest.raises(TrainingInterrupted):
        fit(spec, X, Y, **how, checkpoint=tmp_path / "run", should_stop=StopAfter(8))
    resumed = fit(spec, X, Y, **how, checkpoint=tmp_path / "run", resume=True)
    assert untimed(resumed) == untimed(whole)


def test_a_module_with_dropout_goes_on_too(tmp_path):
    """Torch's global generator is neither relied upon nor moved."""
    torch.manual_seed(0)
    features = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.Dropout(0.3))
    config, path = CONFIG.change(epochs=2), tmp_path / "run"
    whole = train(config, features=features)
    with pytest.raises(TrainingInterrupted):
        train(config, features=features, checkpoint=path, should_stop=StopAfter(5))
    torch.manual_seed(1)  # as another process would have it
    before = torch.get_rng_state()
    assert untimed(train(config, features=features, checkpoint=path, resume=True)) == untimed(whole)
    assert torch.equal(torch.get_rng_state(), before)
    torch.nn.init.zeros_(features[0].weight)
    with pytest.raises(CheckpointError, match=r"model settings.*features module"):
        train(config, features=features, checkpoint=path, resume=True)


def test_an_earlier_start_and_an_earlier_epoch_that_were_better_are_kept(tmp_path):
    """The first start wins the trials and, with validation turned round, the first epoch is the best."""

    def turned(model, rows):
        return mean_nll(model, rows) * (-1 if len(rows) == len(X_VAL) else 1)

    whole = train(score=turned)
    assert whole.restart_nll[0] < whole.restart_nll[1]
    assert whole.best_epoch == 1
    for stop in (8, 12, 21):  # in the trial of the second start, in the second epoch, in the fourth
        path = tmp_path / str(stop)
        with pytest.raises(TrainingInterrupted):
            train(checkpoint=path, should_stop=StopAfter(stop), score=turned)
        assert untimed(train(checkpoint=path, resume=True, score=turned)) == untimed(whole)


def test_jitter_increases_are_counted_once(tmp_path, monkeypatch):
    """Every factorisation of the first layer climbs a rung here."""
    monkeypatch.setattr("dspp.gp.layer.factorise", _climbing("dspp.gp.layer.factorise"))
    whole = train(ONE_START)
    assert whole.jitter_increases > 0
    with pytest.raises(TrainingInterrupted):
        train(ONE_START, checkpoint=tmp_path / "run", should_stop=StopAfter(7))
    assert train(ONE_START, checkpoint=tmp_path / "run", resume=True).jitter_increases == whole.jitter_increases


def _climbing(name):
    original = getattr(dspp.gp.layer, name.rpartition(".")[2])
    return lambda *given: dataclasses.replace(original(*given), jitter_increases=1)


def test_a_finished_run_returns_its_result_at_once(tmp_path):
    first = train(checkpoint=tmp_path / "run")
    before = (tmp_path / "run").read_bytes()
    seen = []
    with no_step():
        again = train(checkpoint=tmp_path / "run", resume=True, on_epoch=seen.append)
    assert untimed(again) == untimed(first)
    assert (again.history, again.seconds, again.notes) == (first.history, first.seconds, first.notes)
    assert seen == []
    assert (tmp_path / "run").read_bytes() == before


def test_resuming_without_a_file_begins(tmp_path, never_stopped):
    assert untimed(train(checkpoint=tmp_path / "run", resume=True)) == untimed(never_stopped)


def test_what_on_epoch_raises_ends_training_and_the_checkpoint_stays(tmp_path, never_stopped):
    class PrunedError(Exception):
        pass

    seen = []

    def prune(epoch):
        seen.append(epoch)
        if epoch.number == 3:
            raise PrunedError

    with pytest.raises(PrunedError):
        train(checkpoint=tmp_path / "run", on_epoch=prune, checkpoint_seconds=0)
    assert [epoch.number for epoch in seen] == [2, 3], "the first epoch was of the trials"
    assert [epoch.val_nll for epoch in seen] == [epoch.val_nll for epoch in never_stopped.history[1:3]]
    assert untimed(train(checkpoint=tmp_path / "run", resume=True)) == untimed(never_stopped)


def test_stopping_without_a_checkpoint_says_what_is_lost():
    with pytest.raises(TrainingInterrupted, match=r"stopped at step 4; there is no checkpoint.*pass checkpoint="):
        train(ONE_START, should_stop=StopAfter(4))


def test_ctrl_c_in_a_step_leaves_the_last_good_state(tmp_path):
    whole, path = train(ONE_START), tmp_path / "run"
    with at_call(9, lambda: signal.raise_signal(signal.SIGINT)), pytest.raises(KeyboardInterrupt):
        train(ONE_START, checkpoint=path, checkpoint_seconds=1e9)
    assert step_in(path, ONE_START) == 7, "5 and every second after it"
    assert untimed(train(ONE_START, checkpoint=path, resume=True)) == untimed(whole)


# ---------------------------------------------------------------- divergence


class Watched:
    """Runs whose steps are watched from the schedule and the objective, each of which is called once per step."""

    def __init__(self, config):
        self.config, self.step = config, 0
        self.total = config.epochs * -(-len(X) // config.batch_size)
        self._schedule, self._objective = SCHEDULES[config.schedule], OBJECTIVES["predictive"]

    def train(self, **options):
        with (
            SCHEDULES.temporarily(self.config.schedule, self._rate),
            OBJECTIVES.temporarily("predictive", self._watched),
        ):
            return train(self.config, **options)

    def _rate(self, done, config):
        self.step = round(done * self.total)
        return self._schedule(done, config)

    def _watched(self, likelihood, latent, y, kl, num_data, **options):
        return self.objective(self._objective(likelihood, latent, y, kl, num_data, **options), kl)

    def objective(self, value, kl):
        """What the objective is at `self.step`, given its value and the KL term in it."""
        raise NotImplementedError


class NaNAt(Watched):
    """NaN in the objective at each of the given steps in turn, by the first start.

    The first run decides from which parameters a step fails. Later ones fail from the same, so that failing is a pure
    function of where a run stands. Also asserts that a step made again starts from the very state it started from
    before: from the same parameters and, as the learning rate is halved, with half the change, which rests on what the
    optimiser remembers. `returns` are the steps returned to.
    """

    def __init__(self, steps, config):
        super().__init__(config)
        self.steps, self.spoilt, self.returns = list(steps), set(), []

    def train(self, **options):
        self.begins, self.failed, self.failures, self.repeated = {}, False, 0, None
        return super().train(**options)

    def objective(self, value, kl):
        now = torch.cat([parameter.detach().flatten() for parameter in parameters_of(value)])
        self._same_as_before(now)
        place = self.step, now.numpy().tobytes()
        if self.steps and self.steps[0] == self.step:
            self.spoilt.add(place)
            del self.steps[0]
        self.failed = place in self.spoilt
        self.failures += self.failed
        return value * float("nan") if self.failed else value

    def _same_as_before(self, now):
        if self.repeated is not None and self.step == self.repeated[0] + 1:
            step, change = self.repeated
            torch.testing.assert_close(now - self.begins[step], 0.5 * change, rtol=1e-3, atol=1e-6)
        self.repeated = None
        if self.failed and self.failures <= self.config.max_recoveries:  # else this is another start
            self.returns.append(self.step)
            assert torch.equal(now, self.begins[self.step])
            self.repeated = self.step, self.begins[self.step + 1] - now
        self.begins[self.step] = now


class SpoiltBy(Watched):
    """A step that leaves the model unable to make another, as a leap of the optimiser does; once in a run."""

    def __init__(self, spoiling, config):
        super().__init__(config)
        self.spoiling = spoiling

    def train(self, stop_after=None, **options):
        self.spoilt, stop = False, StopAfter(stop_after or 0)
        return super().train(should_stop=lambda: self._leap() or stop(), X_val=None, y_val=None, **options)

    def objective(self, value, kl):
        self.parameters = parameters_of(kl)  # of the distributions over inducing values
        return value

    def _leap(self):
        if self.step == self.spoiling and not self.spoilt:
            self.spoilt = True
            with torch.no_grad():
                for parameter in self.parameters:
                    parameter.fill_(float("nan"))


@pytest.mark.parametrize("batch_size", [40, 200])
@pytest.mark.parametrize("spoiling", [1, 4, 5, 6, 9])
def test_a_step_that_spoils_the_model_is_taken_back(tmp_path, spoiling, batch_size):
    """A state is gone back to only if a step from there has succeeded, in an earlier epoch if need be."""
    config = ONE_START.change(batch_size=batch_size, epochs=2 if batch_size == 40 else 11)
    spoilt, seen = SpoiltBy(spoiling, config), []
    result = spoilt.train(on_epoch=seen.append)
    (recovery,) = result.recoveries
    assert recovery.back_to <= spoiling < recovery.step
    assert [epoch.number for epoch in result.history] == list(range(1, config.epochs + 1))
    assert tuple({epoch.number: epoch for epoch in seen}.values()) == result.history, "a repeated epoch is told again"
    assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())
    with pytest.raises(TrainingInterrupted):
        spoilt.train(stop_after=spoiling + 1, checkpoint=tmp_path / "run")
    assert untimed(spoilt.train(checkpoint=tmp_path / "run", resume=True)) == untimed(result)


@pytest.mark.parametrize("seed", range(3))
def test_divergence_is_contained_and_a_run_goes_on_from_it(tmp_path, seed):
    """Promise 22, and 19 after it: the good state comes back, the step is reported, and resuming is exact."""
    choose = random.Random(seed)
    steps = sorted(choose.sample(range(1, 10), 3))
    config = ONE_START.change(seed=seed)
    spoilt = NaNAt(steps, config)
    whole = spoilt.train()
    assert [recovery.step for recovery in whole.recoveries] == steps
    assert [recovery.back_to for recovery in whole.recoveries] == spoilt.returns
    kept = (0, 2, 4, 5, 7, 9)  # of these the last from which a step had succeeded
    assert [recovery.back_to for recovery in whole.recoveries] == [max(k for k in kept if k < step) for step in steps]
    assert [recovery.rate_factor for recovery in whole.recoveries] == [0.5, 0.25, 0.125]
    assert all(torch.isfinite(value).all() for value in whole.model.state_dict().values())
    for stop in choose.sample(range(1, 10), 3):
        path = tmp_path / str(stop)
        with pytest.raises(TrainingInterrupted):
            spoilt.train(checkpoint=path, should_stop=StopAfter(stop))
        assert untimed(spoilt.train(checkpoint=path, resume=True)) == untimed(whole)


def test_a_start_that_diverged_stays_out_after_a_resume(tmp_path):
    spoilt = NaNAt([2, 4], CONFIG.change(max_recoveries=1))
    whole = spoilt.train()
    assert np.isnan(whole.restart_nll[0])
    with pytest.raises(TrainingInterrupted):
        spoilt.train(checkpoint=tmp_path / "run", should_stop=StopAfter(7))
    resumed = spoilt.train(checkpoint=tmp_path / "run", resume=True)
    assert untimed(resumed) == untimed(whole)


def test_validation_that_fails_is_recovered_from():
    scores = iter([0.5, float("nan"), 0.25])
    result = train(ONE_START, score=lambda model, rows: next(scores))
    assert [(r.step, r.back_to, r.reason) for r in result.recoveries] == [(10, 9, "the NLL of 40 rows is nan")]
    assert len(result.history) == 2


def test_a_run_that_diverges_for_good_leaves_its_checkpoint(tmp_path):
    config = ONE_START.change(max_recoveries=2)
    with pytest.raises(TrainingDiverged, match="step 6"):
        NaNAt([3, 4, 6], config).train(checkpoint=tmp_path / "run", checkpoint_seconds=0)
    assert step_in(tmp_path / "run", config) == 5


# ---------------------------------------------------------------- files that must be refused


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The bytes of a checkpoint in mid-training."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(TrainingInterrupted):
        train(checkpoint=path, should_stop=StopAfter(12))
    return path.read_bytes()


OTHER_RUNS = {
    "rows": (lambda p: fit(SPEC, X + 1e-6, Y, X_val=X_VAL, y_val=Y_VAL, config=CONFIG, **p), r"in the data;"),
    "targets": (lambda p: fit(SPEC, X, Y[::-1], X_val=X_VAL, y_val=Y_VAL, config=CONFIG, **p), r"in the data;"),
    "no validation rows": (lambda p: fit(SPEC, X, Y, config=CONFIG, **p), r"in the data;"),
    "epochs": (
        lambda p: train(CONFIG.change(epochs=5, seed=8), **p),
        r"in the training settings \(epochs: 4 in the checkpoint, 5 here; seed: 7 in the checkpoint, 8 here\); resume",
    ),
    "a seed, by which other rows are held out": (
        lambda p: fit(SPEC, X[1:], Y[1:], X_val=X_VAL, y_val=Y_VAL, config=CONFIG.change(seed=8), **p),
        r"differs in the training settings \(seed: 7 in the checkpoint, 8 here\); resume",
    ),
    "model": (
        lambda p: fit(preset("dspp", inducing=10, sites=3), X, Y, X_val=X_VAL, y_val=Y_VAL, config=CONFIG, **p),
        r"in the model settings \(width: 2 in the checkpoint, 5 here\)",
    ),
    "all three": (
        lambda p: fit(preset("dspp", inducing=10, width=2, sites=3, beta=1.0), X, Y, config=ONE_START, **p),
        r"the data and the model settings \(beta: 0.05 in the checkpoint, 1.0 here\) and the training settings",
    ),
}


@pytest.mark.parametrize("case", OTHER_RUNS)
def test_another_run_is_refused_and_told_apart(tmp_path, stopped, case):
    call, message = OTHER_RUNS[case]
    path = tmp_path / "run"
    path.write_bytes(stopped)
    with pytest.raises(CheckpointError, match=message):
        call({"checkpoint": path, "resume": True})
    assert path.read_bytes() == stopped


def test_a_checkpoint_is_not_written_over(tmp_path, stopped):
    path = tmp_path / "run"
    path.write_bytes(stopped)
    with pytest.raises(CheckpointError, match="already exists; pass resume=True to resume from it, or delete"):
        train(checkpoint=path)
    assert path.read_bytes() == stopped


def test_a_damaged_checkpoint_is_refused(tmp_path, stopped):
    """Any flipped bit, any length."""
    choose, path = random.Random(0), tmp_path / "run"
    for _ in range(150):
        damaged = bytearray(stopped)
        damaged[choose.randrange(len(damaged))] ^= 1 << choose.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            train(checkpoint=path, resume=True)
    for length in (0, 1, 8, 100, len(stopped) // 2, len(stopped) - 1):
        path.write_bytes(stopped[:length])
        with pytest.raises(CheckpointError):
            train(checkpoint=path, resume=True)


def test_other_files_and_formats_are_refused(tmp_path, stopped):
    path = tmp_path / "run"
    path.write_bytes(stopped)
    tensors, header = storage.read(path, CheckpointError)
    assert {"dspp", "torch", "threads", "identity"} <= header.keys()
    storage.write(path, tensors, {**header, "version": 2}, CheckpointError)
    with pytest.raises(CheckpointError, match=r"written by a later dspp \(format 2, this reads 1\)"):
        train(checkpoint=path, resume=True)
    storage.write(path, tensors, {**header, "format": "dspp-model"}, CheckpointError)
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        train(checkpoint=path, resume=True)
    with pytest.raises(CheckpointError, match="is a folder"):
        train(checkpoint=tmp_path, resume=True)
    with pytest.raises(InputError, match="expected the path of a file"):
        train(checkpoint="")
    with pytest.raises(InputError, match="checkpoint: expected seconds >= 0, got -1"):
        train(checkpoint=tmp_path / "new", checkpoint_seconds=-1)


def test_another_number_of_threads_is_noted(tmp_path):
    config = ONE_START.change(threads=None)
    with pytest.raises(TrainingInterrupted):
        train(config, checkpoint=tmp_path / "run", should_stop=StopAfter(3))
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        (note,) = train(config, checkpoint=tmp_path / "run", resume=True).notes
    finally:
        torch.set_num_threads(before)
    assert note.startswith(f"started with threads {before}, resumed with threads {before + 1}: ")


def test_another_version_is_noted(tmp_path, stopped):
    path = tmp_path / "run"
    path.write_bytes(stopped)
    tensors, header = storage.read(path, CheckpointError)
    storage.write(path, tensors, header | {"dspp": "99.0"}, CheckpointError)
    (note,) = train(checkpoint=path, resume=True).notes
    assert note.startswith("started with dspp 99.0, resumed with dspp ")


# ---------------------------------------------------------------- saves that fail (promise 21)


@pytest.mark.parametrize("path", ["/proc/dspp-run", "/dev/null/run", "/no such folder/run"])
def test_a_path_that_cannot_be_written_shows_before_training(path):
    with no_step(), pytest.raises(CheckpointError, match=r"cannot write .*choose a path in an existing"):
        train(checkpoint=path)


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("open", errno.EROFS),
        ("write", errno.ENOSPC),
        ("write", errno.EIO),
        ("fsync", errno.EIO),
        ("replace", errno.ENOSPC),
    ],
)
def test_a_save_that_fails_is_loud_and_keeps_the_old_file(tmp_path, never_stopped, call, problem):
    """A full disk, a folder become read-only, a broken disk: after the second epoch."""
    path = tmp_path / "run"

    def fail(*given, **options):
        raise OSError(problem, os.strerror(problem))

    with pytest.MonkeyPatch.context() as patch:

        def spoil(epoch):
            kept.append(path.read_bytes())
            patch.setattr(os, call, fail)

        kept = []
        with pytest.raises(CheckpointError, match=f"cannot write .*{os.strerror(problem)}"):
            train(checkpoint=path, checkpoint_seconds=0, on_epoch=spoil)
    assert call == "open" or path.read_bytes() == kept[0]  # the folder may fail to open after the new file is there
    assert os.listdir(tmp_path) == ["run"]
    assert untimed(train(checkpoint=path, resume=True)) == untimed(never_stopped)


def test_a_folder_that_goes_away_is_loud(tmp_path):
    folder = tmp_path / "runs"
    folder.mkdir()
    with pytest.raises(CheckpointError, match="cannot write"):
        train(checkpoint=folder / "run", checkpoint_seconds=0, on_epoch=lambda epoch: shutil.rmtree(folder))


def test_a_second_writer_is_refused(tmp_path, never_stopped):
    path = tmp_path / "run"
    refused = []

    def second(epoch):
        with pytest.raises(CheckpointError, match=f"another process is writing {path}; wait"):
            train(checkpoint=path, resume=True)
        refused.append(epoch)

    assert untimed(train(checkpoint=path, on_epoch=second)) == untimed(never_stopped), "the first is not disturbed"
    assert len(refused) == 3


def test_what_killed_writers_left_is_cleared_away_and_nothing_else(tmp_path):
    left, others = [".run.abc_1234.tmp"], [".run.b.abc_1234.tmp", ".run.tmp", "run.abc_1234.tmp"]
    for name in left + others:
        (tmp_path / name).touch()
    train(ONE_START, checkpoint=tmp_path / "run")
    assert sorted(os.listdir(tmp_path)) == sorted([*others, "run"])


def test_writing_is_quick(tmp_path):
    """A 2-layer DSPP at the paper's size takes less than 50 ms, from being told to stop to having stopped."""
    rows, times = GENERATOR.normal(size=(400, 8)), []
    how = {"X_val": rows[:9], "y_val": rows[:9, 0], "config": CONFIG.change(restarts=1, batch_size=100)}
    how |= {"checkpoint": tmp_path / "run", "resume": True, "lap_steps": 2}

    def stop():
        times.append(time.perf_counter())
        return True

    for _ in range(5):
        with pytest.raises(TrainingInterrupted):
            fit(preset("dspp"), rows, rows[:, 0], **how, should_stop=stop)
        times.append(time.perf_counter() - times.pop())
    assert min(times) < 0.05


def test_a_checkpoint_is_written_at_every_snapshot_and_at_the_end(tmp_path):
    path, contents = tmp_path / "run", set()
    config = CONFIG.change(restarts=1, batch_size=50)
    train(config, checkpoint=path, checkpoint_seconds=0, should_stop=lambda: bool(contents.add(path.read_bytes())))
    contents.add(path.read_bytes())
    assert len(contents) == 9  # four epochs of four steps, and the end

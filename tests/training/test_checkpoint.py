"""Checkpoints (promises 19, 21 and 22): whatever stops a run, going on gives the bits of a run that never stopped."""

import dataclasses
import errno
import itertools
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest
import torch
from runs import CONFIG, ONE_START, SPEC, X_VAL, Y_VAL, StopAfter, X, Y, at_call, train, untimed

import dspp
from dspp import preset, storage
from dspp.errors import CheckpointError, InputError, NumericalError, TrainingDiverged, TrainingInterrupted
from dspp.objectives import OBJECTIVES
from dspp.training import fit, loop
from dspp.training.checkpoint import Keeper
from dspp.training.state import take_snapshot
from dspp.training.step import Stepper

GENERATOR = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def frequent_snapshots(monkeypatch):
    monkeypatch.setattr(loop, "SNAPSHOT_STEPS", 2)


@pytest.fixture(scope="module")
def never_stopped():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "SNAPSHOT_STEPS", 2)
        return train()


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
    assert all(f"go on from {path} with the same call and resume=True" in message for message in messages)
    assert untimed(result) == untimed(never_stopped)
    assert os.listdir(tmp_path) == ["run"], "no lock, no temporary file"


@pytest.mark.parametrize(
    ("name", "changes"),
    [("dgp", {}), ("svgp", {}), ("od-svgp", {}), ("nn+ppgpr", {"features": (4, 3)}), ("dspp", {"dtype": "float64"})],
)
def test_other_models_go_on_too(tmp_path, name, changes):
    spec = preset(name, inducing=10, **changes)
    whole = fit(spec, X, Y, config=ONE_START)
    with pytest.raises(TrainingInterrupted):
        fit(spec, X, Y, config=ONE_START, checkpoint=tmp_path / "run", should_stop=StopAfter(8))
    resumed = fit(spec, X, Y, config=ONE_START, checkpoint=tmp_path / "run", resume=True)
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


def test_an_earlier_start_and_an_earlier_epoch_that_were_better_are_kept(tmp_path, monkeypatch):
    """The first start wins the trials and, with validation turned round, the first epoch is the best."""
    original = loop.nll
    turned = lambda model, rows, team: original(model, rows, team) * (-1 if len(rows) == len(X_VAL) else 1)  # noqa: E731
    monkeypatch.setattr(loop, "nll", turned)
    whole = train()
    assert whole.restart_nll[0] < whole.restart_nll[1]
    assert whole.best_epoch == 1
    for stop in (8, 12, 21):  # in the trial of the second start, in the second epoch, in the fourth
        path = tmp_path / str(stop)
        with pytest.raises(TrainingInterrupted):
            train(checkpoint=path, should_stop=StopAfter(stop))
        assert untimed(train(checkpoint=path, resume=True)) == untimed(whole)


def test_jitter_climbs_are_counted_once(tmp_path, monkeypatch):
    """Every factorisation of the first layer climbs a rung here."""
    monkeypatch.setattr("dspp.gp.layer.whiten", _climbing("dspp.gp.layer.whiten"))
    whole = train(ONE_START)
    assert whole.jitter_climbs > 0
    with pytest.raises(TrainingInterrupted):
        train(ONE_START, checkpoint=tmp_path / "run", should_stop=StopAfter(7))
    assert train(ONE_START, checkpoint=tmp_path / "run", resume=True).jitter_climbs == whole.jitter_climbs


def _climbing(name):
    original = getattr(dspp.gp.layer, name.rpartition(".")[2])
    return lambda *given: dataclasses.replace(original(*given), climbs=1)


def test_a_finished_run_returns_its_result_at_once(tmp_path, monkeypatch):
    first = train(checkpoint=tmp_path / "run")
    before = (tmp_path / "run").read_bytes()
    monkeypatch.setattr(Stepper, "step", None)  # no step is made
    seen = []
    again = train(checkpoint=tmp_path / "run", resume=True, on_epoch=seen.append)
    assert untimed(again) == untimed(first)
    assert (again.history, again.seconds, again.notes) == (first.history, first.seconds, first.notes)
    assert seen == []
    assert (tmp_path / "run").read_bytes() == before


def test_resuming_without_a_file_begins(tmp_path, never_stopped):
    assert untimed(train(checkpoint=tmp_path / "run", resume=True)) == untimed(never_stopped)
    with pytest.raises(InputError, match="resume=True needs the file"):
        train(resume=True)


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


def test_ctrl_c_in_a_step_leaves_the_last_good_state(tmp_path, monkeypatch):
    whole, path = train(ONE_START), tmp_path / "run"
    with monkeypatch.context() as patch:
        at_call(patch, 9, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            train(ONE_START, checkpoint=path, checkpoint_seconds=1e9)
    assert storage.read(path, CheckpointError)[1]["run"]["current"]["step"] == 7, "5 and every second after it"
    assert untimed(train(ONE_START, checkpoint=path, resume=True)) == untimed(whole)


# ---------------------------------------------------------------- divergence


class NaNAt:
    """NaN in the objective at the given steps of the start 0, once each: a pure function of where a run stands.

    Also asserts that a step made again starts from the very state it started from before.
    """

    def __init__(self, patch, steps):
        self.steps, self.seen, self.met, self.state = sorted(steps), {}, {}, None
        step, objective = Stepper.step, OBJECTIVES["predictive"]

        def watched(stepper, state, index, done):
            self.state = state
            self._same_as_before(state)
            return step(stepper, state, index, done)

        def spoilt(*given, **options):
            value = objective(*given, **options)
            return value * float("nan") if self._now() else value

        patch.setattr(Stepper, "step", watched)
        patch.setitem(OBJECTIVES._parts, "predictive", spoilt)

    def _now(self):
        met = len(self.state.recoveries)
        return self.state.trial == 0 and met < len(self.steps) and self.state.step == self.steps[met]

    def _same_as_before(self, state):
        now, met = take_snapshot(state), len(state.recoveries)
        before = self.seen.get((state.trial, state.step))
        if met > self.met.setdefault(id(state), met):  # it has just gone back
            assert state.step == state.recoveries[-1].back_to
            assert all(torch.equal(now.weights[name], value) for name, value in before.weights.items())
            for number, moments in before.moments.items():
                assert all(torch.equal(now.moments[number][name], value) for name, value in moments.items())
        self.seen[state.trial, state.step], self.met[id(state)] = now, met


class SpoiltBy:
    """A step that leaves the model unable to make another, as a leap of the optimiser does, until the rate is lower."""

    def __init__(self, patch, spoiling):
        self.spoiling, step = spoiling, Stepper.step

        def leaping(stepper, state, index, done):
            found = step(stepper, state, index, done)
            if state.step == self.spoiling and not state.recoveries:
                with torch.no_grad():
                    state.model.layers[0].kernel.raw_lengthscale.fill_(float("nan"))
            return found

        patch.setattr(Stepper, "step", leaping)


@pytest.mark.parametrize("batch_size", [40, 200])
@pytest.mark.parametrize("spoiling", [1, 4, 5, 6, 9])
def test_a_step_that_spoils_the_model_is_taken_back(tmp_path, monkeypatch, spoiling, batch_size):
    """A state is gone back to only if a step from there has succeeded, in an earlier epoch if need be."""
    config = ONE_START.change(batch_size=batch_size, epochs=2 if batch_size == 40 else 11)
    SpoiltBy(monkeypatch, spoiling)
    seen = []
    result = train(config, X_val=None, y_val=None, on_epoch=seen.append)
    (recovery,) = result.recoveries
    assert recovery.back_to <= spoiling < recovery.step
    assert [epoch.number for epoch in result.history] == list(range(1, config.epochs + 1))
    assert tuple({epoch.number: epoch for epoch in seen}.values()) == result.history, "a repeated epoch is told again"
    assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())
    with pytest.raises(TrainingInterrupted):
        train(config, X_val=None, y_val=None, checkpoint=tmp_path / "run", should_stop=StopAfter(spoiling + 1))
    again = train(config, X_val=None, y_val=None, checkpoint=tmp_path / "run", resume=True)
    assert untimed(again) == untimed(result)


@pytest.mark.parametrize("seed", range(3))
def test_divergence_is_contained_and_a_run_goes_on_from_it(tmp_path, monkeypatch, seed):
    """Promise 22, and 19 after it: the good state comes back, the step is reported, and resuming is exact."""
    choose = random.Random(seed)
    steps = sorted(choose.sample(range(1, 10), 3))
    config = ONE_START.change(seed=seed)
    NaNAt(monkeypatch, steps)
    whole = train(config)
    assert [recovery.step for recovery in whole.recoveries] == steps
    kept = (0, 2, 4, 5, 7, 9)  # of these the last from which a step had succeeded
    assert [recovery.back_to for recovery in whole.recoveries] == [max(k for k in kept if k < step) for step in steps]
    assert [recovery.rate_factor for recovery in whole.recoveries] == [0.5, 0.25, 0.125]
    assert all(torch.isfinite(value).all() for value in whole.model.state_dict().values())
    for stop in choose.sample(range(1, 10), 3):
        path = tmp_path / str(stop)
        with pytest.raises(TrainingInterrupted):
            train(config, checkpoint=path, should_stop=StopAfter(stop))
        assert untimed(train(config, checkpoint=path, resume=True)) == untimed(whole)


def test_a_start_that_diverged_stays_out_after_a_resume(tmp_path, monkeypatch):
    config = CONFIG.change(max_recoveries=1)
    NaNAt(monkeypatch, [2, 4])
    whole = train(config)
    assert np.isnan(whole.restart_nll[0])
    with pytest.raises(TrainingInterrupted):
        train(config, checkpoint=tmp_path / "run", should_stop=StopAfter(7))
    resumed = train(config, checkpoint=tmp_path / "run", resume=True)
    assert untimed(resumed) == untimed(whole)


def test_validation_that_fails_is_recovered_from(monkeypatch):
    original, calls = loop.nll, itertools.count(1)

    def failing(*given):
        if next(calls) == 2:
            raise NumericalError("the NLL of 40 rows is nan")
        return original(*given)

    monkeypatch.setattr(loop, "nll", failing)
    result = train(ONE_START)
    assert [(r.step, r.back_to, r.reason) for r in result.recoveries] == [(10, 9, "the NLL of 40 rows is nan")]
    assert len(result.history) == 2


def test_a_run_that_diverges_for_good_leaves_its_checkpoint(tmp_path, monkeypatch):
    config = ONE_START.change(max_recoveries=2)
    NaNAt(monkeypatch, [3, 4, 6])
    with pytest.raises(TrainingDiverged, match="step 6"):
        train(config, checkpoint=tmp_path / "run", checkpoint_seconds=0)
    assert storage.read(tmp_path / "run", CheckpointError)[1]["run"]["current"]["step"] == 5


# ---------------------------------------------------------------- files that must be refused


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The bytes of a checkpoint in mid-training."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(TrainingInterrupted):
        train(checkpoint=path, should_stop=StopAfter(12))
    return path.read_bytes()


OTHER_RUNS = {
    "rows": (lambda p: fit(SPEC, X + 1e-6, Y, X_val=X_VAL, y_val=Y_VAL, config=CONFIG, **p), r"in the data\."),
    "targets": (lambda p: fit(SPEC, X, Y[::-1], X_val=X_VAL, y_val=Y_VAL, config=CONFIG, **p), r"in the data\."),
    "no validation rows": (lambda p: fit(SPEC, X, Y, config=CONFIG, **p), r"in the data\."),
    "epochs": (
        lambda p: train(CONFIG.change(epochs=5, seed=8), **p),
        r"in the training settings \(epochs: 4 there, 5 here; seed: 7 there, 8 here\)\. Go on",
    ),
    "model": (
        lambda p: fit(preset("dspp", inducing=10, sites=3), X, Y, X_val=X_VAL, y_val=Y_VAL, config=CONFIG, **p),
        r"in the model settings \(width: 2 there, 5 here\)",
    ),
    "all three": (
        lambda p: fit(preset("dspp", inducing=10, width=2, sites=3, beta=1.0), X, Y, config=ONE_START, **p),
        r"the data and the model settings \(beta: 0.05 there, 1.0 here\) and the training settings",
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
    with pytest.raises(CheckpointError, match="there already; pass resume=True to go on from it, or delete"):
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
    assert {"dspp", "torch", "threads", "spec", "config"} <= header.keys()
    storage.write(path, tensors, {**header, "version": 2}, CheckpointError)
    with pytest.raises(CheckpointError, match="has version 2 of the format, this dspp reads 1"):
        train(checkpoint=path, resume=True)
    storage.write(path, tensors, {**header, "format": "dspp model"}, CheckpointError)
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        train(checkpoint=path, resume=True)
    with pytest.raises(CheckpointError, match="is a folder"):
        train(checkpoint=tmp_path, resume=True)
    with pytest.raises(InputError, match="expected the path of a file"):
        train(checkpoint="")
    with pytest.raises(InputError, match="checkpoint_seconds: got -1"):
        train(checkpoint=tmp_path / "new", checkpoint_seconds=-1)


def test_another_number_of_threads_is_noted(tmp_path, stopped, monkeypatch):
    (tmp_path / "run").write_bytes(stopped)
    monkeypatch.setattr(dspp.training.checkpoint, "_version", lambda: "99.0")
    result = train(checkpoint=tmp_path / "run", resume=True)
    (note,) = result.notes
    assert "resumed with dspp 99.0" in note


# ---------------------------------------------------------------- saves that fail (promise 21)


@pytest.mark.parametrize("path", ["/proc/dspp-run", "/dev/null/run", "/no such folder/run"])
def test_a_path_that_cannot_be_written_shows_before_training(path, monkeypatch):
    monkeypatch.setattr(Stepper, "step", None)
    with pytest.raises(CheckpointError, match=r"cannot write .*give a path in a folder"):
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


def test_writing_is_quick(tmp_path, monkeypatch):
    """A 2-layer DSPP at the paper's size takes less than 50 ms."""
    times, write = [], Keeper.write

    def timed(keeper, moment):
        begin = time.perf_counter()
        write(keeper, moment)
        times.append(time.perf_counter() - begin)

    monkeypatch.setattr(Keeper, "write", timed)
    rows = GENERATOR.normal(size=(400, 8))
    config = CONFIG.change(restarts=1, batch_size=100)
    fit(
        preset("dspp"),
        rows,
        rows[:, 0],
        X_val=rows[:9],
        y_val=rows[:9, 0],
        config=config,
        checkpoint=tmp_path / "run",
        checkpoint_seconds=0,
    )
    assert len(times) == 9  # four epochs of four steps, and the end
    assert min(times) < 0.05

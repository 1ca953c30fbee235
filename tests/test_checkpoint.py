"""Checkpoints (promises 19-23): whatever stops a run, going on gives the bits of a run that never stopped.

Real kills need processes of their own. They are forked from a small helper process that has imported everything and
has one thread: see `alone`.
"""

import dataclasses
import errno
import hashlib
import inspect
import itertools
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch

import dspp
from dspp import TrainConfig, preset, storage
from dspp.errors import CheckpointError, InputError, NumericalError, TrainingDiverged, TrainingInterrupted
from dspp.objectives import OBJECTIVES
from dspp.training import fit, loop, stop_on_signals
from dspp.training.checkpoint import Keeper, open_checkpoint
from dspp.training.state import take_snapshot
from dspp.training.step import Stepper

GENERATOR = np.random.default_rng(3)
X, X_VAL = GENERATOR.normal(size=(200, 2)), GENERATOR.normal(size=(40, 2))
Y, Y_VAL = np.sin(2 * X[:, 0]) + 0.1 * X[:, 1], np.sin(2 * X_VAL[:, 0]) + 0.1 * X_VAL[:, 1]
SPEC = preset("dspp", inducing=10, width=2, sites=3)
# 5 steps an epoch, 25 in all
CONFIG = TrainConfig(epochs=4, batch_size=40, learning_rate=0.02, restarts=2, threads=1, seed=7)
ONE_START = CONFIG.change(restarts=1, epochs=2)


def train(config=CONFIG, **options):
    return fit(SPEC, X, Y, X_val=X_VAL, y_val=Y_VAL, config=config, **options)


def untimed(result):
    """All that a run left behind but times and notes, the model as bytes."""
    weights = {name: value.numpy().tobytes() for name, value in result.model.state_dict().items()}
    history = [dataclasses.replace(epoch, seconds=0.0) for epoch in result.history]
    rest = (result.best_epoch, result.recoveries, result.jitter_climbs, result.planned_epochs, result.stopped)
    return weights, repr((history, result.restart_nll, rest))


def fingerprint(result):
    weights, rest = untimed(result)
    return hashlib.sha256(b"".join(weights.values()) + rest.encode()).hexdigest()


@pytest.fixture(autouse=True)
def frequent_snapshots(monkeypatch):
    monkeypatch.setattr(loop, "SNAPSHOT_STEPS", 2)


@pytest.fixture(scope="module")
def never_stopped():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "SNAPSHOT_STEPS", 2)
        return train()


class StopAfter:
    """A `should_stop` that says so at the given call, counted from 1."""

    def __init__(self, calls):
        self.left = calls

    def __call__(self):
        self.left -= 1
        return self.left == 0


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
        _at_call(patch, 9, lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            train(ONE_START, checkpoint=path, checkpoint_seconds=1e9)
    assert storage.read(path, CheckpointError)[1]["run"]["current"]["step"] == 7, "5 and every second after it"
    assert untimed(train(ONE_START, checkpoint=path, resume=True)) == untimed(whole)


def _at_call(patch, number, act):
    """Let the objective `act` at a call, counted from 1: in the middle of a step."""
    original, calls = OBJECTIVES["predictive"], itertools.count(1)

    def objective(*given, **options):
        if next(calls) == number:
            act()
        return original(*given, **options)

    patch.setitem(OBJECTIVES._parts, "predictive", objective)


# ---------------------------------------------------------------- divergence


class NaNAt:
    """NaN in the objective at the given steps of the start 0, once each: a pure function of where a run stands.

    Also asserts that a step made again starts from the very state it started from before.
    """

    def __init__(self, patch, steps):
        self.steps, self.seen, self.state = sorted(steps), {}, None
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
        now = take_snapshot(state)
        goods = {recovery.back_to for recovery in state.recoveries}
        before = self.seen.setdefault((state.trial, state.step), now)
        if before is not now and state.step in goods:
            assert all(torch.equal(now.weights[name], value) for name, value in before.weights.items())
            for number, moments in before.moments.items():
                assert all(torch.equal(now.moments[number][name], value) for name, value in moments.items())


@pytest.mark.parametrize("seed", range(3))
def test_divergence_is_contained_and_a_run_goes_on_from_it(tmp_path, monkeypatch, seed):
    """Promise 22, and 19 after it: the good state comes back, the step is reported, and resuming is exact."""
    choose = random.Random(seed)
    steps = sorted(choose.sample(range(1, 10), 3))
    config = ONE_START.change(seed=seed)
    NaNAt(monkeypatch, steps)
    whole = train(config)
    assert [recovery.step for recovery in whole.recoveries] == steps
    assert [recovery.back_to for recovery in whole.recoveries] == [step // 5 * 5 + step % 5 // 2 * 2 for step in steps]
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


# ---------------------------------------------------------------- signals


def test_handlers_are_put_back_and_the_second_ctrl_c_is_at_once():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with stop_on_signals() as stop:
        assert not stop()
        signal.raise_signal(signal.SIGTERM)
        assert stop()
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.signal == signal.SIGTERM
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_ignored_signals_stay_ignored_and_other_threads_are_left_alone():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    seen = []

    def elsewhere():
        with stop_on_signals() as stop:
            seen.append((stop(), signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [(False, signal.getsignal(signal.SIGTERM))]


# ---------------------------------------------------------------- real processes


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Call a function of this file in a fresh fork of a process with one thread that has imported everything."""
    errors = tmp_path_factory.mktemp("alone") / "errors"
    folders = [str(Path(__file__).parent), str(Path(dspp.__file__).parents[1])]
    program = f"import sys; sys.path[:0] = {folders!r}; import test_checkpoint; test_checkpoint.serve()"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        errors.open("w") as file,
        subprocess.Popen(
            [sys.executable, "-c", program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file
        ) as process,
    ):

        def call(function, *arguments):
            process.stdin.write(json.dumps([function.__name__, *arguments]).encode() + b"\n")
            process.stdin.flush()
            assert select.select([process.stdout], [], [], 900)[0], "no answer in 15 minutes"
            assert process.stdout.readline() == b"0\n", errors.read_text()[-4000:]

        yield call
        process.stdin.close()  # ends it


def serve():
    """What the process does: call a function in a fork for each line, and answer with the exit code."""
    torch.set_num_threads(1)
    train(ONE_START)  # what is slow the first time, once for all
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        child = fork(lambda name=name, arguments=arguments: globals()[name](*arguments))
        print(exit_code(child), flush=True)


def fork(work):
    """Do `work` in a child; its exit code is 0, or 99 when it raises."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(99)


def exit_code(child):
    """Exit code, or minus the signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


SHORT = CONFIG.change(epochs=2)


def go_on(path):
    """What a child does: go on until the end and leave the result's fingerprint beside the checkpoint."""
    result = train(SHORT, checkpoint=path, resume=True, checkpoint_seconds=0)
    Path(f"{path}.done").write_text(fingerprint(result))


def kill_and_resume(folder, kills, seed):
    """Kill children at random times; each run goes on until it ends, and must end as if nothing had happened."""
    loop.SNAPSHOT_STEPS = 2
    expected, choose, killed, runs = fingerprint(train(SHORT)), random.Random(seed), 0, 0
    begin = time.perf_counter()
    go_on(f"{folder}/whole")
    whole = time.perf_counter() - begin
    while killed < kills:
        path = f"{folder}/{runs}"
        runs += 1
        while True:
            child = fork(lambda path=path: go_on(path))
            time.sleep(choose.uniform(0, 0.8 * whole))
            os.kill(child, signal.SIGKILL)
            code = exit_code(child)
            assert code in (0, -signal.SIGKILL), code
            if code == 0 or Path(f"{path}.done").exists():
                break
            killed += 1
        assert Path(f"{path}.done").read_text() == expected, f"run {runs} after {killed} kills"


def test_kill_9_then_resume_is_never_killed(tmp_path, alone):
    """Promise 19, 10 of 10."""
    alone(kill_and_resume, str(tmp_path), 10, 1)


@pytest.mark.long
def test_kill_9_then_resume_is_never_killed_100_of_100(tmp_path, alone):
    """Promise 19."""
    alone(kill_and_resume, str(tmp_path), 100, 2)


ONE_EPOCH = ONE_START.change(epochs=1)
CALLS = ("write", "fsync", "replace")


def crash_everywhere(folder):
    """Leave before and after each write, fsync and rename of a run, and in the middle of each write; then go on."""
    loop.SNAPSHOT_STEPS = 3
    expected = fingerprint(train(ONE_EPOCH))
    steps = [None, 0, 3, 5]  # at which there are saves, after none
    for number in range(12):  # three saves of four calls: write, fsync, rename, fsync of the folder
        for how in ("before", "half", "after") if number % 4 == 0 else ("before", "after"):
            path = Path(folder) / f"{number}-{how}" / "run"
            path.parent.mkdir()
            child = fork(lambda path=path, number=number, how=how: crash_at(path, number, how))
            assert exit_code(child) == 42, (number, how)
            renamed = number % 4 == 3 or (number % 4 == 2 and how == "after")
            assert step_in(path) == steps[number // 4 + renamed], (number, how)
            if how != "before":
                assert fingerprint(train(ONE_EPOCH, checkpoint=path, resume=True)) == expected, (number, how)
                assert os.listdir(path.parent) == ["run"]


def step_in(path):
    """Load a checkpoint as a run would; the step it stands at, None when there is none."""
    if not path.exists():
        return None
    header = storage.read(path, CheckpointError)[1]
    identity = {name: header[name] for name in ("data", "spec", "features", "config")}
    with open_checkpoint(path, True, 0.0, identity) as keeper:
        return keeper.saved.current.step


def crash_at(path, number, how):
    """Train, and leave at a call, counted from 0 over all three kinds."""
    calls = itertools.count()

    def crashing(original, splits):
        def call(*given):
            now = next(calls) == number
            if now and how == "half" and splits:
                original(given[0], given[1][: len(given[1]) // 2])
            if now and how != "after":
                os._exit(42)
            result = original(*given)
            if now:
                os._exit(42)
            return result

        return call

    for name in CALLS:
        setattr(os, name, crashing(getattr(os, name), name == "write"))
    train(ONE_EPOCH, checkpoint=path, checkpoint_seconds=0)


def test_every_crash_point_is_safe(tmp_path, alone):
    """Promise 20."""
    assert all(f"os.{name}(" in inspect.getsource(storage) for name in CALLS)
    alone(crash_everywhere, str(tmp_path))


def stop_by_signals(folder):
    """SIGTERM and SIGINT in the middle of a step, with the handlers and, for Ctrl-C, without."""
    loop.SNAPSHOT_STEPS = 2
    expected = fingerprint(train(SHORT))
    for number, handled in ((signal.SIGTERM, True), (signal.SIGINT, True), (signal.SIGINT, False)):
        for step in (2, 13):  # in the trial of the first start, in the second epoch
            path = f"{folder}/{number}-{handled}-{step}"
            child = fork(
                lambda path=path, number=number, handled=handled, step=step: drive(path, number, handled, step)
            )
            assert exit_code(child) == 128 + number
            assert fingerprint(train(SHORT, checkpoint=path, resume=True)) == expected


def drive(path, number, handled, step):
    """A program as the command line will be: train, and turn being stopped into an exit code."""
    with pytest.MonkeyPatch.context() as patch:
        _at_call(patch, step, lambda: os.kill(os.getpid(), number))
        try:
            if handled:
                with stop_on_signals() as stop:
                    train(SHORT, checkpoint=path, checkpoint_seconds=1e9, should_stop=stop)
            else:
                train(SHORT, checkpoint=path, checkpoint_seconds=1e9)
        except TrainingInterrupted:
            os._exit(128 + stop.signal)
        except KeyboardInterrupt:
            os._exit(130)


def test_signals_leave_a_checkpoint_and_their_exit_codes(tmp_path, alone):
    """Promise 23."""
    alone(stop_by_signals, str(tmp_path))


# ---------------------------------------------------------------- time budget


def test_a_time_budget_is_kept_and_the_schedule_ends():
    for _ in range(3):  # the machine may stand still once
        begin = time.perf_counter()
        result = train(CONFIG.change(epochs=100_000), time_budget=3.0)
        spent = time.perf_counter() - begin
        if spent < 4.0:
            break
    assert 2.0 < spent < 4.0
    assert result.stopped == "time"
    assert len(result.history) == result.planned_epochs < 100_000
    assert result.history[-1].learning_rate < 0.05 * CONFIG.learning_rate, "the cosine came to its end"
    assert "the time budget of 3 s allowed " in result.notes[-1]
    assert result.notes[-1].endswith(" of 100000 epochs")
    assert len(result.restart_nll) == 2


def test_a_budget_that_suffices_changes_nothing(never_stopped):
    result = train(time_budget=600.0)
    assert untimed(result) == untimed(never_stopped)
    assert (result.stopped, result.planned_epochs, result.notes) == ("finished", 4, ())


class Pretend:
    """Steps that only take time, on a clock of the test's own: exact and without waiting."""

    def __init__(self, patch, seconds, validation=0.0):
        self.now, self.seconds, self.validation = 0.0, seconds, validation
        patch.setattr("dspp.training.clock.time.perf_counter", lambda: self.now)
        patch.setattr(Stepper, "step", lambda stepper, state, index, done: self.step(stepper, state, done))
        patch.setattr(loop, "nll", self.nll)

    def step(self, stepper, state, done):
        self.now += self.seconds
        config = stepper._config
        state.optimizer.param_groups[0]["lr"] = config.learning_rate * stepper._schedule(done, config)
        return 0.0, 0.0

    def nll(self, *given):
        self.now += self.validation
        return 0.0


LONG = CONFIG.change(epochs=1000, restarts=1, batch_size=20)  # 10 steps an epoch
ENDED = 0.01 * CONFIG.learning_rate  # the cosine is there at its last 6 %


@pytest.mark.parametrize("validation", [0.0, 2.0])
def test_the_plan_fits_the_budget(monkeypatch, validation):
    """At 0.1 s a step and 10 steps an epoch, with the validation at the end of each."""
    pretend = Pretend(monkeypatch, 0.1, validation)
    result = train(LONG, time_budget=60.0)
    assert 0.94 * 60 <= result.seconds <= 60 + validation
    assert result.seconds == pretend.now
    expected = 60 / (1 + validation)
    assert expected - 2 <= result.planned_epochs <= expected + 1
    assert result.history[-1].learning_rate < ENDED


def test_a_budget_of_less_than_an_epoch_still_ends_the_schedule(monkeypatch):
    Pretend(monkeypatch, 0.1, validation=0.8)  # what validation is taken to cost before it has been measured
    result = train(LONG.change(batch_size=2), time_budget=8.0)  # 100 steps an epoch
    assert result.planned_epochs == len(result.history) == 1
    assert result.history[0].learning_rate < ENDED
    assert result.notes == ("the time budget of 8 s allowed 0.7 of 1000 epochs",)
    assert result.seconds == pytest.approx(7.8)


def test_restarts_that_would_take_too_much_are_left_out(monkeypatch):
    Pretend(monkeypatch, 0.1)
    config = LONG.change(restarts=3)  # 3 s for the trials
    assert len(train(config, time_budget=11.0).restart_nll) == 3
    result = train(config, time_budget=9.0)
    assert result.restart_nll == ()
    assert result.notes[0] == "the time budget of 9 s has no room to try 3 starts; the first was trained"
    assert result.history[-1].learning_rate < ENDED
    assert [epoch.number for epoch in result.history] == list(range(1, result.planned_epochs + 1))


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_machine_that_changes_its_pace_is_followed(monkeypatch, factor):
    pretend = Pretend(monkeypatch, 0.1)

    def change(epoch):
        if epoch.number == 10:
            pretend.seconds *= factor

    result = train(LONG, time_budget=60.0, on_epoch=change)
    assert 0.94 * 60 <= result.seconds <= 60.2
    assert result.planned_epochs == pytest.approx(10 + 50 / factor, rel=0.06)
    assert result.history[-1].learning_rate < ENDED


def test_time_before_a_resume_counts(tmp_path, monkeypatch):
    path = tmp_path / "run"
    pretend = Pretend(monkeypatch, 0.1)
    with pytest.raises(TrainingInterrupted):
        train(LONG, time_budget=20.0, checkpoint=path, should_stop=StopAfter(120))
    pretend.now = 1000.0  # a new process, another clock
    result = train(LONG, time_budget=20.0, checkpoint=path, resume=True)
    assert result.seconds == pytest.approx(20, abs=0.8)
    assert result.planned_epochs <= 20
    again = train(LONG, time_budget=20.0, checkpoint=path, resume=True)
    assert (again.seconds, again.notes, again.stopped) == (result.seconds, result.notes, "time")


def test_without_a_budget_a_resumed_run_is_whole_again(tmp_path, monkeypatch):
    config, path = LONG.change(epochs=40), tmp_path / "run"
    Pretend(monkeypatch, 0.1)
    with pytest.raises(TrainingInterrupted):
        train(config, time_budget=10.0, checkpoint=path, should_stop=StopAfter(60))
    assert storage.read(path, CheckpointError)[1]["run"]["total_steps"] < 120
    result = train(config, checkpoint=path, resume=True)
    assert (result.planned_epochs, len(result.history), result.stopped) == (40, 40, "finished")


def test_a_tiny_budget_makes_one_step():
    result = train(time_budget=1e-6)
    assert result.stopped == "time"
    assert len(result.history) == 1
    assert all(torch.isfinite(value).all() for value in result.model.state_dict().values())


@pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf")])
def test_a_budget_that_makes_no_sense_is_refused(budget):
    with pytest.raises(InputError, match=r"time_budget: got .*expected seconds > 0"):
        train(time_budget=budget)

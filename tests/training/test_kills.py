"""Kills, crashes and signals (promises 19, 20 and 23): the run goes on to the bits of one that never stopped.

Real kills need processes of their own. They are forked from a small helper process that has imported everything and
has one thread: see `alone`.
"""

import inspect
import itertools
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

import pytest
import torch
from runs import CONFIG, ONE_START, at_call, fingerprint, step_in, train

import dspp
from dspp import storage
from dspp.errors import TrainingInterrupted
from dspp.training import stop_on_signals

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
    program = f"import sys; sys.path[:0] = {folders!r}; import test_kills; test_kills.serve()"
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
    expected = fingerprint(train(ONE_EPOCH))
    steps = [None, 0, 3, 5]  # at which there are saves, after none
    for number in range(12):  # three saves of four calls: write, fsync, rename, fsync of the folder
        for how in ("before", "half", "after") if number % 4 == 0 else ("before", "after"):
            path = Path(folder) / f"{number}-{how}" / "run"
            path.parent.mkdir()
            child = fork(lambda path=path, number=number, how=how: crash_at(path, number, how))
            assert exit_code(child) == 42, (number, how)
            renamed = number % 4 == 3 or (number % 4 == 2 and how == "after")
            assert step_in(path, ONE_EPOCH) == steps[number // 4 + renamed], (number, how)
            if how != "before":
                assert fingerprint(train(ONE_EPOCH, checkpoint=path, resume=True)) == expected, (number, how)
                assert os.listdir(path.parent) == ["run"]


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
    train(ONE_EPOCH, checkpoint=path, checkpoint_seconds=0, lap_steps=3)


def test_every_crash_point_is_safe(tmp_path, alone):
    """Promise 20."""
    assert all(f"os.{name}(" in inspect.getsource(storage) for name in CALLS)
    alone(crash_everywhere, str(tmp_path))


def stop_by_signals(folder):
    """SIGTERM and SIGINT in the middle of a step, with the handlers and, for Ctrl-C, without."""
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
    with at_call(step, lambda: os.kill(os.getpid(), number)):
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

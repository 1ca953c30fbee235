"""Many tasks on many processes: each result once, whatever dies; and a search that runs on them.

Workers import this file to find their function: what takes seconds to import is imported where it is used.
"""

import builtins
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dspp.engines import WAIT, TasksLost, is_stopped, report, run_all, waited
from dspp.errors import DsppError, InputError, NumericalError, TrainingInterrupted

GENERATOR = np.random.default_rng(11)
X = GENERATOR.normal(size=(120, 2))
Y = 50 + 7 * np.sin(2 * X[:, 0]) + GENERATOR.normal(size=120)
X_TRAIN, Y_TRAIN, X_VAL, Y_VAL = X[:90], Y[:90], X[90:], Y[90:]
RATES = {"learning_rate": [1e-6, 1e-3, 0.01, 0.03, 0.1]}
SHALLOW = {"models": ("ppgpr",), "base": {"inducing": 8, "batch_size": 45, "restarts": 1, "epochs": 8}}


def scaled(task: int, factor: int) -> tuple[int, int, str | None]:
    return factor * task, os.getpid(), os.environ.get("OMP_NUM_THREADS")


def die_once(task: int, folder: Path) -> int:
    """Task 1 ends its worker the first time; each call leaves a file."""
    calls = len(list(folder.glob(f"{task}.*")))
    (folder / f"{task}.{calls}").touch()
    if task == 1 and calls == 0:
        os._exit(7)
    return task


def die_always(task: str) -> str:
    if task == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def refuse(task: int) -> int:
    if task == 1:
        raise NumericalError(f"not {task}")
    return task


def endless(task: int, folder: Path) -> None:
    (folder / "pid").write_text(str(os.getpid()))
    time.sleep(1000)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def blocked(task: int) -> set[int]:
    return set(signal.pthread_sigmask(signal.SIG_BLOCK, ()))


# ---------------------------------------------------------------- the engine


def test_workers_leave_signals_to_the_process_that_waits_for_them() -> None:
    before = blocked(0)
    found = dict(run_all(blocked, [1, 2], jobs=2))
    assert all(signals >= {signal.SIGINT, signal.SIGTERM} for signals in found.values())
    assert blocked(0) == before


def test_every_task_is_done_once_in_processes_of_one_thread() -> None:
    found = dict(run_all(scaled, range(5), shared=(3,), jobs=2))
    assert {number: value for number, (value, _, _) in found.items()} == {k: 3 * k for k in range(5)}
    pids = {pid for _, pid, _ in found.values()}
    assert 1 <= len(pids) <= 2
    assert os.getpid() not in pids
    assert {threads for _, _, threads in found.values()} == {"1"}


def test_one_job_runs_here_and_only_as_far_as_it_is_asked() -> None:
    drawn = []
    results = run_all(scaled, (drawn.append(k) or k for k in range(5)), shared=(2,))
    assert [next(results)[1][:2] for _ in range(2)] == [(0, os.getpid()), (2, os.getpid())]
    assert drawn == [0, 1]


def test_a_task_is_drawn_when_a_worker_is_free_for_it() -> None:
    """So that it can depend on the results before it."""
    drawn, taken = [], 0
    for _ in run_all(scaled, (drawn.append(k) or k for k in range(6)), shared=(1,), jobs=2):
        assert len(drawn) <= taken + 2
        taken += 1
    assert taken == 6


def test_a_task_can_wait_for_all_results_before_it() -> None:
    results: list[int] = []

    def tasks() -> Iterator[Any]:
        yield from range(5)
        while len(results) < 5:
            yield WAIT
        yield sum(results)

    for number, (value, *_) in run_all(scaled, tasks(), shared=(1,), jobs=2):
        assert number == len(results) or number < 5
        results.append(value)
    assert results[5:] == [10]


def test_a_worker_that_dies_while_idle_is_replaced() -> None:
    workers = {}

    def tasks() -> Iterator[int]:
        yield 0
        while not workers:
            yield WAIT
        os.kill(workers[0], signal.SIGKILL)
        time.sleep(1.0)  # until the executor has noticed
        yield 1

    for number, (_, pid, _) in run_all(scaled, tasks(), shared=(3,), jobs=2):
        workers[number] = pid
    assert workers[1] != workers[0]


def test_waiting_for_a_lost_task_ends() -> None:
    def tasks() -> Iterator[Any]:
        yield "poison"
        while True:
            yield WAIT

    with pytest.raises(TasksLost, match="gave up task 0"):
        list(run_all(die_always, tasks(), jobs=2))


def test_a_task_whose_worker_dies_is_given_again_and_no_other(tmp_path: Path) -> None:
    found = list(run_all(die_once, range(4), shared=(tmp_path,), jobs=2))
    assert sorted(found) == [(k, k) for k in range(4)]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0.0", "1.0", "1.1", "2.0", "3.0"]


def test_a_task_that_always_dies_is_named_when_the_others_are_done() -> None:
    found: list[tuple[int, str]] = []
    with pytest.raises(TasksLost, match=r"lost the worker 3 times, gave up task 0 \(poison\)") as raised:
        found.extend(run_all(die_always, ["poison", "a", "b"], jobs=2))  # keeps what came before the error
    assert sorted(found) == [(1, "a"), (2, "b")]
    assert raised.value.numbers == (0,)
    assert isinstance(raised.value, DsppError)


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_the_function_raises_comes_as_it_is(jobs: int) -> None:
    with pytest.raises(NumericalError, match=r"^not 1$") as raised:
        list(run_all(refuse, range(3), jobs=jobs))
    assert type(raised.value) is NumericalError


def test_when_the_caller_is_told_to_stop_so_are_the_workers(tmp_path: Path) -> None:
    def stop() -> None:
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            raise TrainingInterrupted("enough")

    with pytest.raises(TrainingInterrupted, match="enough"):
        list(run_all(endless, [0], shared=(tmp_path,), jobs=2, while_waiting=stop))
    assert not is_running(int((tmp_path / "pid").read_text()))


def patient(task: int, folder: Path) -> tuple[int, float]:
    """Report, and wait for the sign to stop."""
    (folder / f"{task}.begun").touch()
    while not is_stopped():
        report(10 * task)
        time.sleep(0.01)
    return task, waited()


@pytest.mark.parametrize("jobs", [1, 2])
def test_running_tasks_are_told_to_stop_and_no_more_are_drawn(jobs: int, tmp_path: Path) -> None:
    reports: dict[int, int] = {}

    def stop() -> bool:
        return len(reports) == jobs

    found = run_all(
        patient, [5, 6, 7], shared=(tmp_path,), jobs=jobs, while_waiting=stop, on_report=reports.__setitem__
    )
    if jobs == 1:
        assert next(found)[1] == (5, 0.0)
        return
    results = dict(found)
    assert [task for task, _ in results.values()] in ([5, 6], [6, 5])
    assert all(0.0 < seconds < 60.0 for _, seconds in results.values())
    assert reports == {0: 50, 1: 60}
    assert len(list(tmp_path.iterdir())) == 2


def test_outside_of_tasks_nobody_is_told_anything() -> None:
    report(1)
    assert not is_stopped()
    assert waited() == 0.0


def test_workers_end_when_the_process_that_waits_for_them_is_killed(tmp_path: Path) -> None:
    """One is idle, one at work: that one ends after its task."""
    parent = f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from dspp.engines import run_all
        from test_engines import noted
        list(run_all(noted, [0, 3], shared=(Path({str(tmp_path)!r}),), jobs=2))
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(parent)], stderr=subprocess.DEVNULL)
    wait_for(lambda: (tmp_path / "0.done").exists() and (tmp_path / "3.pid").exists())
    process.kill()
    process.wait()
    pids = [int((tmp_path / name).read_text()) for name in ("0.pid", "3.pid")]
    wait_for(lambda: not any(map(is_running, pids)))
    assert (tmp_path / "3.done").exists()


def noted(seconds: int, folder: Path) -> None:
    (folder / f"{seconds}.pid").write_text(str(os.getpid()))
    time.sleep(seconds)
    (folder / f"{seconds}.done").touch()


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"engine": "dask"}, "engine: expected one of local, ray, got 'dask'"),
        ({"jobs": 0}, "jobs: expected an integer ≥ 1, or None for all CPUs, got 0"),
        ({"jobs": 1.5}, "jobs: expected an integer"),
        ({"address": "a:1"}, "address: expected None for the engine 'local', got 'a:1'"),
    ],
)
def test_what_cannot_be_used_is_refused_at_once(how: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run_all(scaled, [1], **how)
    with pytest.raises(InputError, match=message):
        search(**how)


def test_without_ray_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.__import__

    def absent(name: str, *args, **kwargs):
        if name.partition(".")[0] == "ray":
            raise ModuleNotFoundError("No module named 'ray'")
        return plain(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(InputError, match=r"pip install 'dspp\[ray\]'"):
        list(run_all(scaled, [1], shared=(1,), engine="ray"))
    assert [value for _, (value, *_) in run_all(scaled, [1], shared=(4,))] == [4]


# ---------------------------------------------------------------- a search on it


def search(**how) -> Any:
    from dspp.tuning import tune

    where = {name: how.pop(name) for name in ("jobs", "engine", "address") if name in how}
    given = {"X_val": X_VAL, "y_val": Y_VAL, "space": RATES, "trials": 5, **SHALLOW, **how}
    return tune(X_TRAIN, Y_TRAIN, **given | {"base": given["base"] | where})


def test_workers_find_the_setting_that_is_best_and_send_its_model(tmp_path: Path) -> None:
    from dspp.estimators import ESTIMATORS

    result = search(jobs=2, study=tmp_path / "s")
    fits = {
        rate: ESTIMATORS["ppgpr"](**SHALLOW["base"], members=1, learning_rate=rate).fit(X_TRAIN, Y_TRAIN, X_VAL, Y_VAL)
        for rate in RATES["learning_rate"]
    }
    assert [t.number for t in result.trials] == [0, 1, 2, 3, 4]
    assert sorted(t.params["learning_rate"] for t in result.trials) == sorted(fits)
    for trial in result.trials:
        nll = fits[trial.params["learning_rate"]].score_nll(X_VAL, Y_VAL)
        assert trial.val_nll == pytest.approx(nll, abs=1e-9) or (trial.state == "pruned" and trial.epochs in (2, 4))
    best = min(fits.values(), key=lambda fitted: fitted.score_nll(X_VAL, Y_VAL))
    assert result.best_nll == result.best_estimator.score_nll(X_VAL, Y_VAL) == best.score_nll(X_VAL, Y_VAL)
    assert result.best_estimator.get_params() == best.get_params()
    np.testing.assert_array_equal(result.best_estimator.predict(X_VAL), best.predict(X_VAL))
    again = search(study=tmp_path / "s")  # from its files: one writer has written all of it
    assert again.trials == result.trials
    np.testing.assert_array_equal(again.best_estimator.predict(X_VAL), best.predict(X_VAL))


def test_trials_that_were_running_when_a_search_ended_are_run_with_the_same_settings(tmp_path: Path) -> None:
    """Two are begun, the later is done first, and then the process dies."""
    from dspp.tuning.study import best_file
    from dspp.tuning.trial import Order, run_trial

    path = tmp_path / "s"
    reference = search()
    search(trials=1, study=path)
    rows = prepared()
    with begun_search(path, rows, best_file(path)) as left:
        asked = list(itertools.islice(left.pending(), 2))
        left.record(asked[1][0], run_trial(Order(asked[1][1], None, np.inf, np.inf, ()), rows, left.space))
    result = search(study=path)
    assert [t.params for t in result.trials] == [t.params for t in reference.trials]
    assert {t.state for t in result.trials} <= {"finished", "pruned"}
    assert result.best_nll == reference.best_nll


def test_a_trial_that_a_longer_search_left_running_is_no_business_of_a_shorter_one(tmp_path: Path) -> None:
    from dspp.tuning.study import record_done

    path = tmp_path / "s"
    search(trials=2, study=path)
    with begun_search(path, prepared(), None) as left:
        _, setting = next(left.pending())
        record_done(left.study, 2)
    assert [t.number for t in search(trials=2, study=path, time_budget=60).trials] == [0, 1]
    assert [t.params for t in search(trials=3, study=path).trials][2:] == [setting]


@contextmanager
def begun_search(path: Path, rows: Any, best: Path | None) -> Iterator[Any]:
    """A search of five trials that is never ended."""
    from dspp.training.budget import Budget
    from dspp.tuning.search import Search
    from dspp.tuning.space import Space
    from dspp.tuning.study import digest, open_study

    space = Space(("ppgpr",), RATES, SHALLOW["base"])
    with open_study(path, {"table": digest(rows)} | space.identity) as study:
        yield Search(study, space, 5, 1, Budget(), best)


def prepared() -> Any:
    from dspp.prepare import prepare
    from dspp.settings import Settings
    from dspp.table.memory import attach_targets, to_table

    validation = attach_targets(to_table(X_VAL, "X_val"), Y_VAL)
    return prepare(attach_targets(to_table(X_TRAIN), Y_TRAIN), Settings(members=1), validation=validation)


def test_a_search_in_workers_stops_when_asked_and_goes_on(tmp_path: Path) -> None:
    import optuna

    beats = itertools.count()
    slow = SHALLOW | {"base": SHALLOW["base"] | {"epochs": 100_000}}
    with pytest.raises(TrainingInterrupted, match=r"stopped in trial 1; repeat the same call to resume"):
        search(jobs=2, study=tmp_path / "s", should_stop=lambda: next(beats) > 3, **slow)
    assert optuna.logging.get_verbosity() != optuna.logging.ERROR


def test_a_setting_that_ends_its_worker_is_a_trial_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dspp.tuning import search as module

    def run(function: Callable[..., Any], orders: Iterator[Any], *, shared: tuple[Any, ...], **how: Any) -> Any:
        """What `run_all` does when the worker of the second trial dies again and again."""
        first, second, third = orders
        yield 2, function(third, *shared)
        yield 0, function(first, *shared)
        raise TasksLost(f"gave up {second}", (1,))

    with monkeypatch.context() as patch:
        patch.setattr(module, "run_all", run)
        result = search(jobs=2, trials=3, study=tmp_path / "s")
    assert [t.state for t in result.trials].index("failed") == 1
    assert result.trials[1].reason == f"gave up model ppgpr, learning_rate {result.trials[1].params['learning_rate']}"
    assert [t.number for t in result.trials] == [0, 1, 2]
    assert search(trials=3, study=tmp_path / "s").trials == result.trials


@pytest.mark.parametrize(
    ("trials", "losses", "states", "most"),
    [
        (1, {0: 40.0}, ["finished"], 20.0),
        (1, {0: 40.0, 1: 40.0}, ["finished"], 1e-3),  # nothing is left, but there is no model yet
        (2, {1: 60.0}, ["finished", "failed"], None),
    ],
)
def test_a_trial_that_is_given_again_gets_no_more_than_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch, trials: int, losses: dict[int, float], states: list[str], most: float | None
) -> None:
    lost, outcomes = [0.0], []

    def run_here(function: Callable[..., Any], tasks: Iterator[Any], *, shared: tuple[Any, ...], **how: Any) -> Any:
        """What `run_all` does with one worker, which is lost with some of its tasks."""
        runs = itertools.count()
        for number, task in enumerate(tasks):
            while (run := next(runs)) in losses:
                lost[0] += losses[run]
            outcomes.append(function(task, *shared))
            yield number, outcomes[-1]

    monkeypatch.setattr("dspp.tuning.search.run_all", run_here)
    monkeypatch.setattr("dspp.tuning.trial.waited", lambda: lost[0])
    result = search(jobs=2, trials=trials, time_budget=60.0)
    assert [t.state for t in result.trials] == states
    if most is None:
        assert result.trials[-1].reason == "the time budget was exhausted before a worker could train it"
    else:
        assert 0 < outcomes[-1].notes["time_budget"] <= most


ENDED_EARLY = """
import time
from dspp.engines import run_all

tasks = run_all(time.sleep, [0, 100], jobs=2)
next(tasks)
print("one is done")
"""


@pytest.mark.parametrize("end", ["", "tasks.close()", "raise SystemExit(0)", "kept = [tasks]; tasks.gi_frame"])
def test_a_process_that_exits_with_workers_leaks_nothing(end: str) -> None:
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", ENDED_EARLY + end], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "one is done\n", "")
    assert time.monotonic() - begun < 60

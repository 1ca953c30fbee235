"""Members in several processes; fits that are killed or stopped and resumed: the same bits as if left alone."""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dspp import DSPPRegressor, TrainingInterrupted, modelfile
from dspp.cli.app import app
from dspp.errors import CheckpointError, InputError
from dspp.fitted import Fitted
from dspp.members import plan, run, trees
from tests.members.ensembles import TINY, X, Y, bits, weights_of

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
FIT = "--target y --members 3 --inducing 6 --width 2 --sites 3 --batch-size 20 --likelihood gaussian"
PATIENCE = 280.0  # seconds, on a machine that is busy with other things
COMMAND = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a background job of a shell ignores
from dspp.members import run
run.WORTH_PROCESSES = float(sys.argv.pop(1))
import dspp.cli
dspp.cli.main()
"""


def same_bits(one: Fitted, other: Fitted) -> bool:
    return bits(one.distribution(X)) == bits(other.distribution(X)) and one.metrics == other.metrics


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("table") / "t.csv"
    np.savetxt(path, np.column_stack([X, Y]), delimiter=",", header="a,b,y", comments="", fmt="%.17g")
    return path


def stop(
    words: list[str], begun: Path, number: signal.Signals, meanwhile: Callable[[], None] = lambda: None
) -> tuple[int, str]:
    """Start a command, send it a signal once it has begun, and return its exit code and what it complained of."""
    command = [sys.executable, "-c", COMMAND, *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=ENVIRONMENT, text=True, **pipes) as process:
        deadline = time.monotonic() + PATIENCE
        while not begun.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if process.poll() is None and begun.exists():
            meanwhile()
        process.send_signal(number if begun.exists() else signal.SIGKILL)
        _, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, errors


# ---------------------------------------------------------------- several processes


def test_the_result_does_not_depend_on_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    alone = DSPPRegressor(**TINY, members=3, jobs=1).fit(X, Y)
    monkeypatch.setattr(run, "WORTH_PROCESSES", 0.0)
    run_all = run.run_all
    monkeypatch.setattr(run, "run_all", lambda *a, **k: seen.append(k["jobs"]) or run_all(*a, **k))
    epochs: list[Any] = []
    both = DSPPRegressor(**TINY, members=3, jobs=2).fit(X, Y, on_epoch=epochs.append)
    assert seen == [2]
    assert weights_of(both) == weights_of(alone)
    assert same_bits(both.fitted_, alone.fitted_)
    assert len(epochs) == 3 * 2


def test_processes_are_told_to_stop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "WORTH_PROCESSES", 0.0)
    settings = TINY | {"members": 3, "jobs": 2, "epochs": 20_000, "checkpoint": tmp_path / "run"}
    begun = tmp_path / "run" / "member-01.checkpoint"
    with pytest.raises(TrainingInterrupted, match="resume"):
        DSPPRegressor(**settings).fit(X, Y, should_stop=begun.exists)
    assert begun.exists()
    short = settings | {"epochs": 2, "checkpoint": tmp_path / "short"}
    model = DSPPRegressor(**short).fit(X, Y)
    assert same_bits(model.fitted_, DSPPRegressor(**TINY, members=3).fit(X, Y).fitted_)
    assert {path.name.partition("-")[0] for path in (tmp_path / "short").iterdir()} == {"identity", "member"}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_fit_that_waits_for_trees_can_be_stopped(jobs: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "WORTH_PROCESSES", 0.0)
    waiting, ended = threading.Event(), threading.Event()

    def grow(*args: Any, should_stop: Callable[[], bool], **more: Any) -> Any:
        waiting.set()
        while not should_stop():
            time.sleep(0.01)
        ended.set()

    monkeypatch.setattr(trees, "cross_fit", grow)
    monkeypatch.setattr(plan, "FOLDS", 2)
    model = DSPPRegressor(**TINY, jobs=jobs, checkpoint=tmp_path / "run")
    with pytest.raises(TrainingInterrupted, match="resume"):
        model.fit(X, Y, should_stop=waiting.is_set)
    assert ended.wait(PATIENCE), "the thread that grows them ends too"


# ---------------------------------------------------------------- killed and stopped


def test_kill_9_in_any_member_then_resume_is_never_killed(tmp_path: Path) -> None:
    """Promise 19, of ensembles."""
    worker = Path(__file__).with_name("kill_worker.py")
    done = subprocess.run([sys.executable, worker, tmp_path], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(("number", "jobs"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGINT, 2)])
def test_a_fit_that_is_stopped_is_resumed(number: signal.Signals, jobs: int, table: Path, tmp_path: Path) -> None:
    out, checkpoint = tmp_path / "m.dspp", tmp_path / "m.dspp.checkpoint"
    words = ["fit", str(table), *shlex.split(FIT), "--epochs", "60", "--jobs", str(jobs)]
    worth = "0" if jobs > 1 else "1e9"
    code, errors = stop([worth, *words, "--out", str(out)], checkpoint / "member-01.checkpoint", number)
    assert code == 128 + number, errors
    *progress, line = errors.splitlines()
    assert all("% done" in shown for shown in progress), errors
    assert "To resume: " in line
    assert line.endswith("--resume")
    assert checkpoint.is_dir()
    assert not out.exists()
    refused = CliRunner().invoke(app, [*words, "--out", str(out)])
    assert refused.exit_code == 2
    assert "already exists, from an unfinished run; pass --resume" in refused.stderr
    whole = tmp_path / "whole.dspp"
    for rest in (["--out", str(out), "--resume"], ["--out", str(whole)]):
        result = CliRunner().invoke(app, [*words, *rest], catch_exceptions=False)
        assert result.exit_code == 0, result.output
    assert same_bits(modelfile.load(out), modelfile.load(whole))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.dspp", "whole.dspp"]


def test_the_folder_of_a_run_that_goes_on_is_left_alone(table: Path, tmp_path: Path) -> None:
    """As when somebody resumes a run that was not interrupted, in another terminal."""
    out, checkpoint = tmp_path / "m.dspp", tmp_path / "m.dspp.checkpoint"
    words = ["fit", str(table), *shlex.split(FIT), "--epochs", "2000", "--jobs", "1", "--out", str(out)]
    refused = []

    def resume() -> None:
        for option in ("--resume", "--overwrite"):
            result = CliRunner().invoke(app, [*words, option])
            refused.append((result.exit_code, result.stderr))

    begun = checkpoint / "member-01.checkpoint"
    code, errors = stop(["1e9", *words], begun, signal.SIGTERM, meanwhile=resume)
    line = f"dspp: another process is writing {checkpoint}; wait until it ends, or choose another path\n"
    assert refused == [(2, line)] * 2
    assert code == 128 + signal.SIGTERM, errors
    assert "To resume: " in errors
    assert sorted(path.name for path in checkpoint.iterdir()) == ["identity", "member-01.checkpoint"]


@pytest.mark.parametrize(
    ("settings", "differs"),
    [
        ({"random_state": 1}, r"in the training settings \(seed: 0 in the checkpoint, 1 here\); resume"),
        ({"width": 3}, r"in the model settings \(width: 2 in the checkpoint, 3 here\); resume"),
        ({"epochs": 3}, r"in the training settings \(epochs: 2 in the checkpoint, 3 here\); resume"),
        ({"members": 3}, r"the members \(columns alone: 2 in the checkpoint, 3 here\); resume"),
        ({"time_budget": 1e6}, None),
        ({"table": X[::-1]}, "in the data; resume"),
        ({"table": X[:-1]}, "in the data; resume"),
    ],
)
def test_another_run_is_refused_before_training(
    settings: dict[str, Any], differs: str | None, interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Began(Exception):  # noqa: N818 - no error
        pass

    def begin(*given: Any, **more: Any) -> None:
        raise Began

    monkeypatch.setattr(run, "train_member", begin)
    table = settings.pop("table", X)
    model = DSPPRegressor(**TINY | {"members": 2, "checkpoint": interrupted} | settings)
    before = sorted(path.name for path in interrupted.iterdir())
    with pytest.raises(Began) if differs is None else pytest.raises(CheckpointError, match=differs):
        model.fit(table, Y[: len(table)])
    assert sorted(path.name for path in interrupted.iterdir()) == before


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("interrupted") / "run"
    begun = folder / "member-01.checkpoint"
    with pytest.raises(TrainingInterrupted):
        DSPPRegressor(**TINY, members=2, checkpoint=folder).fit(X, Y, should_stop=begun.exists)
    return folder


def test_folders_of_checkpoints_that_cannot_be_used(tmp_path: Path) -> None:
    settings = TINY | {"members": 2, "checkpoint": tmp_path / "run"}
    model = DSPPRegressor(**settings).fit(X, Y)
    names = ["identity", "member-01.checkpoint", "member-02.checkpoint"]
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == names
    with pytest.raises(CheckpointError, match="already exists"):
        DSPPRegressor(**settings).fit(X, Y, resume=False)
    assert same_bits(DSPPRegressor(**settings).fit(X, Y).fitted_, model.fitted_)
    with pytest.raises(CheckpointError, match="belongs to another run"):
        DSPPRegressor(**settings).fit(X, Y[::-1])
    with pytest.raises(CheckpointError, match="belongs to another run"):
        DSPPRegressor(**settings | {"random_state": 1}).fit(X, Y)
    (tmp_path / "run" / "notes.txt").write_text("of somebody else")
    with pytest.raises(CheckpointError, match=r"a folder of checkpoints, got one with 'notes\.txt'"):
        DSPPRegressor(**settings).fit(X, Y)
    (tmp_path / "run" / "notes.txt").unlink()
    (tmp_path / "file").write_text("of a single model")
    with pytest.raises(CheckpointError, match="of a single model; resume with members=1"):
        DSPPRegressor(**settings | {"checkpoint": tmp_path / "file"}).fit(X, Y)
    with pytest.raises(CheckpointError, match="is a folder, such as that of an ensemble"):
        DSPPRegressor(**settings | {"members": 1}).fit(X, Y)
    with pytest.raises(CheckpointError, match="cannot create"):
        DSPPRegressor(**settings | {"checkpoint": tmp_path / "no" / "folder"}).fit(X, Y)
    with pytest.raises(InputError, match="checkpoint"):
        DSPPRegressor(**settings | {"checkpoint": Path()}).fit(X, Y)

"""Progress: a bar on a terminal, lines of text in a log, silence where nobody asked."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dspp import PPGPRRegressor, progress
from dspp.cli import app
from dspp.progress import ProgressBar

TINY = ["--inducing", "5", "--width", "2", "--epochs", "3", "--restarts", "2"]


class Clock:
    """A clock that ticks once a second, each time it is read."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def test_a_line_every_five_seconds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 5.0)
    monkeypatch.setattr("time.perf_counter", Clock())
    with ProgressBar(100, True) as bar:
        for step in range(1, 101):
            bar.update(step, "training, epoch 12", rows=500, score=0.52)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert 30 <= len(lines) <= 40, "200 seconds, in steps of two"
    assert lines[0] == "training, epoch 12: 3 % done, NLL +0.520, 2:41 left"
    assert "\x1b" not in err


def test_later_steps_are_shown_at_once_and_are_part_of_the_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 5.0)
    monkeypatch.setattr("time.perf_counter", Clock())
    with ProgressBar(9, True, later=0.1) as bar:
        for step in range(1, 10):
            bar.update(step, "training")
        bar.step("scoring", 0.0)
        bar.step("writing the report", 0.5)
    said = [re.sub(", .* left", "", line) for line in capsys.readouterr().err.splitlines()]
    assert said[0] == "training: 30 % done"
    assert said[-3:] == ["scoring: 90 % done", "writing the report: 95 % done", "finished: 100 % done"]


def test_short_work_prints_no_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBar(1, True, later=0.1) as bar:
        bar.update(1, "training")
        bar.step("scoring")
    assert capsys.readouterr().err == ""


def test_lines_of_unknown_length_count_rows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with ProgressBar(None, True) as bar:
        bar.update(65_536, "predicting", rows=65_536)
    assert capsys.readouterr().err == "predicting: 65,536 rows\n"


@pytest.mark.parametrize("show", [False, None])
def test_silence_without_a_terminal_unless_asked(
    show: bool | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    X = np.random.default_rng(0).normal(size=(30, 2))
    PPGPRRegressor(inducing=5, epochs=2, restarts=1, progress=show).fit(X, X[:, 0])
    assert capsys.readouterr() == ("", "")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("progress") / "t.csv"
    rng = np.random.default_rng(0)
    path.write_text("a,y\n" + "".join(f"{a:.4f},{2 * a + 1:.4f}\n" for a in rng.normal(size=40)))
    return path


def run(*args: object) -> Any:
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=False)


def test_the_command_line_prints_lines_into_a_pipe(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    fit = ("fit", table, "--target", "y", "--members", "1", *TINY, "--out")
    shown = run(*fit, tmp_path / "m.dspp")
    assert shown.exit_code == 0
    assert re.search(r"^training, epoch 3: \d+ % done, NLL [+-]\d\.\d{3}, 0:00 left$", shown.stderr, re.MULTILINE)
    assert "% done" not in shown.stdout
    predicted = run("predict", tmp_path / "m.dspp", table, "--out", "-")
    assert predicted.stderr == "predicting: 40 rows\n"
    done = [int(share) for share in re.findall(r": +(\d+) % done", shown.stderr)]
    assert done == sorted(done)
    steps = ("scoring the held-out rows", f"writing {tmp_path / 'm.dspp'}", "finished")
    assert [line.split(":")[0] for line in shown.stderr.splitlines()][-3:] == list(steps)
    assert done[-1] == 100
    assert run("--quiet", *fit, tmp_path / "n.dspp").stderr == ""
    assert run("predict", "--quiet", tmp_path / "m.dspp", table, "--out", tmp_path / "p.csv").stderr == ""
    tuned = run("tune", table, "--target", "y", "--trials", "2", "--epochs", "2", "--out", tmp_path / "t.dspp")
    assert "trial 2 of 2: " in tuned.stderr

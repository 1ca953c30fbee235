"""Several processes train one model: the same numbers as one process, the same checkpoints, and no hanging."""

import json
import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import team_worker
import torch
from pyarrow import csv, parquet

from dspp.errors import InputError, NumericalError
from dspp.quadrature import Noise
from dspp.simulation import robot_arm
from dspp.training.processes import ProcessGroup
from dspp.training.rows import Rows
from dspp.training.step import score_together

WORKER = Path(__file__).with_name("team_worker.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def launch(processes: int, *words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
    command = [sys.executable, *launcher, *map(str, words)]
    return subprocess.run(command, env=ENVIRONMENT, cwd=cwd, capture_output=True, text=True, timeout=300)


def a_folder(path: Path) -> Path:
    for name in ("1", "2"):
        (path / name).mkdir()
    return path


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, Path]:
    """What two processes found, and the folder they left a checkpoint in."""
    out = a_folder(tmp_path_factory.mktemp("two"))
    team_worker.stopped(out)
    done = launch(2, WORKER, out, "parity", "unused", "spoilt", "stopped", "resumed")
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((out / "found.json").read_text()), out


def assert_same(ours: dict, theirs: dict, tolerance: float = 1e-6) -> None:
    assert ours["recoveries"] == theirs["recoveries"]
    np.testing.assert_allclose(ours["history"], theirs["history"], rtol=tolerance, atol=tolerance)  # NaN as NaN
    for name, value in ours["weights"].items():
        np.testing.assert_allclose(value, theirs["weights"][name], rtol=tolerance, atol=tolerance, err_msg=name)


def test_every_preset_learns_the_same_in_two_processes(two: tuple[dict, Path]) -> None:
    """52 steps in float64, batches of odd and even sizes, one output and two."""
    one, both = team_worker.parity(two[1]), two[0]["parity"]
    assert one.keys() == both.keys()
    for name in one:
        assert_same(both[name], one[name])


def test_a_parameter_without_a_gradient_stays_where_it_is(two: tuple[dict, Path]) -> None:
    one, both = team_worker.unused(two[1]), two[0]["unused"]
    for name in one:
        assert_same({**both[name], "history": []}, {**one[name], "history": []})  # there are no validation rows
        assert one[name]["weights"]["likelihood.sites"] == both[name]["weights"]["likelihood.sites"]


def test_a_checkpoint_goes_on_in_another_number_of_processes(two: tuple[dict, Path]) -> None:
    found, out = two
    whole = team_worker.whole(out)
    assert "resume from" in found["stopped"]["problem"]
    assert_same(found["resumed"], whole)
    assert_same(team_worker.resumed(out), whole)


def test_all_go_back_together_when_one_fails(two: tuple[dict, Path]) -> None:
    assert two[0]["spoilt"]["recoveries"] == 2
    assert np.isfinite(two[0]["spoilt"]["history"][-1]).all()


def test_a_lost_process_ends_the_others_and_leaves_the_checkpoint_good(tmp_path: Path) -> None:
    out, begin = a_folder(tmp_path), time.monotonic()
    done = launch(2, WORKER, out, "lost")
    assert done.returncode != 0
    assert time.monotonic() - begin < 60  # most of it starting Python
    said = (out / "lost").read_text()
    assert "another process of this run has ended" in said
    assert "resume from" in said
    assert_same(team_worker.resumed(out), team_worker.whole(out))


@pytest.mark.parametrize("source", ["arm.csv", "arm/*.parquet"])
def test_the_command_line_under_torchrun(tmp_path: Path, source: str) -> None:
    arm = robot_arm(200)
    table = pa.table({**{f"x{i}": column for i, column in enumerate(arm.X.T)}, "y": arm.y})
    csv.write_csv(table, tmp_path / "arm.csv")
    (tmp_path / "arm").mkdir()
    for part in range(2):
        parquet.write_table(table.slice(100 * part, 100), tmp_path / "arm" / f"{part}.parquet")
    small = shlex.split("--target y --members 1 --inducing 8 --width 2 --epochs 3 --restarts 1 --batch-size 40 --out")
    alone = launch(1, "-m", "dspp", "fit", source, *small, "one.dspp", cwd=tmp_path)
    both = launch(2, "-m", "dspp", "fit", source, *small, "two.dspp", cwd=tmp_path)
    assert both.returncode == 0, both.stderr[-3000:]
    said = [[line for line in run.stdout.splitlines() if "NLL" in line] for run in (alone, both)]
    assert said[0] == said[1] != []
    assert both.stdout.count("Model:  two.dspp") == 1  # the first process speaks for all
    assert sorted(p.name for p in tmp_path.iterdir()) == ["arm", "arm.csv", "one.dspp", "two.dspp"]


def test_a_wrong_command_under_torchrun_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "arm.csv").write_text("x,y\n1,2\n")
    wrong = launch(2, "-m", "dspp", "fit", "arm.csv", "--target", "z", "--out", "three.dspp", cwd=tmp_path)
    assert wrong.returncode != 0
    assert "dspp: arm.csv: expected a column 'z'" in wrong.stderr  # of each process: it may be one machine's problem
    assert "dspp/cli" not in wrong.stderr  # no traceback of ours; torchrun adds its own


def test_parts_cover_a_batch_and_draws_do_not_depend_on_them() -> None:
    for size in (1, 2, 3, 5):
        parts = [ProcessGroup(rank, size).part(17) for rank in range(size)]
        assert [row for part in parts for row in range(17)[part]] == list(range(17))
        assert max(len(range(17)[p]) for p in parts) - min(len(range(17)[p]) for p in parts) <= 1
    with pytest.raises(InputError, match="3 processes for 2 rows"):
        ProcessGroup(0, 3).part(2)

    def draw(part: slice) -> torch.Tensor:
        noise = Noise(torch.Generator().manual_seed(5), part.start, 17)
        like = torch.zeros(1, part.stop - part.start, 2)
        return torch.cat([noise.draw(4, like), noise.draw(3, like)])

    spread = torch.cat([draw(ProcessGroup(rank, 3).part(17)) for rank in range(3)], dim=1)
    assert torch.equal(spread, draw(slice(0, 17)))


@pytest.mark.parametrize("problem", [True, False])
def test_a_validation_that_fails_in_one_process_does_not_leave_the_others_waiting(problem: bool) -> None:
    """The others wait at `add` for a number of this process: it comes, and all see that it is none."""
    rows, said = Rows(torch.zeros(6, 2), torch.zeros(6, 1)), []

    class Half(ProcessGroup):
        def add(self, *numbers: float) -> list[float]:
            said.append(numbers)
            return [2 * number for number in numbers]  # the other half's is the same

    class Scores:
        def predictor(self) -> Callable[[torch.Tensor], object]:
            if problem:
                raise NumericalError("not positive definite")
            return lambda x: SimpleNamespace(log_prob=lambda y: torch.full_like(y, -1.5))

    if problem:
        with pytest.raises(NumericalError, match="NLL of 6 rows is nan"):
            score_together(Scores(), rows, group=Half(0, 2))
        assert math.isnan(said[0][0])
    else:
        assert score_together(Scores(), rows, group=Half(0, 2)) == pytest.approx(1.5)
    assert len(said) == 1

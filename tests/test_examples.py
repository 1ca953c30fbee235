"""The scripts in examples/ run as they stand there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.parametrize(
    ("members", "curves", "epochs"), [(1, {"train_nll", "val_nll"}, [2, 3]), (2, {"train_nll"}, [1, 2, 3])]
)
def test_training_is_tracked(members: int, curves: set[str], epochs: list[int], tmp_path: Path) -> None:
    file = tmp_path / "curves.jsonl"
    options = [str(file), "--members", str(members), "--epochs", "3"]
    command = [sys.executable, "-W", "error", str(EXAMPLES / "track_training.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert f"curves of {members} member(s)" in done.stdout
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    steps: dict[str, list[int]] = {}
    for line in lines:
        steps.setdefault(line["name"], []).append(line["step"])
    for k in range(1, members + 1):
        found = {name.partition("/")[2] for name in steps if name.startswith(f"member{k}/")}
        assert found == curves | {"objective", "learning_rate", "seconds"}
        assert all(steps[f"member{k}/{name}"] == epochs for name in found)
    assert {name for name in steps if "/" not in name} >= {"nll", "crps", "rmse", "coverage90"}

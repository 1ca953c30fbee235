"""What Linux has and other systems lack is not needed: simulated here by taking it away."""

import ast
import errno
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dspp import storage
from dspp.encoding import sampling
from dspp.engines import cores
from dspp.errors import ModelFileError

ROOT = Path(__file__).parents[1]
GUARDED = {"sched_getaffinity", "register_at_fork", "sysconf", "killpg"}  # used only where `hasattr(os, ...)` holds
POSIX_ONLY = {"preadv", "pread", "pwrite", "readv", "fork", "setsid", "mkfifo", "statvfs", "O_DIRECTORY"}
UNIX_MODULES = {"fcntl", "grp", "pwd", "resource", "termios", "tty", "pty", "syslog"}

ELSEWHERE = """
import errno, os, sys

# Other libraries have their own ways on other systems; here they keep what they find on this one.
import filelock, joblib, pyarrow.dataset, pyarrow.parquet, rich.console, safetensors.torch, scipy.stats
import sklearn.base, sklearn.utils.validation, tempfile, torch, typer

for name in ("preadv", "pread", "pwrite", "readv", "sched_getaffinity", "register_at_fork", "sysconf", "killpg"):
    delattr(os, name)
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
os.environ["DSPP_COMPILE"] = "0"  # it is compiled on POSIX systems only

open_file = os.open


def open_files_only(path, *given, **more):
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, "Permission denied")
    return open_file(path, *given, **more)


os.open = open_files_only

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import dspp
from dspp.cli import app

folder = sys.argv[1]
rng = np.random.default_rng(0)
x = rng.normal(size=(300, 2))
table = pa.table({"a": x[:, 0], "b": x[:, 1], "y": x[:, 0] + 0.1 * rng.normal(size=300)})
quick = {"inducing": 6, "epochs": 2, "restarts": 1, "progress": False}

model = dspp.DSPPRegressor(members=2, jobs=1, checkpoint=f"{folder}/kept", **quick).fit(x, table["y"].to_numpy())
model.save(f"{folder}/m.dspp")
loaded = dspp.load(f"{folder}/m.dspp")
assert np.array_equal(loaded.predict(x), model.predict(x))

pq.write_table(table, f"{folder}/rows.parquet")
rows = ds.dataset(f"{folder}/rows.parquet")
from_files = dspp.DSPPRegressor(members=1, **quick).fit(rows, "y")
assert np.isfinite(from_files.predict(x)).all()

for command in (
    ["fit", f"{folder}/rows.parquet", "--target", "y", "--out", f"{folder}/c.dspp", "--epochs", "1", "--members", "1"],
    ["predict", f"{folder}/c.dspp", f"{folder}/rows.parquet", "--out", f"{folder}/p.csv"],
):
    try:
        app(command)
    except SystemExit as done:
        assert not done.code, done.code
print("served")
"""


def test_a_system_without_what_linux_has_is_served(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("served\n")


def test_no_module_uses_what_only_unix_has() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
                assert node.attr not in POSIX_ONLY, f"{path}:{node.lineno}: os.{node.attr}"
                if node.attr in GUARDED:
                    assert f'hasattr(os, "{node.attr}")' in path.read_text(), f"{path}:{node.lineno}: os.{node.attr}"
            names = {a.name for a in node.names} if isinstance(node, ast.Import) else set()
            names |= {str(node.module)} if isinstance(node, ast.ImportFrom) else set()
            assert not names & UNIX_MODULES, f"{path}: {names}"


def test_the_number_of_cores_is_known_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    assert cores() == os.cpu_count()
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cores() == 1


def test_memory_is_infinite_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "sysconf", raising=False)
    monkeypatch.setattr(sampling, "MEMINFO", tmp_path / "absent")
    monkeypatch.setattr(sampling, "CGROUP", tmp_path / "absent")
    assert sampling.free_bytes() == sampling.default_limit() == math.inf
    (tmp_path / "limit").write_text("7900000000\n")
    monkeypatch.setattr(sampling, "CGROUP", tmp_path / "limit")
    assert (sampling.free_bytes(), sampling.default_limit()) == (7.9e9, 3e9)
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   4000000 kB\n")
    monkeypatch.setattr(sampling, "MEMINFO", tmp_path / "meminfo")
    assert sampling.free_bytes() == 4_096_000_000


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP])
def test_a_file_system_that_syncs_no_folders_is_served(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, calls = os.fsync, []

    def sync_files_only(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 2:
            raise OSError(number, os.strerror(number))
        sync(handle)

    monkeypatch.setattr(os, "fsync", sync_files_only)
    storage.write_bytes(tmp_path / "file", b"new", ModelFileError)
    assert (tmp_path / "file").read_bytes() == b"new"
    assert len(calls) == 2

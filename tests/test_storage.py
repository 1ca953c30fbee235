"""Files written whole or not at all: whatever fails, one complete file is there, and the message says which."""

import errno
import os
from pathlib import Path

import pytest

from dspp import storage
from dspp.errors import CheckpointError, ModelFileError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "file").write_bytes(b"old")
    return tmp_path / "file"


def test_a_block_that_ends_replaces_the_file_and_keeps_its_permissions(path: Path) -> None:
    path.chmod(0o640)
    with storage.open_atomic(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
        file.seek(0)
        assert file.read() == b"new"
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    with storage.open_atomic(path, mode=0o600) as file:
        file.write(b"private")
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == ["file"]


def test_a_symbolic_link_is_followed_and_stays(path: Path) -> None:
    (path.parent / "elsewhere").mkdir()
    link, new = path.parent / "elsewhere" / "link", path.parent / "elsewhere" / "new"
    link.symlink_to(Path("..") / "file")
    new.symlink_to(path.parent / "not yet")
    for there in (link, new):
        storage.write_bytes(there, b"new", ModelFileError)
        assert there.is_symlink()
        assert there.read_bytes() == b"new"
    assert path.read_bytes() == b"new"
    assert sorted(os.listdir(path.parent)) == ["elsewhere", "file", "not yet"]
    assert sorted(os.listdir(link.parent)) == ["link", "new"]


def test_what_is_not_a_regular_file_is_neither_replaced_nor_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    kinds = {"pipe": "a pipe", "folder": "a folder", "link": "a pipe", os.devnull: "a device"}
    for name, kind in kinds.items():
        before = (tmp_path / name).stat()
        with pytest.raises(ModelFileError, match=f"expected a regular file, got {kind}"):
            storage.write_bytes(tmp_path / name, b"new", ModelFileError)
        with pytest.raises(ModelFileError, match=f"{name} is {kind}, not a file"):
            storage.read_header(tmp_path / name, ModelFileError)
        assert (tmp_path / name).stat().st_ino == before.st_ino
    assert sorted(os.listdir(tmp_path)) == ["folder", "link", "pipe"]


@pytest.mark.parametrize("problem", [OSError(errno.EIO, "broken"), ValueError("no"), KeyboardInterrupt()])
def test_a_block_that_raises_leaves_the_file_and_nothing_else(path: Path, problem: BaseException) -> None:
    def write() -> None:
        with storage.open_atomic(path) as file:
            file.write(b"half")
            raise problem

    with pytest.raises(type(problem)):
        write()
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("call", ["write", "fsync", "chmod", "replace"])
def test_a_write_that_fails_says_that_the_file_is_unchanged(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def fail(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(ModelFileError, match=r"cannot write .*No space left on device; .*is unchanged"):
            storage.write_bytes(path, b"new", ModelFileError)
    assert path.read_bytes() == b"old"
    assert os.listdir(path.parent) == ["file"]


def test_a_folder_that_cannot_be_forced_to_disk_does_not_make_the_file_unchanged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync, calls = os.fsync, []

    def fail_second(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 2:
            raise OSError(errno.EIO, "Input/output error")
        sync(handle)

    monkeypatch.setattr(os, "fsync", fail_second)
    with pytest.raises(ModelFileError, match=r"the new file is in place, but .*Input/output error") as caught:
        storage.write_bytes(path, b"new", ModelFileError)
    assert "unchanged" not in str(caught.value)
    assert path.read_bytes() == b"new"


def test_a_system_that_opens_no_folders_is_served(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Windows."""
    original = os.open

    def open_files_only(name: str | Path, *given: int) -> int:
        if os.path.isdir(name):
            raise PermissionError(errno.EACCES, "Permission denied")
        return original(name, *given)

    monkeypatch.setattr(os, "open", open_files_only)
    storage.write_bytes(path, b"new", ModelFileError)
    assert path.read_bytes() == b"new"


def test_a_lock_is_held_by_one_and_leaves_nothing(path: Path) -> None:
    with storage.lock(path):
        with pytest.raises(CheckpointError, match=f"another process is writing {path}; wait"), storage.lock(path):
            pass
        assert sorted(os.listdir(path.parent)) == ["file", "file.lock"]
    assert os.listdir(path.parent) == ["file"]
    (path.parent / "file.lock").touch()  # as a killed process leaves it
    with storage.lock(path):
        pass
    assert os.listdir(path.parent) == ["file"]


def test_numbers_that_json_lacks_become_what_the_format_wants() -> None:
    value = {"a": (1, float("nan"), [float("inf")]), "b": "text", "c": None, "d": -float("inf")}
    assert storage.to_plain(value) == {"a": [1, "nan", ["inf"]], "b": "text", "c": None, "d": "-inf"}

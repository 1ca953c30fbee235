"""One writer at a time: a lock file that the system lets go of when its process dies, however it dies."""

import contextlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dspp.errors import CheckpointError


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock beside `path`, and clear away what writers that were killed have left there.

    Raises:
        CheckpointError: another process holds it, or the folder cannot be written.
    """
    lock = path.with_name(f"{path.name}.lock")
    handle = _lock(lock, path)
    try:
        _sweep(path)
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder may be gone
            lock.unlink()
        os.close(handle)


def _lock(lock: Path, path: Path) -> int:
    import fcntl  # not on Windows, where the rest of the package should still load

    while True:
        try:
            handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as problem:
            raise CheckpointError(
                f"cannot write {path}: {problem.strerror}; give a path in a folder that is there and can be written to"
            ) from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as problem:
            os.close(handle)
            if isinstance(problem, BlockingIOError):
                what = f"another process is writing {path}; wait until it has ended, or give another path"
            else:
                what = f"cannot lock {lock}: {problem.strerror}; give a path on another file system"
            raise CheckpointError(what) from None
        if _is_at(handle, lock):
            return handle
        os.close(handle)  # its last owner removed it in between: a lock that nobody else would see


def _is_at(handle: int, lock: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(lock))
    except FileNotFoundError:
        return False


def _sweep(path: Path) -> None:
    """Remove unfinished files: the lock is ours, so nobody is writing them."""
    unfinished = re.compile(re.escape(f".{path.name}.") + r"[a-z0-9_]{8}\.tmp")
    with contextlib.suppress(OSError):  # tidiness is not worth a run
        for file in path.parent.iterdir():
            if unfinished.fullmatch(file.name):
                file.unlink()

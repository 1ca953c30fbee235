"""One safe way to keep tensors: a safetensors file with a JSON header, written whole or not at all.

Model files, checkpoints and caches of rows use it. A write goes to a temporary file in the same folder, is forced to
disk, takes the name of the old file in one step, and the folder is forced to disk too: whenever the machine stops,
either the old file or the new one is there, complete. Reading executes nothing: the format has numbers and text only.
"""

import contextlib
import hashlib
import io
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import torch
from filelock import FileLock, Timeout
from safetensors.torch import save as to_bytes
from torch import Tensor

from dspp.errors import CheckpointError, InputError, ModelFileError

KEY = "dspp"  # the entry of the safetensors metadata that holds the JSON header
StorageError = type[ModelFileError] | type[CheckpointError] | type[InputError]


def write(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any], error: StorageError) -> None:
    """Write tensors and header to `path`, atomically.

    Raises:
        error: It could not be written; what was at `path` before is still there.
    """
    plain = {name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(header, allow_nan=False)
    write_bytes(Path(path), to_bytes(plain, metadata={KEY: text}), error)


def read(path: str | Path, error: StorageError) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the header of a file that `write` made.

    Raises:
        error: There is no such file, or it is not one of ours, or it is damaged.
    """
    with _open(Path(path), error) as (file, header):
        return {name: file.get_tensor(name).clone() for name in file.keys()}, header  # noqa: SIM118 - no mapping


@contextmanager
def _open(path: Path, error: StorageError) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The file, open, and its header."""
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise error(f"{path} {what}; check the path")
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            header = json.loads((file.metadata() or {})[KEY])
            if not isinstance(header, dict):
                raise TypeError("its header is no JSON object")
            yield file, header
    except (safetensors.SafetensorError, OSError, KeyError, ValueError, TypeError, RecursionError) as problem:
        reason = str(problem) or type(problem).__name__
        raise error(f"{path} is not a file that dspp wrote, or it is damaged ({reason:.200})") from None


def encode_start(header: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> bytes:
    """Return what stands in a file before its numbers, if they are one float32 tensor that is too large for memory."""
    entry = {"dtype": "F32", "shape": shape, "data_offsets": (0, 4 * math.prod(shape))}
    metadata = {KEY: json.dumps(header, allow_nan=False)}
    text = json.dumps({"__metadata__": metadata, name: entry}).encode()
    text += b" " * (-len(text) % 8)  # the numbers are aligned
    return len(text).to_bytes(8, "little") + text


def read_start(path: Path, name: str, error: StorageError) -> tuple[dict[str, Any], tuple[int, ...], int]:
    """Return the header of a file that begins with `encode_start`, the tensor's shape, and where its numbers begin.

    Raises:
        error: There is no such file, or it is not one of ours, or it is damaged.
    """
    with _open(path, error) as (file, header):
        tensor = file.get_slice(name)
        if tensor.get_dtype() != "F32":
            raise TypeError(f"{name} is {tensor.get_dtype()}, expected F32")
        shape = tuple(tensor.get_shape())
    with path.open("rb") as start:
        return header, shape, 8 + int.from_bytes(start.read(8), "little")


def digest(tensors: Mapping[str, Tensor], header: Any) -> str:
    """SHA-256 of the header and of every tensor's name, type, shape and bytes."""
    hasher = hashlib.sha256(json.dumps(header).encode())
    for name, tensor in sorted(tensors.items()):
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hasher.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def write_bytes(path: Path, content: bytes, error: StorageError) -> None:
    """Put `content` at `path` in one step.

    Raises:
        error: It could not be written; what was at `path` before is still there.
    """
    try:
        with open_atomic(path) as file:
            file.write(content)
    except FolderSyncError as problem:
        raise error(f"{path}: {problem.strerror}") from None
    except OSError as problem:
        raise error(
            f"cannot write {path}: {problem.strerror or problem}; the file that was there is unchanged"
        ) from None


def to_plain(value: Any, non_finite: Callable[[float], Any] = str) -> Any:
    """Return `value` as JSON has it.

    Args:
        value: numbers, text and None, in dicts, lists and tuples.
        non_finite: what to write for NaN and infinity, which JSON lacks; by default the text that `float` reads.
    """
    if isinstance(value, dict):
        return {key: to_plain(part, non_finite) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(part, non_finite) for part in value]
    return non_finite(value) if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------- files written whole or not at all


class FolderSyncError(OSError):
    """The file was replaced, but its folder could not be forced to disk."""


@contextmanager
def open_atomic(path: Path, mode: int | None = None) -> Iterator[io.BufferedRandom]:
    """Open a file to write and read that takes the name `path` when the block ends, and is removed if it raises.

    Args:
        path: where the file goes; what is there stays until then.
        mode: its permissions; None: those of the file that it replaces, or of any new file.

    Raises:
        FolderSyncError: the new file is at `path`, but a crash of the machine may bring back the old one.
        OSError: the file could not be written; what was at `path` before is still there.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    file = io.BufferedRandom(_File(handle, "r+b"))
    try:
        yield file
        file.flush()
        os.fsync(handle)
        os.chmod(temporary, _mode(path) if mode is None else mode)
        file.close()
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            file.close()  # which may try to write again what could not be written
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path)


class _File(io.FileIO):
    """A file whose writes, like all other calls here, go through `os`, where tests make each of them fail or crash."""

    def write(self, content: Any) -> int:
        return os.write(self.fileno(), content)


def _mode(path: Path) -> int:
    """The permissions of the old file, or those a new file would get (a temporary file is private)."""
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def _sync_folder(path: Path) -> None:
    try:
        handle = os.open(path.parent, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders
        return
    except OSError as problem:
        raise _not_synced(problem) from None
    try:
        os.fsync(handle)
    except OSError as problem:
        raise _not_synced(problem) from None
    finally:
        os.close(handle)


def _not_synced(problem: OSError) -> FolderSyncError:
    reason = problem.strerror or str(problem)
    return FolderSyncError(
        problem.errno,
        f"the new file is in place, but its folder could not be forced to disk ({reason}), so that a crash of the "
        "machine may bring back the old one",
    )


# ---------------------------------------------------------------- one writer at a time


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the lock beside `path`, and remove what writers that were killed have left there.

    The system lets go of the lock when its process dies, however it dies.

    Raises:
        CheckpointError: another process holds it, or the folder cannot be written.
    """
    file = path.with_name(f"{path.name}.lock")
    held = FileLock(file, blocking=False)
    where = "give a path in a folder that is there and can be written to"
    if not path.parent.is_dir():  # which filelock would make
        raise CheckpointError(f"cannot write {path}: there is no folder {path.parent}; {where}")
    try:
        held.acquire()
    except Timeout:
        if not file.exists():  # a file system such as /proc, which says that a new file does not exist
            raise CheckpointError(f"cannot write {path}: no file can be created beside it; {where}") from None
        raise CheckpointError(
            f"another process is writing {path}; wait until it has ended, or give another path"
        ) from None
    except OSError as problem:
        raise CheckpointError(f"cannot write {path}: {problem.strerror}; {where}") from None
    try:
        remove_unfinished(path)
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder may be gone
            file.unlink()  # while it is held: whoever opened it before notices that it has no name, and tries again
        held.release()


def remove_unfinished(path: Path) -> None:
    """Remove what killed writers of `path` have left; call this only while nobody else can be writing it."""
    unfinished = re.compile(re.escape(f".{path.name}.") + r"[a-z0-9_]{8}\.tmp")  # the names that mkstemp makes
    with contextlib.suppress(OSError):  # tidiness is not worth a run
        for file in path.parent.iterdir():
            if unfinished.fullmatch(file.name):
                file.unlink()

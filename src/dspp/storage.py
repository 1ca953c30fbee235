"""Storage of tensors: safetensors files with a JSON header, written atomically.

Model files and checkpoints use it. A write goes to a temporary file in the same folder, is synced to disk,
replaces the old file in one step, and then the folder is synced too: whenever the machine stops, either the old or the
new file exists, complete. Reading executes no code: the format holds only numbers and text.
"""

import contextlib
import errno
import hashlib
import io
import json
import math
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
from filelock import FileLock, Timeout

from dspp.errors import CheckpointError, InputError, ModelFileError

if TYPE_CHECKING:  # imported where it is needed: reading a header or a table is fast without
    from torch import Tensor

_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
_NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # from file systems that sync no folders
KEY = "dspp"  # entry of the safetensors metadata with the JSON header
DIGEST = "digest"  # its entry in the header
# JSON takes up to 30 times its size in memory, but no more than this many lists, objects and members of them.
MAX_HEADER_BYTES = 8_000_000
MAX_HEADER_VALUES = 400_000
StorageError = type[ModelFileError] | type[CheckpointError] | type[InputError]


def write(path: str | Path, tensors: Mapping[str, "Tensor"], header: Mapping[str, Any], error: StorageError) -> None:
    """Write tensors and header to `path`, atomically, with a digest of both.

    Raises:
        error: It could not be written, or could not be read again; the previous file is unchanged.
    """
    from safetensors.torch import save as to_bytes

    plain = {name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in tensors.items()}
    header = {name: value for name, value in header.items() if name != DIGEST}
    text = json.dumps(header | {DIGEST: digest(plain, header)}, allow_nan=False)
    content = to_bytes(plain, metadata={KEY: text})
    try:
        _check_header(content, len(content))
    except ValueError as problem:
        raise error(f"cannot write {path}: {problem}; nothing was written") from None
    write_bytes(Path(path), content, error)


def read(
    path: str | Path, error: StorageError, form: tuple[str, int] | None = None
) -> tuple[dict[str, "Tensor"], dict[str, Any]]:
    """Return the tensors and the header of a file written by `write`.

    Args:
        path: the file.
        error: what is raised.
        form: "format" and "version" that the header must have, which are left out of the result; None for any.

    Raises:
        error: The file does not exist, was not written by dspp, is of another format or version, or is damaged.
    """
    path = Path(path)
    with _open(path, error) as (file, header):
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - no mapping
    if form is not None:
        _check_format(path, header, *form, error)
    found = header.pop(DIGEST, None)
    if found != digest(tensors, header):  # with a flipped bit a model may work, but be wrong
        what = "is missing" if found is None else "does not match"
        remedy = "delete it to start afresh" if error is CheckpointError else "use another copy of it"
        raise error(f"{path} is damaged: its hash {what}; {remedy}")
    if form is not None:
        del header["format"], header["version"]
    return tensors, header


def read_header(path: str | Path, error: StorageError) -> dict[str, Any]:
    """Return the header of a file written by `write`, without reading its tensors or importing torch.

    Raises:
        error: The file does not exist, was not written by dspp, or is damaged.
    """
    with _open(Path(path), error, framework="np") as (_, header):
        return header


@contextmanager
def _open(path: Path, error: StorageError, framework: str = "pt") -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open a file and yield it with its header, whose size is checked before it is parsed."""
    if not path.is_file():
        what = f"is {_kind(path)}, not a file" if path.exists() else "does not exist"
        raise error(f"{path} {what}; check the path")
    try:
        with path.open("rb") as start:
            _check_header(start.read(8 + MAX_HEADER_BYTES), path.stat().st_size)
        with safetensors.safe_open(path, framework=framework, device="cpu") as file:
            header = json.loads((file.metadata() or {})[KEY])
            if not isinstance(header, dict):
                raise TypeError("its header is not a JSON object")
            yield file, header
    except (safetensors.SafetensorError, OSError, KeyError, ValueError, TypeError, RecursionError) as problem:
        reason = str(problem) or type(problem).__name__
        raise error(f"{path} was not written by dspp, or it is damaged ({reason:.200}); check the path") from None


def _check_format(path: Path, header: Mapping[str, Any], form: str, version: int, error: StorageError) -> None:
    found, number = header.get("format"), header.get("version")
    what, renew = "model file", "fit the model again"
    if error is CheckpointError:
        what, renew = "checkpoint", "delete it to start afresh"
    if found != form or type(number) is not int:
        raise error(f"{path} is not a {what} of dspp: expected the format {form!r}, got {str(found)[:50]!r}")
    if number != version:
        which, remedy = ("a later", "upgrade dspp") if number > version else ("an earlier", renew)
        raise error(f"{path} was written by {which} dspp (format {str(number)[:20]}, this reads {version}); {remedy}")


def count_values(text: bytes) -> int:
    """Return an upper bound on the number of JSON values, including brackets hidden by escapes in nested text."""
    lower = text.lower()
    return sum(lower.count(mark) for mark in (b"[", b"{", b",", rb"\u005b", rb"\u007b", rb"\u002c"))


def _check_header(start: bytes, size: int) -> None:
    """Raise `ValueError` if the header at the start of a file of this size is too large to be parsed."""
    length = int.from_bytes(start[:8], "little")
    if length > size:  # such as of text, whose first characters are read as a number
        raise ValueError("it may be truncated")
    values = count_values(start[8 : 8 + length])
    if length > MAX_HEADER_BYTES or values > MAX_HEADER_VALUES:
        raise ValueError(
            f"expected a header of at most {MAX_HEADER_BYTES} bytes and {MAX_HEADER_VALUES} values, got {length} and "
            f"{values}; use fewer columns or categories"
        )


def digest(tensors: Mapping[str, "Tensor"], header: Any) -> str:
    """Return the SHA-256 hash of the header and of every tensor's name, type, shape and bytes."""
    import torch

    hasher = hashlib.sha256(json.dumps(header).encode())
    for name, tensor in sorted(tensors.items()):
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hasher.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def write_bytes(path: Path, content: bytes, error: StorageError) -> None:
    """Write `content` to `path`, atomically.

    Raises:
        error: It could not be written; the previous file is unchanged.
    """
    try:
        with open_atomic(path) as file:
            file.write(content)
    except FolderSyncError as problem:
        raise error(f"{path}: {problem.strerror}") from None
    except OSError as problem:
        raise error(f"cannot write {path}: {problem.strerror or problem}; the previous file is unchanged") from None


def check_page_name(path: Path) -> None:
    """Raise `InputError` unless the name of a report that is to be written says that it is a web page."""
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(
            f"{path}: expected a file name ending in .html or .htm, as a report is a web page; for a PDF file, print "
            "the page in a browser"
        )


def to_plain(value: Any) -> Any:
    """Return numbers, text and None, in dicts, lists and tuples, as JSON values; NaN and infinity become text."""
    if isinstance(value, dict):
        return {key: to_plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------- atomic writes


class FolderSyncError(OSError):
    """The file was replaced, but its folder could not be synced to disk."""


def output_file(path: Path) -> Path:
    """Return the file that writing to `path` creates or replaces: for a symbolic link, the file it points to.

    Raises:
        OSError: what exists is not a regular file and would be lost, such as the device /dev/null, a pipe or a folder.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, f"expected a regular file, got {_kind(path)}")
    return Path(os.path.realpath(path))


def _kind(path: Path) -> str:
    """Return what exists at a path that is not a regular file."""
    return _KINDS.get(stat.S_IFMT(path.stat().st_mode), "a device")


@contextmanager
def open_atomic(path: Path, mode: int | None = None) -> Iterator[io.BufferedRandom]:
    """Open a temporary file that is renamed to `path` when the block ends, or removed if the block raises.

    Args:
        path: the file to create or replace; see `output_file`.
        mode: its permissions; None for those of the file it replaces, or of any new file.

    Raises:
        FolderSyncError: the new file is in place, but a crash of the machine may restore the old one.
        OSError: the file could not be written; the previous file is unchanged.
    """
    path = output_file(path)
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
            file.close()  # may fail again on what could not be written
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    try:
        _sync_folder(path.parent)
    except OSError as problem:
        raise FolderSyncError(
            problem.errno,
            f"the new file is in place, but its folder could not be synced to disk ({problem.strerror or problem}), so "
            "a crash of the machine may restore the old file",
        ) from None


class _File(io.FileIO):
    """A file whose writes, like all other calls here, go through `os`, where tests inject failures."""

    def write(self, content: Any) -> int:
        return os.write(self.fileno(), content)


def _mode(path: Path) -> int:
    """Return the permissions of the old file or of any new file; a temporary file would be private."""
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def _sync_folder(folder: Path) -> None:
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    except OSError as problem:
        if problem.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


# ---------------------------------------------------------------- one writer at a time


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold the lock file of `path`, and remove temporary files of killed writers.

    The system releases the lock when its process ends, however it ends.

    Raises:
        CheckpointError: another process holds it, or the folder is not writable.
    """
    file = path.with_name(f"{path.name}.lock")
    held = FileLock(file, blocking=False)
    where = "choose a path in an existing, writable folder"
    if not path.parent.is_dir():  # filelock would create it
        raise CheckpointError(f"cannot write {path}: the folder {path.parent} does not exist; {where}")
    try:
        held.acquire()
    except Timeout:
        if not file.exists():  # on a file system such as /proc, a new file does not exist
            raise CheckpointError(f"cannot write {path}: no file can be created beside it; {where}") from None
        raise CheckpointError(
            f"another process is writing {path}; wait until it ends, or choose another path"
        ) from None
    except OSError as problem:
        raise CheckpointError(f"cannot write {path}: {problem.strerror}; {where}") from None
    try:
        remove_unfinished(Path(os.path.realpath(path)))
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder may be gone
            file.unlink()  # while locked: a process that has it open notices that it is gone, and retries
        held.release()


def remove_unfinished(path: Path) -> None:
    """Remove temporary files of killed writers of `path`; call this only while no other process can write it."""
    unfinished = re.compile(re.escape(f".{path.name}.") + r"[a-z0-9_]{8}\.tmp")  # the names that mkstemp makes
    with contextlib.suppress(OSError):  # cleaning up is not worth a failure
        for file in path.parent.iterdir():
            if unfinished.fullmatch(file.name):
                file.unlink()

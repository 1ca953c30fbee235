"""One safe way to keep tensors: a safetensors file with a JSON header, written whole or not at all.

Model files and checkpoints both live on it. A write goes to a temporary file in the same folder, is forced to disk,
takes the name of the old file in one step, and the folder is forced to disk too: whenever the machine stops, either the
old file or the new one is there, complete. Reading executes nothing: the format has numbers and text only.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from dspp.errors import CheckpointError, ModelFileError

KEY = "dspp"  # the entry of the safetensors metadata that holds the JSON header
StorageError = type[ModelFileError] | type[CheckpointError]


def write(path: str | Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any], error: StorageError) -> None:
    """Write tensors and header to `path`, atomically.

    Raises:
        error: It could not be written; what was at `path` before is still there.
    """
    plain = {name: tensor.detach().to("cpu").contiguous().clone() for name, tensor in tensors.items()}
    text = json.dumps(header, allow_nan=False)
    replace(Path(path), to_bytes(plain, metadata={KEY: text}), error)


def read(path: str | Path, error: StorageError) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the header of a file that `write` made.

    Raises:
        error: There is no such file, or it is not one of ours, or it is damaged.
    """
    path = Path(path)
    if not path.is_file():
        what = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise error(f"{path} {what}; check the path")
    try:
        with safetensors.safe_open(path, framework="pt", device="cpu") as file:
            header = json.loads((file.metadata() or {})[KEY])
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - no mapping
    except (safetensors.SafetensorError, OSError, KeyError, ValueError, TypeError, RecursionError) as problem:
        reason = str(problem) or type(problem).__name__
        raise error(f"{path} is not a file that dspp wrote, or it is damaged ({reason:.200})") from None
    if not isinstance(header, dict):
        raise error(f"{path} is not a file that dspp wrote: its header is no JSON object")
    return tensors, header


def digest(tensors: Mapping[str, Tensor], header: Any) -> str:
    """SHA-256 of the header and of every tensor's name, type, shape and bytes."""
    hasher = hashlib.sha256(json.dumps(header).encode())
    for name, tensor in sorted(tensors.items()):
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hasher.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()


def replace(path: Path, content: bytes, error: StorageError) -> None:
    """Put `content` at `path` in one step, or raise `error` and leave what was there."""
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        try:
            _write_all(handle, content)
            os.fsync(handle)
        finally:
            os.close(handle)
        os.chmod(temporary, _mode(path))
        os.replace(temporary, path)
        temporary = None
        _sync_folder(path.parent)
    except OSError as problem:
        raise error(
            f"cannot write {path}: {problem.strerror or problem}; the file that was there is unchanged"
        ) from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def finite(tensors: Mapping[str, Tensor]) -> bool:
    """Whether every number is finite."""
    return all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values() if tensor.is_floating_point())


def _write_all(handle: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(handle, view) :]


def _mode(path: Path) -> int:
    """The permissions of the old file, or those a new file would get (a temporary file is private)."""
    try:
        return path.stat().st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

"""Encoded rows in a file: float32, one row after the other, then a description of what they are.

The file takes its name when it is complete, so that a cache is whole or not there.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float32

from dspp.errors import InputError

FORMAT: Final = "dspp rows 1"
END: Final = struct.Struct("<q8s")  # the length of the description, and what says that this is one
MAGIC: Final = b"dspprows"
LONGEST: Final = 1 << 28  # bytes of a description
CHUNK: Final = 1 << 22  # bytes hashed at once


@dataclass(frozen=True)
class RowCache:
    """A complete cache.

    Attributes:
        path: The file.
        num_rows: Of the table.
        num_inputs: Columns of x, which come first in a row.
        num_outputs: Columns of y.
        sha256: Of the rows.
        about: What else its writer wanted to be known.
    """

    path: Path
    num_rows: int
    num_inputs: int
    num_outputs: int
    sha256: str
    about: dict[str, Any]

    @property
    def row_bytes(self) -> int:
        """The length of a row."""
        return 4 * (self.num_inputs + self.num_outputs)

    @property
    def num_bytes(self) -> int:
        """The length of all rows."""
        return self.num_rows * self.row_bytes


def write_cache(
    path: Path,
    blocks: Iterable[Float32[np.ndarray, "n W"]],
    num_rows: int,
    num_inputs: int,
    num_outputs: int,
    about: dict[str, Any],
) -> RowCache:
    """Write rows as they come.

    Raises:
        InputError: The disk is full, the folder cannot be written, or there are not `num_rows` rows; nothing is left.
    """
    needed = 4 * num_rows * (num_inputs + num_outputs)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    _sweep(path)
    try:
        if shutil.disk_usage(path.parent).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _hold(handle)
            hasher, written = hashlib.sha256(), 0
            for block in blocks:
                content = np.ascontiguousarray(block, "<f4").view(np.uint8).reshape(-1).data
                hasher.update(content)
                _write(handle, content)
                written += len(block)
            if written != num_rows:
                raise InputError(f"the table changed while it was read: it has {written:,} rows and had {num_rows:,}")
            cache = RowCache(path, num_rows, num_inputs, num_outputs, hasher.hexdigest(), about)
            _write(handle, memoryview(_description(cache)))
            os.fsync(handle)
            os.replace(temporary, path)
        finally:
            os.close(handle)
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise InputError(
                f"{path} needs {needed:,} bytes, for which its disk has no room ({problem.strerror}); give the cache a "
                "folder on another disk"
            ) from None
        raise InputError(f"cannot write {path}: {problem.strerror}; give the cache another folder") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
    return cache


def find_cache(path: Path, about: dict[str, Any]) -> RowCache | None:
    """The cache at `path`, if there is one, it is undamaged, and what is known of it includes `about`."""
    try:
        with path.open("rb") as file:
            cache = _described(path, file.read, file.seek)
            file.seek(0)
            if cache is None or _sha256(file.read, cache.num_bytes) != cache.sha256:
                return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return cache if all(cache.about.get(name) == value for name, value in about.items()) else None


# ---------------------------------------------------------------- bytes


def _description(cache: RowCache) -> bytes:
    fields = {name: getattr(cache, name) for name in ("num_rows", "num_inputs", "num_outputs", "sha256", "about")}
    text = json.dumps({"format": FORMAT, **fields}).encode()
    return text + END.pack(len(text), MAGIC)


def _described(path: Path, read: Any, seek: Any) -> RowCache | None:
    size = seek(0, os.SEEK_END)
    seek(max(0, size - END.size))
    length, magic = END.unpack(read(END.size).rjust(END.size, b"\0"))
    if magic != MAGIC or not 0 < length <= min(LONGEST, size - END.size):
        return None
    seek(size - END.size - length)
    fields = json.loads(read(length))
    if fields.pop("format") != FORMAT:
        return None
    cache = RowCache(path, **fields)
    return cache if cache.num_bytes == size - END.size - length else None


def _sha256(read: Any, count: int) -> str:
    hasher = hashlib.sha256()
    while count and (content := read(min(CHUNK, count))):
        hasher.update(content)
        count -= len(content)
    return hasher.hexdigest()


def _write(handle: int, content: memoryview) -> None:
    while content:
        content = content[os.write(handle, content) :]


# ---------------------------------------------------------------- what killed writers have left


def _hold(handle: int) -> None:
    """Mark a file as being written; the system takes the mark away when the process dies, however it dies."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl  # not on Windows

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _sweep(path: Path) -> None:
    """Remove unfinished files that nobody is writing."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        for file in path.parent.glob(f".{path.name}.????????.tmp"):
            with file.open("rb") as opened:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.unlink()

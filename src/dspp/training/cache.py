"""Encoded rows in a file: a safetensors file of one float32 matrix, written row by row, with a header on what they are.

The file takes its name when it is complete, so that a cache is whole or not there.
"""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float32

from dspp import storage
from dspp.errors import CheckpointError, InputError

FORMAT: Final = "dspp rows"
VERSION: Final = 2  # 1 had a format of its own
ROWS: Final = "rows"  # the name of the matrix
UNKNOWN: Final = "0" * 64  # stands for a hash in the header until the rows are written


@dataclass(frozen=True)
class RowCache:
    """A complete cache.

    Attributes:
        path: The file.
        num_rows: Of the table.
        num_inputs: Columns of x, which come first in a row.
        num_outputs: Columns of y.
        offset: Where in the file the rows begin.
        sha256: Of the rows.
        about: What else its writer wanted to be known.
    """

    path: Path
    num_rows: int
    num_inputs: int
    num_outputs: int
    offset: int
    sha256: str
    about: dict[str, Any]

    @property
    def width(self) -> int:
        """How many numbers a row has."""
        return self.num_inputs + self.num_outputs

    @property
    def row_bytes(self) -> int:
        """The length of a row."""
        return 4 * self.width


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
    try:
        if shutil.disk_usage(path.parent).free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with _lock_if_free(path), storage.open_atomic(path, mode=0o600) as file:
            shape = (num_rows, num_inputs + num_outputs)
            offset = file.write(storage.encode_start(_header(num_inputs, num_outputs, UNKNOWN, about), ROWS, shape))
            hasher, written = hashlib.sha256(), 0
            for block in blocks:
                content = np.ascontiguousarray(block, "<f4").view(np.uint8).reshape(-1).data
                hasher.update(content)
                file.write(content)
                written += len(block)
            if written != num_rows:
                raise InputError(f"the table changed while it was read: it has {written:,} rows and had {num_rows:,}")
            sha256 = hasher.hexdigest()
            file.seek(0)  # what stands before the rows is as long with one hash as with another
            file.write(storage.encode_start(_header(num_inputs, num_outputs, sha256, about), ROWS, shape))
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise InputError(
                f"{path} needs {needed:,} bytes, for which its disk has no room ({problem.strerror}); give the cache a "
                "folder on another disk"
            ) from None
        raise InputError(f"cannot write {path}: {problem.strerror}; give the cache another folder") from None
    return RowCache(path, num_rows, num_inputs, num_outputs, offset, sha256, about)


def find_cache(path: Path, about: dict[str, Any]) -> RowCache | None:
    """The cache at `path`, if there is one, it is undamaged, and what is known of it includes `about`."""
    try:
        header, (num_rows, width), offset = storage.read_start(path, ROWS, InputError)
        fields = {name: header[name] for name in ("num_inputs", "num_outputs", "sha256", "about")}
        cache = RowCache(path, num_rows=num_rows, offset=offset, **fields)
        if header != _header(**fields) or width != cache.width:
            return None
        with path.open("rb") as file:
            file.seek(offset)
            if hashlib.file_digest(file, "sha256").hexdigest() != cache.sha256:
                return None
    except (InputError, OSError, ValueError, KeyError, TypeError):
        return None
    return cache if all(cache.about.get(name) == value for name, value in about.items()) else None


def _header(num_inputs: int, num_outputs: int, sha256: str, about: dict[str, Any]) -> dict[str, Any]:
    """What a cache says of its rows, with a hash over itself."""
    fields = {"num_inputs": num_inputs, "num_outputs": num_outputs, "sha256": sha256, "about": about}
    header = {"format": FORMAT, "version": VERSION, **fields}
    return {**header, "digest": storage.digest({}, header)}


@contextlib.contextmanager
def _lock_if_free(path: Path) -> Iterator[None]:
    """Be the one who removes what killed writers left; another that writes the same rows meanwhile does no harm."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(CheckpointError):
            stack.enter_context(storage.lock(path))
        yield

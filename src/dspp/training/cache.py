"""A cache of encoded rows: a safetensors file with one float32 matrix, written row by row, and a descriptive header.

The file gets its name only when it is complete, so a cache is either whole or absent.
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
UNKNOWN: Final = "0" * 64  # placeholder for the hash until the rows are written


@dataclass(frozen=True)
class RowCache:
    """A complete cache.

    Attributes:
        path: The file.
        num_rows: Number of rows.
        num_inputs: Number of columns of x, which come first in a row.
        num_outputs: Number of columns of y.
        offset: Byte at which the rows begin.
        sha256: Hash of the rows.
        about: Further information from the writer.
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
        """Numbers per row."""
        return self.num_inputs + self.num_outputs

    @property
    def row_bytes(self) -> int:
        """Bytes per row."""
        return 4 * self.width


def write_cache(
    path: Path,
    blocks: Iterable[Float32[np.ndarray, "n W"]],
    num_rows: int,
    num_inputs: int,
    num_outputs: int,
    about: dict[str, Any],
) -> RowCache:
    """Write blocks of rows as they arrive.

    Raises:
        InputError: The disk is full, the folder is not writable, or the number of rows is not `num_rows`. No file is
                left behind.
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
                raise InputError(
                    f"expected {num_rows:,} rows, got {written:,}: the table changed while it was being read"
                )
            sha256 = hasher.hexdigest()
            file.seek(0)  # the header has the same length with either hash
            file.write(storage.encode_start(_header(num_inputs, num_outputs, sha256, about), ROWS, shape))
    except OSError as problem:
        if problem.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise InputError(
                f"the cache {path} needs {needed:,} bytes, more than its disk has free ({problem.strerror}); choose a "
                "cache folder on another disk"
            ) from None
        raise InputError(f"cannot write {path}: {problem.strerror}; choose another cache folder") from None
    return RowCache(path, num_rows, num_inputs, num_outputs, offset, sha256, about)


def find_cache(path: Path, about: dict[str, Any]) -> RowCache | None:
    """Return the cache at `path` if it exists, is undamaged, and its information includes `about`."""
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
    """Return the header of a cache, with a digest of the header itself."""
    fields = {"num_inputs": num_inputs, "num_outputs": num_outputs, "sha256": sha256, "about": about}
    header = {"format": FORMAT, "version": VERSION, **fields}
    return {**header, "digest": storage.digest({}, header)}


@contextlib.contextmanager
def _lock_if_free(path: Path) -> Iterator[None]:
    """Lock `path` so that leftovers of killed writers are removed; a second writer of the same rows does no harm."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(CheckpointError):
            stack.enter_context(storage.lock(path))
        yield

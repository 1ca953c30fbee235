"""Downloads public files, verifies their git blob ids before parsing them, and keeps them as .npz in the cache."""

import gzip
import hashlib
import http.client
import os
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dspp.errors import InputError
from experiments.data.files import lock_folder, store
from experiments.data.sources import PUBLIC_URL, SOURCES, Source

MAX_BYTES = 100 * 2**20  # GitHub accepts no larger file, so a longer response is not ours
STALL_SECONDS = 30.0  # without a byte
TOTAL_SECONDS = 3600.0  # ends a server that sends slowly for ever
_CHUNK = 2**18


class DataMissing(InputError):  # noqa: N818 - the name says what happened
    """A data set is not on this machine and was not, or could not be, downloaded; the others can still run."""


def fetch(name: str, cache: Path, url: str | None = None, timeout: float = STALL_SECONDS) -> Path:
    """Download a public data set into the cache, unless another process has just done so; return its file.

    Args:
        name: One of `SOURCES` that has public files.
        cache: The folder to keep it in.
        url: Where NAME/data.csv.gz is found; by default $DSPP_DATA_URL or else the public repository.
        timeout: Seconds that the server may stay silent.

    Raises:
        DataMissing: The server does not return the file, or returns another one. Nothing is left in the cache.
        InputError: The cache cannot be written, or the address cannot be used.
    """
    source, base = SOURCES[name], _base(url)
    with lock_folder(cache):
        path = cache / f"{name}.npz"
        if not path.is_file():
            files = ((f"{base}/{name}/{file}", blob) for file, blob in source.blobs.items())
            try:
                parts = [_part(address, blob, source.inputs + 1, cache, timeout) for address, blob in files]
                arrays = _arrays(source, np.concatenate(parts))
            except DataMissing as problem:
                raise DataMissing(f"{name}: {problem}") from None
            store(path, arrays)
    return path


def blob_id(file: BinaryIO) -> str:
    """Return git's id of this content: sha1 of `blob SIZE`, a zero byte, and the bytes."""
    size = file.seek(0, os.SEEK_END)
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    file.seek(0)
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
    file.seek(0)
    return digest.hexdigest()


def _base(url: str | None) -> str:
    base = (url or os.environ.get("DSPP_DATA_URL") or PUBLIC_URL).rstrip("/")
    if urllib.parse.urlsplit(base).scheme not in ("http", "https", "file"):
        raise InputError(
            f"expected the address of a mirror, got {base!r}; give one that starts with https://, http:// or file://"
        )
    return base


def _part(address: str, blob: str, width: int, folder: Path, timeout: float) -> np.ndarray:
    """Return the numbers of one public file, parsed only if it is the expected file."""
    with tempfile.TemporaryFile(dir=folder) as file:  # nameless: nothing is left, even if the process is killed
        _stream(address, file, timeout)
        found = blob_id(file)
        if found != blob:
            raise DataMissing(
                f"{address}: expected git blob {blob[:12]}, got {found[:12]}, so it is not the file of SOURCES.md and "
                "nothing was kept; try again or use another mirror ($DSPP_DATA_URL)"
            )
        return _parse(address, file, width)


def _stream(address: str, file: BinaryIO, timeout: float) -> None:
    """Copy the whole response to `file`, or raise an error."""
    try:
        with urllib.request.urlopen(address, timeout=timeout) as answer:
            expected = answer.headers.get("Content-Length")
            problem = _copy(answer, file)
    except urllib.error.HTTPError as error:
        error.close()
        problem = f"the server answers {error.code} {error.reason}"
    except (OSError, http.client.HTTPException, ValueError) as error:
        problem = f"cannot be fetched ({getattr(error, 'reason', None) or str(error) or type(error).__name__})"
    if problem is None and expected not in (None, str(file.tell())):
        problem = f"ended after {file.tell()} of {expected} bytes"
    if problem is not None:
        raise DataMissing(f"{address}: {problem}; try again, or put the data set into a folder given by --data")


def _copy(answer: BinaryIO, file: BinaryIO) -> str | None:
    """Copy until the response ends, or return why it was cut off."""
    end = time.monotonic() + TOTAL_SECONDS
    while chunk := answer.read1(_CHUNK):  # type: ignore[attr-defined]  # what has arrived, not a full chunk
        file.write(chunk)
        if file.tell() > MAX_BYTES:
            return f"more than {MAX_BYTES} bytes, so not the file of SOURCES.md"
        if time.monotonic() > end:
            return f"not done after {TOTAL_SECONDS:g} s"
    return None


def _parse(address: str, file: BinaryIO, width: int) -> np.ndarray:
    try:
        with gzip.open(file, "rt", encoding="ascii") as text:
            table: np.ndarray = np.loadtxt(text, delimiter=",", ndmin=2, comments=None)
    except (OSError, EOFError, ValueError, zlib.error) as problem:
        raise DataMissing(f"{address}: expected a gzip file of comma-separated numbers ({problem})") from None
    if table.shape[1] != width:
        raise DataMissing(f"{address}: expected {width} columns (the inputs, then the target), got {table.shape[1]}")
    return table


def _arrays(source: Source, table: np.ndarray) -> dict[str, np.ndarray]:
    """Return X and y in single precision, as in the shared files: the same numbers from every source."""
    rows = source.public_rows or source.rows
    with np.errstate(over="ignore"):
        table = table.astype(np.float32)
    if len(table) != rows or not np.isfinite(table).all():
        raise DataMissing(f"expected {rows} rows of finite numbers in the public file, got {len(table)} rows")
    return {"X": table[:, :-1], "y": table[:, -1]}

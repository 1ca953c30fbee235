"""The public files: streamed, held against their git blob ids before anything parses them, kept as .npz in the cache."""

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
from experiments.data.files import locked, store
from experiments.data.sources import PUBLIC_URL, SOURCES, Source

MAX_BYTES = 100 * 2**20  # GitHub takes no larger file, so a longer answer is not ours
STALL_SECONDS = 30.0  # without a byte
TOTAL_SECONDS = 3600.0  # a server that drips must end too
_CHUNK = 2**18


class DataMissing(InputError):
    """A data set that is not on this machine and was not, or could not be, downloaded: the others can still run."""


def download(name: str, cache: Path, url: str | None = None, timeout: float = STALL_SECONDS) -> Path:
    """Fetch a public data set into the cache, unless another process has just done it; return its file.

    Args:
        name: One of `SOURCES` that has public files.
        cache: The folder to keep it in.
        url: Where NAME/data.csv.gz is found; else $DSPP_DATA_URL, else the public repository.
        timeout: Seconds the server may keep still.

    Raises:
        DataMissing: The server does not give the file, or gives another one. Nothing is left in the cache.
        InputError: The cache cannot be written, or the address cannot be used.
    """
    source, base = SOURCES[name], _base(url)
    with locked(cache):
        path = cache / f"{name}.npz"
        if not path.is_file():
            parts = [_part(f"{base}/{name}/{file}", blob, cache, timeout) for file, blob in source.blobs.items()]
            store(path, _arrays(name, source, np.concatenate(parts)))
    return path


def blob_id(file: BinaryIO) -> str:
    """The id git gives to this content: sha1 of `blob SIZE`, a zero byte, and the bytes."""
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
        raise InputError(f"{base!r} is no address of a mirror; give one that starts with https://, http:// or file://")
    return base


def _part(address: str, blob: str, folder: Path, timeout: float) -> np.ndarray:
    """The numbers of one public file, parsed only if it is the file that was meant."""
    with tempfile.TemporaryFile(dir=folder) as file:  # nameless: nothing is left, even of a process that is killed
        _fetch(address, file, timeout)
        found = blob_id(file)
        if found != blob:
            raise DataMissing(
                f"{address}: git blob {found[:12]}, expected {blob[:12]}; it is not the file of SOURCES.md, "
                "nothing was kept; try again or use another mirror ($DSPP_DATA_URL)"
            )
        return _parse(address, file)


def _fetch(address: str, file: BinaryIO, timeout: float) -> None:
    """Copy what the server gives to `file`."""
    end = time.monotonic() + TOTAL_SECONDS
    advice = "try again, or put the set into a folder named by --data"
    try:
        with urllib.request.urlopen(address, timeout=timeout) as answer:
            expected = answer.headers.get("Content-Length")
            while chunk := answer.read1(_CHUNK) if hasattr(answer, "read1") else answer.read(_CHUNK):
                file.write(chunk)
                if file.tell() > MAX_BYTES:
                    raise DataMissing(f"{address}: more than {MAX_BYTES} bytes, so not the file of SOURCES.md")
                if time.monotonic() > end:
                    raise DataMissing(f"{address}: not done after {TOTAL_SECONDS:g} s; {advice}")
    except urllib.error.HTTPError as problem:
        problem.close()
        raise DataMissing(f"{address}: the server answers {problem.code} {problem.reason}; {advice}") from None
    except (OSError, http.client.HTTPException, ValueError) as problem:
        reason = getattr(problem, "reason", None) or str(problem) or type(problem).__name__
        raise DataMissing(f"{address}: cannot be fetched ({reason}); {advice}") from None
    if expected is not None and file.tell() != int(expected):
        raise DataMissing(f"{address}: ended after {file.tell()} of {expected} bytes; {advice}")


def _parse(address: str, file: BinaryIO) -> np.ndarray:
    try:
        with gzip.open(file, "rt", encoding="ascii") as text:
            table: np.ndarray = np.loadtxt(text, delimiter=",", ndmin=2, comments=None)
    except (OSError, EOFError, ValueError, zlib.error) as problem:
        raise DataMissing(f"{address}: no gzip file of comma-separated numbers ({problem})") from None
    return table


def _arrays(name: str, source: Source, table: np.ndarray) -> dict[str, np.ndarray]:
    """X and y, in single precision as in the files that are handed round: the same numbers wherever they come from."""
    expected = (source.public_rows or source.rows, source.width)
    if table.shape != expected:
        raise DataMissing(f"{name}: the public file has {table.shape} numbers, expected {expected}")
    table = table.astype(np.float32)
    return {"X": table[:, :-1], "y": table[:, -1]}

"""Reads data files after checking them against `SHA256SUMS`, and writes them atomically.

The lines of `SHA256SUMS` are those of sha256sum, `HEX  NAME.npz`. If a name occurs twice, the last line counts, so
`sha256sum NAME.npz >> SHA256SUMS` always works.
"""

import contextlib
import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from dspp.errors import InputError
from dspp.storage import open_atomic, remove_unfinished

SUMS = "SHA256SUMS"
_LINE = re.compile(r"([0-9a-fA-F]{64}) [ *](?:\./)?(.+)")


def read_verified(path: Path, known: str | None = None) -> tuple[bytes, str]:
    """Return the content of a file and its sha256, verified against its folder's `SHA256SUMS` or else `known`.

    Raises:
        InputError: The file cannot be read, has another checksum, or there is no checksum to compare with.
    """
    try:
        content = path.read_bytes()  # read once: what was hashed is what is parsed
    except OSError as problem:
        raise InputError(f"{path}: cannot be read ({problem.strerror or problem}); check its permissions") from None
    found = hashlib.sha256(content).hexdigest()
    line = read_sums(path.parent).get(path.name)
    expected = line or known
    trust = f"`cd {shlex.quote(str(path.parent))} && sha256sum {path.name} >> {SUMS}`"
    if expected is None:
        raise InputError(f"{path}: no checksum to verify it with (its sha256 is {found}); if you trust it, run {trust}")
    if found != expected:
        where = f"{SUMS} in its folder" if line else "the table of known files"
        raise InputError(
            f"{path}: expected sha256 {expected[:12]} from {where}, got {found[:12]}: the file was changed or damaged; "
            f"download it again or, if you trust it, run {trust}"
        )
    return content, found


def read_sums(folder: Path) -> dict[str, str]:
    """Return sha256 by file name from the folder's `SHA256SUMS`; empty if it has none."""
    try:
        text = (folder / SUMS).read_text(errors="replace")
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise InputError(
            f"{folder / SUMS}: cannot be read ({problem.strerror or problem}); check its permissions"
        ) from None
    matches = (_LINE.fullmatch(line.rstrip()) for line in text.splitlines())
    return {match[2]: match[1].lower() for match in matches if match}


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Create the folder if needed, and lock it against other processes; the lock ends with its process.

    Raises:
        InputError: The folder cannot be written to, here or in the body of the `with` statement.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            yield
    except OSError as problem:
        raise InputError(f"cannot write to {folder}: {problem.strerror or problem}; choose another folder") from None


def store(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write `path` and its line in `SHA256SUMS`, each atomically; the caller holds the lock of the folder.

    The line is written first: a process that dies in between leaves an extra line, never a file without a checksum.
    """
    members: dict[str, Any] = dict(arrays)  # savez_compressed has a keyword of another type
    for written in (path, path.parent / SUMS):
        remove_unfinished(written)
    with open_atomic(path) as file:
        np.savez_compressed(file, **members)
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        sums = {**read_sums(path.parent), path.name: sha256}
        with open_atomic(path.parent / SUMS) as lines:
            lines.writelines(f"{sums[name]}  {name}\n".encode() for name in sorted(sums))

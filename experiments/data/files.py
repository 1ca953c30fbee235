"""Files that are checked before they are opened and written whole or not at all, with `SHA256SUMS` to vouch for them.

The lines of `SHA256SUMS` are those of sha256sum, `HEX  NAME.npz`; where a name stands twice, the last line counts, so
that `sha256sum NAME.npz >> SHA256SUMS` always helps.
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


def checked_bytes(path: Path, known: str | None = None) -> tuple[bytes, str]:
    """The content of a file and its sha256, once its folder's `SHA256SUMS`, or else `known`, has vouched for it.

    Raises:
        InputError: It cannot be read, has another checksum, or there is none to hold it against.
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
        raise InputError(f"{path}: no checksum vouches for it (found sha256 {found}); if you trust it: {trust}")
    if found != expected:
        who = f"{SUMS} beside it" if line else "the table of known files"
        raise InputError(
            f"{path}: sha256 {found[:12]}, but {who} says {expected[:12]}; the file was changed or damaged, "
            f"get it anew or, if you trust it: {trust}"
        )
    return content, found


def read_sums(folder: Path) -> dict[str, str]:
    """File name -> sha256, from the folder's `SHA256SUMS`; empty if it has none."""
    try:
        text = (folder / SUMS).read_text(errors="replace")
    except FileNotFoundError:
        return {}
    except OSError as problem:
        raise InputError(f"{folder / SUMS}: cannot be read ({problem.strerror or problem})") from None
    matches = (_LINE.fullmatch(line.rstrip()) for line in text.splitlines())
    return {match[2]: match[1].lower() for match in matches if match}


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder and be the only process that writes to it; the lock dies with the process that holds it.

    Raises:
        InputError: The folder cannot be written to, here or by what is done inside.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            yield
    except OSError as problem:
        raise InputError(f"cannot write to {folder}: {problem.strerror or problem}; choose another folder") from None


def store(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write `path` and its line of `SHA256SUMS`, each in one step; the caller holds the lock of the folder.

    The line comes first: a process that dies in between leaves a line too many, never a file that nobody vouches for.
    """
    members: dict[str, Any] = dict(arrays)  # numpy has a keyword of another type
    for written in (path, path.parent / SUMS):
        remove_unfinished(written)
    with open_atomic(path) as file:
        np.savez_compressed(file, **members)
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        sums = {**read_sums(path.parent), path.name: sha256}
        with open_atomic(path.parent / SUMS) as lines:
            lines.writelines(f"{sums[name]}  {name}\n".encode() for name in sorted(sums))

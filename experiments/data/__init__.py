"""Find, check, download and load the paper's data sets.

A data set is a file NAME.npz with the arrays X, y (or Y for several outputs) and, for robots, traj. These places are
searched in order: the given folder (`--data`), $DSPP_DATA, ../shared/data next to the repository, and the cache
($DSPP_CACHE, by default ~/.cache/dspp/data). Files are hashed before numpy opens them. `python -m experiments.data`
lists all data sets.
"""

import io
import os
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dspp.errors import InputError
from experiments.data.download import STALL_SECONDS, DataMissing, fetch
from experiments.data.files import read_verified
from experiments.data.sources import QUADRATURE, ROBOTICS, SOURCES, UNIVARIATE, Source, how_to_get

__all__ = ["QUADRATURE", "ROBOTICS", "UNIVARIATE", "DataMissing", "DataSet", "find", "load", "places"]

CACHE = "the cache"  # its name in reports


@dataclass(frozen=True)
class DataSet:
    """A table as it was published: nothing standardised, nothing left out."""

    name: str
    X: np.ndarray  # (N, D)
    y: np.ndarray  # (N,) or (N, T)
    groups: np.ndarray | None  # (N,) the trajectory of each row, if there are any
    sha256: str  # of the file it was read from
    origin: str  # where it came from, in one phrase


def load(
    name: str,
    folder: Path | None = None,
    download: bool = False,
    *,
    url: str | None = None,
    timeout: float = STALL_SECONDS,
) -> DataSet:
    """Load one data set; its file is verified before it is opened.

    Args:
        name: Name of the data set: one of `UNIVARIATE` or `ROBOTICS`, or that of your own file NAME.npz.
        folder: Folder to search first.
        download: Whether to download a missing public data set into the cache.
        url: Mirror to download from; by default $DSPP_DATA_URL or else the public repository.
        timeout: Seconds that a server may stay silent.

    Raises:
        DataMissing: The data set is not on this machine and was not downloaded.
        InputError: The file does not match its checksum, or is not a table of finite numbers.
    """
    found = find(name, folder)
    if found is None and download and name in SOURCES and SOURCES[name].blobs:
        found = CACHE, fetch(name, cache_folder(), url, timeout)
    if found is None:
        raise DataMissing(_missing(name, folder))
    label, path = found
    source = SOURCES.get(name)
    content, sha256 = read_verified(path, source.sha256 if source else None)
    X, y, groups = _arrays(path, content)
    if source:
        _check_width(path, X, y, source)
    return DataSet(name, X, y, groups, sha256, _origin(source, sha256, label))


def find(name: str, folder: Path | None = None) -> tuple[str, Path] | None:
    """Return the name of the place where a data set is, and its file; None if it was not found."""
    if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        raise InputError(f"{name!r} is not a name of a data set; choose from: {', '.join(SOURCES)}")
    for label, place in places(folder).items():
        if (path := place / f"{name}.npz").is_file():
            return label, path
    return None


def places(folder: Path | None = None) -> dict[str, Path]:
    """Return the folders to search, in order, by their name in reports.

    Raises:
        InputError: `folder` or $DSPP_DATA is not a folder; silently searching elsewhere would hide a mistake.
    """
    asked = {"--data": folder, "$DSPP_DATA": os.environ.get("DSPP_DATA") or None}
    chosen = {label: Path(place).expanduser() for label, place in asked.items() if place is not None}
    for label, place in chosen.items():
        if not place.is_dir():
            raise InputError(f"{label}: {place} is not a folder; check the path")
    shared = Path(__file__).resolve().parents[3] / "shared" / "data"
    return {**chosen, "../shared/data": shared, CACHE: cache_folder()}


def cache_folder() -> Path:
    """Return the folder where downloads are kept."""
    if own := os.environ.get("DSPP_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dspp" / "data"


def _missing(name: str, folder: Path | None) -> str:
    looked = ", ".join(f"{label} ({place})" for label, place in places(folder).items())
    return f"{name}: no {name}.npz in {looked}; {how_to_get(name)}"


def _origin(source: Source | None, sha256: str, label: str) -> str:
    if source and sha256 == source.sha256:
        return source.origin
    if source and source.blobs and label == CACHE:
        return source.public_origin
    return f"a file in {label}, verified by SHA256SUMS there"


def _arrays(path: Path, content: bytes) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Return the checked X, y and traj of an .npz file; nothing else in it is read."""
    from dspp.table.checks import check_X, check_y  # imports torch, which listing data sets does not need

    members = _members(path, content)
    targets = [key for key in ("y", "Y") if key in members]
    if "X" not in members or len(targets) != 1:
        got = ", ".join(members) or "none of these"
        raise InputError(f"{path}: expected the arrays X and either y or Y, got {got}; save it again with these names")
    try:
        X = check_X(members["X"])
        y = check_y(members[targets[0]], len(X))
    except InputError as problem:
        raise InputError(f"{path}: {problem}") from None
    return X, y, _groups(path, members.get("traj"), len(X))


def _members(path: Path, content: bytes) -> dict[str, np.ndarray]:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            return {key: file[key] for key in ("X", "y", "Y", "traj") if key in file}
    except Exception as problem:  # whatever numpy and zipfile raise on a file of another format
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise InputError(f"{path}: expected an .npz file of plain arrays ({reason:.150}); download it again") from None


def _groups(path: Path, traj: np.ndarray | None, rows: int) -> np.ndarray | None:
    if traj is None:
        return None
    if traj.shape != (rows,) or traj.dtype.kind not in "iu":
        raise InputError(f"{path}: traj: expected {rows} whole numbers, got {traj.dtype} of shape {traj.shape}")
    return traj.astype(np.int64)


def _check_width(path: Path, X: np.ndarray, y: np.ndarray, source: Source) -> None:
    """Check the columns of a known data set; its rows may differ (houseelectric, or a simulator that was run again)."""
    outputs = (source.outputs,) if source.outputs > 1 else ()
    if X.shape[1] != source.inputs or y.shape[1:] != outputs:
        raise InputError(
            f"{path}: expected {source.inputs} inputs and {source.outputs} output(s), got X of shape {X.shape} "
            f"and y of shape {y.shape}; use another name for another data set"
        )

"""Adds a data set from a file that you have: a .mat, .npy or .csv table becomes NAME.npz in the cache."""

from pathlib import Path

import numpy as np

from dspp.errors import InputError
from experiments.data.files import lock_folder, store
from experiments.data.sources import SOURCES, Source

SUFFIXES = (".mat", ".npy", ".csv", ".csv.gz")


def add(name: str, file: Path, cache: Path) -> Path:
    """Convert a table of numbers, whose columns are the inputs and then the outputs; return the new file.

    Args:
        name: A known data set.
        file: The table, with one of the endings in `SUFFIXES`. A .mat file has a single matrix.
        cache: The folder to keep the data set in, where its checksum is written as well.

    Raises:
        InputError: The name is unknown, the file is not a table of finite numbers of the expected shape, or the cache
            already has this data set.
    """
    if name not in SOURCES:
        raise InputError(f"{name!r} is not a name of a data set; choose from: {', '.join(SOURCES)}")
    table = _read(file)
    _check_shape(file, table, SOURCES[name])
    X, y = np.split(table.astype(np.float32), [SOURCES[name].inputs], axis=1)
    if not (np.isfinite(X).all() and np.isfinite(y).all()):
        raise InputError(f"{file}: expected finite numbers in single precision; remove rows with missing values")
    path = cache / f"{name}.npz"
    with lock_folder(cache):
        if path.is_file():
            raise InputError(f"{path} already exists; remove it to add {name} again")
        store(path, {"X": X, "y": y[:, 0]} if y.shape[1] == 1 else {"X": X, "Y": y})
    return path


def _read(file: Path) -> np.ndarray:
    """Return the only matrix of a file; nothing in it is executed."""
    if not file.name.endswith(SUFFIXES):
        raise InputError(f"{file}: expected a file that ends in {', '.join(SUFFIXES)}; convert it to one of these")
    if not file.is_file():
        raise InputError(f"{file}: there is no such file; check the path")
    try:
        if file.suffix == ".mat":
            return _read_mat(file)
        if file.suffix == ".npy":
            return np.asarray(np.load(file, allow_pickle=False))
        return np.loadtxt(file, delimiter=",", ndmin=2, comments=None)
    except OSError as problem:
        raise InputError(f"{file}: cannot be read ({problem.strerror or problem}); check its permissions") from None
    except (ValueError, NotImplementedError, EOFError) as problem:
        raise InputError(f"{file}: expected a table of numbers ({str(problem).splitlines()[0]:.150})") from None


def _read_mat(file: Path) -> np.ndarray:
    from scipy.io import loadmat

    found = {key: value for key, value in loadmat(file).items() if not key.startswith("__")}
    if len(found) != 1:
        raise ValueError(f"it has {len(found)} variables: {', '.join(found)}; save one of them")
    return np.asarray(next(iter(found.values())))


def _check_shape(file: Path, table: np.ndarray, source: Source) -> None:
    width, allowed = source.inputs + source.outputs, {source.rows, source.public_rows or 0} - {0}
    rows = " or ".join(f"{count:,}" for count in sorted(allowed)) or "any number of"
    fits = table.ndim == 2 and table.shape[1] == width and (not allowed or len(table) in allowed)
    if not fits or table.dtype.kind not in "fiu":
        raise InputError(
            f"{file}: expected {rows} rows of {width} numbers, {source.inputs} input(s) and then {source.outputs} "
            f"output(s), got {table.dtype} of shape {table.shape}; check that it is the right file"
        )

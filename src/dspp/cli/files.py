"""Tables on standard input, and checks of column names and output files."""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dspp.errors import DsppError, InputError, ModelFileError
from dspp.table.messages import check_exists, closest

if TYPE_CHECKING:
    from dspp.table.table import FileTable

STDIN = Path("-")
_MAGIC = {b"PAR1": ".parquet", b"ARROW1": ".arrow", b"\x1f\x8b": ".csv.gz"}  # the first bytes of files that are not CSV


# ---------------------------------------------------------------- tables


def source_name(path: Path) -> str:
    """Return what to call an input."""
    return "standard input" if path == STDIN else str(path)


@contextmanager
def stdin_as_file(*paths: Path | None) -> Iterator[list[Path | None]]:
    """Yield the paths with `-` replaced by a temporary copy of standard input, which errors do not mention.

    Tables are read more than once: to learn their columns, for their rows, and for the line of an error.
    """
    if STDIN not in paths:
        yield list(paths)
        return
    if paths.count(STDIN) > 1:
        raise InputError("expected one table on standard input, got - twice; pass a file for one of them")
    with tempfile.TemporaryDirectory(prefix="dspp-") as folder:
        copy = _copy_stdin(Path(folder))
        try:
            yield [copy if path == STDIN else path for path in paths]
        except DsppError as problem:
            raise type(problem)(str(problem).replace(str(copy), source_name(STDIN))) from problem


def _copy_stdin(folder: Path) -> Path:
    """Copy standard input to a file whose suffix says what it contains."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError("standard input: expected a file, since several processes read the table; pass its path")
    if sys.stdin.isatty():
        raise InputError(
            "standard input: expected a table, got a terminal; pipe one into this command, as in cat new.csv | dspp ..."
        )
    start = sys.stdin.buffer.read(8)
    suffix = next((suffix for magic, suffix in _MAGIC.items() if start.startswith(magic)), ".csv")
    path = folder / f"stdin{suffix}"
    with path.open("wb") as file:
        file.write(start)
        shutil.copyfileobj(sys.stdin.buffer, file)
    return path


def open_input(path: Path, marks: tuple[str | None, str]) -> "FileTable":
    """Open a table with the separator and the decimal mark of `csv_marks`, which only CSV files allow."""
    from dspp.table.csvfile import CsvFile, CsvFormat
    from dspp.table.files import open_table

    written = CsvFormat(*marks)
    file = open_table(path, written)
    if not isinstance(file, CsvFile) and written != CsvFormat():
        raise InputError(f"{path}: --sep and --decimal apply to CSV files; leave them out")
    return file


def check_inputs(*paths: Path | None) -> None:
    """Raise `InputError` for the first path that does not exist; - is standard input."""
    for path in paths:
        if path is not None and path != STDIN:
            check_exists(path)


def check_columns(path: Path, names: Sequence[str], wanted: Sequence[str], option: str) -> None:
    """Raise `InputError` for the first wanted column that does not exist, suggesting a similar name."""
    for name in wanted:
        if name not in names:
            close = closest(name, names, cutoff=0.5)
            hint = f", got {', '.join(map(repr, names[:10]))}" if close is None else f"; did you mean {close!r}?"
            raise InputError(f"{path}: expected a column {name!r} ({option}){hint}")


def check_model(path: Path) -> None:
    """Raise `ModelFileError` unless the file exists and begins like a model file; torch is not imported."""
    from dspp.storage import read_header

    read_header(path, ModelFileError)


# ---------------------------------------------------------------- output files


def check_output(path: Path, overwrite: bool, *inputs: Path) -> None:
    """Raise `InputError` unless the file can be written; called before the work starts."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist; create it first")
    if path.is_dir():
        raise InputError(f"{path}: expected a file name, got a folder")
    if any(path.exists() and source.exists() and path.samefile(source) for source in inputs):
        raise InputError(f"{path}: cannot overwrite an input; write to another file")
    if path.exists() and not overwrite:
        raise InputError(f"{path} already exists; pass --overwrite to replace it, or choose another name")


def check_distinct(paths: Mapping[str, Path | None]) -> None:
    """Raise `InputError` if two of these files, named by their role, are the same."""
    seen: dict[Path, str] = {}
    for name, path in paths.items():
        if path is not None and (other := seen.setdefault(path.resolve(), name)) != name:
            raise InputError(f"{path} is both {other} and {name}; use different files")


def remove(path: Path) -> None:
    """Remove a checkpoint, if it exists: a file or, of an ensemble, a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def file_size(path: Path) -> str:
    """Return the size of a file as text."""
    size = float(path.stat().st_size)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"

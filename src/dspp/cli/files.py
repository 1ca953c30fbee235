"""Tables on standard input, and checks of column names and output files."""

import shlex
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dspp.errors import DsppError, InputError, ModelFileError
from dspp.extras import require
from dspp.table.messages import check_exists, closest, join_names

if TYPE_CHECKING:
    from dspp.table.csvfile import CsvFormat
    from dspp.table.table import FileTable

Input = TypeVar("Input", Path, Path | None)
STDIN = Path("-")
CSV_ONLY = "--sep, --decimal and --encoding apply to CSV files; leave them out"
_MAGIC = {b"PAR1": ".parquet", b"ARROW1": ".arrow", b"\x1f\x8b": ".csv.gz"}  # the first bytes of files that are not CSV


# ---------------------------------------------------------------- tables


def source_name(path: Path) -> str:
    """Return what to call an input."""
    return "standard input" if path == STDIN else str(path)


@contextmanager
def stdin_as_file(path: Input) -> Iterator[Input]:
    """Yield a path or, for `-`, a temporary copy of standard input, which errors do not mention.

    Tables are read more than once: to learn their columns, for their rows, and for the line of an error.
    """
    if path != STDIN:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="dspp-") as folder:
        copy = _copy_stdin(Path(folder))
        try:
            yield copy
        except DsppError as problem:
            raise type(problem)(str(problem).replace(str(copy), source_name(STDIN))) from problem


def _copy_stdin(folder: Path) -> Path:
    """Copy standard input to a file whose suffix says what it contains."""
    if sys.stdin.isatty():
        raise InputError(
            "standard input: expected a table, got a terminal; pipe one into this command, as in cat new.csv | dspp ..."
        )
    start = sys.stdin.buffer.read(8)
    suffix = next((suffix for magic, suffix in _MAGIC.items() if start.startswith(magic)), ".csv")
    path = folder / f"stdin{suffix}"
    try:
        with path.open("wb") as file:
            file.write(start)
            shutil.copyfileobj(sys.stdin.buffer, file)
    except OSError as problem:
        raise InputError(
            f"standard input: cannot copy it to {folder.parent}: {problem.strerror}; set TMPDIR to a folder with more "
            "space, or pass a file"
        ) from None
    return path


def open_input(path: Path, written: "CsvFormat", may_be_empty: bool = False) -> "FileTable":
    """Open a table; only CSV files may be written in another way than usual."""
    from dspp.table.csvfile import CsvFile, CsvFormat
    from dspp.table.files import open_table

    file = open_table(path, written, may_be_empty)
    if not isinstance(file, CsvFile) and written != CsvFormat():
        raise InputError(f"{path}: {CSV_ONLY}")
    return file


def check_inputs(*paths: Path | None) -> None:
    """Raise `InputError` for the first path that does not exist; - is standard input, and can be given once."""
    if paths.count(STDIN) > 1:
        raise InputError("expected one table on standard input, got - twice; pass a file for one of them")
    for path in paths:
        if path is not None and path != STDIN:
            check_exists(path)


def check_columns(path: Path, names: Sequence[str], wanted: Sequence[str], option: str) -> None:
    """Raise `InputError` for the first wanted column that does not exist, suggesting a similar name."""
    for name in wanted:
        if name not in names:
            several = [part.strip() for part in name.split(",")]
            if option.startswith("--") and set(several) <= set(names):
                again = " ".join(f"{option} {shlex.quote(part)}" for part in several)
                raise InputError(f"{path}: expected a column in each {option}, got {name!r}; pass {again}")
            close = closest(name, names, cutoff=0.5)
            hint = f", got {join_names(names, 10)}" if close is None else f"; did you mean {close!r}?"
            raise InputError(f"{path}: expected a column {name!r} ({option}){hint}")


def check_model(path: Path) -> None:
    """Raise `ModelFileError` unless the file exists and begins like a model file; torch is not imported."""
    from dspp.storage import read_header

    read_header(path, ModelFileError)


# ---------------------------------------------------------------- output files


def check_output(path: Path, overwrite: bool, *inputs: Path | None) -> None:
    """Raise `InputError` unless the file can be written; called before the work starts."""
    check_regular(path)
    if any(path.exists() and other is not None and other.exists() and path.samefile(other) for other in inputs):
        raise InputError(f"{path}: cannot overwrite an input; write to another file")
    if path.exists() and not overwrite:
        raise InputError(f"{path} already exists; pass --overwrite to replace it, or choose another name")


def check_report(path: Path | None, overwrite: bool, *inputs: Path | None) -> None:
    """Raise `InputError` unless a report can be made and written to this file, if there is to be one."""
    from dspp.storage import check_page_name

    if path is not None:
        require("report", "--report")
        check_output(path, overwrite, *inputs)
        check_page_name(path)


def check_regular(path: Path) -> None:
    """Raise `InputError` if what exists at this path is not a regular file, or if its folder does not exist."""
    from dspp.storage import output_file

    try:
        file = output_file(path)
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}; write to another file") from None
    folder = file.parent if path.is_symlink() else path.parent
    if not folder.is_dir():
        raise InputError(f"{path}: the folder {folder} does not exist; create it first")


def check_distinct(paths: Mapping[str, Path | None]) -> None:
    """Raise `InputError` if two of these files, named by their role, are the same."""
    seen: dict[Path, str] = {}
    for name, path in paths.items():
        if path is not None and (other := seen.setdefault(path.resolve(), name)) != name:
            raise InputError(f"{path} is both {other} and {name}; use different files")


def discard_run(paths: Collection[Path]) -> None:
    """Remove the files of an unfinished run, if they exist; that of an ensemble is a folder.

    Raises:
        CheckpointError: A process is writing them, or the folder has other files.
    """
    from dspp import storage
    from dspp.members.run import check_folder

    with ExitStack() as stack:
        for path in paths:
            stack.enter_context(storage.lock(path))
            if path.is_dir():
                check_folder(path)
                for member in path.glob("*.checkpoint"):  # processes of a killed run live on for a moment
                    stack.enter_context(storage.lock(member))
        for path in paths:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def file_size(path: Path) -> str:
    """Return the size of a file as text."""
    size, unit = float(path.stat().st_size), "bytes"
    for larger in ("kB", "MB", "GB"):
        if size >= 1000:
            size, unit = size / 1000, larger
    return f"{size:.3g} {unit}"

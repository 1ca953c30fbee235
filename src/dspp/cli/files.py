"""From files to rows and targets, and places to write to: every problem names the file, the row and the column."""

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspp.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from jaxtyping import Bool, Float, Int

    from dspp.data.files import TableFile

_ROW = re.compile(r": column .*?, row (\d+)(?=: )")


@dataclass(frozen=True)
class Labelled:
    """A table read whole, and its targets.

    Attributes:
        file: The file.
        table: Every row and column of it.
        y: The targets, NaN where missing.
        empty: Those of several targets that have no values.
    """

    file: "TableFile"
    table: "pa.Table"
    y: "Float[np.ndarray, 'N T']"
    empty: tuple[str, ...] = ()

    @property
    def observed(self) -> "Bool[np.ndarray, ' N']":
        """The rows that have at least one target."""
        import numpy as np

        found: Bool[np.ndarray, " N"] = ~np.isnan(self.y).all(axis=1)
        return found

    @property
    def numbers(self) -> "Int[np.ndarray, ' _']":
        """The number of each of these rows in the file, from 0."""
        import numpy as np

        return np.flatnonzero(self.observed)

    @property
    def left_out(self) -> str:
        """How many rows have no target, in words; nothing if all have."""
        count = int((~self.observed).sum())
        return f"{count:,} row{'s' if count > 1 else ''} without a target left out" if count else ""


def read_labelled(
    path: Path, targets: Sequence[str], types: "Mapping[str, pa.DataType] | None" = None, every_target: bool = True
) -> Labelled:
    """Read a table with its targets.

    Args:
        path: The file.
        targets: The columns to predict.
        types: For CSV, the types that training rows had; those of other columns are found in the file, as in training.
        every_target: Whether each of several targets must have values, as in rows to learn from.

    Raises:
        InputError: There is no such table, or no such column; a target is no number; no row has one.
    """
    import numpy as np

    from dspp.data.csvfile import CsvFile
    from dspp.data.files import open_table

    file = open_table(path)
    check_columns(path, file.names, targets, "--target")
    if len(set(targets)) < len(targets):
        raise InputError(f"{path}: got the same --target twice, expected each once")
    with located(file):
        table = file.read(types) if isinstance(file, CsvFile) else file.read()
        y = np.column_stack([_numbers(file, table, name) for name in targets])
    empty = [name for name, column in zip(targets, y.T, strict=True) if np.isnan(column).all()]
    if empty and (every_target or len(empty) == len(targets)):
        raise InputError(f"{path}: column {empty[0]!r} has no values, expected numbers")
    return Labelled(file, table, y, tuple(empty))


def check_columns(path: Path, names: Sequence[str], wanted: Sequence[str], option: str) -> None:
    """Raise `InputError` for the first wanted column that is not there, with a name that comes near it."""
    for name in wanted:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(map(repr, names[:10]))}"
            raise InputError(f"{path}: there is no column {name!r} ({option}); {hint}")


def columns_of(table: "pa.Table", names: Iterable[str]) -> "pa.Table":
    """These columns; one that the model does not read, and that is not there, is empty."""
    import pyarrow as pa

    return pa.table({name: table[name] if name in table.column_names else pa.nulls(len(table)) for name in names})


@contextlib.contextmanager
def located(file: "TableFile") -> Iterator[None]:
    """Add the line to errors that name a row of a text file."""
    try:
        yield
    except InputError as problem:
        found, line_of = _ROW.search(str(problem)), getattr(file, "line_of", None)
        if found is None or line_of is None:
            raise
        text = str(problem)
        raise InputError(f"{text[: found.end()]} (line {line_of(int(found[1]))}){text[found.end() :]}") from problem


def _numbers(file: "TableFile", table: "pa.Table", name: str) -> "Float[np.ndarray, ' N']":
    """A column as numbers, NaN where missing."""
    import numpy as np
    from pyarrow import types

    from dspp.data import arrays
    from dspp.data.messages import Place

    column, place = table.column(name).combine_chunks(), Place(str(file.path), name)
    kind = column.type
    if not any(test(kind) for test in (arrays.is_number, arrays.is_text, types.is_boolean, types.is_null)):
        raise place.error(f"got {kind}, expected numbers to predict")
    values = arrays.numbers(column, place)
    infinite = np.flatnonzero(np.isinf(values))
    if len(infinite):
        raise place.error(f"got {values[infinite[0]]}, expected a finite number; correct or clear it", int(infinite[0]))
    return values


# ---------------------------------------------------------------- places to write to


def check_output(path: Path, overwrite: bool, *inputs: Path) -> None:
    """Raise `InputError` unless a file may be written there: before the work, not after it."""
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist; make it first")
    if path.is_dir():
        raise InputError(f"{path} is a folder, expected the name of a file")
    if any(path.exists() and source.exists() and path.samefile(source) for source in inputs):
        raise InputError(f"{path} is what is read from; write to another file")
    if path.exists() and not overwrite:
        raise InputError(f"{path} is there already; pass --overwrite to replace it, or give another name")


def check_apart(paths: Mapping[str, Path | None]) -> None:
    """Raise `InputError` if two of these files, each by what it is to the user, are one."""
    seen: dict[Path, str] = {}
    for name, path in paths.items():
        if path is not None and (other := seen.setdefault(path.resolve(), name)) != name:
            raise InputError(f"{path} is both {other} and {name}; give each a file of its own")


def file_size(path: Path) -> str:
    """The size of a file as people say it."""
    size = float(path.stat().st_size)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


# ---------------------------------------------------------------- what training has not seen


class Unseen:
    """Counts values of category columns that training did not have.

    Columns with a level for rare values are not counted: which rare ones training had is not kept.
    """

    def __init__(self, encoder: Any) -> None:
        from dspp.data.encoding import Category

        columns = () if encoder is None else encoder.columns
        self._columns = [column for column in columns if isinstance(column, Category) and not column.other]
        self._counts: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def look(self, batch: "pa.RecordBatch") -> None:
        """Count those of these rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from dspp.data.arrays import texts
        from dspp.data.messages import Place

        for column in self._columns:
            text = texts(batch.column(column.name), Place("X", column.name))
            text = text.drop_null()
            new = text.filter(pc.invert(pc.is_in(text, pa.array(column.levels, pa.string()))))
            if len(new):
                self._counts[column.name] = self._counts.get(column.name, 0) + len(new)
                known = self._examples.setdefault(column.name, [])
                known += [level for level in new.unique()[:5].to_pylist() if level not in known]

    def warnings(self) -> list[str]:
        """One line for each column that had any."""
        from dspp.data.messages import listed

        return [
            f"column {name!r}: {count:,} value{'s' if count > 1 else ''} never seen in training "
            f"({listed(self._examples[name], 3)}); predictions there know nothing of it"
            for name, count in self._counts.items()
        ]

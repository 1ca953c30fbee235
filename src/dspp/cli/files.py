"""Columns that were asked for, places to write to, and values that training has not seen."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspp.errors import InputError

if TYPE_CHECKING:
    from dspp.table.table import MemoryTable


def check_columns(path: Path, names: Sequence[str], wanted: Sequence[str], option: str) -> None:
    """Raise `InputError` for the first wanted column that is not there, with a name that comes near it."""
    for name in wanted:
        if name not in names:
            close = difflib.get_close_matches(name, names, 1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"it has {', '.join(map(repr, names[:10]))}"
            raise InputError(f"{path}: there is no column {name!r} ({option}); {hint}")


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
        from dspp.encoding.columns import Category

        columns = () if encoder is None else encoder.columns
        self._columns = [column for column in columns if isinstance(column, Category) and not column.other]
        self._counts: dict[str, int] = {}
        self._examples: dict[str, list[str]] = {}

    def look(self, rows: "MemoryTable") -> None:
        """Count those of these rows."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from dspp.table.arrays import texts

        for column in self._columns:
            assert rows.arrow is not None
            text = texts(rows.arrow.column(column.name).combine_chunks(), rows.place.of(column.name)).drop_null()
            new = text.filter(pc.invert(pc.is_in(text, pa.array(column.levels, pa.string()))))
            if len(new):
                self._counts[column.name] = self._counts.get(column.name, 0) + len(new)
                known = self._examples.setdefault(column.name, [])
                known += [level for level in new.unique()[:5].to_pylist() if level not in known]

    def warnings(self) -> list[str]:
        """One line for each column that had any."""
        from dspp.table.messages import listed

        return [
            f"column {name!r}: {count:,} value{'s' if count > 1 else ''} never seen in training "
            f"({listed(self._examples[name], 3)}); predictions there know nothing of it"
            for name, count in self._counts.items()
        ]

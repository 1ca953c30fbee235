"""One type for a table: the same rows, names and places wherever they are."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from dspp.codec import pack, unpack
from dspp.errors import InputError
from dspp.notes import Note
from dspp.table.files import from_dataset, open_table, open_tables, write_table
from dspp.table.memory import attach_targets, label_rows, to_table
from dspp.table.table import FileTable, Table

ROWS = pa.table({"a": np.arange(10.0), "b": [f"b{k}" for k in range(10)], "y": [*map(float, range(9)), None]})


def labels(rows: Table) -> list[str]:
    return [str(rows.label(i)) for i in range(len(rows))]


def tables(folder: Path) -> dict[str, Table | FileTable]:
    """The same rows in memory, in files of each kind, in two files, and in a dataset."""
    for suffix in ("csv", "parquet", "arrow"):
        write_table(folder / f"t.{suffix}", ROWS.to_batches(), ROWS.schema)
    parts = folder / "parts"
    parts.mkdir()
    for k, part in enumerate((ROWS.slice(0, 6), ROWS.slice(6))):
        pq.write_table(part, parts / f"{k}.parquet")
    found: dict[str, Table | FileTable] = {
        suffix: open_table(folder / f"t.{suffix}") for suffix in ("csv", "parquet", "arrow")
    }
    return found | {"memory": to_table(ROWS), "folder": open_tables(parts), "dataset": from_dataset(ds.dataset(parts))}


def test_rows_are_the_same_wherever_they_are(tmp_path: Path) -> None:
    types = {"a": pa.float64(), "y": pa.float64()}
    for name, table in tables(tmp_path).items():
        assert table.names == ("a", "b", "y")
        if isinstance(table, Table):
            whole, batches = table, list(table.batches(4))
        else:
            whole, batches = table.read(types), list(table.batches(4, types))
            assert table.num_rows == (None if name == "csv" else 10)
        assert len(whole) == 10
        assert whole.arrow.combine_chunks() == ROWS, name
        assert pa.concat_tables(batch.arrow for batch in batches).combine_chunks() == ROWS, name
        numbers = [label.split(", ")[-1] for batch in batches for label in labels(batch)]
        several = name in ("folder", "dataset")
        assert numbers == [str(k if not several else k % 6) for k in range(10)], name
        assert all(label.startswith("1.parquet, ") for label in labels(batches[-1])) == several


def test_rows_that_were_picked_keep_their_names_in_errors(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,2\n\n3,4\n-inf,5\n6,7\n")
    whole = open_table(tmp_path / "t.csv").read()
    some = whole.take(np.array([3, 2])).take(np.array([1]))
    assert labels(some) == ["2"]
    with pytest.raises(InputError, match=r"t\.csv: column 'a', row 2 \(line 5\): expected a finite number, got -inf"):
        some.check_no_inf()


def test_targets_among_the_columns() -> None:
    table = label_rows(to_table(ROWS), ["y"], drop=["b"])
    assert (table.names, table.target_names, len(table)) == (("a",), ("y",), 9)
    assert table.targets.shape == (9, 1)
    assert [str(note) for note in table.notes] == ["1 row without a target left out"]
    with pytest.raises(InputError, match="column 'b': expected numbers to predict, got text such as 'b0'"):
        label_rows(to_table(ROWS), ["b"])


def test_targets_apart_from_the_rows_have_an_axis() -> None:
    numbers = to_table(np.ones((3, 2)))
    assert isinstance(numbers, Table)
    assert attach_targets(numbers, np.zeros(3)).targets.shape == (3, 1)
    assert attach_targets(numbers, np.zeros((3, 1))).target_names == ("y",)
    assert attach_targets(numbers, np.zeros((3, 2))).target_names == ("y0", "y1")
    assert attach_targets(numbers, pa.table({"u": np.zeros(3)})).target_names == ("u",)


def test_notes_survive_a_file() -> None:
    notes = (Note("column 'id' is left out", "it has no values"), Note("", "3 rows left out"))
    assert tuple(unpack(Note, *pack(note)) for note in notes) == notes
    assert [str(note) for note in notes] == ["column 'id' is left out: it has no values", "3 rows left out"]
    for damaged in (3, "a sentence", {"subject": "x"}, {"subject": "x", "text": 3}):
        with pytest.raises(InputError, match="Note"):
            unpack(Note, {}, damaged)

"""From a table to rows that a model can be trained on: checks, split, encoding, scales, notes; once for everybody.

A table in memory is split at random (`memory`). One that may be larger than memory is read in three passes and its rows
are written to a cache (`disk`); it chooses the rows to hold out in its own way, which needs no second reading.
"""

from collections.abc import Callable, Sequence

from dspp.errors import InputError
from dspp.prepare.disk import OnDisk, prepare_on_disk
from dspp.prepare.memory import prepare_in_memory, split_rows
from dspp.prepare.prepared import Prepared
from dspp.settings import Settings
from dspp.table.joined import JoinedTable
from dspp.table.memory import split_targets
from dspp.table.table import MemoryTable, Table

__all__ = ["OnDisk", "Prepared", "prepare", "split_rows"]


def prepare(
    table: Table,
    settings: Settings,
    *,
    targets: Sequence[str] = (),
    drop: Sequence[str] = (),
    validation: MemoryTable | None = None,
    disk: OnDisk | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Prepared:
    """Make a table ready to be trained on. Only training rows teach the encoding and the scales.

    Args:
        table: The rows; without `targets`, they come with theirs.
        settings: What is held out, the seed, the dtype, whether progress is shown, and the checkpoint.
        targets: The columns to predict.
        drop: Columns not to learn from.
        validation: Rows with targets that choose the best epoch; None: some are held out.
        disk: How to keep the rows of a table that may be larger than memory; None: it is read into memory.
        should_stop: Asked after each batch read from disk.

    Raises:
        InputError: A file is damaged, has changed, or does not fit the others; a column or value cannot be used; or the
            disk is full. Nothing half-written is left.
        TrainingInterrupted: `should_stop` said so.
    """
    if disk is not None:
        assert isinstance(table, JoinedTable)
        return prepare_on_disk(table, settings, targets, drop, validation, disk, should_stop)
    rows = table.read()
    labelled = split_targets(rows, targets, drop) if targets else rows
    if targets and not labelled.names:
        raise InputError(f"{table.where}: no column is left to learn from")
    return prepare_in_memory(labelled, settings, validation, len(rows))

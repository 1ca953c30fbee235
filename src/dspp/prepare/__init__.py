"""Preparation of a table for training: checks, split, encoding, standardisation and notes.

A table in memory is split at random, by groups or by time (`memory`). A table that may be larger than memory is read in
three passes and its rows are written to a cache (`disk`); held-out rows are drawn by number, so that no extra pass is
needed.
"""

from collections.abc import Callable, Sequence

from dspp.errors import InputError
from dspp.outcomes import Outcome, find_outcome
from dspp.prepare.disk import OnDisk, prepare_on_disk
from dspp.prepare.memory import prepare_in_memory, split_rows
from dspp.prepare.prepared import Prepared
from dspp.settings import Settings
from dspp.table.joined import JoinedTable
from dspp.table.memory import split_targets
from dspp.table.roles import drop_weightless, split_roles
from dspp.table.table import MemoryTable, Table

__all__ = ["OnDisk", "Prepared", "prepare", "split_rows"]


def prepare(
    table: Table,
    settings: Settings,
    *,
    outcome: Outcome | None = None,
    targets: Sequence[str] = (),
    drop: Sequence[str] = (),
    weight: str | None = None,
    group: str | None = None,
    time: str | None = None,
    validation: MemoryTable | None = None,
    disk: OnDisk | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Prepared:
    """Prepare a table for training. Encoding and scales are learned on the training rows only.

    Args:
        table: The rows, with targets unless `targets` names them.
        settings: The fractions to hold out, the seed, the dtype, the checkpoint, and whether to show progress.
        outcome: What the targets of a table that has them are; None: as the settings say.
        targets: The columns to predict.
        drop: Columns to leave out.
        weight: The column of weights, which is no input; rows of weight 0 are left out.
        group: The column of groups, which is no input; rows of a group are held out together.
        time: The column of times, which is also an input; the latest rows are held out.
        validation: Rows with targets for choosing the best epoch; None: some rows are held out.
        disk: Options for a table that may be larger than memory; None: read it into memory.
        should_stop: Called after each batch read from disk.

    Raises:
        InputError: A file is damaged, has changed or does not match the others; a column or value is not valid; or the
            disk is full. No partial file is left.
        TrainingInterrupted: `should_stop` returned True.
    """
    if disk is not None:
        assert isinstance(table, JoinedTable)
        for what, name in {"weights": weight, "groups": group, "times": time}.items():
            if name is not None:
                raise InputError(
                    f"{table.where}: {what} need a table in memory, got one on disk; use a sample of its rows"
                )
        return prepare_on_disk(table, settings, targets, drop, validation, disk, should_stop)
    rows = table.read()
    labelled = rows
    if targets:
        assert rows.arrow is not None
        kind, likelihood = find_outcome(*settings.named_outcome)
        outcome = kind.of_columns(rows.arrow.select(list(targets)), likelihood)
        labelled = split_targets(split_roles(rows, weight, group, time), targets, drop, outcome.read)
        if validation is not None and validation.y is None:
            validation = split_targets(validation, targets, read=outcome.read)
    if targets and not labelled.names:
        raise InputError(f"{table.where}: expected at least one input column, got none; drop fewer columns")
    validation = None if validation is None else drop_weightless(validation, every_output=False)
    return prepare_in_memory(drop_weightless(labelled), settings, validation, len(rows), outcome)

"""Preparation of a table for training: checks, split, encoding, standardisation and notes."""

from collections.abc import Sequence
from dataclasses import replace

from dspp.encoding.sampling import parse_size, read_table
from dspp.outcomes import Outcome, find_outcome
from dspp.prepare.memory import prepare_in_memory
from dspp.prepare.prepared import Prepared
from dspp.prepare.split import split_rows
from dspp.settings import Settings
from dspp.table.memory import split_targets
from dspp.table.roles import drop_weightless, label_rows
from dspp.table.table import FileTable, Table

__all__ = ["Prepared", "prepare", "split_rows"]


def prepare(
    table: Table | FileTable,
    settings: Settings,
    *,
    outcome: Outcome | None = None,
    targets: Sequence[str] = (),
    drop: Sequence[str] = (),
    weight: str | None = None,
    group: str | None = None,
    time: str | None = None,
    validation: Table | None = None,
    processes: int | None = None,
) -> Prepared:
    """Prepare a table for training. Encoding and scales are learned on the training rows only.

    Args:
        table: The rows, with targets unless `targets` names them. Of a table in files that is too large for the memory
            that the settings allow, a sample is read; see `read_table`.
        settings: The fractions to hold out, the seed, the dtype, and the limit of memory.
        outcome: What the targets of a table that has them are; None: as the settings say.
        targets: The columns to predict.
        drop: Columns to leave out.
        weight: The column of weights, which is no input; rows of weight 0 are left out.
        group: The column of groups, which is no input; rows of a group are held out together.
        time: The column of times, which is also an input; the latest rows are held out.
        validation: Rows with targets for choosing the best epoch; None: some rows are held out.
        processes: How many other processes will hold rows; None: as many as train members.

    Raises:
        InputError: A file is damaged or does not match the others, or a column or value is not valid.
    """
    no_inputs = (*targets, *drop, *filter(None, (weight, group)))
    rows = read_table(
        table,
        inputs=[name for name in table.names if name not in no_inputs],
        drop=drop,
        group=group,
        limit=parse_size(settings.memory),
        processes=settings.most_processes if processes is None else processes,
        seed=settings.random_state,
    )
    labelled = rows
    if targets:
        assert rows.arrow is not None
        kind, likelihood = find_outcome(*settings.named_outcome)
        outcome = kind.of_columns(rows.arrow.select(list(targets)), likelihood)
        labelled = label_rows(rows, targets, drop, weight, group, time, outcome.read)
        if validation is not None and validation.y is None:
            validation = split_targets(validation, targets, read=outcome.read)
    validation = None if validation is None else drop_weightless(validation, every_output=False)
    labelled = replace(labelled, table_rows=labelled.num_table_rows)
    return prepare_in_memory(drop_weightless(labelled), settings, validation, outcome)

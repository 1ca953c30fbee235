"""The training and validation rows of `dspp fit`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspp.cli.files import CSV_ONLY, check_columns, check_output, open_input, source_name
from dspp.cli.fit_options import FitOptions
from dspp.cli.options import csv_format
from dspp.errors import InputError

if TYPE_CHECKING:
    from dspp.prepare import Prepared
    from dspp.settings import Settings
    from dspp.table.table import FileTable, Table


@dataclass(frozen=True)
class Sources:
    """The tables of `dspp fit`.

    Attributes:
        name: What to call the training table.
        table: The training table.
        validation: The table of --validation, if given.
        columns: The number of columns of the training table,
        files: and of its files.
    """

    name: str
    table: "Table | FileTable"
    validation: "FileTable | None"
    columns: int
    files: int

    def read(self, options: FitOptions, settings: "Settings") -> "Sources":
        """Return the same tables with the training table, or a sample of it, in memory.

        Raises:
            InputError: A target is not a column of numbers that vary.
        """
        from dspp.encoding.sampling import parse_size, read_table
        from dspp.engines import cores
        from dspp.table.memory import label_rows

        trials = 0 if (options.jobs or 1) == 1 else options.jobs or cores()
        rows = read_table(
            self.table,
            inputs=_inputs(options, self.table),
            drop=options.drop or [],
            group=options.group,
            limit=parse_size(options.memory),
            processes=trials if options.tune else settings.max_processes,
            seed=options.seed,
        )
        if options.outcome != "auto":  # others read their targets themselves, which needs torch
            return replace(self, table=rows)
        _check_notes(rows, options.target)
        labelled = label_rows(rows, options.target, options.drop or [], options.weight, options.group, options.time)
        _check_targets_vary(labelled)
        return replace(self, table=labelled)


def open_sources(options: FitOptions, train: Path, validation: Path | None) -> Sources:
    """Open the tables and check their columns; only their headers are read, and torch is not imported.

    Args:
        options: The options of the command.
        train: The file of the training table, which differs from that of the options if it is standard input.
        validation: The file of the validation table.

    Raises:
        InputError: A file does not exist or is not a table, or a column does not exist.
    """
    from dspp.table.csvfile import CsvFormat
    from dspp.table.files import is_folder_or_pattern, open_tables

    written = csv_format(options.sep, options.decimal, options.encoding)
    several = is_folder_or_pattern(train)
    if several and written != CsvFormat():
        raise InputError(f"{train}: {CSV_ONLY}")
    table = open_tables(train) if several else open_input(train, written)
    for output in filter(None, (options.out, options.report)):
        check_output(output, options.overwrite, *table.files)
    check_targets(train, table, options.target)
    check_columns(train, table.names, options.drop or [], "--drop")
    _check_roles(options, train, table)
    held_out = None if validation is None else open_input(validation, written)
    if held_out is not None:
        check_targets(held_out.path, held_out, options.target)
        check_columns(held_out.path, held_out.names, _inputs(options, table), "as in the training table")
        check_columns(held_out.path, held_out.names, [options.weight] if options.weight else [], "--weight")
    return Sources(source_name(options.train), table, held_out, len(table.names), len(table.files))


def prepare_rows(options: FitOptions, settings: "Settings", sources: Sources) -> "Prepared":
    """Return the rows prepared for training."""
    from dspp.prepare import prepare

    roles = {"weight": options.weight, "group": options.group, "time": options.time}
    labels: dict[str, Any] = {"targets": options.target, "drop": options.drop or [], **roles}
    is_labelled = options.outcome == "auto"
    return prepare(sources.table, settings, validation=_validation(options, sources), **({} if is_labelled else labels))


def _inputs(options: FitOptions, table: "Table | FileTable") -> list[str]:
    return [name for name in table.names if name not in options.not_inputs]


def _check_roles(options: FitOptions, path: Path, table: "Table | FileTable") -> None:
    """Raise `InputError` unless the columns of --weight, --group and --time exist and can be used."""
    roles = {"--weight": options.weight, "--group": options.group, "--time": options.time}
    given = {option: name for option, name in roles.items() if name is not None}
    for option, name in given.items():
        check_columns(path, table.names, [name], option)
        if name in options.target:
            raise InputError(f"{path}: column {name!r} is both --target and {option}; use different columns")
    if options.group is not None and options.time is not None:
        raise InputError("expected --group or --time, got both; leave one of them out")


def _validation(options: FitOptions, sources: Sources) -> "Table | None":
    """Return the rows of --validation, in the types of the training rows."""
    import pyarrow as pa

    from dspp.encoding.encoder import reading_types
    from dspp.table.memory import label_rows

    if sources.validation is None:
        return None
    table, inputs = sources.table, _inputs(options, sources.table)
    rows = sources.validation.read(reading_types(pa.schema([table.schema.field(name) for name in inputs])))
    weight = [options.weight] if options.weight else []
    rows = rows.select([*inputs, *options.target, *weight])
    return label_rows(rows, options.target, weight=options.weight) if options.outcome == "auto" else rows


def _check_notes(rows: "Table", targets: list[str]) -> None:
    """Raise `InputError` if a target was read as text, such as numbers with a decimal comma."""
    for note in rows.notes:
        if any(note.subject.startswith(f"column {name!r} is text") for name in targets):
            raise InputError(f"{rows.where}: {note}")


def _check_targets_vary(rows: "Table") -> None:
    """Raise `InputError` unless a model can learn from the targets; torch is not imported."""
    import numpy as np

    for name, y in zip(rows.target_names, rows.targets.T, strict=True):
        known = y[~np.isnan(y)]
        if len(known) == 1:
            raise rows.place.of(name).error("expected at least 2 rows with a target, got 1; add rows")
        if np.ptp(known) == 0:
            raise rows.place.of(name).error(
                f"expected a target that varies, got {known[0]:g} in all {len(known):,} rows; choose another --target"
            )


def check_targets(path: Path, table: "Table | FileTable", targets: list[str]) -> None:
    """Raise `InputError` unless the table has these columns and none is repeated."""
    check_columns(path, table.names, targets, "--target")
    if len(set(targets)) < len(targets):
        raise InputError(f"{path}: expected each --target once, got {targets}")

"""The training and validation rows of `dspp fit`, in memory or on disk."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dspp.cli.files import CSV_ONLY, check_columns, check_output, open_input, source_name
from dspp.cli.fit_options import FitOptions
from dspp.cli.options import csv_format
from dspp.errors import InputError

if TYPE_CHECKING:
    from dspp.prepare import Prepared
    from dspp.settings import Settings
    from dspp.table.csvfile import CsvFormat
    from dspp.table.table import FileTable, MemoryTable, Table

MEMORY_SHARE = 6  # a table that would fill more than a sixth of memory, at 8 bytes per cell, is read from disk
CGROUP = Path("/sys/fs/cgroup/memory.max")  # memory limit of a container


def is_on_disk(options: FitOptions, path: Path, written: "CsvFormat") -> bool:
    """Return whether to read the table from disk: on request, if it has several files, or if it is too large.

    Raises:
        InputError: Another option requires the table in memory, or on disk.
    """
    from dspp.table.csvfile import CsvFormat
    from dspp.table.files import TYPED_SUFFIXES, open_table
    from dspp.table.joined import is_folder_or_pattern

    wanted = options.on_disk or is_folder_or_pattern(path)
    if not wanted and path.suffix.lower() in TYPED_SUFFIXES and path.is_file():
        file = open_table(path)
        wanted = 8 * (file.num_rows or 0) * len(file.names) > memory_bytes() / MEMORY_SHARE
    if not wanted:
        if options.cache is not None or options.keep_cache:
            raise InputError("--cache and --keep-cache apply to tables read from disk; add --on-disk")
        return False
    if written != CsvFormat():
        raise InputError(f"{path}: {CSV_ONLY}")
    if options.tune:
        raise InputError(
            f"{path}: --tune needs a table in memory, got one on disk; tune on a subset that fits in memory, then pass "
            "the settings found to dspp fit"
        )
    if options.report is not None and options.validation is None and options.validation_fraction == 0:
        raise InputError("--report needs held-out rows of a table on disk; leave out --validation-fraction 0")
    return True


def memory_bytes() -> float:
    """Return the memory available to this process, in bytes; infinite where the system does not say, as on Windows."""
    limits = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")) if hasattr(os, "sysconf") else math.inf]
    if CGROUP.is_file() and (text := CGROUP.read_text().strip()).isdecimal():
        limits.append(float(text))
    return min(limits)


@dataclass(frozen=True)
class Sources:
    """The tables of `dspp fit`.

    Attributes:
        name: What to call the training table.
        table: The training table.
        validation: The table of --validation, if given.
        on_disk: Whether the training table stays on disk.
    """

    name: str
    table: "Table"
    validation: "FileTable | None"
    on_disk: bool

    def read(self, targets: list[str], outcome: str) -> "Sources":
        """Return the same tables with the training table in memory, unless it stays on disk.

        Raises:
            InputError: A target in memory is not a column of numbers that vary.
        """
        if self.on_disk:
            return self
        rows = self.table.read()
        for name in targets if outcome == "auto" else ():  # what others accept is known only with torch
            _check_target(rows, name)
        return replace(self, table=rows)


def open_sources(options: FitOptions, train: Path, validation: Path | None) -> Sources:
    """Open the tables and check their columns; only their headers are read, and torch is not imported.

    Args:
        options: The options of the command.
        train: The file of the training table, which differs from that of the options if it is standard input.
        validation: The file of the validation table.

    Raises:
        InputError: A file does not exist or is not a table, or a column does not exist.
    """
    from dspp.table.joined import JoinedTable, open_tables

    written = csv_format(options.sep, options.decimal, options.encoding)
    on_disk = is_on_disk(options, train, written)
    table: Table = open_tables(train) if on_disk else open_input(train, written)
    if isinstance(table, JoinedTable):
        for output in filter(None, (options.out, options.report)):
            check_output(output, options.overwrite, *(part.path for part in table.parts))
    check_targets(train, table, options.target)
    check_columns(train, table.names, options.drop or [], "--drop")
    _check_roles(options, train, table, on_disk)
    held_out = None if validation is None else open_input(validation, written)
    if held_out is not None:
        check_targets(held_out.path, held_out, options.target)
        check_columns(held_out.path, held_out.names, _inputs(options, table), "as in the training table")
        check_columns(held_out.path, held_out.names, [options.weight] if options.weight else [], "--weight")
    return Sources(source_name(options.train), table, held_out, on_disk)


def prepare_rows(
    options: FitOptions, settings: "Settings", sources: Sources, should_stop: Callable[[], bool] | None = None
) -> "Prepared":
    """Return the rows prepared for training."""
    from dspp.prepare import OnDisk, prepare

    return prepare(
        sources.table,
        settings,
        targets=options.target,
        drop=options.drop or [],
        weight=options.weight,
        group=options.group,
        time=options.time,
        validation=_validation(options, sources),
        disk=OnDisk(options.cache, options.keep_cache) if sources.on_disk else None,
        should_stop=should_stop,
    )


def _inputs(options: FitOptions, table: "Table") -> list[str]:
    return [name for name in table.names if name not in options.not_inputs]


def _check_roles(options: FitOptions, path: Path, table: "Table", on_disk: bool) -> None:
    """Raise `InputError` unless the columns of --weight, --group and --time exist and can be used."""
    roles = {"--weight": options.weight, "--group": options.group, "--time": options.time}
    given = {option: name for option, name in roles.items() if name is not None}
    for option, name in given.items():
        check_columns(path, table.names, [name], option)
        if on_disk:
            raise InputError(f"{path}: {option} needs a table in memory, got one on disk; use a sample of its rows")
        if name in options.target:
            raise InputError(f"{path}: column {name!r} is both --target and {option}; use different columns")
    if options.group is not None and options.time is not None:
        raise InputError("expected --group or --time, got both; leave one of them out")


def _validation(options: FitOptions, sources: Sources) -> "MemoryTable | None":
    """Return the rows of --validation, in the types of the training rows."""
    import pyarrow as pa

    from dspp.encoding.encoder import reading_types
    from dspp.table.roles import split_roles

    if sources.validation is None:
        return None
    table, inputs = sources.table, _inputs(options, sources.table)
    rows = sources.validation.read(reading_types(pa.schema([table.schema.field(name) for name in inputs])))
    weight = [options.weight] if options.weight else []
    return split_roles(rows.select([*inputs, *options.target, *weight]), weight=options.weight)


def _check_target(rows: "MemoryTable", name: str) -> None:
    """Raise `InputError` unless a model can learn from this target; torch is not imported."""
    import numpy as np

    from dspp.table.memory import target_column

    for note in rows.notes:
        if note.subject.startswith(f"column {name!r} is text"):  # such as numbers with a decimal comma
            raise InputError(f"{rows.where}: {note}")
    y = target_column(rows, name)
    known = y[~np.isnan(y)]
    if len(known) == 1:
        raise rows.place.of(name).error("expected at least 2 rows with a target, got 1; add rows")
    if len(known) and np.ptp(known) == 0:
        raise rows.place.of(name).error(
            f"expected a target that varies, got {known[0]:g} in all {len(known):,} rows; choose another --target"
        )


def check_targets(path: Path, table: "Table", targets: list[str]) -> None:
    """Raise `InputError` unless the table has these columns and none is repeated."""
    check_columns(path, table.names, targets, "--target")
    if len(set(targets)) < len(targets):
        raise InputError(f"{path}: expected each --target once, got {targets}")

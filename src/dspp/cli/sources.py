"""The rows that `dspp fit` learns from: which file or files, in memory or on disk, and those to validate with."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dspp.cli.files import check_columns, check_output
from dspp.cli.fit_options import FitOptions
from dspp.errors import InputError

if TYPE_CHECKING:
    from dspp.prepare import Prepared
    from dspp.settings import Settings
    from dspp.table.table import MemoryTable, Table

MEMORY_SHARE = 6  # a table whose numbers (8 bytes) fill more than a sixth of memory is read from disk
CGROUP = Path("/sys/fs/cgroup/memory.max")  # the memory a container may use


def is_on_disk(options: FitOptions) -> bool:
    """Whether the table is to be read from disk: asked for, in several files, or too large for memory.

    Raises:
        InputError: It is, and something else was asked for that needs it in memory; or the other way round.
    """
    from dspp.table.files import TYPED, open_table
    from dspp.table.joined import is_many

    path = options.train
    wanted = options.on_disk or is_many(path)
    if not wanted and path.suffix.lower() in TYPED and path.is_file():
        file = open_table(path)
        wanted = 8 * (file.num_rows or 0) * len(file.names) > memory_bytes() / MEMORY_SHARE
    if not wanted:
        if options.cache is not None or options.keep_cache:
            raise InputError("--cache and --keep-cache are for tables read from the disk; add --on-disk")
        return False
    if options.tune:
        raise InputError(
            f"{path} is read from the disk, where settings cannot be searched; search on a part of it that fits in "
            "memory, then give the settings found to dspp fit"
        )
    if options.report is not None and options.validation is None and options.validation_fraction == 0:
        raise InputError("--report shows rows held out of a table on the disk: leave out --validation-fraction 0")
    return True


def memory_bytes() -> float:
    """The memory that this process may use."""
    limits = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    if CGROUP.is_file() and (text := CGROUP.read_text().strip()).isdecimal():
        limits.append(float(text))
    return min(limits)


def prepare_rows(
    options: FitOptions, settings: "Settings", on_disk: bool, should_stop: Callable[[], bool] | None = None
) -> tuple["Table", "Prepared"]:
    """The table, and its rows made ready to be trained on."""
    from dspp.prepare import OnDisk, prepare
    from dspp.table.files import open_table
    from dspp.table.joined import JoinedTable, open_tables

    table: Table = open_tables(options.train) if on_disk else open_table(options.train)
    if isinstance(table, JoinedTable):
        for output in filter(None, (options.out, options.report)):
            check_output(output, options.overwrite, *(part.path for part in table.parts))
    check_targets(options.train, table, options.target)
    check_columns(options.train, table.names, options.drop or [], "--drop")
    if not on_disk:
        table = table.read()
    prepared = prepare(
        table,
        settings,
        targets=options.target,
        drop=options.drop or [],
        validation=_validation(options, table),
        disk=OnDisk(options.cache, options.keep_cache) if on_disk else None,
        should_stop=should_stop,
    )
    return table, prepared


def _validation(options: FitOptions, table: "Table") -> "MemoryTable | None":
    """The rows of --validation that have a target, in the types of the training rows."""
    import pyarrow as pa

    from dspp.encoding.encoder import reading_types
    from dspp.table.files import open_table
    from dspp.table.memory import split_targets

    if options.validation is None:
        return None
    inputs = [name for name in table.names if name not in (*options.target, *(options.drop or []))]
    file = open_table(options.validation)
    check_targets(options.validation, file, options.target)
    rows = file.read(reading_types(pa.schema([table.schema.field(name) for name in inputs])))
    check_columns(options.validation, rows.names, inputs, "which training has")
    return split_targets(rows.select([*inputs, *options.target]), options.target)


def check_targets(path: Path, table: "Table", targets: list[str]) -> None:
    """Raise `InputError` unless the table has these columns, each asked for once."""
    check_columns(path, table.names, targets, "--target")
    if len(set(targets)) < len(targets):
        raise InputError(f"{path}: got the same --target twice, expected each once")

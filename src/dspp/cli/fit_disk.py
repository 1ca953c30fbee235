"""`dspp fit` on a table larger than memory: when to read it from the disk, and how."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dspp.cli import show
from dspp.cli.files import check_columns, check_output, file_size, located, read_labelled
from dspp.cli.fit_options import FitOptions
from dspp.cli.session import Session
from dspp.errors import InputError

if TYPE_CHECKING:
    from dspp.data.shards import Shards
    from dspp.estimators.fitting import Part
    from dspp.estimators.ondisk import Stored
    from dspp.estimators.regressor import Regressor

MEMORY_SHARE = 6  # a table whose numbers (8 bytes) fill more than a sixth of memory is read from the disk
CGROUP = Path("/sys/fs/cgroup/memory.max")  # the memory a container may use


def is_wanted(options: FitOptions) -> bool:
    """Whether the table is to be read from the disk: asked for, in several files, or too large for memory.

    Raises:
        InputError: It is, and something else was asked for that needs it in memory; or the other way round.
    """
    from dspp.data.files import open_table
    from dspp.data.shards import FORMATS, is_many

    path = options.train
    wanted = options.on_disk or is_many(path)
    if not wanted and path.suffix.lower() in FORMATS and path.is_file():
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


def train(
    options: FitOptions, session: Session, estimator: "Regressor", budget: float | None, stop: Callable[[], bool]
) -> "Stored":
    """Make the table ready, say what it is, and train the estimator on it."""
    from dspp.data.shards import Shards
    from dspp.estimators.ondisk import stored

    estimator.set_params(checkpoint=options.kept, time_budget=budget, progress=session.bars)
    shards = Shards.at(options.train)
    for output in filter(None, (options.out, options.report)):
        check_output(output, options.overwrite, *(file.path for file in shards.files))
    check_columns(options.train, shards.names, options.target, "--target")
    check_columns(options.train, shards.names, options.drop or [], "--drop")
    with stored(
        shards,
        options.target,
        estimator,
        drop=options.drop or [],
        validation=_validation(options, shards),
        cache=options.cache,
        keep_cache=options.keep_cache,
        should_stop=stop,
    ) as table:
        session.say(*_lines(options, shards, table, estimator))
        estimator.fit_stored(table, should_stop=stop, resume=options.resume)
    return table


def _validation(options: FitOptions, shards: "Shards") -> "Part | None":
    """The rows of --validation that have a target."""
    import pyarrow as pa

    from dspp.data.encoding import reading_types
    from dspp.data.inputs import Inputs
    from dspp.estimators.fitting import Part

    if options.validation is None:
        return None
    inputs = [name for name in shards.names if name not in (*options.target, *(options.drop or []))]
    types = reading_types(pa.schema([shards.schema.field(name) for name in inputs]))
    data = read_labelled(options.validation, options.target, types)
    check_columns(options.validation, data.table.column_names, inputs, "which training has")
    with located(data.file):
        rows = Inputs.of(data.table.select(inputs).filter(pa.array(data.observed)), str(options.validation))
    y = data.y[data.observed]
    return Part(rows, y[:, 0] if y.shape[1] == 1 else y, labels=tuple(data.numbers.tolist()))


def _lines(options: FitOptions, shards: "Shards", table: "Stored", estimator: "Regressor") -> list[str]:
    """What to say before training."""
    encoder = table.learned.encoder
    assert encoder is not None
    several = f" in {len(shards.files)} files" if len(shards.files) > 1 else ""
    held = f", {len(table.val):,} to choose the best epoch" if len(table.val) else ""
    epochs = estimator.train_config(len(table), estimator.random_state).epochs
    cache = f"{table.cache.path} ({file_size(table.cache.path)}{', which was there' if table.reused else ''})"
    return [
        f"{options.train}: {table.num_rows:,} rows{several}, {len(shards.names)} columns",
        f"  predicting  {', '.join(options.target)}",
        f"  from        {show.kinds_line(encoder.describe())}",
        f"  rows        {len(table):,} to train on{held}",
        f"  read from   {cache}",
        f"  model       {show.settings_line(estimator.spec(len(options.target)), epochs)}",
        *(f"note: {note}" for note in table.notes),
    ]

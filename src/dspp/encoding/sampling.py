"""Reading tables that may be larger than memory: all rows if a fit of them stays within a limit, otherwise a sample.

The table is read once, in batches. A row has a hash of the seed and its number, or of the seed and its group, and the
rows with the smallest hashes are kept: as memory fills, the threshold falls. So the sample is a function of the table,
the seed and the limit, however the rows are cut into files and batches; groups stay whole, and rows keep their order.
A table with times is sampled like any other: the latest rows of the sample are then held out.
"""

import hashlib
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
from jaxtyping import Int, UInt64

from dspp.encoding.columns import MAX_LEVELS
from dspp.encoding.learning import learn_column
from dspp.errors import InputError
from dspp.notes import Note
from dspp.table import arrays
from dspp.table.messages import Place
from dspp.table.table import FileTable, Table

# Bytes of a fit beside its rows: the code and the workspace of this process, and of each that trains members.
# Measured: 350 and 310 MB.
FIXED_BYTES: Final = 400_000_000
PROCESS_BYTES: Final = 350_000_000
# Bytes per row and encoded column. In this process: the Arrow table, the encoded rows, copies while they are scaled and
# joined, those of the trees, and those that are sent to a process. In each process: its rows, those it trains on, and
# copies while they are checked. Measured: 46 and 23 on 800,000 rows of 20 columns.
CELL_BYTES: Final = 48
PROCESS_CELL_BYTES: Final = 24
# The share of the free memory that a fit may take without another limit.
FREE_SHARE: Final = 0.5
# Tables of fewer rows are not sampled.
MIN_ROWS: Final = 1_000
# Rows of the sample from which the number of encoded columns is learned.
PROBED_ROWS: Final = 10_000
# Rows that are read beyond a sample before it is thinned, as a share of it.
SLACK: Final = 0.25

MEMINFO: Final = Path("/proc/meminfo")
CGROUP: Final = Path("/sys/fs/cgroup/memory.max")  # of a container
_WIDEST: Final = MAX_LEVELS + 2  # encoded columns of a category: its levels, other ones and missing values
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?) *([kmgt]?)b?", re.IGNORECASE)
_SAMPLE: Final = 23  # derives the seed

Hashes = UInt64[np.ndarray, " n"]


def read_table(
    table: Table | FileTable,
    *,
    inputs: Sequence[str],  # the columns that a model reads
    drop: Sequence[str] = (),
    group: str | None = None,  # the column of groups, of which all rows or none are kept
    limit: float | None = None,  # bytes for all processes of the fit together; None: a share of what is free
    processes: int = 0,  # how many others hold rows
    seed: int = 0,
) -> Table:
    """Return the rows of a table or, if a fit of them would exceed the limit, a sample of them and a note.

    A table in memory is returned as it is.

    Raises:
        InputError: A file is damaged, or the limit leaves no room for a small sample.
    """
    if isinstance(table, Table):
        return table
    room = partial(rows_within, default_limit() if limit is None else limit, processes=processes)
    names = [name for name in table.names if name not in drop]
    draw = _Draw(
        Place(table.where, group or ""), np.random.SeedSequence([seed, _SAMPLE]).generate_state(1, np.uint64)[0]
    )
    most = max(MIN_ROWS, room(len(names)))  # if every input were a number
    if table.most_rows <= most:
        rows = table.read()
        total = len(rows)
    else:
        rows, total = draw.read(table, names, most)
    if total > max(MIN_ROWS, room(len(names) + (_WIDEST - 1) * len(inputs))):
        width = len(names) - len(inputs) + _count_features(draw.first(rows, PROBED_ROWS), inputs)
        most = room(width)
        if most < MIN_ROWS:
            needed = format_size(FIXED_BYTES + processes * PROCESS_BYTES + 2 * MIN_ROWS * row_bytes(width, processes))
            raise InputError(
                f"memory: expected at least {needed} for a sample of {table.where}, got "
                f"{format_size(room.args[0])}; raise it, or drop columns"
            )
        rows = draw.first(rows, most)
    rows.check_no_inf()
    if len(rows) == total:
        return rows
    whole = "drawn at random" if group is None else f"all rows of groups (column {group!r}) drawn at random"
    size = format_size(room.args[0])
    note = Note(f"{len(rows):,} of {total:,} rows are used", f"{whole}, as many as memory={size} has room for")
    return replace(rows, notes=(note, *rows.notes), table_rows=total)


def rows_within(limit: float, width: int, processes: int) -> int:
    """Return how many rows of this many encoded columns, targets included, a fit within the limit can have."""
    if math.isinf(limit):
        return sys.maxsize
    return max(0, int((limit - FIXED_BYTES - processes * PROCESS_BYTES) / row_bytes(width, processes)))


def row_bytes(width: int, processes: int) -> int:
    """Return the bytes of a row in all processes together."""
    return width * (CELL_BYTES + processes * PROCESS_CELL_BYTES)


def _count_features(rows: Table, inputs: Sequence[str]) -> int:
    assert rows.arrow is not None
    columns = [learn_column(rows.arrow.column(name), rows.place.of(name)).column for name in inputs]
    return sum(1 if column.lumping else len(column.features) for column in columns)


class _Draw(NamedTuple):
    """The order in which rows are drawn: by hashes of their numbers or, if `place` names a column, of their groups."""

    place: Place
    seed: np.uint64

    def read(self, table: FileTable, names: Sequence[str], most: int) -> tuple[Table, int]:
        """Return at most this many rows of a table, in their order, and how many it has."""
        parts: list[pa.Table] = []
        hashes, numbers, total = np.empty(0, np.uint64), np.empty(0, np.int64), 0
        below = np.uint64(np.iinfo(np.uint64).max)
        for batch in table.batches(verbatim=table.names):
            assert batch.arrow is not None
            own = self._hash(batch.arrow, np.arange(total, total + len(batch)))
            kept = np.flatnonzero(own < below)
            parts.append(batch.arrow.select(list(names)).take(pa.array(kept)))
            hashes, numbers = np.append(hashes, own[kept]), np.append(numbers, kept + total)
            total += len(batch)
            if len(hashes) > (1.0 + SLACK) * most:
                below = self._threshold(hashes, most)
                few = hashes < below
                parts = [pa.concat_tables(parts).filter(pa.array(few)).combine_chunks()]
                hashes, numbers = hashes[few], numbers[few]
        few = hashes < self._threshold(hashes, most) if len(hashes) > most else np.ones(len(hashes), bool)
        rows = pa.concat_tables(parts).filter(pa.array(few)).combine_chunks()
        return table.to_memory(rows, None if len(rows) == total else numbers[few]), total

    def first(self, rows: Table, most: int) -> Table:
        """Return at most this many of the rows, in their order."""
        if len(rows) <= most:
            return rows
        assert rows.arrow is not None
        hashes = self._hash(rows.arrow, rows.row_numbers)
        return rows.take(np.flatnonzero(hashes < self._threshold(hashes, most)))

    def _threshold(self, hashes: Hashes, most: int) -> np.uint64:
        """Return the hash below which at most this many rows lie; those of a group are all below it, or none."""
        below = np.partition(hashes, most)[most]
        if below == hashes.min():
            raise self.place.error(
                f"expected groups of at most {most:,} rows, as many as memory has room for, got a larger one; raise "
                "memory, or leave the groups out"
            )
        return np.uint64(below)

    def _hash(self, rows: pa.Table, numbers: Int[np.ndarray, " n"]) -> Hashes:
        if not self.place.column:
            return _mix(numbers.astype(np.uint64), self.seed)
        found = arrays.texts(rows.column(self.place.column).combine_chunks(), self.place).dictionary_encode()
        known = [hashlib.blake2b(label.encode(), digest_size=8).digest() for label in found.dictionary.to_pylist()]
        hashes = _mix(np.frombuffer(b"".join(known), np.uint64), self.seed)
        missing = len(hashes)  # rows without a group are kept, so that they are found
        codes = found.indices.fill_null(missing).to_numpy(zero_copy_only=False)
        return np.asarray(np.append(hashes, np.uint64(0))[codes])


def _mix(numbers: Hashes, seed: np.uint64) -> Hashes:
    """Return the hashes of numbers, of which no two are equal (the finaliser of SplitMix64)."""
    x = numbers * np.uint64(0x9E3779B97F4A7C15) + seed
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


# ---------------------------------------------------------------- limits


def default_limit() -> float:
    """Return `FREE_SHARE` of the free memory in bytes, rounded to one digit; infinite where the system does not say.

    Rounded, the limit is the same in most runs on a machine, and so is a sample.
    """
    share = FREE_SHARE * free_bytes()
    if math.isinf(share):
        return share
    unit = 10.0 ** math.floor(math.log10(share))
    return unit * math.floor(share / unit)


def free_bytes() -> float:
    """Return the memory that is free for processes of this one's container."""
    limits = [math.inf]
    if MEMINFO.is_file() and (found := re.search(r"MemAvailable: *(\d+) kB", MEMINFO.read_text())):
        limits.append(1024.0 * int(found[1]))
    elif hasattr(os, "sysconf"):
        limits.append(float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    if CGROUP.is_file() and (text := CGROUP.read_text().strip()).isdecimal():
        limits.append(float(text))
    return min(limits)


def parse_size(value: object, name: str = "memory") -> float | None:
    """Return a size such as "4GB", or a number of bytes, in bytes; None stays None.

    Raises:
        InputError: It is neither.
    """
    if value is None:
        return None
    match = _SIZE.fullmatch(str(value).strip()) if not isinstance(value, bool) else None
    size = float(match[1]) * 1000.0 ** " kmgt".index(match[2].lower() or " ") if match else 0.0
    if not size:
        raise InputError(f"{name}: expected a size such as 4GB or 500MB, got {value!r:.100}")
    return size


def format_size(size: float) -> str:
    """Return a size as `parse_size` reads it: "4GB"."""
    return f"{size / 1e9:.4g}GB" if size >= 1e9 else f"{size / 1e6:.4g}MB"

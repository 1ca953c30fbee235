"""Training rows on disk, read as needed in an order that mixes the whole table.

An epoch's order is a function of (seed, epoch): the blocks of neighbouring rows are shuffled and dealt into groups,
each group is read into memory and its rows are shuffled, and batches are cut from one group after the other. The disk
thus reads long stretches, a batch has rows from all over the table, and each row occurs once per epoch.

Files are read rather than mapped, because mapped pages would count as memory of this process.
"""

import math
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from types import TracebackType
from typing import Self

import numpy as np
import torch
from jaxtyping import Float32, Int
from torch import Tensor

from dspp.batches import derive_seed
from dspp.config import TrainConfig
from dspp.errors import InputError
from dspp.gp.inducing import START_ROWS
from dspp.presets import Spec
from dspp.training.cache import RowCache
from dspp.training.rows import Rows, find_device

BLOCK_ROWS = 1024  # consecutive rows that are read together
GROUP_BYTES = 64 << 20  # size of the rows shuffled together; two groups are in memory at a time
BLOCKS, IN_GROUP, START = 1, 2, 3  # purposes of derived seeds


class DiskRows:
    """A `Source` of the rows in a cache.

    Args:
        cache: the standardised rows.
        spec: the model, which sets the dtype of the rows.
        config: training settings, which set the device of the rows and the seed of `start`.
        block_rows: rows per block.
        group_bytes: maximum size of a group.
        start_rows: maximum number of rows of `start`.

    Raises:
        InputError: the cache does not exist.
    """

    def __init__(
        self,
        cache: RowCache,
        spec: Spec,
        config: TrainConfig,
        block_rows: int = BLOCK_ROWS,
        group_bytes: int = GROUP_BYTES,
        start_rows: int = START_ROWS,
    ) -> None:
        self.cache, self._seed, self._start_rows = cache, config.seed, start_rows
        self._dtype, self._device = getattr(torch, spec.model.dtype), find_device(config.device)
        self.block_rows = block_rows
        self.group_blocks = max(1, group_bytes // (block_rows * cache.row_bytes))
        try:
            self._file = cache.path.open("rb", buffering=0)
        except OSError as problem:
            raise InputError(
                f"cannot read the cache {cache.path}: {problem.strerror}; run the same call again"
            ) from None
        self._position = threading.Lock()  # of the file, which the reader and the caller share
        self.reader = ThreadPoolExecutor(1, "dspp-read")  # its thread starts with the first group

    def __len__(self) -> int:
        return self.cache.num_rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.reader.shutdown(cancel_futures=True)
        self._file.close()

    @property
    def content(self) -> dict[str, Tensor]:
        """What identifies the rows in a checkpoint: the hash that the cache was written with."""
        return {"cache": torch.tensor(list(bytes.fromhex(self.cache.sha256)), dtype=torch.uint8)}

    @cached_property
    def start(self) -> Rows:
        """Rows drawn at random, in random order, as a function of the seed."""
        count = min(len(self), self._start_rows)
        random = np.random.default_rng(derive_seed(self._seed, START))
        chosen = random.choice(len(self), count, replace=False)
        order = np.argsort(chosen)
        table = torch.empty(count, self.cache.width, dtype=torch.float32)
        for place, row in zip(order, chosen[order], strict=True):  # in the order of the file
            self._read(int(row), table[place : place + 1].numpy())
        return self.to_rows(table)

    def batches(self, batch_size: int, seed: int, epoch: int) -> "DiskBatches":
        """Return the batches of an epoch."""
        return DiskBatches(self, batch_size, seed, epoch)

    def to_rows(self, table: Tensor) -> Rows:
        """Split rows of the file into x and y and move them to the device."""
        width = self.cache.num_inputs
        x, y = table[:, :width], table[:, width:]
        return Rows(x.contiguous().to(self._device, self._dtype), y.contiguous().to(self._device, self._dtype))

    def block_lengths(self, blocks: Int[np.ndarray, " B"]) -> Int[np.ndarray, " B"]:
        """Return the number of rows of each block; only the last may be shorter."""
        return np.asarray(np.minimum(self.block_rows, len(self) - blocks * self.block_rows))

    def read_blocks(self, blocks: Int[np.ndarray, " B"]) -> Tensor:
        """Return the rows of these blocks, in this order."""
        lengths = self.block_lengths(blocks)
        table = torch.empty(int(lengths.sum()), self.cache.width, dtype=torch.float32)
        done = 0
        for block, length in zip(blocks.tolist(), lengths.tolist(), strict=True):
            self._read(block * self.block_rows, table[done : done + length].numpy())
            done += length
        return table

    def _read(self, first_row: int, out: Float32[np.ndarray, "n W"]) -> None:
        offset, left = self.cache.offset + first_row * self.cache.row_bytes, out.data.cast("B")
        while left:
            try:
                with self._position:  # not preadv, which Windows lacks
                    self._file.seek(offset)
                    count = self._file.readinto(left)
            except OSError as problem:
                raise InputError(f"cannot read the cache {self.cache.path}: {problem.strerror}") from None
            if not count:
                raise InputError(f"the cache {self.cache.path} was truncated while in use; run the same call again")
            offset, left = offset + count, left[count:]


class DiskBatches:
    """The batches of an epoch, by number; the next group is read in the background."""

    def __init__(self, rows: DiskRows, batch_size: int, seed: int, epoch: int) -> None:
        self._rows, self._words = rows, (seed, epoch)
        self._count = math.ceil(len(rows) / batch_size)
        num_blocks = math.ceil(len(rows) / rows.block_rows)
        order = np.random.default_rng(derive_seed(seed, epoch, BLOCKS)).permutation(num_blocks)
        self._groups = np.array_split(order, math.ceil(num_blocks / rows.group_blocks))
        lengths = [int(rows.block_lengths(blocks).sum()) for blocks in self._groups]
        self._begins = np.cumsum([0, *lengths])
        self._at: tuple[int, Tensor, Tensor] | None = None  # the group in use: number, rows, order
        self._next: tuple[int, Future[Tensor]] | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> Rows:
        """Return batch `number`, on the device."""
        if not 0 <= number < self._count:
            raise IndexError(number)
        begin, end = self._cut(number), self._cut(number + 1)
        group = int(np.searchsorted(self._begins, begin, side="right")) - 1
        parts = []
        while begin < end:
            table, order = self._group(group)
            first = int(self._begins[group])
            picked = order[begin - first : end - first]
            parts.append(table.index_select(0, picked))
            begin, group = begin + len(picked), group + 1
            del table, order  # otherwise three groups would be in memory when a batch spans two
        return self._rows.to_rows(parts[0] if len(parts) == 1 else torch.cat(parts))

    def _cut(self, number: int) -> int:
        """Return the first row of a batch; sizes of batches differ by at most one."""
        size, more = divmod(len(self._rows), self._count)
        return number * size + min(number, more)

    def _group(self, number: int) -> tuple[Tensor, Tensor]:
        """Return the rows of a group and their order."""
        if self._at is None or self._at[0] != number:
            self._at = None  # frees its memory before another group is read
            if self._next is None or self._next[0] != number:
                self._ask(number)
            assert self._next is not None
            table = self._next[1].result()
            self._next = None
            if number + 1 < len(self._groups):
                self._ask(number + 1)
            generator = torch.Generator().manual_seed(derive_seed(*self._words, IN_GROUP, number))
            self._at = number, table, torch.randperm(len(table), generator=generator)
        return self._at[1:]

    def _ask(self, number: int) -> None:
        self._next = number, self._rows.reader.submit(self._rows.read_blocks, self._groups[number])

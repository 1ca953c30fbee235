"""Mini-batches as a pure function of seed and epoch, so that a resumed run sees the same batches."""

import numpy as np
import torch
from jaxtyping import Int

from dspp.errors import InputError


def derive_seed(*words: int) -> int:
    """Mix non-negative integers below 2⁶⁴ into one seed of 63 bits.

    Neighbouring words give unrelated seeds, and `derive_seed(1)` is not `derive_seed(1, 0)`.

    Raises:
        InputError: A word is not such an integer, or there are none.
    """
    if not words or not all(isinstance(word, int | np.integer) and 0 <= word < 2**64 for word in words):
        raise InputError(f"seed: expected integers from 0 to 2**64 - 1, got {words!r}; try 0")
    # SeedSequence pads with zeros and splits large words; the count and the fixed split distinguish (1,) from (1, 0),
    # and (2**32,) from (0, 1).
    halves = [half for word in words for half in (int(word) & 0xFFFFFFFF, int(word) >> 32)]
    state = np.random.SeedSequence([len(words), *halves]).generate_state(1, np.uint64)
    return int(state[0]) >> 1


def batch_indices(num_rows: int, batch_size: int, seed: int, epoch: int) -> list[Int[torch.Tensor, " _"]]:
    """Return the row numbers of each batch of an epoch: every row once, in an order set by (seed, epoch).

    There are ⌈num_rows / batch_size⌉ batches whose sizes differ by at most one, so that no
    optimiser step uses only a few left-over rows.

    Raises:
        InputError: There are no rows, or the batch size is below 1.
    """
    if num_rows < 1 or batch_size < 1:
        raise InputError(
            f"expected num_rows ≥ 1 and batch_size ≥ 1, got {num_rows} and {batch_size}; "
            "pass at least one row, and a batch size such as 500"
        )
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    order = torch.randperm(num_rows, generator=generator)
    return list(order.tensor_split(-(-num_rows // batch_size)))

"""Random splits of the rows of a table: training, test, validation."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from dspp.batches import derive_seed
from dspp.errors import InputError


def split(num_rows: int, parts: Sequence[float] = (15, 3, 2), seed: int = 0) -> tuple[Int[np.ndarray, " _"], ...]:
    """Return one array of row numbers per part: disjoint, together all rows, reproducible by the seed.

    Args:
        num_rows: The number of rows to split.
        parts: The relative sizes of the parts. The default is the paper's: training, test and validation rows.
        seed: Selects the split.

    Raises:
        InputError: A part is not positive, or would be empty.
    """
    shares = np.asarray(parts, dtype=np.float64)
    if shares.ndim != 1 or not shares.size or not np.all(np.isfinite(shares) & (shares > 0)):
        raise InputError(f"parts: expected one or more positive numbers, got {parts!r}; try (15, 3, 2)")
    ends = np.rint(num_rows * np.cumsum(shares) / shares.sum()).astype(np.int64)
    if np.any(np.diff(ends, prepend=0) < 1):
        enough = int(np.ceil(shares.sum() / shares.min()))
        raise InputError(
            f"expected enough rows for parts {parts!r}, got {num_rows}, which leaves a part empty; "
            f"pass at least {enough} rows or fewer parts"
        )
    order = np.random.default_rng(derive_seed(seed)).permutation(num_rows)
    return tuple(np.split(order, ends[:-1]))

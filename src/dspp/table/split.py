"""Random splits of the rows of a table: training, test, validation."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from dspp.batches import derive_seed
from dspp.errors import InputError


def split(
    num_rows: int, parts: Sequence[float] = (15, 3, 2), seed: int = 0, strata: Int[np.ndarray, " N"] | None = None
) -> tuple[Int[np.ndarray, " _"], ...]:
    """Return one array of row numbers per part: disjoint, together all rows, reproducible by the seed.

    Args:
        num_rows: The number of rows to split.
        parts: The relative sizes of the parts. The default is the paper's: training, test and validation rows.
        seed: Selects the split.
        strata: Of each row; every part has its share of each. None: there are none.

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
    if strata is not None:
        order = np.argsort(spread_evenly(order, strata))
    return tuple(np.split(order, ends[:-1]))


def spread_evenly(order: Int[np.ndarray, " N"], strata: Int[np.ndarray, " N"]) -> Int[np.ndarray, " N"]:
    """Return the rank of each row, random within its stratum, such that any span of ranks has its share of each."""
    place = np.empty(len(order))
    for stratum in np.unique(strata):
        own = strata == stratum
        place[own] = (np.argsort(np.argsort(order[own])) + 0.5) / own.sum()
    return np.argsort(np.lexsort((order, place)))

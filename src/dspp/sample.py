"""A sample of rows that are predicted in batches: evenly spaced, of bounded size, whatever their number."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Int

from dspp.predictive import Predictive
from dspp.table.table import Table

SAMPLE_ROWS: Final = 32_768  # at most, and at least half as many of a larger table
SCORED_ROWS: Final = 16_384  # in a batch


class Sample:
    """Every k-th row and its distribution, where k is the smallest power of two with at most `SAMPLE_ROWS` rows."""

    def __init__(self) -> None:
        self._parts: list[tuple[Int[np.ndarray, " n"], Table, Predictive]] = []
        self._stride, self._seen = 1, 0

    def add(self, rows: Table, distribution: Predictive) -> None:
        """Add a batch."""
        self._parts.append((np.arange(self._seen, self._seen + len(rows)), rows, distribution))
        self._seen += len(rows)
        while -(-self._seen // self._stride) > SAMPLE_ROWS:
            self._stride *= 2
        for k, (index, table, part) in enumerate(self._parts):
            kept = np.flatnonzero(index % self._stride == 0)
            self._parts[k] = index[kept], table.take(kept), part.rows(torch.from_numpy(kept))

    def join(self) -> tuple[Int[np.ndarray, " n"], Table, Predictive]:
        """Return the numbers of the sampled rows, the rows, and their distributions."""
        index, tables, distributions = zip(*self._parts, strict=True)
        parts = [part for numbers, part in zip(index, distributions, strict=True) if len(numbers)]
        return np.concatenate(index), _concat(tables), type(parts[0]).concat(parts)


def _concat(parts: Sequence[Table]) -> Table:
    """Return the rows of parts of the same table."""

    def joined(name: str) -> np.ndarray | None:
        found = [getattr(part, name) for part in parts]
        return None if found[0] is None else np.concatenate(found)

    arrow = [part.arrow for part in parts if part.arrow is not None]
    return replace(
        parts[0],
        arrow=pa.concat_tables(arrow) if arrow else None,
        array=joined("array"),
        y=joined("y"),
        weights=joined("weights"),
        numbers=np.concatenate([part.row_numbers for part in parts]),
        parsed=None,
    )

"""Recognition of rows that a model was trained on, by a few hashes of them."""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from dspp.encoding.encoder import TableEncoder
from dspp.numbers import plain_percent

# Hashes kept of the training rows: the smallest ones, so that rows of training among others are found.
MAX_HASHES = 1_000
# Share of distinct hashes among those of the training rows: where more rows are equal, new rows equal them by chance.
MIN_DISTINCT = 0.9
# Share of known rows that is mentioned, and their number, unless the hashes are of all training rows.
NOTICED, MIN_KNOWN = 0.05, 3

_PRIME = np.uint64(0x9E3779B97F4A7C15)

Hashes = Int[np.ndarray, " k"]


def hash_rows(
    X: Float[np.ndarray, "N D"], y: Float[np.ndarray, "N T"], encoder: TableEncoder | None
) -> Int[np.ndarray, " N"]:
    """Return a hash of each row's encoded columns and targets, rounded to float32.

    Columns of mean targets are left out, as rows of training have other means than new ones.
    """
    found = np.zeros(len(X), np.uint64)
    means = [] if encoder is None else encoder.mean_features
    for column in (*np.delete(X, means, axis=1).T, *y.T):
        with np.errstate(over="ignore"):
            bits = (column.astype(np.float32) + np.float32(0.0)).view(np.uint32)  # −0 becomes 0
        found = (found ^ bits) * _PRIME
        found ^= found >> np.uint64(29)
    return found.view(np.int64)


def choose_hashes(hashes: Int[np.ndarray, " N"]) -> Hashes | None:
    """Return the hashes to keep of the training rows, in ascending order; None if too many rows are equal."""
    distinct = np.unique(hashes)
    return distinct[:MAX_HASHES] if len(distinct) >= MIN_DISTINCT * len(hashes) else None


@dataclass
class Recogniser:
    """Counts, batch by batch, the rows whose hashes would have been kept of the training rows, and those that were."""

    kept: Hashes | None  # of the training rows; None: not known
    comparable: int = field(default=0, init=False)
    known: int = field(default=0, init=False)

    def count(self, hashes: Int[np.ndarray, " n"]) -> None:
        """Count rows with these hashes."""
        if self.kept is not None and len(self.kept):
            own = hashes if len(self.kept) < MAX_HASHES else hashes[hashes <= self.kept[-1]]
            self.comparable += len(own)
            self.known += int(np.isin(own, self.kept).sum())

    def caveat(self) -> str:
        """Return a sentence on rows of training; empty if there are hardly any."""
        share = self.known / max(1, self.comparable)
        certain = self.kept is not None and len(self.kept) < MAX_HASHES
        if share < NOTICED or not (certain or self.known >= MIN_KNOWN):
            return ""
        which = "these rows" if share > 0.99 else f"about {plain_percent(share)} of these rows"
        return f"The model was trained on {which}, so this is optimistic; score new rows with dspp evaluate."

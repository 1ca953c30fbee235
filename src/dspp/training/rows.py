"""Rows as the model sees them: checked, on its device, in its dtype."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from dspp.batches import batch_indices
from dspp.config import TrainConfig
from dspp.errors import InputError
from dspp.presets import Spec
from dspp.table.checks import Array, check_width, check_X, check_y
from dspp.table.roles import check_weights


@dataclass(frozen=True)
class Rows:
    """Inputs (N, D) and targets (N, T); NaN among several targets of a row means "not observed".

    Weights are positive, with mean one over the table that the rows are from; None: all are one.
    """

    x: Float[Tensor, "N D"]
    y: Float[Tensor, "N T"]
    weights: Float[Tensor, " N"] | None = None

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: slice | Tensor) -> "Rows":
        """Return some of the rows."""
        return Rows(self.x[rows], self.y[rows], None if self.weights is None else self.weights[rows])

    @property
    def start(self) -> "Rows":
        """All rows; see `Source`."""
        return self

    @property
    def content(self) -> dict[str, Tensor]:
        """What identifies the rows in a checkpoint; a single target is (N,), as in the first checkpoints."""
        weights = {} if self.weights is None else {"weights": self.weights}
        return {"x": self.x, "y": self.y[:, 0] if self.y.shape[1] == 1 else self.y, **weights}

    def join(self, other: "Rows") -> "Rows":
        """Return these rows and then the others."""
        weights = None
        if self.weights is not None or other.weights is not None:
            weights = torch.cat(
                [rows.x.new_ones(len(rows)) if rows.weights is None else rows.weights for rows in (self, other)]
            )
        return Rows(torch.cat([self.x, other.x]), torch.cat([self.y, other.y]), weights)

    def batches(self, batch_size: int, seed: int, epoch: int) -> "Batches":
        """Return the batches of an epoch; see `Source`."""
        return _MemoryBatches(self, batch_indices(len(self), batch_size, seed, epoch))


class Batches(Protocol):
    """The batches of an epoch, by number."""

    def __getitem__(self, number: int) -> Rows:
        """Return batch `number`, on the device."""


class Source(Protocol):
    """Training rows, in memory (`Rows`) or on disk (`DiskRows`)."""

    def __len__(self) -> int:
        """Return the number of rows."""

    @property
    def start(self) -> Rows:
        """Rows in memory, all or a random part, on which models are initialised and starts compared."""

    @property
    def content(self) -> dict[str, Tensor]:
        """What identifies the rows in a checkpoint: tensors that are equal only for equal rows."""

    def batches(self, batch_size: int, seed: int, epoch: int) -> Batches:
        """Return each row once, in ⌈N / batch_size⌉ batches whose order is a function of seed and epoch."""


@dataclass(frozen=True)
class _MemoryBatches:
    """Batches of rows in memory."""

    rows: Rows
    indices: Sequence[Tensor]

    def __getitem__(self, number: int) -> Rows:
        return self.rows[self.indices[number].to(self.rows.x.device)]


def to_arguments(rows: Source) -> dict[str, Any]:
    """Return training rows as arguments of `fit`."""
    return {"X": rows.x, "y": rows.y, "weights": rows.weights} if isinstance(rows, Rows) else {"X": rows}


def training_rows(X: Array | Source, y: Array | None, weights: Array | None, spec: Spec, config: TrainConfig) -> Source:
    """Check the training rows and move them to the device; a `Source` is returned as it is."""
    if y is None:
        if not callable(getattr(X, "batches", None)):
            raise InputError("expected targets y, got none; pass y with one row for each row of X")
        return cast(Source, X)
    X64 = check_X(cast(Array, X))
    return _to_rows(X64, check_y(y, len(X64), missing=True), weights, "weights", spec, config)


def validation_rows(
    X: Array | None, y: Array | None, weights: Array | None, like: Source, spec: Spec, config: TrainConfig
) -> Rows | None:
    """Check the validation rows against the training rows `like`; return None if there are none."""
    if X is None and y is None:
        return None
    if X is None or y is None:
        raise InputError("expected both X_val and y_val or neither, got only one of them")
    X64 = check_X(X, "X_val")
    y64 = check_y(y, len(X64), "y_val", missing=True, every_output=False)
    check_width(X64, like.start.x.shape[1])
    outputs = like.start.y.shape[1]
    if y64[:1].size != outputs:
        raise InputError(f"y_val: expected as many outputs as y, {outputs}, got shape {y64.shape}")
    return _to_rows(X64, y64, weights, "weights_val", spec, config)


def _to_rows(
    X64: NDArray[np.float64],
    y64: NDArray[np.float64],
    weights: Array | None,
    name: str,
    spec: Spec,
    config: TrainConfig,
) -> Rows:
    """Return the rows on the device, without those of weight 0."""
    dtype, device = getattr(torch, spec.model.dtype), find_device(config.device)
    y = torch.from_numpy(y64.reshape(len(y64), -1))
    rows = Rows(torch.from_numpy(X64).to(device, dtype), y.to(device, dtype))
    if weights is None:
        return rows
    w = torch.from_numpy(check_weights(weights, len(X64), name)).to(device, dtype)
    return replace(rows, weights=w)[w > 0]


def find_device(name: str) -> torch.device:
    """Return the device of this name.

    Raises:
        InputError: there is no such device.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device: expected 'cpu' or 'cuda', got {name!r}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device: got 'cuda', but torch finds no CUDA device; use device='cpu'")
    return device

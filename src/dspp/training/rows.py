"""Rows as the model sees them: checked, on its device, in its dtype."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

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


@dataclass(frozen=True)
class Rows:
    """Inputs (N, D) and targets (N, T); NaN among several targets of a row means "not observed"."""

    x: Float[Tensor, "N D"]
    y: Float[Tensor, "N T"]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: slice | Tensor) -> "Rows":
        """Return some of the rows."""
        return Rows(self.x[rows], self.y[rows])

    @property
    def start(self) -> "Rows":
        """All rows; see `Source`."""
        return self

    @property
    def content(self) -> dict[str, Tensor]:
        """What identifies the rows in a checkpoint; a single target is (N,), as in the first checkpoints."""
        return {"x": self.x, "y": self.y[:, 0] if self.y.shape[1] == 1 else self.y}

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


def training_rows(X: Array | Source, y: Array | None, spec: Spec, config: TrainConfig) -> Source:
    """Check the training rows and move them to the device; a `Source` is returned as it is."""
    if y is None:
        if not callable(getattr(X, "batches", None)):
            raise InputError("expected targets y, got none; pass y with one row for each row of X")
        return cast(Source, X)
    X64 = check_X(cast(Array, X))
    return _to_rows(X64, check_y(y, len(X64), missing=True), spec, config)


def validation_rows(X: Array | None, y: Array | None, like: Source, spec: Spec, config: TrainConfig) -> Rows | None:
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
    return _to_rows(X64, y64, spec, config)


def _to_rows(X64: NDArray[np.float64], y64: NDArray[np.float64], spec: Spec, config: TrainConfig) -> Rows:
    dtype, device = getattr(torch, spec.model.dtype), find_device(config.device)
    y = torch.from_numpy(y64.reshape(len(y64), -1))
    return Rows(torch.from_numpy(X64).to(device, dtype), y.to(device, dtype))


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

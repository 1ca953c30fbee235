"""Rows as the model sees them: checked, on the device, in its dtype."""

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
        """Some of the rows."""
        return Rows(self.x[rows], self.y[rows])

    @property
    def start(self) -> "Rows":
        """All of them: see `Source`."""
        return self

    @property
    def content(self) -> dict[str, Tensor]:
        """What a checkpoint knows them by; a single target as (N,), as the first checkpoints had it."""
        return {"x": self.x, "y": self.y[:, 0] if self.y.shape[1] == 1 else self.y}

    def batches(self, batch_size: int, seed: int, epoch: int) -> "Batches":
        """The batches of an epoch: see `Source`."""
        return _Picked(self, batch_indices(len(self), batch_size, seed, epoch))


class Batches(Protocol):
    """The batches of an epoch, by number."""

    def __getitem__(self, number: int) -> Rows:
        """Batch `number`, on the device."""


class Source(Protocol):
    """Training rows, wherever they are: in memory (`Rows`), or on a disk."""

    def __len__(self) -> int:
        """How many there are."""

    @property
    def start(self) -> Rows:
        """Rows in memory, of the whole table or a random part of it: models start on them and are compared on them."""

    @property
    def content(self) -> dict[str, Tensor]:
        """Tensors that are equal for equal rows only: what a checkpoint knows them by."""

    def batches(self, batch_size: int, seed: int, epoch: int) -> Batches:
        """Every row once, in ⌈N / batch_size⌉ batches whose order is a function of seed and epoch."""


@dataclass(frozen=True)
class _Picked:
    """Batches of rows in memory."""

    rows: Rows
    indices: Sequence[Tensor]

    def __getitem__(self, number: int) -> Rows:
        return self.rows[self.indices[number].to(self.rows.x.device)]


def training_rows(X: Array | Source, y: Array | None, spec: Spec, config: TrainConfig) -> Source:
    """Check the training rows and put them on the device; a source has done so itself."""
    if y is None:
        if not callable(getattr(X, "batches", None)):
            raise InputError("got no targets: pass y, one row for each row of X")
        return cast(Source, X)
    X64 = check_X(cast(Array, X))
    return _placed(X64, check_y(y, len(X64), missing=True), spec, config)


def validation_rows(X: Array | None, y: Array | None, like: Source, spec: Spec, config: TrainConfig) -> Rows | None:
    """Check the validation rows, which must look `like` the training rows; None when there are none."""
    if X is None and y is None:
        return None
    if X is None or y is None:
        raise InputError("got only one of X_val and y_val, expected both or neither")
    X64 = check_X(X, "X_val")
    y64 = check_y(y, len(X64), "y_val", missing=True, every_output=False)
    check_width(X64, like.start.x.shape[1])
    outputs = like.start.y.shape[1]
    if y64[:1].size != outputs:
        raise InputError(f"y_val has shape {y64.shape}, expected as many outputs as y has: {outputs}")
    return _placed(X64, y64, spec, config)


def _placed(X64: NDArray[np.float64], y64: NDArray[np.float64], spec: Spec, config: TrainConfig) -> Rows:
    dtype, device = getattr(torch, spec.model.dtype), device_of(config.device)
    y = torch.from_numpy(y64.reshape(len(y64), -1))
    return Rows(torch.from_numpy(X64).to(device, dtype), y.to(device, dtype))


def device_of(name: str) -> torch.device:
    """The device of this name.

    Raises:
        InputError: there is none.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"unknown device {name!r}; use 'cpu' or 'cuda'") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device 'cuda' was asked for, but torch finds no CUDA device here; use device='cpu'")
    return device

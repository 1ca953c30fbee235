"""Rows as the model sees them: checked, on its device, in its dtype."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from dspp.config import TrainConfig
from dspp.errors import InputError
from dspp.presets import Spec
from dspp.table.checks import Array, check_weights, check_width, check_X, check_y


@dataclass(frozen=True)
class Rows:
    """Inputs (N, D) and encoded targets (N, E), standardised; NaN among several targets means "not observed".

    Weights are positive, with mean one over the table that the rows are from; None: all are one.

    Example:
        >>> import numpy as np
        >>> from dspp import Rows
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> rows = Rows.of(X, X[:, 0])
        >>> len(rows), rows.y.shape
        (60, torch.Size([60, 1]))
    """

    x: Float[Tensor, "N D"]
    y: Float[Tensor, "N E"]
    weights: Float[Tensor, " N"] | None = None

    @classmethod
    def of(cls, X: Array, y: Array, weights: Array | None = None) -> "Rows":
        """Return checked rows of arrays, in float64, without those of weight 0.

        Args:
            X: inputs (N, D): array, tensor or nested lists.
            y: targets, (N,) for one output or (N, T) for several, where NaN means "not observed".
            weights: one number ≥ 0 per row, of which only the ratios matter; None: all rows count once.

        Raises:
            InputError: they are not finite numbers in these shapes, or a row has no observed target.
        """
        x = torch.from_numpy(check_X(X))
        targets = check_y(y, len(x), missing=True)
        rows = cls(x, torch.from_numpy(targets.reshape(len(x), -1)))
        if weights is None:
            return rows
        checked = torch.from_numpy(check_weights(weights, len(x), "weights"))
        return replace(rows, weights=checked)[checked > 0]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, rows: slice | Tensor) -> "Rows":
        """Return some of the rows."""
        return Rows(self.x[rows], self.y[rows], None if self.weights is None else self.weights[rows])

    def join(self, other: "Rows") -> "Rows":
        """Return these rows and then the others."""
        weights = None
        if self.weights is not None or other.weights is not None:
            weights = torch.cat(
                [rows.x.new_ones(len(rows)) if rows.weights is None else rows.weights for rows in (self, other)]
            )
        return Rows(torch.cat([self.x, other.x]), torch.cat([self.y, other.y]), weights)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {"x": self.x, "y": self.y} | ({} if self.weights is None else {"weights": self.weights})


def place_rows(rows: Rows, validation: Rows | None, spec: Spec, config: TrainConfig) -> tuple[Rows, Rows | None]:
    """Return training and validation rows on the device, in the model's dtype, with weights of mean one.

    Raises:
        InputError: there are no training rows, an output is not observed in any of them, or the validation rows do not
            have their columns.
    """
    if not len(rows):
        raise InputError("rows: expected at least one training row, got none; check the file or filter they came from")
    unobserved = rows.y.isnan().all(0).nonzero()
    if len(unobserved):
        raise InputError(
            f"y: expected each output to be observed in some row, got only NaN in column {int(unobserved[0])} "
            f"({len(unobserved)} such columns in total); leave out these outputs"
        )
    if validation is None:
        return _place(rows, spec, config), None
    check_width(validation.x, rows.x.shape[1])
    expected, got = rows.y.shape[1], validation.y.shape[1]
    if got != expected:
        raise InputError(f"validation: expected as many outputs as in the training rows, {expected}, got {got}")
    return _place(rows, spec, config), _place(validation, spec, config)


def _place(rows: Rows, spec: Spec, config: TrainConfig) -> Rows:
    dtype, device = getattr(torch, spec.model.dtype), _find_device(config.device)
    moved = Rows(rows.x.to(device, dtype), rows.y.to(device, dtype))
    if rows.weights is None:
        return moved
    weights = torch.from_numpy(check_weights(rows.weights, len(rows), "weights")).to(device, dtype)
    return replace(moved, weights=weights)[weights > 0]


def _find_device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device: expected 'cpu' or 'cuda', got {name!r}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError("device: got 'cuda', but torch finds no CUDA device; use device='cpu'")
    return device

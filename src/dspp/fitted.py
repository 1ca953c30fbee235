"""A fitted model: everything that turns the user's rows into the user's distribution, and how it came about."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dspp.calibration import Conformal
from dspp.config import TrainConfig
from dspp.data.checks import Table, check_width, check_X
from dspp.data.encoding import TableEncoder
from dspp.data.scaling import Standardizer
from dspp.errors import InputError
from dspp.history import Epoch
from dspp.likelihoods import Codec
from dspp.model import Model, Predictor
from dspp.predictive import Predictive
from dspp.presets import Spec


@dataclass(frozen=True, eq=False)
class Fitted:
    """What `fit` leaves behind, `modelfile.save` keeps and every prediction comes from."""

    spec: Spec  # the model and its objective
    train: TrainConfig  # how it was trained
    model: Model  # works in standardised units
    scale_X: Standardizer  # noqa: N815 - X is a matrix; of the encoded columns, (D,)
    codec: Codec  # from the user's targets to standardised ones and back
    encoder: TableEncoder | None  # from a table's columns to numbers; None: the rows were numbers
    feature_names: tuple[str, ...] | None  # of the encoded columns; None: they have none
    target_names: tuple[str, ...]  # of the outputs
    history: tuple[Epoch, ...]
    best_epoch: int | None  # the epoch that was kept, when there were validation rows
    metrics: dict[str, float]  # scores on the validation rows
    notes: tuple[str, ...]  # what the user should know
    seconds: float  # that training took
    versions: dict[str, str]  # of dspp, Python and the libraries that trained it
    conformal: Float[Tensor, "n T"] | None  # calibration scores in float64: see calibration.Conformal
    num_rows: int  # training rows

    @property
    def num_inputs(self) -> int:
        """D, the columns of the encoded rows."""
        return len(self.scale_X.mean)

    @property
    def num_outputs(self) -> int:
        """T, the number of outputs."""
        return len(self.codec.scale.mean)

    @property
    def recalibration(self) -> Conformal | None:
        """What recalibrates its intervals, if anything does."""
        if self.conformal is None:
            return None
        return Conformal(self.conformal[:, 0] if self.num_outputs == 1 else self.conformal)

    @cached_property
    def predictor(self) -> Predictor:
        """The model frozen for predictions, made when first asked for; changes of the model after that go unnoticed.

        Raises:
            NumericalError: the kernel matrix of the inducing points cannot be factorised.
        """
        return self.model.predictor()

    def distribution(self, X: Table, first_row: int = 0, where: str = "X") -> Predictive:
        """The predictive distribution of each row of X (N, D), encoded but not scaled; in the units of y, density too.

        Args:
            X: The rows.
            first_row: The number that errors give to the first row.
            where: What errors call the table.

        Raises:
            InputError: X is not a table of finite numbers with D columns, or a number is too large for the model.
        """
        rows = check_X(X)
        check_width(rows, self.num_inputs)
        numbers = range(first_row, first_row + len(rows))
        inputs = standardised(rows, self.scale_X, self.spec, self.feature_names, where, numbers)
        return self.codec.decode(self.predictor(inputs))


def standardised(
    rows: Float[np.ndarray, "N ..."],
    scale: Standardizer,
    spec: Spec,
    names: Sequence[str] | None,
    where: str,
    labels: Sequence[object],
) -> Float[np.ndarray, "N ..."]:
    """Inputs or targets on the scale of the training rows.

    Args:
        rows: The inputs (N, D), or the targets (N,) or (N, T), NaN where not observed.
        scale: Of the training rows.
        spec: The model, whose numbers must stay finite.
        names: Of the columns.
        where: What errors call the table.
        labels: What errors call the rows.

    Raises:
        InputError: One lies farther out than a thousandth of where its square leaves the model's dtype.
    """
    farthest = math.sqrt(torch.finfo(getattr(torch, spec.model.dtype)).max) / 1000
    with np.errstate(over="ignore"):  # what leaves float64 is reported
        scaled: Float[np.ndarray, "N ..."] = scale.transform(rows)
    far = np.argwhere(np.abs(scaled) > farthest)
    if len(far):
        at = tuple(far[0].tolist())
        d = at[1] if len(at) > 1 else 0
        problem = (
            f"got {rows[at]:g}, {scaled[at]:.2g} standard deviations from the mean of the training rows, expected less "
            "for numbers to stay finite; if it marks a missing value, clear it"
        )
        column = str(d) if names is None else names[d]
        raise InputError(f"{where}: column {column!r}, row {labels[at[0]]}: {problem}")
    return scaled

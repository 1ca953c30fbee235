"""A fitted model: everything that turns the user's rows into the user's distribution, and how it came about."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from dspp.calibration import Calibration, Conformal, calibration_of
from dspp.config import TrainConfig
from dspp.encoding.encoder import IN_X, TableEncoder, encode
from dspp.encoding.scaling import Standardizer, standardise
from dspp.errors import InputError
from dspp.history import Epoch
from dspp.likelihoods import Codec
from dspp.metrics import Comparison
from dspp.model import Model, Predictor
from dspp.notes import Note
from dspp.predictive import Predictive, RealPredictive
from dspp.presets import Spec
from dspp.table.checks import Array, check_width, check_X
from dspp.table.messages import Place
from dspp.table.table import MemoryTable


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
    notes: tuple[Note, ...]  # what the user should know
    seconds: float  # that training took
    versions: dict[str, str]  # of dspp, Python and the libraries that trained it
    conformal: Float[Tensor, "n T"] | None  # calibration scores in float64: see calibration.Conformal
    num_rows: int  # training rows
    params: dict[str, Any] | None = None  # what the estimator was told; None: a file from before that was kept

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

    def distribution(self, X: Array, place: Place = IN_X) -> Predictive:
        """The predictive distribution of each row of X (N, D), encoded but not scaled; in the units of y, density too.

        Args:
            X: The rows.
            place: Where they stand, for errors.

        Raises:
            InputError: X is not a table of finite numbers with D columns, or a number is too large for the model.
        """
        rows = check_X(X)
        check_width(rows, self.num_inputs)
        return self.of_standardised(standardise(rows, self.scale_X, self.spec.model.dtype, self.feature_names, place))

    def of_standardised(self, X: Float[np.ndarray, "N D"] | Float[Tensor, "N D"]) -> Predictive:
        """The predictive distribution of rows that are encoded and scaled; in the units of y, density too."""
        return self.codec.decode(self.predictor(X))

    # ---------------------------------------------------------------- the user's tables

    def predict(self, table: MemoryTable) -> Predictive:
        """The predictive distribution of each row of a table.

        Raises:
            InputError: A column is missing, or a value does not read as what training had there.
        """
        if self.encoder is None and table.arrow is not None:
            table = table.select(name for name in table.names if name not in self.target_names)
            if len(table.names) != self.num_inputs:
                raise InputError(
                    f"{table.where}: got {len(table.names)} columns, expected {self.num_inputs}: this model was "
                    "trained on an array, whose columns have no names, so that it takes them in order"
                )
        return self.distribution(encode(table, self.encoder), table.place)

    def predictions(
        self,
        table: MemoryTable,
        quantiles: Sequence[float] = (),
        interval: float | None = None,
        components: bool = False,
        samples: int = 0,
        generator: torch.Generator | None = None,
        moments: bool = True,
    ) -> dict[str, Float[np.ndarray, " N"]]:
        """The columns of predictions for a table, output by output.

        Args:
            table: The rows.
            quantiles: Probabilities: TARGET_q0.05 and so on.
            interval: The share that a central interval is to hold: TARGET_lower and TARGET_upper.
            components: Whether to give weight, mean and spread of each component: TARGET_weight_0 and so on.
            samples: How many draws to give: TARGET_sample_0 and so on.
            generator: Of the draws.
            moments: Whether to give TARGET_mean and TARGET_std.
        """
        mixture = self.predict(table)
        draws = mixture.sample(samples, generator).reshape(samples, len(mixture), -1) if samples else None
        ends = None if interval is None else self._intervals(mixture, interval)
        columns: dict[str, Tensor] = {}
        for t, (name, one) in enumerate(zip(self.target_names, mixture.outputs(), strict=True)):
            if moments:
                columns |= {f"{name}_mean": one.mean, f"{name}_std": one.std}
            if len(quantiles):
                values = one.quantile(torch.tensor(quantiles, dtype=torch.float64))
                columns |= {f"{name}_{quantile_name(p)}": row for p, row in zip(quantiles, values, strict=True)}
            if ends is not None:
                columns |= {f"{name}_lower": ends[0][:, t], f"{name}_upper": ends[1][:, t]}
            if components:
                columns |= _components(name, one)
            if draws is not None:
                columns |= {f"{name}_sample_{k}": draws[k, :, t] for k in range(samples)}
        return {name: column.contiguous().numpy() for name, column in columns.items()}

    def _intervals(self, mixture: Predictive, coverage: float) -> tuple[Float[Tensor, "N T"], Float[Tensor, "N T"]]:
        """The ends of the central intervals, recalibrated where there are calibration scores."""
        if self.recalibration is not None:
            lower, upper = self.recalibration.interval(mixture, coverage)
            return lower.reshape(len(mixture), -1), upper.reshape(len(mixture), -1)
        pairs = [one.interval(coverage) for one in mixture.outputs()]
        lower, upper = (torch.stack(ends, dim=1) for ends in zip(*pairs, strict=True))
        return lower, upper

    def why_infinite(self, coverage: float | None) -> str:
        """Why recalibrated intervals are infinite, or nothing."""
        if coverage is None or self.recalibration is None:
            return ""
        why = self.recalibration.why_infinite(coverage, self.target_names)
        return f"at a coverage of {coverage:.6g} intervals are infinite: {why}" if why else ""

    def evaluate(self, table: MemoryTable) -> "Evaluation":
        """How good the model is on rows with targets.

        Of several outputs some may not have been observed at all; scores are then of the others.

        Raises:
            InputError: The rows cannot be used, or have another number of targets than the model.
        """
        mixture, y = self.predict(table), table.targets
        if y.shape[1] != len(self.target_names):
            raise InputError(
                f"y: expected shape {tuple(mixture.mean.shape)}, as predicted, got "
                f"{y.shape if y.shape[1] > 1 else y.shape[:1]}. "
                "Give the outputs that the model was fitted to."
            )
        return Evaluation(self, table, mixture)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A model, rows with targets, and what it predicts for them: each number is computed once, when asked for."""

    fitted: Fitted
    table: MemoryTable
    distribution: Predictive

    @property
    def y(self) -> Float[np.ndarray, " N *T"]:
        """What was observed, in the shape of the predicted mean."""
        return self.table.targets.reshape(self.distribution.mean.shape)

    @cached_property
    def comparison(self) -> Comparison:
        """The two side by side, as metrics see them."""
        return Comparison(self.distribution, self.y)

    @cached_property
    def scores(self) -> dict[str, float]:
        """Every score by name."""
        return self.comparison.scores()

    @cached_property
    def calibration(self) -> Calibration:
        """Whether the intervals hold what they promise."""
        return calibration_of(self.comparison, self.fitted.target_names, self.fitted.recalibration)


def quantile_name(level: float) -> str:
    """Return what follows "TARGET_" in the name of a quantile's column: no two levels share one."""
    return f"q{float(level)!r}"


def _components(name: str, one: RealPredictive) -> dict[str, Tensor]:
    """Weight, mean and standard deviation of each component."""
    columns: dict[str, Tensor] = {}
    std = one.component_var.sqrt()
    for k, weight in enumerate(one.weights):
        columns |= {
            f"{name}_weight_{k}": weight.expand(len(one)),
            f"{name}_mean_{k}": one.component_mean[k],
            f"{name}_std_{k}": std[k],
        }
    return columns

"""Real numbers: one or several targets, whose values NaN marks as not observed if there are several."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dspp.calibration import Calibration, calibration_of
from dspp.encoding.scaling import Standardizer
from dspp.likelihoods import LIKELIHOODS, Gaussian
from dspp.metrics import METRICS, Comparison, Levels
from dspp.notes import Note
from dspp.outcomes.base import OUTCOMES, Encoded, Ends, Outcome, Values, Wanted, to_targets
from dspp.outcomes.choice import choose_outcome
from dspp.outcomes.notes import censoring_notes, negative_note, target_notes
from dspp.predictive import Predictive, RealPredictive
from dspp.table.discrete import MAX_DISTINCT, distinct_values
from dspp.table.memory import attach_targets, read_numbers
from dspp.table.messages import Place
from dspp.table.table import Table

# Rows whose intervals show whether they begin below 0.
MAX_JUDGED = 2_000


@OUTCOMES.register("real")
class Real(Outcome):
    """Real targets, standardised."""

    kind: ClassVar[str] = "real"
    default_likelihood: ClassVar[str] = "gaussian"
    headlines: ClassVar[tuple[str, ...]] = ("nll", "rmse", "crps")
    score: ClassVar[str] = "r2"
    loss_name: ClassVar[str] = "CRPS"
    constant_name: ClassVar[str] = "one Normal for all rows"

    # ---------------------------------------------------------------- values and encoded columns

    @classmethod
    def start(cls, table: Table, y: Any, likelihood: str) -> tuple[Self, Table]:
        """Return the outcome of an array or frame of numbers, and the table with them."""
        labelled = attach_targets(table, y)
        return cls(labelled.target_names, likelihood), labelled

    def read(self, columns: pa.Table, place: Place) -> Values:
        """Return the columns as numbers."""
        return read_numbers(columns, place)

    def attach(self, table: Table, y: Any, name: str = "y") -> Table:
        """Return a table with an array or frame of numbers."""
        return attach_targets(table, y, name)

    def observed(self, values: Values) -> Bool[np.ndarray, "N O"]:
        """Return which outputs were observed in each row."""
        return np.asarray(~np.isnan(values))

    def to_numbers(self, values: Values, place: Place) -> Encoded:
        """Return the values as they are."""
        return values

    def notes(self, table: Table) -> list[Note]:
        """Return notes on constant targets, few distinct values, and times that may be censored."""
        return [*target_notes(table.targets, self.names), *censoring_notes(table)]

    # ---------------------------------------------------------------- models and members

    @property
    def member_kinds(self) -> tuple[str, ...]:
        """All for one target, if the noise of its likelihood allows a GP without steps."""
        if self.num_outputs > 1:
            return ("plain",)
        return ("plain", "trees", *(("gp", "boosted") if LIKELIHOODS[self.likelihood].closed_form else ()))

    def tree_target(self, y: Encoded) -> Float[np.ndarray, "N K"]:
        """Return the target if there is one; trees predict no more."""
        return y if self.num_outputs == 1 else y[:, :0]

    def choose(
        self,
        X: Float[np.ndarray, "N D"],
        values: Values,
        held_out: Values,
        seed: int,
        weights: Float[np.ndarray, " N"] | None = None,
        groups: Int[np.ndarray, " N"] | None = None,
        time_budget: float | None = None,
    ) -> tuple[Outcome, list[Note]]:
        """Return `positive` instead for one target whose spread grows with its size."""
        if self.likelihood != self.default_likelihood or values.shape[1] != 1 or (held_out <= 0.0).any():
            return self, []  # a log-normal must be able to score the rows held out
        name, notes = choose_outcome(X, values[:, 0], seed, weights, groups, time_budget)
        kind = OUTCOMES[name]
        return self if kind is type(self) else kind(self.names, kind.default_likelihood), notes

    # ---------------------------------------------------------------- distributions

    def decode(self, predictive: Predictive) -> Predictive:
        """Shift and scale."""
        decoded: Predictive = rescale(predictive, self.scale)
        return decoded

    # ---------------------------------------------------------------- what users get

    def point(self, predictive: Predictive) -> Tensor:
        """Return the mean."""
        return predictive.mean

    @property
    def point_columns(self) -> Mapping[str, type]:
        """The mean of each output."""
        return {f"{name}_mean": float for name in self.output_names}

    def columns(
        self, predictive: Predictive, wanted: Wanted, recalibrate: Callable[[float], Ends | None]
    ) -> dict[str, np.ndarray]:
        """Return the columns of each output, named TARGET_mean and so on."""
        ones, shape = predictive.outputs(), (len(predictive), len(self.output_names))
        intervals = {}
        for suffix, coverage in wanted.levels.items():
            found = recalibrate(coverage)
            pairs = zip(*(one.interval(coverage) for one in ones), strict=True)
            ends = found if found is not None else (torch.stack(end, dim=1) for end in pairs)
            intervals[suffix] = [end.reshape(shape) for end in ends]
        draws = predictive.sample(wanted.samples, wanted.generator) if wanted.samples else torch.empty(0)
        columns: dict[str, Tensor] = {}
        for t, (name, one) in enumerate(zip(self.output_names, ones, strict=True)):
            if wanted.moments:
                columns |= {f"{name}_mean": one.mean, f"{name}_std": one.std}
            if len(wanted.quantiles):
                values = one.quantile(torch.tensor(wanted.quantiles, dtype=torch.float64))
                columns |= {f"{name}_{quantile_name(p)}": row for p, row in zip(wanted.quantiles, values, strict=True)}
            for suffix, (lower, upper) in intervals.items():
                columns |= {f"{name}_lower{suffix}": lower[:, t], f"{name}_upper{suffix}": upper[:, t]}
            if wanted.thresholds:
                at = torch.tensor([*wanted.thresholds.values()], dtype=torch.float64, device=one.mean.device)
                shares = 1.0 - one.cdf(at[:, None].expand(-1, len(one)))  # P(y > t), not recalibrated
                above = zip(wanted.thresholds, shares.clamp(min=0.0), strict=True)
                columns |= {f"{name}_{end}": row for end, row in above}
            if wanted.components:
                columns |= _components(name, one)
            columns |= {f"{name}_sample_{k}": draw.reshape(shape)[:, t] for k, draw in enumerate(draws)}
        return {name: column.contiguous().numpy() + 0.0 for name, column in columns.items()}  # −0.0 is shown as 0.0

    # ---------------------------------------------------------------- scores

    @property
    def metrics(self) -> tuple[str, ...]:
        """All scores of real targets; those of several outputs only if there are several."""
        return tuple(name for name, metric in METRICS.items() if metric.suits_real(self.num_outputs > 1))

    def may_have_levels(self, values: Values) -> bool:
        """Return whether some column has few distinct values so far."""
        return any(len(np.unique(column)) <= MAX_DISTINCT for column in values.T)

    def levels(self, values: Values) -> Levels:
        """Return the distinct values of each target, None if they are many."""
        return [distinct_values(column) for column in values.T]

    def loss(self, predictive: Predictive, values: Values) -> Float[Tensor, "N L"]:
        """Return the CRPS of each output, NaN if it was not observed."""
        return predictive.crps(torch.from_numpy(to_targets(values))).reshape(len(values), -1)

    def loss_scale(self, values: Values) -> Float[np.ndarray, " L"] | None:
        """Return the standard deviation of each of several outputs, as they may have different units."""
        if values.shape[1] == 1:
            return None
        scale = np.array([np.nanstd(column) if (~np.isnan(column)).any() else 1.0 for column in values.T])
        return np.where(scale > 0.0, scale, 1.0)

    def calibration(
        self, rows: Comparison, recalibrated: Bool[Tensor, " N *T"] | None = None, caveat: str = ""
    ) -> Calibration:
        """Return coverage, bias and the gain over a constant."""
        return calibration_of(rows, self.output_names, recalibrated, caveat)

    def check_recalibration(self) -> None:
        """Do nothing: any interval can be recalibrated."""

    def score_notes(self, predictive: Predictive, values: Values) -> list[Note]:
        """Return notes on targets that are never negative but sometimes 0, if many intervals begin below 0."""
        some = torch.from_numpy(np.linspace(0, len(values) - 1, min(len(values), MAX_JUDGED)).astype(np.int64))
        outputs = predictive.rows(some).outputs()
        return [
            note
            for name, y, one in zip(self.output_names, values.T, outputs, strict=True)
            if (note := negative_note(name, y, one)) is not None
        ]

    def constant(self, num_rows: int) -> tuple[str, Predictive] | None:
        """Return the Normal with the moments of the training targets."""
        zeros = torch.zeros(1, num_rows, self.num_outputs, dtype=torch.float64)
        normal = Gaussian.from_moments(zeros.new_zeros(1), zeros, torch.ones_like(zeros))
        return self.constant_name, self.decode(normal)

    def tree_mean(self, predicted: Float[np.ndarray, "N K"]) -> Float[np.ndarray, " N"] | None:
        """Shift and scale."""
        return np.asarray(self.scale.mean[0] + self.scale.scale[0] * predicted[:, 0])

    # ---------------------------------------------------------------- figures

    def drawn_values(self, values: Values) -> Float[np.ndarray, "N T"] | None:
        """Return the values as they are."""
        return values


def rescale(predictive: Any, scale: Standardizer) -> Any:
    """Return the distribution of mean + scale · y, in float64: in float32 a large mean would cost digits."""
    exact = predictive.to(torch.float64)
    shape = () if exact.num_outputs == 1 else (exact.num_outputs,)
    return exact.affine(*(torch.tensor(part).reshape(shape) for part in (scale.mean, scale.scale)))


def quantile_name(level: float) -> str:
    """Return the suffix of a quantile's column after "TARGET_", unique for each level."""
    return f"q{float(level)!r}"


def _components(name: str, one: RealPredictive) -> dict[str, Tensor]:
    """Return weight, mean and standard deviation of each component."""
    columns: dict[str, Tensor] = {}
    std = one.component_var.sqrt()
    for k, weight in enumerate(one.weights):
        columns |= {
            f"{name}_weight_{k}": weight.expand(len(one)),
            f"{name}_mean_{k}": one.component_mean[k],
            f"{name}_std_{k}": std[k],
        }
    return columns

"""Two columns, the ends of an interval in which the target lies, blank where open: in the role of `outcomes/`."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from interval_likelihood import IntervalMixture, encode_ends

from dspp.encoding.scaling import Standardizer
from dspp.guard import Guard
from dspp.metrics import Comparison
from dspp.outcomes import OUTCOMES, Outcome, Real
from dspp.outcomes.real import rescale
from dspp.table.memory import read_numbers


class IntervalComparison(Comparison):
    """Predictions beside intervals; the PIT of an interval is a place within its mass that depends on the row only."""

    by_row_names: ClassVar[tuple[str, ...]] = ("log_density", "pit")

    @staticmethod
    def check_targets(mixture: Any, y: Any) -> torch.Tensor:
        return torch.as_tensor(y, dtype=torch.float64)

    @property
    def several(self) -> bool:
        return False

    @property
    def observed(self) -> torch.Tensor:
        return torch.ones(len(self.y), dtype=torch.bool)

    @property
    def pit(self) -> torch.Tensor:
        if "pit" not in vars(self):
            ends = self.y.nan_to_num(0.0)
            low = torch.where(self.y[:, 0].isnan(), 0.0, self.mixture.cdf(ends[:, 0]))
            high = torch.where(self.y[:, 1].isnan(), 1.0, self.mixture.cdf(ends[:, 1]))
            place = ((self._first_row + torch.arange(len(self.y)) + 0.5) * 0.6180339887498949) % 1.0
            vars(self)["pit"] = low + place * (high - low)
        return vars(self)["pit"]


@dataclass(frozen=True)
class Coverage:
    """The verdict: how many intervals of 90 % agree with what was observed."""

    coverage: float
    num_rows: int
    caveat: str
    is_too_narrow: bool = False

    def verdict(self) -> str:
        return f"90 % intervals hold {self.coverage:.0%} of {self.num_rows} rows. {self.caveat}".rstrip()


@OUTCOMES.register("interval")
class Interval(Outcome):
    """A real number between two ends, some of them open; models read (point, width, side): C = 2, E = 3, T = 1."""

    kind: ClassVar[str] = "interval"
    default_likelihood: ClassVar[str] = "interval"
    comparison: ClassVar[type[Comparison]] = IntervalComparison
    encoded_names = ("point", "width", "side")
    num_outputs = 1
    metrics = ("nll", "coverage90")
    member_kinds = ("plain", "trees")
    point, point_columns, columns = Real.point, Real.point_columns, Real.columns  # the mixture is one of real numbers

    @property
    def output_names(self) -> tuple[str, ...]:
        return (f"{self.names[0]}_to_{self.names[1]}",)

    @classmethod
    def of_columns(cls, columns: Any, likelihood: str) -> "Interval":
        if columns.num_columns != 2:
            raise ValueError("expected two columns")
        return cls(tuple(columns.column_names), likelihood)

    def read(self, columns: Any, place: Any) -> np.ndarray:
        return read_numbers(columns, place)

    def to_numbers(self, values: np.ndarray, place: Any) -> np.ndarray:
        crossed = np.flatnonzero(values[:, 0] > values[:, 1])
        if len(crossed):
            a, b = values[crossed[0]]
            problem = f"expected an end of at least {a:g}, the other end, got {b:g}; exchange them"
            raise place.of(self.names[1]).error(problem, int(crossed[0]))
        unknown = np.flatnonzero(np.isnan(values).all(axis=1))
        if len(unknown):
            raise place.of(self.names[0]).error("expected at least one end, got none; remove the row", int(unknown[0]))
        return torch.stack(encode_ends(*torch.from_numpy(values).unbind(1)), dim=1).numpy()

    def fit(self, values: np.ndarray, place: Any, weights: np.ndarray | None = None) -> "Interval":
        one = Standardizer.fit(self.to_numbers(values, place)[:, 0], weights)
        scale = Standardizer(np.array([one.mean, 0.0, 0.0]), np.array([one.scale, one.scale, 1.0]))
        return self.with_scale(scale, place)

    def mean_target(self, y: np.ndarray) -> np.ndarray:
        return y[:, :1]

    def tree_target(self, y: np.ndarray) -> np.ndarray:
        return y[:, :1]

    def fit_guard(self, y: np.ndarray, weight: float, row_weights: np.ndarray | None = None) -> Guard:
        return Guard.fit(y[:, :1], weight, row_weights)

    def decode(self, predictive: IntervalMixture) -> IntervalMixture:
        return rescale(predictive, Standardizer(self.scale.mean[:1], self.scale.scale[:1]))

    def constant(self, num_rows: int) -> tuple[str, IntervalMixture]:
        zeros = torch.zeros(1, num_rows, dtype=torch.float64)
        one = IntervalMixture(zeros.new_zeros(1), zeros, torch.ones_like(zeros), zeros.new_tensor(0.0))
        return "one Normal for all rows", self.decode(one)

    def calibration(self, rows: Comparison, recalibrated: Any = None, caveat: str = "") -> Coverage:
        return Coverage(rows.coverage(0.9), rows.num_rows, caveat)

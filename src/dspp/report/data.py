"""The content of a report: plain numbers and text, collected by the caller and checked here."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from dspp.calibration import Calibration
from dspp.errors import InputError
from dspp.history import Epoch
from dspp.metrics import Comparison
from dspp.outcomes import Panel
from dspp.plots import central_coverage
from dspp.predictive import RealPredictive
from dspp.report.effects import Effect, Group
from dspp.report.ensemble import EnsembleData
from dspp.report.importance import Importance
from dspp.table.checks import check_X, check_y

Vector = Float[np.ndarray, " N"]


@dataclass(frozen=True, eq=False)
class TargetData:
    """One output: the observed values of N rows and their predictive distributions, in the user's units.

    Attributes:
        name: Name of the output.
        y: The observed values.
        mixture: The predictive distributions.
        rows: The report's rows that these are, if the output was not observed in all of them.
        known_pit: PIT of these rows, if it was computed with that of others; None: to be computed.
        every_pit: PIT of all scored rows, of which these are some; None: there are no others.
        calibration: Calibration on all scored rows; None: to be computed from the PIT.

    Raises:
        InputError: `y` is not one finite number per row of the mixture.
    """

    name: str
    y: Vector
    mixture: RealPredictive
    rows: Int[np.ndarray, " N"] | None = None
    known_pit: Vector | None = None
    every_pit: Float[np.ndarray, " A"] | None = None
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        y = check_y(self.y, len(self.mixture), f"y of {self.name}")
        if y.ndim != 1:
            raise InputError(f"y of {self.name}: expected shape (N,), got {y.shape}; make one TargetData per output")
        object.__setattr__(self, "y", y)
        object.__setattr__(self, "mixture", self.mixture.to(torch.float64))

    def row(self, number: int) -> int:
        """Return the number of a row in the report."""
        return number if self.rows is None else int(self.rows[number])

    @cached_property
    def mean(self) -> Vector:
        """Predicted mean of each row."""
        return _numpy(self.mixture.mean)

    @cached_property
    def spread(self) -> Vector:
        """Half of the central 68 % interval of each row: σ of a Normal, and unlike σ, not made of thin tails."""
        low, high = self.mixture.quantile(torch.tensor([0.15866, 0.84134], dtype=torch.float64))
        return _numpy(0.5 * (high - low))

    @cached_property
    def pit(self) -> Vector:
        """PIT of each row; see `Comparison.pit`."""
        return self.known_pit if self.known_pit is not None else _numpy(Comparison(self.mixture, self.y).pit)

    @property
    def scored_pit(self) -> Float[np.ndarray, " A"]:
        """PIT of all rows that were scored."""
        return self.pit if self.every_pit is None else self.every_pit

    def coverage(self, level: float) -> tuple[float, int]:
        """Return the share of the scored rows inside their central interval, and the number that counts as theirs."""
        if self.calibration is not None:
            return self.calibration.coverage[level], self.calibration.num_rows
        return float(central_coverage(self.pit, [level])[0]), len(self.pit)

    @cached_property
    def crps(self) -> Vector:
        """CRPS of each row."""
        return _numpy(self.mixture.crps(self._observed))

    @cached_property
    def log_density(self) -> Vector:
        """Log density log p(y) of each row."""
        return _numpy(self.mixture.log_prob(self._observed))

    @property
    def _observed(self) -> Tensor:
        return torch.from_numpy(self.y).to(self.mixture.mean.device)


@dataclass(frozen=True, eq=False)
class MemberData:
    """The history and settings of one of several models whose predictions are mixed."""

    kind: str = ""  # what it reads
    weight: float = 1.0  # of its predictions
    seconds: float = math.nan  # training time
    history: Sequence[Epoch] = ()  # of training; empty for a member without epochs
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # sections of name -> value


@dataclass(frozen=True, eq=False)
class ReportData:
    """Everything the page can show; sections without content are omitted.

    Raises:
        InputError: Parts that belong to the same rows, components or layers differ in length.
    """

    title: str
    targets: Sequence[TargetData] = ()  # one per output
    subtitle: str = ""  # which data, which rows, when
    calibration: str = ""  # one sentence on whether intervals are calibrated
    conformal: str | None = None  # what conformal calibration did, if used
    scores: Mapping[str, float] = field(default_factory=dict)  # by name; those of `METRICS` are explained
    baselines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # scores of simpler predictions, by name
    discrete: bool = False  # whether the target has few distinct values, so that its density means little
    panels: Sequence[Panel] = ()  # of the outcome
    scored: str = ""  # a sentence on which members predicted the rows
    history: Sequence[Epoch] = ()  # of training
    best_epoch: int | None = None  # the epoch whose state was kept
    sites: Sequence[NDArray[np.floating]] = ()  # ξ (S, W) of each hidden layer; empty for a single layer
    weights: NDArray[np.floating] | None = None  # ω of the components
    relevance: Sequence[tuple[str, float]] = ()  # inputs, and 1/length scale in the first layer
    importance: Importance | None = None  # of the columns
    effects: Sequence[Effect] = ()  # of the most important columns
    groups: Mapping[str, Sequence[Group]] = field(default_factory=dict)  # by output: coverage in groups of rows
    ensemble: EnsembleData | None = None  # how members are mixed
    rows: Mapping[str, Sequence[object]] = field(default_factory=dict)  # the inputs of the rows, by column
    row_labels: Sequence[object] = ()  # name of each row; empty for its number, from 0
    encoding: Sequence[Mapping[str, str]] = ()  # for each column: column, kind, how
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # sections of name -> value
    members: Sequence[MemberData] = ()  # if there are several; history and settings are then theirs
    versions: Mapping[str, str] = field(default_factory=dict)  # of the software, the data, the machine
    notes: Sequence[str] = ()  # further notes for the user

    def __post_init__(self) -> None:
        for name, count in self._counts().items():
            if count != self.num_rows:
                raise InputError(f"{name}: expected {self.num_rows} rows, as in other parts, got {count}")
        if self.sites:
            self.layer_weights()  # fails here rather than half-way through the page

    def _counts(self) -> dict[str, int]:
        """Return the number of rows of each part that has rows."""
        if not self.targets:
            return {}
        counts = {target.name: len(target.y) for target in self.targets if target.rows is None}
        counts |= {f"rows[{name!r}]": len(values) for name, values in self.rows.items()}
        return counts | ({"row_labels": len(self.row_labels)} if len(self.row_labels) else {})

    @property
    def num_rows(self) -> int:
        """N, the number of rows in the report."""
        whole = [len(target.y) for target in self.targets if target.rows is None]
        return whole[0] if whole else len(self.row_labels)

    def row_label(self, row: int) -> str:
        """Return the name of a row."""
        return str(self.row_labels[row] if len(self.row_labels) else row)

    def layer_weights(self) -> list[Vector]:
        """Return the weight of each site of each hidden layer.

        Aligned sites share the weights of the components. On a grid the components are all combinations of the layers'
        sites, the last layer varying fastest; the weight of a site is then summed over the other layers.
        """
        sizes = [len(check_X(sites, "sites")) for sites in self.sites]
        given = () if self.weights is None else self.weights
        weights = check_y(given, len(given), "weights")
        if all(size == len(weights) for size in sizes):
            return [weights for _ in sizes]
        if np.prod(sizes) != len(weights):
            raise InputError(f"weights: expected one per component of layers with {sizes} sites, got {len(weights)}")
        grid, axes = weights.reshape(sizes), range(len(sizes))
        return [grid.sum(axis=tuple(a for a in axes if a != layer)) for layer in axes]


def _numpy(tensor: Tensor) -> Vector:
    return np.asarray(tensor.detach().cpu().numpy(), dtype=np.float64)

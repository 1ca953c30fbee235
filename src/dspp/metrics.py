"""Scores of predictive distributions on held-out targets, in the units of the distributions.

`METRICS` holds every score by name, with its title and meaning; `evaluate`, the estimators, the report, the command
line and the experiments read it. To add a metric, register it:

    METRICS.register("mae")(Metric("MAE", lambda rows: (rows.mean - rows.y).abs().nanmean().item()))

Scores are computed in float64, whatever the dtype of the model. With T outputs, marginal scores are averaged and the
joint NLL is divided by T, so that scores for different T can be compared. NaN in targets of T outputs means "not
observed": averages are over observed targets. Rows may have weights, of which only the ratios matter.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dspp.errors import InputError, NumericalError
from dspp.numbers import number, percent, plain_percent
from dspp.predictive import Predictive, unwrap
from dspp.registry import Registry
from dspp.table.checks import Array, check_weights, check_y
from dspp.table.discrete import cell_ends, distinct_values

LEVELS = (0.5, 0.8, 0.9, 0.95)  # of the central intervals scored
PAPER = ("nll", "rmse", "crps", "coverage90", "mrmse")  # recorded by experiments: the paper's scores, and coverage

_GOLDEN, _SILVER = 0.6180339887498949, 0.4142135623730950  # multiples of such numbers fill [0, 1) evenly

SEVERAL = "several outputs"  # targets of a score that adds nothing for one

Levels = Sequence[Float[np.ndarray, " K"] | None]
Format = Literal["number", "percent", "p-value"]
Place = Literal["fit", "evaluate", "report"]


class Comparison:
    """Predictive distributions of N rows and their observed targets: the argument of a metric.

    What belongs to single rows, such as PIT and interval widths, and tests are computed once, on first use.

    Attributes:
        y: The targets, in float64 on the device of the distributions; NaN means "not observed".
        weights: How much each row counts; None: all the same.

    Args:
        mixture: The predictive distributions.
        y: The observed targets, (N,) or (N, T), in the same units; NaN in (N, T) means "not observed".
        weights: One number ≥ 0 per row, if they differ.
        first_row: The number of the first row, of a batch.
        levels: Of a batch, the distinct values of each output, None if they are many; by default those of y.

    Raises:
        InputError: The shape of y does not match the distributions, or the weights are not valid.

    Example:
        >>> import torch
        >>> from dspp import NormalMixture
        >>> from dspp.metrics import Comparison
        >>> mixture = NormalMixture(torch.zeros(1), torch.zeros(1, 4), torch.ones(1, 4), torch.tensor(0.0))  # N(0, 1)
        >>> rows = Comparison(mixture, [0.5, -1.0, 0.0, 9.0])
        >>> rows.coverage(0.9), sorted(rows.scores(["rmse", "nll"]))
        (0.75, ['nll', 'rmse'])
    """

    # What scores need of each row, beside y; `join` keeps it.
    by_row_names: ClassVar[tuple[str, ...]] = ("mean", "pit", "log_density", "crps_by_row", "widths_by_row")

    def __init__(
        self,
        mixture: Predictive,
        y: Array,
        weights: Array | None = None,
        first_row: int = 0,
        levels: Levels | None = None,
    ) -> None:
        mixture = unwrap(mixture)
        self._predict: Callable[[], Predictive] = lambda: mixture.to(torch.float64)
        self.y: Float[Tensor, " N *T"] = self.check_targets(mixture, y)
        given = None if weights is None else torch.from_numpy(check_weights(weights, len(self.y), "weights"))
        self.weights: Float[Tensor, " N"] | None = None if given is None else given.to(self.y.device)
        self._first_row, self._levels = first_row, levels

    @staticmethod
    def check_targets(mixture: Predictive, y: Array) -> Float[Tensor, " N *T"]:
        """Return the targets as a tensor of the shape of the predicted means, or raise `InputError`."""
        shape = tuple(mixture.mean.shape)
        targets = torch.from_numpy(check_y(y, shape[0], missing=True)).to(mixture.mean.device)
        if targets.shape != shape:  # (N, 1) and (N,) would silently broadcast to N x N
            raise InputError(f"y: expected shape {shape}, as predicted, got {tuple(targets.shape)}; reshape y")
        return targets

    def by_row(self, scores: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Return the targets and what scores need of each row, without the distributions; None: of all scores."""
        if scores is not None:
            self.scores(scores)  # computes what they need
        names = [name for name in self.by_row_names if scores is None or name in vars(self)]
        return {name: getattr(self, name).cpu() for name in ("y", *names)}

    @classmethod
    def join(
        cls,
        parts: Sequence[dict[str, Tensor]],
        predict: Callable[[], Predictive],
        weights: Float[np.ndarray, " N"] | None,
        levels: Levels,
    ) -> "Comparison":
        """Return the comparison of all rows of some batches, of which `parts` are what `by_row` returned.

        `predict` predicts all rows again, for a metric that needs more than what was computed.
        """
        whole = cls.__new__(cls)
        whole._predict, whole._first_row, whole._levels = predict, 0, levels
        for name in list(parts[0]):
            vars(whole)[name] = torch.cat([part.pop(name) for part in parts])  # of millions of rows, one copy less
        whole.weights = None if weights is None else torch.from_numpy(check_weights(weights, len(whole.y), "weights"))
        return whole

    @cached_property
    def mixture(self) -> Predictive:
        """The distributions, in float64."""
        return self._predict()

    def __len__(self) -> int:
        return len(self.y)

    @property
    def num_rows(self) -> int:
        """The number of rows or, if they have weights, of equally weighted rows that tell as much: (Σw)² / Σw²."""
        return effective_rows(len(self), self.weights)

    @property
    def several(self) -> bool:
        """Whether there are several outputs, that is, y is (N, T)."""
        return self.y.ndim == 2

    @cached_property
    def observed(self) -> Bool[Tensor, " N *T"]:
        """Where y was observed."""
        return ~self.y.isnan()

    @cached_property
    def mean(self) -> Float[Tensor, " N *T"]:
        """The predicted mean."""
        return self.mixture.mean.detach()

    @cached_property
    @torch.no_grad()
    def cdf(self) -> Float[Tensor, " N *T"]:
        """Fₙ(yₙ) of each row and output; NaN if not observed.

        Raises:
            NumericalError: A distribution is not finite where y was observed.
        """
        columns = zip(self.mixture.outputs(), self._columns(self.y), strict=True)
        return self._check_finite(torch.stack([one.cdf(y) for one, y in columns], dim=-1).reshape(self.y.shape))

    @cached_property
    @torch.no_grad()
    def pit(self) -> Float[Tensor, " N *T"]:
        """PIT of each row and output: Fₙ(yₙ), randomised for a target of few distinct values; NaN if not observed.

        A density gives such a value the probability of its cell, which ends half-way to its neighbours; the PIT is a
        place within F of the cell that depends on the number of the row only. It is uniform if these probabilities are
        right, as Fₙ(yₙ) is for other targets.

        Raises:
            NumericalError: A distribution is not finite where y was observed.
        """
        levels = self._levels or [distinct_values(column.cpu().numpy()) for column in self._columns(self.y)]
        if all(values is None for values in levels):
            return self.cdf
        columns = []
        rows = torch.arange(self._first_row, self._first_row + len(self), dtype=torch.float64)
        for t, (one, y, values) in enumerate(zip(self.mixture.outputs(), self._columns(self.y), levels, strict=True)):
            if values is None:
                columns.append(one.cdf(y))
                continue
            low, high = one.cdf(torch.from_numpy(cell_ends(y.cpu().numpy(), values)).to(y.device))
            place = ((rows + 0.5) * _GOLDEN + t * _SILVER) % 1.0  # evenly spread, whatever the batches
            columns.append(low + place.to(y.device) * (high - low))
        return self._check_finite(torch.stack(columns, dim=-1).reshape(self.y.shape))

    @cached_property
    @torch.no_grad()
    def log_density(self) -> Float[Tensor, " N"]:
        """Log density of each row, joint over its observed outputs."""
        return self.mixture.log_prob(self.y)

    @cached_property
    @torch.no_grad()
    def crps_by_row(self) -> Float[Tensor, " N *T"]:
        """CRPS of each row and output; NaN if not observed."""
        return self.mixture.crps(self.y)

    @cached_property
    @torch.no_grad()
    def widths_by_row(self) -> Float[Tensor, "N T levels"]:
        """Width of the central interval of each row, output and one of `LEVELS`; NaN if not observed."""
        levels = torch.tensor(LEVELS, dtype=torch.float64)
        levels = torch.cat([0.5 - levels / 2, 0.5 + levels / 2])
        ones = self.mixture.outputs()
        found = torch.full((len(self), len(ones), len(LEVELS)), math.nan, dtype=torch.float64)
        for t, seen in self.outputs:
            lower, upper = ones[t].rows(seen).quantile(levels).cpu().chunk(2)
            found[seen, t] = (upper - lower).T
        return found

    @cached_property
    def outputs(self) -> Sequence[tuple[int, Bool[Tensor, " N"]]]:
        """The number of each output with observed targets, and whether it was observed in each row."""
        seen = ~self._columns(self.y).cpu().isnan()
        return [(t, rows) for t, rows in enumerate(seen) if rows.any()]

    def by_output(self, values: Float[Tensor, " N *T"]) -> list[Float[Tensor, " n *_"]]:
        """Return the values of each of `outputs` in the rows in which it was observed."""
        each = values.cpu().reshape(len(values), -1, *values.shape[2:])
        return [each[seen, t] for t, seen in self.outputs]

    @property
    def weights_by_output(self) -> list[Float[Tensor, " n"] | None]:
        """The weights of these rows."""
        weights = None if self.weights is None else self.weights.cpu()
        return [None if weights is None else weights[seen] for _, seen in self.outputs]

    def _columns(self, values: Float[Tensor, " N *T"]) -> Float[Tensor, "T N"]:
        return values.reshape(len(values), -1).T

    def _check_finite(self, values: Float[Tensor, " N *T"]) -> Float[Tensor, " N *T"]:
        bad = (values.isnan() & self.observed.to(values.device)).nonzero()
        if len(bad):
            row = self._first_row + int(bad[0, 0])
            raise NumericalError(f"the predictive distribution of row {row} is not finite; fit the model again")
        return values

    def joint_nll(self) -> float:
        """Return the mean over rows of -log p(yₙ), joint over the outputs observed in that row."""
        return -average(self.log_density, self.weights).item()

    def nll(self) -> float:
        """Return the sum over rows of the joint NLL, divided by the number of observed targets."""
        observed = self.observed.reshape(len(self), -1).sum(1).double()
        return self.joint_nll() / average(observed, self.weights).item()  # by T exactly, if nothing is missing

    def rmse(self) -> float:
        """Return the root of the mean squared error of the predicted mean, over all rows and outputs.

        For T outputs, the paper's appears to be √T times as large: squared errors summed over outputs before the root.
        """
        return math.sqrt(self.average((self.mean - self.y).square()).item())

    def mrmse(self) -> float:
        """Return the mean of each output's RMSE, over the outputs that were observed."""
        each = self.average((self.mean - self.y).square(), dim=0)
        return each[self.observed.any(dim=0)].sqrt().mean().item()

    def crps(self) -> float:
        """Return the continuous ranked probability score, the mean over rows and outputs."""
        return self.average(self.crps_by_row).item()

    def r2(self) -> float:
        """Return R² of the predicted mean: see `r_squared`."""
        weights = None if self.weights is None else self.weights.cpu().numpy()
        return r_squared(self.mean.cpu().numpy(), self.y.cpu().numpy(), weights)

    def coverage(self, level: float) -> float:
        """Return the share of targets inside their central interval of probability `level`.

        A target is inside exactly if its PIT is within level/2 of one half, so no quantile is needed. The PIT of a
        target of few distinct values is randomised, as an interval contains all or nothing of a value's rows.

        Raises:
            InputError: The level is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise InputError(f"level: expected a probability between 0 and 1, such as 0.9, got {level}")
        return self.average(((self.pit - 0.5).abs() <= level / 2).double()).item()

    @cached_property
    def widths(self) -> dict[float, float]:
        """Mean width of the central intervals of each of `LEVELS`, over all observed values."""
        each = self.by_output(self.widths_by_row)
        pooled = each[0] if len(each) == 1 else torch.cat(each)  # of millions of rows, a copy less
        weights = [weights for weights in self.weights_by_output if weights is not None]
        return dict(zip(LEVELS, average(pooled.T, torch.cat(weights) if weights else None).tolist(), strict=True))

    @cached_property
    def uniformity(self) -> tuple[float, float]:
        """Distance of the PIT from uniform for the output with the smallest p-value, and T times that p-value.

        Outputs may be correlated, so they are not pooled.
        """
        columns = zip(self.by_output(self.pit), self.weights_by_output, strict=True)
        distance, p_value = min((uniformity(*column) for column in columns), key=lambda test: test[1])
        return distance, min(1.0, p_value * len(self.outputs))

    def scores(self, names: Iterable[str] | None = None) -> dict[str, float]:
        """Return the scores `names`, or all of real targets, without those that do not apply to the targets.

        Raises:
            InputError: A name is not a metric.
            NumericalError: A distribution is not finite where y was observed.
        """
        every = (name for name, metric in METRICS.items() if metric.suits_real(self.several))
        wanted = {name: METRICS[name] for name in (every if names is None else names)}
        return {name: float(m.function(self)) for name, m in wanted.items() if self.several or m.targets != SEVERAL}

    def average(self, values: Float[Tensor, " N *T"], dim: int | None = None) -> Float[Tensor, " *T"]:
        """Average the values whose target was observed; other NaN propagate to the result."""
        if self.weights is None:
            return torch.where(self.observed, values, 0.0).sum(dim) / self.observed.sum(dim)
        weights = self.observed * (self.weights[:, None] if self.several else self.weights)
        return torch.where(weights > 0.0, weights * values, 0.0).sum(dim) / weights.sum(dim)


@dataclass(frozen=True)
class Metric:
    """A score, its title and how to show it.

    Attributes:
        title: Its name in tables and cards.
        function: Computes it.
        meaning: Its meaning in one sentence.
        meaning_of_several: The same for several outputs, if different.
        format: How to print it.
        targets: The kind of targets that it is of: "real"; "several outputs" for a score that adds nothing for one; or
            what an outcome of its own says.
        shown: Where it is shown: by `dspp fit` after training, by `dspp evaluate`, on a card of the report.
            `evaluate()` and JSON contain all scores.
        target: The best value, unless lower is better.

    Example:
        >>> import torch
        >>> from dspp import NormalMixture
        >>> from dspp.metrics import Comparison, Metric
        >>> mae = Metric("MAE", lambda rows: (rows.mean - rows.y).abs().nanmean().item())
        >>> mixture = NormalMixture(torch.zeros(1), torch.zeros(1, 4), torch.ones(1, 4), torch.tensor(0.0))  # N(0, 1)
        >>> mae.function(Comparison(mixture, [0.5, -0.5, 1.0, 2.0]))  # METRICS.register("mae")(mae) would add it
        1.0
    """

    title: str
    function: Callable[[Comparison], float]
    meaning: str = ""
    meaning_of_several: str = ""
    format: Format = "number"
    targets: str = "real"
    shown: tuple[Place, ...] = ("evaluate", "report")
    target: float | None = None

    def suits_real(self, several: bool) -> bool:
        """Return whether the score is of real targets, and adds information for one output or several."""
        return self.targets == "real" or (several and self.targets == SEVERAL)

    def text(self, value: float) -> str:
        """Return a value for readers."""
        if self.format == "p-value" and value < 1e-4:
            return "< 0.0001"
        return percent(value) if self.format == "percent" else number(value)

    def sentence(self, several: bool = False) -> str:
        """Return its meaning, for one output or for several."""
        return (several and self.meaning_of_several) or self.meaning


METRICS: Registry[Metric] = Registry("metric")
_EVERYWHERE: tuple[Place, ...] = ("fit", "evaluate", "report")
_TABLE: tuple[Place, ...] = ("evaluate",)  # the report has its own table


def _coverage(level: float, shown: tuple[Place, ...]) -> Metric:
    percent = plain_percent(level)
    return Metric(
        f"{percent} coverage",
        lambda comparison: comparison.coverage(level),
        f"Share of rows inside their {percent} interval; {percent} is ideal.",
        f"Share of observed values inside their {percent} interval; {percent} is ideal.",
        format="percent",
        shown=shown,
        target=level,
    )


def _width(level: float, shown: tuple[Place, ...]) -> Metric:
    percent = plain_percent(level)
    return Metric(
        f"{percent} width",
        lambda comparison: comparison.widths[level],
        f"Mean width of the {percent} interval, in the units of the target; lower is better at equal coverage.",
        f"Mean width of the {percent} interval over all outputs, ignoring units; lower is better at equal coverage.",
        shown=shown,
    )


for _name, _metric in {  # in this order in all tables, cards and dictionaries
    "nll": Metric(
        "NLL",
        Comparison.nll,
        "Negative log-likelihood, in nats per row; lower is better and it may be negative.",
        "Negative log-likelihood, in nats per observed value; lower is better and it may be negative.",
        shown=_EVERYWHERE,
    ),
    "rmse": Metric(
        "RMSE",
        Comparison.rmse,
        "Root mean squared error of the predicted mean, in the units of the target; lower is better.",
        "Root mean squared error of the predicted means over all outputs, ignoring units; lower is better.",
        shown=_EVERYWHERE,
    ),
    "crps": Metric(
        "CRPS",
        Comparison.crps,
        "Continuous ranked probability score of the distribution, in the units of the target; lower is better.",
        "Continuous ranked probability score averaged over all outputs, ignoring units; lower is better.",
        shown=_EVERYWHERE,
    ),
    "coverage90": _coverage(0.9, shown=_EVERYWHERE),
    "mrmse": Metric(
        "Mean RMSE",
        Comparison.mrmse,
        "Root mean squared error of each output, averaged over the outputs; lower is better.",
        targets=SEVERAL,
    ),
    "r2": Metric(
        "R²",
        Comparison.r2,
        "Share of the target's variance explained by the predicted mean; 1 is best.",
        "Share of each target's variance explained by the predicted mean, averaged over the outputs; 1 is best.",
        shown=_EVERYWHERE,
        target=1.0,
    ),
    "coverage50": _coverage(0.5, shown=_TABLE),
    "coverage80": _coverage(0.8, shown=_TABLE),
    "coverage95": _coverage(0.95, shown=_TABLE),
    "width50": _width(0.5, shown=()),
    "width80": _width(0.8, shown=()),
    "width90": _width(0.9, shown=("evaluate", "report")),
    "width95": _width(0.95, shown=()),
    "pit_ks": Metric(
        "PIT distance",
        lambda comparison: comparison.uniformity[0],
        "Largest difference between predicted and observed probabilities; 0 is best.",
        "Largest difference between predicted and observed probabilities, for the worst output; 0 is best.",
    ),
    "pit_pvalue": Metric(
        "PIT p-value",
        lambda comparison: comparison.uniformity[1],
        "Probability of a PIT distance at least this large if the model is calibrated; small values are bad.",
        "Probability of a PIT distance at least this large in any output if the model is calibrated; small is bad.",
        format="p-value",
        target=1.0,
    ),
}.items():
    METRICS.register(_name)(_metric)


def r_squared(
    mean: Float[np.ndarray, " N *T"], y: Float[np.ndarray, " N *T"], weights: Float[np.ndarray, " N"] | None = None
) -> float:
    """Return R² of predicted means; with T outputs, the average over those that vary, each where it was observed.

    NaN if y does not vary, as in a single row.
    """
    mean, y = mean.reshape(len(y), -1), y.reshape(len(y), -1)
    each = np.ones(len(y)) if weights is None else weights
    found = []
    for m, column in zip(mean.T, y.T, strict=True):
        seen = ~np.isnan(column) & (each > 0)
        m, column, w = m[seen], column[seen], each[seen]
        if len(column) and column.min() < column.max():  # rounding may give a constant a non-zero variance
            spread = np.sum(w * np.square(column - np.average(column, weights=w)))
            found.append(1 - np.sum(w * np.square(column - m)) / spread if spread > 0 else math.nan)
    return float(np.mean(found)) if found else math.nan


def constant_crps(
    y: Float[np.ndarray, " N"], weights: Float[np.ndarray, " N"] | None = None
) -> Float[np.ndarray, " N"]:
    """Return the CRPS of each row if all have the distribution of the observed values: no constant has a lower mean.

    CRPSₙ = Σⱼ wⱼ |yⱼ − yₙ| − ½ Σⱼₖ wⱼ wₖ |yⱼ − yₖ| with weights of sum one, from running sums over the sorted values.
    """
    order = np.argsort(y, kind="stable")
    sorted_y = y[order] - y[order[len(y) // 2]]
    w = np.ones(len(y)) if weights is None else weights[order]
    w = w / w.sum()
    below, moment = np.cumsum(w), np.cumsum(w * sorted_y)
    distance = sorted_y * (2.0 * below - 1.0) - (2.0 * moment - moment[-1])
    found = np.empty(len(y))
    found[order] = distance - 0.5 * (w @ distance)
    return found


def average(values: Float[Tensor, " *k n"], weights: Float[Tensor, " n"] | None) -> Float[Tensor, "*k"]:
    """Return the mean over rows, by their weights."""
    return values.mean(-1) if weights is None else values @ weights / weights.sum()


def effective_rows(count: int, weights: Float[Tensor, " n"] | None) -> int:
    """Return Kish's (Σw)² / Σw², the number of equally weighted rows whose mean is as precise."""
    return count if weights is None else max(1, round((weights.sum().square() / weights.square().sum()).item()))


def uniformity(pit: Float[Tensor, " n"], weights: Float[Tensor, " n"] | None) -> tuple[float, float]:
    """Return the Kolmogorov–Smirnov distance of the PIT from the uniform distribution, and its p-value."""
    from scipy import stats  # imported here so that loading a model stays fast

    if weights is None:
        test = stats.kstest(pit.numpy(), "uniform")
        return float(test.statistic), float(test.pvalue)
    u, order = pit.sort()
    step = weights[order] / weights.sum()
    above = step.cumsum(0)  # the distribution function at u, and just below it
    distance = max((above - u).max().item(), (u - (above - step)).max().item())
    return distance, float(stats.kstwo.sf(distance, effective_rows(len(pit), weights)))


def describe_scores(scores: Mapping[str, float], place: Place | None = None) -> dict[str, tuple[str, str, str]]:
    """Return the title, value and meaning of each score for readers, in the order of `METRICS`, followed by others.

    Args:
        scores: The scores by name.
        place: Where they are shown, if some are to be left out there.
    """
    several, found = have_several_outputs(scores), {}
    for name in [*(name for name in METRICS if name in scores), *(name for name in scores if name not in METRICS)]:
        metric = METRICS[name] if name in METRICS else Metric(name, lambda rows: math.nan)
        if place is None or name not in METRICS or place in metric.shown:
            found[name] = metric.title, metric.text(scores[name]), metric.sentence(several)
    return found


def have_several_outputs(scores: Iterable[str]) -> bool:
    """Return whether scores of these names are of several outputs."""
    return any(METRICS[name].targets == SEVERAL for name in scores if name in METRICS)


def nll(mixture: Predictive, y: Array) -> float:
    """Return the mean over rows of -log p(yₙ), joint over the outputs observed in that row."""
    return Comparison(mixture, y).joint_nll()


def rmse(mixture: Predictive, y: Array) -> float:
    """Return the root of the mean squared error of the predicted mean, over all rows and outputs."""
    return Comparison(mixture, y).rmse()


def mrmse(mixture: Predictive, y: Array) -> float:
    """Return the mean of each output's RMSE, over the outputs that were observed."""
    return Comparison(mixture, y).mrmse()


def crps(mixture: Predictive, y: Array) -> float:
    """Return the continuous ranked probability score, the mean over rows and outputs."""
    return Comparison(mixture, y).crps()


def pit(mixture: Predictive, y: Array) -> Float[Tensor, " N *T"]:
    """Return Fₙ(yₙ) of each row and output: uniform on [0, 1] for the true distribution; NaN if not observed."""
    return Comparison(mixture, y).cdf


def coverage(mixture: Predictive, y: Array, level: float = 0.9) -> float:
    """Return the share of targets inside their central interval of probability `level`, between 0 and 1."""
    return Comparison(mixture, y).coverage(level)


def evaluate(mixture: Predictive, y: Array) -> dict[str, float]:
    """Return the scores of `PAPER` by name; with T outputs, nll is that of one output, and mrmse is added.

    The NLL of one output is the sum over rows of the joint NLL, divided by the number of observed targets: the joint
    NLL divided by T if nothing is missing.
    """
    return Comparison(mixture, y).scores(PAPER)

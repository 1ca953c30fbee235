"""Calibration of intervals, measured on rows that the model has not seen, and conformal recalibration.

`check_calibration` measures coverage. Intervals from `Conformal` have the right coverage even if the model is wrong.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from dspp.errors import InputError
from dspp.metrics import LEVELS, Comparison, ObservedOutput
from dspp.predictive import Predictive, RealPredictive, unwrap
from dspp.table.checks import Array

_HEADLINE = 0.9  # the level that the verdict reports
_CHANCE = 0.05  # a coverage less likely than this is not attributed to chance
_SLIGHT = 0.03  # a coverage within this of its level is only slightly off
_SMALL_P = 0.01  # of the Kolmogorov–Smirnov test
_NO_SCORE = 1.0  # above every score: pads outputs that were not observed in all rows


@dataclass(frozen=True)
class Calibration:
    """Calibration of the model's central intervals on some rows; with T outputs, pooled over all observed values.

    Attributes:
        num_rows: Number of rows.
        num_values: Number of observed values.
        coverage: For each level, the share of values inside their interval of that probability.
        width: For each level, the mean width of the interval, in the units of y (with T outputs, their mean).
        ks: Kolmogorov–Smirnov distance of the PIT from the uniform distribution; with T outputs, that of the output
            with the smallest p-value.
        p_value: Probability of a distance at least as large if the model is correct; with T outputs, T times the
            smallest, since outputs may be correlated and are not pooled.
        per_output: The same for each observed output; empty for a single output.
        name: Name of the output, if there are several.
        recalibrated: Share of values inside their 90 % conformal interval; None without recalibration.
    """

    num_rows: int
    num_values: int
    coverage: Mapping[float, float]
    width: Mapping[float, float]
    ks: float
    p_value: float
    per_output: tuple["Calibration", ...] = ()
    name: str = ""
    recalibrated: float | None = None

    def verdict(self) -> str:
        """Summarise in one sentence whether the intervals are calibrated, and in another how recalibrated ones do.

        "Too narrow" or "too wide" means that a calibrated 90 % interval would contain so few or so many rows in less
        than 5 % of cases, by the binomial distribution. Outputs of one row may be correlated, so rows are counted, not
        values.
        """
        if self.recalibrated is None:
            return self._verdict()
        held = f"{100.0 * self.recalibrated:.1f}".removesuffix(".0")
        return f"{self._verdict()} This is the model itself; recalibrated 90 % intervals contain {held} %."

    def _verdict(self) -> str:
        if complaint := self._complaint(_CHANCE):
            return f"Intervals are {complaint}: {self._finding()}."
        parts = self.per_output or (self,)
        # A Bonferroni correction, so that a good model is blamed no more often than with one output.
        blamed = [part for part in self.per_output if part._complaint(_CHANCE / len(parts))]
        if blamed:
            worst = max(blamed, key=lambda part: abs(part._gap) * math.sqrt(part.num_rows))
            complaint = worst._complaint(_CHANCE / len(parts))
            return f"Intervals are calibrated overall, but those of {worst.name} are {complaint}: {worst._finding()}."
        if self.p_value < _SMALL_P:
            return (
                f"Intervals are calibrated at 90 %, but the distribution is shifted or has the wrong shape: "
                f"{self._finding()}, yet the PIT is not uniform (p = {self.p_value:.1g})."
            )
        if chance_bounds(self.num_rows, _HEADLINE)[1] >= 1.0:
            return f"Too few rows to tell whether intervals are calibrated: {self._finding()}."
        return f"Intervals are calibrated: {self._finding()}."

    @property
    def _gap(self) -> float:
        return self.coverage[_HEADLINE] - _HEADLINE

    def _complaint(self, chance: float) -> str:
        """Return "too narrow", "slightly too wide" and so on, or an empty string."""
        low, high = chance_bounds(self.num_rows, _HEADLINE, chance)
        if low <= self.coverage[_HEADLINE] <= high:
            return ""
        slightly = "slightly " if abs(self._gap) <= _SLIGHT else ""
        return slightly + ("too narrow" if self._gap < 0.0 else "too wide")

    def _finding(self) -> str:
        what = "value" if self.per_output else "row"
        plural = "" if self.num_values == 1 else "s"
        held = f"{100.0 * self.coverage[_HEADLINE]:.1f}".removesuffix(".0")
        return f"the {100.0 * _HEADLINE:.0f} % interval contains {held} % of {self.num_values:,} {what}{plural}"


def chance_bounds(num_rows: int, level: float, chance: float = _CHANCE) -> tuple[float, float]:
    """Return the range of coverage that a calibrated interval of this level has with probability 1 − `chance`."""
    from scipy import stats  # imported here so that loading a model stays fast

    low, high = stats.binom.ppf([0.5 * chance, 1.0 - 0.5 * chance], num_rows, level) / num_rows
    return float(low), float(high)


def check_calibration(
    mixture: Predictive, y: Array, names: Sequence[str] = (), conformal: "Conformal | None" = None
) -> Calibration:
    """Measure coverage, width and PIT of a predictive distribution on rows it was not fitted to.

    Args:
        mixture: The predictive distribution of the rows.
        y: The observed targets, (N,) or (N, T), in the same units; NaN in (N, T) means "not observed".
        names: Names of the outputs; empty for "output 0", "output 1" and so on.
        conformal: A recalibration to measure as well.

    Raises:
        InputError: The shape of y does not match the mixture.
        NumericalError: A distribution is not finite where y was observed.
    """
    return calibration_of(Comparison(mixture, y), names, conformal)


def calibration_of(rows: Comparison, names: Sequence[str] = (), conformal: "Conformal | None" = None) -> Calibration:
    """Return the calibration of a `Comparison`, which shares computations with its scores."""
    found = _calibration_of_all(rows, names) if rows.several else _calibration_of_one(rows.outputs[0])
    return found if conformal is None else replace(found, recalibrated=_coverage_of(conformal, rows))


def _calibration_of_all(rows: Comparison, names: Sequence[str]) -> Calibration:
    labels = [names[one.index] if names else f"output {one.index}" for one in rows.outputs]
    each = tuple(replace(_calibration_of_one(one), name=label) for one, label in zip(rows.outputs, labels, strict=True))
    coverage = {level: rows.coverage(level) for level in LEVELS}
    return Calibration(len(rows), int(rows.observed.sum()), coverage, rows.widths, *rows.uniformity, per_output=each)


def _calibration_of_one(one: ObservedOutput) -> Calibration:
    num_rows = len(one.pit)
    coverage = {level: ((one.pit - 0.5).abs() <= level / 2).double().mean().item() for level in LEVELS}
    width = dict(zip(LEVELS, one.widths.mean(1).tolist(), strict=True))
    return Calibration(num_rows, num_rows, coverage, width, *one.uniformity)


def _coverage_of(conformal: "Conformal", rows: Comparison) -> float:
    lower, upper = conformal.interval(rows.mixture, _HEADLINE)
    return ((rows.y >= lower) & (rows.y <= upper))[rows.observed].double().mean().item()


@dataclass(frozen=True, eq=False)
class Conformal:
    """Conformal intervals with a finite-sample guarantee, from n calibration rows.

    The score of a calibration row is |F(y) − ½|: how far out it lies in its own predictive distribution. The interval
    of coverage c is F⁻¹(½ − q) to F⁻¹(½ + q), where q is the ⌈(n+1)c⌉-th smallest score. If calibration rows and new
    rows are exchangeable, a new y lies inside with probability at least c, and at most c + 1/(n+1) if no two scores are
    equal: on average over rows, not for every x. The calibration rows must not have been used to fit the model, nor to
    choose among models.

    If (n+1)c > n, there are too few rows for the guarantee, and if q is ½ up to rounding, no finite interval of this
    mixture has the coverage: the interval is then infinite, from -inf to inf.

    Attributes:
        scores: The scores in ascending order, (n,), or (n, T) with one column per output. Columns of outputs observed
            in fewer than n rows are padded with ones, which are not scores and do not count; an output never observed
            has only ones, and no finite interval.

    Raises:
        InputError: The scores have another shape, order or range.
    """

    scores: Float[Tensor, " n *T"]

    def __post_init__(self) -> None:
        scores = self.scores
        if scores.ndim not in (1, 2) or scores.numel() == 0 or scores.dtype != torch.float64:
            raise InputError(
                f"expected scores of shape (n,) or (n, T) in torch.float64, got {tuple(scores.shape)} in "
                f"{scores.dtype}; use Conformal.fit"
            )
        valid = (scores >= 0.0) & ((scores <= 0.5) | (scores == _NO_SCORE))  # False for NaN
        if not bool(valid.all() & (scores.diff(dim=0) >= 0.0).all() & (scores[0] <= 0.5).any()):
            raise InputError(
                "expected scores that ascend in each column, padded only with 1, got scores out of order or outside "
                "[0, 0.5]; use Conformal.fit"
            )

    @classmethod
    def fit(cls, mixture: Predictive, y: Array) -> Self:
        """Score the calibration rows.

        Args:
            mixture: The predictive distribution of rows that were not used to fit or choose the model.
            y: Their observed targets, (N,) or (N, T), in the same units; NaN in (N, T) means "not observed".

        Raises:
            InputError: The shape of y does not match the mixture.
            NumericalError: A distribution is not finite where y was observed.
        """
        scores = (Comparison(mixture, y).pit_columns - 0.5).abs().nan_to_num(_NO_SCORE).sort(dim=1).values  # (T, N)
        return cls(scores.T.contiguous().reshape(mixture.mean.shape))

    @property
    def counts(self) -> list[int]:
        """Number of rows in which each output was observed."""
        return (self.scores <= 0.5).sum(0).reshape(-1).tolist()

    def threshold(self, coverage: float) -> Float[Tensor, " *T"]:
        """Return q in [0, ½] for each output; ½ means that the interval is infinite.

        Raises:
            InputError: The coverage is not inside (0, 1).
        """
        if not 0.0 < coverage < 1.0:
            raise InputError(f"coverage: expected a number inside (0, 1), such as 0.9, got {coverage}")
        count = (self.scores <= 0.5).sum(0)  # n, for each output
        rank = ((count + 1).double() * coverage - 1e-9).ceil().long().clamp(min=1)  # 100 · 0.07 is 7.000000000000001
        q = self.scores.gather(0, (rank.clamp(max=len(self.scores)) - 1).unsqueeze(0)).squeeze(0)
        return torch.where(rank > count, 0.5, q)

    def why_infinite(self, coverage: float, names: Sequence[str] = ()) -> str:
        """Return why intervals of this coverage are infinite, output by output; empty if none is.

        Args:
            coverage: Coverage of the intervals.
            names: Names of the outputs; empty for "output 0", "output 1" and so on.
        """
        needed = math.ceil(coverage / (1.0 - coverage) - 1e-9)
        reasons: dict[str, list[str]] = {}
        for t, (q, count) in enumerate(zip(self.threshold(coverage).reshape(-1).tolist(), self.counts, strict=True)):
            if _tail(q) > 0.0:
                continue
            few = f"got {count:,} calibration row{'' if count == 1 else 's'}, need at least {needed:,}"
            off = "the model gives too many calibration rows zero probability; fit a better model"
            name = names[t] if names else f"output {t}"
            reasons.setdefault(few if count < needed else off, []).append(name)
        several = self.scores.ndim == 2
        return "; ".join(why + (f" ({', '.join(those)})" if several else "") for why, those in reasons.items())

    def interval(self, mixture: Predictive, coverage: float) -> tuple[Float[Tensor, " N *T"], Float[Tensor, " N *T"]]:
        """Return (lower, upper) for each row of a new prediction, with the guarantee described above.

        Raises:
            InputError: The coverage is not inside (0, 1), or the mixture has another number of outputs.
        """
        mixture = unwrap(mixture)
        if mixture.mean.shape[1:] != self.scores.shape[1:]:
            raise InputError(
                f"expected outputs of shape {tuple(self.scores.shape[1:])}, as in the calibration rows, got "
                f"{tuple(mixture.mean.shape[1:])}; pass predictions of the same model"
            )
        q = self.threshold(coverage).reshape(-1).tolist()
        pairs = [_closed_interval(one, q_t) for one, q_t in zip(mixture.outputs(), q, strict=True)]
        shape = mixture.mean.shape
        lower, upper = (torch.stack(ends, dim=-1).reshape(shape) for ends in zip(*pairs, strict=True))
        return lower, upper


def _closed_interval(one: RealPredictive, q: float) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Return quantiles at ½ ± q, slightly widened so that a y that ties with q is not excluded by rounding."""
    tail = _tail(q)
    if tail <= 0.0:
        infinite = torch.full((len(one),), math.inf, dtype=torch.float64, device=one.mean.device)
        return -infinite, infinite
    lower, upper = one.quantile(torch.tensor([tail, 1.0 - tail], dtype=torch.float64))
    return lower, upper


def _tail(q: float) -> float:
    """Return the probability outside at either end; 0 if float64 cannot represent it.

    Quantiles are solved to a relative 1e-11 of the tail, or to the rounding of F, which is 2e-16 near one.
    """
    tail = (0.5 - q) * (1.0 - 1e-10) - 2e-15
    return tail if tail > 0.0 and 1.0 - tail < 1.0 else 0.0

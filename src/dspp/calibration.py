"""Whether intervals hold what they promise, measured on rows the model has not seen, and intervals that do.

`check_calibration` measures. `Conformal` mends: its intervals hold their share of new rows, however wrong the model.
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
from dspp.predictive import Predictive, RealPredictive
from dspp.table.checks import Array

_HEADLINE = 0.9  # the level that the verdict speaks of
_CHANCE = 0.05  # a coverage that chance would give less often than this is no accident
_SLIGHT = 0.03  # a coverage no farther than this from its level is only slightly off
_SMALL_P = 0.01  # of the Kolmogorov–Smirnov test
_NO_SCORE = 1.0  # above every score: fills the places of outputs that were not observed


@dataclass(frozen=True)
class Calibration:
    """How the model's central intervals fared on some rows; with T outputs, pooled over all the observed values.

    Attributes:
        num_rows: Rows looked at.
        num_values: Observed values in them.
        coverage: For each level, the share of the values inside their interval of that probability.
        width: For each level, the mean width of the interval, in the units of y (of T outputs: their mean).
        ks: The Kolmogorov–Smirnov distance of the PIT from the uniform distribution; of T outputs, that of the one
            with the smallest p-value.
        p_value: How likely a distance as large is if the model is right; of T outputs, T times the smallest, since
            outputs that move together cannot be pooled.
        per_output: The same for each output that was observed; empty for a single one.
        name: What to call the output, for one of several.
        recalibrated: The share of the values inside their conformal interval of 90 %; None without one.
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
        """Say in a sentence whether the intervals can be trusted, and in another how recalibrated ones fared.

        Too narrow or too wide means that a right 90 % interval would hold so many or so few rows in less than 5 % of
        cases, by the binomial distribution. Outputs of one row may move together, so rows are counted, not values.
        """
        if self.recalibrated is None:
            return self._verdict()
        held = f"{100.0 * self.recalibrated:.1f}".removesuffix(".0")
        return f"{self._verdict()} That is the model itself; recalibrated intervals of 90 % hold {held} %."

    def _verdict(self) -> str:
        if complaint := self._complaint(_CHANCE):
            return f"Intervals are {complaint}: {self._finding()}."
        parts = self.per_output or (self,)
        # Many outputs get more room each, so that a good model is blamed as seldom as for one.
        blamed = [part for part in self.per_output if part._complaint(_CHANCE / len(parts))]
        if blamed:
            worst = max(blamed, key=lambda part: abs(part._gap) * math.sqrt(part.num_rows))
            complaint = worst._complaint(_CHANCE / len(parts))
            return f"Intervals are right on the whole, but those of {worst.name} are {complaint}: {worst._finding()}."
        if self.p_value < _SMALL_P:
            return (
                f"Intervals are right at 90 %, but the distribution is off in shape or to one side: {self._finding()}, "
                f"yet the PIT is not uniform (p = {self.p_value:.1g})."
            )
        if chance_bounds(self.num_rows, _HEADLINE)[1] >= 1.0:
            return f"Too few rows to tell whether intervals are right: {self._finding()}."
        return f"Intervals are right: {self._finding()}."

    @property
    def _gap(self) -> float:
        return self.coverage[_HEADLINE] - _HEADLINE

    def _complaint(self, chance: float) -> str:
        """Return "too narrow", "slightly too wide" and so on, or nothing."""
        low, high = chance_bounds(self.num_rows, _HEADLINE, chance)
        if low <= self.coverage[_HEADLINE] <= high:
            return ""
        slightly = "slightly " if abs(self._gap) <= _SLIGHT else ""
        return slightly + ("too narrow" if self._gap < 0.0 else "too wide")

    def _finding(self) -> str:
        what = "value" if self.per_output else "row"
        plural = "" if self.num_values == 1 else "s"
        held = f"{100.0 * self.coverage[_HEADLINE]:.1f}".removesuffix(".0")
        return f"the {100.0 * _HEADLINE:.0f} % interval holds {held} % of {self.num_values:,} {what}{plural}"


def chance_bounds(num_rows: int, level: float, chance: float = _CHANCE) -> tuple[float, float]:
    """Return the least and the largest coverage that a right interval of this level has but for `chance`."""
    from scipy import stats  # here: predictions do not wait for it

    low, high = stats.binom.ppf([0.5 * chance, 1.0 - 0.5 * chance], num_rows, level) / num_rows
    return float(low), float(high)


def check_calibration(
    mixture: Predictive, y: Array, names: Sequence[str] = (), conformal: "Conformal | None" = None
) -> Calibration:
    """Measure coverage, width and PIT of a predictive distribution on rows it was not fitted to.

    Args:
        mixture: The predictive distribution of the rows.
        y: What was observed, (N,) or (N, T), in the same units; NaN in (N, T): not observed.
        names: What to call the outputs; empty: "output 0", "output 1" and so on.
        conformal: What recalibrates the intervals, measured too.

    Raises:
        InputError: y does not fit the mixture.
        NumericalError: The mixture has no finite numbers where y was observed.
    """
    return calibration_of(Comparison(mixture, y), names, conformal)


def calibration_of(rows: Comparison, names: Sequence[str] = (), conformal: "Conformal | None" = None) -> Calibration:
    """Return what `check_calibration` does; rows that are scored as well share what both need."""
    found = _of_several(rows, names) if rows.several else _of_output(rows.outputs[0])
    return found if conformal is None else replace(found, recalibrated=_recalibrated(conformal, rows))


def _of_several(rows: Comparison, names: Sequence[str]) -> Calibration:
    labels = [names[one.index] if names else f"output {one.index}" for one in rows.outputs]
    each = tuple(replace(_of_output(one), name=label) for one, label in zip(rows.outputs, labels, strict=True))
    coverage = {level: rows.coverage(level) for level in LEVELS}
    return Calibration(len(rows), int(rows.observed.sum()), coverage, rows.widths, *rows.uniformity, per_output=each)


def _of_output(one: ObservedOutput) -> Calibration:
    num_rows = len(one.pit)
    coverage = {level: ((one.pit - 0.5).abs() <= level / 2).double().mean().item() for level in LEVELS}
    width = dict(zip(LEVELS, one.widths.mean(1).tolist(), strict=True))
    return Calibration(num_rows, num_rows, coverage, width, *one.uniformity)


def _recalibrated(conformal: "Conformal", rows: Comparison) -> float:
    lower, upper = conformal.interval(rows.mixture, _HEADLINE)
    return ((rows.y >= lower) & (rows.y <= upper))[rows.observed].double().mean().item()


@dataclass(frozen=True, eq=False)
class Conformal:
    """Intervals with a finite-sample guarantee, from n rows kept apart.

    The score of a calibration row is |F(y) − ½|: how far out in its own predictive distribution it came to lie. The
    interval of coverage c is F⁻¹(½ − q) to F⁻¹(½ + q), q being the ⌈(n+1)c⌉-th smallest score. If calibration rows and
    new rows are exchangeable, a new y lies inside with probability at least c, and at most c + 1/(n+1) where no two
    scores are equal: on average over rows, not for every x. The calibration rows must not have been used to fit the
    model, nor to choose among models.

    When (n+1)c > n there are too few rows to promise so much, and when q is ½ to rounding no finite interval of this
    mixture holds so much: the interval is then infinite, from -inf to inf.

    Attributes:
        scores: The scores in ascending order, (n,), or (n, T) with each output's in its own column. Outputs that were
            observed in fewer than n rows have their column filled up with ones, which are not scores and do not count;
            one that was observed in none has no others, and no finite interval.

    Raises:
        InputError: The scores are not that.
    """

    scores: Float[Tensor, " n *T"]

    def __post_init__(self) -> None:
        scores = self.scores
        if scores.ndim not in (1, 2) or scores.numel() == 0 or scores.dtype != torch.float64:
            raise InputError(
                f"got scores of shape {tuple(scores.shape)} and {scores.dtype}, expected (n,) or (n, T) in "
                "torch.float64; use Conformal.fit"
            )
        valid = (scores >= 0.0) & ((scores <= 0.5) | (scores == _NO_SCORE))  # NaN is not
        if not bool(valid.all() & (scores.diff(dim=0) >= 0.0).all() & (scores[0] <= 0.5).any()):
            raise InputError(
                "got scores out of order or outside [0, 0.5], expected each column to ascend, padded with 1 at its end "
                "at most; use Conformal.fit"
            )

    @classmethod
    def fit(cls, mixture: Predictive, y: Array) -> Self:
        """Score the calibration rows.

        Args:
            mixture: The predictive distribution of rows that neither fitted nor chose the model.
            y: What was observed there, (N,) or (N, T), in the same units; NaN in (N, T): not observed.

        Raises:
            InputError: y does not fit the mixture.
            NumericalError: The mixture has no finite numbers where y was observed.
        """
        scores = (Comparison(mixture, y).pit_columns - 0.5).abs().nan_to_num(_NO_SCORE).sort(dim=1).values  # (T, N)
        return cls(scores.T.contiguous().reshape(mixture.mean.shape))

    @property
    def counts(self) -> list[int]:
        """How many rows each output was observed in."""
        return (self.scores <= 0.5).sum(0).reshape(-1).tolist()

    def threshold(self, coverage: float) -> Float[Tensor, " *T"]:
        """Return q, in [0, ½], for each output; ½ means that the interval is infinite.

        Raises:
            InputError: The coverage is not inside (0, 1).
        """
        if not 0.0 < coverage < 1.0:
            raise InputError(f"got coverage {coverage}, expected a number inside (0, 1), such as 0.9")
        count = (self.scores <= 0.5).sum(0)  # n, for each output
        rank = ((count + 1).double() * coverage - 1e-9).ceil().long().clamp(min=1)  # 100 · 0.07 is 7.000000000000001
        q = self.scores.gather(0, (rank.clamp(max=len(self.scores)) - 1).unsqueeze(0)).squeeze(0)
        return torch.where(rank > count, 0.5, q)

    def why_infinite(self, coverage: float, names: Sequence[str] = ()) -> str:
        """Return why intervals of this coverage are infinite, output by output; nothing where none is.

        Args:
            coverage: Of the intervals.
            names: What to call the outputs; empty: "output 0", "output 1" and so on.
        """
        needed = math.ceil(coverage / (1.0 - coverage) - 1e-9)
        reasons: dict[str, list[str]] = {}
        for t, (q, count) in enumerate(zip(self.threshold(coverage).reshape(-1).tolist(), self.counts, strict=True)):
            if _tail(q) > 0.0:
                continue
            few = f"{count:,} calibration row{' is' if count == 1 else 's are'} too few, it takes {needed:,}"
            off = "too many calibration rows lie where the model puts no probability; fit a better model"
            name = names[t] if names else f"output {t}"
            reasons.setdefault(few if count < needed else off, []).append(name)
        several = self.scores.ndim == 2
        return "; ".join(why + (f" ({', '.join(those)})" if several else "") for why, those in reasons.items())

    def interval(self, mixture: Predictive, coverage: float) -> tuple[Float[Tensor, " N *T"], Float[Tensor, " N *T"]]:
        """Return (lower, upper) for each row of a new prediction; see the class for what they promise.

        Raises:
            InputError: The coverage is not inside (0, 1), or the mixture has another number of outputs.
        """
        if mixture.mean.shape[1:] != self.scores.shape[1:]:
            raise InputError(
                f"got a mixture with outputs of shape {tuple(mixture.mean.shape[1:])}, expected "
                f"{tuple(self.scores.shape[1:])} as in the calibration rows; give predictions of the same model"
            )
        q = self.threshold(coverage).reshape(-1).tolist()
        pairs = [_closed_interval(one, q_t) for one, q_t in zip(mixture.outputs(), q, strict=True)]
        shape = mixture.mean.shape
        lower, upper = (torch.stack(ends, dim=-1).reshape(shape) for ends in zip(*pairs, strict=True))
        return lower, upper


def _closed_interval(one: RealPredictive, q: float) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Return quantiles at ½ ± q, a hair further out: a y that ties with q must not fall outside by rounding."""
    tail = _tail(q)
    if tail <= 0.0:
        infinite = torch.full((len(one),), math.inf, dtype=torch.float64, device=one.mean.device)
        return -infinite, infinite
    lower, upper = one.quantile(torch.tensor([tail, 1.0 - tail], dtype=torch.float64))
    return lower, upper


def _tail(q: float) -> float:
    """Return the probability left out at either end; 0: none that float64 can tell from none.

    Quantiles are solved to a relative 1e-11 of the tail, or to the rounding of F, which is 2e-16 near one.
    """
    tail = (0.5 - q) * (1.0 - 1e-10) - 2e-15
    return tail if tail > 0.0 and 1.0 - tail < 1.0 else 0.0

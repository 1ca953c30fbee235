"""Calibration of predictions, measured on rows that the model has not seen, and conformal recalibration.

`check_calibration` measures coverage, bias and the gain over a constant. Intervals from `Conformal` keep their coverage
even if the model is wrong.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dspp.errors import InputError
from dspp.metrics import LEVELS, Comparison, average, constant_crps, effective_rows, uniformity
from dspp.numbers import plain_percent
from dspp.predictive import Predictive, RealPredictive, unwrap
from dspp.table.checks import Array

HEADLINE = 0.9  # the level that the verdict reports
_BAD = 0.8  # a coverage that a verdict of "calibrated" must rule out
_CHANCE = 0.05  # a coverage less likely than this is not attributed to chance
_SLIGHT = 0.03  # a coverage within this of its level is only slightly off
_SMALL_P = 0.01  # of the Kolmogorov–Smirnov test, and of a bias
_MATTERS = 0.1  # a bias of so many standard deviations of the errors matters
_GAIN = 0.1  # lower CRPS than of a constant, as a share of it, that a verdict of "no better" must rule out
_HALVINGS = 32  # of the range in which the end of a cross-conformal interval lies: to 2e-10 of it, on the safe side
_NO_SCORE = 1.0  # above every score: pads outputs that were not observed in all rows


class Verdict(Protocol):
    """What some rows say about whether predictions can be trusted."""

    def verdict(self) -> str:
        """Return it in one or a few sentences."""

    @property
    def is_too_narrow(self) -> bool:
        """Whether the verdict is that distributions are too narrow."""


@dataclass(frozen=True)
class Calibration:
    """Calibration of the model's central intervals on some rows; with T outputs, pooled over all observed values.

    Attributes:
        num_rows: Number of rows; if they have weights, of equally weighted rows that tell as much.
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
        bias: Mean of prediction minus observation, in the units of y; with T outputs, see `per_output`, as for the
            following.
        bias_error: Standard error of the bias.
        crps: Mean CRPS.
        constant_crps: Mean CRPS if all rows had the distribution of the observed values, the best constant.
        gain_error: Standard error of the difference of these two.
        caveat: A sentence on what the rows were used for, such as choosing the epoch; empty for new rows.

    Example:
        >>> import torch
        >>> from dspp import NormalMixture
        >>> from dspp.calibration import check_calibration
        >>> mean, noise = torch.randn(2, 1000, generator=torch.Generator().manual_seed(0))
        >>> y = mean + noise
        >>> def predict(std):
        ...     return NormalMixture(torch.zeros(1), mean[None], torch.zeros(1, 1000), torch.tensor(std**2))
        >>> check_calibration(predict(1.0), y).verdict()
        'Intervals are calibrated: the 90 % interval contains ... % of 1,000 rows.'
        >>> check_calibration(predict(0.5), y).is_too_narrow
        True
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
    bias: float = 0.0
    bias_error: float = math.inf
    crps: float = 0.0
    constant_crps: float = math.inf
    gain_error: float = math.inf
    caveat: str = ""

    def verdict(self) -> str:
        """Say what is wrong with the predictions and whether intervals are calibrated, and what qualifies it.

        The faults are named in this order, each if it was found:

        - No better than a constant: the mean CRPS is not below that of the distribution of the observed values, and a
          gain of a tenth over it is ruled out at the 5 % level.
        - Shifted: the mean error differs from zero at the 1 % level, and by at least a tenth of the standard deviation
          of the errors.
        - Too narrow or too wide: a calibrated 90 % interval would contain so few or so many rows in less than 5 % of
          cases, by a binomial test.

        "Calibrated" means that none was, and that an interval which truly contains 80 % of new rows would contain so
        many in at most 5 % of cases. Otherwise there are too few rows to tell. Outputs of one row may be correlated, so
        rows are counted, not values. Values of a target that has few of them are placed in their cells at random: see
        `Comparison.pit`.
        """
        faults = self._faults()
        sentences = [*faults, self._verdict(bool(faults))]
        if self.recalibrated is not None:
            held = plain_percent(self.recalibrated, 1)
            sentences.append(f"This is the model itself; recalibrated 90 % intervals contain {held}.")
        return " ".join([*sentences, self.caveat] if self.caveat else sentences)

    @property
    def is_too_narrow(self) -> bool:
        """Whether the verdict is that intervals, or those of some output, are too narrow."""
        complaints = [self._complaint(_CHANCE), *(part._complaint(self._share) for part in self.per_output)]
        return any("narrow" in complaint for complaint in complaints)

    def _faults(self) -> list[str]:
        """Return a sentence on useless and one on shifted predictions, of the worst output if there are several."""
        parts, found = self.per_output or (self,), []
        useless = [part for part in parts if part._is_useless(self._share)]
        if useless:
            worst = max(useless, key=lambda part: part.crps / part.constant_crps)
            found.append(
                f"Predictions{worst._of} are no better than a constant: their CRPS is {worst.crps:.4g}, and "
                f"{worst.constant_crps:.4g} if all rows have the distribution of the observed values."
            )
        shifted = [part for part in parts if part._is_shifted(self._share)]
        if shifted:
            worst = max(shifted, key=lambda part: abs(part.bias) / part.bias_error)
            found.append(
                f"Predictions{worst._of} are shifted: on average {abs(worst.bias):.4g} too "
                f"{'high' if worst.bias > 0.0 else 'low'} (standard error {worst.bias_error:.2g})."
            )
        return found

    def _verdict(self, has_faults: bool) -> str:
        """Return a sentence on the intervals, after those on other faults."""
        if complaint := self._complaint(_CHANCE):
            return f"Intervals are {complaint}: {self._finding()}."
        supported = self._is_supported()
        flagged = [part for part in self.per_output if part._complaint(self._share)]
        if flagged:
            worst = max(flagged, key=lambda part: abs(part._gap) * math.sqrt(part.num_rows))
            overall = "Intervals are calibrated overall, but those" if supported else "Intervals"
            return f"{overall} of {worst.name} are {worst._complaint(self._share)}: {worst._finding()}."
        if self.p_value < _SMALL_P:
            if has_faults:
                return f"Even so, {self._finding()}."
            start = "Intervals are calibrated at 90 %, but the" if supported else "The"
            return (
                f"{start} distribution is shifted or has the wrong shape: "
                f"{self._finding()}, yet the PIT is not uniform (p = {self.p_value:.1g})."
            )
        if not supported:
            return f"Too few rows to tell whether intervals are calibrated: {self._finding()}."
        return f"Intervals are calibrated: {self._finding()}."

    def _is_useless(self, chance: float) -> bool:
        """Return whether the rows show no gain over the best constant, and rule out one that is worth having.

        That constant has seen the rows, which lowers its CRPS by the factor 1 − 1/n on average.
        """
        if self.num_rows < 2 or not 0.0 < self.constant_crps <= self.crps:
            return False
        fair = self.constant_crps * self.num_rows / (self.num_rows - 1)
        return (fair - self.crps + _t_quantile(chance, self.num_rows) * self.gain_error) < _GAIN * fair

    def _is_shifted(self, share: float) -> bool:
        """Return whether the bias is more than chance explains, and large enough to matter."""
        if self.num_rows < 2 or not 0.0 < self.bias_error < math.inf:
            return False
        least = _t_quantile(0.5 * _SMALL_P * share / _CHANCE, self.num_rows)
        return abs(self.bias) >= self.bias_error * max(least, _MATTERS * math.sqrt(self.num_rows))

    @property
    def _of(self) -> str:
        return f" of {self.name}" if self.name else ""

    @property
    def _gap(self) -> float:
        return self.coverage[HEADLINE] - HEADLINE

    @property
    def _independent(self) -> int:
        """Number of values that count as independent."""
        return min(self.num_rows, self.num_values)

    @property
    def _share(self) -> float:
        """A Bonferroni correction, so that a good model is flagged no more often than with one output."""
        return _CHANCE / max(1, len(self.per_output))

    def _complaint(self, chance: float) -> str:
        """Return "too narrow", "slightly too wide" and so on, or an empty string."""
        low, high = chance_bounds(self._independent, HEADLINE, chance)
        if low <= self.coverage[HEADLINE] <= high:
            return ""
        slightly = "slightly " if abs(self._gap) <= _SLIGHT else ""
        return slightly + ("too narrow" if self._gap < 0.0 else "too wide")

    def _is_supported(self) -> bool:
        """Return whether intervals that contain 80 %, or always everything, would have been told from right ones."""
        return is_told_apart(self.coverage[HEADLINE], self._independent, HEADLINE)

    def _finding(self) -> str:
        what = "value" if self.per_output else "row"
        plural = "" if self.num_values == 1 else "s"
        held = plain_percent(self.coverage[HEADLINE], 1)
        return f"the {plain_percent(HEADLINE)} interval contains {held} of {self.num_values:,} {what}{plural}"


def _t_quantile(tail: float, num_rows: int) -> float:
    """Return what a mean over its standard error exceeds with this probability."""
    from scipy import stats  # imported here so that loading a model stays fast

    return float(stats.t.isf(tail, num_rows - 1))


def chance_bounds(num_rows: int, level: float, chance: float = _CHANCE) -> tuple[float, float]:
    """Return the range of coverage that a calibrated interval of this level has with probability 1 − `chance`."""
    from scipy import stats  # imported here so that loading a model stays fast

    low, high = stats.binom.ppf([0.5 * chance, 1.0 - 0.5 * chance], num_rows, level) / num_rows
    return float(low), float(high)


def is_told_apart(coverage: float, num_rows: int, level: float) -> bool:
    """Return whether intervals that contain 10 % of the rows less, or always everything, would have been noticed."""
    from scipy import stats

    least = float(stats.binom.isf(_CHANCE, num_rows, level - (HEADLINE - _BAD)) + 1.0)  # P(K > isf) <= chance
    return coverage >= least / num_rows and chance_bounds(num_rows, level)[1] < 1.0


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
    rows = Comparison(mixture, y)
    inside = None if conformal is None else is_inside(rows.y, conformal.interval(rows.mixture, HEADLINE))
    return calibration_of(rows, names, inside)


def calibration_of(
    rows: Comparison,
    names: Sequence[str] = (),
    recalibrated: Bool[Tensor, " N *T"] | None = None,
    caveat: str = "",
) -> Calibration:
    """Return the calibration of a `Comparison`, which shares computations with its scores.

    `recalibrated` is whether each target is inside its 90 % conformal interval, `caveat` that of the `Calibration`.
    """
    parts = _calibrations_of_outputs(rows)
    if rows.several:
        labels = [names[t] if names else f"output {t}" for t, _ in rows.outputs]
        coverage = {level: rows.coverage(level) for level in LEVELS}
        whole = Calibration(rows.num_rows, int(rows.observed.sum()), coverage, rows.widths, *rows.uniformity)
        each = tuple(replace(part, name=label) for part, label in zip(parts, labels, strict=True))
        found = replace(whole, per_output=each, caveat=caveat)
    else:
        found = replace(parts[0], caveat=caveat)
    if recalibrated is None:
        return found
    return replace(found, recalibrated=rows.average(recalibrated.double()).item())


def is_inside(
    y: Float[Tensor, " N *T"], ends: tuple[Float[Tensor, " N *T"], Float[Tensor, " N *T"]]
) -> Bool[Tensor, " N *T"]:
    """Return whether each target is inside its interval, the ends included."""
    lower, upper = ends
    return (y >= lower) & (y <= upper)


def _calibrations_of_outputs(rows: Comparison) -> list[Calibration]:
    """Return the calibration of each output, in the rows in which it was observed."""
    kept = (rows.y, rows.mean, rows.crps_by_row, rows.pit, rows.widths_by_row)
    columns = zip(*map(rows.by_output, kept), rows.weights_by_output, strict=True)
    return [_calibration_of_one(*column) for column in columns]


def _calibration_of_one(
    y: Tensor, mean: Tensor, crps: Tensor, pit: Tensor, widths: Float[Tensor, "n levels"], weights: Tensor | None
) -> Calibration:
    """Return the calibration of one output, from the n rows in which it was observed."""
    num_rows = effective_rows(len(y), weights)
    constant = torch.from_numpy(constant_crps(y.numpy(), None if weights is None else weights.numpy()))
    coverage = {level: average(((pit - 0.5).abs() <= level / 2).double(), weights).item() for level in LEVELS}
    return Calibration(
        num_rows,
        len(y),
        coverage,
        dict(zip(LEVELS, average(widths.T, weights).tolist(), strict=True)),
        *uniformity(pit, weights),
        bias=average(mean - y, weights).item(),
        bias_error=_standard_error(mean - y, weights, num_rows),
        crps=average(crps, weights).item(),
        constant_crps=average(constant, weights).item(),
        gain_error=_standard_error(constant - crps, weights, num_rows),
    )


def _standard_error(values: Tensor, weights: Tensor | None, num_rows: int) -> float:
    """Return the standard error of the mean of values; infinite for a single row."""
    variance = average((values - average(values, weights)).square(), weights).item()
    return math.sqrt(variance / (num_rows - 1)) if num_rows > 1 else math.inf


@dataclass(frozen=True, eq=False)
class Conformal:
    """Conformal intervals with a finite-sample guarantee, from n calibration rows.

    The score of a calibration row is |F(y) − ½|: how far out it lies in its own predictive distribution. The interval
    of coverage c is F⁻¹(½ − q) to F⁻¹(½ + q), where q is the ⌈(n+1)c⌉-th smallest score. If calibration rows and new
    rows are exchangeable, a new y lies inside with probability at least c, and at most c + 1/(n+1) if no two scores are
    equal: on average over rows, not for every x. The calibration rows must not have been used to fit the model, nor to
    choose among models.

    Rows may also have been held out in folds, each by some members of an ensemble (Vovk 2015). F_j is then the
    distribution by the members that were not trained on fold j, and the score of a row i of fold j(i) is
    s_i = |F_j(i)(y_i) − ½|. The set of coverage c holds every y with #{i : s_i >= |F_j(i)(y) − ½|} > n − (n+1)c: those
    that are no further out than enough of the rows, each compared by the members that did not see it. The interval is
    the smallest one that contains this set and the medians of all F_j. If the rows are exchangeable and folds have
    equal sizes, a new y lies inside with probability at least 1 − 2α − √(2/n), where α = 1 − c, whatever the members
    are (Barber et al. 2021, Theorem 4, whose proof holds for this set), and usually close to c. Not counted in that
    bound is the little that all members share and that was learned from the same rows: encoding, scales, weights,
    spread, guard, and the boosted trees, of which a row's own prediction uses those that did not see it, and the
    prediction of a new row those fitted to all rows.

    If (n+1)c > n, there are too few rows for the guarantee, and if q is ½ up to rounding, no finite interval of this
    mixture has the coverage: the interval is then infinite, from -inf to inf.

    Attributes:
        scores: The scores, (n,), or (n, T) with one column per output, ascending within each fold. Columns of outputs
            observed in fewer than n rows are padded with ones, which are not scores and do not count; an output never
            observed has only ones, and no finite interval.
        fold: j(i) of each row, (n,), in ascending order; None: no member was trained on any of the rows.

    Raises:
        InputError: The scores have another shape, order or range, or the folds do.

    Example:
        >>> import torch
        >>> from dspp import Conformal, NormalMixture
        >>> def predict(N):  # a model, or the members of either fold, that take every y for N(0, 1)
        ...     return NormalMixture(torch.zeros(1), torch.zeros(1, N), torch.ones(1, N), torch.tensor(0.0))
        >>> y = 2.0 * torch.randn(999, generator=torch.Generator().manual_seed(0))  # twice as wide
        >>> lower, upper = Conformal.fit(predict(999), y).interval(predict(1), 0.9)
        >>> bool(2.9 < upper < 3.7)  # about 2 · 1.645, not 1.645
        True
        >>> conformal = Conformal.fit(predict(999), y, fold=torch.arange(999) % 2)
        >>> lower, upper = conformal.interval({0: predict(1), 1: predict(1)}, 0.9)
        >>> bool(2.9 < upper < 3.7)
        True
    """

    scores: Float[Tensor, " n *T"]
    fold: Int[Tensor, " n"] | None = None

    def __post_init__(self) -> None:
        scores, fold = self.scores, self._fold
        if scores.ndim not in (1, 2) or scores.numel() == 0 or scores.dtype != torch.float64:
            raise InputError(
                f"expected scores of shape (n,) or (n, T) in torch.float64, got {tuple(scores.shape)} in "
                f"{scores.dtype}; use Conformal.fit"
            )
        if fold.dtype != torch.int64 or fold.shape != scores.shape[:1] or bool((fold[1:] < fold[:-1]).any()):
            raise InputError(
                f"expected {len(scores)} folds in ascending order, got {fold.dtype} of shape {tuple(fold.shape)}; use "
                "Conformal.fit"
            )
        valid = (scores >= 0.0) & ((scores <= 0.5) | (scores == _NO_SCORE))  # False for NaN
        columns = scores.reshape(len(scores), -1)
        ascends = (columns[1:] >= columns[:-1]) | (fold[1:] > fold[:-1]).unsqueeze(1)
        if not bool(valid.all() & ascends.all() & (scores <= 0.5).any() & (fold[0] >= 0)):
            raise InputError(
                "expected scores that ascend in each column, or within each fold, padded only with 1, got scores out "
                "of order or outside [0, 0.5]; use Conformal.fit"
            )

    @classmethod
    def fit(cls, mixture: Predictive, y: Array, fold: Int[Tensor, " N"] | None = None) -> Self:
        """Score the calibration rows.

        Args:
            mixture: The predictive distribution of rows that were not used to fit or choose the model; with folds, of
                each row by the members that were not trained on its fold.
            y: Their observed targets, (N,) or (N, T), in the same units; NaN in (N, T) means "not observed".
            fold: The fold of each row.

        Raises:
            InputError: The shape of y does not match the mixture.
            NumericalError: A distribution is not finite where y was observed.
        """
        u = Comparison(mixture, y).cdf.cpu()
        scores = (u - 0.5).abs().nan_to_num(_NO_SCORE)
        of_row = torch.zeros(len(u), dtype=torch.int64) if fold is None else fold
        parts = [scores[of_row == j].sort(dim=0).values for j in of_row.unique()]
        return cls(torch.cat(parts).contiguous(), None if fold is None else fold.sort().values)

    @property
    def _fold(self) -> Int[Tensor, " n"]:
        return torch.zeros(1, dtype=torch.int64).expand(len(self.scores)) if self.fold is None else self.fold

    @property
    def folds(self) -> list[int]:
        """The folds, in ascending order."""
        return [int(j) for j in self._fold.unique()]

    @property
    def counts(self) -> list[int]:
        """Number of rows in which each output was observed."""
        return (self.scores <= 0.5).sum(0).reshape(-1).tolist()

    def threshold(self, coverage: float) -> Float[Tensor, " *T"]:
        """Return q in [0, ½] for each output; ½ means that the interval is infinite.

        With folds, the interval ends between the smallest and largest of F_j⁻¹(½ ± q).

        Raises:
            InputError: The coverage is not inside (0, 1).
        """
        if not 0.0 < coverage < 1.0:
            raise InputError(f"coverage: expected a number inside (0, 1), such as 0.9, got {coverage}")
        count = (self.scores <= 0.5).sum(0)  # n, for each output
        rank = _rank(count, coverage)
        ascending = self.scores.sort(dim=0).values
        q = ascending.gather(0, (rank.clamp(max=len(self.scores)) - 1).unsqueeze(0)).squeeze(0)
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

    def interval(
        self, mixture: Predictive | Mapping[int, Predictive], coverage: float
    ) -> tuple[Float[Tensor, " N *T"], Float[Tensor, " N *T"]]:
        """Return (lower, upper) for each row of a new prediction, with the guarantee described above.

        Args:
            mixture: The prediction; with folds, F_j of the new rows for each fold j.
            coverage: c, inside (0, 1).

        Raises:
            InputError: The coverage is not inside (0, 1), or the prediction of a fold is missing or has another number
                of outputs.
        """
        parts = mixture if isinstance(mixture, Mapping) else {0: unwrap(mixture)}
        folds = self.folds
        if not set(folds) <= set(parts):
            raise InputError(
                f"expected predictions for folds {folds}, got folds {sorted(parts)}; pass predictions of the same model"
            )
        shape, expected = parts[folds[0]].mean.shape, self.scores.shape[1:]
        if shape[1:] != expected:
            raise InputError(
                f"expected outputs of shape {tuple(expected)}, as in the calibration rows, got {tuple(shape[1:])}; "
                "pass predictions of the same model"
            )
        columns = self.scores.reshape(len(self.scores), -1).T
        outputs = zip(*(parts[j].to(torch.float64).outputs() for j in folds), strict=True)
        pairs = []
        for column, q, ones in zip(columns, self.threshold(coverage).reshape(-1).tolist(), outputs, strict=True):
            seen = column <= 0.5
            scores = [column[seen & (self._fold == j)].contiguous() for j in folds]
            used = [k for k, own in enumerate(scores) if len(own)] or [0]  # folds in which the output was observed
            pairs.append(_interval([ones[k] for k in used], [scores[k] for k in used], q, coverage))
        lower, upper = (torch.stack(ends, dim=-1).reshape(shape) for ends in zip(*pairs, strict=True))
        return lower, upper


def _interval(
    ones: Sequence[RealPredictive], scores: Sequence[Float[Tensor, " n_j"]], q: float, coverage: float
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Return the interval of one output: quantiles of one distribution, or by bisection of the rows as far out in some.

    Their number can only fall as y moves away from all medians. Where all |F_j(y) − ½| <= q it is large enough, and
    where all are greater it is not, so each end lies between the smallest and the largest quantile at ½ ± q.
    """
    tail = _tail(q)
    if tail <= 0.0:
        infinite = torch.full((len(ones[0]),), math.inf, dtype=torch.float64, device=ones[0].mean.device)
        return -infinite, infinite
    if len(ones) == 1:
        lower, upper = ones[0].quantile(torch.tensor([tail, 1.0 - tail], dtype=torch.float64))
        return lower, upper
    levels = torch.tensor([tail, 0.5, 1.0 - tail], dtype=torch.float64)
    low, middle, high = torch.stack([one.quantile(levels) for one in ones]).unbind(1)  # each (J, N)
    inner = torch.stack([torch.minimum(low.amax(0), middle.amin(0)), torch.maximum(high.amin(0), middle.amax(0))])
    outer = torch.stack([low.amin(0), high.amax(0)])
    count = torch.tensor(sum(map(len, scores)))
    needed = count + 1 - _rank(count, coverage)
    for _ in range(_HALVINGS):
        y = 0.5 * (inner + outer)  # (2, N)
        further = torch.zeros_like(y, dtype=torch.int64)
        for one, own in zip(ones, scores, strict=True):
            out = (one.cdf(y) - 0.5).abs()
            out = out - 1e-10 * (0.5 - out) - 4e-15  # as in `_tail`: a y that ties is not excluded by rounding
            further += len(own) - torch.searchsorted(own, out)
        inside = further >= needed
        inner, outer = torch.where(inside, y, inner), torch.where(inside, outer, y)
    return outer[0], outer[1]


def _rank(count: Int[Tensor, " *T"], coverage: float) -> Int[Tensor, " *T"]:
    """Return ⌈(n+1)c⌉, at least 1; 100 · 0.07 is 7.000000000000001."""
    return ((count + 1).double() * coverage - 1e-9).ceil().long().clamp(min=1)


def _tail(q: float) -> float:
    """Return the probability outside at either end; 0 if float64 cannot represent it.

    Quantiles are solved to a relative 1e-11 of the tail, or to the rounding of F, which is 2e-16 near one.
    """
    tail = (0.5 - q) * (1.0 - 1e-10) - 2e-15
    return tail if tail > 0.0 and 1.0 - tail < 1.0 else 0.0

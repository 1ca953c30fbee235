"""The statistics of comparing methods: average ranks, Friedman and Nemenyi, and the exact signed-rank test."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from experiments.report.records import Grid

ALPHA = 0.05
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Ranking:
    """Methods ranked against each other on the (data set, split) pairs that all of them have."""

    methods: tuple[str, ...]
    pairs: tuple[tuple[str, int], ...]
    ranks: tuple[float, ...]  # averages, one per method; empty if there are no pairs
    friedman: tuple[float, float] | None  # chi squared and p; needs at least 3 methods and 2 pairs
    critical: float | None  # Nemenyi's critical difference of average ranks

    def rank(self, method: str) -> float | None:
        """Return the average rank of a method, or None if it has none."""
        return dict(zip(self.methods, self.ranks, strict=True)).get(method) if self.pairs else None

    def order(self) -> list[str]:
        """Return the methods, best first."""
        return [method for _, method in sorted(zip(self.ranks, self.methods, strict=True))] if self.pairs else []

    def datasets(self) -> list[str]:
        """Return the data sets that take part."""
        return list(dict.fromkeys(dataset for dataset, _ in self.pairs))


def ranking(grid: Grid, methods: Sequence[str]) -> Ranking:
    """Rank the methods that were run; ties share the mean of their ranks."""
    present = grid.present(methods)
    pairs, rows = grid.losses(present)
    if not pairs:
        return Ranking(present, (), (), None, None)
    losses = np.array(rows, dtype=np.float64)  # (pairs, methods)
    ranks = stats.rankdata(losses, axis=1).mean(axis=0)
    enough = len(present) >= 3 and len(pairs) >= 2
    return Ranking(
        present,
        tuple(pairs),
        tuple(float(rank) for rank in ranks),
        friedman(losses) if enough else None,
        nemenyi(len(present), len(pairs)) if enough else None,
    )


def friedman(losses: Array) -> tuple[float, float] | None:
    """Return chi squared and p of "all methods are alike"; None if every pair is a tie of all methods."""
    if (losses == losses[:, :1]).all():
        return None
    result = stats.friedmanchisquare(*losses.T)
    return float(result.statistic), float(result.pvalue)


def nemenyi(num_methods: int, num_pairs: int, alpha: float = ALPHA) -> float:
    """Return q √(k (k + 1) / 6 n): average ranks further apart than this differ at the level alpha."""
    q = float(stats.studentized_range.ppf(1 - alpha, num_methods, np.inf)) / math.sqrt(2)
    return q * math.sqrt(num_methods * (num_methods + 1) / (6 * num_pairs))


@dataclass(frozen=True)
class SignedRank:
    """The signed-rank test of one method against another on the pairs that both have."""

    pairs: int
    wins: int  # of the first method
    losses: int
    pvalue: float | None  # two-sided; None if there are too few pairs to reach the level

    def __str__(self) -> str:
        if not self.pairs:
            return "no pairs"
        if self.pvalue is None:
            return "too few pairs"
        return f"p = {self.pvalue:.2g}" if self.pvalue >= 1e-4 else "p < 0.0001"


def signed_rank(grid: Grid, first: str, other: str) -> SignedRank:
    """Test exactly whether the losses of two methods differ, with ties handled."""
    _, rows = grid.losses((first, other))
    differences = np.array([a - b for a, b in rows], dtype=np.float64)
    wins, losses = int((differences < 0).sum()), int((differences > 0).sum())
    return SignedRank(len(rows), wins, losses, exact_pvalue(differences))


def exact_pvalue(differences: Array) -> float | None:
    """Return the two-sided p of Wilcoxon's statistic under all sign changes; None if it could not be below ALPHA.

    Zeros are dropped, as Wilcoxon did. Mean ranks are multiples of a half, so doubled ranks are whole numbers and the
    distribution of their sum is a product of polynomials (1 + x^r) / 2, exact also with ties.
    """
    nonzero = differences[differences != 0]
    if 2.0 ** (1 - len(nonzero)) > ALPHA:
        return None
    doubled = np.rint(2 * stats.rankdata(np.abs(nonzero))).astype(int)
    probability = np.ones(1)
    for rank in doubled:
        longer = np.zeros(len(probability) + rank)
        longer[: len(probability)] += probability / 2
        longer[rank:] += probability / 2
        probability = longer
    statistic = int(doubled[nonzero > 0].sum())
    below, above = probability[: statistic + 1].sum(), probability[statistic:].sum()
    return float(min(1.0, 2 * min(below, above)))


def cliques(ranking: Ranking) -> list[tuple[float, float]]:
    """Return the widest stretches of average ranks within which no two methods differ by the critical difference."""
    if ranking.critical is None:
        return []
    ranks = sorted(ranking.ranks)
    found: list[tuple[float, float]] = []
    for start in ranks:
        end = max(rank for rank in ranks if rank - start <= ranking.critical)
        if end > start and not any(low <= start and end <= high for low, high in found):
            found.append((start, end))
    return found

"""Which rows are held out: at random, by groups that stay together, or spans of time, the latest first."""

import heapq
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, Shaped

from dspp.batches import derive_seed
from dspp.errors import InputError
from dspp.table.split import spread_evenly

HELD_OUT_SHARE = 0.1  # of the rows, if there is one fold,
MAX_HELD_OUT = 10_000  # but not more than this
NEVER = -1  # the fold of rows that all members train on
_FOLDS = 17  # derives the seed


@dataclass(frozen=True, eq=False)
class Split:
    """Which rows are held out from which members."""

    fold: Int[np.ndarray, " N"]  # of each row, from 0, or `NEVER`; members train on the rows of all folds but their own
    inner: Int[np.ndarray, " N"] | None  # for trees, if rows must stay together; see `trees.cross_fit`
    num_train: int  # later rows were given to judge the members, so nothing but the mixing is learned from them
    forward: bool = False  # whether folds are spans of time; only the latest, fold 0, then judges members

    @property
    def num_folds(self) -> int:
        """J, the number of folds."""
        return int(self.fold.max(initial=NEVER)) + 1

    @property
    def judging(self) -> range:
        """The folds whose rows tell how to mix members."""
        return range(1 if self.forward else self.num_folds)

    @property
    def has_inner_folds(self) -> bool:
        """Whether the rows outside of each fold have at least two inner folds, as trees need."""
        inner = self.inner
        return inner is None or all(np.ptp(inner[self.fold != k]) > 0 for k in range(self.num_folds))

    def held_out(self, fold: int) -> Bool[np.ndarray, " N"]:
        """Return a mask of the rows of a fold."""
        return np.asarray(self.fold == fold)


def assign_folds(
    num_rows: int,
    folds: int,
    seed: int,
    groups: Int[np.ndarray, " N"] | None = None,
    times: Shaped[np.ndarray, " N"] | None = None,
    strata: Int[np.ndarray, " N"] | None = None,
) -> Int[np.ndarray, " N"]:
    """Return the fold of each row; one fold is a single part of the rows, and all members train on the others.

    Rows of a group have the same fold. With times, folds are spans of time, the latest first, and the single part has
    the latest rows. Otherwise every fold has its share of each stratum.

    Raises:
        InputError: All rows have the same group or time.
    """
    held_out = min(MAX_HELD_OUT, max(1, round(HELD_OUT_SHARE * num_rows)))
    seed, single = derive_seed(seed, _FOLDS), folds <= 1
    if times is not None:
        return np.where(latest_rows(times, held_out), 0, NEVER) if single else _deal_spans(times, folds)
    if groups is not None:
        keep = 2 if len(np.unique(groups)) > 2 else 1  # trees need two
        return (
            np.where(draw_groups(groups, held_out, seed, keep), 0, NEVER)
            if single
            else deal_groups(groups, folds, seed)
        )
    order = np.random.default_rng(seed).permutation(num_rows)
    order = order if strata is None else spread_evenly(order, strata)
    if single:
        return np.where(order < held_out, 0, NEVER)
    return order % folds if strata is None else order * folds // num_rows


def latest_rows(times: Shaped[np.ndarray, " N"], count: int, keep: int = 1) -> Bool[np.ndarray, " N"]:
    """Return a mask of the latest rows, as near to `count` as rows of the same time, which stay together, allow.

    Raises:
        InputError: There are not more than `keep` different times, which are left.
    """
    distinct, sizes = np.unique(times, return_counts=True)
    if len(distinct) <= keep:
        raise InputError(
            f"time: expected at least {keep + 1} different times, so that the latest rows can be held out, got "
            f"{len(distinct)}; leave the time out"
        )
    later = np.cumsum(sizes[: keep - 1 : -1])  # the number of rows of the latest time, of the latest two, and so on
    return np.asarray(times >= distinct[-1 - np.abs(later - count).argmin()])


def _deal_spans(times: Shaped[np.ndarray, " N"], folds: int) -> Int[np.ndarray, " N"]:
    """Return the fold of each row: spans of about the same number of rows, the latest being fold 0."""
    fold = np.full(len(times), folds - 1)
    for k in range(folds - 1):
        left = np.flatnonzero(fold == folds - 1)
        fold[left[latest_rows(times[left], len(left) // (folds - k), folds - 1 - k)]] = k
    return fold


def draw_groups(groups: Int[np.ndarray, " N"], count: int, seed: int, keep: int = 1) -> Bool[np.ndarray, " N"]:
    """Return a mask of the rows of random groups: at most `count`, or those of the smallest group.

    Raises:
        InputError: There are not more than `keep` groups, which are left.
    """
    labels, sizes = _sizes(groups, keep)
    chosen: list[int] = []
    most, total = len(labels) - keep, 0
    for number in np.random.default_rng(seed).permutation(len(labels)):
        if len(chosen) < most and total + sizes[number] <= count:
            chosen.append(int(labels[number]))
            total += sizes[number]
    return np.isin(groups, chosen or labels[sizes.argmin()])


def deal_groups(groups: Int[np.ndarray, " N"], folds: int, seed: int) -> Int[np.ndarray, " N"]:
    """Return the fold of each row: the largest group that is left goes to the smallest fold; ties are random."""
    labels, sizes = _sizes(groups)
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(-sizes[order], kind="stable")]
    filled = [(0, fold) for fold in range(min(folds, len(labels)))]
    fold_of = np.empty(len(labels), np.int64)
    for number in order:
        size, fold_of[number] = filled[0]
        heapq.heapreplace(filled, (size + int(sizes[number]), int(fold_of[number])))
    return np.asarray(fold_of[np.searchsorted(labels, groups)])


def _sizes(groups: Int[np.ndarray, " N"], keep: int = 1) -> tuple[Int[np.ndarray, " G"], Int[np.ndarray, " G"]]:
    labels, sizes = np.unique(groups, return_counts=True)
    if len(labels) <= keep:
        raise InputError(
            f"groups: expected at least {keep + 1} different groups, so that some can be held out, got {len(labels)}; "
            "leave the groups out"
        )
    return labels, sizes

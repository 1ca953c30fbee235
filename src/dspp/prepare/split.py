"""Which rows are trained on and which are held out: at random, or by groups or time; every output has training rows."""

import numpy as np
from jaxtyping import Bool, Int, Shaped

from dspp.batches import derive_seed
from dspp.errors import InputError
from dspp.folds import NEVER, Split, assign_folds, deal_groups, draw_groups, latest_rows
from dspp.members.plan import make_plan
from dspp.outcomes import Outcome
from dspp.settings import Settings
from dspp.table.split import split
from dspp.table.table import Table
from dspp.trees import assign_inner

MIN_OBSERVED = 2  # training rows of each of several outputs
TRAIN, VALIDATION, CALIBRATION = range(3)  # parts of a table
INNER_FOLDS = 5  # of trees and of means of categories, if groups must stay together
_INNER, _PARTS = 18, 19  # derive seeds

Index = Int[np.ndarray, " _"]


def split_table(
    table: Table, settings: Settings, outcome: Outcome, given: Table | None
) -> tuple[tuple[Index, Index, Index], Split]:
    """Return the numbers of the training, validation and calibration rows, and the split of the first two.

    Members of an ensemble hold out training rows themselves, unless validation rows are given. A single model holds out
    the validation rows.
    """
    observed, strata = outcome.observed(table.targets), outcome.strata(table.targets)
    if settings.is_ensemble(len(table)):
        parts = np.arange(len(table)), np.empty(0, np.intp), np.empty(0, np.intp)
    else:
        parts = split_rows(settings, len(table), given is not None, observed, table.groups, table.times, strata)
    train, held_out = len(parts[0]), len(parts[1]) if given is None else len(given)
    if held_out or not settings.is_ensemble(len(table)):
        fold = np.repeat([NEVER, 0], [train, held_out])
    else:
        together = table.groups if table.times is None else table.times
        most = None if together is None else len(np.unique(together))
        kinds = outcome.member_kinds
        folds = make_plan(settings, train, outcome.num_outputs, kinds=kinds, max_folds=most).folds
        fold = assign_folds(train, folds, settings.random_state, table.groups, table.times, strata)
    inner = (
        None if table.groups is None else _inner_folds_of_groups(table.groups[parts[0]], fold, settings.random_state)
    )
    return parts, Split(fold, inner, train, table.times is not None and bool(fold.max(initial=NEVER) > 0))


def _inner_folds_of_groups(groups: Int[np.ndarray, " n"], fold: Index, seed: int) -> Index:
    """Return the inner folds if groups must stay together: the folds, or folds of the groups that are trained on."""
    if fold.max(initial=NEVER) > 0:
        return fold
    trained = fold == NEVER
    inner = np.zeros(len(fold), np.int64)
    own = groups[trained[: len(groups)]]
    if np.ptp(own):
        inner[trained] = deal_groups(own, INNER_FOLDS, derive_seed(seed, _INNER))
    return inner


def inner_folds(split: Split, num_rows: int, seed: int) -> Index:
    """Return the inner folds of the mean targets of levels, for the training rows: those of trees, if they have any."""
    return assign_inner(split.fold[:num_rows], seed) if split.inner is None else split.inner[:num_rows]


def split_rows(
    settings: Settings,
    num_rows: int,
    validation_given: bool,
    observed: Bool[np.ndarray, "N T"] | None = None,
    groups: Int[np.ndarray, " N"] | None = None,
    times: Shaped[np.ndarray, " N"] | None = None,
    strata: Index | None = None,
) -> tuple[Index, Index, Index]:
    """Return the numbers of the training, validation and calibration rows, each in increasing order.

    If an output has too few training rows by chance, some held-out rows in which it is observed are moved to them, with
    their groups. With times, training rows come first, then validation rows, then calibration rows.

    Raises:
        InputError: The fractions leave no training rows, there are too few calibration rows, groups or times, or an
            output is observed too rarely.
    """
    shares = settings.shares(num_rows, validation_given)
    if groups is None and times is None:
        sizes = [num_rows * (1 - sum(shares)), *(max(1.0, s * num_rows) if s else 0.0 for s in shares)]
        cut = iter(split(num_rows, [size for size in sizes if size], settings.random_state, strata))
        train, validation, calibration = (np.sort(next(cut)) if size else np.empty(0, np.intp) for size in sizes)
    else:
        part = _split_whole(shares, num_rows, settings.random_state, groups, times)
        train, validation, calibration = (np.flatnonzero(part == p) for p in (TRAIN, VALIDATION, CALIBRATION))
    if observed is None or observed.shape[1] == 1:
        return train, validation, calibration
    trained = _choose_training_rows(observed, train)
    if times is not None and trained.sum() > len(train):
        raise InputError(
            f"time: expected {MIN_OBSERVED} observed values of every output before the rows held out, got fewer; "
            "leave out that output, or lower validation_fraction"
        )
    if groups is not None:
        trained = np.isin(groups, groups[trained])
    if len(calibration) and trained[calibration].all():
        raise InputError(
            "expected calibration rows, got none: training needs all rows of rare outputs; use conformal=False"
        )
    return np.flatnonzero(trained), validation[~trained[validation]], calibration[~trained[calibration]]


def _split_whole(
    shares: tuple[float, float],
    num_rows: int,
    seed: int,
    groups: Int[np.ndarray, " N"] | None,
    times: Shaped[np.ndarray, " N"] | None,
) -> Index:
    """Return the part of each row, where groups or rows of the same time stay together."""
    part, left = np.full(num_rows, TRAIN), np.arange(num_rows)
    wanted = [(name, share) for name, share in zip((CALIBRATION, VALIDATION), shares[::-1], strict=True) if share]
    for drawn, (name, share) in enumerate(wanted):
        count, keep = max(1, round(share * num_rows)), len(wanted) - drawn  # for the parts that are still to be drawn
        if times is not None:
            mine = latest_rows(times[left], count, keep)
        else:
            assert groups is not None
            mine = draw_groups(groups[left], count, derive_seed(seed, _PARTS, name), keep)
        part[left[mine]], left = name, left[~mine]
    return part


def _choose_training_rows(observed: Bool[np.ndarray, "N T"], train: Index) -> Bool[np.ndarray, " N"]:
    """Return a mask of the rows in `train` and of the first further rows that an output needs."""
    trained = np.zeros(len(observed), bool)
    trained[train] = True
    for column in observed.T:
        lacking = MIN_OBSERVED - np.count_nonzero(column & trained)
        if lacking > 0:
            trained[np.flatnonzero(column & ~trained)[:lacking]] = True
    return trained


def check_observed(observed: Bool[np.ndarray, "N T"]) -> None:
    """Raise `InputError` if one of several outputs is observed too rarely."""
    counts = observed.sum(axis=0)
    if len(counts) > 1 and counts.min() < MIN_OBSERVED:
        column = int(counts.argmin())
        raise InputError(
            f"y: column {column}: expected at least {MIN_OBSERVED} observed values, got {counts[column]} (rows of "
            "weight 0 do not count); leave out this output"
        )

"""Preparation of tables in memory: a split, at random or by groups or time, in which every output has training rows."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from dspp.batches import derive_seed
from dspp.encoding.columns import Dropped
from dspp.encoding.encoder import TableEncoder, encode, parse
from dspp.encoding.learning import learn_column
from dspp.encoding.means import CrossFittedMeans
from dspp.encoding.scaling import Standardizer
from dspp.encoding.warping import Warp
from dspp.errors import InputError
from dspp.folds import NEVER, assign_folds, deal_groups, draw_groups, latest_rows
from dspp.members.plan import make_plan
from dspp.notes import Note
from dspp.outcomes import Outcome, find_outcome
from dspp.prepare.prepared import Prepared, standardise_rows, target_place, to_rows
from dspp.seen import Hashes, choose_hashes, hash_rows
from dspp.settings import Settings
from dspp.table.arrays import intern_texts
from dspp.table.split import split
from dspp.table.table import MemoryTable
from dspp.trees import assign_inner

FEWEST_OBSERVED = 2  # training rows of each of several outputs
TRAIN, VALIDATION, CALIBRATION = range(3)  # parts of a table
INNER_FOLDS = 5  # of trees and of means of categories, if groups must stay together
_INNER, _PARTS = 18, 19  # derive seeds

Index = Int[np.ndarray, " _"]


def prepare_in_memory(
    table: MemoryTable, settings: Settings, validation: MemoryTable | None, outcome: Outcome | None = None
) -> Prepared:
    """Split the rows, learn encoding and scales, and encode; see `prepare`."""
    model = settings.spec().model
    if outcome is None:
        kind, likelihood = find_outcome(*settings.named_outcome)
        outcome = kind(table.target_names, likelihood)
    if settings.conformal:
        outcome.check_recalibration()
    outcome.to_numbers(table.targets, target_place(table))  # raises for invalid targets
    ensemble = settings.is_ensemble(len(table))
    if ensemble:
        _check_counts(~np.isnan(table.targets))
        index = np.arange(len(table)), np.empty(0, np.intp), np.empty(0, np.intp)  # members hold out rows themselves
    else:
        given = validation is not None
        index = split_rows(settings, len(table), given, table.targets, table.groups, table.times)
    train, held_out, calibration = (table if len(i) == len(table) else table.take(i) for i in index)
    validation = held_out if validation is None else validation
    fold = _assign_folds(table, validation, settings, outcome) if ensemble else None
    inner = _assign_inner_folds(train, fold, settings.random_state)
    own_inner = _inner_folds_of_means(train, fold, inner, settings.random_state)
    trained = np.arange(len(train))
    if fold is not None and train.times is not None and fold.max() < 1:
        trained = np.flatnonzero(fold[: len(train)] == NEVER)
    outcome = outcome.fit(train.targets, target_place(train), train.weights)
    y = outcome.encode(train.targets, target_place(train))
    encoder, (rows, *others) = _parse(table, index, validation, outcome.mean_target(y))
    if encoder is not None and rows.parsed is not None and len(trained) < len(train):
        encoder = encoder.ending_with({name: values[trained] for name, values in rows.parsed.items()})
    learned = _learn(outcome, y, encoder, rows, own_inner, ensemble)
    chosen: list[Note] = []
    if ensemble and settings.chooses_outcome:
        roles = train.weights, train.groups, settings.time_budget
        better, chosen = outcome.choose(learned.X, train.targets, validation.targets, settings.random_state, *roles)
        if better is not outcome:
            learned = _with_outcome(learned, better, rows, own_inner, ensemble)
    encoder, scale_X, outcome = learned.encoder, learned.scale_X, learned.outcome
    held_out_rows = [standardise_rows(part, encoder, scale_X, outcome, model.dtype) for part in others]
    return Prepared(
        train=to_rows(learned.X, learned.y, train.weights),
        validation=held_out_rows[0],
        calibration=held_out_rows[1],
        validation_table=validation,
        calibration_table=calibration,
        table=table,
        encoder=encoder,
        scale_X=scale_X,
        input_range=learned.input_range,
        seen_rows=learned.seen_rows,
        outcome=outcome,
        notes=(
            *table.notes,
            *outcome.notes(table),
            *_time_notes(table, settings),
            *_notes(encoder, train, table),
            *chosen,
        ),
        fold=fold,
        means=None if len(validation) else learned.means,  # all members then hold out the same rows
        inner=inner,
    )


def _parse(
    table: MemoryTable, index: Sequence[Index], validation: MemoryTable, y: Float[np.ndarray, "N T"]
) -> tuple[TableEncoder | None, list[MemoryTable]]:
    """Learn the encoding of the training rows, and parse all rows once.

    Args:
        table: All rows but those given for validation.
        index: The numbers of the training, the validation and the calibration rows.
        validation: The validation rows.
        y: The standardised targets of the training rows.

    Returns:
        The encoder, which accepts missing values where any rows have some, and the training, validation and calibration
        rows, parsed.
    """
    given = not len(index[1]) and len(validation) > 0
    if table.arrow is None:
        parts = [table if len(i) == len(table) else table.take(i) for i in index]
        return None, [parts[0], validation if given else parts[1], parts[2]]
    clean = replace(table, arrow=intern_texts(table.arrow, table.place))
    train = clean if len(index[0]) == len(table) else clean.take(index[0])
    assert train.arrow is not None
    encoder = TableEncoder.fit(train.arrow, train.place, y, table.arrow.schema)
    whole = parse(clean, encoder)
    parts = [whole if len(i) == len(table) else whole.take(i) for i in index]
    if given:
        parts[1] = validation if validation.arrow is None else parse(validation, encoder)
    for part in parts[1:]:
        if len(part) and part.parsed is not None:
            encoder = encoder.allow_missing_in(part.parsed)
    return encoder, parts


@dataclass(frozen=True, eq=False)
class _Learned:
    """What is learned from the training rows, and these rows as numbers, encoded and standardised."""

    outcome: Outcome
    encoder: TableEncoder | None
    scale_X: Standardizer  # noqa: N815 - X is a matrix
    means: CrossFittedMeans | None
    X: Float[np.ndarray, "N D"]
    y: Float[np.ndarray, "N T"]
    input_range: Float[np.ndarray, "2 D"]
    seen_rows: Hashes | None


def _learn(
    outcome: Outcome,
    y: Float[np.ndarray, "N T"],
    encoder: TableEncoder | None,
    rows: MemoryTable,
    inner: Index,
    warp: bool,
) -> _Learned:
    """Encode the training rows, and learn their scales.

    Args:
        outcome: The kind of the targets.
        y: Standardised targets.
        encoder: The encoding of the rows.
        rows: The rows, parsed.
        inner: The inner folds of the mean targets of levels.
        warp: Whether to warp skewed inputs.
    """
    means, X = None, encode(rows, encoder)
    input_range = np.stack([X.min(axis=0), X.max(axis=0)])
    seen_rows = choose_hashes(hash_rows(X, rows.targets, encoder))
    scale_X = Standardizer.fit(X, rows.weights)
    if warp:
        leave = () if encoder is None else encoder.mean_features
        scale_X = replace(scale_X, warp=Warp.fit(scale_X.transform(X), rows.weights, leave))
    X = scale_X.transform(X)
    if encoder is not None and rows.parsed is not None:
        means = encoder.cross_fit_means(rows.parsed, outcome.mean_target(y), inner, scale_X)
        X = X if means is None else means.insert(X, np.zeros(len(X), bool))
    return _Learned(outcome, encoder, scale_X, means, X, y, input_range, seen_rows)


def _with_outcome(learned: _Learned, outcome: Outcome, rows: MemoryTable, inner: Index, warp: bool) -> _Learned:
    """Return the same for another kind of targets, on which only the mean targets of levels depend."""
    outcome = outcome.fit(rows.targets, target_place(rows), rows.weights)
    y = outcome.encode(rows.targets, target_place(rows))
    if learned.means is None or learned.encoder is None or rows.parsed is None:
        return replace(learned, outcome=outcome, y=y)
    return _learn(outcome, y, learned.encoder.with_targets(rows.parsed, outcome.mean_target(y)), rows, inner, warp)


def _inner_folds_of_means(train: MemoryTable, fold: Index | None, inner: Index | None, seed: int) -> Index:
    """Return the inner folds of the mean targets of levels: those of trees, or those that a single model needs."""
    if inner is not None:
        return inner[: len(train)]
    if fold is None and train.groups is not None and np.ptp(train.groups):
        return deal_groups(train.groups, INNER_FOLDS, derive_seed(seed, _INNER))
    return assign_inner(np.full(len(train), NEVER) if fold is None else fold[: len(train)], seed)


def _assign_folds(table: MemoryTable, validation: MemoryTable, settings: Settings, outcome: Outcome) -> Index:
    """Return the fold of each row and then of each validation row; see `assign_folds`."""
    if len(validation):
        return np.repeat([NEVER, 0], [len(table), len(validation)])
    together = table.groups if table.times is None else table.times
    most = None if together is None else len(np.unique(together))
    folds = make_plan(settings, len(table), outcome.num_outputs, kinds=outcome.member_kinds, most_folds=most).folds
    return assign_folds(len(table), folds, settings.random_state, table.groups, table.times)


def _assign_inner_folds(train: MemoryTable, fold: Index | None, seed: int) -> Index | None:
    """Return the inner folds if groups must stay together: the folds, or folds of the groups that are trained on."""
    if train.groups is None:
        return None
    fold = np.full(len(train), NEVER) if fold is None else fold
    if fold.max() > 0:
        return fold
    trained = fold == NEVER
    inner = np.zeros(len(fold), np.int64)
    groups = train.groups[trained[: len(train)]]
    if np.ptp(groups):
        inner[trained] = deal_groups(groups, INNER_FOLDS, derive_seed(seed, _INNER))
    return inner


def split_rows(
    settings: Settings,
    num_rows: int,
    validation_given: bool,
    y: Float[np.ndarray, "N T"] | None = None,
    groups: Int[np.ndarray, " N"] | None = None,
    times: Shaped[np.ndarray, " N"] | None = None,
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
        cut = iter(split(num_rows, [size for size in sizes if size], settings.random_state))
        train, validation, calibration = (np.sort(next(cut)) if size else np.empty(0, np.intp) for size in sizes)
    else:
        part = _split_whole(shares, num_rows, settings.random_state, groups, times)
        train, validation, calibration = (np.flatnonzero(part == p) for p in (TRAIN, VALIDATION, CALIBRATION))
    if y is None or y.shape[1] == 1:
        return train, validation, calibration
    trained = _choose_training_rows(~np.isnan(y), train)
    if times is not None and trained.sum() > len(train):
        raise InputError(
            f"time: expected {FEWEST_OBSERVED} observed values of every output before the rows held out, got fewer; "
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
    _check_counts(observed)
    trained = np.zeros(len(observed), bool)
    trained[train] = True
    for column in observed.T:
        lacking = FEWEST_OBSERVED - np.count_nonzero(column & trained)
        if lacking > 0:
            trained[np.flatnonzero(column & ~trained)[:lacking]] = True
    return trained


def _check_counts(observed: Bool[np.ndarray, "N T"]) -> None:
    """Raise `InputError` if one of several outputs is observed too rarely."""
    counts = observed.sum(axis=0)
    if len(counts) > 1 and counts.min() < FEWEST_OBSERVED:
        column = int(counts.argmin())
        raise InputError(
            f"y: column {column}: expected at least {FEWEST_OBSERVED} observed values, got {counts[column]}; leave out "
            "this output"
        )


def _time_notes(table: MemoryTable, settings: Settings) -> list[Note]:
    """Return a note on what recalibration promises about later rows."""
    if table.times is None or not settings.conformal:
        return []
    text = "the coverage of such intervals is guaranteed for rows exchangeable with those, which later rows may not be"
    return [Note("intervals are recalibrated by the latest rows", text)]


def _notes(encoder: TableEncoder | None, train: MemoryTable, table: MemoryTable) -> list[Note]:
    """Return the notes of the encoder, qualified if they are true of the training rows only."""
    if encoder is None:
        return []
    return [_limit_to_training_rows(note, encoder, table) if train is not table else note for note in encoder.notes]


def _limit_to_training_rows(note: Note, encoder: TableEncoder, table: MemoryTable) -> Note:
    """Return the note, qualified if the column is left out but would be informative in the whole table."""
    for column in encoder.columns:
        if isinstance(column, Dropped) and note.subject == f"column {column.name!r} is left out":
            assert table.arrow is not None
            whole = learn_column(table.arrow.column(column.name), table.place.of(column.name)).column
            if not isinstance(whole, Dropped):
                return Note(f"in the rows trained on, {note.subject}", note.text)
    return note

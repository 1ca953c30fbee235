"""Preparation of tables in memory: rows are split, and encoding and scales are learned from those to train on."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from jaxtyping import Float

from dspp.encoding.columns import Dropped
from dspp.encoding.encoder import TableEncoder, encode, parse
from dspp.encoding.learning import learn_column
from dspp.encoding.means import Without
from dspp.encoding.scaling import Standardizer
from dspp.encoding.warping import Warp
from dspp.folds import NEVER
from dspp.notes import Note
from dspp.outcomes import Outcome, find_outcome
from dspp.prepare.prepared import Prepared, standardise_rows, target_place, to_rows
from dspp.prepare.split import Index, inner_folds, split_table
from dspp.seen import Hashes, choose_hashes, hash_rows
from dspp.settings import Settings
from dspp.table.arrays import intern_texts
from dspp.table.table import Table


def prepare_in_memory(
    table: Table, settings: Settings, validation: Table | None, outcome: Outcome | None = None
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
    index, split = split_table(table, settings, outcome, validation)
    train, held_out, calibration = (table if len(i) == len(table) else table.take(i) for i in index)
    validation = held_out if validation is None else validation
    own_inner = inner_folds(split, len(train), settings.random_state)
    outcome = outcome.fit(train.targets, target_place(train), train.weights)
    y = outcome.encode(train.targets, target_place(train))
    encoder, (rows, *others) = _parse(table, index, validation, outcome.mean_target(y))
    if encoder is not None and rows.parsed is not None and train.times is not None and split.num_folds == 1:
        trained = split.fold[: len(train)] == NEVER  # by all members
        encoder = encoder.ending_with({name: values[trained] for name, values in rows.parsed.items()})
    X = encode(rows, encoder)
    if encoder is not None and rows.parsed is not None:  # the other values are in X now
        rows = replace(rows, parsed={column.name: rows.parsed[column.name] for column in encoder.mean_columns})
        pa.default_memory_pool().release_unused()  # which Arrow would keep
    learned = _learn(outcome, y, encoder, rows, X, own_inner, ensemble)
    chosen: list[Note] = []
    if ensemble and settings.chooses_outcome:
        roles = train.weights, train.groups, settings.time_budget
        better, chosen = outcome.choose(learned.X, train.targets, validation.targets, settings.random_state, *roles)
        if better is not outcome:
            learned = _with_outcome(learned, better, rows, X, own_inner, ensemble)
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
        split=split,
        means=None if len(validation) else learned.means,  # all members then hold out the same rows
    )


def _parse(
    table: Table, index: Sequence[Index], validation: Table, y: Float[np.ndarray, "N T"]
) -> tuple[TableEncoder | None, list[Table]]:
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
    means: Without | None
    X: Float[np.ndarray, "N D"]
    y: Float[np.ndarray, "N T"]
    input_range: Float[np.ndarray, "2 D"]
    seen_rows: Hashes | None


def _learn(
    outcome: Outcome,
    y: Float[np.ndarray, "N T"],
    encoder: TableEncoder | None,
    rows: Table,
    X: Float[np.ndarray, "N D"],
    inner: Index,
    warp: bool,
) -> _Learned:
    """Learn the scales of the training rows.

    Args:
        outcome: The kind of the targets.
        y: Standardised targets.
        encoder: The encoding of the rows.
        rows: The rows, of which the columns with mean targets are parsed.
        X: The encoded rows.
        inner: The inner folds of the mean targets of levels.
        warp: Whether to warp skewed inputs.
    """
    means = None
    input_range = np.stack([X.min(axis=0), X.max(axis=0)])
    seen_rows = choose_hashes(hash_rows(X, rows.targets, encoder))
    scale_X = Standardizer.fit(X, rows.weights)
    if warp:
        leave = () if encoder is None else encoder.mean_features
        scale_X = replace(scale_X, warp=Warp.fit(scale_X.transform(X), rows.weights, leave))
    X = scale_X.transform(X)
    if encoder is not None and rows.parsed is not None:
        means = encoder.cross_fit_means(rows.parsed, outcome.mean_target(y), inner, scale_X)
        X = X if means is None else means(X, np.zeros(len(X), bool))[0]
    return _Learned(outcome, encoder, scale_X, means, X, y, input_range, seen_rows)


def _with_outcome(
    learned: _Learned,
    outcome: Outcome,
    rows: Table,
    X: Float[np.ndarray, "N D"],
    inner: Index,
    warp: bool,
) -> _Learned:
    """Return the same for another kind of targets, on which only the mean targets of levels depend."""
    outcome = outcome.fit(rows.targets, target_place(rows), rows.weights)
    y = outcome.encode(rows.targets, target_place(rows))
    if learned.means is None or learned.encoder is None or rows.parsed is None:
        return replace(learned, outcome=outcome, y=y)
    encoder = learned.encoder.with_targets(rows.parsed, outcome.mean_target(y))
    return _learn(outcome, y, encoder, rows, encoder.insert_means(X, rows.parsed), inner, warp)


def _time_notes(table: Table, settings: Settings) -> list[Note]:
    """Return a note on what recalibration promises about later rows."""
    if table.times is None or not settings.conformal:
        return []
    text = "the coverage of such intervals is guaranteed for rows exchangeable with those, which later rows may not be"
    return [Note("intervals are recalibrated by the latest rows", text)]


def _notes(encoder: TableEncoder | None, train: Table, table: Table) -> list[Note]:
    """Return the notes of the encoder, qualified if they are true of the training rows only."""
    if encoder is None:
        return []
    return [_limit_to_training_rows(note, encoder, table) if train is not table else note for note in encoder.notes]


def _limit_to_training_rows(note: Note, encoder: TableEncoder, table: Table) -> Note:
    """Return the note, qualified if the column is left out but would be informative in the whole table."""
    for column in encoder.columns:
        if isinstance(column, Dropped) and note.subject == f"column {column.name!r} is left out":
            assert table.arrow is not None
            whole = learn_column(table.arrow.column(column.name), table.place.of(column.name)).column
            if not isinstance(whole, Dropped):
                return Note(f"in the rows trained on, {note.subject}", note.text)
    return note

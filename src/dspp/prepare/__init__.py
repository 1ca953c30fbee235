"""Preparation of a table for training: labels, split, encoding, standardisation and notes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float

from dspp.encoding.columns import Dropped
from dspp.encoding.encoder import TableEncoder, encode, parse
from dspp.encoding.learning import learn_column
from dspp.encoding.means import Without
from dspp.encoding.sampling import parse_size, read_table
from dspp.encoding.scaling import Standardizer, standardise
from dspp.encoding.warping import Warp
from dspp.folds import NEVER, Split
from dspp.members.plan import Plan, make_plan
from dspp.notes import Note
from dspp.outcomes import Outcome, find_outcome
from dspp.prepare.split import Index, check_observed, inner_folds, split_rows, split_table
from dspp.seen import Hashes, choose_hashes, hash_rows
from dspp.settings import Settings
from dspp.table.arrays import intern_texts
from dspp.table.checks import check_width
from dspp.table.memory import drop_weightless, label_rows
from dspp.table.messages import Place
from dspp.table.table import FileTable, Table
from dspp.training.rows import Rows

__all__ = ["Prepared", "prepare", "split_rows"]

_OWN_NAMES = {"X": "y", "X_val": "y_val"}  # the names of targets passed separately, for errors


@dataclass(frozen=True, eq=False)
class Prepared:
    """A table prepared for training, which several models can share; rows are encoded and standardised, in float64."""

    train: Rows
    validation: Rows  # choose the best epoch and are scored; possibly none
    calibration: Rows  # recalibrate intervals; possibly none
    validation_table: Table  # the validation rows as they were given, with their labels and targets
    calibration_table: Table  # the calibration rows, likewise
    table: Table  # all rows that have a target as they were given
    encoder: TableEncoder | None  # from columns to numbers; None: the rows were numbers
    scale_X: Standardizer  # noqa: N815 - X is a matrix; of the encoded columns, (D,)
    input_range: Float[np.ndarray, "2 D"]  # the smallest and the largest value of each encoded column
    seen_rows: Hashes | None  # of the training rows; None: too many of them are equal
    outcome: Outcome  # what the target is: encodes the user's values and decodes predictions
    split: Split  # of the training and then the validation rows; a single model holds out the latter
    # For an ensemble whose members hold out rows of `train`, the mean targets of levels that each of them reads; those
    # in `train` leave out the row's own inner fold only.
    means: Without | None
    notes: tuple[Note, ...]  # for the user

    @property
    def num_rows(self) -> int:
        """The number of training rows."""
        return len(self.train)

    @property
    def table_rows(self) -> int:
        """How many rows the table has, those without a target and those that are not sampled included."""
        return self.table.num_table_rows

    def plan(self, settings: Settings) -> Plan:
        """Return what to fit to these rows."""
        folds = self.split.num_folds
        plan = make_plan(
            replace(settings, likelihood=self.outcome.likelihood),
            self.num_rows,
            self.outcome.num_outputs,
            kinds=self.outcome.member_kinds,
            one_part=folds < 2,
            trees=self.split.has_inner_folds,
            max_folds=folds or None,
        )
        same = len(self.outcome.encoded_names) == self.outcome.num_outputs
        return plan if same else replace(plan, spec=replace(plan.spec, outputs=self.outcome.num_outputs))


def prepare(
    table: Table | FileTable,
    settings: Settings,
    *,
    outcome: Outcome | None = None,
    targets: Sequence[str] = (),
    drop: Sequence[str] = (),
    weight: str | None = None,
    group: str | None = None,
    time: str | None = None,
    validation: Table | None = None,
    processes: int | None = None,
) -> Prepared:
    """Prepare a table for training. Encoding and scales are learned on the training rows only.

    Args:
        table: The rows, with targets unless `targets` names them. Of a table in files that is too large for the memory
            that the settings allow, a sample is read; see `read_table`.
        settings: The fractions to hold out, the seed, the dtype, and the limit of memory.
        outcome: What the targets of a table that has them are; None: as the settings say.
        targets: The columns to predict.
        drop: Columns to leave out.
        weight: The column of weights, which is no input; rows of weight 0 are left out.
        group: The column of groups, which is no input; rows of a group are held out together.
        time: The column of times, which is also an input; the latest rows are held out.
        validation: Rows with targets for choosing the best epoch; None: some rows are held out.
        processes: How many other processes will hold rows; None: as many as train members.

    Raises:
        InputError: A file is damaged or does not match the others, or a column or value is not valid.
    """
    no_inputs = (*targets, *drop, *filter(None, (weight, group)))
    rows = read_table(
        table,
        inputs=[name for name in table.names if name not in no_inputs],
        drop=drop,
        group=group,
        limit=parse_size(settings.memory),
        processes=settings.max_processes if processes is None else processes,
        seed=settings.random_state,
    )
    kind, likelihood = find_outcome(*settings.named_outcome)
    if targets:
        assert rows.arrow is not None
        outcome = kind.of_columns(rows.arrow.select(list(targets)), likelihood)
        rows = label_rows(rows, targets, drop, weight, group, time, outcome.read)
        if validation is not None and validation.y is None:
            validation = label_rows(validation, targets, weight=weight, read=outcome.read)
    if validation is not None:
        validation = drop_weightless(validation)
    rows = drop_weightless(replace(rows, table_rows=rows.num_table_rows))
    return _prepare_labelled(rows, settings, outcome or kind(rows.target_names, likelihood), validation)


def _prepare_labelled(table: Table, settings: Settings, outcome: Outcome, validation: Table | None) -> Prepared:
    """Split rows that have targets, learn encoding and scales, and encode."""
    if settings.conformal:
        outcome.check_recalibration()
    outcome.to_numbers(table.targets, _target_place(table))  # raises for invalid targets
    check_observed(outcome.observed(table.targets))
    is_ensemble = settings.is_ensemble(len(table))
    index, split = split_table(table, settings, outcome, validation)
    train, held_out, calibration = (_take(table, rows) for rows in index)
    validation = held_out if validation is None else validation
    inner = inner_folds(split, len(train), settings.random_state)

    outcome = outcome.fit(train.targets, _target_place(train), train.weights)
    y = outcome.encode(train.targets, _target_place(train))
    encoder, (rows, *others) = _parse(table, index, validation, outcome.mean_target(y))
    if encoder is not None and rows.parsed is not None and train.times is not None and split.num_folds == 1:
        trained = split.fold[: len(train)] == NEVER  # by all members
        encoder = encoder.ending_with({name: values[trained] for name, values in rows.parsed.items()})
    X = encode(rows, encoder)
    if encoder is not None and rows.parsed is not None:  # the other values are in X now
        rows = replace(rows, parsed={column.name: rows.parsed[column.name] for column in encoder.mean_columns})
        pa.default_memory_pool().release_unused()  # which Arrow would keep

    scaled, scale_X, means = _standardise(X, rows, encoder, outcome.mean_target(y), inner, is_ensemble)
    chosen: list[Note] = []
    if is_ensemble and settings.chooses_outcome:
        roles = train.weights, train.groups, settings.time_budget
        better, chosen = outcome.choose(scaled, train.targets, validation.targets, settings.random_state, *roles)
        if better is not outcome:
            outcome = better.fit(train.targets, _target_place(train), train.weights)
            y = outcome.encode(train.targets, _target_place(train))
            if encoder is not None and rows.parsed is not None and means is not None:
                encoder, X = encoder.refit_means(X, rows.parsed, outcome.mean_target(y))
                scaled, scale_X, means = _standardise(X, rows, encoder, outcome.mean_target(y), inner, is_ensemble)

    dtype = settings.spec().model.dtype
    held_out_rows = [_encode_held_out(part, encoder, scale_X, outcome, dtype) for part in others]
    return Prepared(
        train=_to_rows(scaled, y, train.weights),
        validation=held_out_rows[0],
        calibration=held_out_rows[1],
        validation_table=validation,
        calibration_table=calibration,
        table=table,
        encoder=encoder,
        scale_X=scale_X,
        input_range=np.stack([X.min(axis=0), X.max(axis=0)]),
        seen_rows=choose_hashes(hash_rows(X, train.targets, encoder)),
        outcome=outcome,
        split=split,
        means=None if len(validation) else means,  # all members then hold out the same rows
        notes=(
            *table.notes,
            *outcome.notes(table),
            *_time_notes(table, settings),
            *_column_notes(encoder, train, table),
            *chosen,
        ),
    )


def _take(table: Table, index: Index) -> Table:
    return table if len(index) == len(table) else table.take(index)


def _parse(
    table: Table, index: Sequence[Index], validation: Table, y: Float[np.ndarray, "N T"]
) -> tuple[TableEncoder | None, list[Table]]:
    """Learn the encoding of the training rows, and parse all rows once.

    The encoder accepts missing values where any rows have some. `index` holds the numbers of the training, validation
    and calibration rows, which are returned, parsed; validation rows that were given are not in `table`.
    """
    given = not len(index[1]) and len(validation) > 0
    if table.arrow is None:
        train, held_out, calibration = (_take(table, rows) for rows in index)
        return None, [train, validation if given else held_out, calibration]
    clean = replace(table, arrow=intern_texts(table.arrow, table.place))
    train = _take(clean, index[0])
    assert train.arrow is not None
    encoder = TableEncoder.fit(train.arrow, train.place, y, table.arrow.schema)
    whole = parse(clean, encoder)
    parts = [_take(whole, rows) for rows in index]
    if given:
        parts[1] = validation if validation.arrow is None else parse(validation, encoder)
    for part in parts[1:]:
        if len(part) and part.parsed is not None:
            encoder = encoder.allow_missing_in(part.parsed)
    return encoder, parts


def _standardise(
    X: Float[np.ndarray, "N D"],
    rows: Table,
    encoder: TableEncoder | None,
    y: Float[np.ndarray, "N M"],
    inner: Index,
    warp: bool,
) -> tuple[Float[np.ndarray, "N D"], Standardizer, Without | None]:
    """Learn the scales of the encoded training rows, and return them standardised, the scales, and means of levels.

    The means are of y, and leave out the targets of a row's own inner fold.
    """
    scale_X = Standardizer.fit(X, rows.weights)
    if warp:
        leave = () if encoder is None else encoder.mean_features
        scale_X = replace(scale_X, warp=Warp.fit(scale_X.transform(X), rows.weights, leave))
    scaled = scale_X.transform(X)
    if encoder is None or rows.parsed is None:
        return scaled, scale_X, None
    means = encoder.cross_fit_means(rows.parsed, y, inner, scale_X)
    return scaled if means is None else means(scaled, np.zeros(len(X), bool))[0], scale_X, means


def _encode_held_out(
    table: Table, encoder: TableEncoder | None, scale_X: Standardizer, outcome: Outcome, dtype: str
) -> Rows:
    """Return held-out rows, encoded and standardised; every number must be finite in the model's dtype."""
    if not len(table):
        return _to_rows(np.empty((0, len(scale_X.mean))), np.empty((0, len(outcome.scale.mean))), table.weights)
    X = encode(table, encoder)
    check_width(X, len(scale_X.mean))
    X = standardise(X, scale_X, dtype, None if encoder is None else encoder.feature_names, table.place)
    return _to_rows(X, outcome.encode(table.targets, _target_place(table), dtype), table.weights)


def _to_rows(X: Float[np.ndarray, "N D"], y: Float[np.ndarray, "N T"], weights: Float[np.ndarray, " N"] | None) -> Rows:
    x, targets = torch.from_numpy(np.ascontiguousarray(X)), torch.from_numpy(np.ascontiguousarray(y))
    return Rows(x, targets, None if weights is None else torch.from_numpy(weights))


def _target_place(table: Table) -> Place:
    return replace(table.place, where=_OWN_NAMES.get(table.where, table.where))


# ---------------------------------------------------------------- notes


def _time_notes(table: Table, settings: Settings) -> list[Note]:
    """Return a note on what recalibration promises about later rows."""
    if table.times is None or not settings.conformal:
        return []
    text = "the coverage of such intervals is guaranteed for rows exchangeable with those, which later rows may not be"
    return [Note("intervals are recalibrated by the latest rows", text)]


def _column_notes(encoder: TableEncoder | None, train: Table, table: Table) -> list[Note]:
    """Return the notes of the encoder, qualified if a column that is left out is informative in the whole table."""
    if encoder is None or train is table:
        return [] if encoder is None else list(encoder.notes)
    dropped = {f"column {one.name!r} is left out": one.name for one in encoder.columns if isinstance(one, Dropped)}
    notes = []
    for note in encoder.notes:
        name = dropped.get(note.subject)
        if name is not None and not _is_uninformative(table, name):
            note = Note(f"in the rows trained on, {note.subject}", note.text)
        notes.append(note)
    return notes


def _is_uninformative(table: Table, name: str) -> bool:
    assert table.arrow is not None
    return isinstance(learn_column(table.arrow.column(name), table.place.of(name)).column, Dropped)

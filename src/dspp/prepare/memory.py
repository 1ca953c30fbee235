"""The strategy for tables in memory: a random split that leaves every output some rows to train on."""

import numpy as np
from jaxtyping import Bool, Float, Int

from dspp.encoding.columns import Dropped
from dspp.encoding.encoder import TableEncoder, encode, learn, learn_column
from dspp.encoding.scaling import Standardizer
from dspp.errors import InputError
from dspp.likelihoods import LIKELIHOODS
from dspp.notes import Note
from dspp.prepare.prepared import Prepared, check_scale, held_out_rows, rows_of, target_place
from dspp.settings import Settings
from dspp.table.memory import check_no_inf
from dspp.table.split import split
from dspp.table.table import MemoryTable

FEWEST_OBSERVED = 2  # rows of each of several outputs to train on

Index = Int[np.ndarray, " _"]


def prepare_in_memory(
    table: MemoryTable, settings: Settings, validation: MemoryTable | None, table_rows: int
) -> Prepared:
    """Split, learn the encoding and the scales, encode; see `prepare`."""
    if table.arrow is not None:
        check_no_inf(table)
    model = settings.spec(len(table.target_names)).model
    kind = LIKELIHOODS[model.likelihood].codec
    kind.real(table.targets, table.target_names, target_place(table))  # refuses targets it cannot take
    index = split_rows(settings, len(table), validation is not None, table.targets)
    train, held_out, calibration = (table if len(i) == len(table) else table.take(i) for i in index)
    validation = held_out if validation is None else validation
    encoder = learn(train, validation, calibration)
    X = encode(train, encoder)
    y = kind.real(train.targets, table.target_names, target_place(train))
    scale_X, codec = Standardizer.fit(X), kind.fit(y)
    check_scale(codec, table.target_names, table.where)
    return Prepared(
        train=rows_of(scale_X.transform(X), codec.scale.transform(y)),
        calibration=held_out_rows(calibration, encoder, scale_X, codec, model.dtype),
        validation=held_out_rows(validation, encoder, scale_X, codec, model.dtype),
        validation_table=validation,
        calibration_table=calibration,
        table=table,
        encoder=encoder,
        scale_X=scale_X,
        codec=codec,
        target_names=table.target_names,
        table_rows=table_rows,
        notes=(*table.notes, *_notes(encoder, train, table)),
    )


def split_rows(
    settings: Settings, num_rows: int, validation_given: bool, y: Float[np.ndarray, "N T"] | None = None
) -> tuple[Index, Index, Index]:
    """Rows to train on, to choose the epoch by, and to recalibrate intervals with; each in the order of the table.

    An output of y that chance has left with too few rows to train on gets some of those held out.

    Raises:
        InputError: The shares leave nothing to train on, there are too few rows to recalibrate with, or an output
            is observed too seldom.
    """
    shares = settings.shares(num_rows, validation_given)
    sizes = [num_rows * (1 - sum(shares)), *(max(1.0, s * num_rows) if s else 0.0 for s in shares)]
    cut = iter(split(num_rows, [size for size in sizes if size], settings.random_state))
    train, validation, calibration = (np.sort(next(cut)) if size else np.empty(0, np.intp) for size in sizes)
    if y is None or y.shape[1] == 1:
        return train, validation, calibration
    trained = _trained(~np.isnan(y), train)
    if len(calibration) and trained[calibration].all():
        raise InputError("no row is left to recalibrate with: the rare outputs of y need all; use conformal=False")
    return np.flatnonzero(trained), validation[~trained[validation]], calibration[~trained[calibration]]


def _trained(observed: Bool[np.ndarray, "N T"], train: Index) -> Bool[np.ndarray, " N"]:
    """Whether a row is to be trained on: those in `train`, and the first others that an output lacks."""
    counts = observed.sum(axis=0)
    if counts.min() < FEWEST_OBSERVED:
        column = int(counts.argmin())
        raise InputError(
            f"y: got {counts[column]} observed value(s) in column {column}, expected at least {FEWEST_OBSERVED}; leave "
            "out this output"
        )
    trained = np.zeros(len(observed), bool)
    trained[train] = True
    for column in observed.T:
        lacking = FEWEST_OBSERVED - np.count_nonzero(column & trained)
        if lacking > 0:
            trained[np.flatnonzero(column & ~trained)[:lacking]] = True
    return trained


def _notes(encoder: TableEncoder | None, train: MemoryTable, table: MemoryTable) -> list[Note]:
    """What the encoder has to say; a column that only the training rows have nothing in is called so."""
    if encoder is None:
        return []
    return [_call_partial(note, encoder, table) if train is not table else note for note in encoder.notes]


def _call_partial(note: Note, encoder: TableEncoder, table: MemoryTable) -> Note:
    """The note, which says so if it is true of the training rows alone: the whole table has more in that column."""
    for column in encoder.columns:
        if isinstance(column, Dropped) and note.subject == f"column {column.name!r} is left out":
            assert table.arrow is not None
            whole = learn_column(table.arrow.column(column.name), table.place.of(column.name)).column()
            if not isinstance(whole, Dropped):
                return Note(f"in the rows trained on, {note.subject}", note.text)
    return note

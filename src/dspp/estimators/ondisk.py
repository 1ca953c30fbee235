"""A table larger than memory, made ready for training in three passes over its files.

The first learns the encoding and takes the held-out rows into memory, the second learns the scales, the third writes
encoded, standardised training rows to a cache (`training.cache`) that training reads from (`training.disk`). A cache
of the same rows that is there already saves the second and the third.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Float32, Int

from dspp.data.arrays import numbers
from dspp.data.batches import derive_seed
from dspp.data.columns import check_finite
from dspp.data.encoding import TableEncoder, TableLearner
from dspp.data.inputs import Inputs, check_no_inf
from dspp.data.messages import Place, listed
from dspp.data.scaling import RunningScale, Standardizer
from dspp.data.shards import Piece, Shards
from dspp.data.tablefile import BATCH_ROWS
from dspp.errors import InputError, TrainingInterrupted
from dspp.estimators.fitting import Learned, Part, marked
from dspp.estimators.settings import Settings, seed_of
from dspp.likelihoods import LIKELIHOODS
from dspp.progress import ProgressBar
from dspp.training.cache import RowCache, find_cache, write_cache
from dspp.training.processes import ProcessGroup

MOST_HELD_OUT = 20_000  # rows for validation, and as many for recalibration: they are kept in memory
PIECE_CELLS = 1 << 19  # encoded at once
TRAIN, VAL, HELD, NO_TARGET = range(4)  # what a row is for


@dataclass(frozen=True)
class Stored:
    """A table that is ready to be trained on from the disk.

    Attributes:
        learned: The encoding and the scales.
        cache: The training rows.
        val: Validation rows, in memory; possibly none.
        held: Calibration rows, in memory; possibly none.
        inputs: The columns that are learned from.
        num_rows: Of the table.
        left_out: How many of them have no target.
        drawn: How many were drawn for validation, with or without a target.
        reused: Whether the cache was there already.
    """

    learned: Learned
    cache: RowCache
    val: Part
    held: Part
    inputs: pa.Schema
    num_rows: int
    left_out: int
    drawn: int
    reused: bool

    def __len__(self) -> int:
        return self.cache.num_rows

    @property
    def notes(self) -> list[str]:
        """What a user should know of the table."""
        encoder, count = self.learned.encoder, self.left_out
        notes = [f"{count:,} row{'s' if count > 1 else ''} without a target left out"] if count else []
        if self.drawn and not len(self.val):
            notes.append("no row drawn for validation has a target, so that there are no scores and no best epoch")
        return [*notes, *(() if encoder is None else encoder.notes)]


@contextmanager
def stored(
    shards: Shards,
    targets: Sequence[str],
    settings: Settings,
    *,
    drop: Sequence[str] = (),
    validation: Part | None = None,
    cache: str | Path | None = None,
    keep_cache: bool = False,
    should_stop: Callable[[], bool] | None = None,
) -> Iterator[Stored]:
    """Read the table and write its cache, which is removed at the end.

    It stays if it was made with `keep_cache`, and while an unfinished run can go on from a checkpoint and find it.

    Args:
        shards: the files.
        targets: the columns to predict.
        settings: what is held out, the seed, whether progress is shown, and the checkpoint.
        drop: columns not to learn from.
        validation: rows that choose the best epoch; None: some are held out.
        cache: the folder for the cache; None: that of the checkpoint, or the system's for temporary files.
        keep_cache: whether it stays; another run on the same rows then begins at once.
        should_stop: asked after each piece.

    Raises:
        InputError: a file is damaged, has changed, or does not fit the others; a column or value cannot be used; or the
            disk is full. Nothing half-written is left.
        TrainingInterrupted: `should_stop` said so.
    """
    checkpoint = None if settings.checkpoint is None else Path(settings.checkpoint)
    folder = Path(cache) if cache is not None else checkpoint.absolute().parent if checkpoint else None
    maker = _Maker(shards, targets, settings, drop, validation, should_stop)
    made = maker.make(folder or Path(tempfile.gettempdir()), keep_cache)
    finished = False
    try:
        yield made
        finished = True
    finally:
        can_go_on = not finished and checkpoint is not None and checkpoint.exists() and shards.can_be_found_again
        if not made.cache.about.get("keep") and not can_go_on:
            made.cache.path.unlink(missing_ok=True)


def held_out(num_rows: int, shares: Sequence[float], seed: int) -> list[Int[np.ndarray, " _"]]:
    """Row numbers for each share, `MOST_HELD_OUT` at most: a function of the seed and the number of rows."""
    counts = [min(MOST_HELD_OUT, max(1, round(share * num_rows))) if share else 0 for share in shares]
    chosen = np.random.default_rng(derive_seed(seed, num_rows)).choice(num_rows, sum(counts), replace=False)
    return [np.sort(part) for part in np.split(chosen, np.cumsum(counts)[:-1])]


@dataclass(frozen=True)
class _Rows:
    """Rows of a file: inputs, targets, what each is for, and its number in the file."""

    where: str
    X: pa.RecordBatch
    y: Float[np.ndarray, "n T"]
    role: Int[np.ndarray, " n"]
    number: Int[np.ndarray, " n"]

    @property
    def first(self) -> int:
        """The number of the first row."""
        return int(self.number[0]) if len(self.number) else 0

    def only(self, role: int) -> "_Rows":
        """The rows that are for this."""
        mine = self.role == role
        if mine.all():
            return self
        return _Rows(self.where, self.X.filter(pa.array(mine)), self.y[mine], self.role[mine], self.number[mine])

    def labels(self, shards: Shards) -> list[object]:
        """What to call each row: its number, after the file's name where there are several."""
        numbers, path = self.number.tolist(), Path(self.where)
        alike = sum(file.path.name == path.name for file in shards.files)
        return numbers if len(shards.files) == 1 else [f"{path if alike > 1 else path.name}, {n}" for n in numbers]


class _Maker:
    """One call of `stored`; see there for the arguments."""

    def __init__(
        self,
        shards: Shards,
        targets: Sequence[str],
        settings: Settings,
        drop: Sequence[str],
        validation: Part | None,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self.shards, self.targets, self.validation, self.should_stop = shards, list(targets), validation, should_stop
        _check_names(shards, self.targets, drop)
        inputs = [name for name in shards.names if name not in (*targets, *drop)]
        if not inputs:
            raise InputError(f"{shards.name}: no column is left to learn from")
        self.inputs = pa.schema([shards.schema.field(name) for name in inputs])
        self.codec = LIKELIHOODS[settings.spec(len(self.targets)).model.likelihood].codec
        self.seed, self.progress = seed_of(settings.random_state), settings.progress
        shares = settings.shares(shards.num_rows, validation is not None)
        self.chosen = held_out(shards.num_rows, shares, self.seed)
        self.piece_rows = max(1024, min(BATCH_ROWS, PIECE_CELLS // len(inputs)))

    def make(self, folder: Path, keep: bool) -> Stored:
        """The three passes; `keep` marks the cache as one that stays, also after runs that only use it."""
        stamps, num_rows = self.shards.stamps(), self.shards.num_rows
        with ProgressBar(3 * num_rows, self.progress) as bar:
            self.bar, self.done = bar, 0
            encoder, val, held, num_train, left_out = self._learn()
            about = self._about(stamps, encoder)
            path = folder / f"dspp-{about['key'][:16]}.rows"
            with _first_before_others():
                found = find_cache(path, about | ({"keep": True} if keep else {}))
                if found is not None:
                    bar.expect(num_rows)
                cache = found or self._write(path, encoder, num_train, about | {"keep": keep})
        for before, now in zip(stamps, self.shards.stamps(), strict=True):
            if before != now:
                cache.path.unlink(missing_ok=True)
                raise InputError(f"{now[0]} changed while it was read; start again when it is complete")
        scale_X, scale_y = (_scale_from(cache.about[name]) for name in ("scale_X", "scale_y"))
        learned = Learned(encoder, scale_X, self.codec(scale_y), tuple(self.targets), num_train)
        drawn = len(self.chosen[0])
        return Stored(learned, cache, val, held, self.inputs, num_rows, left_out, drawn, found is not None)

    def _about(self, stamps: list[list[Any]], encoder: TableEncoder) -> dict[str, Any]:
        """What a cache of these rows is known by."""
        rows = {"held_out": [len(part) for part in self.chosen], "seed": self.seed, "targets": self.targets}
        rows["codec"] = self.codec.__name__
        known = json.dumps([stamps, rows, encoder.to_json()])
        return {"key": hashlib.sha256(known.encode()).hexdigest(), "source": stamps}

    # ------------------------------------------------------------ the passes

    def _learn(self) -> tuple[TableEncoder, Part, Part, int, int]:
        """The encoder, validation and calibration rows, and how many rows are trained on, and left out."""
        learner = TableLearner(self.inputs)
        kept: dict[int, list[_Rows]] = {VAL: [], HELD: []}
        counts, (observed, known) = np.zeros(4, int), np.zeros((2, len(self.targets)), int)
        for rows in self._pieces("learning the columns"):
            check_no_inf(rows.X, rows.where, rows.first)
            self.codec.real(rows.y, self.targets, rows.number.tolist(), rows.where)  # refuses targets it cannot take
            train = rows.only(TRAIN)
            learner.add(train.X, rows.where, rows.first)
            counts += np.bincount(rows.role, minlength=4)
            observed += (~np.isnan(train.y)).sum(axis=0)
            known += (~np.isnan(rows.y)).sum(axis=0)
            for role, parts in kept.items():
                if role in rows.role:
                    parts.append(rows.only(role))
        if not observed.all():
            empty = int(np.argmin(observed))
            why = "all that it has are in rows held out; give more" if known[empty] else "expected numbers"
            raise InputError(f"{self.shards.name}: column {self.targets[empty]!r} has no values to train on, {why}")
        if len(self.chosen[1]) and not counts[HELD]:
            raise InputError(
                f"{self.shards.name}: conformal=True drew {len(self.chosen[1]):,} of {self.shards.num_rows:,} rows to "
                f"recalibrate with, none of which has a target: {counts[:NO_TARGET].sum():,} rows have one; give more "
                "such rows, raise calibration_fraction, or use conformal=False"
            )
        val, held = (self._part(rows) for rows in kept.values())
        val = self.validation if self.validation is not None else val
        encoder = marked(learner.encoder(self.shards.name), val, held)
        return encoder, val, held, int(counts[TRAIN]), int(counts[NO_TARGET])

    def _write(self, path: Path, encoder: TableEncoder, num_rows: int, about: dict[str, Any]) -> RowCache:
        """Learn the scales, then write the rows in them."""
        num_inputs, num_outputs = len(encoder.feature_names), len(self.targets)
        scales = RunningScale(num_inputs), RunningScale(num_outputs)
        for parts in self._encoded("learning the scales", encoder):
            for scale, part in zip(scales, parts, strict=True):
                scale.add(part)
        scale_X, scale_y = (scale.result() for scale in scales)
        about |= {"scale_X": _scale_json(scale_X), "scale_y": _scale_json(scale_y)}
        blocks = (_block(scale_X.transform(x), scale_y.transform(y)) for x, y in self._encoded("writing", encoder))
        return write_cache(path, blocks, num_rows, num_inputs, num_outputs, about)

    def _encoded(self, what: str, encoder: TableEncoder) -> Iterator[tuple[Float[np.ndarray, "n D"], Any]]:
        for rows in self._pieces(what):
            train = rows.only(TRAIN)
            if len(train.y):
                real = self.codec.real(train.y, self.targets, train.number.tolist(), rows.where)
                yield encoder.transform(train.X, rows.first, rows.where), real

    def _pieces(self, what: str) -> Iterator[_Rows]:
        for piece in self.shards.pieces(self.piece_rows):
            if self.should_stop is not None and self.should_stop():
                raise TrainingInterrupted("stopped before training began; give the same command to begin again")
            y = np.column_stack([_target(piece, name) for name in self.targets])
            role = np.full(len(y), TRAIN)
            for part, chosen in zip((VAL, HELD), self.chosen, strict=True):
                ends = np.searchsorted(chosen, (piece.number, piece.number + len(y)))
                role[chosen[slice(*ends)] - piece.number] = part
            role[np.isnan(y).all(axis=1)] = NO_TARGET
            number = np.arange(piece.first_row, piece.first_row + len(y))
            yield _Rows(piece.where, piece.batch.select(self.inputs.names), y, role, number)
            self.done += len(y)
            self.bar.update(self.done, what, rows=len(y))

    def _part(self, found: list[_Rows]) -> Part:
        """Rows in memory, in the types of the whole table."""
        tables = [pa.table({f.name: r.X.column(f.name).cast(f.type, safe=False) for f in self.inputs}) for r in found]
        table = pa.concat_tables([self.inputs.empty_table(), *tables]).combine_chunks()
        y = np.concatenate([np.empty((0, len(self.targets))), *(rows.y for rows in found)])
        labels = tuple(label for rows in found for label in rows.labels(self.shards))
        return Part(Inputs(table, None), y[:, 0] if y.shape[1] == 1 else y, labels=labels)


# ---------------------------------------------------------------- small parts


@contextmanager
def _first_before_others() -> Iterator[None]:
    """Of processes that train together, let the first write what the others then find."""
    group = ProcessGroup.current()
    if group.rank > 0:
        group.wait()
    yield
    if group.rank == 0:
        group.wait()


def _check_names(shards: Shards, targets: list[str], drop: Sequence[str]) -> None:
    if not targets or len(set(targets)) < len(targets):
        raise InputError(f"{shards.name}: got the targets {targets}, expected the names of columns, each once")
    for name in (*targets, *drop):
        if name not in shards.names:
            raise InputError(f"{shards.name}: there is no column {name!r}; it has {listed(shards.names, 10)}")


def _target(piece: Piece, name: str) -> Float[np.ndarray, " n"]:
    place = Place(piece.where, name, piece.first_row)
    values = numbers(piece.batch.column(name), place)
    check_finite(values, place)
    return values


def _block(x: Float[np.ndarray, "n D"], y: Float[np.ndarray, "n T"]) -> Float32[np.ndarray, "n W"]:
    """Rows as the cache has them: computed in float64, rounded once."""
    return np.concatenate([x, y], axis=1, dtype=np.float32, casting="same_kind")


def _scale_json(scale: Standardizer) -> list[Any]:
    return [scale.mean.tolist(), scale.scale.tolist()]


def _scale_from(values: list[Any]) -> Standardizer:
    return Standardizer(*(np.asarray(part, dtype=np.float64) for part in values))

"""Preparation of tables that may be larger than memory, in three passes over the files.

The first pass learns the encoding and reads the held-out rows into memory, the second learns the scales, and the third
writes encoded, standardised training rows to a cache (`training.cache`), from which training reads (`training.disk`).
An existing cache of the same rows makes the second and third passes unnecessary.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Float32, Int

from dspp.batches import derive_seed
from dspp.encoding.encoder import TableEncoder, TableLearner, encode
from dspp.encoding.scaling import RunningScale, Standardizer
from dspp.encoding.warping import Warp, spaced
from dspp.errors import InputError, TrainingInterrupted
from dspp.likelihoods import LIKELIHOODS
from dspp.notes import Note, note_missing_targets
from dspp.prepare.prepared import Prepared, check_scale, standardise_rows
from dspp.progress import ProgressBar
from dspp.settings import Settings
from dspp.table.joined import JoinedTable
from dspp.table.memory import check_no_inf, target_column
from dspp.table.messages import join_names
from dspp.table.table import BATCH_ROWS, MemoryTable, join
from dspp.training.cache import RowCache, find_cache, write_cache

MOST_HELD_OUT = 20_000  # validation rows, and as many calibration rows, which are kept in memory
PIECE_CELLS = 1 << 19  # cells encoded at once
CONTENT = 3  # version of the content of a cache, so that older ones are not used
TRAIN, VALIDATION, CALIBRATION, NO_TARGET = range(4)  # roles of a row


@dataclass(frozen=True)
class OnDisk:
    """Options for a table on disk.

    Attributes:
        cache: The folder for the cache; None: the folder of the checkpoint, or the system's temporary folder.
        keep: Whether to keep the cache, so that another run on the same rows starts at once. An unfinished run that can
            resume from a checkpoint keeps it in any case.
    """

    cache: str | Path | None = None
    keep: bool = False


def draw_held_out_rows(num_rows: int, shares: Sequence[float], seed: int) -> list[Int[np.ndarray, " _"]]:
    """Return row numbers for each share, at most `MOST_HELD_OUT`, as a function of seed and number of rows."""
    counts = [min(MOST_HELD_OUT, max(1, round(share * num_rows))) if share else 0 for share in shares]
    chosen = np.random.default_rng(derive_seed(seed, num_rows)).choice(num_rows, sum(counts), replace=False)
    return [np.sort(part) for part in np.split(chosen, np.cumsum(counts)[:-1])]


def prepare_on_disk(
    table: JoinedTable,
    settings: Settings,
    targets: Sequence[str],
    drop: Sequence[str],
    validation: MemoryTable | None,
    disk: OnDisk,
    should_stop: Callable[[], bool] | None,
) -> Prepared:
    """Read the table and write its cache; see `prepare`."""
    checkpoint = None if settings.checkpoint is None else Path(settings.checkpoint)
    folder = Path(disk.cache) if disk.cache is not None else checkpoint.absolute().parent if checkpoint else None
    passes = _Passes(table, settings, targets, drop, validation, should_stop)
    return passes.run(folder or Path(tempfile.gettempdir()), disk.keep, checkpoint)


class _Passes:
    """One call of `prepare_on_disk`; see `prepare` for the arguments."""

    def __init__(
        self,
        table: JoinedTable,
        settings: Settings,
        targets: Sequence[str],
        drop: Sequence[str],
        validation: MemoryTable | None,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self.table, self.targets, self.validation, self.should_stop = table, list(targets), validation, should_stop
        _check_names(table, self.targets, drop)
        inputs = [name for name in table.names if name not in (*targets, *drop)]
        if not inputs:
            raise InputError(f"{table.where}: no column is left to learn from")
        self.inputs = pa.schema([table.schema.field(name) for name in inputs])
        self.settings, self.seed = settings, settings.random_state
        self.model = settings.spec(len(self.targets)).model
        self.codec = LIKELIHOODS[self.model.likelihood].codec
        self.chosen = draw_held_out_rows(
            table.num_rows, settings.shares(table.num_rows, validation is not None), self.seed
        )
        self.warps = settings.is_ensemble(table.num_rows)
        self.batch_rows = max(1024, min(BATCH_ROWS, PIECE_CELLS // len(inputs)))

    def run(self, folder: Path, keep: bool, checkpoint: Path | None) -> Prepared:
        """Run the three passes; with `keep`, the cache also survives later runs that reuse it."""
        stamps, num_rows = self.table.stamps(), self.table.num_rows
        with ProgressBar(3 * num_rows, self.settings.progress) as bar:
            self.bar, self.done = bar, 0
            encoder, validation, calibration, num_train, left_out = self._learn()
            about = self._about(stamps, encoder)
            path = folder / f"dspp-{about['key'][:16]}.rows"
            found = find_cache(path, about | ({"keep": True} if keep else {}))
            if found is not None:
                bar.expect(num_rows)
            cache = found or self._write(path, encoder, num_train, about | {"keep": keep})

        def close(finished: bool) -> None:
            can_resume = not finished and checkpoint is not None and checkpoint.exists()
            if not cache.about.get("keep") and not (can_resume and self.table.is_in_files):
                cache.path.unlink(missing_ok=True)

        try:
            for before, now in zip(stamps, self.table.stamps(), strict=True):
                if before != now:
                    cache.path.unlink(missing_ok=True)
                    raise InputError(f"{now[0]}: the file changed while it was read; start again when it is complete")
            scale_X, scale_y = (Standardizer.from_json(cache.about[name]) for name in ("scale_X", "scale_y"))
            codec, dtype = self.codec(scale_y), self.model.dtype
            check_scale(codec, self.targets, self.table.where)
            notes = note_missing_targets(left_out)
            if len(self.chosen[0]) and not len(validation):
                no_scores = "there are no scores and no best epoch"
                notes.append(Note("", f"none of the rows drawn for validation has a target; {no_scores}"))
            return Prepared(
                train=cache,
                calibration=standardise_rows(calibration, encoder, scale_X, codec, dtype),
                validation=standardise_rows(validation, encoder, scale_X, codec, dtype),
                validation_table=validation,
                calibration_table=calibration,
                table=None,
                encoder=encoder,
                scale_X=scale_X,
                codec=codec,
                target_names=tuple(self.targets),
                table_rows=num_rows,
                notes=(*notes, *encoder.notes),
                reused=found is not None,
                close=close,
            )
        except BaseException:
            close(False)
            raise

    def _about(self, stamps: list[list[Any]], encoder: TableEncoder) -> dict[str, Any]:
        """Return the key that identifies a cache of these rows, and its sources."""
        rows = {"held_out": [len(part) for part in self.chosen], "seed": self.seed, "targets": self.targets}
        rows |= {"codec": self.codec.__name__, "warps": self.warps}
        known = json.dumps([CONTENT, stamps, rows, encoder.to_json()])
        return {"key": hashlib.sha256(known.encode()).hexdigest(), "source": stamps}

    # ------------------------------------------------------------ the passes

    def _learn(self) -> tuple[TableEncoder, MemoryTable, MemoryTable, int, int]:
        """Return encoder, validation and calibration rows, and the numbers of training rows and of rows left out."""
        learner = TableLearner(self.inputs)
        kept: dict[int, list[MemoryTable]] = {VALIDATION: [], CALIBRATION: []}
        counts, (observed, known) = np.zeros(4, int), np.zeros((2, len(self.targets)), int)
        for rows, role in self._batches("learning the columns"):
            check_no_inf(rows)
            self.codec.real(rows.targets, self.targets, rows.place)  # raises before anything is written
            train = _select_role(rows, role, TRAIN)
            assert train.arrow is not None
            learner.add(train.arrow, train.place)
            counts += np.bincount(role, minlength=4)
            observed += (~np.isnan(train.targets)).sum(axis=0)
            known += (~np.isnan(rows.targets)).sum(axis=0)
            for part, found in kept.items():
                if part in role:
                    found.append(_select_role(rows, role, part))
        self._check_counts(observed, known, counts)
        validation, calibration = (join(found, self.table.where, self.inputs, self.targets) for found in kept.values())
        validation = self.validation if self.validation is not None else validation
        encoder = learner.encoder(self.table.where)
        for rows in (validation, calibration):
            if len(rows) and rows.arrow is not None:
                encoder = encoder.allow_missing_in(rows.arrow, rows.place)
        return encoder, validation, calibration, int(counts[TRAIN]), int(counts[NO_TARGET])

    def _check_counts(
        self, observed: Int[np.ndarray, " T"], known: Int[np.ndarray, " T"], counts: Int[np.ndarray, " 4"]
    ) -> None:
        where = self.table.where
        if not observed.all():
            empty = int(np.argmin(observed))
            why = ": all its values are in held-out rows; add rows" if known[empty] else ""
            raise InputError(f"{where}: column {self.targets[empty]!r}: expected values to train on, got none{why}")
        if len(self.chosen[1]) and not counts[CALIBRATION]:
            raise InputError(
                f"{where}: expected targets in the {len(self.chosen[1]):,} of {self.table.num_rows:,} rows drawn for "
                f"recalibration, got none; only {counts[:NO_TARGET].sum():,} rows have a target: add such rows, raise "
                "calibration_fraction, or use conformal=False"
            )

    def _write(self, path: Path, encoder: TableEncoder, num_rows: int, about: dict[str, Any]) -> RowCache:
        """Learn the scales, then write the standardised rows."""
        num_inputs, num_outputs = len(encoder.feature_names), len(self.targets)
        scales = RunningScale(num_inputs), RunningScale(num_outputs)
        sample, wanted, seen = [], spaced(num_rows), 0
        for parts in self._encode_batches("learning the scales", encoder):
            for scale, part in zip(scales, parts, strict=True):
                scale.add(part)
            first, last = np.searchsorted(wanted, (seen, seen + len(parts[0])))
            sample.append(parts[0][wanted[first:last] - seen])
            seen += len(parts[0])
        scale_X, scale_y = (scale.result() for scale in scales)
        if self.warps:
            rows = scale_X.transform(np.concatenate(sample))
            scale_X = replace(scale_X, warp=Warp.fit(rows, leave=encoder.mean_features))
        about |= {"scale_X": scale_X.to_json(), "scale_y": scale_y.to_json()}
        blocks = (
            _block(scale_X.transform(x), scale_y.transform(y)) for x, y in self._encode_batches("writing", encoder)
        )
        return write_cache(path, blocks, num_rows, num_inputs, num_outputs, about)

    def _encode_batches(
        self, what: str, encoder: TableEncoder
    ) -> Iterator[tuple[Float[np.ndarray, "n D"], Float[np.ndarray, "n T"]]]:
        for rows, role in self._batches(what):
            train = _select_role(rows, role, TRAIN)
            if len(train):
                yield encode(train, encoder), self.codec.real(train.targets, self.targets, train.place)

    def _batches(self, what: str) -> Iterator[tuple[MemoryTable, Int[np.ndarray, " n"]]]:
        """Yield rows with their targets, and the role of each row."""
        begin = 0
        for batch in self.table.batches(self.batch_rows):
            if self.should_stop is not None and self.should_stop():
                raise TrainingInterrupted("stopped before training started; run the same command to start again")
            y = np.column_stack([target_column(batch, name) for name in self.targets])
            role = np.full(len(y), TRAIN)
            for part, chosen in zip((VALIDATION, CALIBRATION), self.chosen, strict=True):
                ends = np.searchsorted(chosen, (begin, begin + len(y)))
                role[chosen[slice(*ends)] - begin] = part
            role[np.isnan(y).all(axis=1)] = NO_TARGET
            yield batch.select(self.inputs.names).with_targets(y, self.targets), role
            begin += len(y)
            self.done += len(y)
            self.bar.update(self.done, what, rows=len(y))


# ---------------------------------------------------------------- helpers


def _select_role(rows: MemoryTable, role: Int[np.ndarray, " n"], part: int) -> MemoryTable:
    """Return the rows with this role."""
    mine = role == part
    return rows if mine.all() else rows.take(np.flatnonzero(mine))


def _check_names(table: JoinedTable, targets: list[str], drop: Sequence[str]) -> None:
    if not targets or len(set(targets)) < len(targets):
        raise InputError(f"{table.where}: expected unique names of target columns, got {targets}")
    for name in (*targets, *drop):
        if name not in table.names:
            raise InputError(f"{table.where}: expected a column {name!r}, got {join_names(table.names, 10)}")


def _block(x: Float[np.ndarray, "n D"], y: Float[np.ndarray, "n T"]) -> Float32[np.ndarray, "n W"]:
    """Return rows in the format of the cache: computed in float64, rounded once."""
    return np.concatenate([x, y], axis=1, dtype=np.float32, casting="same_kind")

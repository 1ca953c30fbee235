"""A prepared table: rows in the form that training reads, and everything learned from them."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

import numpy as np
import torch
from jaxtyping import Float, Int

from dspp.config import TrainConfig
from dspp.encoding.encoder import TableEncoder, encode
from dspp.encoding.means import CrossFittedMeans
from dspp.encoding.scaling import LARGEST_SCALE, Standardizer, standardise
from dspp.errors import InputError
from dspp.folds import NEVER, Split
from dspp.likelihoods import Codec
from dspp.members.plan import Plan, make_plan
from dspp.notes import Note
from dspp.presets import Spec
from dspp.seen import Hashes
from dspp.settings import Settings
from dspp.table.checks import check_width
from dspp.table.messages import Place
from dspp.table.table import MemoryTable
from dspp.training.cache import RowCache
from dspp.training.disk import DiskRows
from dspp.training.rows import Rows

OWN_NAMES = {"X": "y", "X_val": "y_val"}  # the names of targets passed separately, for errors


@dataclass(frozen=True, eq=False)
class Prepared:
    """A table prepared for training, which several models can share.

    Use it as a context manager: at the end, rows on disk are removed.

    Attributes:
        train: Training rows, encoded and standardised: in memory in float64, or in a cache.
        validation: Rows that choose the best epoch and are scored, likewise; possibly none.
        calibration: Rows that recalibrate intervals, likewise; possibly none.
        validation_table: The validation rows as they were given, with their labels and targets.
        calibration_table: The calibration rows, likewise.
        table: All rows that have a target as they were given; None: they are on disk.
        encoder: From columns to numbers; None: the rows were numbers.
        scale_X: Of the encoded columns, (D,).
        input_range: The smallest and the largest value of each encoded column; None: not known of rows on disk.
        seen_rows: Hashes of the training rows, likewise; None also if too many of them are equal.
        codec: From targets to numbers, (N, T), and from predictions to the user's units.
        target_names: T of them.
        table_rows: How many rows the table has, those without a target included.
        fold: For an ensemble in memory, the fold of each row of `train` and then of `validation`; see `assign_folds`.
        likelihood: The likelihood that was chosen for these targets; None: that of the settings.
        means: For an ensemble whose members hold out rows of `train`, the mean targets of levels that each of them
            reads; those in `train` leave out the row's own inner fold only.
        inner: With groups, the inner fold of each of these rows; see `cross_fit`.
        notes: What the user should know.
        reused: Whether a cache was found and not written.
        close: Called at the end with whether all went well.
    """

    train: Rows | RowCache
    validation: Rows
    calibration: Rows
    validation_table: MemoryTable
    calibration_table: MemoryTable
    table: MemoryTable | None
    encoder: TableEncoder | None
    scale_X: Standardizer  # noqa: N815 - X is a matrix
    codec: Codec
    target_names: tuple[str, ...]
    table_rows: int
    notes: tuple[Note, ...]
    fold: Int[np.ndarray, " N"] | None = None
    likelihood: str | None = None
    input_range: Float[np.ndarray, "2 D"] | None = None
    seen_rows: Hashes | None = None
    means: CrossFittedMeans | None = None
    inner: Int[np.ndarray, " N"] | None = None
    reused: bool = False
    close: Callable[[bool], None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.close is not None:
            self.close(kind is None)

    @property
    def num_rows(self) -> int:
        """The number of training rows."""
        return len(self.train) if isinstance(self.train, Rows) else self.train.num_rows

    @property
    def split(self) -> Split:
        """Which of the training and then the validation rows members hold out; a single model holds out the latter."""
        return self.split_of(self.num_rows)

    def split_of(self, num_rows: int) -> Split:
        """Return the split if there are so many training rows."""
        fold, times = self.fold, None if self.table is None else self.table.times
        if fold is None:
            fold = np.repeat([NEVER, 0], [num_rows, len(self.validation)])
        return Split(fold, self.inner, num_rows, times is not None and bool(fold.max(initial=NEVER) > 0))

    def settings_of_members(self, settings: Settings) -> Settings:
        """Return the settings with the likelihood chosen here."""
        return settings if self.likelihood is None else replace(settings, likelihood=self.likelihood)

    def plan(self, settings: Settings) -> Plan:
        """Return what to fit to these rows."""
        folds = 0 if self.fold is None else int(self.fold.max()) + 1
        return make_plan(
            self.settings_of_members(settings),
            self.num_rows,
            len(self.target_names),
            one_part=folds < 2,
            trees=folds > 0 and all(self._can_cross_fit(k) for k in range(folds)),
            most_folds=folds or None,
        )

    def source(
        self, spec: Spec, config: TrainConfig, reading: Mapping[str, int]
    ) -> AbstractContextManager[Rows | DiskRows]:
        """Open the training rows for the duration of a block; see `DiskRows` for `reading`."""
        if isinstance(self.train, Rows):
            return nullcontext(self.train)
        return DiskRows(self.train, spec, config, **reading)

    def _can_cross_fit(self, k: int) -> bool:
        """Return whether the rows outside of fold k have at least two inner folds, as trees need."""
        return self.inner is None or np.ptp(self.inner[self.fold != k]) > 0


def standardise_rows(
    table: MemoryTable, encoder: TableEncoder | None, scale_X: Standardizer, codec: Codec, dtype: str
) -> Rows:
    """Return held-out rows, encoded and standardised.

    Raises:
        InputError: A number is too large for the model's dtype.
    """
    if not len(table):
        return to_rows(np.empty((0, len(scale_X.mean))), np.empty((0, len(codec.scale.mean))), table.weights)
    names = None if encoder is None else encoder.feature_names
    X = encode(table, encoder)
    check_width(X, len(scale_X.mean))
    X = standardise(X, scale_X, dtype, names, table.place)
    y = codec.real(table.targets, table.target_names, target_place(table))
    y = standardise(y, codec.scale, dtype, table.target_names, target_place(table))
    return to_rows(X, y, table.weights)


def target_place(table: MemoryTable) -> Place:
    """Return the place of the targets of a table, for errors."""
    return table.place.at(OWN_NAMES.get(table.where, table.where))


def to_rows(
    X: Float[np.ndarray, "N D"], y: Float[np.ndarray, "N T"], weights: Float[np.ndarray, " N"] | None = None
) -> Rows:
    """Return float64 rows in memory."""
    x, targets = torch.from_numpy(np.ascontiguousarray(X)), torch.from_numpy(np.ascontiguousarray(y))
    return Rows(x, targets, None if weights is None else torch.from_numpy(weights))


def check_scale(codec: Codec, names: Sequence[str], where: str) -> None:
    """Raise `InputError` for a target whose mean or variance overflows float64."""
    for name, mean, scale in zip(names, codec.scale.mean, codec.scale.scale, strict=True):
        if not (abs(mean) <= LARGEST_SCALE and 1 / LARGEST_SCALE <= scale <= LARGEST_SCALE):
            raise InputError(
                f"{OWN_NAMES.get(where, where)}: column {name!r}: expected a mean below {LARGEST_SCALE:g} and a "
                f"standard deviation from {1 / LARGEST_SCALE:g} to {LARGEST_SCALE:g}, got {mean:.3g} and {scale:.3g}; "
                "remove outliers, or use other units"
            )

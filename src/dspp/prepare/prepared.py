"""A prepared table: rows in the form that training reads, and everything learned from them."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float

from dspp.encoding.encoder import TableEncoder, encode
from dspp.encoding.means import Without
from dspp.encoding.scaling import Standardizer, standardise
from dspp.folds import Split
from dspp.members.plan import Plan, make_plan
from dspp.notes import Note
from dspp.outcomes import Outcome
from dspp.seen import Hashes
from dspp.settings import Settings
from dspp.table.checks import check_width
from dspp.table.messages import Place
from dspp.table.table import Table
from dspp.training.rows import Rows

OWN_NAMES = {"X": "y", "X_val": "y_val"}  # the names of targets passed separately, for errors


@dataclass(frozen=True, eq=False)
class Prepared:
    """A table prepared for training, which several models can share.

    Attributes:
        train: Training rows, encoded and standardised, in float64.
        validation: Rows that choose the best epoch and are scored, likewise; possibly none.
        calibration: Rows that recalibrate intervals, likewise; possibly none.
        validation_table: The validation rows as they were given, with their labels and targets.
        calibration_table: The calibration rows, likewise.
        table: All rows that have a target as they were given.
        encoder: From columns to numbers; None: the rows were numbers.
        scale_X: Of the encoded columns, (D,).
        input_range: The smallest and the largest value of each encoded column.
        seen_rows: Hashes of the training rows; None: too many of them are equal.
        outcome: What the target is: encodes the user's values and decodes predictions.
        split: Which of the training and then the validation rows members hold out; a single model holds out the latter.
        means: For an ensemble whose members hold out rows of `train`, the mean targets of levels that each of them
            reads; those in `train` leave out the row's own inner fold only.
        notes: What the user should know.
    """

    train: Rows
    validation: Rows
    calibration: Rows
    validation_table: Table
    calibration_table: Table
    table: Table
    encoder: TableEncoder | None
    scale_X: Standardizer  # noqa: N815 - X is a matrix
    outcome: Outcome
    notes: tuple[Note, ...]
    split: Split
    input_range: Float[np.ndarray, "2 D"] | None = None
    seen_rows: Hashes | None = None
    means: Without | None = None

    @property
    def num_rows(self) -> int:
        """The number of training rows."""
        return len(self.train)

    @property
    def table_rows(self) -> int:
        """How many rows the table has, those without a target and those that are not sampled included."""
        return self.table.num_table_rows

    def settings_of_models(self, settings: Settings) -> Settings:
        """Return the settings with the likelihood of the outcome."""
        return replace(settings, likelihood=self.outcome.likelihood)

    def plan(self, settings: Settings) -> Plan:
        """Return what to fit to these rows."""
        folds = self.split.num_folds
        plan = make_plan(
            self.settings_of_models(settings),
            self.num_rows,
            self.outcome.num_outputs,
            kinds=self.outcome.member_kinds,
            one_part=folds < 2,
            trees=self.split.has_inner_folds,
            most_folds=folds or None,
        )
        same = len(self.outcome.encoded_names) == self.outcome.num_outputs
        return plan if same else replace(plan, spec=replace(plan.spec, outputs=self.outcome.num_outputs))


def standardise_rows(
    table: Table, encoder: TableEncoder | None, scale_X: Standardizer, outcome: Outcome, dtype: str
) -> Rows:
    """Return held-out rows, encoded and standardised.

    Raises:
        InputError: A number is too large for the model's dtype.
    """
    if not len(table):
        return to_rows(np.empty((0, len(scale_X.mean))), np.empty((0, len(outcome.scale.mean))), table.weights)
    names = None if encoder is None else encoder.feature_names
    X = encode(table, encoder)
    check_width(X, len(scale_X.mean))
    X = standardise(X, scale_X, dtype, names, table.place)
    return to_rows(X, outcome.encode(table.targets, target_place(table), dtype), table.weights)


def target_place(table: Table) -> Place:
    """Return the place of the targets of a table, for errors."""
    return table.place.at(OWN_NAMES.get(table.where, table.where))


def to_rows(
    X: Float[np.ndarray, "N D"], y: Float[np.ndarray, "N T"], weights: Float[np.ndarray, " N"] | None = None
) -> Rows:
    """Return float64 rows in memory."""
    x, targets = torch.from_numpy(np.ascontiguousarray(X)), torch.from_numpy(np.ascontiguousarray(y))
    return Rows(x, targets, None if weights is None else torch.from_numpy(weights))

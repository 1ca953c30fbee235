"""Evaluation: predictions of rows with targets, their scores, and whether they can be trusted."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import Final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dspp.calibration import HEADLINE, Verdict, is_inside
from dspp.errors import InputError
from dspp.fitted import Fitted
from dspp.metrics import Comparison, Levels
from dspp.outcomes.base import to_targets
from dspp.predictive import Predictive
from dspp.seen import Recogniser, hash_rows
from dspp.table.table import Table

SAMPLE_ROWS: Final = 32_768  # at most, and at least half as many of a larger table
SCORED_ROWS: Final = 16_384  # in a batch

Batches = Callable[[], Iterator[Table]]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A model, rows with targets and its predictions for them; scores are computed once, on first use.

    Rows that were held out in turn have `parts`: the members that held out the same rows as a model, and the numbers of
    these rows; otherwise `fitted` predicted all of them.

    Example:
        >>> import numpy as np
        >>> from dspp import PPGPRRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> model = PPGPRRegressor(epochs=2, inducing=8).fit(X, X[:, 0])
        >>> evaluation = model.evaluation(X, X[:, 0])
        >>> evaluation.scores["rmse"] == model.evaluate(X, X[:, 0])["rmse"], evaluation.calibration.num_rows
        (True, 60)
    """

    fitted: Fitted
    table: Table  # of a table that was scored in batches, a sample of its rows, evenly spaced
    distribution: Predictive
    parts: tuple[tuple[Fitted, Int[np.ndarray, " n"]], ...] = ()
    caveat: str = ""  # what the rows were used for; empty for new rows
    folds: Mapping[int, Predictive] | None = None  # predictions for recalibration; None: not to be measured
    every: Comparison | None = None  # of all rows, if the table is a sample of them
    index: Int[np.ndarray, " n"] | None = None  # the numbers of the rows of the table among all, likewise
    recalibrated: Bool[Tensor, " N *T"] | None = None  # whether each target is inside its 90 % interval, likewise
    notes: tuple[str, ...] = ()  # about these rows, such as what the training rows had not

    @property
    def num_rows(self) -> int:
        """The number of rows that were scored."""
        return len(self.table) if self.every is None else len(self.every)

    def models(self, rows: Int[np.ndarray, " K"]) -> list[tuple[Fitted, Int[np.ndarray, " k"]]]:
        """Return the models that predicted some rows of the table, each with the positions of its rows in `rows`."""
        if not self.parts:
            return [(self.fitted, np.arange(len(rows)))]
        owner = np.empty(len(self.table), np.int64)
        for k, (_, index) in enumerate(self.parts):
            owner[index] = k
        return [(self.parts[k][0], np.flatnonzero(owner[rows] == k)) for k in np.unique(owner[rows]).tolist()]

    @property
    def y(self) -> Float[np.ndarray, " N *C"]:
        """Observed values of the table, (N,) of a single column."""
        return to_targets(self.table.targets)

    @cached_property
    def comparison(self) -> Comparison:
        """Predictions and targets of all rows, as metrics take them."""
        if self.every is not None:
            return self.every
        return self.fitted.outcome.compare(self.distribution, self.table.targets, self.table.weights)

    @cached_property
    def scores(self) -> dict[str, float]:
        """All scores by name."""
        with self.fitted.named_in_errors(self.table.place):
            return self.comparison.scores(self.fitted.outcome.metrics)

    @cached_property
    def calibration(self) -> Verdict:
        """What the rows say about whether the distributions can be trusted."""
        inside = self.recalibrated
        if self.folds is not None:
            ends = self.fitted.recalibrate(self.comparison.mixture, self.folds, HEADLINE)
            inside = None if ends is None else is_inside(self.comparison.y, ends)
        return self.fitted.outcome.calibration(self.comparison, inside, self.caveat)


def evaluate(fitted: Fitted, table: Table, impute: bool = False, scores: Iterable[str] | None = None) -> Evaluation:
    """Evaluate a model on rows with targets, as `evaluate_batches` does."""
    return evaluate_batches(fitted, partial(table.batches, SCORED_ROWS), impute, scores)


def evaluate_batches(
    fitted: Fitted, batches: Batches, impute: bool = False, scores: Iterable[str] | None = None
) -> Evaluation:
    """Evaluate a model on rows with targets that arrive in batches, keeping a few numbers per row.

    With several outputs, some may have no observed targets; scores are then of the others.

    Args:
        fitted: The model.
        batches: Starts to read the rows; called again if a target may have few distinct values, which are needed before
            the first row is scored.
        impute: See `Fitted.predict`.
        scores: The scores that are wanted; others of many rows take another pass, with all rows in memory. None: all,
            and the calibration.

    Raises:
        InputError: The rows cannot be used, or have another number of targets than the model.
    """
    reader, wanted = batches(), None if scores is None else list(scores)
    first, second = next(reader), next(reader, None)
    recogniser, sample, outcome = Recogniser(fitted.seen_rows), _Sample(), fitted.outcome
    if second is None:
        mixture, folds = _predict_targets(fitted, first, impute, recogniser)
        first = replace(first, parsed=None)  # figures change values of columns
        return Evaluation(fitted, first, mixture, caveat=recogniser.caveat(), folds=folds)
    levels = _find_levels(fitted, first, batches)
    parts: list[dict[str, Tensor]] = []
    weights: list[Float[np.ndarray, " n"]] = []
    inside: list[Bool[Tensor, " n *T"]] = []
    done = 0
    for rows in chain([first, second], reader):
        mixture, folds = _predict_targets(fitted, rows, impute, recogniser)
        part = outcome.compare(mixture, rows.targets, None, done, levels)
        with fitted.named_in_errors(rows.place):
            parts.append(part.by_row(wanted))
        if wanted is None and (ends := fitted.recalibrate(part.mixture, folds, HEADLINE)) is not None:
            inside.append(is_inside(part.y, ends))
        if rows.weights is not None:
            weights.append(rows.weights)
        sample.add(rows, mixture)
        done += len(rows)

    def predict_all() -> Predictive:
        found = [fitted.predict(rows, impute).to(torch.float64) for rows in batches()]
        return type(found[0]).concat(found)

    every = outcome.comparison.join(parts, predict_all, np.concatenate(weights) if weights else None, levels)
    index, table, distribution = sample.join()
    return Evaluation(
        fitted,
        table,
        distribution,
        caveat=recogniser.caveat(),
        every=every,
        index=index,
        recalibrated=torch.cat(inside) if inside else None,
    )


def _predict_targets(
    fitted: Fitted, rows: Table, impute: bool, recogniser: Recogniser
) -> tuple[Predictive, dict[int, Predictive]]:
    """Predict rows with targets, which are compared with those of training; see `Fitted.predict_folds`."""
    encoded, y, count = fitted.encode(rows, impute), rows.targets, len(fitted.outcome.names)
    mixture, folds = fitted.predict_folds(encoded, rows.place)
    if y.shape[1] != count:
        raise InputError(
            f"y: expected shape {(len(y), count) if count > 1 else (len(y),)}, as predicted, got "
            f"{y.shape if y.shape[1] > 1 else y.shape[:1]}; pass the outputs that the model was fitted to"
        )
    if fitted.seen_rows is not None:
        recogniser.count(hash_rows(np.asarray(encoded), y, fitted.encoder))
    return mixture, folds


def _find_levels(fitted: Fitted, first: Table, batches: Batches) -> Levels:
    """Return the distinct values of each target, None if they are many; all rows are read if they may be few."""
    if not fitted.outcome.may_have_levels(first.targets):
        return [None] * first.targets.shape[1]
    return fitted.outcome.levels(np.concatenate([rows.targets for rows in batches()]))


class _Sample:
    """Every k-th row and its distribution, where k is the smallest power of two with at most `SAMPLE_ROWS` rows."""

    def __init__(self) -> None:
        self._parts: list[tuple[Int[np.ndarray, " n"], Table, Predictive]] = []
        self._stride, self._seen = 1, 0

    def add(self, rows: Table, distribution: Predictive) -> None:
        self._parts.append((np.arange(self._seen, self._seen + len(rows)), rows, distribution))
        self._seen += len(rows)
        while -(-self._seen // self._stride) > SAMPLE_ROWS:
            self._stride *= 2
        for k, (index, table, part) in enumerate(self._parts):
            kept = np.flatnonzero(index % self._stride == 0)
            self._parts[k] = index[kept], table.take(kept), part.rows(torch.from_numpy(kept))

    def join(self) -> tuple[Int[np.ndarray, " n"], Table, Predictive]:
        """Return the numbers of the sampled rows, the rows, and their distributions."""
        index, tables, distributions = zip(*self._parts, strict=True)
        parts = [part for numbers, part in zip(index, distributions, strict=True) if len(numbers)]
        return np.concatenate(index), Table.concat(tables), type(parts[0]).concat(parts)

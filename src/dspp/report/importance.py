"""The importance of the columns of the user's table: how much worse predictions become without what they say."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from dspp.evaluate import Evaluation
from dspp.report.probe import Probe, Rows

MOST_ROWS, FEWEST_ROWS = 1_000, 200  # that are predicted again for each column
REPEATS = 3  # shuffles of a column
MOST_COLUMNS = 30  # of a wide table, those of the largest relevance
WORK = 1.2e8  # pairs of components in all scores, about 2 s: the cost of a CRPS is that of S² pairs


@dataclass(frozen=True, eq=False)
class Importance:
    """Increase of the loss when a column is shuffled among the rows, the most important column first.

    Attributes:
        names: The columns, named as in the user's table.
        increase: The increase in each repeat.
        before: The loss of the same rows as they are.
        num_rows: How many rows.
        left_out: How many columns were not tried.
        scaled: Whether the loss is divided by the standard deviation of the targets, as with several outputs.
        loss: What the loss is called.
    """

    names: Sequence[str]
    increase: Float[np.ndarray, "columns repeats"]
    before: float
    num_rows: int
    left_out: int = 0
    scaled: bool = False
    loss: str = "CRPS"

    @property
    def mean(self) -> Float[np.ndarray, " columns"]:
        """Mean over the repeats."""
        return np.asarray(self.increase.mean(axis=1))

    @property
    def matter(self) -> list[str]:
        """Return the columns whose increase is larger than the spread of the repeats, the most important first."""
        spread = self.increase.std(axis=1)
        return [name for name, mean, std in zip(self.names, self.mean, spread, strict=True) if mean > max(std, 0.0)]


def permutation_importance(
    evaluation: Evaluation, relevance: Sequence[tuple[str, float]] = (), seed: int = 0
) -> Importance | None:
    """Shuffle each column in turn and predict again; None if there are too few rows or columns.

    Args:
        evaluation: The rows; those held out in turn are predicted by the members that did not see them.
        relevance: Encoded columns and their relevance, which choose the columns of a wide table.
        seed: Seed of rows and shuffles.
    """
    total = len(evaluation.table)
    if total < 2:
        return None
    generator = np.random.default_rng(seed)
    order = generator.permutation(total)
    probe = Probe(evaluation, np.sort(order[:MOST_ROWS]))
    names = _select_columns(probe, relevance)
    affordable = int(WORK / (max(len(names), 1) * REPEATS * probe.components**2))
    at = generator.permutation(len(probe.rows))[: max(affordable, FEWEST_ROWS)]
    scale = probe.fitted.outcome.loss_scale(probe.y)
    weights = None if probe.table.weights is None else probe.table.weights[at]
    before = _mean_score(probe.loss(at), scale, weights)
    shuffles = [at[_shuffle(len(at), generator)] for _ in range(REPEATS)]  # the same for all columns
    increase = np.array(
        [[_mean_score(probe.loss(at, name, donors), scale, weights) - before for donors in shuffles] for name in names]
    ).reshape(len(names), REPEATS)
    rank = np.argsort(-increase.mean(axis=1), kind="stable")
    return Importance(
        [names[k] for k in rank],
        increase[rank],
        before,
        len(at),
        left_out=len(probe.features) - len(names),
        scaled=scale is not None,
        loss=probe.fitted.outcome.loss_name,
    )


def _select_columns(probe: Probe, relevance: Sequence[tuple[str, float]]) -> list[str]:
    """Return the columns to try, in the order of the table."""
    names = list(probe.features)
    if len(names) <= MOST_COLUMNS:
        return names
    values = np.array([value for _, value in relevance]) if relevance else np.zeros(probe.X[0].shape[1])
    largest = sorted(names, key=lambda name: -values[probe.features[name]].max())[:MOST_COLUMNS]
    return [name for name in names if name in set(largest)]


def _shuffle(num: int, generator: np.random.Generator) -> Rows:
    """Return a random cycle through all rows, so that every row gets the value of another one."""
    order = generator.permutation(num)
    donors = np.empty(num, np.int64)
    donors[order] = np.roll(order, 1)
    return donors


def _mean_score(
    loss: Float[np.ndarray, "n L"], scale: Float[np.ndarray, " L"] | None, weights: Float[np.ndarray, " n"] | None
) -> float:
    """Return the mean over the observed values, by the weights of the rows."""
    each = np.broadcast_to(np.ones(len(loss))[:, None] if weights is None else weights[:, None], loss.shape)
    seen = ~np.isnan(loss)
    loss = loss if scale is None else loss / scale
    return float(np.average(loss[seen], weights=each[seen])) if each[seen].any() else 0.0

"""Fits boosted trees with scikit-learn and converts them to `Trees`.

scikit-learn has no public access to the nodes of its histogram trees, so they are read from `_predictors`, once, at the
end of a fit, and the result is compared with scikit-learn's own predictions. Predicting needs nothing of this file.

Trees see columns cut into at most 255 bins. scikit-learn would cut them too, but at values of the rows themselves,
where rounding x to float32 can change the side, and with weights it takes minutes. Here cuts lie between values and do
not depend on weights.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int32, Shaped, UInt8

from dspp.errors import DsppError, InputError, TrainingInterrupted
from dspp.table.checks import Array, check_X, check_y
from dspp.trees.ensemble import LEAVES, MAX_TREES, NODES, Trees

# Chosen on tables of 270 to 98,000 rows. With 16 leaves, equal errors take 1.5 to 2 times as many trees.
MIN_LEAF_ROWS = 5
L2 = 3.0
MIN_ROWS = 20  # with fewer, the prediction is the mean
MANY_ROWS = 2_000  # from here on, held-out rows decide how many trees are kept; with fewer, they are worth more as
FEW_ROWS_ROUNDS = 200  # training rows, and the number is fixed
LEARNING_RATE, FEW_ROWS_RATE = 0.1, 0.2
MAX_VALIDATION = 5_000  # rows that decide
PATIENCE = 20  # rounds without improvement
CHECKED = 200  # rows on which the conversion is checked
MAX_COLUMNS = 300  # per fit, since the time of a tree grows with its columns: of wider tables, those that say most
BINS = 255
BINNED_ROWS = 200_000  # from which cuts are chosen
GROUPS = 8  # of neighbouring bins, whose mean targets say how much a column says

_FIELDS = {"value", "feature_idx", "num_threshold", "left", "right", "is_leaf", "is_categorical"}  # of a node


@dataclass(frozen=True, eq=False)
class Binned:
    """The number of each row's bin per column, and the cuts between bins: a bin is the number of cuts below x."""

    codes: UInt8[np.ndarray, "N D"]
    cuts: list[Float[np.ndarray, " _"]]

    def select(self, rows: Bool[np.ndarray, " N"]) -> "Binned":
        """Return some of the rows, with the same cuts."""
        return Binned(self.codes[rows], self.cuts)


def bin_columns(X: Float[np.ndarray, "N D"], weights: Float[np.ndarray, " N"], seed: int) -> Binned:
    """Return the rows in bins that hold about as many rows each, or one value each if there are few values.

    Rows of weight 0 have no influence on the cuts.
    """
    rows = np.flatnonzero(weights)
    if len(rows) > BINNED_ROWS:
        rows = np.random.default_rng(seed).choice(rows, BINNED_ROWS, replace=False)
    cuts = [choose_cuts(X[rows, d]) for d in range(X.shape[1])]
    codes = np.empty(X.shape, np.uint8)
    for d, column in enumerate(cuts):
        codes[:, d] = np.searchsorted(column, X[:, d])
    return Binned(codes, cuts)


def choose_cuts(x: Float[np.ndarray, " N"]) -> Float[np.ndarray, " _"]:
    """Return at most 254 numbers that lie halfway between neighbouring values of x."""
    values, counts = np.unique(x, return_counts=True)
    below = np.arange(len(values) - 1)  # the values below a cut
    if len(values) > BINS:
        targets = np.arange(1, BINS) / BINS * len(x)
        below = np.unique(np.searchsorted(np.cumsum(counts)[:-1], targets).clip(max=len(values) - 2))
    middle = 0.5 * values[below] + 0.5 * values[below + 1]
    return np.unique(np.where(middle < values[below + 1], middle, values[below]))  # the smallest numbers round up


@dataclass(frozen=True)
class Boosting:
    """How trees are boosted on the squared error, on one thread; equal settings and rows give equal bits.

    From 2,000 rows on, a tenth of them decides how many trees are kept. With fewer rows there are 200 trees.
    """

    seed: int = 0  # selects the rows that decide, and the rows in use if there are more than `max_rows`
    stop_early: bool = True  # whether random rows decide; not for rows that must stay together
    max_rounds: int = MAX_TREES
    max_rows: int | None = None  # None: all
    learning_rate: float | None = None  # None: one that suits the number of rows
    should_stop: Callable[[], bool] | None = None  # called before each tree; returning True ends the fit

    def __post_init__(self) -> None:
        if not 1 <= self.max_rounds <= MAX_TREES:
            raise InputError(f"max_rounds: expected 1 to {MAX_TREES}, got {self.max_rounds}")

    def fit(self, X: Binned, y: Float[np.ndarray, " N"], weights: Float[np.ndarray, " N"]) -> Trees:
        """Fit trees to rows that were checked.

        Raises:
            TrainingInterrupted: `should_stop` returned True.
        """
        rows = np.flatnonzero(weights)
        if self.max_rows is not None and len(rows) > self.max_rows:
            rows = np.sort(np.random.default_rng(self.seed).choice(rows, self.max_rows, replace=False))
        codes, y, weights = X.codes[rows], y[rows], weights[rows] / weights[rows].mean()
        mean = float(np.average(y, weights=weights))
        scale = float(np.sqrt(np.average((y - mean) ** 2, weights=weights)))
        if len(rows) < MIN_ROWS or scale <= 1e-12 * abs(mean):
            no_columns, no_masks = np.zeros((2, 0, NODES), np.int32)
            return Trees(no_columns, np.zeros((0, NODES)), no_masks, np.zeros((0, LEAVES)), mean, len(X.cuts))
        y = (y - mean) / scale
        columns = choose_columns(codes, y, weights)
        trees = self._fit_scikit_learn(codes[:, columns], y, weights)
        trees = replace(trees, feature=columns[trees.feature], num_features=len(X.cuts))
        value, base = scale * trees.value, mean + scale * trees.base
        return replace(trees, threshold=_to_cuts(trees, X), value=value, base=base)

    def _fit_scikit_learn(
        self, X: UInt8[np.ndarray, "N D"], y: Float[np.ndarray, " N"], weights: Float[np.ndarray, " N"]
    ) -> Trees:
        """Return trees whose inputs are numbers of bins."""
        from sklearn.ensemble import HistGradientBoostingRegressor  # imported here: predicting does not need it
        from threadpoolctl import threadpool_limits

        stop_early = self.stop_early and len(y) >= MANY_ROWS
        model = HistGradientBoostingRegressor(
            learning_rate=self.learning_rate or (LEARNING_RATE if stop_early else FEW_ROWS_RATE),
            max_iter=self.max_rounds if stop_early else min(self.max_rounds, FEW_ROWS_ROUNDS),
            max_leaf_nodes=LEAVES,
            min_samples_leaf=MIN_LEAF_ROWS,
            l2_regularization=L2,
            early_stopping=stop_early,
            validation_fraction=min(len(y) // 10, MAX_VALIDATION),
            n_iter_no_change=PATIENCE,
            random_state=int(np.random.SeedSequence(self.seed).generate_state(1)[0]),
        )
        if self.should_stop is not None:
            _call_before_trees(model, self.should_stop)
        with threadpool_limits(1, user_api="openmp"):  # with more, the order of sums and thus the last bits vary
            model.fit(X, y, sample_weight=weights)
            trees = convert(model, X[:CHECKED])
        # The first score is that of 0 trees.
        return trees.first(int(np.argmax(model.validation_score_))) if stop_early else trees


def fit_trees(
    X: Array,
    y: Array,
    *,
    weights: Array | None = None,
    seed: int = 0,
    stop_early: bool = True,
    max_rounds: int = MAX_TREES,
) -> Trees:
    """Return trees boosted on the squared error with these settings of `Boosting`; rows of weight 0 are left out.

    Raises:
        InputError: The arguments are not finite numbers of matching shapes, or no weight is positive.
        DsppError: This version of scikit-learn stores trees in another way.
    """
    X, y, weights = check_rows(X, y, weights)
    return Boosting(seed, stop_early, max_rounds).fit(bin_columns(X, weights, seed), y, weights)


def check_rows(
    X: Array, y: Array, weights: Array | None
) -> tuple[Float[np.ndarray, "N D"], Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Return inputs, targets and weights as new float64 arrays."""
    X = check_X(X)
    y = check_y(y, len(X))
    weights = check_y(np.ones(len(X)) if weights is None else weights, len(X), "weights")
    for name, array in (("y", y), ("weights", weights)):
        if array.ndim != 1:
            raise InputError(f"{name}: expected one number per row, got shape {array.shape}; pass one column")
    if weights.min() < 0.0 or weights.max() == 0.0:
        raise InputError(f"weights: expected numbers ≥ 0, not all 0, got {weights.min()} to {weights.max()}")
    return X, y, weights


def choose_columns(
    codes: UInt8[np.ndarray, "N D"], y: Float[np.ndarray, " N"], weights: Float[np.ndarray, " N"]
) -> Int32[np.ndarray, " _"]:
    """Return the columns that trees may use: all or, of a wide table, those whose groups of bins differ most in y.

    A column's score is the sum of squares of y between its groups, minus what as many groups have by chance: one each.
    Targets have mean 0 and variance 1, weights have mean 1.
    """
    D = codes.shape[1]
    if D <= MAX_COLUMNS:
        return np.arange(D, dtype=np.int32)
    scores = np.empty(D)
    for d in range(D):
        code = codes[:, d].astype(np.intp)
        group = GROUPS * code // (code.max() + 1)
        weight, total = np.bincount(group, weights), np.bincount(group, weights * y)
        used = weight > 0.0
        scores[d] = (total[used] ** 2 / weight[used]).sum() - used.sum()
    return np.sort(np.argsort(-scores, kind="stable")[:MAX_COLUMNS]).astype(np.int32)


def _to_cuts(trees: Trees, X: Binned) -> Float[np.ndarray, "T 31"]:
    """Return the thresholds of x for trees that were fitted to numbers of bins: bin ≤ b is x ≤ cut b."""
    thresholds = np.zeros_like(trees.threshold)
    for d, cuts in enumerate(X.cuts):
        nodes = (trees.feature == d) & (trees.left_leaves != 0)
        thresholds[nodes] = cuts[np.floor(trees.threshold[nodes]).astype(np.intp)]
    return thresholds


def _call_before_trees(model: Any, should_stop: Callable[[], bool]) -> None:
    """Let a fit end before its next tree: scikit-learn, which has no callbacks, asks its loss for gradients there."""
    make_loss = model._get_loss

    def make_polling_loss(sample_weight: Any) -> Any:
        loss = make_loss(sample_weight=sample_weight)
        find_gradient = loss.gradient_hessian

        def poll(*args: Any, **more: Any) -> Any:
            if should_stop():
                raise TrainingInterrupted("training was stopped while trees were fitted; repeat the same call")
            return find_gradient(*args, **more)

        loss.gradient_hessian = poll
        return loss

    model._get_loss = make_polling_loss


# ---------------------------------------------------------------- scikit-learn's trees


def convert(model: Any, X: Shaped[np.ndarray, "N D"]) -> Trees:
    """Return the trees of a fitted `HistGradientBoostingRegressor` with numerical inputs and the squared error.

    Raises:
        DsppError: Its private attributes are not as expected, or the predictions for X differ.
    """
    try:
        trees = _read(model)
        equal = np.allclose(trees.predict(X), model.predict(X), rtol=1e-9, atol=1e-9)
        problem = None if equal else "other predictions than its own"
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
    if problem is not None:
        import sklearn

        raise DsppError(
            f"expected trees as in scikit-learn 1.6 to 1.9, got {problem} with version {sklearn.__version__}; "
            "install one of those versions"
        )
    return trees


def _read(model: Any) -> Trees:
    num_trees = len(model._predictors)
    trees = Trees(
        feature=np.zeros((num_trees, NODES), np.int32),
        threshold=np.zeros((num_trees, NODES)),
        left_leaves=np.zeros((num_trees, NODES), np.int32),
        value=np.zeros((num_trees, LEAVES)),
        base=float(model._baseline_prediction.item()),
        num_features=int(model.n_features_in_),
    )
    for t, (predictor,) in enumerate(model._predictors):  # one tree per round
        nodes = predictor.nodes
        if not _FIELDS.issubset(nodes.dtype.names) or nodes["is_categorical"].any():
            raise ValueError(f"nodes with the fields {nodes.dtype.names}")
        is_leaf = nodes["is_leaf"].astype(bool)
        inner = nodes[~is_leaf]
        before = np.cumsum(is_leaf) - is_leaf  # leaves on the left of each node: nodes are in the order of a walk
        n = len(inner)
        trees.feature[t, :n] = inner["feature_idx"]
        trees.threshold[t, :n] = inner["num_threshold"]
        trees.left_leaves[t, :n] = 2 ** before[inner["right"]] - 2 ** before[inner["left"]]
        trees.value[t, : is_leaf.sum()] = nodes["value"][is_leaf]
    return trees

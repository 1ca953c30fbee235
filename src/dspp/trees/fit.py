"""Fits boosted trees with scikit-learn and converts them to `Trees`.

scikit-learn has no public access to the nodes of its histogram trees, so they are read from `_predictors` here, once,
at the end of a fit; the result is compared with scikit-learn's own predictions. Predicting needs nothing of this file.
"""

from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from dspp.errors import DsppError, InputError
from dspp.table.checks import Array, check_Xy
from dspp.trees.ensemble import ALL_LEAVES, LEAVES, MAX_TREES, NODES, Trees

LEARNING_RATE = 0.15
MIN_ROWS = 20  # with fewer, the prediction is the mean
MAX_VALIDATION = 5_000  # rows that decide when to stop
PATIENCE = 10  # rounds without improvement
_FIELDS = {"value", "feature_idx", "num_threshold", "left", "right", "is_leaf", "is_categorical"}  # of a node


def fit_trees(
    X: Array,
    y: Array,
    *,
    weights: Array | None = None,
    seed: int = 0,
    max_rounds: int = 200,
    max_rows: int | None = None,
) -> Trees:
    """Return trees boosted on the squared error, on one thread; equal arguments give equal bits.

    A tenth of the rows decides how many trees are kept.

    Args:
        X: the inputs, finite.
        y: one target per row.
        weights: one weight per row; a row of weight 0 is left out.
        seed: selects the rows that decide, and the rows in use if there are more than `max_rows`.
        max_rounds: the largest number of trees.
        max_rows: the largest number of rows in use; None for all.

    Raises:
        InputError: the arguments are not finite numbers of matching shapes, or no weight is positive.
        DsppError: this version of scikit-learn stores trees in another way.
    """
    if not 1 <= max_rounds <= MAX_TREES:
        raise InputError(f"max_rounds: expected 1 to {MAX_TREES}, got {max_rounds}")
    return boost(*check_rows(X, y, weights), seed=seed, max_rounds=max_rounds, max_rows=max_rows)


def check_rows(
    X: Array, y: Array, weights: Array | None
) -> tuple[Float[np.ndarray, "N D"], Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Return inputs, targets and weights as new float64 arrays."""
    X, y = check_Xy(X, y)
    _, w = check_Xy(X, np.ones(len(X)) if weights is None else weights)
    for name, array in (("y", y), ("weights", w)):
        if array.ndim != 1:
            raise InputError(f"{name}: expected one number per row, got shape {array.shape}; pass one column")
    if w.min() < 0.0 or w.max() == 0.0:
        raise InputError(f"weights: expected numbers ≥ 0 and one above 0, got {w.min()} to {w.max()}")
    return X, y, w


def boost(
    X: Float[np.ndarray, "N D"],
    y: Float[np.ndarray, " N"],
    weights: Float[np.ndarray, " N"],
    *,
    seed: int,
    max_rounds: int,
    max_rows: int | None,
) -> Trees:
    """Do the work of `fit_trees` with arrays that were checked."""
    rows = np.flatnonzero(weights)
    if max_rows is not None and len(rows) > max_rows:
        rows = np.sort(np.random.default_rng(seed).choice(rows, max_rows, replace=False))
    X, y, weights = X[rows], y[rows], weights[rows] / weights[rows].mean()
    mean = float(np.average(y, weights=weights))
    scale = float(np.sqrt(np.average((y - mean) ** 2, weights=weights)))
    if len(rows) < MIN_ROWS or scale <= 1e-12 * abs(mean):
        return _constant(mean, X.shape[1])
    from sklearn.ensemble import HistGradientBoostingRegressor  # imported here: predicting does not need it
    from threadpoolctl import threadpool_limits

    model = HistGradientBoostingRegressor(
        learning_rate=LEARNING_RATE,
        max_iter=max_rounds,
        max_leaf_nodes=LEAVES,
        min_samples_leaf=5 if len(rows) < 2_000 else 20,
        l2_regularization=1.0,
        early_stopping=True,
        validation_fraction=min(len(rows) // 10, MAX_VALIDATION),
        n_iter_no_change=PATIENCE,
        random_state=int(np.random.SeedSequence(seed).generate_state(1)[0]),
    )
    with threadpool_limits(1, user_api="openmp"):  # with more, the order of sums and thus the last bits vary
        model.fit(X, (y - mean) / scale, sample_weight=weights)
        trees = convert(model, X[:MIN_ROWS])
    best = int(np.argmax(model.validation_score_))  # the score of 0 trees comes first
    return Trees(
        feature=trees.feature[:best],
        threshold=trees.threshold[:best],
        mask=trees.mask[:best],
        value=scale * trees.value[:best],
        base=mean + scale * trees.base,
        num_features=trees.num_features,
    )


def _constant(value: float, num_features: int) -> Trees:
    nodes = np.zeros((0, NODES))
    return Trees(
        nodes.astype(np.int32),
        nodes,
        nodes.astype(np.uint16),
        np.zeros((0, LEAVES)),
        base=value,
        num_features=num_features,
    )


# ---------------------------------------------------------------- scikit-learn's trees


def convert(model: Any, X: Float[np.ndarray, "N D"]) -> Trees:
    """Return the trees of a fitted `HistGradientBoostingRegressor` with numerical inputs.

    Args:
        model: the fitted regressor.
        X: rows on which both must predict the same.

    Raises:
        DsppError: its private attributes are not as expected, or the predictions differ.
    """
    try:
        trees = _read(model)
        equal = np.allclose(trees.predict(X), model.predict(X), rtol=1e-9, atol=1e-9)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as problem:
        raise _unknown_layout(f"{type(problem).__name__}: {problem}") from problem
    if not equal:
        raise _unknown_layout("other predictions")
    return trees


def _unknown_layout(got: str) -> DsppError:
    import sklearn

    return DsppError(
        f"expected the trees of scikit-learn 1.5 to 1.9, got {got} from version {sklearn.__version__}; "
        "install one of these versions"
    )


def _read(model: Any) -> Trees:
    num_trees = len(model._predictors)
    trees = Trees(
        feature=np.zeros((num_trees, NODES), np.int32),
        threshold=np.zeros((num_trees, NODES)),
        mask=np.full((num_trees, NODES), ALL_LEAVES),
        value=np.zeros((num_trees, LEAVES)),
        base=model._baseline_prediction.item(),
        num_features=model.n_features_in_,
    )
    for t, (predictor,) in enumerate(model._predictors):  # one tree per round
        nodes = predictor.nodes
        if not _FIELDS.issubset(nodes.dtype.names) or nodes["is_categorical"].any():
            raise ValueError(f"nodes with the fields {nodes.dtype.names}")
        _Reader(trees, t, nodes[list(_FIELDS)]).read(0)
    return trees


class _Reader:
    """Writes the nodes of one tree into row t of the arrays, leaves from left to right."""

    def __init__(self, trees: Trees, t: int, nodes: NDArray[np.void]) -> None:
        self.trees, self.t = trees, t
        self.node = {name: nodes[name].tolist() for name in _FIELDS}
        self.num_leaves = self.num_inner = 0

    def read(self, i: int) -> None:
        """Read node i and all below it."""
        trees, node = self.trees, self.node
        if node["is_leaf"][i]:
            trees.value[self.t, self.num_leaves] = node["value"][i]
            self.num_leaves += 1
            return
        place = self.t, self.num_inner
        self.num_inner += 1
        trees.feature[place] = node["feature_idx"][i]
        trees.threshold[place] = node["num_threshold"][i]
        first = self.num_leaves
        self.read(node["left"][i])
        left = 2**self.num_leaves - 2**first  # its leaves
        trees.mask[place] = ALL_LEAVES - left
        self.read(node["right"][i])

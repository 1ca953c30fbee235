"""Peers that a user might choose instead of a GP: boosted trees that predict a Normal, with the same variance floor.

NGBoost boosts the mean and the log standard deviation of a Normal along the natural gradient of the log score. CatBoost
uses the plain gradient (`RMSEWithUncertainty`). LightGBM has no such loss, so two models are trained: one for the mean,
by squared error, and one for the log variance s, by the Gaussian negative log-likelihood (s + r²/exp s)/2 of 5-fold
out-of-fold residuals r, with the Fisher information 1/2 as its curvature. Since these residuals come from models that
saw fewer rows, the variance is multiplied by a factor, the mean of r²/v on the validation rows, if that helps there.
Validation NLL of the losses tried for the variance, all with that factor: this loss -3.210 on bike and .652 on protein,
LightGBM's own `gamma` loss of r² -3.174 and .630, squared error of log(r² + floor) -3.170 and .641. The first has the
lowest sum.

The number of rounds is chosen on the validation rows by the reported NLL, with the floor. For CatBoost this is done at
every tenth round up to the last, since it can stop early only by its own NLL, which has no floor; for LightGBM's mean
by squared error. Everything runs on one thread, gives the same numbers for the same seed, and writes or prints nothing.
"""

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dspp.errors import InputError, NumericalError
from dspp.predictive import NormalMixture

Array = NDArray[np.float64]
Moments = Callable[[Array], tuple[Array, Array]]  # the mean and the variance of each row

FOLDS = 5  # for the residuals from which LightGBM's variance is learned
VARIANCE_LEAVES = 31  # at most, per tree of LightGBM's variance
CATBOOST_STRIDE = 10  # rounds between validations of CatBoost
NGBOOST_ROWS = 50_000  # rows per tree of NGBoost: at most this many, or half of all rows
FOREIGN = {"noise_floor", "split_by"}  # settings of a run that do not concern the trees


@dataclass(frozen=True)
class Recipe:
    """Settings of boosting, and the module that does it."""

    module: str
    rounds: int  # at most
    rate: float
    leaves: int  # per tree, at most
    patience: int | None  # rounds without a better validation NLL before boosting stops; None: never


RECIPES: dict[str, Recipe] = {
    "NGBoost": Recipe("ngboost", 150, 0.1, 256, 30),
    "CatBoost": Recipe("catboost", 3000, 0.06, 64, None),
    "LightGBM": Recipe("lightgbm", 5000, 0.05, 63, 50),
}
PEERS: tuple[str, ...] = tuple(RECIPES)


@dataclass(frozen=True)
class Rows:
    """Standardised training rows, and validation rows for the number of rounds."""

    X: Array
    y: Array
    X_val: Array
    y_val: Array


@dataclass(frozen=True)
class Peer:
    """Fitted boosted trees."""

    details: dict[str, Any]  # rounds used and settings
    floor: float
    moments: Moments

    def predict(self, X: NDArray[Any]) -> NormalMixture:
        """Return one Normal per row; all of its variance is noise, since trees do not separate the two."""
        mean, var = self.moments(_copy(X))
        centre, noise = torch.from_numpy(mean), torch.from_numpy(np.maximum(var, self.floor))
        return NormalMixture(torch.zeros(1, dtype=torch.float64), centre[None], torch.zeros_like(centre)[None], noise)


def fit_peer(
    name: str,
    X: NDArray[Any],
    y: NDArray[Any],
    X_val: NDArray[Any],
    y_val: NDArray[Any],
    *,
    floor: float,
    seed: int,
    setting: Mapping[str, Any],
) -> Peer:
    """Fit one of `PEERS` to standardised rows of one output.

    Args:
        name: One of `PEERS`.
        X: Training rows (N, D).
        y: Their targets (N,).
        X_val: Validation rows, for the number of rounds.
        y_val: Their targets.
        floor: Lower bound of the variance, as for the noise variance of the GPs.
        seed: Seed of all random numbers.
        setting: Any of `rounds`, `rate`, `leaves` (or `depth`), in place of the defaults.

    Raises:
        InputError: There is no such peer or setting, its library is not installed, or the rows cannot be used.
        NumericalError: No round had a finite validation NLL.
    """
    if name not in FITTERS:
        raise InputError(f"no peer {name!r}; choose from: {', '.join(PEERS)}")
    if not (math.isfinite(floor) and floor > 0):
        raise InputError(f"floor: expected a variance > 0, such as 1e-4, got {floor!r}")
    recipe = _recipe(name, setting)
    rows = Rows(_copy(X), _copy(y), _copy(X_val), _copy(y_val))
    if rows.y.ndim != 1 or len(rows.y) < FOLDS:
        raise InputError(f"{name}: expected one output and at least {FOLDS} rows, got y of shape {rows.y.shape}")
    used, moments = FITTERS[name](_library(name, recipe.module), rows, recipe, floor, seed)
    return Peer({**used, "rate": recipe.rate, "leaves": recipe.leaves}, floor, moments)


def _library(name: str, module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as problem:
        raise InputError(f"{name} is not installed ({problem}); `make experiments` installs it") from None


def _recipe(name: str, setting: Mapping[str, Any]) -> Recipe:
    """Return the defaults, overridden by the given settings."""
    asked = {key: value for key, value in setting.items() if key not in FOREIGN}
    if "depth" in asked:
        asked["leaves"] = 2 ** int(asked.pop("depth"))
    kinds = {"rounds": int, "rate": float, "leaves": int}
    for unknown in sorted(asked.keys() - kinds.keys()):
        raise InputError(f"{name} has no setting {unknown!r}; choose from: rounds, rate, leaves")
    values = {**vars(RECIPES[name]), **{key: kinds[key](value) for key, value in asked.items()}}
    if values["rounds"] < 1 or not values["rate"] > 0 or values["leaves"] < 2:
        raise InputError(f"{name}: expected rounds >= 1, rate > 0 and leaves >= 2, got {asked}")
    return Recipe(**values)


def _copy(values: NDArray[Any]) -> Array:
    """Return a copy, since CatBoost makes its input arrays read-only."""
    return np.array(values, dtype=np.float64, order="C")


def _nll(mean: Array, var: Array, y: Array, floor: float) -> float:
    """Return the mean of -log N(y | mean, var) with the variance floored."""
    v = np.maximum(var, floor)
    return float(np.mean(0.5 * np.log(2 * np.pi * v) + 0.5 * np.square(y - mean) / v))


def _depth(leaves: int) -> int:
    return max(1, math.ceil(math.log2(leaves)))


def _fit_ngboost(library: Any, rows: Rows, recipe: Recipe, floor: float, seed: int) -> tuple[dict[str, Any], Moments]:
    from sklearn.tree import DecisionTreeRegressor

    tree = DecisionTreeRegressor(max_depth=_depth(recipe.leaves), min_samples_leaf=10, random_state=seed)
    model = library.NGBRegressor(
        Dist=library.distns.Normal,
        Score=library.scores.LogScore,
        Base=tree,
        natural_gradient=True,
        n_estimators=recipe.rounds,
        learning_rate=recipe.rate,
        minibatch_frac=min(0.5, NGBOOST_ROWS / len(rows.y)),
        verbose=False,
        random_state=seed,
    )
    with np.errstate(all="ignore"):  # its line search tries steps that overflow, and undoes them
        model.fit(
            rows.X,
            rows.y,
            X_val=rows.X_val,
            Y_val=rows.y_val,
            early_stopping_rounds=recipe.patience,
            val_loss_monitor=lambda normal, y: _nll(normal.loc, normal.var, y, floor),
        )
    if model.best_val_loss_itr is None:
        raise NumericalError("NGBoost: no round had a finite validation NLL; lower the rate")
    rounds = int(model.best_val_loss_itr) + 1

    def moments(X: Array) -> tuple[Array, Array]:
        normal = model.pred_dist(X, max_iter=rounds)
        return normal.loc, normal.var

    return {"rounds": rounds}, moments


def _fit_catboost(library: Any, rows: Rows, recipe: Recipe, floor: float, seed: int) -> tuple[dict[str, Any], Moments]:
    model = library.CatBoostRegressor(
        loss_function="RMSEWithUncertainty",
        iterations=recipe.rounds,
        learning_rate=recipe.rate,
        depth=_depth(recipe.leaves),
        thread_count=1,
        random_seed=seed,
        allow_writing_files=False,
        verbose=False,
    )
    model.fit(rows.X, rows.y)
    kind = "RMSEWithUncertainty"
    stages = model.staged_predict(rows.X_val, prediction_type=kind, eval_period=CATBOOST_STRIDE, thread_count=1)
    scores = [_nll(stage[:, 0], stage[:, 1], rows.y_val, floor) for stage in stages]
    rounds = min(CATBOOST_STRIDE * (int(np.nanargmin(scores)) + 1), int(model.tree_count_))

    def moments(X: Array) -> tuple[Array, Array]:
        both = model.predict(X, prediction_type=kind, ntree_end=rounds, thread_count=1)
        return both[:, 0].copy(), both[:, 1].copy()

    return {"rounds": rounds}, moments


def _fit_lightgbm(library: Any, rows: Rows, recipe: Recipe, floor: float, seed: int) -> tuple[dict[str, Any], Moments]:
    boost = _LightGBM(library, rows, recipe, seed)
    mean = boost(rows.X, rows.y, {"objective": "l2"}, rows.y_val)
    rounds = int(mean.best_iteration)
    residual = boost.out_of_fold_residuals(rounds)
    residual_val = rows.y_val - mean.predict(rows.X_val)
    start = math.log(float(np.mean(np.square(residual))) + floor)

    def gradient(s: Array, _: Any) -> tuple[Array, Array]:
        """Return the gradient of (s + r²/exp s)/2 and its expected curvature."""
        return 0.5 - 0.5 * np.square(residual) * np.exp(-start - s), np.full_like(s, 0.5)

    def score(s: Array, _: Any) -> tuple[str, float, bool]:
        return "nll", _nll(np.zeros_like(s), np.exp(start + s), residual_val, floor), False

    loss = {"objective": gradient, "metric": "None", "num_leaves": min(recipe.leaves, VARIANCE_LEAVES)}
    log_var = boost(rows.X, residual, loss, residual_val, feval=score)
    factor = _factor(np.exp(start + log_var.predict(rows.X_val)), residual_val, floor)

    def moments(X: Array) -> tuple[Array, Array]:
        return mean.predict(X), factor * np.exp(start + log_var.predict(X))

    return {"rounds": rounds, "variance_rounds": int(log_var.best_iteration), "variance_factor": factor}, moments


class _LightGBM:
    """Boosts with LightGBM, with the same settings each time."""

    def __init__(self, library: Any, rows: Rows, recipe: Recipe, seed: int) -> None:
        self.library, self.rows, self.recipe, self.seed = library, rows, recipe, seed
        self.params = {
            "num_leaves": recipe.leaves,
            "learning_rate": recipe.rate,
            "bagging_fraction": 0.8,
            "bagging_freq": 1,
            "feature_fraction": 0.9,
            "seed": seed,
            "deterministic": True,
            "force_row_wise": True,  # otherwise it times both layouts, and the faster may differ between runs
            "num_threads": 1,
            "verbose": -1,
        }

    def __call__(self, X: Array, y: Array, loss: dict[str, Any], y_val: Array, **options: Any) -> Any:
        """Boost until the validation score stops improving."""
        train = self.library.Dataset(X, y, params={"verbose": -1})
        options["valid_sets"] = [self.library.Dataset(self.rows.X_val, y_val, reference=train)]
        options["callbacks"] = [self.library.early_stopping(self.recipe.patience, verbose=False)]
        return self.library.train({**self.params, **loss}, train, self.recipe.rounds, **options)

    def out_of_fold_residuals(self, rounds: int) -> Array:
        """Return the residual of each training row, from a model of the mean that did not see it."""
        X, y = self.rows.X, self.rows.y
        fold = np.random.default_rng(self.seed).permutation(len(y)) % FOLDS
        residual = np.empty_like(y)
        for out in (fold == k for k in range(FOLDS)):
            train = self.library.Dataset(X[~out], y[~out], params={"verbose": -1})
            model = self.library.train({**self.params, "objective": "l2"}, train, rounds)
            residual[out] = y[out] - model.predict(X[out])
        return residual


def _factor(var: Array, residual: Array, floor: float) -> float:
    """Return the factor for the variance: the best one without a floor, if it also helps with the floor."""
    best, zero = float(np.mean(np.square(residual) / np.maximum(var, floor))), np.zeros_like(residual)
    return best if _nll(zero, best * var, residual, floor) < _nll(zero, var, residual, floor) else 1.0


FITTERS: dict[str, Callable[[Any, Rows, Recipe, float, int], tuple[dict[str, Any], Moments]]] = {
    "NGBoost": _fit_ngboost,
    "CatBoost": _fit_catboost,
    "LightGBM": _fit_lightgbm,
}

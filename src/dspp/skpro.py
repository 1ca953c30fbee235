"""dspp in skpro: a regressor that wraps any estimator, and a distribution that wraps a predictive distribution.

from dspp.skpro import DSPPProbaRegressor

model = DSPPProbaRegressor().fit(X, y)
model.predict_proba(X_new).cdf(y_new)   # data frames, as everywhere in skpro

Densities, cdf, quantiles, moments and energy are those of dspp, computed exactly. It needs the extra `skpro`, which
`import dspp` does not import.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import clone

from dspp.errors import InputError
from dspp.estimators import DSPPRegressor, PPGPRRegressor
from dspp.extras import require
from dspp.predictive import (
    Distribution,
    LogNormalMixture,
    MultivariateNormalMixture,
    NormalMixture,
    RealPredictive,
    StudentTMixture,
    unwrap,
)

require("skpro", "dspp.skpro")

import pandas as pd  # noqa: E402 - after the check
from skpro.distributions.base import BaseDistribution  # noqa: E402
from skpro.regression.base import BaseProbaRegressor  # noqa: E402

BLOCK = 32  # rows whose quantiles are computed at once, each at the probabilities of all of them

Values = Float[np.ndarray, "N T"]


class DSPPDistribution(BaseDistribution):  # type: ignore[misc]
    """A predictive distribution of dspp as a distribution of skpro, with the same rows and a column per output.

    pdf, log_pdf, cdf, ppf, mean, var and energy are those of each output alone; samples of several outputs are joint.

    Args:
        distribution: What `predict_dist` of an estimator returns.
        index: The labels of the rows; None: 0, 1, 2, … Without `index` and `columns`, a distribution of one row and one
            output is a scalar.
        columns: The names of the outputs; None: 0, 1, 2, …

    Raises:
        InputError: There are more or fewer labels than rows or outputs.

    Examples:
        >>> import numpy as np
        >>> from dspp import PPGPRRegressor
        >>> from dspp.skpro import DSPPDistribution
        >>> X = np.linspace(-1, 1, 30)[:, None]
        >>> model = PPGPRRegressor(inducing=5, epochs=2, restarts=1, progress=False).fit(X, X[:, 0])
        >>> DSPPDistribution(model.predict_dist(X[:3]), columns=["price"]).cdf(100.0)
           price
        0    1.0
        1    1.0
        2    1.0
    """

    _tags: ClassVar[dict[str, Any]] = {
        "capabilities:approx": ["pdfnorm"],
        "capabilities:exact": ["mean", "var", "energy", "pdf", "log_pdf", "cdf", "ppf"],
        "distr:measuretype": "continuous",
        "distr:paramtype": "general",
    }

    def __init__(self, distribution: Any, index: Any = None, columns: Any = None) -> None:
        self.distribution = distribution
        self._inner = unwrap(distribution)
        N, T = len(self._inner), self._inner.num_outputs
        if index is not None or columns is not None or (N, T) != (1, 1):
            index = range(N) if index is None else index
            columns = range(T) if columns is None else columns
            if (len(index), len(columns)) != (N, T):
                raise InputError(f"expected {N} labels of rows and {T} of columns, got {len(index)} and {len(columns)}")
        super().__init__(index=index, columns=columns)

    # ---------------------------------------------------------------- what skpro asks for

    def _mean(self) -> Any:
        return self._each(lambda one: one.mean)

    def _var(self) -> Any:
        return self._each(lambda one: one.std.square())

    def _log_pdf(self, x: Values) -> Any:
        return self._each(lambda one, column: one.log_prob(column), x)

    def _pdf(self, x: Values) -> Any:
        return self._each(lambda one, column: one.pdf(column), x)

    def _cdf(self, x: Values) -> Any:
        return self._each(lambda one, column: one.cdf(column), x)

    def _ppf(self, p: Values) -> Any:
        return self._each(_quantiles_by_row, p)

    def _energy_x(self, x: Values) -> Any:
        """Return E|Y − x|, summed over the outputs."""
        return self._sum(self._each(lambda one, column: one.mean_distance(column), x))

    def _energy_self(self) -> Any:
        """Return E|Y − Y'|, summed over the outputs, from CRPS(y) = E|Y − y| − ½ E|Y − Y'| at y = E[Y]."""
        return self._sum(self._each(lambda one: 2.0 * (one.mean_distance(one.mean) - one.crps(one.mean))))

    def _sample(self, n_samples: int | None = None) -> Any:
        seed = np.random.randint(2**31 - 1)  # noqa: NPY002 - so that np.random.seed governs it, as all of skpro
        generator = torch.Generator().manual_seed(seed)
        num = 1 if n_samples is None else n_samples
        draws = self._inner.sample(num, generator).reshape(num, len(self._inner), -1).numpy()  # (num, N, T)
        if self.ndim == 0:
            return float(draws[0, 0, 0]) if n_samples is None else pd.DataFrame(draws[:, 0])
        frames = [pd.DataFrame(draw, index=self.index, columns=self.columns) for draw in draws]
        return frames[0] if n_samples is None else pd.concat(frames, keys=range(num))

    def _get_indexer_like_pandas(self, index: pd.Index, keys: Any) -> Int[np.ndarray, " n"]:
        """Return the positions of labels; skpro itself takes the last row for a label that does not exist."""
        positions: Int[np.ndarray, " n"] = np.asarray(super()._get_indexer_like_pandas(index, keys))
        if (positions < 0).any():
            raise KeyError(f"expected labels of this distribution, got others among {list(keys)!r:.100}")
        return positions

    def _iloc(self, rowidx: Any = None, colidx: Any = None) -> Self:
        if np.isscalar(rowidx) and np.isscalar(colidx):
            return self._iat(rowidx, colidx)
        rows, columns = (_positions(index, n) for index, n in zip((rowidx, colidx), self.shape, strict=True))
        return type(self)(self._take(rows, columns), self.index[rows], self.columns[columns])

    def _iat(self, rowidx: Any = None, colidx: Any = None) -> Self:
        if rowidx is None or colidx is None:
            raise InputError(f"iat: expected a row and a column, got {rowidx!r} and {colidx!r}")
        return type(self)(self._take(*(_positions(i, n) for i, n in zip((rowidx, colidx), self.shape, strict=True))))

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Return parameters for skpro's conformance suite: each kind of distribution, and a scalar."""
        weights = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
        mean = torch.tensor([[0.0, 1.0, -0.5], [2.0, 1.5, 0.5]], dtype=torch.float64)
        var, noise = torch.full_like(mean, 0.5), torch.tensor(0.1, dtype=torch.float64)
        normal = NormalMixture(weights, mean, var, noise)
        cov = torch.tensor([[0.5, 0.3], [0.3, 0.8]], dtype=torch.float64).expand(2, 3, 2, 2)
        both = MultivariateNormalMixture(weights, torch.stack([mean, -mean], dim=-1), cov, noise.expand(2))
        student = StudentTMixture(weights, mean, noise, torch.tensor(5.0, dtype=torch.float64))
        return [
            {"distribution": Distribution(normal), "index": pd.Index([1, 2, 5]), "columns": pd.Index(["price"])},
            {"distribution": Distribution(both), "index": pd.Index([1, 2, 5]), "columns": pd.Index(["a", "b"])},
            {"distribution": Distribution(LogNormalMixture(normal))},
            {"distribution": Distribution(student)},
            {"distribution": Distribution(normal.rows([1]))},
        ]

    # ---------------------------------------------------------------- helpers

    def _each(self, compute: Callable[..., Any], values: Any = None) -> Any:
        """Call a function of each output and, if given, of its column of values; return (N, T), or a number."""
        outputs = self._inner.outputs()
        if values is None:
            columns = [compute(one) for one in outputs]
        else:
            given = torch.from_numpy(np.array(values, dtype=np.float64).reshape(len(self._inner), len(outputs)))
            columns = [compute(one, given[:, t]) for t, one in enumerate(outputs)]
        result = torch.stack([torch.as_tensor(column) for column in columns], dim=1).numpy()
        return result if self.ndim else float(result[0, 0])

    def _sum(self, values: Any) -> Any:
        return values.sum(axis=1, keepdims=True) if self.ndim else values

    def _take(self, rows: Int[np.ndarray, " n"], columns: Int[np.ndarray, " t"]) -> Distribution:
        """Return the joint distribution of some rows and outputs."""
        taken, outputs = self._inner.rows(rows.tolist()), columns.tolist()
        if outputs == list(range(taken.num_outputs)):
            return Distribution(taken)
        if len(outputs) == 1:
            return Distribution(taken.outputs()[outputs[0]])
        return Distribution(taken.select(outputs))


class DSPPProbaRegressor(BaseProbaRegressor):  # type: ignore[misc]
    """Any estimator of dspp as a probabilistic regressor of skpro.

    Several columns in y become a model of several outputs. Intervals are those of `predict_interval`: recalibrated if
    the estimator has `conformal=True`.

    Args:
        estimator: The estimator, of which a clone is fitted; None: `DSPPRegressor()`. In a search, its parameters are
            `estimator__beta` and so on.

    Attributes:
        estimator_: The fitted estimator.

    Examples:
        >>> import pandas as pd
        >>> from dspp import PPGPRRegressor
        >>> from dspp.skpro import DSPPProbaRegressor
        >>> X = pd.DataFrame({"size": range(30)})
        >>> estimator = PPGPRRegressor(inducing=5, epochs=2, restarts=1, progress=False)
        >>> model = DSPPProbaRegressor(estimator).fit(X, X.rename(columns={"size": "price"}))
        >>> model.predict_proba(X[:3]).shape
        (3, 1)
    """

    _tags: ClassVar[dict[str, Any]] = {
        "capability:multioutput": True,
        "capability:missing": True,
        "X_inner_mtype": "pd_DataFrame_Table",
        "y_inner_mtype": "pd_DataFrame_Table",
    }

    def __init__(self, estimator: Any = None) -> None:
        self.estimator = estimator
        super().__init__()

    def _fit(self, X: pd.DataFrame, y: pd.DataFrame) -> Self:
        self._targets = y.columns
        self.estimator_ = DSPPRegressor() if self.estimator is None else clone(self.estimator)
        self.estimator_.fit(_with_text_names(X), _with_text_names(y))
        return self

    def _predict_proba(self, X: pd.DataFrame) -> DSPPDistribution:
        return DSPPDistribution(self.estimator_.predict_dist(_with_text_names(X)), X.index, self._targets)

    def _predict_quantiles(self, X: pd.DataFrame, alpha: Sequence[float]) -> pd.DataFrame:
        columns = pd.MultiIndex.from_product([self._targets, alpha])
        quantiles = self.estimator_.predict_quantiles(_with_text_names(X), alpha)
        return pd.DataFrame(quantiles.to_numpy(), index=X.index, columns=columns)

    def _predict_interval(self, X: pd.DataFrame, coverage: Sequence[float]) -> pd.DataFrame:
        rows, size = _with_text_names(X), (len(X), len(self._targets), 2)
        ends = [self.estimator_.predict_interval(rows, one).to_numpy().reshape(size) for one in coverage]
        columns = pd.MultiIndex.from_product([self._targets, coverage, ["lower", "upper"]])
        return pd.DataFrame(np.stack(ends, axis=2).reshape(len(X), -1), index=X.index, columns=columns)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> list[dict[str, Any]]:
        """Return parameters for skpro's conformance suite: models that train in a moment."""
        quick: dict[str, Any] = {"members": 1, "inducing": 5, "epochs": 2, "restarts": 1, "progress": False}
        return [{"estimator": PPGPRRegressor(**quick)}, {"estimator": DSPPRegressor(**quick, sites=3, width=2)}]


def _with_text_names(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the frame with names as the estimators take them; skpro allows any labels."""
    return frame.set_axis([str(label) for label in frame.columns], axis=1)


def _quantiles_by_row(one: RealPredictive, p: Float[torch.Tensor, " N"]) -> Float[torch.Tensor, " N"]:
    """Return the quantile of each row at its own probability: the ends of the support at 0 and 1."""
    inside = (p > 0.0) & (p < 1.0)
    lower, upper = one.support
    ends = torch.where(p == 0.0, lower, torch.where(p == 1.0, upper, np.nan)).double()
    safe = torch.where(inside, p, 0.5)
    if bool((safe == safe[0]).all()):
        found = one.quantile(safe[0])
    else:
        blocks = torch.arange(len(p)).split(BLOCK)
        found = torch.cat([one.rows(rows).quantile(safe[rows]).diagonal() for rows in blocks])
    return torch.where(inside, found, ends)


def _positions(index: Any, size: int) -> Int[np.ndarray, " n"]:
    """Return the numbers of selected rows or columns; None selects all."""
    every = np.arange(size)
    return every if index is None else np.atleast_1d(every[index if isinstance(index, slice) else np.asarray(index)])

"""The distribution that users get: the methods of a `Predictive`, with NumPy arrays instead of tensors."""

import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from dspp.predictive.base import Predictive
from dspp.predictive.normal import NormalMixture


class Distribution:
    """The predictive distribution of N rows, in the units of the target.

    It has the attributes and methods of the distribution it wraps, such as `NormalMixture`: mean, median, std, weights,
    component_mean, pdf, log_prob, cdf, quantile, interval, crps, sample, outputs, plot_density and others. They return
    NumPy arrays and take arrays, columns of data frames, lists or, for all rows at once, a number. `len` is N, and
    indexing selects rows: `distribution[0]`, a slice, a list of row numbers or a mask. `sample(num, random_state=0)` is
    reproducible.

    Attributes:
        torch: The distribution itself, whose methods take and return tensors.

    Example:
        >>> import numpy as np
        >>> from dspp import PPGPRRegressor
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> distribution = PPGPRRegressor(epochs=2, inducing=8).fit(X, X[:, 0]).predict_dist(X[:5])
        >>> len(distribution), distribution.mean.shape, distribution.quantile([0.1, 0.5, 0.9]).shape
        (5, (5,), (3, 5))
        >>> float(distribution[0].cdf(100.0)[0])  # the probability that the first row is below 100
        1.0
    """

    torch: Predictive

    def __init__(self, torch: Predictive) -> None:
        self.torch = torch

    def __repr__(self) -> str:
        return repr(self.torch)

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the first rows with their densities."""
        return self.torch.to_html()

    def __len__(self) -> int:
        return len(self.torch)

    def __getitem__(self, index: Any) -> "Distribution":
        """Return the distribution of one row, or of some: a slice, a list of row numbers or a mask."""
        try:
            picked = np.arange(len(self))[index if isinstance(index, slice) else np.asarray(index)]
        except IndexError:
            raise IndexError(f"expected rows of {len(self)}, or a mask of as many values, got {index!r:.60}") from None
        return Distribution(self.torch.rows(np.atleast_1d(picked).tolist()))

    def __iter__(self) -> Iterator["Distribution"]:
        return (self[row] for row in range(len(self)))

    def __dir__(self) -> list[str]:
        inner = [name for name in dir(self.torch) if not name.startswith("_")]
        return sorted({*super().__dir__(), *inner})

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "torch":  # of copies, which do not have it yet
            raise AttributeError(name)
        try:
            value = getattr(self.torch, name)
        except AttributeError:
            several = hasattr(NormalMixture, name) and self.torch.num_outputs > 1
            hint = f"; each of its outputs does: .outputs()[0].{name}" if several else ""
            raise AttributeError(f"{type(self.torch).__name__} has no {name!r}{hint}") from None
        if isinstance(value, Tensor):
            return _to_arrays(value).copy()  # the distribution's own numbers stay as they are
        return self._method(value) if inspect.ismethod(value) else _to_arrays(value)

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of the inner distribution with arrays in and out."""
        signature = inspect.signature(method)

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if "generator" in signature.parameters and "random_state" in kwargs:
                kwargs["generator"] = kwargs.pop("random_state")
            given = signature.bind(*args, **kwargs).arguments
            if "generator" in given:
                given["generator"] = _to_generator(given["generator"])
            if "y" in given and not method.__name__.startswith("plot"):
                given["y"] = self._for_all_rows(given["y"])
            return _to_arrays(method(**{name: _to_inner(value) for name, value in given.items()}))

        return call

    def _for_all_rows(self, y: Any) -> Any:
        """Return a single number once per row, and anything else unchanged."""
        if self.torch.num_outputs > 1 or isinstance(y, Tensor) or np.ndim(y) > 0:
            return y
        return np.full(len(self), y, dtype=np.float64)


def unwrap(distribution: Any) -> Any:
    """Return the inner distribution of a `Distribution`, and any other unchanged."""
    return distribution.torch if isinstance(distribution, Distribution) else distribution


def _to_inner(value: Any) -> Any:
    if isinstance(value, list | tuple) and any(isinstance(part, Distribution) for part in value):
        return [unwrap(part) for part in value]
    return unwrap(value)


def _to_arrays(value: Any) -> Any:
    """Return tensors as arrays and distributions as `Distribution`, also in lists and tuples."""
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, list | tuple):
        return type(value)(map(_to_arrays, value))
    return Distribution(value) if hasattr(value, "rows") and hasattr(value, "outputs") else value


def _to_generator(random_state: Any) -> Generator | None:
    """Return a generator for a seed, a generator of NumPy or torch, or None."""
    if random_state is None or isinstance(random_state, Generator):
        return random_state
    if isinstance(random_state, np.random.Generator):
        random_state = random_state.integers(2**31)
    elif isinstance(random_state, np.random.RandomState):
        random_state = random_state.randint(2**31 - 1)
    return torch.Generator().manual_seed(int(random_state))

"""The methods by name. Each is fitted to the rows of a `Split` and returns a function that predicts."""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from benchmarks.tables import exact_gp, mlps
from benchmarks.tables.inputs import Inputs, hold_out
from benchmarks.tables.sets import Split
from dspp.errors import InputError
from dspp.estimators import DSPPRegressor
from dspp.gp.threads import use_threads
from dspp.predictive import NormalMixture, Predictive
from experiments.peers import fit_peer

FLOOR = 1e-4  # of the noise variance, in standardised units
PEERS = {"lightgbm": "LightGBM", "catboost": "CatBoost", "ngboost": "NGBoost"}
LIMITS = {"exact-gp": exact_gp.MAX_ROWS}  # of the number of training rows


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted method.

    Attributes:
        predict: Returns the predictive distributions of rows.
        standardised: Whether the distributions are in standardised units instead of those of the target.
        details: What else is worth recording.
    """

    predict: Callable[[pd.DataFrame], Predictive]
    standardised: bool = True
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A method, and the name under which its results are stored."""

    name: str
    base: str  # of `METHODS`
    settings: Mapping[str, Any] = field(default_factory=dict)  # of DSPPRegressor

    def fit(self, rows: Split, seed: int) -> Fit:
        """Fit the method to the training rows."""
        if self.is_ours:
            return _fit_dspp(rows, self.settings)
        return METHODS[self.base](rows, seed)

    @property
    def is_ours(self) -> bool:
        """Whether it is a model of this library."""
        return self.base.startswith("dspp")

    def check(self, rows: Split) -> None:
        """Raise `InputError` if the table is too large for the method."""
        most = LIMITS.get(self.base, len(rows.y))
        if len(rows.y) > most:
            raise InputError(f"{self.base}: expected at most {most:,} training rows, got {len(rows.y):,}")

    def versions(self) -> dict[str, str]:
        """Return the version of the library behind a peer."""
        return {self.base: metadata.version(self.base)} if self.base in PEERS else {}


def method(name: str, settings: Mapping[str, Any] | None = None, tag: str | None = None) -> Method:
    """Return a method by name; with settings of `DSPPRegressor` it is a variant of `dspp` with a name of its own."""
    if name == "dspp-members-1":
        known = "members" in inspect.signature(DSPPRegressor).parameters
        return Method(name, name, {"members": 1} if known else {})
    if name != "dspp" or not settings:
        return Method(name, name)
    given = tag or ",".join(f"{key}={value}" for key, value in settings.items())
    return Method(f"dspp[{given}]", "dspp", settings)


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch and BLAS on one thread."""
    with use_threads(1), threadpool_limits(1):
        yield


def _fit_dspp(rows: Split, settings: Mapping[str, Any]) -> Fit:
    model = DSPPRegressor(**settings).fit(rows.X, rows.y)
    increases = sum(member.model.jitter_increases for member in model.fitted_.members)
    return Fit(model.predict_dist, standardised=False, details={"jitter_climbs": increases})


def _fit_peer(name: str) -> Callable[[Split, int], Fit]:
    def fit(rows: Split, seed: int) -> Fit:
        inputs = Inputs.learn(rows, ordinal=True)
        X, y = inputs.numbers(rows.X), inputs.y_scale.transform(rows.y)
        train, held = hold_out(len(y), seed)
        peer = fit_peer(name, X[train], y[train], X[held], y[held], floor=FLOOR, seed=seed, setting={})
        return Fit(lambda frame: peer.predict(inputs.numbers(frame)), details=peer.details)

    return fit


def _fit_plain(learn: Callable[..., tuple[Callable[[np.ndarray], NormalMixture], dict[str, Any]]]) -> Any:
    def fit(rows: Split, seed: int) -> Fit:
        inputs = Inputs.learn(rows, ordinal=False)
        predict, details = learn(inputs.numbers(rows.X), inputs.y_scale.transform(rows.y), floor=FLOOR, seed=seed)
        return Fit(lambda frame: predict(inputs.numbers(frame)), details=details)

    return fit


METHODS: dict[str, Callable[[Split, int], Fit]] = {
    "dspp": lambda rows, _: _fit_dspp(rows, {}),
    "dspp-members-1": lambda rows, _: _fit_dspp(rows, {}),
    **{name: _fit_peer(library) for name, library in PEERS.items()},
    "mlps": _fit_plain(mlps.fit),
    "exact-gp": _fit_plain(exact_gp.fit),
}

"""The result of a search."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from dspp.estimators.regressor import Regressor

STATES = ("finished", "pruned", "failed")  # their order in a table
TRIALS = 30


@dataclass(frozen=True)
class TrialRecord:
    """One trial.

    Example:
        >>> from dspp.tuning import TrialRecord
        >>> trial = TrialRecord(0, {"model": "dspp", "beta": 0.2}, 1.25, "finished", epochs=40, seconds=3.1)
        >>> trial.params["beta"], trial.val_nll
        (0.2, 1.25)
    """

    number: int  # starting at 0
    params: dict[str, Any]  # the searched parameters, including "model"
    val_nll: float | None  # of its best epoch, in the units of y; None if it failed
    state: str  # finished, pruned (stopped early) or failed (could not be trained)
    epochs: int  # trained, without those of restarts
    seconds: float
    reason: str = ""  # why it failed


@dataclass(frozen=True, eq=False)
class TuneResult:
    """The best estimator, and all trials.

    Example:
        >>> import numpy as np
        >>> from dspp import tune
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> base = {"inducing": 8, "epochs": 2}
        >>> result = tune(X, X[:, 0], models=["ppgpr"], space={"beta": [0.05, 0.2]}, base=base)
        >>> sorted(trial.params["beta"] for trial in result.trials)
        [0.05, 0.2]
        >>> result.to_table()[0]["val_nll"] == result.best_nll
        True
    """

    best_estimator: Regressor  # as trained by its trial, not refitted
    best_params: dict[str, Any]  # the searched parameters, including "model"
    best_nll: float  # on the validation rows, in the units of y
    trials: tuple[TrialRecord, ...]  # in the order in which they started

    def to_table(self) -> list[dict[str, Any]]:
        """Return one row per trial: finished ones by NLL, then pruned ones, then failures.

        Parameters that do not apply to a trial (the width of a single layer) are None.
        """
        names = list(dict.fromkeys(name for trial in self.trials for name in trial.params))
        rows = []
        for trial in sorted(self.trials, key=_rank):
            fields = asdict(trial)
            params = fields.pop("params")
            rows.append(fields | {name: params.get(name) for name in names})
        return rows


def _rank(trial: TrialRecord) -> tuple[int, float, int]:
    return STATES.index(trial.state), math.inf if trial.val_nll is None else trial.val_nll, trial.number

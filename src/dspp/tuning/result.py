"""What a search leaves behind."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from dspp.estimators.regressor import Regressor

STATES = ("finished", "pruned", "failed")  # in this order in a table


@dataclass(frozen=True)
class TrialRecord:
    """One setting that was tried."""

    number: int  # 0 is the first
    params: dict[str, Any]  # what was searched, "model" included
    val_nll: float | None  # best of its epochs, in the units of y; None: it failed
    state: str  # finished; pruned: ended early, as others did better; failed: it could not be trained
    epochs: int  # trained, trial starts left out
    seconds: float
    reason: str = ""  # why it failed


@dataclass(frozen=True, eq=False)
class TuneResult:
    """The best setting, fitted, and every trial."""

    best_estimator: Regressor  # as its trial trained it; not fitted again
    best_params: dict[str, Any]  # what was searched, "model" included
    best_nll: float  # on the validation rows, in the units of y
    trials: tuple[TrialRecord, ...]  # in the order in which they were begun

    def to_table(self) -> list[dict[str, Any]]:
        """A row for each trial, the best first: finished ones by NLL, then those that were ended early, then failures.

        Parameters that a trial did not have (the width of a single layer) are None.
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

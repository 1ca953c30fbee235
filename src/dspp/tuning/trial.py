"""One trial: train a setting, and stop early if other trials were better at the same point.

It works on a copy of the earlier trials, and the search records what it returns. So it does not matter in which process
it runs, and the journal has a single writer.
"""

import contextlib
import importlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import optuna
from optuna.trial import FrozenTrial

from dspp.engines import is_stopped, report, waited
from dspp.errors import InputError, NumericalError, TrainingDiverged
from dspp.fitted import Fitted
from dspp.fitting import train
from dspp.history import Epoch
from dspp.prepare import Prepared
from dspp.tuning.space import Space
from dspp.tuning.study import QUARTERS, make_pruner, report_step, silence_optuna

MIN_SECONDS = 1e-3  # of training


@dataclass(frozen=True)
class Order:
    """A trial to run: its setting, and the state of the search when it was drawn."""

    params: Mapping[str, Any]
    seconds: float | None  # for training; None: no limit
    seconds_left: float  # of the search; inf: no limit
    best_nll: float  # so far; inf: no trial has finished
    others: Sequence[FrozenTrial]  # completed trials

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.params.items())


@dataclass(frozen=True)
class Outcome:
    """What became of a trial."""

    state: str  # finished, pruned, failed
    notes: Mapping[str, Any]  # for the study
    value: float | None = None  # validation NLL in the units of y, of a trial that finished
    by_quarter: Mapping[int, float] = field(default_factory=dict)  # best NLL at a quarter, half, ... of the training
    overhead: float = 0.0  # seconds spent outside of training
    fitted: Fitted | None = None  # also None if another trial is known to be better

    @classmethod
    def failed(cls, reason: str) -> "Outcome":
        """Return the outcome of a trial that failed before its first epoch."""
        notes = {"outcome": "failed", "epochs": 0, "seconds": 0.0, "time_budget": None, "reason": reason}
        return cls("failed", notes)


class Course:
    """Called after each epoch of a trial: reports how far it is, and prunes it if others were better by then."""

    def __init__(self, trial: optuna.Trial, seconds: float | None, may_prune: bool) -> None:
        self._trial, self._may_prune, self.seconds = trial, may_prune, seconds
        self.planned = 1  # epochs
        self.epochs, self.best = 0, math.inf  # a fit keeps the best epoch
        self.by_quarter: dict[int, float] = {}
        self._begin = time.perf_counter()

    @property
    def spent(self) -> float:
        """Seconds since the trial began."""
        return time.perf_counter() - self._begin

    def __call__(self, epoch: Epoch) -> None:
        """Record an epoch."""
        assert epoch.val_nll is not None
        self.epochs, self.best = epoch.number, min(self.best, epoch.val_nll)
        share = max(epoch.number / self.planned, self.spent / self.seconds if self.seconds else 0.0)
        report(min(share, 1.0))
        quarter = int(QUARTERS * share)
        if quarter > max(self.by_quarter, default=0) and share < 1:  # a completed training is not pruned
            self.by_quarter[quarter] = self.best
            if report_step(self._trial, quarter, self.best) and self._may_prune:
                raise optuna.TrialPruned

    def outcome(self, state: str, *, value: float | None = None, **more: Any) -> Outcome:
        """Return the outcome with the statistics so far."""
        notes = {"outcome": state, "epochs": self.epochs, "seconds": self.spent, "time_budget": self.seconds}
        return Outcome(state, more | notes, value, self.by_quarter)


def run_trial(order: Order, prepared: Prepared, space: Space) -> Outcome:
    """Train a setting and score it on the validation rows."""
    for module in space.modules:
        with contextlib.suppress(ImportError):  # the trial then reports the missing part
            importlib.import_module(module)
    left = order.seconds_left - waited()  # may be short if the trial is retried after losing its worker
    if left <= 0 and math.isfinite(order.best_nll):  # without a model so far, train one however short the time
        return Outcome.failed("the time budget was exhausted before a worker could train it")
    seconds = None if order.seconds is None else min(order.seconds, max(left, MIN_SECONDS))
    with silence_optuna():
        study = optuna.create_study(pruner=make_pruner())
        study.add_trials(order.others)
        return _run(order, prepared, space, Course(study.ask(), seconds, math.isfinite(order.best_nll)))


def _run(order: Order, prepared: Prepared, space: Space, course: Course) -> Outcome:
    held_out, target = prepared.validation_table, prepared.outcome
    # The number of outputs, or less where some are missing.
    observed_per_row = float(np.average(target.observed(held_out.targets).sum(axis=1), weights=held_out.weights))
    try:
        settings = space.settings(order.params, course.seconds)
        course.planned = settings.train_config(prepared.num_rows).epochs
        fitted, _ = train(prepared, settings, on_epoch=course, should_stop=is_stopped)
    except optuna.TrialPruned:
        return course.outcome("pruned", standardised=course.best / observed_per_row)
    except (InputError, NumericalError, TrainingDiverged) as problem:  # of this setting: the data was checked before
        return course.outcome("failed", reason=str(problem))
    value = fitted.metrics[target.tunes]
    if not math.isfinite(value):
        return course.outcome("failed", reason=f"the validation NLL is {value}")
    overhead = course.spent - fitted.seconds
    # `standardised` is like `value`, in other units.
    outcome = course.outcome("finished", value=value, standardised=course.best / observed_per_row)
    if value > order.best_nll:
        return replace(outcome, overhead=overhead)
    fitted = replace(fitted, params=space.settings(order.params).params())  # without the time budget of the search
    return replace(outcome, overhead=overhead, fitted=fitted)

"""One trial: train a setting, and stop early if other trials were better at the same point.

A trial runs either in the process of the search, on its study, or in a worker, on a copy of the earlier trials; the
search then records what the worker reports, so that the journal has a single writer.
"""

import contextlib
import importlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import optuna
import torch
from optuna.trial import FrozenTrial

from dspp.engines import is_stopped, waited
from dspp.errors import InputError, NumericalError, TrainingDiverged
from dspp.fitted import Fitted
from dspp.fitting import train
from dspp.history import Epoch
from dspp.prepare import Prepared
from dspp.tuning.space import Space
from dspp.tuning.study import QUARTERS, make_pruner, silence_optuna

LEAST_SECONDS = 1e-3  # minimum training time of a trial


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial."""

    state: str  # finished, pruned, failed
    value: float | None = None  # validation NLL in the units of y, of a trial that finished
    notes: Mapping[str, Any] = field(default_factory=dict)  # user attributes for the study
    reports: Mapping[int, float] = field(default_factory=dict)  # best NLL by quarter of the training
    overhead: float = 0.0  # seconds spent outside of training
    fitted: Fitted | None = None  # also None if another trial is known to be better


class EpochMonitor:
    """Called after each epoch of a trial: records and shows progress, and prunes the trial if others were better."""

    def __init__(
        self, trial: optuna.Trial, allowed: float | None, may_prune: bool, show: Callable[[float], None] | None = None
    ) -> None:
        self._trial, self.allowed, self._may_prune, self._show = trial, allowed, may_prune, show
        self.planned = 1  # epochs
        self.epochs, self.best = 0, math.inf
        self.reports: dict[int, float] = {}
        self._begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Seconds since the trial started."""
        return time.perf_counter() - self._begin

    def __call__(self, epoch: Epoch) -> None:
        """Record an epoch; the best NLL so far counts, as a fit keeps the best epoch."""
        assert epoch.val_nll is not None
        self.epochs, self.best = epoch.number, min(self.best, epoch.val_nll)
        share = max(epoch.number / self.planned, self.seconds / self.allowed if self.allowed else 0.0)
        if self._show is not None:
            self._show(min(share, 1.0))
        step = int(QUARTERS * share)
        if step > max(self.reports, default=0) and share < 1:  # a completed training is not pruned
            self.reports[step] = self.best
            if report(self._trial, step, self.best) and self._may_prune:
                raise optuna.TrialPruned

    def outcome(self, state: str, **more: Any) -> Outcome:
        """Return the outcome with the statistics so far."""
        notes = {"outcome": state, "epochs": self.epochs, "seconds": self.seconds, "time_budget": self.allowed}
        return Outcome(state, notes=more | notes, reports=self.reports)


def report(trial: optuna.Trial, step: int, value: float) -> bool:
    """Report the value of a trial at a step, and return whether it is among the weaker half.

    `should_prune` must always be called, as it records what later trials are compared with.
    """
    trial.report(value, step)
    return trial.should_prune()


def evaluate(
    params: Mapping[str, Any],
    prepared: Prepared,
    space: Space,
    seed: int,
    monitor: EpochMonitor,
    should_stop: Callable[[], bool] | None,
) -> Outcome:
    """Train a setting and evaluate it on the validation rows."""
    held_out, target = prepared.validation_table, prepared.outcome
    # The number of outputs, or less where some are missing.
    observed_per_row = float(np.average(target.count_observed(held_out.targets), weights=held_out.weights))
    try:
        settings = space.settings(params, seed, monitor.allowed)
        monitor.planned = settings.train_config(prepared.num_rows).epochs
        fitted, _ = train(prepared, settings, on_epoch=monitor, should_stop=should_stop)
    except optuna.TrialPruned:
        return monitor.outcome("pruned", standardised=monitor.best / observed_per_row)
    except (
        InputError,
        NumericalError,
        TrainingDiverged,
    ) as problem:  # caused by this setting: the data was checked before
        return monitor.outcome("failed", reason=str(problem))
    history = fitted.members[0].history  # a trial trains one member
    monitor.epochs = history[-1].number
    value = fitted.metrics[target.tunes]
    if not math.isfinite(value):
        return monitor.outcome("failed", reason=f"the validation NLL is {value}")
    best = min(epoch.val_nll for epoch in history if epoch.val_nll is not None)
    fitted = replace(
        fitted, params=space.settings(params, seed).params()
    )  # without the time budget, which was the search's
    overhead = monitor.seconds - fitted.seconds
    outcome = monitor.outcome("finished", standardised=best / observed_per_row)  # like `value`, in other units
    return replace(outcome, value=value, overhead=overhead, fitted=fitted)


def failed_outcome(reason: str) -> Outcome:
    """Return the outcome of a trial that failed before its first epoch."""
    notes = {"outcome": "failed", "epochs": 0, "seconds": 0.0, "time_budget": None, "reason": reason}
    return Outcome("failed", notes=notes)


# ---------------------------------------------------------------- in a worker


@dataclass(frozen=True)
class TrialOrder:
    """A trial for a worker: its setting, and the state of the search when it started."""

    params: Mapping[str, Any]
    allowed: float | None  # seconds
    left: float  # seconds until the end of the search, from when the trial was drawn; inf: any time
    may_prune: bool
    best_nll: float  # so far; a worse model need not be returned
    others: Sequence[FrozenTrial]  # completed trials

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.params.items())


def run_trial(order: TrialOrder, prepared: Prepared, space: Space, seed: int) -> Outcome:
    """Run a trial in a worker, with one thread unless the setting specifies more."""
    torch.set_num_threads(1)
    for module in space.modules:
        with contextlib.suppress(ImportError):  # the trial then reports the missing part
            importlib.import_module(module)
    left = order.left - waited()  # may be short if the trial is retried after losing its worker
    if left <= 0 and math.isfinite(order.best_nll):  # without a model so far, train one however short the time
        return failed_outcome("the time budget was exhausted before a worker could train it")
    seconds = None if order.allowed is None else min(order.allowed, max(left, LEAST_SECONDS))
    with silence_optuna():
        study = optuna.create_study(pruner=make_pruner())
        study.add_trials(order.others)
        monitor = EpochMonitor(study.ask(), seconds, order.may_prune)
        outcome = evaluate(order.params, prepared, space, seed, monitor, is_stopped)
    worse = outcome.value is None or outcome.value > order.best_nll
    return replace(outcome, fitted=None) if worse else outcome

"""One trial: train a setting, and end it early if others did better by then.

It runs in the process of the search, on the search's own study; or in a worker, on a copy of what the search knew when
the trial was begun, and the search then notes in its study what the worker reports. So a journal has one writer.
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

from dspp.engines import orphaned
from dspp.errors import InputError, NumericalError, TrainingDiverged
from dspp.fitted import Fitted
from dspp.fitting import train
from dspp.history import Epoch
from dspp.prepare import Prepared
from dspp.tuning.space import Space
from dspp.tuning.study import QUARTERS, halving, quiet

LEAST_SECONDS = 1e-3  # that a trial is told to train, however little time is left


@dataclass(frozen=True)
class Outcome:
    """What came of a trial."""

    state: str  # finished, pruned, failed
    value: float | None = None  # validation NLL in the units of y, of a trial that finished
    notes: Mapping[str, Any] = field(default_factory=dict)  # for the study
    reports: Mapping[int, float] = field(default_factory=dict)  # best NLL by the quarter of its training
    overhead: float = 0.0  # seconds spent outside of training
    fitted: Fitted | None = None  # None too where another is known to be better


class Watch:
    """Called after each epoch of a trial: counts, shows, and ends it when others did better by then."""

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
        """Since the trial began."""
        return time.perf_counter() - self._begin

    def __call__(self, epoch: Epoch) -> None:
        """Take note of an epoch; the best so far counts, as the best epoch is what a fit keeps."""
        assert epoch.val_nll is not None
        self.epochs, self.best = epoch.number, min(self.best, epoch.val_nll)
        share = max(epoch.number / self.planned, self.seconds / self.allowed if self.allowed else 0.0)
        if self._show is not None:
            self._show(min(share, 1.0))
        step = int(QUARTERS * share)
        if step > max(self.reports, default=0) and share < 1:  # what has been trained to the end is not thrown away
            self.reports[step] = self.best
            if report(self._trial, step, self.best) and self._may_prune:
                raise optuna.TrialPruned

    def outcome(self, state: str, **more: Any) -> Outcome:
        """How the trial ended, with what was counted."""
        notes = {"outcome": state, "epochs": self.epochs, "seconds": self.seconds, "time_budget": self.allowed}
        return Outcome(state, notes=more | notes, reports=self.reports)


def report(trial: optuna.Trial, step: int, value: float) -> bool:
    """Note how good a trial is at a step; whether it is among the weaker half.

    The study is asked in any case, as that is how it notes what later trials are held against.
    """
    trial.report(value, step)
    return trial.should_prune()


def evaluate(
    params: Mapping[str, Any],
    prepared: Prepared,
    space: Space,
    seed: int,
    watch: Watch,
    should_stop: Callable[[], bool] | None,
) -> Outcome:
    """Train a setting and judge it on the validation rows."""
    observed = ~np.isnan(prepared.validation_table.targets)
    observed_per_row = float(observed.sum() / len(observed))  # the number of outputs, or less where some are missing
    try:
        settings = space.settings(params, seed, watch.allowed)
        watch.planned = settings.train_config(prepared.num_rows).epochs
        fitted, _ = train(prepared, settings, on_epoch=watch, should_stop=should_stop)
    except optuna.TrialPruned:
        return watch.outcome("pruned", standardised=watch.best / observed_per_row)
    except (InputError, NumericalError, TrainingDiverged) as problem:  # of this setting: the data was checked
        return watch.outcome("failed", reason=str(problem))
    history = fitted.members[0].history  # a trial trains one
    watch.epochs = history[-1].number
    value = fitted.metrics["nll"]
    if not math.isfinite(value):
        return watch.outcome("failed", reason=f"its validation NLL is {value}")
    best = min(epoch.val_nll for epoch in history if epoch.val_nll is not None)
    fitted = replace(fitted, params=space.settings(params, seed).params())  # the time was the search's
    overhead = watch.seconds - fitted.seconds
    outcome = watch.outcome("finished", standardised=best / observed_per_row)  # as `value`, but for the units
    return replace(outcome, value=value, overhead=overhead, fitted=fitted)


def untrained(reason: str) -> Outcome:
    """Of a trial that came to nothing before its first epoch."""
    notes = {"outcome": "failed", "epochs": 0, "seconds": 0.0, "time_budget": None, "reason": reason}
    return Outcome("failed", notes=notes)


# ---------------------------------------------------------------- in a worker


@dataclass(frozen=True)
class Order:
    """What a worker is told of a trial: its setting, and what the search knew when it was begun."""

    params: Mapping[str, Any]
    allowed: float | None  # seconds
    deadline: float  # of the search, by `time.time`; inf: none
    may_prune: bool
    best_nll: float  # so far; a model that is worse need not be sent back
    others: Sequence[FrozenTrial]  # those that are done

    def __str__(self) -> str:
        return ", ".join(f"{name} {value}" for name, value in self.params.items())


def carry_out(order: Order, prepared: Prepared, space: Space, seed: int) -> Outcome:
    """Run a trial in a worker, with one thread unless the setting says otherwise."""
    torch.set_num_threads(1)
    for module in space.modules:
        with contextlib.suppress(ImportError):  # the trial then says which of the user's parts is missing
            importlib.import_module(module)
    left = order.deadline - time.time()  # little where the trial is given again, as its first worker was lost
    if left <= 0 and math.isfinite(order.best_nll):  # without a model so far, it makes one however short the time
        return untrained("the time budget was used up before a worker could train it")
    seconds = None if order.allowed is None else min(order.allowed, max(left, LEAST_SECONDS))
    with quiet():
        study = optuna.create_study(pruner=halving())
        study.add_trials(order.others)
        watch = Watch(study.ask(), seconds, order.may_prune)
        outcome = evaluate(order.params, prepared, space, seed, watch, orphaned)
    worse = outcome.value is None or outcome.value > order.best_nll
    return replace(outcome, fitted=None) if worse else outcome

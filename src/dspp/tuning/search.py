"""The trials of a search, one after the other.

What a trial tries is a function of the seed, its number and the results before it, so that a search that was stopped
goes on as if it had not been.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState
from torch import nn

from dspp.data.batches import derive_seed
from dspp.errors import InputError, ModelFileError, NumericalError, TrainingDiverged, TrainingInterrupted
from dspp.estimators import load
from dspp.estimators.regressor import Regressor
from dspp.training.state import Epoch
from dspp.tuning.progress import SearchLine
from dspp.tuning.result import TrialRecord, TuneResult
from dspp.tuning.space import Space
from dspp.tuning.study import QUARTERS, mark

TRIAL_SHARE = 0.25  # of a time budget: the most that one trial may take, while there are others to come
LEAST_SHARE = 0.05  # of a time budget: with less than this left, no trial is begun
STATES = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}


class Budget:
    """The seconds that a search may take; None: no limit."""

    def __init__(self, seconds: float | None) -> None:
        if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
            raise InputError(f"time_budget: got {seconds!r}, expected seconds > 0, or None for no limit")
        self._seconds, self._begin = seconds, time.perf_counter()
        self.overhead = 0.0  # of a trial: what it spends outside of training, as far as has been seen

    @property
    def left(self) -> float | None:
        """Seconds left."""
        return None if self._seconds is None else self._seconds - (time.perf_counter() - self._begin)

    @property
    def over(self) -> bool:
        """Whether there is no time for another trial."""
        left = self.left
        return self._seconds is not None and left is not None and left - self.overhead < LEAST_SHARE * self._seconds

    def of_next(self, trials_left: int) -> float | None:
        """Seconds that the next trial may train; a last one gets all that is left."""
        left = self.left
        if self._seconds is None or left is None:
            return None
        left = max(left - self.overhead, 1e-3)
        return min(left, max(TRIAL_SHARE * self._seconds, left / trials_left))


@dataclass(frozen=True)
class Task:
    """What every trial learns from."""

    X: Any
    y: Any
    X_val: Any
    y_val: Any
    num_rows: int  # to train on
    seed: int

    def fit(self, estimator: Regressor, **hooks: Any) -> Regressor:
        """The estimator, fitted."""
        return estimator.fit(self.X, self.y, self.X_val, self.y_val, **hooks)


class Search:
    """One call of `tune`; see there for the arguments."""

    def __init__(
        self,
        task: Task,
        space: Space,
        study: optuna.Study,
        trials: int,
        budget: Budget,
        best_file: Path | None,
        should_stop: Callable[[], bool] | None,
    ) -> None:
        self.task, self.space, self.study, self.budget = task, space, study, budget
        self.best_file, self.should_stop = best_file, should_stop
        self.grid = space.grid(task.seed)
        self.trials = trials if self.grid is None else min(trials, len(self.grid))
        self.best: Regressor | None = None  # fitted in this process; the only one kept
        self.best_nll = min(
            (trial.value for trial in self._done(TrialState.COMPLETE) if trial.value is not None), default=math.inf
        )

    def run(self, progress: bool | None) -> TuneResult:
        """Run the trials that are missing."""
        done = len(self._done())
        with SearchLine(done, self.trials, progress) as self.line:
            for number in range(done, self.trials):
                if number > done and self.budget.over:
                    break
                self._trial(number)
        return self._result()

    def _done(self, *states: TrialState) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states or STATES.values())

    # ------------------------------------------------------------ one trial

    def _trial(self, number: int) -> None:
        self.study.sampler = self._sampler(number)
        trial = self.study.ask()
        params = self.space.suggest(trial)
        allowed = self.budget.of_next(self.trials - number)
        may_prune = math.isfinite(
            self.best_nll
        )  # until a trial has finished, what others reached may have come to nothing
        watch = _Watch(trial, allowed, may_prune, lambda share: self._show(number, share))
        value, notes = self._fit(params, watch)
        outcome = "failed" if "reason" in notes else "finished" if value is not None else "pruned"
        notes |= {"outcome": outcome, "epochs": watch.epochs, "seconds": watch.seconds, "time_budget": allowed}
        for name, note in notes.items():
            trial.set_user_attr(name, note)
        self.study.tell(trial, value, STATES[outcome])
        mark(self.study, number + 1)
        self._show(number, 1.0)

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """What chooses the setting of a trial: the next of a small grid, our own to begin with, or Optuna's TPE."""
        tpe = optuna.samplers.TPESampler(seed=derive_seed(self.task.seed, number) % 2**32)
        fixed = self.grid[number] if self.grid is not None else self.space.start() if number == 0 else {}
        return optuna.samplers.PartialFixedSampler(fixed, tpe) if fixed else tpe

    def _fit(self, params: dict[str, Any], watch: "_Watch") -> tuple[float | None, dict[str, Any]]:
        """The validation NLL of a setting, None if it did not get there; and notes for the study."""
        try:
            estimator = self._estimator(params, watch.allowed)
            watch.planned = estimator.train_config(self.task.num_rows, self.task.seed).epochs
            self.task.fit(estimator, on_epoch=watch, should_stop=self.should_stop)
        except optuna.TrialPruned:
            return None, {"standardised": watch.best}
        except (InputError, NumericalError, TrainingDiverged) as problem:  # of this setting: the data was checked
            return None, {"reason": str(problem)}
        except TrainingInterrupted:
            how = "there is no study, so the work is lost: pass study=<path>"
            if self.best_file is not None:
                how = "go on with the same call: the trials that were done are kept"
            raise TrainingInterrupted(f"the search was stopped in trial {len(self._done()) + 1}; {how}") from None
        fitted = estimator.fitted_
        watch.epochs = fitted.history[-1].number
        self.budget.overhead = max(self.budget.overhead, watch.seconds - fitted.seconds)
        value = fitted.metrics["nll"]
        if not math.isfinite(value):
            return None, {"reason": f"its validation NLL is {value}"}
        if value < self.best_nll:
            self._keep(estimator)
            self.best_nll = value
        return value, {"standardised": min(epoch.val_nll for epoch in fitted.history if epoch.val_nll is not None)}

    def _estimator(self, params: dict[str, Any], time_budget: float | None = None) -> Regressor:
        return self.space.estimator(params, time_budget=time_budget, progress=False, random_state=self.task.seed)

    def _keep(self, estimator: Regressor) -> None:
        """Keep the best model so far; on disk before the study calls it the best, so that it is never missing."""
        estimator.set_params(time_budget=None, progress=None)  # were for the search
        self.best = estimator
        if self.best_file is not None:
            estimator.save(self.best_file)

    def _show(self, number: int, share: float) -> None:
        best = self.best_nll if math.isfinite(self.best_nll) else None
        self.line.update(number, share, best, self.budget.left)

    # ------------------------------------------------------------ the end

    def _result(self) -> TuneResult:
        done, finished = self._done(), self._done(TrialState.COMPLETE)
        if not finished:  # then all have failed
            reason = done[-1].user_attrs["reason"]
            raise InputError(f"none of {len(done)} settings could be trained; change space or base. The last: {reason}")
        best = min(finished, key=lambda trial: (trial.value, trial.number))
        assert best.value is not None
        shift = best.value - best.user_attrs["standardised"]  # from standardised units to those of y
        return TuneResult(
            best_estimator=self.best or self._kept(best),
            best_params=self.space.read(best.params),
            best_nll=best.value,
            trials=tuple(self._record(trial, shift) for trial in done),
        )

    def _record(self, trial: FrozenTrial, shift: float) -> TrialRecord:
        notes = trial.user_attrs
        value = trial.value if trial.state == TrialState.COMPLETE else None
        if trial.state == TrialState.PRUNED:
            value = notes["standardised"] + shift
        return TrialRecord(
            number=trial.number,
            params=self.space.read(trial.params),
            val_nll=value,
            state=notes["outcome"],
            epochs=notes["epochs"],
            seconds=notes["seconds"],
            reason=notes.get("reason", ""),
        )

    def _kept(self, best: FrozenTrial) -> Regressor:
        """The winner of an earlier process: from its file or, if that was lost, trained again."""
        estimator = self._estimator(self.space.read(best.params))
        features = estimator.features if isinstance(estimator.features, nn.Module) else None
        try:
            assert self.best_file is not None
            loaded = load(self.best_file, features)
            if loaded.fitted_.metrics.get("nll") == best.value:  # a file knows all of its settings, but not their names
                loaded.set_params(**estimator.set_params(progress=None).get_params(deep=False))
                return loaded
        except ModelFileError:
            pass
        self._keep(self.task.fit(estimator.set_params(time_budget=best.user_attrs["time_budget"])))
        return estimator


class _Watch:
    """Called after each epoch of a trial: counts, shows, and ends it when others did better by then."""

    def __init__(
        self, trial: optuna.Trial, allowed: float | None, may_prune: bool, show: Callable[[float], None]
    ) -> None:
        self._trial, self.allowed, self._may_prune, self._show = trial, allowed, may_prune, show
        self.planned = 1  # epochs
        self.epochs, self.best, self._reported = 0, math.inf, 0
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
        self._show(min(share, 1.0))
        step = int(QUARTERS * share)
        if step > self._reported and share < 1:  # what has been trained to the end is not thrown away
            self._reported = step
            self._trial.report(self.best, step)
            if self._trial.should_prune() and self._may_prune:  # asked in any case: later trials are held against it
                raise optuna.TrialPruned

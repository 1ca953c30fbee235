"""The trials of a search, sequential or in parallel.

The setting of a trial depends on the seed, its number and the earlier results only, so that a resumed search equals an
uninterrupted one. In parallel, the earlier results depend on which trials finish first.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import optuna
from optuna.trial import FrozenTrial, TrialState

from dspp import modelfile
from dspp.batches import derive_seed
from dspp.engines import TasksLost, check_engine, cores, run_all
from dspp.errors import InputError, ModelFileError, TrainingInterrupted
from dspp.estimators import attach
from dspp.estimators.regressor import Regressor
from dspp.fitted import Fitted
from dspp.fitting import train
from dspp.prepare import Prepared
from dspp.progress import ProgressBar
from dspp.tuning.result import TrialRecord, TuneResult
from dspp.tuning.space import Space
from dspp.tuning.study import record_done
from dspp.tuning.trial import (
    LEAST_SECONDS,
    EpochMonitor,
    Outcome,
    TrialOrder,
    evaluate,
    failed_outcome,
    report,
    run_trial,
)

TRIAL_SHARE = 0.25  # largest share of a time budget for one trial, while others remain
LEAST_SHARE = 0.05  # no trial starts with a smaller share of the time budget left
STATES = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}


class Budget:
    """The time limit of a search in seconds; None: no limit."""

    def __init__(self, seconds: float | None) -> None:
        if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
            raise InputError(f"time_budget: expected seconds > 0, or None for no limit, got {seconds!r}")
        self._seconds, self._begin = seconds, time.perf_counter()
        self.overhead = 0.0  # largest time that a trial spent outside of training so far

    @property
    def left(self) -> float | None:
        """Seconds left, or None without a limit."""
        return None if self._seconds is None else self._seconds - (time.perf_counter() - self._begin)

    @property
    def training_left(self) -> float:
        """Seconds until training must end; inf: any time."""
        left = self.left
        return math.inf if left is None else left - self.overhead

    @property
    def over(self) -> bool:
        """Whether there is no time left for another trial."""
        left = self.left
        return self._seconds is not None and left is not None and left - self.overhead < LEAST_SHARE * self._seconds

    def seconds_for_next(self, trials_left: int) -> float | None:
        """Return the training time of the next trial in seconds; the last trial gets all that is left."""
        left = self.left
        if self._seconds is None or left is None:
            return None
        left = max(left - self.overhead, LEAST_SECONDS)
        return min(left, max(TRIAL_SHARE * self._seconds, left / trials_left))


@dataclass(frozen=True)
class Workers:
    """Where trials run, and how many in parallel."""

    jobs: int | None = 1  # None: the number of CPUs
    engine: str = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        check_engine(self.engine, self.jobs, self.address)

    @property
    def width(self) -> int:
        """The number of parallel trials, as far as known in advance."""
        return self.jobs or (cores() if self.engine == "local" else 1)

    @property
    def here(self) -> bool:
        """Whether trials run in this process, sequentially."""
        return self.engine == "local" and self.width == 1

    def run(
        self, orders: Iterator[TrialOrder], shared: tuple[Prepared, Space, int], while_waiting: Callable[[], None]
    ) -> Iterator[tuple[int, Outcome]]:
        """Run trials in workers and yield outcomes as they arrive; the rows are sent once."""
        where = {"engine": self.engine, "jobs": self.jobs, "address": self.address}
        return run_all(run_trial, orders, shared=shared, while_waiting=while_waiting, **where)  # type: ignore[arg-type]


class Search:
    """One call of `tune`."""

    def __init__(
        self,
        prepared: Prepared,
        space: Space,
        seed: int,
        study: optuna.Study,
        trials: int,
        budget: Budget,
        best_file: Path | None,
        should_stop: Callable[[], bool] | None,
        workers: Workers,
    ) -> None:
        self.prepared, self.space, self.seed, self.study, self.budget = prepared, space, seed, study, budget
        self.best_file, self.should_stop, self.workers = best_file, should_stop, workers
        self.grid = space.grid(seed)
        self.trials = trials if self.grid is None else min(trials, len(self.grid))
        self.best: Fitted | None = None  # fitted in this call
        self.best_rank = min(map(_rank, self._done(TrialState.COMPLETE)), default=(math.inf, 0))

    @property
    def best_nll(self) -> float:
        """The best validation NLL so far."""
        return self.best_rank[0]

    def run(self, progress: bool | None) -> TuneResult:
        """Run the remaining trials."""
        with ProgressBar(self.trials, progress, done=len(self._done()), score="best NLL") as self.bar:
            if self.workers.here:
                for trial, params in self._pending_trials():
                    self._record_outcome(trial, self._evaluate(trial, params))
            else:
                self._run_in_workers()
        return self._result()

    def _done(self, *states: TrialState) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states or STATES.values())

    def _pending_trials(self) -> Iterator[tuple[optuna.Trial, dict[str, Any]]]:
        """Start trials one by one while there is time, first those that workers of an earlier search left unfinished.

        Unfinished trials beyond the number of trials are left for a longer search.
        """
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        left = [trial for trial in running if trial.number < self.trials]
        begun = len(self.study.get_trials(deepcopy=False))
        for count, number in enumerate([trial.number for trial in left] + list(range(begun, self.trials))):
            if count and self.budget.over:
                return
            if count < len(left):
                yield optuna.Trial(self.study, left[count]._trial_id), self.space.decode(left[count].params)
            else:
                self.study.sampler = self._sampler(number)
                trial = self.study.ask()
                yield trial, self.space.suggest(trial)

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """Return the sampler for a trial: the next point of a small grid, the defaults first, or Optuna's TPE."""
        tpe = optuna.samplers.TPESampler(seed=derive_seed(self.seed, number) % 2**32)
        own = self.space.start(self.prepared.outcome.num_outputs) if number == 0 else {}
        fixed = own if self.grid is None else self.grid[number]
        return optuna.samplers.PartialFixedSampler(fixed, tpe) if fixed else tpe

    # ------------------------------------------------------------ one trial

    @property
    def _may_prune(self) -> bool:
        """Whether trials may be pruned: not before one has finished, as the others may fail."""
        return math.isfinite(self.best_nll)

    def _trial_seconds(self, trial: optuna.Trial) -> float | None:
        return self.budget.seconds_for_next(max(1, math.ceil((self.trials - trial.number) / self.workers.width)))

    def _evaluate(self, trial: optuna.Trial, params: dict[str, Any]) -> Outcome:
        """Run a trial in this process."""
        done = len(self._done())
        monitor = EpochMonitor(
            trial, self._trial_seconds(trial), self._may_prune, lambda share: self._show(done, share)
        )
        try:
            return evaluate(params, self.prepared, self.space, self.seed, monitor, self.should_stop)
        except TrainingInterrupted:
            raise self._interruption() from None

    def _interruption(self) -> TrainingInterrupted:
        how = "there is no study, so the trials are lost; pass study=<path>"
        if self.best_file is not None:
            how = "repeat the same call to resume: completed trials are stored"
        return TrainingInterrupted(f"the search was stopped in trial {len(self._done()) + 1}; {how}")

    def _record_outcome(self, trial: optuna.Trial, outcome: Outcome) -> None:
        """Record the outcome of a trial in the study, and keep its model if it is the best so far."""
        self.budget.overhead = max(self.budget.overhead, outcome.overhead)
        rank = (outcome.value, trial.number) if outcome.value is not None else (math.inf, 0)
        if rank < self.best_rank and outcome.fitted is not None:
            self._keep(outcome.fitted)
            self.best_rank = rank
        for name, note in outcome.notes.items():
            trial.set_user_attr(name, note)
        self.study.tell(trial, outcome.value, STATES[outcome.state])
        done = len(self._done())
        record_done(self.study, done)
        self._show(done - 1, 1.0)

    def _keep(self, fitted: Fitted) -> None:
        """Keep the best model so far; it is saved before the study records it, so that it is never missing."""
        self.best = fitted
        if self.best_file is not None:
            modelfile.save(fitted, self.best_file)

    def _show(self, number: int, share: float) -> None:
        best = self.best_nll if math.isfinite(self.best_nll) else None
        label = f"trial {min(number + 1, self.trials)} of {self.trials}"
        self.bar.update(number + share, label, score=best, seconds_left=self.budget.left)

    # ------------------------------------------------------------ parallel trials

    def _run_in_workers(self) -> None:
        begun: list[optuna.Trial] = []

        def orders() -> Iterator[TrialOrder]:
            for trial, params in self._pending_trials():
                begun.append(trial)
                seconds, left = self._trial_seconds(trial), self.budget.training_left
                yield TrialOrder(params, seconds, left, self._may_prune, self.best_nll, self._done())

        try:
            needed = replace(self.prepared, table=self.prepared.validation_table)  # not all rows as they were given
            shared = needed, self.space, self.seed
            for number, outcome in self.workers.run(orders(), shared, self._check_stop):
                for step, value in outcome.reports.items():
                    report(begun[number], step, value)
                self._record_outcome(begun[number], outcome)
        except TasksLost as problem:  # treated like a failed setting: it probably ran out of memory
            for number in problem.numbers:
                self._record_outcome(begun[number], failed_outcome(str(problem)))

    def _check_stop(self) -> None:
        if self.should_stop is not None and self.should_stop():
            raise self._interruption()

    # ------------------------------------------------------------ result

    def _result(self) -> TuneResult:
        done, finished = self._done(), self._done(TrialState.COMPLETE)
        if not finished:  # all have failed
            reason = done[-1].user_attrs["reason"]
            raise InputError(
                f"expected a successful trial, got {len(done)} failures; change space or base. The last: {reason}"
            )
        best = min(finished, key=_rank)
        assert best.value is not None
        first = finished[0]  # always the same trial, so that a longer search does not change the results
        shift = cast(float, first.value) - first.user_attrs["standardised"]  # from standardised units to those of y
        return TuneResult(
            best_estimator=self._estimator(best),
            best_params=self.space.decode(best.params),
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
            params=self.space.decode(trial.params),
            val_nll=value,
            state=notes["outcome"],
            epochs=notes["epochs"],
            seconds=notes["seconds"],
            reason=notes.get("reason", ""),
        )

    def _estimator(self, best: FrozenTrial) -> Regressor:
        """Return the best estimator, with the parameters of its trial."""
        estimator = self.space.estimator(self.space.decode(best.params), random_state=self.seed)
        return attach(estimator, self.best or self._load_or_retrain(best))

    def _load_or_retrain(self, best: FrozenTrial) -> Fitted:
        """Load the best model of an earlier process or, if its file is lost, train it again."""
        params = self.space.decode(best.params)
        try:
            assert self.best_file is not None
            loaded = modelfile.load(self.best_file, self.space.settings(params, self.seed).module)
            if loaded.metrics.get("nll") == best.value:
                return loaded
        except ModelFileError:
            pass
        fitted, _ = train(self.prepared, self.space.settings(params, self.seed, best.user_attrs["time_budget"]))
        self._keep(replace(fitted, params=self.space.settings(params, self.seed).params()))
        return fitted


def _rank(trial: FrozenTrial) -> tuple[float, int]:
    """Return the sort key of finished trials: the best first, ties by number."""
    assert trial.value is not None
    return trial.value, trial.number

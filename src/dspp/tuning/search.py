"""The trials of a search, one after the other or several at once.

What a trial tries is a function of the seed, its number and the results before it, so that a search that was stopped
goes on as if it had not been. With several at once, which results are there before it depends on which trial is faster.
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
from dspp.tuning.study import mark
from dspp.tuning.trial import (
    LEAST_SECONDS,
    Order,
    Outcome,
    Watch,
    carry_out,
    evaluate,
    report,
    untrained,
)

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
    def deadline(self) -> float:
        """When training must end, by `time.time`, which workers have too: on another machine it may differ a little."""
        left = self.left
        return math.inf if left is None else time.time() + left - self.overhead

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
        left = max(left - self.overhead, LEAST_SECONDS)
        return min(left, max(TRIAL_SHARE * self._seconds, left / trials_left))


@dataclass(frozen=True)
class Workers:
    """Where trials run, and how many at once."""

    jobs: int | None = 1  # None: as many as there are CPUs
    engine: str = "local"
    address: str | None = None

    def __post_init__(self) -> None:
        check_engine(self.engine, self.jobs, self.address)

    @property
    def width(self) -> int:
        """Trials at once, as far as is known before they are begun."""
        return self.jobs or (cores() if self.engine == "local" else 1)

    @property
    def here(self) -> bool:
        """Whether trials run in this process, one after the other."""
        return self.engine == "local" and self.width == 1

    def run(
        self, orders: Iterator[Order], shared: tuple[Prepared, Space, int], while_waiting: Callable[[], None]
    ) -> Iterator[tuple[int, Outcome]]:
        """Carry out orders, and yield what comes of them as it comes; the rows are sent once."""
        where = {"engine": self.engine, "jobs": self.jobs, "address": self.address}
        return run_all(carry_out, orders, shared=shared, while_waiting=while_waiting, **where)  # type: ignore[arg-type]


class Search:
    """One call of `tune`; see there for the arguments."""

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
        self.best: Fitted | None = None  # fitted in this call; the only one kept
        self.best_rank = min(map(_rank, self._done(TrialState.COMPLETE)), default=(math.inf, 0))

    @property
    def best_nll(self) -> float:
        """So far."""
        return self.best_rank[0]

    def run(self, progress: bool | None) -> TuneResult:
        """Run the trials that are missing."""
        with ProgressBar(self.trials, progress, done=len(self._done()), score="best NLL") as self.bar:
            if self.workers.here:
                for trial, params in self._to_do():
                    self._take(trial, self._evaluate(trial, params))
            else:
                self._run_elsewhere()
        return self._result()

    def _done(self, *states: TrialState) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states or STATES.values())

    def _to_do(self) -> Iterator[tuple[optuna.Trial, dict[str, Any]]]:
        """The trials, begun one by one while there is time: first those that workers of an ended search left.

        One of them that lies beyond the number of trials is left for a longer search.
        """
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        left = [trial for trial in running if trial.number < self.trials]
        begun = len(self.study.get_trials(deepcopy=False))
        for count, number in enumerate([trial.number for trial in left] + list(range(begun, self.trials))):
            if count and self.budget.over:
                return
            if count < len(left):
                yield optuna.Trial(self.study, left[count]._trial_id), self.space.read(left[count].params)
            else:
                self.study.sampler = self._sampler(number)
                trial = self.study.ask()
                yield trial, self.space.suggest(trial)

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """What chooses the setting of a trial: the next of a small grid, our own to begin with, or Optuna's TPE."""
        tpe = optuna.samplers.TPESampler(seed=derive_seed(self.seed, number) % 2**32)
        own = self.space.start(len(self.prepared.target_names)) if number == 0 else {}
        fixed = own if self.grid is None else self.grid[number]
        return optuna.samplers.PartialFixedSampler(fixed, tpe) if fixed else tpe

    # ------------------------------------------------------------ one trial

    @property
    def _may_prune(self) -> bool:
        """Until a trial has finished, what others reached may have come to nothing."""
        return math.isfinite(self.best_nll)

    def _allowed(self, trial: optuna.Trial) -> float | None:
        return self.budget.of_next(max(1, math.ceil((self.trials - trial.number) / self.workers.width)))

    def _evaluate(self, trial: optuna.Trial, params: dict[str, Any]) -> Outcome:
        """Run a trial here."""
        done = len(self._done())
        watch = Watch(trial, self._allowed(trial), self._may_prune, lambda share: self._show(done, share))
        try:
            return evaluate(params, self.prepared, self.space, self.seed, watch, self.should_stop)
        except TrainingInterrupted:
            raise self._interrupted() from None

    def _interrupted(self) -> TrainingInterrupted:
        how = "there is no study, so the work is lost: pass study=<path>"
        if self.best_file is not None:
            how = "go on with the same call: the trials that were done are kept"
        return TrainingInterrupted(f"the search was stopped in trial {len(self._done()) + 1}; {how}")

    def _take(self, trial: optuna.Trial, outcome: Outcome) -> None:
        """Note in the study what came of a trial, and keep its model if it is the best so far."""
        self.budget.overhead = max(self.budget.overhead, outcome.overhead)
        rank = (outcome.value, trial.number) if outcome.value is not None else (math.inf, 0)
        if rank < self.best_rank and outcome.fitted is not None:
            self._keep(outcome.fitted)
            self.best_rank = rank
        for name, note in outcome.notes.items():
            trial.set_user_attr(name, note)
        self.study.tell(trial, outcome.value, STATES[outcome.state])
        done = len(self._done())
        mark(self.study, done)
        self._show(done - 1, 1.0)

    def _keep(self, fitted: Fitted) -> None:
        """Keep the best model so far; on disk before the study calls it the best, so that it is never missing."""
        self.best = fitted
        if self.best_file is not None:
            modelfile.save(fitted, self.best_file)

    def _show(self, number: int, share: float) -> None:
        best = self.best_nll if math.isfinite(self.best_nll) else None
        label = f"trial {min(number + 1, self.trials)} of {self.trials}"
        self.bar.update(number + share, label, score=best, seconds_left=self.budget.left)

    # ------------------------------------------------------------ several at once

    def _run_elsewhere(self) -> None:
        begun: list[optuna.Trial] = []

        def orders() -> Iterator[Order]:
            for trial, params in self._to_do():
                begun.append(trial)
                seconds, deadline = self._allowed(trial), self.budget.deadline
                yield Order(params, seconds, deadline, self._may_prune, self.best_nll, self._done())

        try:
            shared = replace(self.prepared, table=None), self.space, self.seed  # no worker needs the rows as given
            for number, outcome in self.workers.run(orders(), shared, self._heed_stop):
                for step, value in outcome.reports.items():
                    report(begun[number], step, value)
                self._take(begun[number], outcome)
        except TasksLost as problem:  # like a setting that cannot be trained: it took more memory than there is
            for number in problem.numbers:
                self._take(begun[number], untrained(str(problem)))

    def _heed_stop(self) -> None:
        if self.should_stop is not None and self.should_stop():
            raise self._interrupted()

    # ------------------------------------------------------------ the end

    def _result(self) -> TuneResult:
        done, finished = self._done(), self._done(TrialState.COMPLETE)
        if not finished:  # then all have failed
            reason = done[-1].user_attrs["reason"]
            raise InputError(f"none of {len(done)} settings could be trained; change space or base. The last: {reason}")
        best = min(finished, key=_rank)
        assert best.value is not None
        first = finished[0]  # always the same one, so that a longer search does not change a digit
        shift = cast(float, first.value) - first.user_attrs["standardised"]  # from standardised units to those of y
        return TuneResult(
            best_estimator=self._estimator(best),
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

    def _estimator(self, best: FrozenTrial) -> Regressor:
        """The winner, with the parameters it was tried with."""
        estimator = self.space.estimator(self.space.read(best.params), random_state=self.seed)
        return attach(estimator, self.best or self._kept(best))

    def _kept(self, best: FrozenTrial) -> Fitted:
        """The winner of an earlier process: from its file or, if that was lost, trained again."""
        params = self.space.read(best.params)
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
    """Finished trials in this order: the best first, of equals the earlier."""
    assert trial.value is not None
    return trial.value, trial.number

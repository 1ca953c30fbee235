"""The trials of a search, in this process or in several.

The setting of a trial depends on the seed, its number and the earlier results only, so that a resumed search equals an
uninterrupted one. In parallel, the earlier results depend on which trials finish first.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import optuna
from optuna.trial import FrozenTrial, TrialState

from dspp import modelfile
from dspp.batches import derive_seed
from dspp.engines import TasksLost, check_engine, num_workers, run_all
from dspp.errors import InputError, ModelFileError, TrainingInterrupted
from dspp.estimators import attach
from dspp.fitted import Fitted
from dspp.fitting import train
from dspp.prepare import Prepared
from dspp.progress import ProgressBar
from dspp.settings import MIN_ROWS_TO_HOLD_OUT
from dspp.training.budget import Budget
from dspp.tuning.result import TRIALS, TrialRecord, TuneResult
from dspp.tuning.space import Space
from dspp.tuning.study import best_file, digest, open_study, record_done, report_step
from dspp.tuning.trial import MIN_SECONDS, Order, Outcome, run_trial

TRIAL_SHARE = 0.25  # largest share of a time budget for one trial, while others remain
MIN_SHARE = 0.05  # no trial starts with a smaller share of the time budget left
STATES = {"finished": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}


def search(
    prepared: Prepared,
    space: Space,
    *,
    trials: int = TRIALS,
    time_budget: float | None = None,
    study: str | Path | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> TuneResult:
    """Search on a prepared table; for the arguments, see `tune`."""
    if not isinstance(trials, int) or trials < 1:
        raise InputError(f"trials: expected an integer ≥ 1, got {trials!r}")
    check_engine(**space.where)
    budget = Budget(time_budget)
    if not len(prepared.validation):
        raise InputError(
            f"expected validation rows, got none of {prepared.num_rows + len(prepared.calibration)} rows; pass X_val "
            f"and y_val, or a validation_fraction above 0 and at least {MIN_ROWS_TO_HOLD_OUT} rows"
        )
    path = None if study is None else Path(study)
    identity = {} if path is None else {"table": digest(prepared)} | space.identity
    prepared = replace(prepared, table=prepared.validation_table)  # workers do not need the rows as they were given
    with open_study(path, identity) as kept:
        run = Search(
            kept, space, trials, prepared.outcome.num_outputs, budget, None if path is None else best_file(path)
        )
        run.run(prepared, should_stop)
        return run.result(prepared)


class Search:
    """One call of `search`.

    Args:
        study: The trials so far.
        space: What to search.
        trials: Number of trials, including those of the study.
        num_outputs: Number of outputs.
        budget: The time limit.
        best_file: Where the best model is kept; None: only in memory.
    """

    def __init__(
        self,
        study: optuna.Study,
        space: Space,
        trials: int,
        num_outputs: int,
        budget: Budget,
        best_file: Path | None,
    ) -> None:
        self.study, self.space, self.budget, self.best_file = study, space, budget, best_file
        self.first = space.start(num_outputs)  # setting
        self.grid = space.grid()
        self.trials = trials if self.grid is None else min(trials, len(self.grid))
        self.best: Fitted | None = None  # fitted in this call
        self.best_rank = min(map(_rank, self._done(TrialState.COMPLETE)), default=(math.inf, 0))
        self.begun: list[optuna.Trial] = []  # in this call
        self.overhead = 0.0  # largest time that a trial spent outside of training so far

    def run(self, prepared: Prepared, should_stop: Callable[[], bool] | None) -> None:
        """Run the remaining trials."""
        first = len(self._done())
        shares: dict[int, float] = {}  # of the trials that run

        def show(number: int, share: float) -> None:
            shares[number] = share
            done = first + sum(shares.values())
            label = f"trial {min(int(done) + 1, self.trials)} of {self.trials}"
            best = self.best_rank[0]
            left = None if math.isinf(self._left) else self._left
            bar.update(done, label, score=best if math.isfinite(best) else None, seconds_left=left)

        def check_stop() -> None:
            if should_stop is not None and should_stop():
                how = "there is no study, so the trials are lost; pass study=<path>"
                if self.best_file is not None:
                    how = "repeat the same call to resume: completed trials are stored"
                raise TrainingInterrupted(f"the search was stopped in trial {len(self._done()) + 1}; {how}")

        with ProgressBar(self.trials, self.space.progress, done=first, score="best NLL") as bar:
            how: dict[str, Any] = {"while_waiting": check_stop, "on_report": show, **self.space.where}
            try:
                for number, outcome in run_all(run_trial, self._orders(), shared=(prepared, self.space), **how):
                    self.record(self.begun[number], outcome)
                    show(number, 1.0)
            except TasksLost as problem:  # treated like a failed setting: it probably ran out of memory
                for number in problem.numbers:
                    self.record(self.begun[number], Outcome.failed(str(problem)))

    @property
    def _left(self) -> float:
        """Seconds left for training; inf without a limit."""
        return math.inf if self.budget.seconds is None else self.budget.seconds - self.budget.spent - self.overhead

    def _done(self, *states: TrialState) -> list[FrozenTrial]:
        return self.study.get_trials(deepcopy=False, states=states or STATES.values())

    # ------------------------------------------------------------ trials

    def _orders(self) -> Iterator[Order]:
        where = self.space.where
        for trial, params in self.pending():
            self.begun.append(trial)
            left, seconds = self._left, None
            if self.budget.seconds is not None:
                rounds = math.ceil((self.trials - trial.number) / num_workers(where["engine"], where["jobs"]))
                seconds = share_of_time(self.budget.seconds, max(left, MIN_SECONDS), max(1, rounds))
            yield Order(params, seconds, left, self.best_rank[0], self._done())

    def pending(self) -> Iterator[tuple[optuna.Trial, dict[str, Any]]]:
        """Start trials one by one while there is time, first those that workers of an earlier search left unfinished.

        Unfinished trials beyond the number of trials are left for a longer search.
        """
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        unfinished = [trial for trial in running if trial.number < self.trials]
        numbers = [trial.number for trial in unfinished]
        numbers += range(len(self.study.get_trials(deepcopy=False)), self.trials)
        for count, number in enumerate(numbers):
            has_model = math.isfinite(self.best_rank[0])
            if (count or has_model) and self._left < MIN_SHARE * (self.budget.seconds or 0.0):
                return
            if count < len(unfinished):
                yield optuna.Trial(self.study, unfinished[count]._trial_id), self.space.decode(unfinished[count].params)
            else:
                self.study.sampler = self._sampler(number)
                trial = self.study.ask()
                yield trial, self.space.suggest(trial)

    def _sampler(self, number: int) -> optuna.samplers.BaseSampler:
        """Return the sampler for a trial: the next point of a small grid, the defaults first, or Optuna's TPE."""
        tpe = optuna.samplers.TPESampler(seed=derive_seed(self.space.seed, number) % 2**32)
        own = self.first if number == 0 else {}
        fixed = own if self.grid is None else self.grid[number]
        return optuna.samplers.PartialFixedSampler(fixed, tpe) if fixed else tpe

    def record(self, trial: optuna.Trial, outcome: Outcome) -> None:
        """Record the outcome of a trial in the study, and keep its model if it is the best so far."""
        self.overhead = max(self.overhead, outcome.overhead)
        if outcome.fitted is not None and outcome.value is not None:
            rank = outcome.value, trial.number
            if rank < self.best_rank:
                self._keep(outcome.fitted)
                self.best_rank = rank
        for quarter, value in outcome.by_quarter.items():
            report_step(trial, quarter, value)
        for name, note in outcome.notes.items():
            trial.set_user_attr(name, note)
        self.study.tell(trial, outcome.value, STATES[outcome.state])
        record_done(self.study, len(self._done()))

    def _keep(self, fitted: Fitted) -> None:
        """Keep the best model so far; it is saved before the study records it, so that it is never missing."""
        self.best = fitted
        if self.best_file is not None:
            modelfile.save(fitted, self.best_file)

    # ------------------------------------------------------------ result

    def result(self, prepared: Prepared) -> TuneResult:
        """Return the best estimator and all trials."""
        done, finished = self._done(), self._done(TrialState.COMPLETE)
        if not finished:  # all have failed
            reason = done[-1].user_attrs["reason"]
            raise InputError(
                f"expected a successful trial, got {len(done)} failures; change space or base. The last: {reason}"
            )
        best = min(finished, key=_rank)
        assert best.value is not None
        params = self.space.decode(best.params)
        first = finished[0]  # always the same trial, so that a longer search does not change the results
        shift = cast(float, first.value) - first.user_attrs["standardised"]  # from standardised units to those of y
        return TuneResult(
            best_estimator=attach(self.space.estimator(params), self.best or self._load_or_retrain(best, prepared)),
            best_params=params,
            best_nll=best.value,
            trials=tuple(self._trial_record(trial, shift) for trial in done),
        )

    def _trial_record(self, trial: FrozenTrial, shift: float) -> TrialRecord:
        notes = trial.user_attrs
        value = trial.value if trial.state == TrialState.COMPLETE else None
        return TrialRecord(
            number=trial.number,
            params=self.space.decode(trial.params),
            val_nll=notes["standardised"] + shift if trial.state == TrialState.PRUNED else value,
            state=notes["outcome"],
            epochs=notes["epochs"],
            seconds=notes["seconds"],
            reason=notes.get("reason", ""),
        )

    def _load_or_retrain(self, best: FrozenTrial, prepared: Prepared) -> Fitted:
        """Load the best model of an earlier process or, if its file is lost, train it again."""
        params = self.space.decode(best.params)
        settings = self.space.settings(params)
        try:
            assert self.best_file is not None
            loaded = modelfile.load(self.best_file, settings.module)
            if loaded.metrics.get(prepared.outcome.tunes) == best.value:
                return loaded
        except ModelFileError:
            pass
        fitted, _ = train(prepared, self.space.settings(params, best.user_attrs["time_budget"]))
        self._keep(replace(fitted, params=settings.params()))
        return fitted


def share_of_time(seconds: float, left: float, rounds: int) -> float:
    """Return the time for the next trial, of a budget of which so much is left: the last one gets all of it."""
    return min(left, max(TRIAL_SHARE * seconds, left / rounds))


def _rank(trial: FrozenTrial) -> tuple[float, int]:
    """Return the sort key of finished trials: the best first, ties by number."""
    assert trial.value is not None
    return trial.value, trial.number

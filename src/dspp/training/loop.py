"""The training loop: restarts, steps, recovery from non-finite numbers, validation, checkpoints, a time budget.

Batches and samples are a pure function of (seed, step), so the same seed gives the same bits, and a run can go on from
any step.
"""

import copy
import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import nn

from dspp.config import TrainConfig
from dspp.data.batches import derive_seed
from dspp.errors import CheckpointError, NumericalError, TrainingDiverged, TrainingInterrupted
from dspp.model import Model, build
from dspp.presets import Spec
from dspp.progress import ProgressBar
from dspp.training.checkpoint import Keeper, Moment
from dspp.training.clock import Clock
from dspp.training.rows import Batches, Rows, Source
from dspp.training.state import (
    Epoch,
    Recovery,
    Snapshot,
    TrainState,
    copy_weights,
    go_back,
    make_optimizer,
    resume,
    take_snapshot,
)
from dspp.training.step import Score, Stepper, own_randomness, score_together
from dspp.training.team import LOST, Team

RESTART_SHARE = 0.3  # of a time budget: restarts that would take more are left out

SMOOTHING = 0.9  # of the training NLL shown


@dataclass(frozen=True)
class FitResult:
    """A trained model and how it got there."""

    model: Model
    history: tuple[Epoch, ...]
    restart_nll: tuple[float, ...]  # training NLL of each restart; the smallest was trained on
    best_epoch: int | None  # the epoch whose state was kept, when there were validation rows
    recoveries: tuple[Recovery, ...]
    jitter_climbs: int
    notes: tuple[str, ...]
    seconds: float  # those before a resume included
    planned_epochs: int  # at whose end the schedule ends; under a time budget the last may be a part of one
    stopped: str  # why training ended: "finished", "early" (no better on validation rows) or "time" (the budget)


class Trainer:
    """One call of `fit`; see there for the arguments."""

    def __init__(
        self,
        spec: Spec,
        config: TrainConfig,
        train: Source,
        val: Rows | None,
        features: nn.Module | None,
        clock: Clock,
        keeper: Keeper | None,
        on_epoch: Callable[[Epoch], None] | None,
        should_stop: Callable[[], bool] | None,
        team: Team,
        snapshot_steps: int,
        restart_rows: int,
        score: Score,
    ) -> None:
        self.spec, self.config, self.train, self.val, self.features = spec, config, train, val, features
        self.clock, self.keeper, self.on_epoch, self.should_stop = clock, keeper, on_epoch, should_stop
        self.team, self.snapshot_steps, self.restart_rows, self.score = team, snapshot_steps, restart_rows, score
        self.stepper = Stepper(spec.objective, config, len(train), features is not None, team)
        self.steps_an_epoch = math.ceil(len(train) / config.batch_size)
        clock.validation = 0 if val is None else len(val) / config.batch_size
        self.full_steps = self.total_steps = config.epochs * self.steps_an_epoch
        self.trying = config.restarts > 1  # whether starts are still being compared
        self.trial_steps = min(config.restart_epochs, config.epochs) * self.steps_an_epoch if self.trying else 0
        self.scores: list[float] = []
        self.best: tuple[TrainState, Snapshot] | None = None  # of the starts tried
        self.good: Moment | None = None  # the last moment to go back to, or on from
        self.pending: Moment | None = None  # one that becomes it when a step from there has succeeded
        self.weighed = False  # whether the time budget has been held against the pace
        self.notes: list[str] = []

    def run(self, progress: bool | None) -> FitResult:
        """Try the starts, train the best to the end; or go on from where an earlier process left this run."""
        saved = self._take_over()
        if saved is not None and saved.stopped is not None:
            return self._result(self._resumed(saved.current), saved)
        steps = self.total_steps + (self.config.restarts - 1) * self.trial_steps
        with ProgressBar(steps, progress, smoothing=SMOOTHING) as self.bar:
            try:
                state = self._best_start(saved)
                self._advance(state)
                self.good = self._moment(state, self._why_stopped(state))
                self._write_good()
            except KeyboardInterrupt:
                self._write_good()
                raise
            except TrainingInterrupted as lost:
                if str(lost) == LOST:
                    self._stop(LOST)
                raise
        return self._result(state, self.good)

    def _take_over(self) -> Moment | None:
        """What an earlier process has left, with its counts taken over."""
        saved = None if self.keeper is None else self.keeper.saved
        if self.keeper is None or saved is None:
            return None
        self.trying, self.scores = saved.trying, list(saved.scores)
        if self.clock.budget is not None and saved.budget == self.clock.budget:  # else its plan is void
            self.total_steps = saved.total_steps
        self.notes = list(dict.fromkeys(saved.notes if saved.stopped else saved.notes + self.keeper.notes))
        if saved.best is not None:
            self.best = (self._resumed(saved.best), saved.best)
        self.clock.go_on_from(saved.seconds)
        return saved

    def _result(self, state: TrainState, end: Moment) -> FitResult:
        if state.best_weights is not None:
            state.model.load_state_dict(state.best_weights)
        model = state.model.eval()
        assert end.stopped is not None
        return FitResult(
            model=model,
            history=tuple(state.history),
            restart_nll=end.scores,
            best_epoch=state.best_epoch,
            recoveries=tuple(state.recoveries),
            jitter_climbs=model.jitter_climbs,
            notes=model.notes + end.notes,
            seconds=end.seconds,
            planned_epochs=math.ceil(end.total_steps / self.steps_an_epoch),
            stopped=end.stopped,
        )

    # ------------------------------------------------------------ starts

    def _best_start(self, saved: Moment | None) -> TrainState:
        """Train each start for a short while and keep the one with the lowest training NLL."""
        if not self.trying:
            return self._start(0) if saved is None else self._resumed(saved.current)
        for trial in range(len(self.scores), self.config.restarts):
            state = self._start(trial) if saved is None else self._resumed(saved.current)
            saved = None
            score = self._try(state)
            if not self.trying:
                return state  # the time budget has no room for the others
            if math.isfinite(score) and score < min((s for s in self.scores if math.isfinite(s)), default=math.inf):
                self.best = (state, take_snapshot(state))
            self.scores.append(score)
            if self._no_time_for_another():
                break
        if self.best is None:
            raise TrainingDiverged(
                f"all {len(self.scores)} starts diverged; lower learning_rate (now {self.config.learning_rate}), "
                "and check that the rows are standardised"
            )
        self.trying = False
        return self.best[0]

    def _no_time_for_another(self) -> bool:
        """Whether one more start, which may take as long as each has, would take too much of the time budget."""
        budget, tried, count = self.clock.budget, len(self.scores), self.config.restarts
        if budget is None or tried == count or self.clock.spent * (1 + 1 / tried) <= RESTART_SHARE * budget:
            return False
        self.notes.append(f"the time budget of {budget:g} s had room to try {tried} of {count} starts")
        return True

    def _try(self, state: TrainState) -> float:
        """Train a start for a short while; its training NLL, or NaN when it is out of the race."""
        try:
            self._advance(state)
            return self._score(state, self._trial_rows()) if self.trying else math.nan
        except (NumericalError, TrainingDiverged):
            if not self.trying:
                raise
            return math.nan

    def _trial_rows(self) -> Rows:
        """Rows from everywhere in the table, which may be sorted, to compare the starts on."""
        start = self.train.start
        if len(start) <= self.restart_rows:
            return start
        generator = torch.Generator().manual_seed(derive_seed(self.config.seed, 3))
        return start[torch.randperm(len(start), generator=generator)[: self.restart_rows].to(start.x.device)]

    def _start(self, trial: int) -> TrainState:
        start = self.train.start
        num_outputs = None if start.y.dim() == 1 else start.y.shape[1]
        seed = derive_seed(self.config.seed, trial)
        features = copy.deepcopy(self.features)  # each start trains its own
        with own_randomness(seed, start.x.device, features is not None):
            model = build(self.spec.model, start.x, num_outputs, seed, features)
        model.train()
        optimizer = make_optimizer(model, self.config)
        return TrainState(model, self.team.wrap(model), optimizer, trial, seed, clock=self.team.clock)

    def _resumed(self, snapshot: Snapshot) -> TrainState:
        state = self._start(snapshot.trial)
        try:
            resume(state, snapshot)
        except (RuntimeError, ValueError, KeyError) as problem:
            raise CheckpointError(f"the checkpoint does not hold this model ({problem!s:.200}); delete it") from None
        return state

    # ------------------------------------------------------------ epochs and steps

    @property
    def until(self) -> int:
        """The step to train to, for now."""
        return self.trial_steps if self.trying else self.total_steps

    def _advance(self, state: TrainState) -> None:
        """Train until step `until`, or until validation or the time budget says to stop."""
        while state.step < self.until and not self._no_better(state) and not (self.clock.over and state.history):
            self._epoch(state)

    def _no_better(self, state: TrainState) -> bool:
        patience = self.config.patience
        return (
            patience is not None and state.best_epoch is not None and len(state.history) - state.best_epoch >= patience
        )

    def _why_stopped(self, state: TrainState) -> str:
        if state.step >= self.full_steps:
            return "finished"
        if self._no_better(state):
            return "early"
        done = state.step / self.steps_an_epoch
        self.notes.append(
            f"the time budget of {self.clock.budget:g} s allowed {done:.3g} of {self.config.epochs} epochs"
        )
        return "time"

    def _epoch(self, state: TrainState) -> None:
        """Train to the end of an epoch, from its first step or from within."""
        if not state.values:
            state.epoch_begin = state.clock()
        self.clock.start_lap()
        epoch = state.step // self.steps_an_epoch
        batches = self.train.batches(self.config.batch_size, state.seed, epoch)
        self._keep(state)
        while True:
            try:
                self._steps(state, epoch, batches)
                val_nll = self._validate(state)
                break
            except NumericalError as error:
                self._recover(state, str(error))
                if state.step < epoch * self.steps_an_epoch:
                    return  # the epoch before is repeated
        self._record(state, epoch + 1, val_nll)
        if self.on_epoch is not None and not self.trying:
            self.on_epoch(state.history[-1])
        self.clock.end_epoch()

    def _steps(self, state: TrainState, epoch: int, batches: Batches) -> None:
        assert self.good is not None
        offset = (state.trial if self.trying else max(len(self.scores) - 1, 0)) * self.trial_steps
        while state.step < min((epoch + 1) * self.steps_an_epoch, self.until):
            if self.clock.over and state.values:  # however small the budget, one step is made
                return
            last = (self.pending or self.good).current.step
            if state.step - last >= self.snapshot_steps or (not self.weighed and self.clock.can_plan):
                self._keep(state)
            batch = batches[state.step % self.steps_an_epoch]
            state.values[state.step], train_nll = self.stepper.step(state, batch, state.step / self.total_steps)
            if train_nll is not None:
                state.nlls[state.step] = train_nll
            state.step += 1
            if self.pending is not None:
                self._trust(self.pending)
            self.clock.end_step()
            name = f"start {state.trial + 1} of {self.config.restarts}" if self.trying else "training"
            label = f"{name}, epoch {epoch + 1}"
            self.bar.update(offset + state.step, label, rows=len(batch), score=train_nll)
            if self.should_stop is not None and self.team.any(self.should_stop()):
                self._stop(f"training was stopped at step {state.step}")

    def _validate(self, state: TrainState) -> float | None:
        """The NLL of the validation rows; without any, the last state of all is tried on some training rows."""
        if self.val is not None:
            return self._score(state, self.val)
        if not self.trying and (state.step >= self.until or self.clock.over):
            self._score(state, self._trial_rows())
        return None

    def _score(self, state: TrainState, rows: Rows) -> float:
        return score_together(state.model, rows, self.team, self.score)

    def _record(self, state: TrainState, number: int, val_nll: float | None) -> None:
        rate = state.optimizer.param_groups[0]["lr"]
        seconds = state.clock() - state.epoch_begin
        state.history.append(Epoch(number, _mean(state.values), _mean(state.nlls), val_nll, rate, seconds))
        state.values, state.nlls = {}, {}
        if val_nll is not None and val_nll < state.best_nll:
            state.best_nll, state.best_epoch, state.best_weights = val_nll, number, copy_weights(state.model)

    # ------------------------------------------------------------ good moments

    def _keep(self, state: TrainState) -> None:
        """Keep this moment to go back to, once a step from there succeeds: the last one may have spoilt the model."""
        self._plan(state)
        self.pending = self._moment(state)
        if self.good is None or self.good.current.trial != state.trial:  # there is no other
            self._trust(self.pending)

    def _trust(self, moment: Moment) -> None:
        """Take a moment as the one to go back to, and write it down when it is time to."""
        self.good, self.pending = moment, None
        if self.keeper is not None:
            self.keeper.offer(moment)

    def _moment(self, state: TrainState, stopped: str | None = None) -> Moment:
        best = self.best[1] if self.best is not None and self.trying else None
        return Moment(
            current=take_snapshot(state),
            trying=self.trying,
            best=best,
            scores=tuple(self.scores),
            total_steps=self.total_steps,
            seconds=self.clock.spent,
            notes=tuple(self.notes),
            stopped=stopped,
            budget=self.clock.budget,
        )

    def _recover(self, state: TrainState, reason: str) -> None:
        """Back to the last good state, with half the learning rate."""
        assert self.good is not None
        failed, good = state.step, self.good.current
        self.pending = None
        go_back(state, good)
        state.rate_factor *= 0.5
        state.recoveries.append(Recovery(failed, good.step, reason, state.rate_factor))
        if len(state.recoveries) > self.config.max_recoveries:
            raise TrainingDiverged(
                f"step {failed}: {reason}; {self.config.max_recoveries} returns to a good state did not help. Lower "
                f"learning_rate (now {self.config.learning_rate}), or use dtype='float64'"
            )

    def _stop(self, what: str) -> NoReturn:
        """Keep the last good moment and end training."""
        self._write_good()
        if self.keeper is None:
            raise TrainingInterrupted(f"{what}; there is no checkpoint, so the work is lost: pass checkpoint=<path>")
        raise TrainingInterrupted(f"{what}; go on from {self.keeper.path} with the same call and resume=True")

    def _write_good(self) -> None:
        """Write down the last good moment; the steps since then will be repeated."""
        if self.keeper is not None and self.good is not None:
            seconds = self.good.seconds if self.good.stopped else self.clock.spent
            self.keeper.write(dataclasses.replace(self.good, seconds=seconds))

    def _plan(self, state: TrainState) -> None:
        """Under a time budget, let the schedule end when the time does."""
        if self.clock.budget is None or not self.clock.can_plan:
            return
        self.weighed = True
        trials = self.config.restarts * self.trial_steps * self.clock.step_seconds
        if self.trying and state.trial == 0 and trials > RESTART_SHARE * self.clock.budget:
            self.trying = False
            self.notes.append(
                f"the time budget of {self.clock.budget:g} s has no room to try {self.config.restarts} starts; the "
                "first was trained"
            )
        if not self.trying:
            self.total_steps = min(self.full_steps, state.step + self.clock.steps_left(self.steps_an_epoch))
            self.bar.expect(self.total_steps + max(len(self.scores) - 1, 0) * self.trial_steps)


def _mean(values: dict[int, float]) -> float:
    return sum(values.values()) / len(values) if values else float("nan")

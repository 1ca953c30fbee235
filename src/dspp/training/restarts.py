"""Restarts: several starts are trained briefly, and the one with the lowest training NLL is trained to the end."""

import copy
import math
from collections.abc import Callable, Iterator

import torch
from torch import nn

from dspp.batches import derive_seed
from dspp.config import TrainConfig
from dspp.errors import NumericalError, TrainingDiverged
from dspp.model import build
from dspp.presets import Spec
from dspp.training.loop import Stage
from dspp.training.plan import Plan
from dspp.training.rows import Rows
from dspp.training.state import RunState, Start, StartState, make_optimizer
from dspp.training.step import own_randomness

TRIAL_ROWS = 3  # derives the seed of the rows on which starts are compared


def start_seed(seed: int, trial: int) -> int:
    """Return the seed of start number `trial`."""
    return derive_seed(seed, trial if trial < TRIAL_ROWS else trial + 1)


def trial_rows(start: Rows, count: int, seed: int) -> Rows:
    """Draw `count` rows on which to compare starts, at random because the table may be sorted."""
    if len(start) <= count:
        return start
    generator = torch.Generator().manual_seed(derive_seed(seed, TRIAL_ROWS))
    return start[torch.randperm(len(start), generator=generator)[:count].to(start.x.device)]


def new_start(
    spec: Spec, config: TrainConfig, rows: Rows, features: nn.Module | None, clock: Callable[[], float], trial: int
) -> Start:
    """Build the model of start number `trial` on `rows`, and its optimiser."""
    seed = start_seed(config.seed, trial)
    features = copy.deepcopy(features)  # each start trains its own copy
    with own_randomness(seed, rows.x.device, features is not None):
        model = build(spec.model, rows.x, rows.y.shape[1], seed, features)
    model.train()
    optimizer = make_optimizer(model, config)
    return Start(model, optimizer, seed, clock, StartState(trial))


class Restarts:
    """The starts of a run, and the best of those tried.

    Args:
        config: training settings.
        plan: the number of steps per trial, and of starts that fit into the time budget.
        start_at: returns start number `trial`, new or resumed from a state.
        train: trains a start for a stage, yielding before each step.
        score: scores a start on the rows on which starts are compared.
        note: records a note for the user.
        saved: the state an earlier process saved.
    """

    def __init__(
        self,
        config: TrainConfig,
        plan: Plan,
        start_at: Callable[[int, StartState | None], Start],
        train: Callable[[Start, Stage], Iterator[None]],
        score: Callable[[Start], float],
        note: Callable[[str], None],
        saved: RunState | None,
    ) -> None:
        self._config, self._plan, self._start_at = config, plan, start_at
        self._train, self._score, self._note = train, score, note
        self._current = None if saved is None else saved.current
        self._are_compared = config.restarts > 1 if saved is None else saved.trying
        self.scores = () if saved is None else saved.scores  # training NLL of each start tried
        self.best_state = None if saved is None else saved.best  # of the starts tried, at the end of its trial
        self._best = None if self.best_state is None else start_at(self.best_state.trial, self.best_state)

    def choose(self) -> Start:
        """Return the start to train to the end, in the state in which its trial or an earlier process left it.

        Raises:
            TrainingDiverged: all starts diverged.
        """
        if not self._are_compared:
            return self._first()
        count = self._config.restarts
        for trial in range(len(self.scores), count):
            start = self._first() if self._current else self._start_at(trial, None)
            self._current = None
            if not self._try(start):
                self._tell(f"is too short to try {count} starts; only the first was trained")
                return start
            tried = trial + 1
            if tried < count and not self._plan.has_room_for_another_start(tried):
                self._tell(f"allowed {tried} of {count} starts to be tried")
                break
        if self._best is None:
            raise TrainingDiverged(
                f"all {len(self.scores)} starts diverged; lower learning_rate (now {self._config.learning_rate}), "
                "and check that the rows are standardised"
            )
        return self._best

    def _first(self) -> Start:
        return self._start_at(self._current.trial if self._current else 0, self._current)

    def _try(self, start: Start) -> bool:
        """Train a start briefly and score it; return False if the time budget is too short to compare starts."""
        number, steps = start.state.trial, self._plan.trial_steps
        label = f"start {number + 1} of {self._config.restarts}"
        score = math.nan  # of a start that diverges
        try:
            for _ in self._train(start, Stage(label, lambda: steps, trying=True, steps_before=number * steps)):
                if number == 0 and not self._plan.has_room_for_starts():
                    return False
            score = self._score(start)
        except (NumericalError, TrainingDiverged):
            pass
        if score < min((s for s in self.scores if math.isfinite(s)), default=math.inf):
            self._best, self.best_state = start, start.capture()
        self.scores += (score,)
        return True

    def _tell(self, what: str) -> None:
        self._note(f"the time budget of {self._plan.clock.budget:g} s {what}")

"""The time of a run: spent so far, per step and per epoch end; and how many steps still fit into its budget."""

import math
from collections.abc import Callable

from dspp.errors import InputError

PACE_LAPS = 100  # steps the pace is averaged over, so that it follows a machine that gets busier
PLAN_LAPS = 30  # steps measured before a plan is made,
PLAN_SHARE = 0.05  # or fewer, if they have taken this share of the budget
VALIDATION_SHARE = 0.4  # assumed cost of validation per row, relative to training, until it has been measured
RESERVE = 0.01  # share of the budget kept in reserve


class Clock:
    """The time a run has spent of its budget.

    Args:
        budget: seconds for the whole run; None for no limit.
        now: returns the time in seconds.

    Raises:
        InputError: the budget is not a positive number.
    """

    def __init__(self, budget: float | None, now: Callable[[], float]) -> None:
        if budget is not None and not (math.isfinite(budget) and budget > 0):
            raise InputError(f"time_budget: expected seconds > 0, or None for no limit, got {budget!r}")
        self.budget = budget
        self._now = now
        self.validation = 0.0  # number of validation batches per epoch
        self._begin = self._lap = self._now()
        self._laps = 0
        self.step_seconds = 0.0
        self._turn_seconds: float | None = None  # per end of an epoch: validation and the user's callback

    @property
    def spent(self) -> float:
        """Seconds since the beginning, including those before a resume."""
        return self._now() - self._begin

    def add_spent(self, seconds: float) -> None:
        """Count seconds that an earlier process spent."""
        self._begin -= seconds

    @property
    def over(self) -> bool:
        """Whether the budget is used up."""
        return self.budget is not None and self.spent >= self.budget

    def start_lap(self) -> None:
        """Start timing a step; time before this call is not part of one."""
        self._lap = self._now()

    def end_step(self) -> None:
        """Record the end of a step."""
        now = self._now()
        self._laps += 1
        if self._laps > 1:  # the first step includes one-time costs
            self.step_seconds += (now - self._lap - self.step_seconds) / min(self._laps - 1, PACE_LAPS)
        self._lap = now

    def end_epoch(self) -> None:
        """Record the end of the work done after an epoch."""
        now = self._now()
        self._turn_seconds, self._lap = now - self._lap, now

    @property
    def can_plan(self) -> bool:
        """Whether there is a budget and a measured pace."""
        if self.budget is None or self._laps < 3:
            return False
        return self._laps >= PLAN_LAPS or self.spent >= PLAN_SHARE * self.budget

    def steps_left(self, steps_per_epoch: int) -> int:
        """Return the number of steps, at least 1, that fit into the time left, including the work after each epoch."""
        assert self.budget is not None
        turn = self._turn_seconds
        if turn is None:
            turn = VALIDATION_SHARE * self.validation * self.step_seconds
        left = (1 - RESERVE) * self.budget - self.spent - turn
        return max(1, int(left / (self.step_seconds + turn / steps_per_epoch)))

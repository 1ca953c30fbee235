"""The time a run takes: spent so far, a step, an epoch's end; and how many steps still fit into its budget."""

import math
from collections.abc import Callable

from dspp.errors import InputError

PACE_LAPS = 100  # the pace is a mean over about so many steps, so that it follows a machine that gets busier
PLAN_LAPS = 30  # steps measured before a plan is made,
PLAN_SHARE = 0.05  # or fewer, when they have taken this share of the budget
VALIDATION_SHARE = 0.4  # of a training step, a row: what validation is taken to cost until it has been measured
RESERVE = 0.01  # share of the budget that is not planned with


class Clock:
    """What a run has spent of its `budget` (seconds; None: no limit).

    Args:
        budget: seconds for the whole run.
        now: returns the time in seconds; processes that train together share one, so that they decide alike.

    Raises:
        InputError: the budget is not a positive number.
    """

    def __init__(self, budget: float | None, now: Callable[[], float]) -> None:
        if budget is not None and not (math.isfinite(budget) and budget > 0):
            raise InputError(f"time_budget: got {budget!r}, expected seconds > 0, or None for no limit")
        self.budget = budget
        self._now = now
        self.validation = 0.0  # batches of validation rows at the end of each epoch
        self._begin = self._lap = self._now()
        self._laps = 0
        self.step_seconds = 0.0
        self._turn_seconds: float | None = None  # of the end of an epoch: validation and the user's callback

    @property
    def spent(self) -> float:
        """Seconds since the beginning, those before a resume included."""
        return self._now() - self._begin

    def go_on_from(self, seconds: float) -> None:
        """Count `seconds` that were spent before this process took over."""
        self._begin -= seconds

    @property
    def over(self) -> bool:
        """Whether the budget is used up."""
        return self.budget is not None and self.spent >= self.budget

    def start_lap(self) -> None:
        """What came before belongs to no step."""
        self._lap = self._now()

    def end_step(self) -> None:
        """A step ends here."""
        now = self._now()
        self._laps += 1
        if self._laps > 1:  # the first also pays for what later ones find ready
            self.step_seconds += (now - self._lap - self.step_seconds) / min(self._laps - 1, PACE_LAPS)
        self._lap = now

    def end_epoch(self) -> None:
        """The work at the end of an epoch ends here."""
        now = self._now()
        self._turn_seconds, self._lap = now - self._lap, now

    @property
    def can_plan(self) -> bool:
        """Whether there is a budget, and a pace to plan with."""
        if self.budget is None or self._laps < 3:
            return False
        return self._laps >= PLAN_LAPS or self.spent >= PLAN_SHARE * self.budget

    def steps_left(self, steps_per_epoch: int) -> int:
        """Steps that fit into what is left, with the end of each epoch and one more, of the last; at least one."""
        assert self.budget is not None
        turn = self._turn_seconds
        if turn is None:
            turn = VALIDATION_SHARE * self.validation * self.step_seconds
        left = (1 - RESERVE) * self.budget - self.spent - turn
        return max(1, int(left / (self.step_seconds + turn / steps_per_epoch)))

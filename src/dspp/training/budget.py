"""The time of a run: spent so far, per step and per end of an epoch; and how many steps still fit into its budget."""

import math
import time
from collections.abc import Callable

from dspp.errors import InputError

PACE_STEPS = 100  # steps over which the pace is averaged, so that it follows a machine that gets busier
PLAN_STEPS = 30  # steps measured before a plan is made,
PLAN_SHARE = 0.05  # or fewer, if they have taken this share of the budget; also between two plans
RESTART_SHARE = 0.3  # of the budget; restarts that would take more are skipped
VALIDATION_SHARE = 0.4  # assumed cost of validation per row, relative to training, until it has been measured
RESERVE = 0.01  # share of the budget kept in reserve


class Budget:
    """The time budget of one run, which begins when this is created.

    The schedule is shortened to end in time, restarts that would take too long are skipped, and training ends at the
    deadline. Time spent before a resume counts.

    Args:
        seconds: the budget; None for no limit.
        clock: returns the time in seconds.

    Raises:
        InputError: the budget is not a positive number.

    Example:
        >>> from dspp.training import Budget
        >>> Budget(60.0).is_over
        False
    """

    def __init__(self, seconds: float | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
            raise InputError(f"time_budget: expected seconds > 0, or None for no limit, got {seconds!r}")
        self.seconds, self.clock = seconds, clock
        self._limit = math.inf if seconds is None else seconds
        self._begin = self._step_begin = clock()
        self._steps = 0
        self._step_seconds = 0.0
        self._turn_seconds: float | None = None  # per end of an epoch: validation and the user's callback
        self._planned = -math.inf  # when the last plan was made

    @property
    def spent(self) -> float:
        """Seconds since the beginning, including those before a resume."""
        return self.clock() - self._begin

    @property
    def left(self) -> float | None:
        """Seconds that are left, possibly none; None: any number."""
        return None if self.seconds is None else self.seconds - self.spent

    def add_spent(self, seconds: float) -> None:
        """Count seconds that an earlier process spent."""
        self._begin -= seconds

    @property
    def is_over(self) -> bool:
        """Whether the budget is used up."""
        return self.spent >= self._limit

    def begin_step(self) -> None:
        """Start timing a step; time before this call is not part of one."""
        self._step_begin = self.clock()

    def end_step(self) -> None:
        """Record the end of a step, and the beginning of the next."""
        now = self.clock()
        self._steps += 1
        if self._steps > 1:  # the first step includes one-time costs
            self._step_seconds += (now - self._step_begin - self._step_seconds) / min(self._steps - 1, PACE_STEPS)
        self._step_begin = now

    def end_epoch(self) -> None:
        """Record the end of the work done after an epoch."""
        self._turn_seconds = self.clock() - self._step_begin

    @property
    def can_plan(self) -> bool:
        """Whether there is a budget and a measured pace."""
        if self.seconds is None or self._steps < 3:
            return False
        return self._steps >= PLAN_STEPS or self.spent >= PLAN_SHARE * self.seconds

    @property
    def is_plan_due(self) -> bool:
        """Whether a plan can be made, and the last one is old."""
        return self.can_plan and self.spent - self._planned >= PLAN_SHARE * self._limit

    def steps_left(self, steps_per_epoch: int, validation_batches: float) -> int:
        """Return the number of steps, at least 1, that fit into the time left, including the work after each epoch."""
        self._planned = self.spent
        turn = self._turn_seconds
        if turn is None:
            turn = VALIDATION_SHARE * validation_batches * self._step_seconds
        left = (1 - RESERVE) * self._limit - self.spent - turn
        return max(1, int(left / (self._step_seconds + turn / steps_per_epoch)))

    def has_room_for_starts(self, steps: int) -> bool:
        """Return whether trying all starts, for so many steps at the measured pace, leaves enough of the budget."""
        return steps * self._step_seconds <= RESTART_SHARE * self._limit

    def has_room_for_another_start(self, tried: int) -> bool:
        """Return whether one more start, as long as the others on average, leaves enough of the budget."""
        return self.spent * (1 + 1 / tried) <= RESTART_SHARE * self._limit

"""The number of steps of a run: all of its epochs, or as many as fit into its time budget."""

from dspp.config import TrainConfig
from dspp.training.clock import Clock

RESTART_SHARE = 0.3  # of the time budget; restarts that would take more are skipped


class Plan:
    """The steps of a run; under a time budget the plan is revised as the pace becomes known.

    Args:
        config: training settings.
        steps_per_epoch: steps per epoch.
        clock: the time spent of the budget.
    """

    def __init__(self, config: TrainConfig, steps_per_epoch: int, clock: Clock) -> None:
        self.clock, self.steps_per_epoch, self._restarts = clock, steps_per_epoch, config.restarts
        self.full_steps = self.total_steps = config.epochs * steps_per_epoch
        self.trial_steps = min(config.restart_epochs, config.epochs) * steps_per_epoch if config.restarts > 1 else 0
        self._is_made = False

    @property
    def is_due(self) -> bool:
        """Whether a first plan can be made."""
        return not self._is_made and self.clock.can_plan

    def revise(self, step: int, trying: bool) -> None:
        """End the schedule when time runs out, as estimated at `step`; trials are too short for this."""
        if not self.clock.can_plan:
            return
        self._is_made = True
        if not trying:
            self.total_steps = min(self.full_steps, step + self.clock.steps_left(self.steps_per_epoch))

    def has_room_for_starts(self) -> bool:
        """Return whether trying all starts is expected to leave enough of the time budget."""
        if self.clock.budget is None or not self.clock.can_plan:
            return True
        return self._restarts * self.trial_steps * self.clock.step_seconds <= RESTART_SHARE * self.clock.budget

    def has_room_for_another_start(self, tried: int) -> bool:
        """Return whether one more start, as long as the others on average, leaves enough of the time budget."""
        budget = self.clock.budget
        return budget is None or self.clock.spent * (1 + 1 / tried) <= RESTART_SHARE * budget

"""How many steps a run makes: all of its epochs, or as many as fit into its time budget."""

from dspp.config import TrainConfig
from dspp.training.clock import Clock

RESTART_SHARE = 0.3  # of a time budget: restarts that would take more are left out


class Plan:
    """The steps of a run; under a time budget they are planned anew as its pace becomes known.

    Args:
        config: how to train.
        steps_per_epoch: how many there are.
        clock: what the run has spent of its budget.
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
        """Let the schedule end when the time does, as seen from `step`; trials are too short for that."""
        if not self.clock.can_plan:
            return
        self._is_made = True
        if not trying:
            self.total_steps = min(self.full_steps, step + self.clock.steps_left(self.steps_per_epoch))

    def has_room_for_starts(self) -> bool:
        """Whether trying all starts would leave enough of the time budget, as far as can be said."""
        if self.clock.budget is None or not self.clock.can_plan:
            return True
        return self._restarts * self.trial_steps * self.clock.step_seconds <= RESTART_SHARE * self.clock.budget

    def has_room_for_another_start(self, tried: int) -> bool:
        """Whether one more start, which may take as long as each has, leaves enough of the time budget."""
        budget = self.clock.budget
        return budget is None or self.clock.spent * (1 + 1 / tried) <= RESTART_SHARE * budget

"""The training loop, on one start: epochs of steps, each with a validation at its end.

Batches and samples are a pure function of (seed, step), so the same seed gives the same bits, and a start can be
trained further from any step. Around the loop, each in a file of its own: returns to a good state (`recovery`), the
comparison of starts (`restarts`), the time budget (`plan`) and checkpoints (`checkpoint`); `run` puts them together.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from dspp.config import TrainConfig
from dspp.history import Epoch
from dspp.model import Model
from dspp.training.plan import Plan
from dspp.training.rows import Rows, Source
from dspp.training.state import Start
from dspp.training.step import TrainingStep


@dataclass(frozen=True)
class Stage:
    """What a start is trained for: a short trial, or all the way.

    Attributes:
        label: What to call it on a progress bar.
        last_step: Returns the step at which it ends; a plan may change it.
        trying: Whether starts are still being compared.
        steps_before: Steps of earlier stages, as a progress bar counts them.
        on_epoch: Called after each epoch.
        final_rows: Rows that the last state of all must have a finite score on, where there are no validation rows.
    """

    label: str
    last_step: Callable[[], int]
    trying: bool
    steps_before: int = 0
    on_epoch: Callable[[Epoch], None] | None = None
    final_rows: Rows | None = None


@dataclass(frozen=True)
class Loop:
    """What the steps of a run have in common.

    Attributes:
        config: How to train.
        train: The training rows.
        val: The validation rows.
        step: Makes a step.
        plan: When the schedule ends.
        score: Scores a model on rows; lower is better.
        on_step: Called after each step with the start, the stage, the number of rows and, at some steps, their NLL.
    """

    config: TrainConfig
    train: Source
    val: Rows | None
    step: TrainingStep
    plan: Plan
    score: Callable[[Model, Rows], float]
    on_step: Callable[[Start, Stage, int, float | None], None]

    def run(self, start: Start, stage: Stage) -> Iterator[None]:
        """Train a start to the last step of the stage, or until validation or the time budget says to stop.

        Yields before each step. There the caller may copy the start, and may leave it for good.

        Raises:
            NumericalError: a number is not finite; the start can be trained further from an earlier state.
        """
        clock, steps_per_epoch = self.plan.clock, self.plan.steps_per_epoch
        while start.state.step < stage.last_step() and not self.has_stalled(start):
            if clock.over and start.state.history:
                return
            start.begin_epoch()
            clock.start_lap()
            number = start.state.step // steps_per_epoch
            batches = self.train.batches(self.config.batch_size, start.seed, number)
            while start.state.step < min((number + 1) * steps_per_epoch, stage.last_step()):
                if clock.over and start.state.values:  # however small the budget, one step is made
                    break
                yield
                batch = batches[start.state.step % steps_per_epoch]
                nll = self.step.make(start, batch, start.state.step / self.plan.total_steps)
                self.on_step(start, stage, len(batch), nll)
            epoch = start.end_epoch(number + 1, self._validate(start, stage))
            if stage.on_epoch is not None:
                stage.on_epoch(epoch)
            clock.end_epoch()

    def has_stalled(self, start: Start) -> bool:
        """Whether validation has not become better for as long as the settings allow."""
        patience, best = self.config.patience, start.state.best_epoch
        return patience is not None and best is not None and len(start.state.history) - best >= patience

    def _validate(self, start: Start, stage: Stage) -> float | None:
        if self.val is not None:
            return self.score(start.model, self.val)
        if stage.final_rows is not None and (start.state.step >= stage.last_step() or self.plan.clock.over):
            self.score(start.model, stage.final_rows)
        return None

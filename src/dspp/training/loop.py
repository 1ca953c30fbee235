"""The training loop for one start: epochs of steps, each followed by validation.

Batches and samples are a pure function of (seed, step), so the same seed gives the same bits, and training can continue
from any step. Around the loop, each in its own file: recovery to a good state (`recovery`), comparison of starts
(`restarts`), the time budget (`plan`) and checkpoints (`checkpoint`); `run` puts them together.
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
    """A stage of training: a short trial of a start, or the full training.

    Attributes:
        label: Its name on a progress bar.
        last_step: Returns the step at which it ends; the plan may change it.
        trying: Whether starts are still being compared.
        steps_before: Steps of earlier stages, for the progress bar.
        on_epoch: Called after each epoch.
        final_rows: Without validation rows, rows on which the final state must have a finite score.
    """

    label: str
    last_step: Callable[[], int]
    trying: bool
    steps_before: int = 0
    on_epoch: Callable[[Epoch], None] | None = None
    final_rows: Rows | None = None


@dataclass(frozen=True)
class Loop:
    """What all steps of a run share.

    Attributes:
        config: Training settings.
        train: The training rows.
        val: The validation rows.
        step: Makes a step.
        plan: The planned number of steps.
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
        """Train a start until the last step of the stage, early stopping or the end of the time budget.

        Yields before each step, where the caller may copy the start or abandon it.

        Raises:
            NumericalError: a number is not finite; training can continue from an earlier state.
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
                if clock.over and start.state.values:  # at least one step, however small the budget
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
        """Return whether the validation score has not improved for `config.patience` epochs."""
        patience, best = self.config.patience, start.state.best_epoch
        return patience is not None and best is not None and len(start.state.history) - best >= patience

    def _validate(self, start: Start, stage: Stage) -> float | None:
        if self.val is not None:
            return self.score(start.model, self.val)
        if stage.final_rows is not None and (start.state.step >= stage.last_step() or self.plan.clock.over):
            self.score(start.model, stage.final_rows)
        return None

"""Recovery to a good state when a number is not finite; checkpoints hold the same state."""

from dataclasses import replace

from dspp.config import TrainConfig
from dspp.errors import TrainingDiverged
from dspp.history import Recovery
from dspp.training.checkpoint import CheckpointWriter
from dspp.training.state import RunState, Start


class GoodState:
    """The last state from which a step has succeeded, to recover to and to resume from.

    A new state is not yet good, because the step that led to it may have spoilt the model.

    Args:
        writer: writes good states to a checkpoint at intervals; None for no checkpoint.
    """

    def __init__(self, writer: CheckpointWriter | None) -> None:
        self.state: RunState | None = None
        self._next: RunState | None = None
        self._writer = writer

    @property
    def last_step(self) -> int | None:
        """Step of the state kept last."""
        last = self._next or self.state
        return None if last is None else last.current.step

    def keep(self, state: RunState) -> None:
        """Keep a state, which is good once a step from it succeeds; the first state of a start is taken as good."""
        self._next = state
        if self.state is None or self.state.current.trial != state.current.trial:
            self.confirm()

    def confirm(self) -> None:
        """Mark the state kept last as good."""
        if self._next is not None:
            self.state, self._next = self._next, None
            if self._writer is not None:
                self._writer.offer(self.state)

    def write(self, spent: float) -> None:
        """Write the good state to the checkpoint, if any; a resumed run repeats the steps after it.

        Args:
            spent: seconds spent by the run so far.
        """
        if self._writer is not None and self.state is not None:
            seconds = self.state.seconds if self.state.stopped else spent
            self._writer.write(replace(self.state, seconds=seconds))

    def recover(self, start: Start, reason: str, config: TrainConfig) -> None:
        """Return to the good state and halve the learning rate.

        Raises:
            TrainingDiverged: this has happened more than `config.max_recoveries` times.
        """
        assert self.state is not None
        failed, good = start.state.step, self.state.current
        self._next = None
        start.return_to(good)
        start.state.rate_factor *= 0.5
        start.state.recoveries += (Recovery(failed, good.step, reason, start.state.rate_factor),)
        if len(start.state.recoveries) > config.max_recoveries:
            raise TrainingDiverged(
                f"step {failed}: {reason}; {config.max_recoveries} returns to a good state did not help. Lower "
                f"learning_rate (now {config.learning_rate}), or use dtype='float64'"
            )

"""What training leaves behind besides the model: its epochs, and its returns to a good state."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Epoch:
    """What one epoch left behind."""

    number: int  # 1 is the first
    objective: float  # mean over the steps, per row
    train_nll: float  # mean over the steps at which it was taken
    val_nll: float | None
    learning_rate: float  # at its last step
    seconds: float


@dataclass(frozen=True)
class Recovery:
    """A return to the last good state."""

    step: int  # the step that failed
    back_to: int  # the step returned to
    reason: str
    rate_factor: float  # the learning rate is multiplied by this from then on

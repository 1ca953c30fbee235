"""The history of training: its epochs and its recoveries."""

from dataclasses import dataclass

from dspp.codec import AnyFloat


@dataclass(frozen=True)
class Epoch:
    """The results of one epoch."""

    number: int  # 1 is the first
    objective: AnyFloat  # mean over the steps, per row
    train_nll: AnyFloat  # mean over the steps at which it was computed
    val_nll: float | None
    learning_rate: float  # at the last step
    seconds: float


@dataclass(frozen=True)
class Recovery:
    """A return to the last good state."""

    step: int  # the step that failed
    back_to: int  # the step returned to
    reason: str
    rate_factor: float  # multiplies the learning rate from then on

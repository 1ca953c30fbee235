"""The state of a run: everything needed to return to a step, or to resume from it, bit for bit."""

import math
from dataclasses import dataclass, field

from torch import Tensor

from dspp.codec import AnyFloat
from dspp.history import Epoch, Recovery

Tensors = dict[str, Tensor]


@dataclass
class State:
    """Plain data, stored in checkpoints; a run counts in one, and keeps copies with tensors."""

    # the run
    total_steps: int  # length of the schedule
    budget: float | None = None  # time budget in seconds, for which total_steps was planned
    seconds: float = 0.0  # spent so far
    notes: tuple[str, ...] = ()
    stopped: str | None = None  # why training ended; None while it is running
    # the starts
    trying: bool = False  # whether starts are still being compared
    scores: tuple[AnyFloat, ...] = ()  # training NLL of each start tried
    best: "State | None" = None  # the best start tried, at the end of its trial
    trial: int = 0  # number of the current start
    # the current start
    step: int = 0
    weights: Tensors = field(default_factory=dict)  # empty at the beginning of a start
    moments: Tensors = field(default_factory=dict)
    jitter_increases: tuple[int, ...] = ()  # increases of the jitter, per layer
    rate_factor: float = 1.0
    history: tuple[Epoch, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    best_weights: Tensors | None = None  # at the end of `best_epoch`
    # its current epoch
    epoch_seconds: float = 0.0
    objective_sum: float = 0.0
    nll_sum: float = 0.0  # over the steps at which the NLL was computed

    @property
    def best_epoch(self) -> int | None:
        """The epoch with the lowest validation NLL; None without validation rows, or before the first epoch."""
        scores = [math.inf if epoch.val_nll is None else epoch.val_nll for epoch in self.history]
        best = min(scores, default=math.inf)
        return None if best == math.inf else 1 + scores.index(best)

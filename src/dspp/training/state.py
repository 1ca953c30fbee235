"""The state of a run: everything needed to return to a step, or to resume from it, bit for bit."""

import math
from dataclasses import dataclass, field

from torch import Tensor

from dspp.codec import AnyFloat
from dspp.history import Epoch, Recovery
from dspp.training.adam import Moments

Weights = dict[str, Tensor]


@dataclass
class State:
    """Plain data, stored in checkpoints; a run counts in one whose tensors are empty, and keeps copies with tensors."""

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
    weights: Weights = field(default_factory=dict)
    moments: Moments = field(default_factory=dict)
    climbs: tuple[int, ...] = ()  # increases of the jitter, per layer
    rate_factor: float = 1.0
    history: tuple[Epoch, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    best_nll: AnyFloat = math.inf  # on validation rows
    best_epoch: int | None = None
    best_weights: Weights | None = None  # replaced by better ones, never modified in place
    # its current epoch
    epoch_steps: int = 0
    epoch_seconds: float = 0.0
    objective_sum: float = 0.0
    nll_steps: int = 0  # at which the NLL was computed
    nll_sum: float = 0.0

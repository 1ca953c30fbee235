"""Learning-rate schedules: plain functions (share of training done) -> factor on the rate."""

import math
from collections.abc import Callable

from dspp.config import TrainConfig
from dspp.registry import Registry

Schedule = Callable[[float, TrainConfig], float]
SCHEDULES: Registry[Schedule] = Registry("schedule")


@SCHEDULES.register("constant")
def constant(done: float, config: TrainConfig) -> float:
    """Keep the rate constant."""
    return 1.0


@SCHEDULES.register("step")
def step(done: float, config: TrainConfig) -> float:
    """Multiply the rate by `decay` at each milestone; the paper says only that it was progressively decreased."""
    return config.decay ** sum(done >= milestone for milestone in config.milestones)


@SCHEDULES.register("cosine")
def cosine(done: float, config: TrainConfig) -> float:
    """Raise the rate linearly over the share `warmup`, then lower it to 0 along half a cosine."""
    if done < config.warmup:
        return min(1.0, max(done, 1e-3) / config.warmup)
    rest = (done - config.warmup) / max(1 - config.warmup, 1e-12)
    return 0.5 * (1 + math.cos(math.pi * min(rest, 1.0)))

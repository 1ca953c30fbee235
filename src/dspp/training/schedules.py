"""Learning-rate schedules: plain functions (share of training done) -> factor on the rate."""

import math
from collections.abc import Callable

from dspp.config import TrainConfig
from dspp.registry import Registry

Schedule = Callable[[float, TrainConfig], float]
SCHEDULES: Registry[Schedule] = Registry("schedule")


@SCHEDULES.register("constant")
def constant(done: float, config: TrainConfig) -> float:
    """The same rate throughout."""
    return 1.0


@SCHEDULES.register("step")
def step(done: float, config: TrainConfig) -> float:
    """The rate falls by `decay` at each milestone; the paper says only that it was progressively decreased."""
    return config.decay ** sum(done >= milestone for milestone in config.milestones)


@SCHEDULES.register("cosine")
def cosine(done: float, config: TrainConfig) -> float:
    """A linear rise over the share `warmup`, then half a cosine down to 0."""
    if done < config.warmup:
        return min(1.0, max(done, 1e-3) / config.warmup)
    rest = (done - config.warmup) / max(1 - config.warmup, 1e-12)
    return 0.5 * (1 + math.cos(math.pi * min(rest, 1.0)))

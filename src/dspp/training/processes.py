"""Several processes that train one model together, on torch.distributed: each takes a part of every batch.

Every process holds the same parameters and makes the same decisions. `DistributedDataParallel` averages gradients; the
few numbers that decisions depend on (the objective, whether a step failed, the time) are summed over the group at each
step, so that all processes recover, stop or finish at the same step.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dspp.errors import InputError, TrainingInterrupted

LOST = "another process of this run has ended, so this one cannot continue"


@dataclass
class ProcessGroup:
    """The processes that train together; just this one if torch has no process group."""

    rank: int = 0
    size: int = 1
    clock: Callable[[], float] = time.perf_counter  # in seconds; all use that of the first process
    _time: float | None = None  # of the first process at the last `add`

    @classmethod
    def current(cls, clock: Callable[[], float] = time.perf_counter) -> "ProcessGroup":
        """Return torch's default process group, or a group of one."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls(clock=clock)
        return cls(dist.get_rank(), dist.get_world_size(), clock)

    def part(self, count: int) -> slice:
        """Return which of `count` rows belong to this process; sizes differ by at most one.

        Raises:
            InputError: there are fewer rows than processes.
        """
        if count < self.size:
            raise InputError(
                f"expected at least one row per process, got {self.size} processes for {count} rows; use a larger "
                "batch_size or fewer processes"
            )
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def wrap(self, model: nn.Module) -> nn.Module:
        """Return the module to call instead of the model, whose backward pass averages gradients over the group."""
        return model if self.size == 1 else DistributedDataParallel(model, gradient_as_bucket_view=True)

    def add(self, *numbers: float) -> list[float]:
        """Return the sum of each number over the group; all processes must call this at the same point.

        Raises:
            TrainingInterrupted: a process has ended.
        """
        if self.size == 1:
            return list(numbers)
        now = self.clock() if self.rank == 0 else 0.0
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        summed = torch.tensor([*numbers, now], dtype=torch.float64, device=device)
        with self.together():
            dist.all_reduce(summed)
        *totals, self._time = summed.tolist()
        return totals

    def any(self, flag: bool) -> bool:
        """Return whether the flag is True in any of the processes."""
        return self.add(float(flag))[0] > 0

    def now(self) -> float:
        """Return a time that is the same in all processes: that of the first, at the last `add`."""
        return self.clock() if self._time is None else self._time

    def wait(self) -> None:
        """Wait until all processes reach this point."""
        if self.size > 1:
            self.add()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Raise TrainingInterrupted in place of torch's errors for a lost process."""
        try:
            yield
        except RuntimeError as problem:
            if self.size == 1 or isinstance(problem, TrainingInterrupted) or not _is_lost(problem):
                raise
            raise TrainingInterrupted(LOST) from problem


def _is_lost(problem: RuntimeError) -> bool:
    words = ("connection", "closed", "timed out", "gloo", "nccl", "socket", "peer", "broken pipe")
    return any(word in str(problem).lower() for word in words)


def is_distributed() -> bool:
    """Return whether torchrun started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


@contextmanager
def join_processes(device: str) -> Iterator[ProcessGroup]:
    """Join the processes started by torchrun, if any, for the duration of the block."""
    if not is_distributed() or dist.is_initialized():
        yield ProcessGroup.current()
        return
    if device.startswith("cuda"):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield ProcessGroup.current()
    finally:
        dist.destroy_process_group()

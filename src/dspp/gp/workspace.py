"""Large buffers that are used again, step after step.

Fresh pages cost more than the arithmetic done on them: without this a training step takes a quarter longer. A buffer
goes back to the pool when nothing holds its lease any more; a graph in waiting for its backward pass keeps its own.

The garbage collector may drop a lease at any moment, also in the thread that is looking for a buffer just then. So the
way back takes no lock: `_returned` is a deque, whose `append` and `popleft` are atomic.
"""

import math
import threading
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

MAX_BUFFERS = 16
_returned: deque[Tensor] = deque(maxlen=MAX_BUFFERS)
_free: list[Tensor] = []
_lock = threading.Lock()  # of `_free`


class Lease:
    """A buffer of one's own until the lease is dropped."""

    def __init__(self, shape: Sequence[int], like: Tensor) -> None:
        size = math.prod(shape)
        self._buffer = _take(size, like)
        self.tensor = self._buffer[:size].view(*shape)

    def __del__(self) -> None:
        buffer = getattr(self, "_buffer", None)
        if buffer is not None and buffer.device.type == "cpu":  # CUDA has a caching allocator of its own
            _returned.append(buffer)


def release() -> None:
    """Give the memory of all buffers back that nobody holds."""
    with _lock:
        _returned.clear()
        _free.clear()


def _take(size: int, like: Tensor) -> Tensor:
    """A free buffer that fits without much waste, or a new one."""
    with _lock:
        while _returned:
            _free.append(_returned.popleft())
        del _free[:-MAX_BUFFERS]
        for i, buffer in enumerate(_free):
            if buffer.dtype == like.dtype and buffer.device == like.device and size <= buffer.numel() <= 2 * size:
                return _free.pop(i)
    return torch.empty(size, dtype=like.dtype, device=like.device)

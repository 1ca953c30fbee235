"""Large buffers that are reused from step to step.

Fresh pages cost more than the arithmetic done on them: without reuse a training step takes 25 % longer. A buffer
returns to the pool when its lease is dropped; a graph that waits for its backward pass keeps its own.

The garbage collector may drop a lease at any moment, even in a thread that is just looking for a buffer. Returning a
buffer therefore takes no lock: `_returned` is a deque, whose `append` and `popleft` are atomic.
"""

import functools
import math
import os
import threading
from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

MAX_BUFFERS = 16
KEPT = 1 << 24  # bytes
_returned: deque[Tensor] = deque(maxlen=MAX_BUFFERS)
_free: list[Tensor] = []
_lock = threading.Lock()  # protects `_free`
if hasattr(os, "register_at_fork"):  # no other thread holds the lock while a process forks: it would hold it for ever
    os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class Lease:
    """A buffer for exclusive use until the lease is dropped."""

    def __init__(self, shape: Sequence[int], like: Tensor) -> None:
        size = math.prod(shape)
        self._buffer = _take(size, like)
        self.tensor = self._buffer[:size].view(*shape)

    def __del__(self) -> None:
        buffer = getattr(self, "_buffer", None)
        if buffer is not None and buffer.device.type == "cpu":  # CUDA has its own caching allocator
            _returned.append(buffer)


def release() -> None:
    """Free the memory of all unused buffers."""
    with _lock:
        _returned.clear()
        _free.clear()


def _take(size: int, like: Tensor) -> Tensor:
    """Return a free buffer of at least `size` and at most twice that, or a new one."""
    with _lock:
        while _returned:
            _free.append(_returned.popleft())
        del _free[:-MAX_BUFFERS]
        for i, buffer in enumerate(_free):
            if buffer.dtype == like.dtype and buffer.device == like.device and size <= buffer.numel() <= 2 * size:
                return _free.pop(i)
    _keep_freed_memory()
    return torch.empty(size, dtype=like.dtype, device=like.device)


@functools.cache
def _keep_freed_memory() -> None:
    """Let the C library reuse the memory of the smaller tensors of a step, too.

    By default glibc returns freed memory to the system, page by page, when there is more of it than twice the largest
    block freed so far (see M_MMAP_THRESHOLD in mallopt(3)). This block is never written to, so it takes no memory.
    """
    torch.empty(KEPT, dtype=torch.uint8)

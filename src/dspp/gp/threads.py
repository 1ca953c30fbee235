"""Whole tasks on threads, in place of torch's threads inside each operation.

A small operation that is split over two threads has to be joined again, dozens of times per chunk of rows; and when
another process takes one of the cores, every join waits for it. Here a thread takes a whole chunk through all
operations, so a chunk stays in one core's cache and the threads meet once. Torch releases the interpreter's lock
during an operation. The number of threads is torch's own, `torch.get_num_threads()`; with one, none is started.

Threads do not survive a fork, but OpenMP in the child would wait for them. A forked process therefore uses one thread.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import torch

from dspp.errors import InputError

T = TypeVar("T")
_lock = threading.Lock()
_pools: dict[int, ThreadPoolExecutor] = {}  # at most one, by its number of threads


class _ThisThread(threading.local):
    """What is known of the thread that asks."""

    started = False  # whether torch may have started threads that work for it
    lost = False  # whether a fork has left these behind


_this = _ThisThread()


def num_threads() -> int:
    """Return `torch.get_num_threads()`.

    Raises:
        InputError: there should be several, but this is a forked process and OpenMP would wait for those of its parent.
    """
    count = torch.get_num_threads()
    if count > 1:
        if _this.lost:
            raise InputError(
                f"expected one thread in a process that was forked after its parent had used several, got {count}, for "
                "which it would wait for ever; call torch.set_num_threads(1), or start the process by 'spawn'"
            )
        _this.started = True
    return count


@contextmanager
def use_threads(count: int | None) -> Iterator[None]:
    """Let torch use so many threads for the duration of a block; None: as many as before.

    Raises:
        InputError: see `num_threads`.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        num_threads()  # raises before torch would hang
        yield
    finally:
        torch.set_num_threads(before)


def run(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run the tasks, without gradients, on at most `torch.get_num_threads()` threads; return their results in order.

    Tasks must not depend on each other. An exception of a task is raised here once no task is running any more, so
    that buffers of the caller are not written to after it returns.
    """
    count = min(num_threads(), len(tasks))
    if count <= 1:
        with torch.no_grad():
            return [task() for task in tasks]
    results: list[T | None] = [None] * len(tasks)
    waiting = deque(enumerate(tasks))
    inference = torch.is_inference_mode_enabled()  # like no_grad, a setting of the thread

    def work() -> None:
        try:
            with torch.inference_mode(inference), torch.no_grad():
                for i, task in _drain(waiting):
                    results[i] = task()
        except BaseException:
            waiting.clear()
            raise

    futures = _submit(work, count)
    try:
        wait(futures)
    finally:
        waiting.clear()
        wait(futures)
    for future in futures:
        future.result()
    return results  # type: ignore[return-value]


def _drain(items: deque[T]) -> Iterator[T]:
    """Take items until none is left; several threads may share the deque."""
    while True:
        try:
            item = items.popleft()
        except IndexError:
            return
        yield item


def _submit(work: Callable[[], None], count: int) -> list["Future[None]"]:
    threads = num_threads()
    with _lock:
        if threads not in _pools:
            for old in _pools.values():
                old.shutdown(wait=False)
            _pools.clear()
            _pools[threads] = _start(threads)
        return [_pools[threads].submit(work) for _ in range(count)]


def _start(threads: int) -> ThreadPoolExecutor:
    """Return a pool of threads that use no further threads in their operations."""
    pool = ThreadPoolExecutor(threads, "dspp", initializer=_use_one_thread)
    ready = threading.Barrier(threads + 1)
    for _ in range(threads):
        pool.submit(ready.wait)
    ready.wait()
    torch.set_num_threads(threads)  # the default of later threads, which `_use_one_thread` has changed
    return pool


def _use_one_thread() -> None:
    torch.get_num_threads()  # the first call in a thread sets torch's default, and would undo the next line
    torch.set_num_threads(1)


def _start_child() -> None:
    """Let a forked process use one thread: neither the pool's nor torch's other threads exist there."""
    global _lock
    _lock = threading.Lock()
    _pools.clear()
    _this.lost |= _this.started
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_child)

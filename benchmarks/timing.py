"""Measures alternate timings in one process, and peak memory in a fresh process."""

import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

from benchmarks.cases import Case
from experiments.memory import rise_mb


def alternate(
    first: Callable[[], object], second: Callable[[], object], repeats: int, warm_up: int = 2
) -> tuple[float, float, float]:
    """Return the median milliseconds of two functions called alternately, and the median ratio second / first.

    The machine has slow spells of seconds that affect both calls of a turn, so the ratio is computed per turn.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(warm_up + repeats):
        for function, record in zip((first, second), times, strict=True):
            begin = time.perf_counter()
            function()
            if i >= warm_up:
                record.append((time.perf_counter() - begin) * 1e3)
    ratios = [b / a for a, b in zip(*times, strict=True)]
    return statistics.median(times[0]), statistics.median(times[1]), statistics.median(ratios)


def peak_mb(make: Callable[[Case], Callable[[], object]], case: Case) -> float:
    """Return the rise of a fresh process's resident memory above the built model during three runs."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_mb, (make, case))


def _peak_mb(make: Callable[[Case], Callable[[], object]], case: Case) -> float:
    small = make(replace(case, N=64, M=16, S=3))
    small()  # loads code from disk, which also counts as memory
    function = make(case)
    return rise_mb(lambda: [function() for _ in range(3)])

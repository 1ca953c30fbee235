"""Measuring: alternate timings in one process, peak memory in a process of its own."""

import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path


def alternate(
    first: Callable[[], object], second: Callable[[], object], repeats: int, warm_up: int = 2
) -> tuple[float, float, float]:
    """Median milliseconds of two functions called in turn, and the median over turns of second / first.

    The machine has slow spells of seconds, which hit both calls of a turn alike: the ratio is taken turn by turn.
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


def peak_mb(make: Callable[..., Callable[[], object]], *arguments: object) -> float:
    """How far the resident memory of a fresh process rises above a built model while it runs three times."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_peak_mb, (make, arguments))


def _peak_mb(make: Callable[..., Callable[[], object]], arguments: tuple[object, ...]) -> float:
    function = make(*arguments)
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew here
    for _ in range(3):
        function()
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> int:
    """A field of this process's status, in kB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])

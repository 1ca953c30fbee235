"""Measures the memory of a computation."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

from dspp.gp import workspace


def rise_mb(run: Callable[[], object]) -> float:
    """Return by how much the resident memory of this process rises while `run` runs.

    Free memory is released first, including buffers kept for the next step, so that `run` cannot reuse it.
    """
    gc.collect()
    workspace.release()
    ctypes.CDLL(None).malloc_trim(0)
    before = _status_kb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    run()
    return (_status_kb("VmHWM") - before) / 1024


def _status_kb(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])

"""How much memory a computation takes."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

from dspp.gp import workspace


def rise_mb(run: Callable[[], object]) -> float:
    """How far the resident memory of this process rises while `run` runs.

    What is free before is given back first, also buffers kept for a next step: `run` must not find its memory there.
    """
    gc.collect()
    workspace.release()
    ctypes.CDLL(None).malloc_trim(0)
    before = _status_kb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew here
    run()
    return (_status_kb("VmHWM") - before) / 1024


def _status_kb(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])

"""Time and memory of a training step as N, M, S and W vary one at a time (appendix B)."""

import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from dspp.errors import NumericalError
from dspp.gp import workspace
from dspp.model import build
from dspp.objectives import OBJECTIVES
from dspp.presets import Spec
from experiments.catalogue import METHODS
from experiments.protocol import Setting

SIZES = ("batch_size", "inducing", "sites", "width")  # the settings that matter here
INPUTS = 8
REPOSITORY = Path(__file__).resolve().parents[1]
MIN_STEPS, SECONDS = 5, 1.5  # per measurement


def measure(method: str, setting: Setting) -> dict[str, float]:
    """Measure the time of a step and the rise in memory, on one thread of a fresh process.

    The time is that of the fastest step, since other load on the machine only adds to it.

    Raises:
        NumericalError: The process failed.
    """
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "experiments.complexity", method, json.dumps(setting)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    if done.returncode:
        raise NumericalError(f"{method} at {setting} could not be measured: {done.stderr.strip()[-300:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _measure(method: str, setting: Setting) -> dict[str, float]:
    torch.set_num_threads(1)
    step = _make_step(method, setting)
    times: list[float] = []

    def steps() -> None:
        while len(times) < 1 + MIN_STEPS or sum(times) < SECONDS:
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)

    risen = rise_mb(steps)
    return {"step_ms": round(min(times[1:]) * 1e3, 2), "peak_mb": round(risen, 1)}  # the first step allocates


def _make_step(method: str, setting: Setting) -> Callable[[], object]:
    spec = METHODS[method].spec({name: setting[name] for name in SIZES[1:]})
    rows = torch.randn(max(setting["batch_size"], 4000), INPUTS, generator=torch.Generator().manual_seed(0))
    return training_step(spec, rows, setting["batch_size"])


def training_step(spec: Spec, rows: torch.Tensor, batch_size: int) -> Callable[[], object]:
    """Return a step of training, always on the first rows: forward, backward and Adam."""
    model = build(spec.model, rows)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    score, x = OBJECTIVES[spec.objective.name], rows[:batch_size]
    y = torch.sin(x).sum(-1, keepdim=True)

    def step() -> float:
        optimizer.zero_grad()
        latent = model(x, noise_seed=1)
        value = score(model.likelihood, latent, y, model.kl(), len(rows), beta=spec.objective.beta)
        (-value).backward()
        optimizer.step()
        return value.item()

    return step


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


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], json.loads(sys.argv[2]))))

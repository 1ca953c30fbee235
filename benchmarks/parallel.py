"""The speedup of data-parallel training under torchrun: two processes compared with one, one thread each.

    python -m benchmarks.parallel [--processes 2] [--batch 4000] [--rounds 5]

All runs use a 2-layer DSPP (M = 300, S = 10, W = 3, D = 8) and the same global batch. Two costs do not shrink with more
processes: the factorisations of K_ZZ, which every process repeats (M³ for any batch), and the exchange of gradients.
Cores that run at the same time also share memory and caches. So each round has three turns: one process with the whole
batch; cooperating processes; and as many independent processes, each with its part of the batch, whose slowest one
gives the ceiling of this machine at that moment. Each figure is the median step of a turn, each ratio the median over
rounds. The last line is JSON.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

import numpy as np
import torch

from dspp.config import TrainConfig
from dspp.presets import preset
from dspp.training import fit
from dspp.training.processes import join_processes

EPOCHS, STEPS = 5, 5  # the first epoch of a turn is not counted


def worker(batch: int) -> None:
    """Train for a few epochs and print, in the first process, the median milliseconds per step."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(STEPS * batch, 8))
    y = np.sin(X).sum(1) / np.sqrt(4.0)
    config = TrainConfig(epochs=EPOCHS, batch_size=batch, restarts=1)
    with join_processes("cpu") as group:
        result = fit(preset("dspp", width=3), X, y, config=config, progress=False)
        if group.rank == 0:
            print(json.dumps(statistics.median(e.seconds for e in result.history[1:]) / STEPS * 1e3), flush=True)


def milliseconds(batch: int, processes: int = 1, copies: int = 1) -> float:
    """Return the time per step of cooperating processes; with copies, that of the slowest independent run."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
    command = [sys.executable, *launcher, "-m", "benchmarks.parallel", "--worker", "--batch", str(batch)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    started = [subprocess.Popen(command, env=environment, **pipes) for _ in range(copies)]
    slowest = 0.0
    for process in started:
        printed, errors = process.communicate()
        if process.returncode:
            raise SystemExit(errors)
        slowest = max(slowest, float(printed.splitlines()[-1]))
    return slowest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.batch)
        return
    count, rounds = options.processes, []
    for number in range(options.rounds):
        alone, joint = milliseconds(options.batch), milliseconds(options.batch, count)
        apart = milliseconds(options.batch // count, copies=count)
        rounds.append((alone, joint, apart))
        print(
            f"round {number + 1}: {alone:.0f} ms per step in one process, {joint:.0f} ms in {count} processes, "
            f"{apart:.0f} ms in {count} independent processes",
            flush=True,
        )
    ratio, ceiling = (statistics.median(turn[0] / turn[i] for turn in rounds) for i in (1, 2))
    row = {"processes": count, "batch": options.batch, "ratio": round(ratio, 2), "ceiling": round(ceiling, 2)}
    print(json.dumps({**row, "rounds_ms": [[round(ms, 1) for ms in turn] for turn in rounds]}))


if __name__ == "__main__":
    main()

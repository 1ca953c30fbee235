"""How much faster two processes train one model than one, each with one thread: data-parallel training under torchrun.

    python -m benchmarks.parallel [--processes 2] [--batch 4000]

The same global batch, a 2-layer DSPP (M = 300, S = 10, W = 3, D = 8). What does not shrink with more processes:
the factorisations of K_ZZ, which every process repeats (M³, whatever the batch), and the exchange of gradients. Rounds
alternate; a figure is the median step of a round, the ratio the median over rounds. Last line: JSON.
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
from dspp.training.team import team_of_launcher

ROUNDS, EPOCHS, STEPS = 3, 5, 5  # the first epoch of a round is left out


def worker(batch: int) -> None:
    """Train for a while and, in the first process, print the median milliseconds of a step."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(STEPS * batch, 8))
    y = np.sin(X).sum(1) / np.sqrt(4.0)
    config = TrainConfig(epochs=EPOCHS, batch_size=batch, restarts=1)
    with team_of_launcher("cpu") as team:
        result = fit(preset("dspp", width=3), X, y, config=config, progress=False)
        if team.rank == 0:
            print(json.dumps(statistics.median(e.seconds for e in result.history[1:]) / STEPS * 1e3), flush=True)


def milliseconds(processes: int, batch: int) -> float:
    """A round with so many processes."""
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
    command = [sys.executable, *launcher, "-m", "benchmarks.parallel", "--worker", "--batch", str(batch)]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--batch", type=int, default=4000)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.batch)
        return
    rounds = []
    for number in range(ROUNDS):
        alone, together = milliseconds(1, options.batch), milliseconds(options.processes, options.batch)
        rounds.append((alone, together))
        print(f"round {number + 1}: {alone:.0f} ms a step alone, {together:.0f} ms in {options.processes} processes")
    ratio = statistics.median(a / b for a, b in rounds)
    row = {"processes": options.processes, "batch": options.batch, "ratio": round(ratio, 2)}
    print(json.dumps({**row, "rounds_ms": [[round(a, 1), round(b, 1)] for a, b in rounds]}))


if __name__ == "__main__":
    main()

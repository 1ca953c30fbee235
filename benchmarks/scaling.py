"""How the time of a 2-layer DSPP step scales with N, S, W and M, compared with the paper's complexity.

    python -m benchmarks.scaling

Each size is doubled while the others are fixed; the exponent is the slope of a line through log time against log size.
Prints a table and, as its last line, JSON. The paper states O(W M³ + (S + B) W M²) for a batch of B rows. Counting the
products of a step, the hidden layer has W B columns and the top layer S B, which gives O(W M³ + (W + S) B M²).
"""

import json
import statistics
import time
from dataclasses import replace

import numpy as np
import torch

from benchmarks.cases import Case, our_step

BASE = Case("dspp", 2, 8, 3, N=1000, M=256, S=8)
SIZES = {"N": (500, 1000, 2000, 4000), "S": (4, 8, 16, 32), "W": (2, 4, 8, 16), "M": (128, 256, 512, 768)}
EXPECTED = {
    "N": "1: all products grow with the rows; K_ZZ does not",
    "S": "near 1: the top layer sees S N rows, the hidden layer N",
    "W": "below 1: only the hidden layer's share W/(W + S) grows",
    "M": "2: the products; towards 3 where W M³ outweighs (W + S) N M²",
}


def milliseconds(case: Case, repeats: int = 5) -> float:
    step = our_step(case)
    step()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times) * 1e3


def main() -> None:
    torch.set_num_threads(2)
    exponents = {}
    for name, sizes in SIZES.items():
        times = [milliseconds(replace(BASE, **{name: size})) for size in sizes]
        exponents[name] = round(float(np.polyfit(np.log(sizes), np.log(times), 1)[0]), 2)
        shown = "  ".join(f"{size}: {ms:.0f} ms" for size, ms in zip(sizes, times, strict=True))
        print(f"{name}: exponent {exponents[name]:.2f}   {shown}   expected {EXPECTED[name]}", flush=True)
    print(json.dumps({"exponents": exponents}))


if __name__ == "__main__":
    main()

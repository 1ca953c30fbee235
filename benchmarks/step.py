"""Our training step (forward, backward, Adam) compared with GPyTorch's: same model, sizes and dtype, two threads.

    python -m benchmarks.step [--profile] [--repeats 9]

Prints a table and, as its last line, JSON. `--profile` instead prints how much of our step is matrix products.
"""

import argparse
import json

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.cases import CASES, Case, our_step, peer_step
from benchmarks.timing import alternate, peak_mb

PRODUCTS = (
    "aten::mm",
    "aten::addmm_",
    "aten::addmm",
    "aten::bmm",
    "aten::baddbmm",
    "aten::mv",
    "aten::addmv",
)


def measure(case: Case, repeats: int) -> dict[str, object]:
    ours, theirs, ratio = alternate(our_step(case), peer_step(case), repeats)
    return {
        "model": case.model,
        "depth": case.depth,
        "D": case.D,
        "W": case.W,
        "dspp_ms": round(ours, 1),
        "gpytorch_ms": round(theirs, 1),
        "ratio": round(ratio, 2),
        "dspp_mb": round(peak_mb(our_step, case), 1),
        "gpytorch_mb": round(peak_mb(peer_step, case), 1),
    }


def show_profile() -> None:
    """Print where the time of our step goes, at the paper's size."""
    step = our_step(CASES[0])
    step()
    with profile(activities=[ProfilerActivity.CPU]) as record:
        for _ in range(10):
            step()
    rows = sorted(record.key_averages(), key=lambda row: -row.self_cpu_time_total)
    total = sum(row.self_cpu_time_total for row in rows)
    for row in rows[:15]:
        print(f"{row.key:40} {row.self_cpu_time_total / 1e4:7.2f} ms per step  {row.self_cpu_time_total / total:6.1%}")
    share = sum(row.self_cpu_time_total for row in rows if row.key in PRODUCTS) / total
    print(json.dumps({"matrix_products": round(share, 3)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(2)
    if options.profile:
        show_profile()
        return
    print(f"{'model':6} depth   D  W    dspp ms  gpytorch ms  ratio   dspp MB  gpytorch MB")
    rows = []
    for case in CASES:
        row = measure(case, options.repeats)
        rows.append(row)
        print(
            f"{row['model']:6} {row['depth']:5} {row['D']:3} {row['W']:2} {row['dspp_ms']:10} {row['gpytorch_ms']:12} "
            f"{row['ratio']:6} {row['dspp_mb']:9} {row['gpytorch_mb']:12}",
            flush=True,
        )
    print(json.dumps({"min_ratio": min(row["ratio"] for row in rows), "rows": rows}))


if __name__ == "__main__":
    main()

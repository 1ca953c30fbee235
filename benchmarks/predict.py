"""Our predictions with cached solves compared with GPyTorch's eval mode: same parameters and dtype, two threads.

    python -m benchmarks.predict [--rows 4000] [--repeats 9]

Both predict a table of the given rows, GPyTorch in batches of cases.PEER_ROWS. Prints a table and, as its last line,
JSON. All components are computed, since none of the weights is negligible.
"""

import argparse
import json
from dataclasses import replace

import torch

from benchmarks.cases import CASES, Case, our_prediction, peer_prediction
from benchmarks.timing import alternate, peak_mb


def measure(case: Case, rows: int, repeats: int) -> dict[str, object]:
    case = replace(case, N=rows)
    ours, theirs, ratio = alternate(our_prediction(case), peer_prediction(case), repeats)
    return {
        "model": case.model,
        "depth": case.depth,
        "D": case.D,
        "W": case.W,
        "rows": case.N,
        "dspp_ms": round(ours, 1),
        "gpytorch_ms": round(theirs, 1),
        "ratio": round(ratio, 2),
        "dspp_rows_s": round(case.N / ours * 1e3),
        "gpytorch_rows_s": round(case.N / theirs * 1e3),
        "dspp_mb": round(peak_mb(our_prediction, case), 1),
        "gpytorch_mb": round(peak_mb(peer_prediction, case), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(2)
    print(f"{'model':6} depth   D  W  dspp rows/s  gpytorch rows/s  ratio")
    rows = []
    for case in CASES:
        row = measure(case, options.rows, options.repeats)
        rows.append(row)
        print(
            f"{row['model']:6} {row['depth']:5} {row['D']:3} {row['W']:2} {row['dspp_rows_s']:12,} "
            f"{row['gpytorch_rows_s']:16,} {row['ratio']:6}",
            flush=True,
        )
    print(json.dumps({"min_ratio": min(row["ratio"] for row in rows), "rows": rows}))


if __name__ == "__main__":
    main()

"""One epoch on a table that does not fit into the address space, and the cost of reading it from disk.

    python -m benchmarks.out_of_core [--rows 10000000] [--part 2000000] [--repeats 3] [--folder DIR]

The table has 20 columns and a target in float32: 84 bytes per row, 840 MB for 10,000,000 rows. Three processes run:

1. `disk` fits a small model for one epoch with its address space limited to LIMIT_MB beyond its imports. That is less
   than the table alone, of which a fit in memory needs several copies: Arrow's, the encoded and the standardised rows
   in float64 (twice as large each) and the tensors, 5 GB in total for 10,000,000 rows.
2. `whole` only tries to read the table into memory under the same limit.
3. `part` trains on as many rows as fit, alternately from disk and from memory, with the same rows, model and batches.

Prints a table and, as its last line, JSON. The files go to a temporary folder and are removed.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COLUMNS = 20
ROW_BYTES = 4 * (COLUMNS + 1)
COPIES = 1 + 2 + 2 + 1  # Arrow; encoded and standardised, in float64; tensors
LIMIT_MB = 800  # address space beyond that of the imports
FILE_ROWS = 1_000_000
MODEL = {"inducing": 50, "batch_size": 5000, "epochs": 1, "restarts": 1, "progress": False}


def make(folder: Path, rows: int) -> None:
    """Write the table, one file at a time."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        X = rng.standard_normal((min(FILE_ROWS, rows - first), COLUMNS), np.float32)
        y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.2 * rng.standard_normal(len(X), np.float32)
        columns = {f"x{k}": X[:, k] for k in range(COLUMNS)} | {"y": y}
        pq.write_table(pa.table(columns), folder / f"part-{number:04}.parquet", row_group_size=100_000)


def status(field: str) -> int:
    """A field of this process's status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) // 1024


def limit() -> int:
    """Limit the address space, and return the limit in MB."""
    allowed = status("VmSize") + LIMIT_MB
    resource.setrlimit(resource.RLIMIT_AS, (allowed << 20, allowed << 20))
    return allowed


def disk(folder: Path, part: int, repeats: int) -> dict[str, object]:
    import torch

    torch.set_num_threads(1)
    after_torch = status("VmRSS")
    import pyarrow.dataset

    from dspp.estimators import PPGPRRegressor

    allowed, begin = limit(), time.perf_counter()
    model = PPGPRRegressor(**MODEL).fit(pyarrow.dataset.dataset(folder / "table"), "y", cache=folder)
    fitted = model.fitted_
    seconds = fitted.members[0].history[0].seconds
    return {
        "address_space_mb": allowed,
        "beyond_imports_mb": LIMIT_MB,
        "peak_beyond_torch_mb": status("VmHWM") - after_torch,
        "prepare_s": round(time.perf_counter() - begin - fitted.seconds, 1),
        "epoch_s": round(seconds, 1),
        "disk_rows_s": round(fitted.num_rows / seconds),
        "nll": round(fitted.metrics["nll"], 3),
    }


def whole(folder: Path, part: int, repeats: int) -> dict[str, object]:
    import pyarrow as pa
    import pyarrow.dataset
    import torch  # noqa: F401 - its address space counts

    import dspp.estimators  # noqa: F401

    limit()
    try:
        pyarrow.dataset.dataset(folder / "table").to_table()
    except (MemoryError, pa.ArrowMemoryError):
        return {"table_fits": False}
    return {"table_fits": True}


def part(folder: Path, part: int, repeats: int) -> dict[str, object]:
    from dataclasses import replace

    import numpy as np
    import torch
    from safetensors.torch import load_file

    from dspp import TrainConfig, preset
    from dspp.prepare import OnDisk, prepare
    from dspp.settings import Settings
    from dspp.table.joined import open_tables
    from dspp.training import fit
    from dspp.training.rows import Rows

    torch.set_num_threads(1)
    spec = preset("ppgpr", inducing=MODEL["inducing"])
    config = TrainConfig(epochs=1, restarts=1, batch_size=MODEL["batch_size"])
    files = open_tables(folder / "table")
    some = replace(files, parts=files.parts[: max(1, part // FILE_ROWS)])
    settings = Settings(preset="ppgpr", **MODEL)
    with (
        prepare(some, settings, targets=["y"], disk=OnDisk(folder)) as prepared,
        prepared.source(spec, config, {}) as rows,
    ):
        (content,) = load_file(prepared.train.path).values()
        memory = Rows(content[:, :COLUMNS].contiguous(), content[:, COLUMNS:].contiguous())
        speeds = [
            [
                len(rows) / fit(spec, source, config=config, progress=False).history[0].seconds
                for source in (rows, memory)
            ]
            for _ in range(repeats)
        ]
    on_disk, in_memory = np.median(speeds, axis=0)
    ratio = np.median([a / b for a, b in speeds])  # per turn, since slow spells of the machine affect both
    return {
        "part_rows": len(memory),
        "part_disk_rows_s": round(on_disk),
        "part_memory_rows_s": round(in_memory),
        "ratio": round(ratio, 3),
    }


STAGES = {"disk": disk, "whole": whole, "part": part}


def child(stage: str, folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """Run a stage in its own process."""
    # One thread, and allocators that do not reserve address space they do not use.
    small = {"OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
    command = [sys.executable, "-m", "benchmarks.out_of_core", "--stage", stage, "--folder", str(folder)]
    command += ["--part", str(options.part), "--repeats", str(options.repeats)]
    done = subprocess.run(command, env=os.environ | small, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    for name, value in found.items():
        print(
            f"{stage:6} {name:22} {value:,}" if isinstance(value, int) else f"{stage:6} {name:22} {value}", flush=True
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--part", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to create the temporary folder")
    parser.add_argument("--stage", choices=STAGES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        print(json.dumps(STAGES[options.stage](options.folder, options.part, options.repeats)))
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder, needed = Path(name), int(2.2 * options.rows * ROW_BYTES)  # the table and the cache
        if shutil.disk_usage(folder).free < needed:
            parser.error(f"{folder}: expected {needed:,} bytes of free space; choose another --folder or fewer --rows")
        (folder / "table").mkdir()
        make(folder / "table", options.rows)
        table_mb = options.rows * ROW_BYTES / 1e6
        print(f"table  {table_mb:,.0f} MB in memory as an Arrow table, {COPIES * table_mb:,.0f} MB for a fit in memory")
        results = {"rows": options.rows, "table_mb": round(table_mb)}
        for stage in STAGES:
            results |= child(stage, folder, options)
    print(json.dumps(results))


if __name__ == "__main__":
    main()

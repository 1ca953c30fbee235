"""Every speed that the project aims at, with its bar, and whether the bar is met.

    python -m benchmarks.bars [--runs 5] [--only step,prediction] [--data ../shared/data]

Prints one JSON line each, which replaces the former one in results/bars.jsonl, and writes the table results/bars.md.

A figure is the median over the runs; `runs` has them all. A ratio is GPyTorch's time over ours in the same turn (see
`benchmarks.cases.alternate`), on two threads. `quality` takes an hour and needs the data folder, so it is measured
only if `--only` names it.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks import records
from benchmarks.cases import (
    CASES,
    Case,
    alternate,
    our_prediction,
    our_step,
    peer_prediction,
    peer_step,
    seconds,
)
from dspp import DSPPRegressor, load
from experiments import results
from experiments.report.blocks import Entry, text_table
from experiments.report.markdown import table_text

STEPS = (4.5, 4.5, 4.5, 5.5, 2.2, 2.5, 3.5)  # in the order of CASES
PREDICTIONS = (9.0, 9.0, 9.0, 12.0, 7.0, 6.0, 12.0)
PREDICTED_ROWS = 4_000
TURNS = 5  # of a run, each with one call of ours and one of GPyTorch's
QUALITY = ("bike", "protein", "kin40k")


@dataclass(frozen=True)
class Bar:
    """A figure to reach: at least `at_least`, or at most `at_most`."""

    group: str
    name: str
    measure: Callable[[], float]
    at_least: float | None = None
    at_most: float | None = None

    def met(self, found: float) -> bool:
        """Return whether a figure reaches the bar."""
        return found >= self.at_least if self.at_least is not None else found <= (self.at_most or 0.0)

    def line(self, runs: list[float]) -> dict[str, object]:
        """Return the line of these runs."""
        found = statistics.median(runs)
        bar = {"at_least": self.at_least} if self.at_least is not None else {"at_most": self.at_most}
        shown = [round(value, 3) for value in runs]
        what, met = f"{self.group}: {self.name}", self.met(found)
        return {"what": what, "found": round(found, 3), **bar, "met": met, "runs": shown}


def bars(data: Path) -> Iterator[Bar]:
    """Yield all bars, the quick ones first."""
    for case, step in zip(CASES, STEPS, strict=True):
        yield Bar("step", _name(case), lambda case=case: _ratio(our_step(case), peer_step(case)), step)
    for case, bar in zip(CASES, PREDICTIONS, strict=True):
        many = replace(case, N=PREDICTED_ROWS)
        yield Bar("prediction", _name(case), lambda c=many: _ratio(our_prediction(c), peer_prediction(c)), bar)
    yield Bar("quantiles", "three, share of the model's own time", quantile_share, at_most=0.15)
    yield Bar("fit", "1,000 rows, one member of the ensemble, seconds", member_seconds, at_most=4.0)
    yield Bar("fit", "1,000 rows, members=1, seconds", single_seconds, at_most=4.0)
    yield Bar("start", "first use of an estimator after import dspp, seconds", first_use, at_most=0.8)
    yield Bar("start", "first prediction of a fitted default, 100 rows, seconds", first_prediction, at_most=0.3)
    yield Bar("command", "dspp predict, share of the bare model's rows/s", command_share, 0.9)
    yield Bar("scores", "evaluate, CPU time relative to predict's", evaluate_ratio, at_most=3.5)
    for name in QUALITY:
        yield Bar(
            "quality", f"time to the paper's NLL + 0.1, {name}", lambda name=name: quality_ratio(name, data), 10.0
        )


def quantile_share() -> float:
    """Return the time of three quantiles per row, relative to that of the prediction they come from."""
    case = replace(CASES[0], N=PREDICTED_ROWS)
    predict, x = case.ours().predictor(), case.rows()[0][: case.N]
    mixture, levels = predict(x), torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)
    return alternate(lambda: predict(x), lambda: mixture.quantile(levels), TURNS)


def _thousand_rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1_000, 8))
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=1_000)


def member_seconds() -> float:
    """Return the mean training time of the DSPPs of the default ensemble, which train side by side; GPs are faster."""
    model = DSPPRegressor(progress=False).fit(*_thousand_rows())
    return statistics.mean(member.seconds for member in model.fitted_.members if member.in_steps)


def single_seconds() -> float:
    """Return the time of the fit of a single model with the library's defaults."""
    return seconds(lambda: DSPPRegressor(members=1, progress=False).fit(*_thousand_rows()))


def first_use() -> float:
    """Return the time that creating an estimator adds to `import torch, dspp` in a fresh interpreter."""
    before = "import torch, dspp"
    return start_up(f"{before}\ndspp.DSPPRegressor()") - start_up(before)


def first_prediction() -> float:
    """Return the time of the first prediction that the default, fitted to 1,000 rows, makes in a fresh interpreter."""
    X, y = _thousand_rows()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.dspp"
        DSPPRegressor(progress=False).fit(X, y).save(path)
        before = f"import numpy as np, dspp\nmodel, X = dspp.load({str(path)!r}), np.zeros((100, 8))"
        return start_up(f"{before}\nmodel.predict(X)") - start_up(before)


def start_up(code: str) -> float:
    """Return the median seconds that a fresh interpreter takes to run `code`."""
    command = [sys.executable, "-c", code]
    return statistics.median(seconds(lambda: subprocess.run(command, check=True)) for _ in range(3))


def _table(rows: int, seed: int) -> tuple[pa.Table, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 20))
    y = np.sin(X[:, 0]) + 0.5 * X[:, 1] * X[:, 2] + 0.3 * rng.normal(size=rows)
    return pa.table({f"x{d}": X[:, d] for d in range(20)}), y


def command_share(rows: int = 1_000_000) -> float:
    """Return rows/s of `dspp predict` from Parquet to Parquet relative to the bare model's on arrays."""
    new = _table(rows, seed=1)[0]
    with tempfile.TemporaryDirectory() as name:
        model, table, out = (Path(name) / file for file in ("model.dspp", "new.parquet", "out.parquet"))
        DSPPRegressor(members=1, epochs=1, restarts=1, progress=False).fit(*_table(20_000, seed=0)).save(model)
        pq.write_table(new, table, row_group_size=100_000)
        fitted = load(model).fitted_
        predictor = fitted.members[0].predictor
        part = fitted.scale_X.transform(np.column_stack([c.to_numpy() for c in new.columns])[: rows // 5])
        del new
        command = [sys.executable, "-m", "dspp", "predict", str(model), str(table), "--out", str(out)]
        before = seconds(lambda: predictor(part))
        taken = seconds(lambda: subprocess.run(command, check=True, capture_output=True))
        after = seconds(lambda: predictor(part))  # before and after: the machine is noisy
        assert pq.read_metadata(out).num_rows == rows
    bare = (len(part) / before + len(part) / after) / 2
    return rows / taken / bare


def evaluate_ratio(rows: int = 16_384, repeats: int = 3) -> float:
    """Return the CPU time of predicting and scoring rows relative to that of predicting them, of 20 members."""
    model = DSPPRegressor(members=20, epochs=2, inducing=40, restarts=1, progress=False).fit(*_table(3_000, seed=0))
    new, observed = _table(rows, seed=1)
    ratios = []
    for _ in range(repeats):
        predicting = seconds(lambda: model.predict_dist(new), time.process_time)
        ratios.append(seconds(lambda: model.evaluate(new, observed), time.process_time) / predicting)
    return statistics.median(ratios)


def quality_ratio(name: str, data: Path) -> float:
    """Return GPyTorch's time to a given quality relative to ours: 12 is that or more, 0 if ours does not get there."""
    from benchmarks.time_to_nll import measure  # needs SciPy's k-means and the protocols

    return float(measure(name, data, limit=1_200.0, times=12.0)["ratio"] or 0.0)


def describe(lines: Sequence[dict[str, Any]]) -> str:
    """Return the lines as Markdown."""
    rows = [
        (
            line["what"],
            f"≥ {line['at_least']:g}" if "at_least" in line else f"≤ {line['at_most']:g}",
            f"{line['found']:.3g}",
            f"{min(line['runs']):.3g} to {max(line['runs']):.3g}",
            Entry("yes") if line["met"] else Entry("no", bold=True),
            line["commit"][:7],
        )
        for line in lines
    ]
    parts = [
        "# Speeds",
        "Ratios are GPyTorch's time over ours, in alternating calls of one process on two threads: the median of the "
        "runs, and their range. Written by `python -m benchmarks.bars`.",
        table_text(text_table(("what", "bar", "median", "range", "met", "commit"), rows, words=(4, 5))),
        f"{sum(line['met'] for line in lines)} of {len(lines)} bars are met.",
    ]
    return "\n\n".join(parts) + "\n"


def save(path: Path, line: dict[str, Any]) -> None:
    """Put a line in the place of the former one of the same name, and write the table of all lines."""

    def replaced(lines: list[results.Record]) -> list[results.Record]:
        return list(({each["what"]: each for each in lines} | {line["what"]: line}).values())

    results.update(path, replaced, ("what",))
    path.with_suffix(".md").write_text(describe(results.read(path, ("what",))), encoding="utf-8")


def _ratio(ours: Callable[[], object], theirs: Callable[[], object]) -> float:
    return alternate(ours, theirs, TURNS)


def _name(case: Case) -> str:
    return f"{case.model}, {case.depth} layer{'s' if case.depth > 1 else ''}, D = {case.D}, W = {case.W}"


def main() -> int:
    parser = records.parser("benchmarks.bars", __doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", type=lambda text: text.split(","), help="groups: step, prediction, quantiles, ...")
    options = parser.parse_args()
    known = list(bars(options.data))
    groups = list(dict.fromkeys(bar.group for bar in known))
    if unknown := set(options.only or ()) - set(groups):
        parser.error(f"no group {', '.join(sorted(unknown))}; choose from: {', '.join(groups)}")
    torch.set_num_threads(2)
    met = asked = 0
    for bar in known:
        if bar.group in (options.only or [group for group in groups if group != "quality"]):
            line = bar.line([bar.measure() for _ in range(options.runs)])
            met, asked = met + bool(line["met"]), asked + 1
            print(json.dumps(line), flush=True)
            save(options.results, line | {"commit": results.provenance(records.CODE)["commit"]})
    print(json.dumps({"bars": asked, "met": met}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How good the default is on test rows if its time is short: `python -m benchmarks.budgets`.

Fits what is missing in results/budgets.jsonl, one line per fit, and writes the table beside it as Markdown, with the
fits without a budget and the peers of results/tables.jsonl. Needs a machine with nothing else to do.
"""

import sys
from collections.abc import Sequence

from benchmarks import records
from benchmarks.tables.__main__ import tell
from benchmarks.tables.methods import method
from benchmarks.tables.run import Task, run
from experiments.report.blocks import text_table
from experiments.report.markdown import table_text
from experiments.results import Record

SETS = ("diamonds", "hdb_resale", "airbnb_nyc_2019")
BUDGETS = (5, 15, 60)  # seconds
UNLIMITED = ("dspp", "lightgbm", "catboost")  # of results/tables.jsonl


def write(found: Sequence[Record], whole: Sequence[Record]) -> str:
    """Return the results as Markdown."""
    lines = [
        "# Short time budgets",
        "NLL and CRPS in standardised units, coverage of 90 % intervals, on test rows of one split, with two cores "
        "(`python -m benchmarks.budgets`). Fits without a budget are those of [tables.md](tables.md).",
    ]
    for name in SETS:
        ours = [r for r in found if r["set"] == name]
        others = [r for r in whole if r["set"] == name and r["fold"] == 0 and r["method"] in UNLIMITED]
        rows = [
            (
                r["method"].replace("[", ", ").replace("]", ""),
                f"{r['metrics']['nll']:.3f}",
                f"{r['metrics']['crps']:.3f}",
                f"{100 * r['metrics']['coverage90']:.1f} %",
                f"{r['seconds']['fit']:.0f} s",
            )
            for r in (*sorted(ours, key=lambda r: r["settings"]["time_budget"]), *others)
        ]
        if ours:
            counts = ours[0]["rows"]
            lines += [f"## {name}", f"{counts['train']:,} training rows, {counts['test']:,} test rows"]
            lines.append(table_text(text_table(("method", "NLL", "CRPS", "coverage", "fit"), rows)))
    commits = ", ".join(sorted({r["commit"] for r in found}))
    return "\n\n".join([*lines, f"Commits of the fits with a budget: {commits}."]) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    options = records.parser("benchmarks.budgets", __doc__).parse_args(arguments)
    tasks = [
        Task(name, 0, method("dspp", {"time_budget": seconds}, f"{seconds} s")) for name in SETS for seconds in BUDGETS
    ]
    failed = run(tasks, options.data, options.results, 1, tell)
    whole = records.read(options.results.with_name("tables.jsonl"))
    options.results.with_suffix(".md").write_text(write(records.read(options.results), whole))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""The command line: `python -m benchmarks.tables --help`."""

import argparse
import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import benchmarks.tables
from benchmarks import records
from benchmarks.tables.methods import METHODS, method
from benchmarks.tables.run import Task, run
from benchmarks.tables.sets import FOLDED, SETS
from experiments.results import Record
from experiments.run import Outcome


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command == "report":
        return _report(options)
    settings = dict(options.setting)
    names = options.methods or ["dspp"]
    for kind, given, known in (("set", options.sets, SETS), ("method", names, METHODS)):
        if unknown := set(given or ()) - set(known):
            parser.error(f"no {kind} {', '.join(sorted(unknown))}; choose from {', '.join(known)}")
    if (settings or options.tag) and "dspp" not in names:
        parser.error("--setting and --tag apply to the method dspp, which --methods leaves out")
    if options.tag and not settings:
        parser.error("--tag names the variant of dspp that --setting describes; pass --setting")
    methods = [method(name, settings, options.tag) for name in names]
    folds = options.folds or [0]
    tasks = [Task(name, fold, how) for name in options.sets or FOLDED for fold in folds for how in methods]
    failed = run(tasks, options.data, options.results, options.jobs, tell)
    return 1 if failed else 0


def _report(options: argparse.Namespace) -> int:
    wanted = {"set": options.sets, "method": options.methods, "fold": options.folds}
    found = [r for r in records.read(options.results) if all(v is None or r[k] in v for k, v in wanted.items())]
    if not found:
        print(f"{options.results}: no results of these sets, methods and folds", file=sys.stderr)
        return 1
    text = report(found)
    options.results.with_suffix(".md").write_text(text)
    print(text)
    return 0


def report(found: Sequence[Record]) -> str:
    """Return the section on everyday tables of the results report as Markdown."""
    from experiments.report import everyday, markdown, suite  # fitting needs no matplotlib

    section = everyday.everyday_section(suite.Suite.of(found))
    return markdown.section_text(section) if section else ""


def tell(outcome: Outcome[Task]) -> None:
    name = f"{outcome.task.set:16} {outcome.task.fold:2} {outcome.task.method.name:20}"
    if outcome.record is None:
        print(f"{name} failed: {outcome.problem}", file=sys.stderr, flush=True)
        return
    metrics = outcome.record["metrics"]
    scores = "  ".join(f"{key} {metrics[key]:7.3f}" for key in ("nll", "crps", "rmse", "coverage90"))
    print(f"{name} {scores}  fit {outcome.record['seconds']['fit']:6.1f} s", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.tables",
        description=benchmarks.tables.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", choices=("run", "report"), default="run")
    parser.add_argument(
        "--sets", type=_names, help=f"default: {','.join(FOLDED)}; also {','.join(SETS[len(FOLDED) :])}"
    )
    parser.add_argument("--methods", type=_names, help=f"default: dspp; of {','.join(METHODS)}")
    parser.add_argument("--folds", type=lambda text: [int(fold) for fold in text.split(",")], help="default: 0")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--results", type=Path, default=Path("results/tables.jsonl"))
    parser.add_argument("--jobs", type=int, default=1, help="processes; with several, each has one thread")
    parser.add_argument(
        "--setting", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="of DSPPRegressor"
    )
    parser.add_argument("--tag", help="name the variant dspp[TAG] instead of by its settings")
    return parser


def _names(text: str) -> list[str]:
    return text.split(",")


def _setting(text: str) -> tuple[str, Any]:
    """Return a name and a Python value; what is not a literal is text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, such as members=4, got {text!r}")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


if __name__ == "__main__":
    sys.exit(main())

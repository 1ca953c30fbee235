"""The command line: `python -m experiments run NAME`, `report`, `list`."""

import json
import signal
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from dspp.errors import DsppError, InputError
from experiments import data as datasets
from experiments.catalogue import EXPERIMENTS, ROWS, Experiment, experiment
from experiments.complexity import SIZES
from experiments.protocol import SETTINGS, Protocol, Rule, read_protocol
from experiments.results import REPOSITORY, add, read
from experiments.run import Outcome, Plan, plan, run
from experiments.units import Unit, list_units

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
RESULTS = REPOSITORY / "results"
GRID_HELP = (
    "NAME=V1,V2: the values to choose from; one fixes it. Any setting of dspp.config, or split_by=groups to hold out "
    "whole trajectories where a data set has them."
)

Names = Annotated[list[str], typer.Argument(help="Experiments, or 'all'.")]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Where the data sets are looked for first.")]
ResultsFolder = Annotated[Path, typer.Option("--results", help="Where results are kept.")]


@app.command("run")
def run_command(
    names: Names,
    protocol: Annotated[str, typer.Option(help="'paper', 'quick', or the path of a .toml file.")] = "quick",
    splits: Annotated[int | None, typer.Option(min=1, help="Splits of the rows, instead of the protocol's.")] = None,
    data_sets: Annotated[str | None, typer.Option("--datasets", help="Only these, with commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these, with commas.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Instead of the protocol's.")] = None,
    grid: Annotated[list[str], typer.Option(help=GRID_HELP)] = [],  # noqa: B006
    data: DataFolder = None,
    results: ResultsFolder = RESULTS,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Units at once, of one thread each; as many as there are cores.")
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="local, or ray (pip install 'dspp\\[ray]'): its machines need this repository and the data folder at "
            "the same paths as here."
        ),
    ] = "local",
    address: Annotated[
        str | None, typer.Option(help="HOST:PORT of a Ray cluster, or auto; else Ray runs on this machine.")
    ] = None,
    max_rows: Annotated[float, typer.Option(help="Leave out data sets with more rows.")] = float("inf"),
    download: Annotated[bool, typer.Option(help="Fetch data sets that are not on this machine.")] = True,
    dry_run: Annotated[bool, typer.Option(help="Only list what would be run.")] = False,
) -> None:
    """Run experiments; what is in the results already is not run again. Stop it any time and call it again."""
    console = Console(stderr=True)
    chosen = list(EXPERIMENTS.values()) if names == ["all"] else [experiment(name) for name in names]
    rules = _flags(read_protocol(protocol), epochs, grid)
    only = (_chosen("datasets", _list(data_sets), chosen), _chosen("methods", _list(methods), chosen))
    wanted = [u for e in chosen for u in list_units(e, rules, *only, splits)]
    units = _with_data([u for u in wanted if ROWS.get(u.dataset, 0) <= max_rows], data, download, console)
    todo = plan(units, results, settle=not dry_run)
    console.print(f"{len(units)} units, {todo.done} done before, {len(todo.fits)} fits to run")
    if dry_run:
        for unit in todo.fits:
            print(f"{unit.label}: {json.dumps(unit.setting)}")
        return
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        failed = _run_with_bar(todo, results, data, jobs, console, engine, address)
    except (KeyboardInterrupt, SystemExit):
        console.print("stopped; what is done is kept, and the same command goes on from there")
        raise
    for outcome in failed:
        console.print(f"failed: {outcome.unit.label}: {outcome.problem}", style="red", highlight=False, markup=False)
    if failed:
        raise typer.Exit(1)


@app.command("report")
def report_command(
    results: ResultsFolder = RESULTS,
    paper: Annotated[Path | None, typer.Option(help="Folder with the paper's results.csv and summary.csv.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the report goes; RESULTS/report if not given.")] = None,
) -> None:
    """Write tables and figures, ours beside the paper's."""
    from experiments.report import find_paper, write_report  # matplotlib and pages are not needed to run

    print(write_report(results, find_paper(paper), out))


@app.command("merge")
def merge_command(
    folders: Annotated[list[Path], typer.Argument(help="Results folders of other machines or runs.")],
    results: ResultsFolder = RESULTS,
) -> None:
    """Add the results of other folders; a fit that is there already is not added twice."""
    for folder in folders:
        if not any(folder.glob("*.jsonl")):
            raise InputError(f"{folder} has no results (*.jsonl); give a folder that `experiments run` has written to")
    for path in (path for folder in folders for path in sorted(folder.glob("*.jsonl"))):
        for record in read(path):
            add(results / path.name, record)
        print(f"{path.name}: {len(read(results / path.name))} records")


@app.command("list")
def list_command() -> None:
    """Show every experiment: its methods and data sets."""
    table = Table("name", "what", "methods", "data sets")
    for e in EXPERIMENTS.values():
        table.add_row(e.name, f"{e.title} (paper: {e.section})", ", ".join(e.methods), ", ".join(e.datasets))
    Console().print(table)


def _list(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _flags(protocol: Protocol, epochs: int | None, grid: list[str]) -> Protocol:
    """The protocol with what the command line says instead."""
    if epochs is not None:
        protocol = protocol.with_rule(Rule(set={"epochs": epochs}))
    given = dict(_grid(entry) for entry in grid)
    return protocol.with_rule(Rule(grid=given)) if given else protocol


def _grid(entry: str) -> tuple[str, list[Any]]:
    name, _, text = entry.partition("=")
    if name not in SETTINGS or not text:
        raise InputError(f"--grid {entry}: expected NAME=V1,V2 with one of: {', '.join(sorted(SETTINGS))}")
    return name, [_value(part) for part in text.split(",")]


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _chosen(kind: str, given: list[str] | None, experiments: list[Experiment]) -> list[str] | None:
    """The names given, all of which some experiment must have."""
    known = list(dict.fromkeys(name for e in experiments for name in getattr(e, kind)))
    for name in given or []:
        if name not in known:
            those = ", ".join(e.name for e in experiments)
            raise InputError(f"--{kind}: {those} has no {name!r}; choose from: {', '.join(known)}")
    return given


def _with_data(units: list[Unit], folder: Path | None, download: bool, console: Console) -> list[Unit]:
    """The units whose data are there, or can be had; a line for each data set that is not."""
    usable = {"simulated"}
    for name in dict.fromkeys(u.dataset for u in units if u.dataset not in usable):
        try:
            datasets.load(name, folder, download=download)
            usable.add(name)
        except InputError as problem:
            console.print(f"left out: {problem}", highlight=False, markup=False, soft_wrap=True)
    return [u for u in units if u.dataset in usable]


def _cost(unit: Unit) -> float:
    """A rough size of the work, for the time left."""
    return ROWS.get(unit.dataset, 10_000) * float(unit.setting.get("epochs", 5))


def _run_with_bar(
    todo: Plan,
    folder: Path,
    data: Path | None,
    jobs: int | None,
    console: Console,
    engine: str,
    address: str | None,
) -> list[Outcome]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    total, done, begin = sum(map(_cost, todo.fits)), 0.0, time.monotonic()
    with Progress(*columns, TextColumn("{task.fields[left]}"), console=console) as bar:
        task = bar.add_task("running", total=len(todo.fits), left="")

        def report(outcome: Outcome) -> None:
            nonlocal done
            done += _cost(outcome.unit)
            left = (time.monotonic() - begin) * (total / done - 1)
            bar.update(task, advance=1, left=f"{left / 60:.0f} min left")
            bar.console.print(f"{outcome.unit.label}: {_result(outcome)}", highlight=False, soft_wrap=True)

        return run(todo, folder, data, jobs, report, engine, address)


def _result(outcome: Outcome) -> str:
    """What came of a fit, in a word or two."""
    if outcome.record is None:
        return "failed"
    metrics = outcome.record["metrics"]
    if "nll" in metrics:
        return f"NLL {metrics['nll']:.3f}"
    sizes = ", ".join(f"{name} {outcome.unit.setting[name]}" for name in SIZES)
    return f"{metrics['step_ms']:.0f} ms, {metrics['peak_mb']:.0f} MB a step at {sizes}"


def main() -> None:
    """Run a command; a problem is one line and exit code 2."""
    try:
        app()
    except DsppError as problem:
        Console(stderr=True).print(f"error: {problem}", highlight=False, markup=False)
        raise SystemExit(2) from None

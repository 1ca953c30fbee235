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
from experiments.data.__main__ import table as datasets_table
from experiments.protocol import SETTINGS, Protocol, Rule, read_protocol
from experiments.results import REPOSITORY, add, read
from experiments.run import Outcome, Plan, plan, run
from experiments.units import Unit, list_units

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, help=__doc__)
RESULTS = REPOSITORY / "results"
GRID_HELP = (
    "NAME=V1,V2: the values to choose from; a single value fixes the setting. NAME is any setting of dspp.config, or "
    "split_by=groups to hold out whole trajectories if a data set has them."
)

Names = Annotated[list[str], typer.Argument(help="Experiments, or 'all'.")]
DataFolder = Annotated[Path | None, typer.Option("--data", help="Folder to search first for data sets.")]
ResultsFolder = Annotated[Path, typer.Option("--results", help="Folder of the results.")]


@app.command("run")
def run_command(
    names: Names,
    protocol: Annotated[str, typer.Option(help="'paper', 'quick' or the path of a .toml file.")] = "quick",
    splits: Annotated[int | None, typer.Option(min=1, help="Number of splits, instead of the protocol's.")] = None,
    data_sets: Annotated[
        str | None, typer.Option("--datasets", help="Only these data sets, separated by commas.")
    ] = None,
    methods: Annotated[str | None, typer.Option(help="Only these methods, separated by commas.")] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Number of epochs, instead of the protocol's.")] = None,
    grid: Annotated[list[str], typer.Option(help=GRID_HELP)] = [],  # noqa: B006
    data: DataFolder = None,
    results: ResultsFolder = RESULTS,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Fits to run at the same time, with one thread each; by default one per core."),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(
            help="local, or ray (pip install 'dspp\\[ray]'), whose machines need this repository and the data folder "
            "at the same paths as this one."
        ),
    ] = "local",
    address: Annotated[
        str | None, typer.Option(help="HOST:PORT of a Ray cluster, or auto; by default Ray runs on this machine.")
    ] = None,
    max_rows: Annotated[float, typer.Option(help="Skip data sets with more rows.")] = float("inf"),
    download: Annotated[bool, typer.Option(help="Download missing data sets.")] = True,
    dry_run: Annotated[bool, typer.Option(help="Only list the fits that would be run.")] = False,
) -> None:
    """Run experiments; fits that already have results are skipped. Interrupt at any time and run again to resume."""
    console = Console(stderr=True)
    chosen = list(EXPERIMENTS.values()) if names == ["all"] else [experiment(name) for name in names]
    rules = _apply_options(read_protocol(protocol), epochs, grid)
    only = (
        _check_names("datasets", _split_names(data_sets), chosen),
        _check_names("methods", _split_names(methods), chosen),
    )
    wanted = [u for e in chosen for u in list_units(e, rules, *only, splits)]
    units = _keep_available([u for u in wanted if ROWS.get(u.dataset, 0) <= max_rows], data, download, console)
    todo = plan(units, results, settle=not dry_run)
    console.print(f"{len(units)} units, {todo.done} already done, {len(todo.fits)} fits to run")
    if dry_run:
        for unit in todo.fits:
            print(f"{unit.label}: {json.dumps(unit.setting)}")
        return
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        failed = _run_with_bar(todo, results, data, jobs, console, engine, address)
    except (KeyboardInterrupt, SystemExit):
        console.print("stopped; finished fits are kept, and the same command resumes")
        raise
    for outcome in failed:
        console.print(f"failed: {outcome.task.label}: {outcome.problem}", style="red", highlight=False, markup=False)
    if failed:
        raise typer.Exit(1)


@app.command("report")
def report_command(
    results: ResultsFolder = RESULTS,
    paper: Annotated[Path | None, typer.Option(help="Folder with the paper's results.csv and summary.csv.")] = None,
    out: Annotated[Path | None, typer.Option(help="Folder to write to; by default RESULTS/report.")] = None,
) -> None:
    """Write tables and figures that compare our results with the paper's."""
    from experiments.report import find_paper, write_report  # running needs no matplotlib

    print(write_report(results, find_paper(paper), out))


@app.command("merge")
def merge_command(
    folders: Annotated[list[Path], typer.Argument(help="Results folders of other machines or runs.")],
    results: ResultsFolder = RESULTS,
) -> None:
    """Add the results of other folders; a fit that already has results is not added again."""
    for folder in folders:
        if not any(folder.glob("*.jsonl")):
            raise InputError(f"{folder} has no results (*.jsonl); give a folder that `experiments run` has written to")
    for path in (path for folder in folders for path in sorted(folder.glob("*.jsonl"))):
        for record in read(path):
            add(results / path.name, record)
        print(f"{path.name}: {len(read(results / path.name))} records")


@app.command("list")
def list_command(data: DataFolder = None) -> None:
    """List every experiment with its methods and data sets, and where these are or how to get them."""
    table = Table("name", "title", "methods", "data sets")
    for e in EXPERIMENTS.values():
        table.add_row(e.name, f"{e.title} (paper: {e.section})", ", ".join(e.methods), ", ".join(e.datasets))
    console = Console()
    console.print(table)
    console.print(datasets_table(data))


def _split_names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def _apply_options(protocol: Protocol, epochs: int | None, grid: list[str]) -> Protocol:
    """Return the protocol with the options of the command line."""
    if epochs is not None:
        protocol = protocol.with_rule(Rule(set={"epochs": epochs}))
    given = dict(_parse_grid(entry) for entry in grid)
    return protocol.with_rule(Rule(grid=given)) if given else protocol


def _parse_grid(entry: str) -> tuple[str, list[Any]]:
    name, _, text = entry.partition("=")
    if name not in SETTINGS or not text:
        raise InputError(f"--grid {entry}: expected NAME=V1,V2 with one of: {', '.join(sorted(SETTINGS))}")
    return name, [_parse_value(part) for part in text.split(",")]


def _parse_value(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _check_names(kind: str, given: list[str] | None, experiments: list[Experiment]) -> list[str] | None:
    """Return the given names; raise an error if no experiment has one of them."""
    known = list(dict.fromkeys(name for e in experiments for name in getattr(e, kind)))
    for name in given or []:
        if name not in known:
            those = ", ".join(e.name for e in experiments)
            raise InputError(f"--{kind}: {those} has no {name!r}; choose from: {', '.join(known)}")
    return given


def _keep_available(units: list[Unit], folder: Path | None, download: bool, console: Console) -> list[Unit]:
    """Return the units whose data are available or can be downloaded; print a line for each data set that is not."""
    usable = {"simulated"}
    for name in dict.fromkeys(u.dataset for u in units if u.dataset not in usable):
        try:
            datasets.load(name, folder, download=download)
            usable.add(name)
        except InputError as problem:
            console.print(f"skipped: {problem}", highlight=False, markup=False, soft_wrap=True)
    return [u for u in units if u.dataset in usable]


def _cost(unit: Unit) -> float:
    """Estimate the relative cost of a unit, for the remaining time."""
    return ROWS.get(unit.dataset, 10_000) * float(unit.setting.get("epochs", 5))


def _run_with_bar(
    todo: Plan,
    folder: Path,
    data: Path | None,
    jobs: int | None,
    console: Console,
    engine: str,
    address: str | None,
) -> list[Outcome[Unit]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    total, done, begin = sum(map(_cost, todo.fits)), 0.0, time.monotonic()
    with Progress(*columns, TextColumn("{task.fields[left]}"), console=console) as bar:
        task = bar.add_task("running", total=len(todo.fits), left="")

        def report(outcome: Outcome[Unit]) -> None:
            nonlocal done
            done += _cost(outcome.task)
            left = (time.monotonic() - begin) * (total / done - 1)
            bar.update(task, advance=1, left=f"{left / 60:.0f} min left")
            bar.console.print(f"{outcome.task.label}: {_result(outcome)}", highlight=False, soft_wrap=True)

        return run(todo, folder, data, jobs, report, engine, address)


def _result(outcome: Outcome[Unit]) -> str:
    """Summarise the result of a fit in a few words."""
    if outcome.record is None:
        return "failed"
    metrics = outcome.record["metrics"]
    if "nll" in metrics:
        return f"NLL {metrics['nll']:.3f}"
    sizes = ", ".join(f"{name} {outcome.task.setting[name]}" for name in SIZES)
    return f"{metrics['step_ms']:.0f} ms, {metrics['peak_mb']:.0f} MB per step at {sizes}"


def main() -> None:
    """Run a command; an error prints one line and exits with code 2."""
    try:
        app()
    except DsppError as problem:
        Console(stderr=True).print(f"error: {problem}", highlight=False, markup=False)
        raise SystemExit(2) from None

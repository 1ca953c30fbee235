"""`python -m experiments.data`: what data sets there are, where they were found, how to get the others."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from dspp.errors import InputError
from experiments.data import CACHE, cache_folder, find, load
from experiments.data.sources import SOURCES, Source, how_to_get


def main(
    data: Annotated[Path | None, typer.Option(help="Folder to look in first.")] = None,
    download: Annotated[list[str] | None, typer.Option(help="Fetch this set into the cache first; repeatable.")] = None,
) -> None:
    """List the data sets of the experiments: shape, where each was found or how to get it."""
    try:
        for name in download or ():
            load(name, data, download=True)
        Console().print(table(data))
    except InputError as problem:
        typer.echo(f"Error: {problem}", err=True)
        raise typer.Exit(2) from None


def table(folder: Path | None = None) -> Table:
    """One row a data set."""
    result = Table("set", "rows × inputs → outputs", "where, or how to get it", title="Data sets of the experiments")
    for name, source in SOURCES.items():
        found = find(name, folder)
        result.add_row(name, _shape(source), _where(*found) if found else f"[yellow]{how_to_get(name)}[/]")
    return result


def _shape(source: Source) -> str:
    return f"{source.rows} × {source.inputs} → {source.outputs}"


def _where(label: str, path: Path) -> str:
    return f"{label} ({cache_folder()})" if label == CACHE else f"{label} ({path.parent})"


if __name__ == "__main__":
    typer.run(main)

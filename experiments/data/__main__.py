"""`python -m experiments.data`: lists the data sets, where they were found, and how to get the others."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dspp.errors import InputError
from experiments.data import cache_folder, convert, find, load, places
from experiments.data.sources import SOURCES, how_to_get


def main(
    data: Annotated[Path | None, typer.Option(help="Folder to search first.")] = None,
    download: Annotated[
        list[str] | None, typer.Option(help="Download this data set into the cache first; repeatable.")
    ] = None,
    add: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE: add a .mat, .npy or .csv file that you have to the cache first; repeatable."),
    ] = None,
) -> None:
    """List the data sets of the experiments: shape, and where each was found or how to get it."""
    try:
        for entry in add or ():
            name, _, file = entry.partition("=")
            if not file:
                raise InputError(f"--add {entry}: expected NAME=FILE")
            convert.add(name, Path(file).expanduser(), cache_folder())
        for name in download or ():
            load(name, data, download=True)
        Console().print(table(data))
    except InputError as problem:
        typer.echo(f"Error: {problem}", err=True)
        raise typer.Exit(2) from None


def table(folder: Path | None = None) -> Table:
    """Return a table with one row per data set."""
    found_in = "\n".join(f"{label}: {place}" for label, place in places(folder).items())
    searched = Text(f"NAME.npz (arrays X and y or Y) is searched in this order in\n{found_in}")  # Text: no markup in it
    result = Table("data set", "rows × inputs → outputs", "where, or how to get it", caption=searched)
    for name, source in SOURCES.items():
        found = find(name, folder)
        shape = f"{source.rows or '?'} × {source.inputs} → {source.outputs}"
        result.add_row(name, shape, found[0] if found else Text(how_to_get(name), style="yellow"))
    return result


if __name__ == "__main__":
    typer.run(main)

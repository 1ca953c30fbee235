"""The commands and the options they share."""

from importlib.metadata import version
from typing import Annotated

import typer

from dspp.cli import demo, evaluate, fit, info, predict
from dspp.cli.group import IMPORT, Command, Commands
from dspp.cli.options import flag
from dspp.cli.session import import_modules

EXAMPLES = """Try it:

dspp demo

or on your own table:

dspp fit train.csv --target price --out model.dspp

dspp evaluate model.dspp test.csv --report report.html

dspp predict model.dspp new.csv --out predictions.csv

Exit codes: 0 success; 2 invalid input; 130 or 143 stopped by Ctrl-C or SIGTERM; 1 any other error."""

app = typer.Typer(
    name="dspp",
    cls=Commands,
    help="Calibrated predictive distributions for tables: train a model on a file, then predict with uncertainty.",
    epilog=EXAMPLES,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dspp {version('dspp')}")
        raise typer.Exit


@app.callback()
def store_shared_options(
    ctx: typer.Context,
    quiet: Annotated[bool, flag("--quiet", "Print errors only; no progress.")] = False,
    debug: Annotated[bool, flag("--debug", "Show the traceback of an error.")] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(IMPORT, help="Import a module that registers your own parts; repeatable.", metavar="MODULE"),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Store options shared by all commands."""
    ctx.obj.quiet |= quiet
    ctx.obj.debug |= debug
    import_modules(modules or ())


for name, command, examples in (
    ("fit", fit.Fit, fit.EXAMPLES),
    ("predict", predict.Predict, predict.EXAMPLES),
    ("evaluate", evaluate.Evaluate, evaluate.EXAMPLES),
    ("info", info.Info, info.EXAMPLES),
    ("tune", fit.Tune, fit.TUNE_EXAMPLES),
    ("demo", demo.Demo, None),
):
    app.command(name, cls=Command, epilog=examples)(command)

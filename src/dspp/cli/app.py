"""The commands and the options they share."""

from importlib.metadata import version
from typing import Annotated

import typer

from dspp.cli import demo, evaluate, fit, fit_options, info, predict
from dspp.cli.group import Command, Commands
from dspp.cli.options import flag, make_command, option
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
        option("Import a module that registers your own parts; repeatable.", "MODULE", None, "--import"),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", metavar="", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Store options shared by all commands."""
    ctx.obj.quiet |= quiet
    ctx.obj.debug |= debug
    import_modules(modules or ())


app.command(
    "fit",
    cls=Command,
    help="Train a model on a table.\n\nThe table may contain text, dates and missing values. Some rows are held out to "
    "score the model and to correct it. After Ctrl-C, --resume continues.",
    epilog=fit_options.EXAMPLES,
)(make_command(fit_options.FitOptions, fit.run))
app.command("predict", cls=Command, help="Predict the distribution of each row of a table.", epilog=predict.EXAMPLES)(
    make_command(predict.PredictOptions, predict.run)
)
app.command(
    "evaluate",
    cls=Command,
    help="Score a model on new rows, and check whether its intervals can be trusted.",
    epilog=evaluate.EXAMPLES,
)(make_command(evaluate.EvaluateOptions, evaluate.run))
app.command("info", cls=Command, epilog=info.EXAMPLES)(info.info)
app.command(
    "tune",
    cls=Command,
    help="Search for good settings and save the best model; the same as `fit --tune`.",
    epilog=fit_options.TUNE_EXAMPLES,
)(make_command(fit_options.FitOptions, fit.run, tune=True))
app.command("demo", cls=Command)(demo.demo)

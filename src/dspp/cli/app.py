"""The commands and the options they share."""

from importlib.metadata import version
from typing import Annotated

import typer

from dspp.cli import demo, evaluate, fit, fit_options, info, predict
from dspp.cli.group import Commands
from dspp.cli.options import command_of, flag, option
from dspp.cli.session import import_modules

EXAMPLES = """Try it:

dspp demo

or on a table of yours:

dspp fit train.csv --target price --out model.dspp

dspp evaluate model.dspp test.csv --report report.html

dspp predict model.dspp new.csv --out predictions.csv

Exit codes: 0 done; 2 something that was given cannot be used; 130 or 143 stopped by Ctrl-C or SIGTERM; 1 all else."""

app = typer.Typer(
    name="dspp",
    cls=Commands,
    help="Calibrated predictive distributions for tables: from a file of rows to a model that knows how sure it is.",
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
def shared(
    ctx: typer.Context,
    quiet: Annotated[bool, flag("--quiet", "Print errors only; no bars.")] = False,
    debug: Annotated[bool, flag("--debug", "Show where an error came from.")] = False,
    modules: Annotated[
        list[str] | None,
        option("Import a module that registers parts of your own; repeatable.", "MODULE", None, "--import"),
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", metavar="", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Note what all commands heed."""
    ctx.obj.quiet |= quiet
    ctx.obj.debug |= debug
    import_modules(modules or ())


app.command(
    "fit",
    help="Learn from a table, and write a model.\n\nText, dates and missing values are fine. Rows are held out to "
    "choose the best epoch and to say how good the model is. Ctrl-C keeps what was done: --resume goes on.",
    epilog=fit_options.EXAMPLES,
)(command_of(fit_options.FitOptions, fit.run))
app.command("predict", help="Predict the distribution of each row of a table.", epilog=predict.EXAMPLES)(
    command_of(predict.PredictOptions, predict.run)
)
app.command(
    "evaluate", help="Score a model on rows it has not seen, and say whether to trust it.", epilog=evaluate.EXAMPLES
)(command_of(evaluate.EvaluateOptions, evaluate.run))
app.command("info", epilog=info.EXAMPLES)(info.info)
app.command(
    "tune", help="Search for good settings, and write the best model: `fit --tune`.", epilog=fit_options.TUNE_EXAMPLES
)(command_of(fit_options.FitOptions, fit.run, tune=True))
app.command("demo")(demo.demo)

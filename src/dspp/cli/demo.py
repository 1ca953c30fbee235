"""`dspp demo`: the way a user goes, on simulated data whose true density is known."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dspp.cli import show
from dspp.cli.options import flag, option
from dspp.cli.session import Session, Stopped
from dspp.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from dspp.simulation import RobotArm

ROWS = 10_000  # 8,500 to learn from, 1,500 to test on
SETTINGS = "--model dspp --width 8 --inducing 60 --beta 3.0 --epochs 60"  # chosen on validation rows


def demo(
    ctx: typer.Context,
    folder: Annotated[Path, option("Where the files go; made if it is not there.", "FOLDER")] = Path("dspp-demo"),
    epochs: Annotated[int | None, option("Passes over the rows; fewer for a quick look.", "N")] = None,
    overwrite: Annotated[bool, flag("--overwrite", "Replace files in a folder that is not empty.")] = False,
) -> None:
    """Go the whole way on simulated data: train, predict, evaluate, report; about a minute."""
    from dspp.simulation import robot_arm

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not overwrite:
        raise InputError(f"{folder} is not an empty folder; give another --folder, or pass --overwrite")
    session: Session = ctx.obj
    arm = robot_arm(ROWS, seed=0)
    train, test = _write(arm, folder)
    session.say(
        "A robot arm of 8 joints, and the distance of its hand as a range finder measures it: sometimes the",
        "finder hears a late echo. The data are simulated, so the best possible score is known.",
        f"Wrote {len(train):,} rows to {folder / 'train.csv'} and {len(test):,} to {folder / 'test.csv'}.",
    )
    for command in _commands(folder, epochs):
        session.say(f"\n$ {shlex.join(['dspp', *command])}")
        _run(ctx, session, command)
    session.say(*_compared(arm, train, test, folder))


def _write(arm: "RobotArm", folder: Path) -> tuple["np.ndarray", "np.ndarray"]:
    """Write the two tables; the row numbers of each."""
    import numpy as np
    import pyarrow as pa

    from dspp.table.files import write_table
    from dspp.table.split import split

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(f"cannot make the folder {folder}: {problem.strerror}; give another --folder") from None
    (folder / "model.dspp.checkpoint").unlink(missing_ok=True)  # of a demo that was stopped
    first, test, last = (np.sort(part) for part in split(ROWS, (15, 3, 2), seed=0))
    train = np.sort(np.concatenate([first, last]))
    for name, rows in (("train.csv", train), ("test.csv", test)):
        columns = {f"joint{j + 1}": arm.X[rows, j] for j in range(arm.X.shape[1])} | {"distance": arm.y[rows]}
        table = pa.table(columns)
        write_table(folder / name, table.to_batches(), table.schema)
    return train, test


def _commands(folder: Path, epochs: int | None) -> list[list[str]]:
    train, test, model, predictions, report = (
        str(folder / name) for name in ("train.csv", "test.csv", "model.dspp", "predictions.csv", "report.html")
    )
    settings = SETTINGS.split() if epochs is None else [*SETTINGS.split()[:-1], str(epochs)]
    return [
        ["fit", train, "--target", "distance", "--out", model, *settings, "--overwrite"],
        ["predict", model, test, "--out", predictions, "--quantiles", "0.05,0.5,0.95", "--overwrite"],
        ["evaluate", model, test, "--report", report, "--overwrite"],
    ]


def _run(ctx: typer.Context, session: Session, command: list[str]) -> None:
    """Run a command in this process, as if it had been typed."""
    typed = replace(session, program="dspp", argv=tuple(command))
    code = ctx.find_root().command.main(args=command, standalone_mode=False, obj=typed)
    if code:
        raise Stopped(code)


def _compared(arm: "RobotArm", train: "np.ndarray", test: "np.ndarray", folder: Path) -> list[object]:
    """The model beside the truth, and beside knowing nothing."""
    import numpy as np
    from scipy.stats import norm

    from dspp import modelfile
    from dspp.table.files import open_table
    from dspp.table.memory import split_targets

    table = split_targets(open_table(folder / "test.csv").read(), ["distance"])
    nll = modelfile.load(folder / "model.dspp").evaluate(table).scores["nll"]
    best = arm.nll(test)
    normal = -float(norm.logpdf(arm.y[test], arm.y[train].mean(), np.std(arm.y[train])).mean())
    rows = [
        ("this model", f"{nll:+.4f}", f"{nll - best:.4f} nats a row from the best possible"),
        ("best possible", f"{best:+.4f}", "the true density, which the simulation knows"),
        ("ignoring the joints", f"{normal:+.4f}", "one Normal for all rows"),
    ]
    title = f"NLL on the {len(test):,} test rows: lower is better"
    return ["", *show.table(title, ("of", "NLL", ""), rows, right=(1,)), f"Open {folder / 'report.html'} in a browser."]

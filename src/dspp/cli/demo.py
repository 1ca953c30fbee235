"""`dspp demo`: the full workflow on simulated data whose true density is known."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dspp.cli import show
from dspp.cli.options import flag, option, whole
from dspp.cli.session import Session, Stopped
from dspp.errors import InputError
from dspp.extras import how_to_install, is_installed

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from dspp.simulation import RobotArm

ROWS = 20_000  # 17,000 for training, 3,000 for testing
# Noise with two modes wants a wide layer; two members train at the same time on two cores.
SETTINGS = "--members 2 --width 10 --inducing 96 --beta 1.0 --learning-rate 0.06 --epochs 54"


@dataclass(frozen=True, kw_only=True)
class Demo:
    """Run the full workflow on simulated data: train, predict, evaluate, report; about a minute."""

    folder: Annotated[Path, option("Output folder; created if it does not exist.", "FOLDER")] = Path("dspp-demo")
    epochs: Annotated[int | None, option("Passes over the rows; fewer are faster.", "N", parser=whole(1))] = None
    overwrite: Annotated[bool, flag("--overwrite", "Replace files in a non-empty folder.")] = False

    def run(self, session: Session) -> None:
        """Simulate, run the commands, and compare the model with the truth."""
        folder = self.folder
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())) and not self.overwrite:
            raise InputError(f"{folder}: expected an empty folder; choose another --folder, or pass --overwrite")
        from dspp.simulation import RobotArm

        arm = RobotArm(ROWS, seed=0)
        train, test = _write(arm, folder)
        session.say(
            "The data: a simulated robot arm with 8 joints, and the distance of its hand as measured by a range "
            "finder,\nwhich sometimes hears a late echo. As the data are simulated, the best possible score is known.",
            f"Wrote {len(train):,} rows to {folder / 'train.csv'} and {len(test):,} to {folder / 'test.csv'}.",
        )
        page = folder / "report.html"
        opened = f"Open {page} in a browser."
        if not is_installed("report"):
            page.unlink(missing_ok=True)  # of an earlier demo
            how = how_to_install("report")
            opened = f"note: no report was written, as matplotlib or jinja2 is not installed; {how}"
        for command in self._commands():
            session.say(f"\n$ {shlex.join(['dspp', *command])}")
            typed = replace(session, program="dspp", argv=tuple(command))
            if code := session.main(command, standalone_mode=False, obj=typed):
                raise Stopped(code)
        session.say(*_compare_with_truth(arm, train, test, folder), opened)

    def _commands(self) -> list[list[str]]:
        names = ("train.csv", "test.csv", "model.dspp", "predictions.csv", "report.html")
        train, test, model, predictions, page = (str(self.folder / name) for name in names)
        settings = SETTINGS.split() if self.epochs is None else [*SETTINGS.split()[:-1], str(self.epochs)]
        return [
            ["fit", train, "--target", "distance", "--out", model, *settings, "--overwrite"],
            ["predict", model, test, "--out", predictions, "--quantiles", "0.05,0.5,0.95", "--overwrite"],
            ["evaluate", model, test, *(["--report", page, "--overwrite"] if is_installed("report") else [])],
        ]


def _write(arm: "RobotArm", folder: Path) -> tuple["np.ndarray", "np.ndarray"]:
    """Write the two tables and return their row numbers."""
    import numpy as np

    from dspp.table.files import write_table
    from dspp.table.split import split

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise InputError(f"{folder}: cannot create the folder: {problem.strerror}; choose another --folder") from None
    first, test, last = (np.sort(part) for part in split(ROWS, (15, 3, 2), seed=0))
    train = np.sort(np.concatenate([first, last]))
    for name, rows in (("train.csv", train), ("test.csv", test)):
        table = _inputs(arm, rows).append_column("distance", [arm.y[rows]])
        write_table(folder / name, table.to_batches(), table.schema)
    return train, test


def _inputs(arm: "RobotArm", rows: "np.ndarray") -> "pa.Table":
    import pyarrow as pa

    return pa.table({f"joint{j}": angles for j, angles in enumerate(arm.X[rows].T, start=1)})


def _compare_with_truth(arm: "RobotArm", train: "np.ndarray", test: "np.ndarray", folder: Path) -> list[object]:
    """Compare the model with the true density and with a constant prediction."""
    import numpy as np
    from scipy.stats import norm

    from dspp.estimators import load

    nll = load(folder / "model.dspp").score_nll(_inputs(arm, test), arm.y[test])
    best = arm.nll(test)
    normal = -float(norm.logpdf(arm.y[test], arm.y[train].mean(), np.std(arm.y[train])).mean())
    rows = [
        ("this model", f"{nll:+.4f}", f"{nll - best:.4f} nats per row above the best possible"),
        ("best possible", f"{best:+.4f}", "the true density of the simulation"),
        ("ignoring the joints", f"{normal:+.4f}", "the same Normal distribution for all rows"),
    ]
    title = f"NLL on the {len(test):,} test rows (lower is better)"
    return ["", *show.table(title, ("of", "NLL", ""), rows, right=(1,))]

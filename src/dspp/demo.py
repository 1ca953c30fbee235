"""The main job on data that needs no download: `python -m dspp.demo`.

Trains a 2-layer DSPP on the simulated robot arm, whose true density is known, and prints the scores on held-out rows
beside the best possible NLL.
"""

import argparse
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from dspp.config import TrainConfig
from dspp.data import RobotArm, Standardizer, robot_arm, split
from dspp.metrics import evaluate
from dspp.mixture import NormalMixture
from dspp.presets import preset
from dspp.training import FitResult, fit

Index = NDArray[np.intp]
EPOCHS = 60
SPEC = preset("dspp", width=8, inducing=60, beta=1.0)  # chosen on validation rows


@dataclass(frozen=True)
class TrainedArm:
    """A model of the robot arm, in the units of its data."""

    result: FitResult
    scale_X: Standardizer  # noqa: N815 - X is a matrix
    scale_y: Standardizer

    def predict(self, X: Float[np.ndarray, "N 8"]) -> NormalMixture:
        """The predictive distribution of each row, in metres."""
        mixture = self.result.model.predictor()(self.scale_X.transform(X)).to(torch.float64)
        assert isinstance(mixture, NormalMixture)
        return mixture.affine(float(self.scale_y.mean), float(self.scale_y.scale))


def train_arm(data: RobotArm, train: Index, val: Index, epochs: int = EPOCHS, seed: int = 0) -> TrainedArm:
    """Fit a 2-layer DSPP on the rows `train`; the rows `val` choose the epoch that is kept."""
    scale_X, scale_y = Standardizer.fit(data.X[train]), Standardizer.fit(data.y[train])
    X, y = scale_X.transform(data.X), scale_y.transform(data.y)
    config = TrainConfig(epochs=epochs, seed=seed)
    result = fit(SPEC, X[train], y[train], X_val=X[val], y_val=y[val], config=config)
    return TrainedArm(result, scale_X, scale_y)


def run(rows: int, epochs: int, seed: int) -> tuple[dict[str, float], FitResult]:
    """Simulate, fit on 15 parts of 20 of the rows, validate on 2, and score 3."""
    data = robot_arm(rows, seed=seed)
    train, test, val = split(rows, (15, 3, 2), seed=seed)
    arm = train_arm(data, train, val, epochs, seed)
    scores = evaluate(arm.predict(data.X[test]), torch.tensor(data.y[test]))
    return {**scores, "best_nll": data.nll(test), "normal_nll": _one_normal(data, train, test)}, arm.result


def _one_normal(data: RobotArm, train: Index, test: Index) -> float:
    """NLL of a Normal with the training rows' mean and variance: knowing nothing about X."""
    mean, std = torch.tensor(data.y[train]).mean(), torch.tensor(data.y[train]).std()
    return -float(torch.distributions.Normal(mean, std).log_prob(torch.tensor(data.y[test])).mean())


def show(scores: dict[str, float], result: FitResult) -> None:
    """Print the scores, each with what it means."""
    table = Table(title="2-layer DSPP on held-out rows of the simulated robot arm")
    table.add_column("score")
    table.add_column("value", justify="right")
    table.add_column("what it says")
    gap = scores["nll"] - scores["best_nll"]
    table.add_row("NLL", f"{scores['nll']:+.4f}", "negative log density of what happened, nats a row; lower is better")
    table.add_row("best possible NLL", f"{scores['best_nll']:+.4f}", f"of the true density: {gap:.4f} nats to go")
    table.add_row("NLL, ignoring X", f"{scores['normal_nll']:+.4f}", "of one Normal for all rows")
    table.add_row("RMSE", f"{scores['rmse']:.4f}", "error of the mean, in the target's units")
    table.add_row("CRPS", f"{scores['crps']:.4f}", "error of the whole distribution, in the target's units")
    table.add_row("90 % coverage", f"{scores['coverage90']:.1%}", "of rows inside their central 90 % interval")
    console = Console()
    console.print(table)
    kept = "" if result.best_epoch is None else f"; kept the state of epoch {result.best_epoch} (validation NLL)"
    console.print(f"trained {len(result.history)} epochs in {result.seconds:.0f} s{kept}")
    for note in result.notes:
        console.print(f"note: {note}")


def main() -> None:
    """Run the demo from the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rows", type=int, default=10_000, help="rows to simulate (default 10000)")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"passes over the training rows (default {EPOCHS})")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    show(*run(options.rows, options.epochs, options.seed))


if __name__ == "__main__":
    main()

"""A study: how much depends on the directions along which the linear mean of the hidden layer starts?

`python -m experiments.starts DATASET` fits a PPGPR, finds the directions of the inputs along which its mean varies most
(the leading eigenvectors of the average of g gᵀ, where g is the gradient at a training row), and trains DSPPs whose
linear mean starts along these, not along random ones. With `--like SEED` they start along the random directions of that
seed, while everything else depends on seeds of their own. The records go to `runs/starts/univariate.jsonl`.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from dspp.config import TrainConfig
from dspp.gp.means import MEANS, LinearMean, Mean
from dspp.model import build
from dspp.presets import Spec, preset
from dspp.training import Rows, fit
from dspp.training.run import start_seed
from experiments import data as datasets
from experiments.catalogue import experiment
from experiments.fitting import model_spec
from experiments.parts import Parts, cut
from experiments.protocol import Rule, read_protocol
from experiments.results import REPOSITORY
from experiments.run import Outcome, plan, run
from experiments.units import Unit, list_units

METHOD, NAME = "DSPP-QR3-2L", "along-gradient"
DEFAULT = {"hidden_mean": "linear"}
STEP = 0.05  # of the differences, in standard deviations of an input
ROWS = 2000  # at which gradients are taken

Floats = NDArray[np.float64]


def leading_directions(mean: Callable[[Floats], Floats], X: Floats) -> tuple[Floats, Floats]:
    """Return the directions along which `mean` varies most, as columns, and the share of its variation along each.

    Args:
        mean: A function of rows (N, D) with one value per row.
        X: Rows (N, D) at which its gradients are taken, by central differences.
    """
    steps = STEP * np.eye(X.shape[1])
    gradients = np.stack([(mean(X + step) - mean(X - step)) / (2 * STEP) for step in steps], axis=1)  # (N, D)
    shares, directions = np.linalg.eigh(gradients.T @ gradients / len(X))
    return directions[:, ::-1].copy(), (shares / shares.sum())[::-1].copy()


def gradient_directions(parts: Parts) -> Floats:
    """Return the directions along which a PPGPR fitted to the training rows varies most."""
    config = TrainConfig(epochs=20, seed=0, threads=1)
    predict = fit(
        preset("ppgpr", inducing=300), Rows.of(parts.X, parts.y), config=config, progress=False
    ).model.predictor()
    directions, shares = leading_directions(lambda X: predict(X).mean.double().numpy(), parts.X[:ROWS])
    print("share of the variation along each direction:", " ".join(f"{share:.2f}" for share in shares))
    return directions


def seed_directions(spec: Spec, X: Floats, seed: int) -> Floats:
    """Return the directions along which the first start of a fit with this seed has its linear mean."""
    x = torch.as_tensor(X, dtype=getattr(torch, spec.model.dtype))
    mean = cast(LinearMean, build(spec.model, x, seed=start_seed(seed, 0)).layers[0].mean)
    return mean.weight.detach().double().numpy()


def mean_along(directions: Floats) -> type[Mean]:
    """Return a linear mean whose weights start along the given directions, scaled to unit variance over the rows."""

    class AlongDirections(LinearMean):
        """x w + b, where w starts along given directions."""

        @torch.no_grad()
        def start(self, x: torch.Tensor, generator: torch.Generator) -> None:
            """Take one direction per GP and scale it to unit variance over `x`."""
            chosen = torch.from_numpy(directions[:, : self.width])
            self.weight.copy_(chosen / (x.to("cpu", torch.float64) @ chosen).std(0, correction=0))

    return AlongDirections


def main(
    dataset: Annotated[str, typer.Argument(help="A univariate data set of the paper.")] = "kin40k",
    width: Annotated[int, typer.Option(min=1, help="Number of hidden GPs.")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of the `paper` protocol's settings.")] = 100,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, on the same split.")] = 3,
    like: Annotated[int | None, typer.Option(min=0, help="Start along the directions of this seed.")] = None,
    first: Annotated[int, typer.Option(min=0, help="The first of the seeds.")] = 0,
    data: Annotated[Path | None, typer.Option(help="Folder to search first for data sets.")] = None,
    results: Annotated[Path, typer.Option(help="Folder of the results.")] = REPOSITORY / "runs" / "starts",
) -> None:
    """Train DSPPs whose linear mean starts along given directions."""
    parts = cut(datasets.load(dataset, data), 0, (15, 3, 2))
    name = NAME if like is None else f"like-seed-{like}"
    fixed = {"epochs": epochs, "restarts": 1, "beta": 0.05, "width": width, "hidden_mean": name}
    rules = read_protocol("paper").with_rule(Rule(set=fixed, grid={"seed": list(range(first, first + seeds))}))
    units = list_units(experiment("univariate"), rules, [dataset], [METHOD], 1)
    if like is None:
        directions = gradient_directions(parts)
    else:
        directions = seed_directions(model_spec(replace(units[0], setting=units[0].setting | DEFAULT)), parts.X, like)
    with MEANS.temporarily(name, mean_along(directions)):
        run(plan(units, results), results, data, 1, _print)


def _print(outcome: Outcome[Unit]) -> None:
    found = outcome.problem if outcome.record is None else f"test NLL {outcome.record['metrics']['nll']:.3f}"
    print(f"{outcome.task.label}, seed {outcome.task.setting['seed']}: {found}")


if __name__ == "__main__":
    typer.run(main)

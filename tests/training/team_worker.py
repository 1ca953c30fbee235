"""What test_team.py runs in its own process, and in several under torchrun: team_worker.py OUT JOB [JOB ...]."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch

from dspp import TrainConfig, preset
from dspp.errors import DsppError, NumericalError
from dspp.objectives import OBJECTIVES
from dspp.presets import PRESETS
from dspp.training import fit, stop_on_signals
from dspp.training.processes import ProcessGroup, join_processes

RNG = np.random.default_rng(0)
X = RNG.normal(size=(103, 3))
Y = np.stack([np.sin(X[:, 0]) + 0.1 * RNG.normal(size=103), X[:, 1]], axis=1)
CONFIG = TrainConfig(epochs=13, batch_size=26, restarts=1, seed=3)  # 4 steps an epoch, of 25 or 26 rows: 52 steps


def train(name: str, outputs: int = 1, config: TrainConfig = CONFIG, **how):
    small = {"inducing": 8, "sites": 3, "dtype": "float64"} | ({} if PRESETS[name].__name__ in SINGLE else {"width": 2})
    y = Y[:, 0] if outputs == 1 else Y
    return fit(preset(name, **small), X, y, X_val=X[:31], y_val=y[:31], config=config, **how)


SINGLE = ("svgp", "od_svgp", "ppgpr")


def facts(result) -> dict:
    weights = {name: value.tolist() for name, value in result.model.state_dict().items()}
    history = [[e.objective, e.train_nll, e.val_nll] for e in result.history]
    return {"weights": weights, "history": history, "recoveries": len(result.recoveries)}


def parity(out: Path) -> dict:
    """Every preset, one and two outputs."""
    return {f"{name} {outputs}": facts(train(name, outputs)) for name in PRESETS for outputs in (1, 2)}


def unused(out: Path) -> dict:
    """A parameter that the objective does not depend on: the ELBO of student-t leaves its sites alone."""
    small = {"inducing": 8, "likelihood": "student-t", "dtype": "float64"}
    names = {"svgp": {}, "dgp": {"width": 2, "sites": 3}}
    config = CONFIG.change(epochs=3)
    return {name: facts(fit(preset(name, **small, **more), X, Y[:, 0], config=config)) for name, more in names.items()}


def whole(out: Path) -> dict:
    return facts(train("dgp", config=CONFIG.change(restarts=2)))


def stopped(out: Path) -> dict:
    """A run with a checkpoint that is told to stop, by one of the processes only."""
    asked, out = [0], out / f"{ProcessGroup.current().size}"

    def stop() -> bool:
        asked[0] += 1
        return asked[0] > 21 and ProcessGroup.current().rank == ProcessGroup.current().size - 1

    try:
        train("dgp", config=CONFIG.change(restarts=2), checkpoint=out / "run", checkpoint_seconds=0, should_stop=stop)
    except DsppError as problem:
        return {"problem": str(problem)}
    return {}


def resumed(out: Path) -> dict:
    """Go on with what the other number of processes has left."""
    path = out / f"{3 - ProcessGroup.current().size}" / "run"
    return facts(train("dgp", config=CONFIG.change(restarts=2), checkpoint=path, resume=True))


def spoilt(out: Path) -> dict:
    """One process meets a number that is not finite, another an error, at different steps: all go back together."""
    objective, calls = OBJECTIVES["predictive"], [0]

    def odd(*given, **options):
        calls[0] += 1
        last = ProcessGroup.current().rank == ProcessGroup.current().size - 1
        if calls[0] == 7 and last:
            raise NumericalError("spoilt here")
        return objective(*given, **options) * (float("nan") if calls[0] == 15 and last else 1.0)

    with OBJECTIVES.temporarily("predictive", odd):
        return facts(train("ppgpr"))


def lost(out: Path) -> dict:
    """The last process dies without a word."""
    team, calls = ProcessGroup.current(), [0]

    def die() -> bool:
        calls[0] += 1
        if calls[0] == 20 and team.rank == team.size - 1:
            os._exit(9)
        return False

    try:
        path = out / "2" / "run"
        with stop_on_signals():  # torchrun ends the others with SIGTERM, which may come first
            config = CONFIG.change(restarts=2)
            train("dgp", config=config, checkpoint=path, checkpoint_seconds=0, should_stop=die)
    except DsppError as problem:
        (out / "lost").write_text(str(problem))
        raise
    return {}


def main() -> None:
    out, jobs = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    with join_processes("cpu") as team:
        found = {job: globals()[job](out) for job in jobs}
        if team.rank == 0:
            (out / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

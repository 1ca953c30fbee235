"""Kill fits of an ensemble at chosen steps with kill -9, resume them, and compare with one that was never killed.

A process of its own, with one thread, so that it can fork: python kill_worker.py FOLDER.
"""

import itertools
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from dspp import training
from dspp.fitted import Fitted
from dspp.fitting import train
from dspp.objectives import OBJECTIVES
from dspp.prepare import prepare
from dspp.settings import Settings
from dspp.table.memory import attach_targets, to_table
from tests.members.ensembles import TINY, X, Y, bits

training.run.LAP_STEPS = 2
fit_model = training.fit


def fit_and_keep_every_state(*given: Any, checkpoint: Path | None = None, **more: Any) -> Any:
    kept = None if checkpoint is None else training.Checkpoint(checkpoint, seconds=0.0)
    return fit_model(*given, checkpoint=kept, **more)


training.fit = fit_and_keep_every_state
MEMBERS, STEPS = 3, 6  # per member: 2 epochs of 3 batches
KILLS = (1, 4, STEPS, STEPS + 1, 2 * STEPS - 1, 2 * STEPS + 3, MEMBERS * STEPS)


def fit(checkpoint: Path | None) -> Fitted:
    settings = Settings(**TINY, members=MEMBERS, checkpoint=checkpoint, jobs=1)
    prepared = prepare(attach_targets(to_table(X), Y), settings)
    return train(prepared, settings)[0]


def die_at(step: int, checkpoint: Path) -> None:
    """Fit, and be killed at a step, counted over all members."""
    objective, calls = OBJECTIVES["predictive"], itertools.count(1)

    def objective_and_die(*given: Any, **options: Any) -> Any:
        if next(calls) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return objective(*given, **options)

    with OBJECTIVES.temporarily("predictive", objective_and_die):
        fit(checkpoint)


def exit_code_of(step: int, checkpoint: Path) -> int:
    child = os.fork()
    if not child:
        try:
            die_at(step, checkpoint)
        except BaseException:
            traceback.print_exc()
        os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fingerprint(fitted: Fitted) -> list[Any]:
    return [bits(fitted.distribution(X)), fitted.weights, fitted.variance_scale, fitted.metrics]


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    whole = fingerprint(fit(None))
    for step in KILLS:
        checkpoint = folder / f"{step}.checkpoint"
        assert exit_code_of(step, checkpoint) == -signal.SIGKILL, step
        begun = sorted(path.name for path in checkpoint.glob("*.checkpoint"))
        assert begun == [f"member-{k + 1:02d}.checkpoint" for k in range((step - 1) // STEPS + 1)], begun
        assert fingerprint(fit(checkpoint)) == whole, step
        assert fingerprint(fit(checkpoint)) == whole, "a finished run is repeated at once"
    again = folder / "twice.checkpoint"
    for step in (4, 3, 5):  # each time counted from the resume
        assert exit_code_of(step, again) == -signal.SIGKILL
    assert fingerprint(fit(again)) == whole


if __name__ == "__main__":
    main(Path(sys.argv[1]))

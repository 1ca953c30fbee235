"""A small run that is stopped, killed and resumed in the tests of checkpoints."""

import contextlib
import dataclasses
import hashlib
import itertools
import re
import shutil

import numpy as np
import pytest

import dspp
from dspp import TrainConfig, preset
from dspp.errors import TrainingInterrupted
from dspp.objectives import OBJECTIVES
from dspp.training import Budget, Checkpoint, Rows, run

GENERATOR = np.random.default_rng(3)
X, X_VAL = GENERATOR.normal(size=(200, 2)), GENERATOR.normal(size=(40, 2))
Y, Y_VAL = np.sin(2 * X[:, 0]) + 0.1 * X[:, 1], np.sin(2 * X_VAL[:, 0]) + 0.1 * X_VAL[:, 1]
SPEC = preset("dspp", inducing=10, width=2, sites=3)
# 5 steps an epoch, 25 in all
CONFIG = TrainConfig(epochs=4, batch_size=40, learning_rate=0.02, restarts=2, threads=1, seed=7)
ONE_START = CONFIG.change(restarts=1, epochs=2)


def fit(spec, X, y, *, weights=None, X_val=None, y_val=None, weights_val=None, **options):
    """`dspp.fit` on arrays. Options of `CONSTANTS` and of a checkpoint or a time budget are options of this."""
    rows, validation = Rows.of(X, y, weights), None
    if X_val is not None:
        validation = Rows.of(X_val, y_val, weights_val)
    if "checkpoint" in options:
        how = {"resume": options.pop("resume", False), "seconds": options.pop("checkpoint_seconds", 60.0)}
        options["checkpoint"] = Checkpoint(options["checkpoint"], **how)
    if "time_budget" in options or "clock" in options:
        clock = {"clock": options.pop("clock")} if "clock" in options else {}
        options["budget"] = Budget(options.pop("time_budget", None), **clock)
    with pytest.MonkeyPatch.context() as patch:
        for name, (module, constant) in CONSTANTS.items():
            if name in options:
                patch.setattr(module, constant, options.pop(name))
        return dspp.fit(spec, rows, validation, **options)


CONSTANTS = {
    "lap_steps": (run, "LAP_STEPS"),  # after so many steps there is a state to return to
    "trial_rows": (run, "MAX_TRIAL_ROWS"),
    "score": (run, "nll"),
}


def train(config=CONFIG, **options):
    """A run that keeps a state to return to at every second step, unless told otherwise."""
    return fit(SPEC, X, Y, **{"X_val": X_VAL, "y_val": Y_VAL, "config": config, "lap_steps": 2} | options)


def untimed(result):
    """All that a run left behind but times and notes, the model as bytes."""
    weights = {name: value.numpy().tobytes() for name, value in result.model.state_dict().items()}
    history = [dataclasses.replace(epoch, seconds=0.0) for epoch in result.history]
    rest = (result.best_epoch, result.recoveries, result.jitter_increases, result.planned_epochs, result.stopped)
    return weights, repr((history, result.restart_nll, rest))


def fingerprint(result):
    weights, rest = untimed(result)
    return hashlib.sha256(b"".join(weights.values()) + rest.encode()).hexdigest()


class StopAfter:
    """A `should_stop` that says so at the given call, counted from 1."""

    def __init__(self, calls):
        self.left = calls

    def __call__(self):
        self.left -= 1
        return self.left == 0


@contextlib.contextmanager
def at_call(number, act):
    """Let the objective `act` at a call, counted from 1: in the middle of a step."""
    original, calls = OBJECTIVES["predictive"], itertools.count(1)

    def objective(*given, **options):
        if next(calls) == number:
            act()
        return original(*given, **options)

    with OBJECTIVES.temporarily("predictive", objective):
        yield


def no_step():
    """Fail the test if a step is made in the block."""
    return OBJECTIVES.temporarily("predictive", lambda *given, **options: pytest.fail("a step was made"))


def step_in(path, config):
    """The step from which a run resumes: a copy of it makes one more step and is stopped; None: there is no file."""
    if not path.exists():
        return None
    copy = path.with_name(f"{path.name}-copy")
    shutil.copy(path, copy)
    try:
        train(config, checkpoint=copy, resume=True, should_stop=lambda: True)
        return config.epochs * -(-len(X) // config.batch_size)  # it had ended
    except TrainingInterrupted as stopped:
        return int(re.search(r"stopped at step (\d+)", str(stopped))[1]) - 1
    finally:
        copy.unlink()


def parameters_of(value):
    """The model's parameters, as they are: the leaves of the graph that an objective's value came from."""
    found, nodes, seen = [], [value.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        nodes.extend(parent for parent, _ in node.next_functions)
    return found

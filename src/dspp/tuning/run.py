"""The call a user makes."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dspp.errors import InputError
from dspp.prepare import Prepared, prepare
from dspp.settings import FEWEST_ROWS_TO_HOLD_OUT
from dspp.table.memory import attach_targets, to_table
from dspp.tuning.result import TuneResult
from dspp.tuning.search import Budget, Search, Workers
from dspp.tuning.space import Space
from dspp.tuning.study import best_file, digest, opened

TRIALS = 30


def tune(
    X: Any,
    y: Any,
    *,
    models: Sequence[str] = ("dspp",),
    space: Mapping[str, Any] | None = None,
    trials: int | None = None,
    time_budget: float | None = None,
    X_val: Any = None,
    y_val: Any = None,
    study: str | Path | None = None,
    base: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: bool | None = None,
    should_stop: Callable[[], bool] | None = None,
    jobs: int | None = 1,
    engine: str = "local",
    address: str | None = None,
) -> TuneResult:
    """Search for the settings with the lowest validation NLL, and return the model they gave.

    Every trial trains on the same rows and is judged on the same validation rows. At a quarter and at a half of its
    training it goes on only if it is among the better half so far (successive halving). A small space of choices and
    whole numbers is tried in random order, each setting once; any other is left to Optuna's TPE sampler. The default
    space is the paper's (beta, width, layers and, for 3 layers, topology), and begins with the first model's own
    settings.

    Args:
        X: a data frame, or a 2-D array of numbers.
        y: one target a row, or (N, T) for T outputs.
        models: presets to choose from, such as "dspp", "ppgpr", "svgp".
        space: for each parameter [choice, choice, ...], (low, high) or (low, high, "log"); a range between whole
            numbers gives whole numbers. Parameters of the estimators, and fields of `ModelConfig` and `TrainConfig`.
            Those that mean nothing to a model (the width of a single layer) are left out of its trials.
        trials: settings to try, those of an earlier call with the same `study` included; None: 30.
        time_budget: seconds that this call may take. A trial gets at most a quarter of it, or more where there are
            fewer than four to run; its schedule is shortened to fit, so that there is a model however short the time.
        X_val: validation rows; None: the estimators' `validation_fraction` of the rows of X.
        y_val: their targets.
        study: a file to keep the search in. The same call goes on from it, also after a crash; the best model so far is
            kept beside it, in `<study>.best.dspp`.
        base: parameters of every estimator that stay as they are, such as {"inducing": 100, "epochs": 20}.
        seed: the same seed gives the same trials, unless time cuts them short or several run at once.
        progress: whether to show a line with the trial, the best NLL and the time left; None: only on a terminal.
        should_stop: asked after every training step, or with workers a few times a second; True ends the search with
            `TrainingInterrupted`, the study kept.
        jobs: trials at once; None: as many as there are CPUs. One local trial runs in this process; more run in workers
            of one thread each, which hold the rows too. What a trial tries, and which are ended early, then depends on
            which others are done by then. A trial whose worker dies is run again, up to three times.
        engine: where workers run: "local", or "ray" (`pip install 'dspp[ray]'`).
        address: of a Ray cluster, HOST:PORT or "auto"; None: a Ray of its own on this machine.

    Raises:
        InputError: data or names cannot be used, the study was made with others, no setting could be trained, or there
            is no such engine or cluster.
        CheckpointError: the study cannot be read or written, or another process is using it.

    Example:
        >>> tune(X, y, time_budget=600).best_estimator.predict_interval(X_new)  # doctest: +SKIP
    """
    choices = Space(models, space, base or {})
    any_model = choices.estimator({"model": choices.models[0]}, random_state=seed)
    table = attach_targets(to_table(X), y)
    given = X_val is not None or y_val is not None
    if given and (X_val is None or y_val is None):
        raise InputError("got only one of X_val and y_val, expected both or neither")
    validation = attach_targets(to_table(X_val, "X_val"), y_val, "y_val", every_output=False) if given else None
    return search(
        prepare(table, any_model.settings(), validation=validation),
        models=models,
        space=space,
        trials=trials,
        time_budget=time_budget,
        study=study,
        base=base,
        seed=seed,
        progress=progress,
        should_stop=should_stop,
        jobs=jobs,
        engine=engine,
        address=address,
    )


def search(
    prepared: Prepared,
    *,
    models: Sequence[str] = ("dspp",),
    space: Mapping[str, Any] | None = None,
    trials: int | None = None,
    time_budget: float | None = None,
    study: str | Path | None = None,
    base: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: bool | None = None,
    should_stop: Callable[[], bool] | None = None,
    jobs: int | None = 1,
    engine: str = "local",
    address: str | None = None,
) -> TuneResult:
    """Search on a table that is prepared, once for all trials; arguments as in `tune`."""
    budget, workers = Budget(time_budget), Workers(jobs, engine, address)
    count = TRIALS if trials is None else trials
    if not isinstance(count, int) or count < 1:
        raise InputError(f"trials: got {trials!r}, expected a whole number of at least 1")
    choices = Space(models, space, base or {})
    if not len(prepared.validation):
        raise InputError(
            "tune needs validation rows: pass X_val and y_val, or a validation_fraction above 0 and at least "
            f"{FEWEST_ROWS_TO_HOLD_OUT} rows (got {prepared.num_rows + len(prepared.calibration)})"
        )
    path = None if study is None else Path(study)
    identity = {} if path is None else _identity(prepared, choices, seed)
    with opened(path, identity) as kept:
        file = None if path is None else best_file(path)
        return Search(prepared, choices, seed, kept, count, budget, file, should_stop, workers).run(progress)


def _identity(prepared: Prepared, space: Space, seed: int) -> dict[str, str]:
    """What makes a search this one, in words that finish "was made with another"."""
    return {
        "table": digest(prepared),
        "space or list of models": repr(space.dimensions),
        "base": repr(sorted(space.base.items(), key=lambda item: item[0])),
        "seed": repr(seed),
    }

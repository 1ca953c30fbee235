"""The public function `tune`."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspp.engines import cores
from dspp.errors import InputError
from dspp.extras import require
from dspp.notes import warn_of_notes
from dspp.outcomes import find_outcome
from dspp.prepare import Prepared, prepare
from dspp.settings import MIN_ROWS_TO_HOLD_OUT
from dspp.table.files import dataset_columns, from_dataset, is_dataset
from dspp.table.memory import attach_roles, attach_targets, to_table
from dspp.table.table import FileTable, Table
from dspp.tuning.result import TuneResult

if TYPE_CHECKING:
    from dspp.tuning.space import Space

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
    sample_weight: Any = None,
    groups: Any = None,
    time: Any = None,
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

    Every trial uses the same training and validation rows. At a quarter and at half of its training, a trial continues
    only if it is among the better half so far (successive halving). A small finite space is tried in random order,
    without repetition; any other space is sampled by Optuna's TPE sampler. The default space is the paper's (beta,
    width, layers and, for 3 layers, topology), starting with the first model's own settings.

    Args:
        X: A data frame, a 2-D array of numbers, or a `pyarrow.dataset.Dataset`; for the latter y, weights, groups and
            times are names of its columns.
        y: One target per row, or (N, T) for T outputs.
        models: Presets to choose from, such as "dspp", "ppgpr", "svgp".
        space: For each parameter [choice, choice, ...], (low, high) or (low, high, "log"); a range between integers
            gives integers. The names are parameters of the estimators and fields of `ModelConfig` and `TrainConfig`.
            Parameters that do not apply to a model (the width of a single layer) are left out of its trials.
        trials: Number of trials, including those of an earlier call with the same `study`; None: 30.
        time_budget: Time limit of this call in seconds. A trial gets at most a quarter of it, or more if fewer than
            four remain; its schedule is shortened to fit, so that even a short search returns a model.
        X_val: Validation rows; None: the estimators' `validation_fraction` of the rows of X.
        y_val: The targets of the validation rows.
        sample_weight: How much each row counts; None: all the same. This and the next two are as in `fit`.
        groups: A label per row; rows of a group are held out together.
        time: A number, date or timestamp per row; the latest rows are held out.
        study: A file that stores the search, so that the same call resumes it, even after a crash. The best model so
            far is stored beside it, in `<study>.best.dspp`.
        base: Fixed parameters of all estimators, such as {"inducing": 100, "epochs": 20}.
        seed: The same seed gives the same trials, unless the time limit or parallel trials interfere.
        progress: Whether to show a line with the trial, the best NLL and the time left; None: only on a terminal.
        should_stop: Called after every training step or, with workers, a few times per second; returning True ends the
            search with `TrainingInterrupted`, keeping the study.
        jobs: Number of parallel trials; None: the number of CPUs. A single local trial runs in this process; several
            run in workers of one thread each, which hold copies of the rows. The choice of settings and the pruning of
            trials then depend on which trials finish first. If its worker dies, a trial is retried up to three times.
        engine: Where workers run: "local", or "ray" (`pip install 'dspp[ray]'`).
        address: Address of a Ray cluster, HOST:PORT or "auto"; None: start Ray on this machine.

    Raises:
        MissingExtraError: Optuna is not installed.
        InputError: An argument is not valid, the study was created with other data or settings, no setting could be
            trained, or the engine or cluster is not available.
        CheckpointError: The study cannot be read or written, or is in use by another process.

    Example:
        >>> import numpy as np
        >>> from dspp import tune
        >>> X = np.random.default_rng(0).normal(size=(60, 2))
        >>> result = tune(X, X[:, 0], trials=2, base={"inducing": 8, "epochs": 2})  # or time_budget=600
        >>> result.best_estimator.predict_interval(X[:3]).shape
        (3, 2)
    """
    require("tune", "a search for settings")
    from dspp.tuning.space import Space

    choices = Space(models, space, base or {})
    any_model = choices.estimator({"model": choices.models[0]}, random_state=seed)
    settings, attach = any_model.settings(), attach_targets
    how: dict[str, Any] = {}
    table: Table | FileTable
    if is_dataset(X):
        table, how = from_dataset(X), dataset_columns(X.schema.names, y, sample_weight, groups, time)
    else:
        kind, likelihood = find_outcome(*settings.named_outcome)
        outcome, table = kind.start(to_table(X), y, likelihood)
        table, how, attach = attach_roles(table, sample_weight, groups, time), {"outcome": outcome}, outcome.attach
    given = X_val is not None or y_val is not None
    if given and (X_val is None or y_val is None):
        raise InputError("expected both or neither of X_val and y_val, got only one; pass both")
    validation = attach(to_table(X_val, "X_val"), y_val, "y_val", every_output=False) if given else None
    how |= {"validation": validation, "processes": 0 if jobs == 1 else jobs or cores()}
    result = search(
        prepare(table, settings, **how),
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
    warn_of_notes(result.best_estimator.fitted_.notes)
    return result


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
    """Search on a prepared table; for the arguments, see `tune`."""
    require("tune", "a search for settings")
    from dspp.tuning.search import Budget, Search, Workers
    from dspp.tuning.space import Space
    from dspp.tuning.study import best_file, open_study

    budget, workers = Budget(time_budget), Workers(jobs, engine, address)
    count = TRIALS if trials is None else trials
    if not isinstance(count, int) or count < 1:
        raise InputError(f"trials: expected an integer ≥ 1, got {trials!r}")
    choices = Space(models, space, base or {})
    if not len(prepared.validation):
        raise InputError(
            f"expected validation rows, got none of {prepared.num_rows + len(prepared.calibration)} rows; pass X_val "
            f"and y_val, or a validation_fraction above 0 and at least {MIN_ROWS_TO_HOLD_OUT} rows"
        )
    path = None if study is None else Path(study)
    identity = {} if path is None else _identity(prepared, choices, seed)
    with open_study(path, identity) as kept:
        file = None if path is None else best_file(path)
        return Search(prepared, choices, seed, kept, count, budget, file, should_stop, workers).run(progress)


def _identity(prepared: Prepared, space: "Space", seed: int) -> dict[str, str]:
    """Return what identifies a search, by names for the error message."""
    from dspp.tuning.study import digest

    return {
        "table": digest(prepared),
        "space or list of models": repr(space.dimensions),
        "base": repr(sorted(space.base.items(), key=lambda item: item[0])),
        "seed": repr(seed),
    }

"""The public function `tune`, which needs Optuna only when a search begins."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dspp.engines import cores
from dspp.estimators.regressor import prepare_rows
from dspp.extras import require
from dspp.notes import warn_of_notes
from dspp.tuning.result import TRIALS, TuneResult


def tune(
    X: Any,
    y: Any,
    *,
    models: Sequence[str] = ("dspp",),
    space: Mapping[str, Any] | None = None,
    base: Mapping[str, Any] | None = None,
    trials: int = TRIALS,
    time_budget: float | None = None,
    study: str | Path | None = None,
    **fit: Any,
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
        base: Fixed parameters of all estimators, such as {"inducing": 100, "epochs": 20}. Some are of the whole search:
            the same `random_state` gives the same trials, unless the time limit or parallel trials interfere; `jobs` is
            the number of parallel trials, by default 1, `engine` and `address` say where they run; `progress` shows a
            line with the trial, the best NLL and the time left. A single local trial runs in this process; several run
            in workers of one thread each, which hold copies of the rows. The choice of settings and the pruning of
            trials then depend on which trials finish first. If its worker dies, a trial is retried.
        trials: Number of trials, including those of an earlier call with the same `study`.
        time_budget: Time limit of this call in seconds. A trial gets at most a quarter of it, or more if fewer than
            four remain; its schedule is shortened to fit, so that even a short search returns a model.
        study: A file that stores the search, so that the same call resumes it, even after a crash. The best model so
            far is stored beside it, in `<study>.best.dspp`.
        **fit: Arguments of `fit`: X_val, y_val, sample_weight, sample_weight_val, groups, time, and should_stop, which
            ends the search with `TrainingInterrupted`, keeping the study.

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
    from dspp.tuning.search import search
    from dspp.tuning.space import Space

    choices, should_stop = Space(models, space, base or {}), fit.pop("should_stop", None)
    jobs = choices.where["jobs"]
    estimator = choices.estimator({"model": choices.models[0]})
    prepared = prepare_rows(estimator, estimator.settings(), X, y, **fit, processes=0 if jobs == 1 else jobs or cores())
    limits: dict[str, Any] = {"trials": trials, "time_budget": time_budget}
    result = search(prepared, choices, **limits, study=study, should_stop=should_stop)
    warn_of_notes(result.best_estimator.fitted_.notes)
    return result

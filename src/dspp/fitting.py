"""Training, recalibration and scoring of a model on a prepared table."""

import math
import platform
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from dspp import training
from dspp.calibration import Conformal
from dspp.fitted import Evaluation, Fitted, Member
from dspp.history import Epoch
from dspp.notes import Note
from dspp.prepare import Prepared
from dspp.settings import Settings, check_number
from dspp.training.rows import Rows

VERSIONS = ("dspp", "torch", "numpy", "scikit-learn")
PROMISED = 0.9  # coverage in the notes on recalibration: the default of `predict_interval`


def train(
    prepared: Prepared,
    settings: Settings,
    *,
    on_epoch: Callable[[Epoch], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    resume: bool = True,
    reading: Mapping[str, int] | None = None,
    **more: Any,
) -> tuple[Fitted, Evaluation | None]:
    """Train a model with these settings, and evaluate it on the validation rows.

    Args:
        prepared: The rows.
        settings: Settings of the model, its training and its checkpoint.
        on_epoch: Called with the record of each epoch; an exception it raises ends training.
        should_stop: Called after every step; returning True interrupts training, keeping the checkpoint.
        resume: Whether to resume from an existing checkpoint.
        reading: How to read rows on disk; see `DiskRows`.
        **more: Further options of `training.fit`, such as `snapshot_steps`.

    Returns:
        The fitted model, and its evaluation on the validation rows, or None without validation rows.
    """
    if settings.time_budget is not None:
        check_number("time_budget", settings.time_budget)
    spec, config = settings.spec(len(prepared.target_names)), settings.train_config(prepared.num_rows)
    if len(prepared.validation):
        more |= {"X_val": prepared.validation.x, "y_val": prepared.validation.y}
    with prepared.source(spec, config, reading or {}) as rows:
        result = training.fit(
            spec,
            *((rows.x, rows.y) if isinstance(rows, Rows) else (rows,)),
            config=config,
            features=settings.module,
            progress=settings.progress,
            checkpoint=settings.checkpoint,
            resume=resume and settings.checkpoint is not None,
            time_budget=settings.time_budget,
            on_epoch=on_epoch,
            should_stop=should_stop,
            **more,
        )
    encoder = prepared.encoder
    fitted = Fitted(
        members=(Member(spec, config, result.model, result.history, result.best_epoch, result.seconds),),
        weights=(1.0,),
        scale_X=prepared.scale_X,
        codec=prepared.codec,
        encoder=encoder,
        feature_names=None if encoder is None else encoder.feature_names,
        target_names=prepared.target_names,
        metrics={},
        notes=(*prepared.notes, *(Note("", note) for note in result.notes)),
        versions={"python": platform.python_version()} | {name: version(name) for name in VERSIONS},
        conformal=None,
        num_rows=prepared.num_rows,
        params=settings.params(),
    )
    if len(prepared.calibration):
        calibration = Evaluation(
            fitted, prepared.calibration_table, fitted.predict_standardised(prepared.calibration.x)
        )
        conformal = Conformal.fit(calibration.distribution, calibration.y)
        notes = (*fitted.notes, *_infinite_interval_notes(conformal, fitted.target_names))
        fitted = replace(fitted, conformal=conformal.scores.reshape(-1, fitted.num_outputs), notes=notes)
    evaluation = evaluate_validation(fitted, prepared)
    if evaluation is not None:
        fitted.metrics.update(evaluation.scores)  # the model is not shared yet
    return fitted, evaluation


def evaluate_validation(fitted: Fitted, prepared: Prepared) -> Evaluation | None:
    """Return the evaluation on the validation rows, or None without validation rows."""
    if not len(prepared.validation):
        return None
    return Evaluation(fitted, prepared.validation_table, fitted.predict_standardised(prepared.validation.x))


def _infinite_interval_notes(conformal: Conformal, names: tuple[str, ...]) -> list[Note]:
    """Return notes on outputs with too few calibration rows, (n+1)c > n, for the default coverage c."""
    enough, percent = math.ceil(PROMISED / (1 - PROMISED) - 1e-9), f"{100 * PROMISED:.0f} %"
    return [
        Note(
            f"got {count} calibration row{'' if count == 1 else 's'} of {name}, need at least {enough} for {percent} "
            "intervals",
            "such intervals are infinite; add rows or raise calibration_fraction",
        )
        for name, count in zip(names, conformal.counts, strict=True)
        if count < enough
    ]

"""Training, recalibration and scoring of a model on a prepared table."""

import math
import platform
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, cast

import torch

from dspp import training
from dspp.calibration import Conformal, CrossConformal
from dspp.ensemble import EnsembleRows, train_ensemble
from dspp.evaluate import Evaluation
from dspp.fitted import Fitted, Member
from dspp.history import Epoch
from dspp.notes import Note
from dspp.prepare import Prepared
from dspp.progress import ProgressBar
from dspp.settings import Settings, check_number
from dspp.training.checkpoint import Checkpoint
from dspp.training.run import SMOOTHING

VERSIONS = ("dspp", "torch", "numpy", "scikit-learn")
CHOSE_EPOCH = "These rows also chose the epoch, so this is optimistic; score new rows with dspp evaluate."
CHOSE_SETTINGS = CHOSE_EPOCH.replace("the epoch", "the settings and the epoch")
OUT_OF_FOLD = "Each row is predicted only by the members that did not see it, so scores are slightly pessimistic."
SET_WEIGHTS = "These rows also set the members' weights and their spread, so this is very slightly optimistic."
TRAINED_ON = "The model was trained on these rows, so this is optimistic; score new rows with dspp evaluate."
LEAST_SHARE = 0.3  # of a time budget, for training, however long reading the table took
FINISH_SHARE = 0.1  # of a time budget, for learning how to mix members and for scores
LATER, SCORING = 0.1, 0.4  # share of a fit on the progress bar after training, and of that before scores
PROMISED = 0.9  # coverage in the notes on recalibration: the default of `predict_interval`


def train(
    prepared: Prepared,
    settings: Settings,
    *,
    on_epoch: Callable[[Epoch], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    resume: bool = True,
    spent: float = 0.0,
    bar: ProgressBar | None = None,
) -> tuple[Fitted, Evaluation | None]:
    """Train a model with these settings, and evaluate it on the validation rows.

    Args:
        prepared: The rows.
        settings: Settings of the model, its training and its checkpoint.
        on_epoch: Called with the record of each epoch; an exception it raises ends training.
        should_stop: Called after every step; returning True interrupts training, keeping the checkpoint.
        resume: Whether to resume from an existing checkpoint.
        spent: Seconds of the time budget that were or will be spent on other things, such as reading the table.
        bar: A progress bar that is shown, and has further steps; None: one as `settings.progress` says.

    Returns:
        The fitted model, and its evaluation on the validation rows, or None without validation rows.
    """
    time_left = None
    if settings.time_budget is not None:
        check_number("time_budget", settings.time_budget)
        time_left = max(settings.time_budget - spent, LEAST_SHARE * settings.time_budget)
    own = ProgressBar(None, settings.progress, smoothing=SMOOTHING, later=LATER)
    with own if bar is None else nullcontext(bar) as bar:
        train_kind = _train_ensemble if settings.is_ensemble(prepared.num_rows) else _train_single
        return train_kind(prepared, settings, bar, time_left, on_epoch, should_stop, resume)


def _train_single(
    prepared: Prepared,
    settings: Settings,
    bar: ProgressBar,
    time_left: float | None,
    on_epoch: Callable[[Epoch], None] | None,
    should_stop: Callable[[], bool] | None,
    resume: bool,
) -> tuple[Fitted, Evaluation | None]:
    """Train a single model, and evaluate it on the validation rows."""
    single = prepared.settings_of_models(settings).of_single_model(prepared.num_rows)
    spec, config = prepared.complete(single.spec(prepared.outcome.num_outputs)), single.train_config(prepared.num_rows)
    result = training.fit(
        spec,
        prepared.train,
        prepared.validation if len(prepared.validation) else None,
        config=config,
        features=settings.module,
        budget=time_left,
        checkpoint=None if settings.checkpoint is None else Checkpoint(settings.checkpoint, resume),
        progress=bar,
        on_epoch=on_epoch,
        should_stop=should_stop,
    )
    bar.step("scoring the held-out rows", SCORING)
    fitted = _make_fitted(
        prepared,
        settings,
        members=(Member(spec, config, result.model, result.history, result.best_epoch, result.seconds),),
        weights=(1.0,),
        notes=tuple(Note("", note) for note in result.notes),
    )
    if len(prepared.calibration):
        fitted = _recalibrate(fitted, prepared)
    evaluation = evaluate_validation(fitted, prepared)
    if evaluation is None:
        return fitted, None
    fitted = _with_scores(fitted, evaluation, f"{len(evaluation.table):,} validation rows, which also chose the epoch")
    return fitted, replace(evaluation, fitted=fitted)


def _recalibrate(fitted: Fitted, prepared: Prepared) -> Fitted:
    """Return the model with scores of the calibration rows, which it did not see."""
    distribution = fitted.predict_standardised(prepared.calibration.x)
    calibration = Evaluation(fitted, prepared.calibration_table, distribution)
    return _with_conformal(
        fitted, Conformal.fit(calibration.distribution, calibration.comparison.y), "raise calibration_fraction"
    )


def _with_conformal(fitted: Fitted, found: Conformal | CrossConformal, remedy: str = "") -> Fitted:
    """Return the model with calibration scores, and notes where they are too few."""
    return replace(
        fitted,
        conformal=found.scores.reshape(-1, fitted.num_outputs),
        conformal_folds=found.fold if isinstance(found, CrossConformal) else None,
        notes=(*fitted.notes, *_infinite_interval_notes(found.counts, fitted.target_names, remedy)),
    )


def _with_scores(fitted: Fitted, evaluation: Evaluation, scored: str) -> Fitted:
    """Return the model with its scores, and with a recommendation if they show that intervals are too narrow."""
    notes = fitted.notes
    if fitted.conformal is None and evaluation.calibration.is_too_narrow:
        how = "fit with conformal=True (on the command line, --conformal) for intervals with a coverage guarantee"
        notes = (*notes, Note("intervals are too narrow", how))
    return replace(
        fitted,
        metrics=evaluation.scores,
        scored=scored,
        notes=(*notes, *fitted.outcome.score_notes(evaluation.distribution, evaluation.table.targets)),
    )


def _train_ensemble(
    prepared: Prepared,
    settings: Settings,
    bar: ProgressBar,
    time_left: float | None,
    on_epoch: Callable[[Epoch], None] | None,
    should_stop: Callable[[], bool] | None,
    resume: bool,
) -> tuple[Fitted, Evaluation | None]:
    """Train an ensemble, and evaluate it on the rows that its members held out."""
    begin, outputs = time.monotonic(), prepared.outcome.num_outputs
    size = prepared.size(settings)
    members = prepared.settings_of_models(settings)
    spec = prepared.complete(members.member_spec(size, outputs))
    config = members.member_config(size, prepared.num_rows)
    deadline = None if time_left is None else begin + (1.0 - FINISH_SHARE) * time_left
    more_data: dict[str, Any] = {"inner": prepared.inner, "means": prepared.means, "forward": prepared.is_forward}
    joined = prepared.train.join(prepared.validation)
    data = EnsembleRows(joined, prepared.fold, prepared.outcome, validation=len(prepared.validation), **more_data)
    ensemble = train_ensemble(
        data,
        spec,
        config,
        size,
        partial(_make_fitted, prepared, settings),
        settings,
        bar,
        deadline=deadline,
        on_epoch=on_epoch,
        should_stop=should_stop,
        resume=resume,
    )
    bar.step("scoring the held-out rows", SCORING)
    fitted = ensemble.fitted
    if ensemble.held_out is None:
        if settings.conformal:
            note = Note("intervals are not recalibrated", "no fold was held out by members of every kind")
            fitted = replace(fitted, notes=(*fitted.notes, note))
        return fitted, None
    given = len(prepared.validation) > 0
    whole = prepared.validation_table if given else prepared.table
    table = whole if given or len(ensemble.rows) == len(whole) else whole.take(ensemble.rows)
    in_folds = data.num_folds > 1
    held_out, caveat = fitted.outcome.decode(ensemble.held_out), OUT_OF_FOLD if in_folds else SET_WEIGHTS
    evaluation = Evaluation(fitted, table, held_out, ensemble.parts, caveat)
    if settings.conformal:  # these rows give the calibration scores, so their coverage would say nothing
        fitted = _with_conformal(fitted, _score_held_out(evaluation, in_folds))
    scored = "that no member was trained on"
    if prepared.is_forward:
        scored = "that are the latest, predicted by the members trained on earlier ones"
    elif in_folds:
        scored = "out of fold, each predicted by the members that did not see it"
    fitted = _with_scores(fitted, evaluation, f"{len(table):,} rows {scored}")
    return fitted, replace(evaluation, fitted=fitted)


def _score_held_out(evaluation: Evaluation, in_folds: bool) -> Conformal | CrossConformal:
    """Return calibration scores of the held-out rows: by folds, or of one part that all members held out."""
    if not in_folds:
        return Conformal.fit(evaluation.distribution, evaluation.y)
    fold = torch.empty(len(evaluation.table), dtype=torch.int64)
    for model, rows in evaluation.parts:
        fold[torch.from_numpy(rows)] = cast(int, model.members[0].fold)
    return CrossConformal.fit(evaluation.distribution, evaluation.y, fold)


def _make_fitted(prepared: Prepared, settings: Settings, *, notes: tuple[Note, ...] = (), **fields: Any) -> Fitted:
    """Return the fitted model of these members."""
    encoder = prepared.encoder
    return Fitted(
        scale_X=prepared.scale_X,
        outcome=prepared.outcome,
        encoder=encoder,
        feature_names=None if encoder is None else encoder.feature_names,
        metrics={},
        notes=(*prepared.notes, *notes),
        versions={"python": platform.python_version()} | {name: version(name) for name in VERSIONS},
        conformal=None,
        num_rows=prepared.num_rows,
        input_range=prepared.input_range,
        seen_rows=prepared.seen_rows,
        params=settings.params(),
        **fields,
    )


def evaluate_validation(fitted: Fitted, prepared: Prepared) -> Evaluation | None:
    """Return the evaluation on the validation rows, or None without validation rows."""
    if not len(prepared.validation):
        return None
    distribution = fitted.predict_standardised(prepared.validation.x)
    chose = CHOSE_EPOCH if any(member.best_epoch is not None for member in fitted.members) else ""
    return Evaluation(fitted, prepared.validation_table, distribution, caveat=chose, folds={})


def _infinite_interval_notes(counts: Sequence[int], names: tuple[str, ...], remedy: str) -> list[Note]:
    """Return notes on outputs with too few calibration rows, (n+1)c > n, for the default coverage c."""
    enough, percent = math.ceil(PROMISED / (1 - PROMISED) - 1e-9), f"{100 * PROMISED:.0f} %"
    return [
        Note(
            f"got {count} calibration row{'' if count == 1 else 's'} of {name}, need at least {enough} for {percent} "
            "intervals",
            f"such intervals are infinite; add rows{f' or {remedy}' if remedy else ''}",
        )
        for name, count in zip(names, counts, strict=True)
        if count < enough
    ]

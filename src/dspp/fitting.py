"""Training, recalibration and scoring of a model on a prepared table."""

import math
import platform
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version
from typing import Any, cast

import numpy as np
import torch

from dspp.calibration import Conformal, CrossConformal
from dspp.engines import check_engine
from dspp.evaluate import Evaluation
from dspp.fitted import Fitted
from dspp.history import Epoch
from dspp.members import MEMBERS, BoostedTrees
from dspp.members.base import Run, Trained, one_thread
from dspp.members.blend import HeldOutRows, blend
from dspp.members.run import fit_members
from dspp.notes import Note
from dspp.numbers import count_epochs
from dspp.predictive import Predictive
from dspp.prepare import Prepared
from dspp.progress import ProgressBar
from dspp.settings import Settings
from dspp.training.budget import Budget
from dspp.training.rows import Rows
from dspp.training.run import SMOOTHING
from dspp.trees import CrossFitted

VERSIONS = ("dspp", "torch", "numpy", "scikit-learn")
CHOSE_EPOCH = "These rows also chose the epoch, so this is optimistic; score new rows with dspp evaluate."
CHOSE_SETTINGS = CHOSE_EPOCH.replace("the epoch", "the settings and the epoch")
OUT_OF_FOLD = "Each row is predicted only by the members that did not see it, so scores are slightly pessimistic."
SET_WEIGHTS = "These rows also set the members' weights and their spread, so this is very slightly optimistic."
TRAINED_ON = "The model was trained on these rows, so this is optimistic; score new rows with dspp evaluate."
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
    check_engine(settings.engine, settings.jobs, settings.address)
    plan, split = prepared.plan(settings), prepared.split
    seconds = plan.training_seconds(settings.time_budget, spent)
    own = ProgressBar(None, settings.progress, smoothing=SMOOTHING, later=LATER)
    with own if bar is None else nullcontext(bar) as bar:
        rows = prepared.train.join(prepared.validation) if len(prepared.validation) else prepared.train
        run = Run(Budget(seconds), bar, on_epoch, should_stop, resume)
        trained, trees = fit_members(rows, split, prepared.means, prepared.outcome, plan, settings, run)
        if plan.is_single:
            return _finish_single(prepared, settings, trained[0], bar)
        with one_thread():  # of many small operations
            good = [one for one in trained if one.member is not None]
            found = blend(good, rows, split, prepared.outcome, plan.spec.model.noise_floor)
            kept = [good[k] for k in found.kept]
            fitted = _make_fitted(
                prepared,
                settings,
                members=tuple(one.member for one in kept),
                weights=found.weights,
                spread=found.spread,
                judged=found.judged,
                guard=found.guard,
                trees=trees.all_rows if trees is not None and any(_reads_trees(one) for one in kept) else None,
                notes=(*_divergence_notes(trained), *_training_notes(kept), *_trees_notes(kept, found.weights)),
            )
            parts = [_judge(fitted, group, kept, rows, prepared, trees) for group in found.groups]
        bar.step("scoring the held-out rows", SCORING)
        return _finish_ensemble(prepared, settings, fitted, found.groups, parts)


def _finish_single(
    prepared: Prepared, settings: Settings, trained: Trained, bar: ProgressBar
) -> tuple[Fitted, Evaluation | None]:
    """Recalibrate a single model, and evaluate it on the validation rows."""
    bar.step("scoring the held-out rows", SCORING)
    assert trained.result is not None
    notes = tuple(Note("", note) for note in trained.result.notes)
    fitted = _make_fitted(prepared, settings, members=(trained.member,), weights=(1.0,), notes=notes)
    if len(prepared.calibration):
        fitted = _recalibrate(fitted, prepared)
    evaluation = evaluate_validation(fitted, prepared)
    if evaluation is None:
        return fitted, None
    fitted = _with_scores(fitted, evaluation, f"{len(evaluation.table):,} validation rows, which also chose the epoch")
    return fitted, replace(evaluation, fitted=fitted)


def _finish_ensemble(
    prepared: Prepared,
    settings: Settings,
    fitted: Fitted,
    groups: Sequence[HeldOutRows],
    parts: Sequence[tuple[Fitted, Predictive]],
) -> tuple[Fitted, Evaluation | None]:
    """Evaluate an ensemble on the rows that its members held out, and recalibrate it by them."""
    if not groups:
        if settings.conformal:
            note = Note("intervals are not recalibrated", "no fold was held out by members of every kind")
            fitted = replace(fitted, notes=(*fitted.notes, note))
        return fitted, None
    rows = np.concatenate([group.rows for group in groups])
    place = np.split(np.argsort(np.argsort(rows)), np.cumsum([len(group.rows) for group in groups])[:-1])
    predicted = [predictive for _, predictive in parts]
    held_out = type(predicted[0]).concat(predicted).rows(torch.from_numpy(rows.argsort()))
    models = tuple((model, index) for (model, _), index in zip(parts, place, strict=True))
    table = prepared.validation_table
    if not len(prepared.validation):
        table = prepared.table if len(rows) == len(prepared.table) else prepared.table.take(np.sort(rows))
    in_folds, forward = prepared.split.num_folds > 1, prepared.split.forward
    caveat = OUT_OF_FOLD if in_folds else SET_WEIGHTS
    evaluation = Evaluation(fitted, table, fitted.outcome.decode(held_out), models, caveat)
    if settings.conformal:  # these rows give the calibration scores, so their coverage would say nothing
        fitted = _with_conformal(fitted, _score_held_out(evaluation, in_folds))
    scored = "that no member was trained on"
    if forward:
        scored = "that are the latest, predicted by the members trained on earlier ones"
    elif in_folds:
        scored = "out of fold, each predicted by the members that did not see it"
    fitted = _with_scores(fitted, evaluation, f"{len(table):,} rows {scored}")
    return fitted, replace(evaluation, fitted=fitted)


def _judge(
    fitted: Fitted,
    group: HeldOutRows,
    kept: Sequence[Trained],
    rows: Rows,
    prepared: Prepared,
    trees: CrossFitted | None,
) -> tuple[Fitted, Predictive]:
    """Return the model of the members that held out a fold, and its prediction of that fold in standardised units.

    Its encoder and its trees did not see the fold either.
    """
    model = fitted.without_others(group.fold)
    if model.encoder is not None and prepared.means is not None:
        _, means = prepared.means(prepared.train.x.numpy(), prepared.split.held_out(group.fold))
        model = replace(model, encoder=model.encoder.with_means(means))
    if trees is not None and model.trees is not None:
        model = replace(model, trees=trees.without_fold[group.fold])
    unknown = fitted.shares_unknown(rows.x[torch.from_numpy(group.rows)].double().numpy())
    own = [one.held_out for one in kept if one.fold == group.fold and one.held_out is not None]
    return model, model.mix(own, unknown)


def _reads_trees(one: Trained) -> bool:
    return MEMBERS[one.kind].reads_trees


def _divergence_notes(trained: Sequence[Trained]) -> list[Note]:
    """Return a note on each member whose training diverged."""
    return [
        Note(f"member {one.number + 1} is left out", f"its training diverged: {one.problem}")
        for one in trained
        if one.result is None
    ]


def _training_notes(trained: Sequence[Trained]) -> list[Note]:
    """Return the notes of all members, each once, and one for all whose training the time budget ended."""
    results = [
        (one.result, one.member.train.epochs)
        for one in trained
        if one.result is not None and one.member is not None and not isinstance(one.member, BoostedTrees)
    ]
    notes = [Note("", text) for text in dict.fromkeys(t for r, _ in results for t in r.notes if t != r.time_note)]
    short = [(result.epochs_made, epochs) for result, epochs in results if result.time_note]
    if short:
        (least, epochs), (most, _) = min(short), max(short)
        made = f"{least:.2g}" if f"{least:.2g}" == f"{most:.2g}" else f"{least:.2g} to {most:.2g}"
        which = "each member" if len(short) == len(results) else f"{len(short)} of {len(results)} members"
        notes.append(Note("the time budget ended training", f"{which} had {made} of {count_epochs(epochs)}"))
    return notes


def _trees_notes(kept: Sequence[Trained], weights: Sequence[float]) -> list[Note]:
    """Return a note if boosted trees stand in for members whose training was cut short."""
    pairs = zip(kept, weights, strict=True)
    share = sum(weight for one, weight in pairs if isinstance(one.member, BoostedTrees))
    how = f"boosted trees alone have {100 * share:.0f} % of the weight; raise time_budget for a better model"
    return [Note("the budget was too short for the sigma-point members", how)] if share else []


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

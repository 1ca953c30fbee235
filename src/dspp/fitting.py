"""Training, recalibration and scoring of a model on a prepared table."""

import math
import platform
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from importlib.metadata import version
from typing import cast

import numpy as np
import torch

from dspp.calibration import Conformal
from dspp.engines import check_engine
from dspp.evaluate import Evaluation
from dspp.fitted import Fitted
from dspp.gp.threads import use_threads
from dspp.history import Epoch
from dspp.members import BoostedTrees
from dspp.members.base import Control, Trained
from dspp.members.blend import Blend, blend
from dspp.members.run import fit_members
from dspp.notes import Note
from dspp.numbers import count_epochs, plain_percent
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
    plan, split, outcome = prepared.plan(settings), prepared.split, prepared.outcome
    budget = Budget(plan.training_seconds(settings.time_budget, spent))
    own = ProgressBar(None, settings.progress, smoothing=SMOOTHING, later=LATER)
    with own if bar is None else nullcontext(bar) as bar:
        rows = prepared.train.join(prepared.validation) if len(prepared.validation) else prepared.train
        control = Control(budget, bar, on_epoch, should_stop, resume)
        trained, trees = fit_members(rows, split, prepared.means, outcome, plan, settings, control)
        evaluation: Evaluation | None
        if plan.is_single:
            fitted = _make_fitted(prepared, settings, trained, Blend(tuple(trained), (1.0,)), trees)
            bar.step("scoring the held-out rows", SCORING)
            evaluation = evaluate_validation(fitted, prepared)
        else:
            with use_threads(1):  # of many small operations
                mixing = blend(trained, rows, split, outcome, plan.spec.model.noise_floor)
                fitted = _make_fitted(prepared, settings, trained, mixing, trees)
                evaluation = _evaluate_held_out(fitted, prepared, mixing, rows, trees)
            bar.step("scoring the held-out rows", SCORING)
        has_scores = len(prepared.calibration) > 0 if plan.is_single else settings.conformal
        if has_scores:
            fitted = _recalibrate(fitted, prepared, evaluation, plan.is_single)
        if evaluation is None:
            return fitted, None
        fitted = _with_scores(replace(evaluation, fitted=fitted), prepared, plan.is_single)
        return fitted, replace(evaluation, fitted=fitted)


def _make_fitted(
    prepared: Prepared, settings: Settings, trained: Sequence[Trained], mixing: Blend, trees: Sequence[CrossFitted]
) -> Fitted:
    """Return the model that mixes the members which have weight, without scores."""
    encoder, members = prepared.encoder, tuple(one.member for one in mixing.kept if one.member is not None)
    reads_trees = any(member.reads_trees for member in members)
    return Fitted(
        members=members,
        weights=mixing.weights,
        scale_X=prepared.scale_X,
        outcome=prepared.outcome,
        encoder=encoder,
        feature_names=None if encoder is None else encoder.feature_names,
        metrics={},
        notes=(*prepared.notes, *_training_notes(trained, mixing)),
        versions={"python": platform.python_version()} | {name: version(name) for name in VERSIONS},
        conformal=None,
        num_rows=prepared.num_rows,
        params=settings.params(),
        variance_scale=mixing.variance_scale,
        judged=mixing.judged,
        guard=mixing.guard,
        trees=tuple(one.all_rows for one in trees) if reads_trees else (),
        input_range=prepared.input_range,
        seen_rows=prepared.seen_rows,
    )


def _training_notes(trained: Sequence[Trained], mixing: Blend) -> list[Note]:
    """Return notes on members that diverged, those of the others, each once, and on what the time budget ended."""
    notes = [
        Note(f"member {one.number + 1} is left out", f"its training diverged: {one.problem}")
        for one in trained
        if one.member is None
    ]
    pairs = [(one.member, one.result) for one in mixing.kept if not isinstance(one.member, BoostedTrees)]
    results = [(result, member.train.epochs) for member, result in pairs if member is not None and result is not None]
    for_all = len(trained) > 1  # one note on the time budget
    texts = [text for result, _ in results for text in result.notes if not for_all or text != result.time_note]
    notes += [Note("", text) for text in dict.fromkeys(texts)]
    short = [(result.epochs_made, epochs) for result, epochs in results if result.time_note and for_all]
    if short:
        (least, epochs), (most, _) = min(short), max(short)
        made = f"{least:.2g}" if f"{least:.2g}" == f"{most:.2g}" else f"{least:.2g} to {most:.2g}"
        which = "each member" if len(short) == len(results) else f"{len(short)} of {len(results)} members"
        notes.append(Note("the time budget ended training", f"{which} had {made} of {count_epochs(epochs)}"))
    share = sum(w for one, w in zip(mixing.kept, mixing.weights, strict=True) if isinstance(one.member, BoostedTrees))
    if share:
        text = f"boosted trees alone have {plain_percent(share)} of the weight; raise time_budget for a better model"
        notes.append(Note("the budget was too short for the sigma-point members", text))
    return notes


def _evaluate_held_out(
    fitted: Fitted, prepared: Prepared, mixing: Blend, rows: Rows, trees: Sequence[CrossFitted]
) -> Evaluation | None:
    """Evaluate each row by the members that held it out, whose encoder and trees did not see it either."""
    if not mixing.groups:
        return None
    judges, predicted = [], []
    for group in mixing.groups:
        judge = fitted.without_others(group.fold)
        if judge.encoder is not None and prepared.means is not None:
            _, means = prepared.means(prepared.train.x.numpy(), prepared.split.held_out(group.fold))
            judge = replace(judge, encoder=judge.encoder.with_means(means))
        judge = replace(judge, trees=tuple(one.without_fold[group.fold] for one in trees) if judge.trees else ())
        unknown = fitted.shares_unknown(rows.x[torch.from_numpy(group.rows)].double().numpy())
        own = [one.held_out for one in mixing.kept if one.fold == group.fold and one.held_out is not None]
        judges.append(judge)
        predicted.append(judge.mix(own, unknown))
    numbers = np.concatenate([group.rows for group in mixing.groups])
    ends = np.cumsum([len(group.rows) for group in mixing.groups])[:-1]
    held_out = type(predicted[0]).concat(predicted).rows(torch.from_numpy(numbers.argsort()))
    table = prepared.validation_table
    if not len(prepared.validation):
        table = prepared.table if len(numbers) == len(prepared.table) else prepared.table.take(np.sort(numbers))
    parts = tuple(zip(judges, np.split(np.argsort(np.argsort(numbers)), ends), strict=True))
    caveat = OUT_OF_FOLD if prepared.split.num_folds > 1 else SET_WEIGHTS
    return Evaluation(fitted, table, fitted.outcome.decode(held_out), parts, caveat)


def evaluate_validation(fitted: Fitted, prepared: Prepared) -> Evaluation | None:
    """Return the evaluation on the validation rows, or None without validation rows."""
    if not len(prepared.validation):
        return None
    distribution = fitted.predict_standardised(prepared.validation.x)
    chose = CHOSE_EPOCH if any(member.best_epoch is not None for member in fitted.members) else ""
    return Evaluation(fitted, prepared.validation_table, distribution, caveat=chose, folds={})


def _recalibrate(fitted: Fitted, prepared: Prepared, held_out: Evaluation | None, is_single: bool) -> Fitted:
    """Return the model with calibration scores of rows that it, or the members of a fold, did not see; and notes."""
    remedy = ""
    if is_single:
        distribution, remedy = fitted.predict_standardised(prepared.calibration.x), "raise calibration_fraction"
        held_out = Evaluation(fitted, prepared.calibration_table, distribution)
    if held_out is None:
        note = Note("intervals are not recalibrated", "no fold was held out by members of every kind")
        return replace(fitted, notes=(*fitted.notes, note))
    fold = None
    if not is_single and prepared.split.num_folds > 1:
        fold = torch.empty(len(held_out.table), dtype=torch.int64)
        for model, rows in held_out.parts:
            fold[torch.from_numpy(rows)] = cast(int, model.members[0].fold)
    found = Conformal.fit(held_out.distribution, held_out.y, fold)
    enough = math.ceil(PROMISED / (1 - PROMISED) - 1e-9)  # (n+1)c ≤ n
    notes = [
        Note(
            f"got {count} calibration row{'' if count == 1 else 's'} of {name}, need at least {enough} for "
            f"{plain_percent(PROMISED)} intervals",
            f"such intervals are infinite; add rows{f' or {remedy}' if remedy else ''}",
        )
        for name, count in zip(fitted.target_names, found.counts, strict=True)
        if count < enough
    ]
    scores = found.scores.reshape(-1, fitted.num_outputs)
    return replace(fitted, conformal=scores, conformal_folds=found.fold, notes=(*fitted.notes, *notes))


def _with_scores(evaluation: Evaluation, prepared: Prepared, is_single: bool) -> Fitted:
    """Return the model with its scores, and with a recommendation if they show that intervals are too narrow."""
    fitted, scored = evaluation.fitted, "that no member was trained on"
    if is_single:
        scored = "validation rows, which also chose the epoch"
    elif prepared.split.forward:
        scored = "that are the latest, predicted by the members trained on earlier ones"
    elif prepared.split.num_folds > 1:
        scored = "out of fold, each predicted by the members that did not see it"
    notes = list(fitted.notes)
    if fitted.conformal is None and evaluation.calibration.is_too_narrow:
        text = "fit with conformal=True (on the command line, --conformal) for intervals with a coverage guarantee"
        notes.append(Note("intervals are too narrow", text))
    notes += fitted.outcome.score_notes(evaluation.distribution, evaluation.table.targets)
    scored = f"{len(evaluation.table):,} {scored if is_single else f'rows {scored}'}"
    return replace(fitted, metrics=evaluation.scores, scored=scored, notes=tuple(notes))

"""From prepared rows to a fitted ensemble, with its out-of-fold evaluation."""

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dspp import storage
from dspp.config import TrainConfig
from dspp.encoding.means import CrossFittedMeans
from dspp.engines import BEAT, WAIT
from dspp.ensemble.members import Job, Task, Trained, one_thread, open_desk, spec_of, train_member, train_members
from dspp.ensemble.stacking import HeldOutRows, Mixing, calibrated_nll, discount, shrink_spread, stack
from dspp.errors import TrainingInterrupted
from dspp.fitted import Fitted, Member
from dspp.history import Epoch
from dspp.notes import Note
from dspp.numbers import count_epochs
from dspp.outcomes import Outcome
from dspp.predictive import Predictive
from dspp.presets import Spec
from dspp.progress import ProgressBar
from dspp.registry import extension_modules
from dspp.settings import KIND_NAMES, READ_TREES, Settings
from dspp.size import MOST_ROWS_WITH_PILOTS, Size, step_seconds
from dspp.training.checkpoint import Identity, identify
from dspp.training.rows import Rows
from dspp.trees import CrossFitted, cross_fit

PILOT_SHARES = {True: (0.5, 0.25, 0.12, 0.06, 0.03), False: (0.3, 0.1, 0.03)}  # of the epochs, with folds or without
PILOT_TOLERANCE = {True: 0.03, False: 0.01}  # nats per row by which longer training may be worse: mixing gains more
GP_SHARE = 0.5  # of the weight that one fold gives a GP: those of all folds are alike, while DSPPs gain by averaging
TREES_SHARE = 0.25  # of the time for training that trees may take, while the first members are trained
GUARD_WEIGHT = 0.01  # where there are no held-out rows to learn it from


@dataclass(frozen=True, eq=False)
class EnsembleRows:
    """Standardised rows for an ensemble: see `members.Job`; `inner` are the inner folds of trees, if not random.

    With `forward`, folds are spans of time, and only what members predict for the latest, fold 0, tells how to mix. The
    last `validation` rows were given by the user to judge the ensemble: only the mixing is learned from them.
    """

    rows: Rows
    fold: Int[np.ndarray, " N"] | None
    outcome: Outcome
    held_out: Rows | None = None
    inner: Int[np.ndarray, " N"] | None = None
    means: CrossFittedMeans | None = None
    validation: int = 0
    forward: bool = False

    @property
    def weights(self) -> Float[np.ndarray, " N"] | None:
        """The weights of all rows in memory or, on disk, of the rows held out; None: equal."""
        rows = self.rows if self.fold is not None and isinstance(self.rows, Rows) else self.held_out
        return None if rows is None or rows.weights is None else rows.weights.cpu().double().numpy()

    def label(self, task: Task) -> str:
        """Return what has a weight of its own in the mixture: a kind or, if all hold out the same rows, a member."""
        return task.kind if self.num_folds > 1 else f"{task.kind} {task.number}"

    @property
    def num_folds(self) -> int:
        """J, the number of folds."""
        return 1 if self.fold is None else int(self.fold.max()) + 1


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Trained members, how they are mixed, and what they predict for the rows they held out.

    Attributes:
        fitted: The template given, with members, weights, spread, guard and trees.
        rows: Numbers of the held-out rows, in increasing order.
        held_out: Their predictive distributions in standardised units, by the members that did not see them.
        parts: For each fold, a model of the members that held it out, and the positions of its rows in `rows`.
    """

    fitted: Fitted
    rows: Int[np.ndarray, " n"]
    held_out: Predictive | None
    parts: tuple[tuple[Fitted, Int[np.ndarray, " n"]], ...] = ()


def train_ensemble(
    data: EnsembleRows,
    spec: Spec,
    config: TrainConfig,
    size: Size,
    template: Callable[..., Fitted],
    settings: Settings,
    bar: ProgressBar,
    *,
    deadline: float | None = None,
    on_epoch: Callable[[Epoch], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    resume: bool = True,
) -> Ensemble:
    """Train the members and learn how to mix them.

    Args:
        data: The rows.
        spec: The model and its objective.
        config: Training settings of every member.
        size: The members: their kinds and folds.
        template: Makes a `Fitted` from its members, weights and other fields.
        settings: Checkpoint and number of processes.
        bar: The progress bar.
        deadline: The time (`time.monotonic`) at which training should end.
        on_epoch: Called with the epochs of each member once it is trained.
        should_stop: Called regularly; True interrupts training, keeping the checkpoints.
        resume: Whether to resume from existing checkpoints.
    """
    read_trees = any(kind == "trees" for kind, _ in size.slots)
    growing: AbstractContextManager[Future[CrossFitted] | None] = nullcontext()
    if read_trees or size.too_short:
        growing = _grow_trees(data, settings.random_state, deadline)
    may_overfit = len(data.rows) <= MOST_ROWS_WITH_PILOTS
    pilots = _pilots(config, data) if settings.epochs is None and may_overfit else []
    tried: list[Trained] = []

    def tasks() -> Iterator[Task | Any]:
        slots = list(enumerate(size.slots))
        yield from (Task(number, fold, kind) for number, (kind, fold) in slots if kind == "gp")  # while trees grow
        yield from pilots
        while len(tried) < len(pilots):
            yield WAIT
        epochs = _choose_epochs(tried, data, spec) if pilots else None
        for number, (kind, fold) in slots:
            column = None
            if kind == "gp":
                continue
            if kind == "trees":
                assert cross_fitted is not None
                column = _await(cross_fitted, should_stop).for_member(fold)
            yield Task(number, fold, kind, column, epochs)

    count = len(size.slots)
    by_steps = sum(kind != "gp" for kind, _ in size.slots)
    steps = config.epochs * math.ceil(len(data.rows) / config.batch_size)
    identity = None if settings.checkpoint is None else _identify(data, spec, config, size, settings)
    with open_desk(settings.checkpoint, resume, identity) as desk, growing as cross_fitted:
        job = Job(
            spec=spec,
            config=config,
            rows=data.rows,
            fold=data.fold,
            num_folds=data.num_folds,
            held_out=data.held_out,
            means=data.means,
            desk=desk,
            keep=settings.checkpoint is not None,
            features=settings.module,
            modules=extension_modules(),
        )
        members = train_members(
            job,
            tasks(),
            count,
            by_steps=by_steps,
            on_pilot=tried.append,
            estimate=by_steps * steps * step_seconds(min(config.batch_size, len(data.rows)), spec.model.inducing),
            jobs=settings.jobs,
            progress=bar,
            deadline=deadline,
            should_stop=should_stop,
            on_epoch=on_epoch,
        )
        cut_short = any(one.result is not None and one.result.time_note for one in members)
        bar.step("learning how to mix the members")
        trees = _await(cross_fitted, should_stop) if cross_fitted and (read_trees or cut_short) else None
        if trees is not None and cut_short and "boosted" in data.outcome.member_kinds:
            alone = (Task(count + k, k, "boosted", trees.for_member(k)) for k in range(data.num_folds))
            with one_thread():
                members += [train_member(task, job) for task in alone]
    with one_thread():  # of many small operations
        return _assemble(data, spec, members, trees, template)


def _identify(data: EnsembleRows, spec: Spec, config: TrainConfig, size: Size, settings: Settings) -> Identity:
    """Return what identifies the run of an ensemble: as of a single model, with its folds and members."""
    identity = identify(spec, config, settings.module, data.rows, data.held_out)
    folds = {} if data.fold is None else {"fold": torch.from_numpy(data.fold)}
    kinds = [kind for kind, _ in size.slots]
    members = {name: kinds.count(kind) for kind, name in KIND_NAMES.items()}
    return replace(identity, data=storage.digest(folds, identity.data), members=members)


@contextmanager
def _grow_trees(data: EnsembleRows, seed: int, deadline: float | None) -> Iterator[Future[CrossFitted]]:
    """Fit trees in a thread while a block runs; whatever ends it also ends the fits, before their next tree."""
    ended = threading.Event()
    helper = ThreadPoolExecutor(1)
    cross_fitted = helper.submit(_cross_fit, data, seed, deadline, ended.is_set)
    helper.shutdown(wait=False)
    try:
        yield cross_fitted
    finally:
        ended.set()


def _await(trees: Future[CrossFitted], should_stop: Callable[[], bool] | None) -> CrossFitted:
    """Return the trees once they are fitted.

    Raises:
        TrainingInterrupted: `should_stop` returned True before.
    """
    while not wait([trees], timeout=BEAT).done:
        if should_stop is not None and should_stop():
            raise TrainingInterrupted("training was stopped while trees were fitted; repeat the same call to resume")
    return trees.result()


def _pilots(config: TrainConfig, data: EnsembleRows) -> list[Task]:
    """Return short members that hold out the first fold, the longest first."""
    shares = PILOT_SHARES[data.num_folds > 1]
    lengths = dict.fromkeys(max(1, round(share * config.epochs)) for share in shares)
    return [Task(0, 0, "plain", epochs=epochs, pilot=True) for epochs in lengths]


def _choose_epochs(pilots: Sequence[Trained], data: EnsembleRows, spec: Spec) -> int | None:
    """Return the number of epochs, chosen by what pilots predict for the rows of the first fold; None: as planned.

    Long training suits targets with little noise, and ruins the density of noisy ones. Pilots are compared with the
    spread that suits each; if the longest of them is not worse, members are trained to the end.
    """
    guard = data.outcome.fit_guard(_to_numpy(data.rows.y), GUARD_WEIGHT)
    scores: dict[int, float] = {}
    with one_thread():
        for one in pilots:
            for held_out in _held_out_rows(data, [one], spec.model.noise_floor):
                scores[one.config.epochs] = calibrated_nll(held_out, guard, data.outcome)
    if not scores:  # all diverged
        return None
    enough = min(scores.values()) + PILOT_TOLERANCE[data.num_folds > 1]
    longest = max(epochs for epochs, score in scores.items() if score <= enough)
    return None if longest == max(scores) else longest


def _cross_fit(data: EnsembleRows, seed: int, deadline: float | None, should_stop: Callable[[], bool]) -> CrossFitted:
    assert data.fold is not None
    X, together = data.rows.x.numpy(), data.inner is not None
    y = data.outcome.tree_target(data.rows.y.numpy())[:, 0]
    weights = np.ones(len(X)) if data.weights is None else data.weights.copy()
    weights[len(weights) - data.validation :] = 0.0
    X_without = None if data.means is None else partial(data.means.insert, X)
    how: dict[str, Any] = {"inner": data.inner, "stop_early": not together, "X_without": X_without}
    how["should_stop"] = should_stop
    if deadline is not None:
        end = (1.0 - TREES_SHARE) * time.monotonic() + TREES_SHARE * deadline
        how["seconds_left"] = lambda: end - time.monotonic()
    return cross_fit(X, y, data.fold, weights=weights, seed=seed, **how)


def _assemble(
    data: EnsembleRows, spec: Spec, trained: list[Trained], trees: CrossFitted | None, template: Callable[..., Fitted]
) -> Ensemble:
    """Learn how to mix the members, drop those without weight, and mix what they predict for held-out rows."""
    good = [one for one in trained if one.result is not None]
    notes = [
        Note(f"member {one.task.number + 1} is left out", f"its training diverged: {one.problem}")
        for one in trained
        if one.result is None
    ]
    start = data.rows[: len(data.rows) - data.validation]
    row_weights = None if start.weights is None else _to_numpy(start.weights)
    guard = data.outcome.fit_guard(_to_numpy(start.y), GUARD_WEIGHT, row_weights)
    groups = _held_out_rows(data, good, spec.model.noise_floor)
    if groups:
        mixing = stack(groups, guard, data.outcome, data.weights, data.num_folds == 1)
        if data.num_folds > 1 and not data.forward:
            mixing = discount(mixing, "gp", GP_SHARE)
    else:
        labels = list(dict.fromkeys(data.label(one.task) for one in good))
        mixing = Mixing({label: 1.0 / len(labels) for label in labels}, 1.0, GUARD_WEIGHT)
    guard = replace(guard, weight=mixing.guard_weight)
    kept = [one for one in good if data.label(one.task) in mixing.weights]
    sizes = Counter(data.label(one.task) for one in kept)
    judged = min((sum(len(g.predictions[label]) for label in mixing.weights) for g in groups), default=len(kept))
    members = [_member(one, spec, data.num_folds) for one in kept]
    weights = tuple(mixing.weights[data.label(one.task)] / sizes[data.label(one.task)] for one in kept)
    fitted = template(
        members=tuple(members),
        weights=weights,
        spread=mixing.spread if data.forward else shrink_spread(mixing.spread, judged, len(kept)),
        held_out_spread=mixing.spread,
        pull=mixing.pull,
        guard=guard,
        trees=trees.all_rows if trees is not None and any(one.task.kind in READ_TREES for one in kept) else None,
        notes=(*notes, *_training_notes(kept), *_trees_notes(kept, weights)),
    )
    if not groups:
        return Ensemble(fitted, np.empty(0, np.int64), None)
    judge = replace(fitted, spread=mixing.spread)
    rows = np.concatenate([group.rows for group in groups])
    order = np.argsort(np.argsort(rows))
    ends = np.cumsum([len(group.rows) for group in groups])
    index = np.split(order, ends[:-1])
    parts = [_mix(judge, group, mixing, data) for group in groups]
    held_out = type(parts[0]).concat(parts).rows(torch.from_numpy(order.argsort()))
    models = (_fold_model(judge, group.fold, data, kept, members, mixing, trees) for group in groups)
    return Ensemble(fitted, np.sort(rows), held_out, tuple(zip(models, index, strict=True)))


def _fold_model(
    fitted: Fitted,
    fold: int,
    data: EnsembleRows,
    kept: list[Trained],
    members: list[Member],
    mixing: Mixing,
    trees: CrossFitted | None,
) -> Fitted:
    """Return the model of the members that held out a fold, whose encoder and trees did not see it either."""
    encoder = fitted.encoder
    if encoder is not None and data.means is not None and data.fold is not None:
        encoder = encoder.with_means(data.means.by_level(data.fold == fold))
    own = [k for k, one in enumerate(kept) if one.task.fold == fold and one.held_out is not None]
    labels = [data.label(kept[k].task) for k in own]
    return replace(
        fitted,
        encoder=encoder,
        members=tuple(members[k] for k in own),
        weights=tuple(mixing.weights[label] / labels.count(label) for label in labels),
        trees=trees.without_fold[fold]
        if trees is not None and any(members[k].kind in READ_TREES for k in own)
        else None,
    )


def _training_notes(trained: list[Trained]) -> list[Note]:
    """Return the notes of all members, each once, and one for all whose training the time budget ended."""
    results = [(one.result, one.config.epochs) for one in trained if one.result and one.task.kind != "boosted"]
    notes = [Note("", text) for text in dict.fromkeys(t for r, _ in results for t in r.notes if t != r.time_note)]
    short = [(result.epochs_made, epochs) for result, epochs in results if result.time_note]
    if short:
        (least, epochs), (most, _) = min(short), max(short)
        made = f"{least:.2g}" if f"{least:.2g}" == f"{most:.2g}" else f"{least:.2g} to {most:.2g}"
        which = "each member" if len(short) == len(results) else f"{len(short)} of {len(results)} members"
        notes.append(Note("the time budget ended training", f"{which} had {made} of {count_epochs(epochs)}"))
    return notes


def _trees_notes(trained: list[Trained], weights: Sequence[float]) -> list[Note]:
    """Return a note if boosted trees stand in for members whose training was cut short."""
    share = sum(weight for one, weight in zip(trained, weights, strict=True) if one.task.kind == "boosted")
    how = f"boosted trees alone have {100 * share:.0f} % of the weight; raise time_budget for a better model"
    return [Note("the budget was too short for the sigma-point members", how)] if share else []


def _member(one: Trained, spec: Spec, folds: int) -> Member:
    result = one.result
    assert result is not None
    return Member(
        spec_of(spec, one.task.kind, folds),
        one.config,
        result.model,
        result.history,
        result.best_epoch,
        result.seconds,
        one.task.kind,
        fold=one.task.fold,
    )


def _to_numpy(tensor: Tensor) -> Float[np.ndarray, "..."]:
    return np.asarray(tensor.cpu().double().numpy())


def _held_out_rows(data: EnsembleRows, trained: list[Trained], floor: float) -> list[HeldOutRows]:
    """Return the held-out rows of each fold with the predictions of its members, without folds that lack a kind."""
    labels = list(dict.fromkeys(data.label(one.task) for one in trained))
    groups = []
    for fold in range(1 if data.forward else data.num_folds):
        found: dict[str, list[Predictive]] = {label: [] for label in labels}
        for one in trained:
            if one.task.fold == fold and one.held_out is not None:
                found[data.label(one.task)].append(one.held_out)
        if all(found.values()):
            rows = data.held_out if data.fold is None else None
            numbers = np.arange(len(rows)) if rows is not None else np.flatnonzero(data.fold == fold)
            y = rows.y.numpy() if rows is not None else data.rows.y.numpy()[numbers]
            groups.append(HeldOutRows(numbers, np.asarray(y, dtype=np.float64), found, fold, floor))
    return groups


def _mix(fitted: Fitted, group: HeldOutRows, mixing: Mixing, data: EnsembleRows) -> Predictive:
    """Mix the predictions for one fold, in standardised units."""
    held_out = data.held_out if data.fold is None else data.rows
    assert isinstance(held_out, Rows)
    parts, weights = [], []
    for label, weight in mixing.weights.items():
        parts += group.predictions[label]
        weights += [weight / len(group.predictions[label])] * len(group.predictions[label])
    return fitted.mix(parts, weights, fitted.shares_unknown(_to_numpy(held_out.x)[group.rows]))

"""Training of members, each in one thread, in this process or in several."""

import contextlib
import importlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dspp import storage
from dspp.encoding.means import CrossFittedMeans
from dspp.engines import WAIT, cores, is_stopped, num_workers, report, run_all, waited
from dspp.errors import CheckpointError, InputError, NumericalError, TrainingDiverged, TrainingInterrupted
from dspp.folds import Split
from dspp.history import Epoch
from dspp.members.base import MEMBERS, Order, Run, Task, Trained, one_thread
from dspp.members.blend import choose_epochs
from dspp.members.dspp import Dspp
from dspp.members.plan import Plan
from dspp.members.trees import BoostedTrees, growing_trees
from dspp.outcomes import Outcome
from dspp.registry import extension_modules
from dspp.settings import Settings
from dspp.training.checkpoint import Checkpoint, Identity, claim, identify
from dspp.training.rows import Rows
from dspp.trees import CrossFitted

IDENTITY = "identity"  # a file that identifies the run
FILES = re.compile(rf"\.?member-\d+\.checkpoint.*|\.?{IDENTITY}.*")  # in the folder
LEAST_SHARE = 0.3  # of a member's time, however long it took to start
WORTH_PROCESSES = 10.0  # seconds of training below which other processes are not worth starting


@dataclass(frozen=True)
class Job:
    """What all members share, apart from the rows.

    Attributes:
        plan: What to fit.
        checkpoint: The folder of checkpoints, or the checkpoint of a single model; None: none.
        features: A custom module in front of the first layer.
        modules: Modules that register custom parts.
    """

    plan: Plan
    checkpoint: Path | Checkpoint | None
    features: nn.Module | None = None
    modules: tuple[str, ...] = ()


def fit_members(
    rows: Rows,
    split: Split,
    means: CrossFittedMeans | None,
    outcome: Outcome,
    plan: Plan,
    settings: Settings,
    run: Run,
) -> tuple[list[Trained], CrossFitted | None]:
    """Train all members; also return the boosted trees that some of them read.

    Args:
        rows: All rows, standardised.
        split: Which of them members hold out.
        means: The mean targets of levels, which depend on the rows held out; None: they do not, or there are none.
        outcome: What the target is.
        plan: What to fit.
        settings: Checkpoint, number of processes, seed and module.
        run: Time and callbacks.

    Raises:
        TrainingDiverged: No member could be trained.
        TrainingInterrupted: `run.should_stop` returned True.
        CheckpointError: See `open_folder`.
    """
    more: dict[str, Any] = {"features": settings.module, "modules": extension_modules()}
    if plan.is_single:
        single = None if settings.checkpoint is None else Checkpoint(settings.checkpoint, run.resume)
        job = Job(plan, single, **more)
        return [train_member(Task(0, *plan.slots[0]), job, rows, split, means, run)], None
    assert run.bar is not None
    read_trees = any(MEMBERS[kind].reads_trees for kind, _ in plan.slots)
    growing: Any = nullcontext()
    if read_trees or plan.too_short:
        growing = growing_trees(rows, split, means, outcome, settings.random_state, run)
    identity = None if settings.checkpoint is None else _identify(rows, split, plan, settings)
    tried: list[Trained] = []
    with open_folder(settings.checkpoint, run.resume, identity) as folder, growing as find_trees:
        job = Job(plan, folder, **more)
        tasks = _draw_tasks(plan, rows, split, outcome, tried, find_trees)
        trained = _train_all(job, tasks, tried, (rows, split, means), settings, run)
        run.bar.step("learning how to mix the members")
        cut_short = any(one.result is not None and one.result.time_note for one in trained)
        trees = find_trees() if find_trees and (read_trees or cut_short) else None
        if trees is not None and cut_short and BoostedTrees.kind in outcome.member_kinds:
            kind, first = BoostedTrees.kind, len(trained)
            alone = (Task(first + k, kind, k, trees.for_member(k)) for k in range(split.num_folds))
            with one_thread():
                trained += [train_member(task, job, rows, split, means, Run()) for task in alone]
    return trained, trees


def _draw_tasks(
    plan: Plan,
    rows: Rows,
    split: Split,
    outcome: Outcome,
    tried: Sequence[Trained],
    find_trees: Callable[[], CrossFitted] | None,
) -> Iterator[Task | Any]:
    """Yield the tasks in the order in which they can begin: those without steps need no pilots, and trees take time."""
    slots = [(number, kind, fold) for number, (kind, fold) in enumerate(plan.slots)]
    yield from (Task(*slot) for slot in slots if not MEMBERS[slot[1]].in_steps)
    yield from (Task(0, Dspp.kind, 0, epochs=epochs, pilot=True) for epochs in plan.pilots)
    while len(tried) < len(plan.pilots):
        yield WAIT
    epochs = None
    if plan.pilots:
        epochs = choose_epochs(tried, rows, split, outcome, plan.spec.model.noise_floor)
    for number, kind, fold in slots:
        if MEMBERS[kind].in_steps:
            column = None
            if MEMBERS[kind].reads_trees:
                assert find_trees is not None
                column = find_trees().for_member(fold)
            yield Task(number, kind, fold, column, epochs)


def train_member(task: Task, job: Job, rows: Rows, split: Split, means: CrossFittedMeans | None, run: Run) -> Trained:
    """Train one member; one of several that diverges is returned without a model."""
    for module in job.modules:
        with contextlib.suppress(ImportError):  # building the model then names the missing part
            importlib.import_module(module)
    kind, plan = MEMBERS[task.kind], job.plan
    training, held_out = part_rows(task, rows, split, means)
    order = Order(
        spec=kind.spec_from(plan.spec, split.num_folds),
        config=plan.config,
        validation=held_out if plan.is_single and len(held_out) else None,
        features=job.features,
        checkpoint=job.checkpoint,
    )
    if not plan.is_single:
        epochs, seed = task.epochs or plan.config.epochs, member_seed(plan.config.seed, task.number)
        folder, own = job.checkpoint, None
        if isinstance(folder, Path) and folder.is_dir() and not task.pilot:  # other nodes may not have it
            own = folder / f"member-{task.number + 1:02d}.checkpoint"
        order = replace(order, config=plan.config.change(seed=seed, epochs=epochs), fold=task.fold, checkpoint=own)
    try:
        result = kind.fit(training, order, run)
        member = kind.make(order, result)
        predicted = member.predictor(held_out.x) if len(held_out) else None
    except (NumericalError, TrainingDiverged) as problem:
        if plan.is_single:
            raise
        return Trained(task, None, None, None, str(problem))
    return Trained(task, member, result, predicted)


def part_rows(task: Task, rows: Rows, split: Split, means: CrossFittedMeans | None) -> tuple[Rows, Rows]:
    """Return the training rows of a member and the rows it holds out, as it reads them."""
    mine = split.held_out(task.fold)
    X = rows.x if means is None else means.insert(rows.x.numpy(), mine)
    held_out = torch.from_numpy(mine)
    rows = replace(rows, x=torch.as_tensor(MEMBERS[task.kind].inputs(X, task.column)))
    return rows[~held_out], rows[held_out]


def member_seed(seed: int, number: int) -> int:
    """Return the seed of a member; the first has that of the ensemble."""
    return (seed + 1_000_003 * number) % 2**31


def _train_all(
    job: Job,
    tasks: Iterator[Task | Any],
    tried: list[Trained],
    shared: tuple[Rows, Split, CrossFittedMeans | None],
    settings: Settings,
    run: Run,
) -> list[Trained]:
    """Train all members of an ensemble and return them by number; pilots are added to `tried`.

    Members are tasks of `run_all`, if there is enough work for several processes. What a member becomes does not depend
    on where it is trained.
    """
    plan, num_rows, count = job.plan, len(shared[0]), len(job.plan.slots)
    where: dict[str, Any] = {"engine": settings.engine, "jobs": settings.jobs, "address": settings.address}
    if settings.engine == "local":
        worth = plan.seconds(num_rows) >= WORTH_PROCESSES
        where["jobs"] = min(settings.jobs or cores(), count) if worth else 1
    if job.features is not None or plan.config.device != "cpu":
        where = {"jobs": 1}
    trained: dict[int, Trained] = {}
    shares: dict[int, float] = {}
    stopped: list[str] = []
    bar = run.bar
    assert bar is not None
    bar.expect(count)

    def show(number: int = 0, share: tuple[int, float] | None = None) -> None:
        shares.update([] if share is None else [share])
        done = len(trained) + sum(share for number, share in shares.items() if number not in trained)
        member = f"training member {min(len(trained) + 1, count)} of {count}"
        bar.update(done, member if done else "preparing the training of members")

    def should_stop() -> bool:
        return bool(stopped) or (run.should_stop is not None and run.should_stop())

    def until_stopped() -> Iterator[Task | Any]:
        workers = partial(num_workers, where.get("engine", "local"), where["jobs"])
        try:
            for task in share_time(tasks, plan, workers, run):
                if stopped:
                    return
                yield task
        except TrainingInterrupted as problem:  # stopped while this process waited for trees
            stopped.append(str(problem))

    given = (job, *shared)
    for _, one in run_all(
        _train_task, until_stopped(), shared=given, while_waiting=should_stop, on_report=show, **where
    ):
        if isinstance(one, str):
            stopped.append(one)  # the others stop too, each with a checkpoint
            continue
        if one.task.pilot:
            tried.append(one)
            continue
        trained[one.task.number] = one
        if one.result is not None and run.on_epoch is not None:
            for epoch in one.result.history:
                run.on_epoch(epoch)
        show()
    if stopped or len(trained) < count:
        how = "training was stopped before the last member; repeat the same call to resume"
        raise TrainingInterrupted(stopped[0] if stopped else how)
    members = [trained[number] for number in sorted(trained)]
    if all(one.result is None for one in members):
        raise TrainingDiverged(f"all {count} members diverged; the first: {members[0].problem}")
    return members


def _train_task(task: Task, job: Job, rows: Rows, split: Split, means: CrossFittedMeans | None) -> Trained | str:
    """Return the trained member of an ensemble, or why it was interrupted."""
    epochs = task.epochs or job.plan.config.epochs

    def on_epoch(epoch: Epoch) -> None:
        if not task.pilot:
            report((task.number, epoch.number / epochs))

    run = Run(None, time_left(task), on_epoch, is_stopped)
    try:
        with one_thread() if job.plan.config.device == "cpu" else nullcontext():
            return train_member(task, job, rows, split, means, run)
    except TrainingInterrupted as problem:
        return str(problem)


@contextmanager
def open_folder(checkpoint: str | Path | None, resume: bool, identity: Identity | None) -> Iterator[Path | None]:
    """Open and lock the folder of an ensemble's checkpoints.

    Args:
        checkpoint: The folder; None: none.
        resume: Whether it may have checkpoints.
        identity: What identifies the run; None without a checkpoint.

    Raises:
        CheckpointError: Another process uses the folder; it exists and `resume` is False; it belongs to another run or
            has other files; or it is a file.
    """
    if checkpoint is None or identity is None:
        yield None
        return
    path = Path(checkpoint)
    if not path.name:
        raise InputError(f"checkpoint: expected a path, got {str(path)!r}")
    if path.is_file():
        raise CheckpointError(
            f"{path} is the checkpoint of a single model; resume with members=1, or delete it to start afresh"
        )
    try:
        path.mkdir(parents=False, exist_ok=True)
    except OSError as problem:
        raise CheckpointError(f"cannot create {path}: {problem.strerror}; choose another path") from None
    with storage.lock(path):
        if any(path.iterdir()) and not resume:
            raise CheckpointError(f"{path} already exists; resume from it, or delete it to start afresh")
        check_folder(path)
        claim(path / IDENTITY, identity)
        yield path


def check_folder(path: Path) -> None:
    """Raise `CheckpointError` if a folder has other files than checkpoints."""
    for file in path.iterdir():
        if not FILES.fullmatch(file.name):
            raise CheckpointError(
                f"{path}: expected a folder of checkpoints, got one with {file.name!r}; choose another"
            )


# ---------------------------------------------------------------- helpers


def _identify(rows: Rows, split: Split, plan: Plan, settings: Settings) -> Identity:
    """Return what identifies the run of an ensemble: as of a single model, with its folds and members."""
    identity = identify(plan.spec, plan.config, settings.module, rows, None)
    kinds = [kind for kind, _ in plan.slots]
    members = {kind.title: kinds.count(name) for name, kind in MEMBERS.items()}
    data = storage.digest({"fold": torch.from_numpy(split.fold)}, identity.data)
    return replace(identity, data=data, members=members)


def share_time(tasks: Iterator[Task | Any], plan: Plan, workers: Callable[[], int], run: Run) -> Iterator[Task | Any]:
    """Give each member that is trained by steps its share of the time that is left when its training begins.

    On an overloaded machine all of the time may have passed before the first worker is ready. A member then has the
    part `LEAST_SHARE` of what it would have had, since one that is hardly trained is worth nothing.
    """
    count, whole = plan.in_steps, run.seconds_left()
    for task in tasks:
        left = run.seconds_left()
        if left is None or whole is None or task is WAIT or task.pilot or not MEMBERS[task.kind].in_steps:
            yield task
            continue
        least = LEAST_SHARE * whole / math.ceil(count / workers())
        share = left / math.ceil((count - task.number) / workers())
        yield replace(task, seconds=max(share, least, 1e-3))


def time_left(task: Task) -> float | None:
    """Return the time limit of a member without the seconds that it waited for its process to start."""
    return None if task.seconds is None else max(task.seconds - waited(), LEAST_SHARE * task.seconds)

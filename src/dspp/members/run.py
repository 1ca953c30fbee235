"""Training of members, each in one thread, in this process or in several."""

import contextlib
import importlib
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dspp import storage
from dspp.encoding.means import CrossFittedMeans
from dspp.engines import WAIT, cores, is_orphan, run_all
from dspp.errors import CheckpointError, InputError, NumericalError, TrainingDiverged, TrainingInterrupted
from dspp.folds import Split
from dspp.history import Epoch
from dspp.members.base import MEMBERS, Order, Run, Task, Trained, one_thread
from dspp.members.blend import choose_epochs
from dspp.members.dspp import Dspp
from dspp.members.gp import GAUSSIAN_NOISE
from dspp.members.plan import Plan
from dspp.members.trees import BoostedTrees, GrowingTrees
from dspp.progress import open_bar
from dspp.registry import extension_modules
from dspp.settings import Settings
from dspp.training.checkpoint import identify, refuse_another_run
from dspp.training.rows import Rows, Source
from dspp.trees import CrossFitted

STOP = "stop"  # a file that tells workers to stop
IDENTITY = "identity"  # a file that identifies the run
ON_DESK = re.compile(rf"\.?member-\d+\.checkpoint.*|\.?{IDENTITY}.*|{STOP}|\d+\.share")  # the files on a desk
LEAST_SHARE = 0.3  # of a member's time, however long it took to start
WORTH_PROCESSES = 10.0  # seconds of training below which other processes are not worth starting


@dataclass(frozen=True)
class Job:
    """What all members share, apart from the rows.

    Attributes:
        plan: What to fit.
        desk: A folder for signs between processes and, if `keep`, for checkpoints; of a single model its checkpoint.
        keep: Whether there are checkpoints.
        features: A custom module in front of the first layer.
        options: Further options of `training.fit`.
        modules: Modules that register custom parts.
        source: All training rows, if they are on disk.
    """

    plan: Plan
    desk: Path | None
    keep: bool
    features: nn.Module | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    modules: tuple[str, ...] = ()
    source: Source | None = None


def fit_members(
    rows: Rows, split: Split, means: CrossFittedMeans | None, plan: Plan, settings: Settings, run: Run
) -> tuple[list[Trained], CrossFitted | None]:
    """Train all members; also return the boosted trees that some of them read.

    Args:
        rows: All rows, standardised.
        split: Which of them members hold out.
        means: The mean targets of levels, which depend on the rows held out; None: they do not, or there are none.
        plan: What to fit.
        settings: Checkpoint, number of processes, seed and module.
        run: Time and callbacks.

    Raises:
        TrainingDiverged: No member could be trained.
        TrainingInterrupted: `run.should_stop` returned True.
        CheckpointError: See `open_desk`.
    """
    more: dict[str, Any] = {"features": settings.module, "options": run.options, "modules": extension_modules()}
    more["source"] = run.source
    if run.source is not None:
        plan = replace(plan, pilots=())
    if plan.is_single:
        checkpoint = None if settings.checkpoint is None else Path(settings.checkpoint)
        job = Job(plan, checkpoint, checkpoint is not None, **more)
        return [train_member(Task(0, *plan.slots[0]), job, rows, split, means, run)], None
    assert run.bar is not None
    read_trees = any(MEMBERS[kind].reads_trees for kind, _ in plan.slots)
    growing: Any = nullcontext()
    if read_trees or plan.too_short:
        growing = GrowingTrees(rows, split, means, settings.random_state, run.seconds_left)
    identity = {} if settings.checkpoint is None else _identify(rows, split, plan, settings, run)
    tried: list[Trained] = []
    with open_desk(settings.checkpoint, run.resume, identity) as desk, growing as growing_trees:
        job = Job(plan, desk, settings.checkpoint is not None, **more)
        tasks = _draw_tasks(plan, rows, split, tried, growing_trees, run.should_stop)
        trained = _train_all(job, tasks, tried, (rows, split, means), settings, run)
        run.bar.step("learning how to mix the members")
        cut_short = any(one.result is not None and one.result.time_note for one in trained)
        trees = growing_trees.result(run.should_stop) if growing_trees and (read_trees or cut_short) else None
        if trees is not None and cut_short and plan.spec.model.likelihood in GAUSSIAN_NOISE:
            kind, first = BoostedTrees.kind, len(trained)
            alone = (Task(first + k, kind, k, trees.for_member(k)) for k in range(split.num_folds))
            with one_thread():
                trained += [train_member(task, job, rows, split, means, Run()) for task in alone]
    return trained, trees


def _draw_tasks(
    plan: Plan,
    rows: Rows,
    split: Split,
    tried: Sequence[Trained],
    growing: GrowingTrees | None,
    should_stop: Callable[[], bool] | None,
) -> Iterator[Task | Any]:
    """Yield the tasks in the order in which they can begin: those without steps need no pilots, and trees take time."""
    slots = [(number, kind, fold) for number, (kind, fold) in enumerate(plan.slots)]
    yield from (Task(*slot) for slot in slots if not MEMBERS[slot[1]].in_steps)
    yield from (Task(0, Dspp.kind, 0, epochs=epochs, pilot=True) for epochs in plan.pilots)
    while len(tried) < len(plan.pilots):
        yield WAIT
    epochs = None
    if plan.pilots:
        epochs = choose_epochs(tried, rows, split, plan.spec.model)
    for number, kind, fold in slots:
        if MEMBERS[kind].in_steps:
            column = None
            if MEMBERS[kind].reads_trees:
                assert growing is not None
                column = growing.result(should_stop).for_member(fold)
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
        checkpoint=job.desk if job.keep else None,
    )
    if not plan.is_single:
        assert job.desk is not None
        config = plan.config.change(
            seed=member_seed(plan.config.seed, task.number), epochs=task.epochs or plan.config.epochs
        )
        checkpoint = job.desk / f"member-{task.number + 1:02d}.checkpoint" if job.keep and not task.pilot else None
        order = replace(order, config=config, fold=task.fold, checkpoint=checkpoint)
    try:
        result = kind.fit(training if job.source is None else job.source, order, run)
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


Shared = tuple[Rows, Split, CrossFittedMeans | None]


def _train_all(
    job: Job, tasks: Iterator[Task | Any], tried: list[Trained], shared: Shared, settings: Settings, run: Run
) -> list[Trained]:
    """Train all members of an ensemble and return them by number; pilots are added to `tried`.

    Members train in processes of one thread each if there are several cores and enough work. What a member becomes does
    not depend on where it is trained.
    """
    plan, num_rows = job.plan, len(shared[0])
    count = len(plan.slots)
    processes = min(settings.jobs or cores(), count)
    alone = (
        processes == 1 or plan.seconds(num_rows) < WORTH_PROCESSES or job.features is not None or job.source is not None
    )
    trained: dict[int, Trained] = {}
    with open_bar(run.bar, count) as bar:

        def show(number: int, share: float) -> None:
            done = len(trained) + share
            member = f"training member {min(len(trained) + 1, count)} of {count}"
            bar.update(done, member if done else "preparing the training of members")

        timed = share_time(tasks, plan, 1 if alone else processes, run)
        if alone:
            results = _train_here(job, timed, shared, run, show)
        else:
            results = _train_in_processes(job, timed, shared, processes, run, show)
        for one in results:
            if one.task.pilot:
                tried.append(one)
                continue
            trained[one.task.number] = one
            if one.result is not None and run.on_epoch is not None:
                for epoch in one.result.history:
                    run.on_epoch(epoch)
            show(one.task.number, 0.0)
    members = [trained[number] for number in sorted(trained)]
    if all(one.result is None for one in members):
        raise TrainingDiverged(f"all {count} members diverged; the first: {members[0].problem}")
    return members


@contextmanager
def open_desk(checkpoint: str | Path | None, resume: bool, identity: dict[str, Any]) -> Iterator[Path]:
    """Open and lock the folder of an ensemble's checkpoints, or open a temporary one.

    Args:
        checkpoint: The folder; None: a temporary one.
        resume: Whether it may have checkpoints.
        identity: What identifies the run.

    Raises:
        CheckpointError: Another process uses the folder; it exists and `resume` is False; it belongs to another run or
            has other files; or it is a file.
    """
    if checkpoint is None:
        with tempfile.TemporaryDirectory(prefix="dspp-") as folder:
            yield Path(folder)
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
        check_desk(path)
        if (path / IDENTITY).exists():
            refuse_another_run(path, storage.read_header(path / IDENTITY, CheckpointError), identity)
        else:
            storage.write(path / IDENTITY, {}, identity, CheckpointError)
        (path / STOP).unlink(missing_ok=True)
        yield path
        for share in path.glob("*.share"):
            share.unlink(missing_ok=True)


def check_desk(path: Path) -> None:
    """Raise `CheckpointError` if a folder has other files than checkpoints."""
    for file in path.iterdir():
        if not ON_DESK.fullmatch(file.name):
            raise CheckpointError(
                f"{path}: expected a folder of checkpoints, got one with {file.name!r}; choose another"
            )


# ---------------------------------------------------------------- helpers


def _identify(rows: Rows, split: Split, plan: Plan, settings: Settings, run: Run) -> dict[str, Any]:
    """Return what identifies the run of an ensemble: as of a single model, with its folds and members."""
    identity = identify(
        plan.spec, plan.config, settings.module, run.source or rows, None if run.source is None else rows
    )
    kinds = [kind for kind, _ in plan.slots]
    members = {kind.title: kinds.count(name) for name, kind in MEMBERS.items()}
    data = storage.digest({"fold": torch.from_numpy(split.fold)}, identity["data"])
    return {**identity, "data": data, "members": members}


def share_time(tasks: Iterator[Task | Any], plan: Plan, processes: int, run: Run) -> Iterator[Task | Any]:
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
        least = LEAST_SHARE * whole / math.ceil(count / processes)
        share = left / math.ceil((count - task.number) / processes)
        yield replace(task, seconds=max(share, least, 1e-3), drawn=time.monotonic())


def time_left(task: Task) -> float | None:
    """Return the time budget of a member without the seconds that its process took to start."""
    if task.seconds is None or not task.drawn:
        return task.seconds
    return max(task.seconds - (time.monotonic() - task.drawn), LEAST_SHARE * task.seconds)


def _train_here(
    job: Job, tasks: Iterator[Task], shared: Shared, run: Run, show: Callable[[int, float], None]
) -> Iterator[Trained]:
    with nullcontext() if job.plan.config.device != "cpu" else one_thread():
        for task in tasks:
            yield train_member(task, job, *shared, _run_of(task, job, run.should_stop, show))


def _run_of(task: Task, job: Job, should_stop: Callable[[], bool] | None, show: Callable[[int, float], None]) -> Run:
    """Return how a member of an ensemble is trained: it reports its share of its epochs."""
    epochs = task.epochs or job.plan.config.epochs

    def on_epoch(epoch: Epoch) -> None:
        if not task.pilot:
            show(task.number, epoch.number / epochs)

    return Run(None, time_left(task), on_epoch, should_stop, options=job.options)


def _train_in_processes(
    job: Job,
    tasks: Iterator[Task | Any],
    shared: Shared,
    processes: int,
    run: Run,
    show: Callable[[int, float], None],
) -> Iterator[Trained]:
    stopped: list[str] = []
    desk = job.desk
    assert desk is not None

    def look() -> None:
        if run.should_stop is not None and run.should_stop():
            (desk / STOP).touch()
        show(0, sum(_read_shares(desk)))

    def until_stopped() -> Iterator[Task | Any]:
        try:
            for task in tasks:
                if (desk / STOP).exists():
                    stopped.append("training was stopped before the last member; repeat the same call to resume")
                    return
                yield task
        except TrainingInterrupted as problem:  # stopped while this process waited for trees
            (desk / STOP).touch()
            stopped.append(str(problem))

    given = (job, *shared)
    for _, one in run_all(_train_in_worker, until_stopped(), shared=given, jobs=processes, while_waiting=look):
        if isinstance(one, str):
            stopped.append(one)  # the others stop too, each with a checkpoint
        else:
            _share_file(desk, one.task.number).unlink(missing_ok=True)
            yield one
    if stopped:
        raise TrainingInterrupted(stopped[0])


def _train_in_worker(task: Task, job: Job, rows: Rows, split: Split, means: CrossFittedMeans | None) -> Trained | str:
    """Return the trained member, or why it was interrupted."""
    torch.set_num_threads(1)
    desk = job.desk
    assert desk is not None

    def should_stop() -> bool:
        return is_orphan() or (desk / STOP).exists()

    def show(number: int, share: float) -> None:
        with contextlib.suppress(OSError):
            _share_file(desk, number).write_text(f"{share:.4f}")

    try:
        return train_member(task, job, rows, split, means, _run_of(task, job, should_stop, show))
    except TrainingInterrupted as problem:
        return str(problem)


def _share_file(desk: Path, number: int) -> Path:
    return desk / f"{number}.share"


def _read_shares(desk: Path) -> Sequence[float]:
    shares = []
    for path in desk.glob("*.share"):
        with contextlib.suppress(OSError, ValueError):
            shares.append(float(path.read_text() or 0.0))
    return shares

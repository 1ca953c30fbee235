"""Training of the members of an ensemble, each in one thread, in this process or in several."""

import contextlib
import importlib
import math
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import nn

from dspp import storage, training
from dspp.config import ModelConfig, ObjectiveConfig, TrainConfig
from dspp.encoding.means import CrossFittedMeans
from dspp.engines import WAIT, cores, is_orphan, run_all
from dspp.errors import CheckpointError, InputError, NumericalError, TrainingDiverged, TrainingInterrupted
from dspp.fitted import add_column
from dspp.history import Epoch
from dspp.predictive import Predictive
from dspp.presets import Spec
from dspp.progress import ProgressBar, open_bar
from dspp.training.checkpoint import Identity, check_identity, write_identity
from dspp.training.closed_form import fit_around_last_input, fit_gp
from dspp.training.result import FitResult
from dspp.training.rows import Rows

STOP = "stop"  # a file that tells workers to stop
IDENTITY = "identity"  # a file that identifies the run
ON_DESK = re.compile(rf"\.?member-\d+\.checkpoint.*|\.?{IDENTITY}.*|{STOP}|\d+\.share")  # the files on a desk
LEAST_SHARE = 0.3  # of a member's time, however long it took to start
GP_POINTS = 1_024  # inducing points of a GP in closed form; half as many in each of several folds
WORTH_PROCESSES = 10.0  # seconds of training below which other processes are not worth starting


@dataclass(frozen=True)
class Task:
    """One member to train: its number, the fold it holds out, its kind, and the column that this kind reads.

    A pilot is trained for fewer epochs than members, to learn how many these should have, and has no checkpoint.
    """

    number: int
    fold: int
    kind: str
    column: Float[np.ndarray, " N"] | None = None
    epochs: int | None = None  # None: those of the job
    pilot: bool = False
    time_budget: float | None = None  # seconds from
    drawn: float = 0.0  # this time (`time.monotonic`, which all processes of a machine share)

    def __str__(self) -> str:
        return f"member {self.number + 1}"


@dataclass(frozen=True, eq=False)
class Job:
    """What all members share.

    Attributes:
        spec: The model and its objective.
        config: Training settings; the seed of a member is derived from this one.
        rows: All rows, or the rows that all members train on.
        fold: The fold of each row; a member trains on the rows of other folds.
        num_folds: J, the number of folds.
        held_out: Without folds, the rows that all members hold out.
        means: The mean targets of levels, which depend on the rows held out; None: they do not, or there are none.
        desk: A folder for signs between processes and, if `keep`, for checkpoints.
        keep: Whether there are checkpoints.
        features: A custom module in front of the first layer.
        modules: Modules that register custom parts.
    """

    spec: Spec
    config: TrainConfig
    rows: Rows
    fold: Int[np.ndarray, " N"] | None
    num_folds: int
    held_out: Rows | None
    means: CrossFittedMeans | None
    desk: Path
    keep: bool
    features: nn.Module | None
    modules: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained member and its prediction for the rows it held out; `problem` says why there is none."""

    task: Task
    config: TrainConfig
    result: FitResult | None
    held_out: Predictive | None
    problem: str = ""


def spec_of(spec: Spec, kind: str, folds: int) -> Spec:
    """Return the model of a kind: one that reads trees describes what they get wrong; some have a single layer."""
    if kind == "gp":
        points = GP_POINTS if folds == 1 else GP_POINTS // 2
        model = spec.model.change(layers=1, covariance="full", inducing=points, top_mean=ModelConfig.top_mean)
        return Spec("svgp", model, ObjectiveConfig("elbo", beta=1.0))
    if kind == "boosted":
        model = spec.model.change(layers=1, inducing=1, mean_inducing=0, features=(), top_mean="last-input")
        return Spec("svgp", model, ObjectiveConfig("elbo"))
    around = kind == "trees" and spec.model.top_mean == ModelConfig.top_mean
    return replace(spec, model=spec.model.change(top_mean="last-input")) if around else spec


def member_seed(seed: int, number: int) -> int:
    """Return the seed of a member; the first has that of the ensemble."""
    return (seed + 1_000_003 * number) % 2**31


def train_member(
    task: Task,
    job: Job,
    should_stop: Callable[[], bool] | None = None,
    show: Callable[[int, float], None] | None = None,
) -> Trained:
    """Train one member; one that diverges is returned without a model."""
    for module in job.modules:
        with contextlib.suppress(ImportError):  # building the model then names the missing part
            importlib.import_module(module)
    config = job.config.change(seed=member_seed(job.config.seed, task.number), epochs=task.epochs or job.config.epochs)
    source, held_out = _rows_of(task, job)
    stopped = should_stop or (lambda: is_orphan() or (job.desk / STOP).exists())
    sign = show or (lambda number, share: _write_share(job.desk, number, share))

    def on_epoch(epoch: Epoch) -> None:
        if not task.pilot:
            sign(task.number, epoch.number / config.epochs)

    checkpoint = job.desk / f"member-{task.number + 1:02d}.checkpoint" if job.keep and not task.pilot else None
    try:
        spec = spec_of(job.spec, task.kind, job.num_folds)
        if task.kind == "gp":
            result = fit_gp(spec.model, source, config.seed, stopped)
        elif task.kind == "boosted":
            result = fit_around_last_input(spec.model, source)
        else:
            result = training.fit(
                spec,
                source,
                config=config,
                features=job.features,
                budget=_time_left(task),
                checkpoint=checkpoint,
                progress=False,
                on_epoch=on_epoch,
                should_stop=stopped,
            )
        predicted = result.model.predictor()(held_out.x) if len(held_out) else None
    except (NumericalError, TrainingDiverged) as problem:
        return Trained(task, config, None, None, str(problem))
    return Trained(task, config, result, predicted)


def train_members(
    job: Job,
    tasks: Iterator[Task | Any],
    count: int,
    *,
    by_steps: int,
    on_pilot: Callable[[Trained], None],
    estimate: float,
    jobs: int | None,
    progress: bool | ProgressBar | None,
    deadline: float | None,
    should_stop: Callable[[], bool] | None,
    on_epoch: Callable[[Epoch], None] | None,
) -> list[Trained]:
    """Train all members and return them by number.

    Members train in processes of one thread each if there are several cores and enough work. What a member becomes does
    not depend on where it is trained.

    Args:
        job: What they share.
        tasks: The members, and pilots before them; drawn when there is a process for them. See `engines.WAIT`.
        count: How many members they are.
        by_steps: How many of them are trained by steps, which takes nearly all of the time; the first ones by number.
        on_pilot: Called with each pilot once it is trained.
        estimate: Expected seconds of training in one thread.
        jobs: Number of processes; None: one per core.
        progress: Whether to show a progress bar; None: only on a terminal. Or a bar that is shown.
        deadline: The time (`time.monotonic`) at which training should end; None: no limit.
        should_stop: Called regularly; True ends training with `TrainingInterrupted`.
        on_epoch: Called with the epochs of each member once it is trained.

    Raises:
        TrainingDiverged: No member could be trained.
        TrainingInterrupted: `should_stop` returned True.
    """
    processes = min(jobs or cores(), count)
    alone = processes == 1 or estimate < WORTH_PROCESSES or job.features is not None
    trained: dict[int, Trained] = {}
    with open_bar(progress, count) as bar:

        def show(number: int, share: float) -> None:
            done = len(trained) + share
            member = f"training member {min(len(trained) + 1, count)} of {count}"
            bar.update(done, member if done else "preparing the training of members")

        timed = _with_budgets(tasks, by_steps, 1 if alone else processes, deadline)
        if alone:
            results = _train_here(job, timed, should_stop, show)
        else:
            results = _train_in_processes(job, timed, processes, should_stop, show)
        for one in results:
            if one.task.pilot:
                on_pilot(one)
                continue
            trained[one.task.number] = one
            if one.result is not None and on_epoch is not None:
                for epoch in one.result.history:
                    on_epoch(epoch)
            show(one.task.number, 0.0)
    members = [trained[number] for number in sorted(trained)]
    if all(one.result is None for one in members):
        raise TrainingDiverged(f"all {count} members diverged; the first: {members[0].problem}")
    return members


@contextmanager
def open_desk(checkpoint: str | Path | None, resume: bool, identity: Identity | None) -> Iterator[Path]:
    """Open and lock the folder of an ensemble's checkpoints, or open a temporary one.

    Args:
        checkpoint: The folder; None: a temporary one.
        resume: Whether it may have checkpoints.
        identity: What identifies the run; None without a checkpoint.

    Raises:
        CheckpointError: Another process uses the folder; it exists and `resume` is False; it belongs to another run or
            has other files; or it is a file.
    """
    if checkpoint is None or identity is None:
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
            check_identity(path / IDENTITY, identity)
        else:
            write_identity(path / IDENTITY, identity)
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


def _rows_of(task: Task, job: Job) -> tuple[Rows, Rows]:
    """Return the training rows of a member and the rows it holds out."""
    if job.fold is None:
        assert job.held_out is not None
        return job.rows, job.held_out
    mine = job.fold == task.fold
    X = job.rows.x.numpy() if job.means is None else job.means.insert(job.rows.x.numpy(), mine)
    rows, held_out = replace(job.rows, x=torch.from_numpy(add_column(X, task.column))), torch.from_numpy(mine)
    return rows[~held_out], rows[held_out]


def _with_budgets(
    tasks: Iterator[Task | Any], count: int, processes: int, deadline: float | None
) -> Iterator[Task | Any]:
    """Give each member that is trained by steps its share of the time that is left when its training begins.

    On an overloaded machine all of the time may have passed before the first worker is ready. A member then has the
    part `LEAST_SHARE` of what it would have had, since one that is hardly trained is worth nothing.
    """
    share = (deadline - time.monotonic()) / math.ceil(count / processes) if deadline is not None else 0.0

    def budgeted() -> Iterator[Task | Any]:
        for task in tasks:
            if deadline is None or task is WAIT or task.pilot or task.kind == "gp":
                yield task
                continue
            rounds = math.ceil((count - task.number) / processes)
            left = (deadline - time.monotonic()) / rounds
            yield replace(task, time_budget=max(left, LEAST_SHARE * share, 1e-3), drawn=time.monotonic())

    return budgeted()


def _time_left(task: Task) -> float | None:
    """Return the time budget of a member without the seconds that its process took to start."""
    if task.time_budget is None:
        return None
    return max(task.time_budget - (time.monotonic() - task.drawn), LEAST_SHARE * task.time_budget)


def _train_here(
    job: Job, tasks: Iterator[Task], should_stop: Callable[[], bool] | None, show: Callable[[int, float], None]
) -> Iterator[Trained]:
    with nullcontext() if job.config.device != "cpu" else one_thread():
        for task in tasks:
            yield train_member(task, job, should_stop or (lambda: False), show)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread for the duration of a block."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _train_in_processes(
    job: Job,
    tasks: Iterator[Task | Any],
    processes: int,
    should_stop: Callable[[], bool] | None,
    show: Callable[[int, float], None],
) -> Iterator[Trained]:
    stopped: list[str] = []

    def look() -> None:
        if should_stop is not None and should_stop():
            (job.desk / STOP).touch()
        show(0, sum(_read_shares(job.desk)))

    def until_stopped() -> Iterator[Task | Any]:
        try:
            for task in tasks:
                if (job.desk / STOP).exists():
                    stopped.append("training was stopped before the last member; repeat the same call to resume")
                    return
                yield task
        except TrainingInterrupted as problem:  # stopped while this process waited for trees
            (job.desk / STOP).touch()
            stopped.append(str(problem))

    for _, one in run_all(_train_in_worker, until_stopped(), shared=(job,), jobs=processes, while_waiting=look):
        if isinstance(one, str):
            stopped.append(one)  # the others stop too, each with a checkpoint
        else:
            _share_file(job.desk, one.task.number).unlink(missing_ok=True)
            yield one
    if stopped:
        raise TrainingInterrupted(stopped[0])


def _train_in_worker(task: Task, job: Job) -> Trained | str:
    """Return the trained member, or why it was interrupted."""
    torch.set_num_threads(1)
    try:
        return train_member(task, job)
    except TrainingInterrupted as problem:
        return str(problem)


def _share_file(desk: Path, number: int) -> Path:
    return desk / f"{number}.share"


def _write_share(desk: Path, number: int, share: float) -> None:
    with contextlib.suppress(OSError):
        _share_file(desk, number).write_text(f"{share:.4f}")


def _read_shares(desk: Path) -> Sequence[float]:
    shares = []
    for path in desk.glob("*.share"):
        with contextlib.suppress(OSError, ValueError):
            shares.append(float(path.read_text() or 0.0))
    return shares

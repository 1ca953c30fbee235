"""Training of members, each in one thread, in this process or in several."""

import contextlib
import importlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dspp import storage
from dspp.encoding.means import Without
from dspp.engines import WAIT, cores, is_stopped, num_workers, report, run_all, waited
from dspp.errors import CheckpointError, InputError, NumericalError, TrainingDiverged, TrainingInterrupted
from dspp.folds import Split
from dspp.gp.threads import use_threads
from dspp.history import Epoch
from dspp.members.base import MEMBERS, Control, Task, Trained
from dspp.members.blend import choose_epochs
from dspp.members.dspp import Dspp
from dspp.members.plan import Plan
from dspp.members.trees import BoostedTrees, growing_trees
from dspp.outcomes import Outcome
from dspp.registry import extension_modules
from dspp.settings import Settings
from dspp.training.budget import Budget
from dspp.training.checkpoint import Checkpoint, Identity, claim, identify
from dspp.training.rows import Rows
from dspp.trees import CrossFitted

IDENTITY = "identity"  # a file that identifies the run
FILES = re.compile(rf"\.?member-\d+\.checkpoint.*|\.?{IDENTITY}.*")  # in the folder
MIN_SHARE = 0.3  # of a member's time, however long it took to start
WORTH_PROCESSES = 10.0  # seconds of training below which other processes are not worth starting


def fit_members(
    rows: Rows,
    split: Split,
    means: Without | None,
    outcome: Outcome,
    plan: Plan,
    settings: Settings,
    control: Control,
) -> tuple[list[Trained], Sequence[CrossFitted]]:
    """Train all members on standardised rows; also return the boosted trees that some of them read, for each column.

    Raises:
        TrainingDiverged: No member could be trained.
        TrainingInterrupted: `control.should_stop` returned True.
        CheckpointError: See `open_folder`.
    """
    if plan.is_single:
        checkpoint = None if settings.checkpoint is None else Checkpoint(settings.checkpoint, control.resume)
        task = Task(0, *plan.slots[0], plan.spec, plan.config, is_single=True, features=settings.module)
        return [train_member(replace(task, checkpoint=checkpoint), rows, split, means, control)], ()
    read_trees = any(MEMBERS[kind].reads_trees for kind, _ in plan.slots)
    growing: Any = nullcontext()
    if read_trees or plan.too_short:
        growing = growing_trees(rows, split, means, outcome, settings.random_state, control)
    identity = None if settings.checkpoint is None else _identify(rows, split, plan, settings)
    with open_folder(settings.checkpoint, control.resume, identity) as folder, growing as find_trees:
        ensemble = Ensemble(plan, settings, control, folder)
        trained = ensemble.train(rows, split, means, outcome, find_trees)
        assert control.bar is not None
        control.bar.step("learning how to mix the members")
        cut_short = any(one.result is not None and one.result.time_note for one in trained)
        trees = find_trees() if find_trees and (read_trees or cut_short) else ()
        if trees and cut_short and BoostedTrees.kind in outcome.member_kinds:
            first = len(trained)
            for fold in range(split.num_folds):
                task = ensemble.make_task(first + fold, BoostedTrees.kind, fold, trees=trees)
                with use_threads(1):
                    trained.append(train_member(task, rows, split, means, Control(Budget())))
    return trained, trees


class Ensemble:
    """Several members, trained as tasks of `run_all`; what each becomes does not depend on where it is trained.

    Their checkpoints are in a folder, if there is one.
    """

    def __init__(self, plan: Plan, settings: Settings, control: Control, folder: Path | None) -> None:
        self._plan, self._settings, self._control, self._folder = plan, settings, control, folder
        self._tried: list[Trained] = []  # pilots
        self._stopped = ""  # why training was interrupted; members that are being trained then end with a checkpoint

    def make_task(
        self,
        number: int,
        kind: str,
        fold: int,
        epochs: int | None = None,
        trees: Sequence[CrossFitted] = (),
        **more: Any,
    ) -> Task:
        """Return the task of a member, which is seeded by its number."""
        plan, columns = self._plan, None
        if trees and MEMBERS[kind].reads_trees:
            columns = np.column_stack([one.columns[fold] for one in trees])
        config = plan.config.change(seed=member_seed(plan.config.seed, number), epochs=epochs or plan.config.epochs)
        path = None if self._folder is None else self._folder / f"member-{number + 1:02d}.checkpoint"
        spec = MEMBERS[kind].spec_from(plan.spec, plan.folds, len(trees))
        given = {"checkpoint": path, "features": self._settings.module} | more
        return Task(number, kind, fold, spec, config, columns, **given)

    def train(
        self,
        rows: Rows,
        split: Split,
        means: Without | None,
        outcome: Outcome,
        find_trees: Callable[[], Sequence[CrossFitted]] | None,
    ) -> list[Trained]:
        """Train all members and return them by number."""
        bar, count, trained = self._control.bar, len(self._plan.slots), dict[int, Trained]()
        shares: dict[int, float] = {}
        assert bar is not None
        bar.expect(count)

        def show(number: int = 0, share: tuple[int, float] | None = None) -> None:
            shares.update([] if share is None else [share])
            done = len(trained) + sum(share for number, share in shares.items() if number not in trained)
            member = f"training member {min(len(trained) + 1, count)} of {count}"
            bar.update(done, member if done else "preparing the training of members")

        def should_stop() -> bool:
            return bool(self._stopped) or (self._control.should_stop is not None and self._control.should_stop())

        where = self._find_workers(len(rows))
        find_epochs = partial(choose_epochs, self._tried, rows, split, outcome, self._plan.spec.model.noise_floor)
        tasks = takewhile(lambda _: not self._stopped, self._draw_tasks(find_epochs, find_trees, where))
        shared = extension_modules(), rows, split, means
        for _, one in run_all(_train_task, tasks, shared=shared, while_waiting=should_stop, on_report=show, **where):
            if isinstance(one, str):
                self._stopped = self._stopped or one
            elif one.is_pilot:
                self._tried.append(one)
            else:
                trained[one.number] = one
                if one.result is not None and self._control.on_epoch is not None:
                    for epoch in one.result.history:
                        self._control.on_epoch(epoch)
                show()
        if self._stopped or len(trained) < count:
            stopped = "training was stopped before the last member; repeat the same call to resume"
            raise TrainingInterrupted(self._stopped or stopped)
        members = [trained[number] for number in sorted(trained)]
        if all(one.result is None for one in members):
            raise TrainingDiverged(f"all {count} members diverged; the first: {members[0].problem}")
        return members

    def _find_workers(self, num_rows: int) -> dict[str, Any]:
        """Return where tasks run: in several processes of this machine only if there is enough work."""
        settings, plan = self._settings, self._plan
        if settings.module is not None or plan.config.device != "cpu":
            return {"engine": "local", "jobs": 1}
        where = {"engine": settings.engine, "jobs": settings.jobs, "address": settings.address}
        if settings.engine == "local":
            worth = plan.seconds(num_rows) >= WORTH_PROCESSES
            where["jobs"] = min(settings.jobs or cores(), len(plan.slots)) if worth else 1
        return where

    def _draw_tasks(
        self,
        find_epochs: Callable[[], int | None],
        find_trees: Callable[[], Sequence[CrossFitted]] | None,
        where: dict[str, Any],
    ) -> Iterator[Task | Any]:
        """Yield the tasks in the order in which they can begin: those without steps need no pilots, trees take time."""
        plan, budget, whole = self._plan, self._control.budget, self._control.budget.left
        slots = [(number, kind, fold) for number, (kind, fold) in enumerate(plan.slots)]
        yield from (self.make_task(*slot) for slot in slots if not MEMBERS[slot[1]].in_steps)
        for length in plan.pilots:
            yield self.make_task(0, Dspp.kind, 0, length, is_pilot=True, checkpoint=None)
        while len(self._tried) < len(plan.pilots):
            yield WAIT
        epochs = find_epochs() if plan.pilots else None
        trees: Sequence[CrossFitted] = ()
        for number, kind, fold in slots[: plan.num_in_steps]:
            seconds = None
            if MEMBERS[kind].reads_trees:
                assert find_trees is not None
                try:
                    trees = find_trees()
                except TrainingInterrupted as problem:  # while this process waited for them
                    self._stopped = self._stopped or str(problem)
                    return
            if budget.left is not None and whole is not None:
                workers = num_workers(where["engine"], where["jobs"])
                seconds = share_of_time(budget.left, whole, plan.num_in_steps - number, plan.num_in_steps, workers)
            yield self.make_task(number, kind, fold, epochs, trees, seconds=seconds)


def share_of_time(left: float, whole: float, members_left: int, members: int, workers: int) -> float:
    """Return the time of the next member, of what is left of the whole time of all members.

    On an overloaded machine all of the time may have passed before the first worker is ready. A member then has the
    part `MIN_SHARE` of what it would have had, since one that is hardly trained is worth nothing.
    """
    least = MIN_SHARE * whole / math.ceil(members / workers)
    return max(left / math.ceil(members_left / workers), least, 1e-3)


def _train_task(task: Task, modules: Sequence[str], rows: Rows, split: Split, means: Without | None) -> Trained | str:
    """Return the trained member of an ensemble, or why it was interrupted."""

    def on_epoch(epoch: Epoch) -> None:
        if not task.is_pilot:
            report((task.number, epoch.number / task.config.epochs))

    for module in modules:  # that register custom parts
        with contextlib.suppress(ImportError):  # building the model then names the missing part
            importlib.import_module(module)
    control = Control(Budget(time_left(task)), None, on_epoch, is_stopped)
    try:
        with use_threads(1 if task.config.device == "cpu" else None):
            return train_member(task, rows, split, means, control)
    except TrainingInterrupted as problem:
        return str(problem)


def time_left(task: Task) -> float | None:
    """Return the time limit of a member without the seconds that it waited for its process to start."""
    return None if task.seconds is None else max(task.seconds - waited(), MIN_SHARE * task.seconds)


def train_member(task: Task, rows: Rows, split: Split, means: Without | None, control: Control) -> Trained:
    """Train one member; one of several that diverges is returned without a model."""
    kind = MEMBERS[task.kind]
    training, held_out = part_rows(task, rows, split, means)
    trained = Trained(task.number, task.kind, task.fold, is_pilot=task.is_pilot)
    if isinstance(task.checkpoint, Path) and not task.checkpoint.parent.is_dir():
        task = replace(task, checkpoint=None)  # on another node
    try:
        result = kind.fit(task, training, held_out if task.is_single and len(held_out) else None, control)
        fold, found = None if task.is_single else task.fold, (result.history, result.best_epoch, result.seconds)
        member = kind(task.spec, task.config, result.model, *found, fold)
        predicted = member.predictor.predict(held_out.x) if len(held_out) and not task.is_single else None
    except (NumericalError, TrainingDiverged) as problem:
        if task.is_single:
            raise
        return replace(trained, problem=str(problem))
    return replace(trained, member=member, result=result, held_out=predicted)


def part_rows(task: Task, rows: Rows, split: Split, means: Without | None) -> tuple[Rows, Rows]:
    """Return the training rows of a member and the rows it holds out, as it reads them."""
    mine = split.held_out(task.fold)
    X = rows.x if means is None else means(rows.x.numpy(), mine)[0]
    held_out = torch.from_numpy(mine)
    rows = replace(rows, x=torch.as_tensor(MEMBERS[task.kind].inputs(X, task.columns)))
    return rows[~held_out], rows[held_out]


def member_seed(seed: int, number: int) -> int:
    """Return the seed of a member; the first has that of the ensemble."""
    return (seed + 1_000_003 * number) % 2**31


@contextmanager
def open_folder(checkpoint: str | Path | None, resume: bool, identity: Identity | None) -> Iterator[Path | None]:
    """Open and lock the folder of an ensemble's checkpoints; None: there are none.

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


def _identify(rows: Rows, split: Split, plan: Plan, settings: Settings) -> Identity:
    """Return what identifies the run of an ensemble: as of a single model, with its folds and members."""
    identity = identify(plan.spec, plan.config, settings.module, rows, None)
    kinds = [kind for kind, _ in plan.slots]
    members = {kind.title: kinds.count(name) for name, kind in MEMBERS.items()}
    data = storage.digest({"fold": torch.from_numpy(split.fold)}, identity.data)
    return replace(identity, data=data, members=members)

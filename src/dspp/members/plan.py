"""The plan of a fit: how many members, how large, how long and with which folds.

The rule aims at a time for the whole fit: 14 s for up to 1,000 rows, growing like N^0.8 beyond, on two cores of the
machine it was measured on. A shorter time budget buys fewer steps and, when these would become too few, smaller and
then fewer members. The rule depends on the number of rows and the budget only, not on the machine, so that equal inputs
give equal models.

One exception: with `engine="ray"` and `jobs`, each `CORES` of these jobs buy the members of a large table once more, up
to `MAX_ROUNDS` times. So the plan is a function of the rows and the settings in any case, never of the cluster that is
found; for one plan, models are the same to the bit on all processors of one type, wherever members are trained.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dspp.config import TrainConfig
from dspp.members.base import MEMBERS
from dspp.members.dspp import Dspp
from dspp.presets import Spec
from dspp.settings import Settings, check_number

MIN_SECONDS = 14.0  # for up to 1,000 rows
MAX_SECONDS = 1_200.0  # however many rows
GROWTH = 0.8  # of the time with the number of rows
CORES = 2  # for which times hold
OVERHEAD = 0.2  # share of the time for everything but steps: trees, encoding, scores,
STARTING, ALL_STARTING = 2.0, 4.5  # and seconds to start processes or, in a budget, the command too; at most half of it

FOLDS = 5  # small tables: every row is held out by the members of its fold
MAX_ROWS_IN_FOLDS = 4_000  # larger tables hold out one part of the rows, the same for all members

MAX_ROWS_WITH_PILOTS = 10_000  # larger tables are passed over too few times to learn their noise
PILOTS = {True: 1.0, False: 0.5}  # the cost of pilots, in members, with folds or without,
PILOT_SHARES = {True: (0.5, 0.25, 0.12, 0.06, 0.03), False: (0.3, 0.1, 0.03)}  # and their shares of the epochs

MAX_ROWS_WITH_GP = 10_000  # up to which a kind that takes seconds, such as a GP, is a further member of each fold

MIN_SHARE = 0.3  # of a time budget, for training, however long reading the table took
FINISH_SHARE = 0.1  # of a time budget, for learning how to mix members and for scores

MAX_ROUNDS = 4  # times as many members of a large table on a cluster

MEMBER_BETA = 1.0  # of members, if beta is None: they are small and trained to the end, without validation rows

SMALL_TABLE = 10_000  # rows, up to which a single DSPP has fewer inducing points than in the paper, and
PATIENCE = 60  # epochs without a better validation NLL end its training

MIN_STEPS, MAX_STEPS = 150, 20_000
MIN_EPOCHS = 12  # before the number of inducing points is reduced
INDUCING = 32, 64, 96, 128, 160, 192, 256

SITES, WIDTH = 10, 5  # of the default model, for the time of a step
STEP_SECONDS = 5e-3  # of a step with no rows,
MATRIX_SECONDS = 4.6e-7  # per pair of inducing points,
KERNEL_SECONDS = 4.6e-9  # per row, component and inducing point,
PRODUCT_SECONDS = 3.5e-11  # per row, component and pair of inducing points: two processes side by side, compiled code


@dataclass(frozen=True)
class Plan:
    """What will be fitted."""

    slots: tuple[tuple[str, int], ...]  # kind and held-out fold of each member; in a single model, it chooses the epoch
    folds: int  # parts of the rows that are held out in turn; 1: one part, by all members; 0: a single model
    spec: Spec  # of a DSPP on the columns alone, from which kinds derive theirs
    config: TrainConfig
    pilots: tuple[int, ...] = ()  # epochs of short members, from which the others learn how many they should have
    too_short: bool = False  # whether there is no time for the smallest members, so that trees may have to do

    @property
    def is_single(self) -> bool:
        """Whether there is one model, without anything to mix."""
        return self.folds == 0

    @property
    def num_in_steps(self) -> int:
        """How many members are trained by steps."""
        return sum(MEMBERS[kind].in_steps for kind, _ in self.slots)

    def training_seconds(self, budget: float | None, spent: float) -> float | None:
        """Return the part of a time budget that is for training, if so many seconds are for other things."""
        if budget is None:
            return None
        check_number("time_budget", budget)
        left = max(budget - spent, MIN_SHARE * budget)
        return left if self.is_single else (1.0 - FINISH_SHARE) * left

    def seconds(self, num_rows: int) -> float:
        """Return about how long these take in one thread."""
        steps = self.config.epochs * math.ceil(num_rows / self.config.batch_size)
        inducing = self.spec.model.inducing
        return self.num_in_steps * steps * step_seconds(min(self.config.batch_size, num_rows), inducing)


def make_plan(
    settings: Settings,
    num_rows: int,
    num_outputs: int = 1,
    *,
    kinds: Sequence[str] | None = None,  # of members that can predict the target; None: all
    one_part: bool = False,  # whether all members hold out the same rows whatever the size of the table
    trees: bool = True,  # whether boosted trees can be fitted to these rows
    max_folds: int | None = None,  # groups of rows that must stay together; None: rows are held out one by one
) -> Plan:
    """Return what to fit: as many members, and then as many inducing points, as there is time for."""
    spec, wanted = settings.spec(), usual_inducing(num_rows)
    if not settings.is_ensemble(num_rows):
        if num_rows <= SMALL_TABLE and spec.model.layers > 1 and spec.objective.name == "predictive":  # a DSPP
            patience = PATIENCE if settings.epochs is None else None
            settings = _with_defaults(settings, inducing=wanted, patience=patience)
        return Plan(((Dspp.kind, 0),), 0, settings.spec(num_outputs), settings.train_config(num_rows))

    has_trees = trees and settings.module is None
    applying = [name for name, kind in MEMBERS.items() if kind.applies(kinds or tuple(MEMBERS), spec.model, has_trees)]
    by_steps = [kind for kind in applying if MEMBERS[kind].in_steps]
    given = None if settings.members == "auto" else int(settings.members)
    in_folds = num_rows <= MAX_ROWS_IN_FOLDS and not one_part
    counts = [FOLDS * len(by_steps), FOLDS] if in_folds else [2 * len(by_steps), len(by_steps)]
    counts = [given] if given else counts

    batch_size = 250 if num_rows <= 10_000 else 500 if num_rows <= 100_000 else 1_000
    seconds = _seconds_for_steps(num_rows, settings.time_budget)
    has_pilots = num_rows <= MAX_ROWS_WITH_PILOTS
    too_short = False
    for count, inducing in itertools.product(counts, (m for m in reversed(INDUCING) if m <= wanted)):
        trained = count + (PILOTS[in_folds] if has_pilots else 0.0)
        steps = int(seconds / (trained * step_seconds(min(batch_size, num_rows), inducing)))
        if steps * batch_size >= MIN_EPOCHS * num_rows and steps >= MIN_STEPS:
            break
    else:
        too_short = given is None and settings.time_budget is not None
        too_short = too_short and any(MEMBERS[kind].reads_trees for kind in by_steps)
    steps = min(max(steps, MIN_STEPS), MAX_STEPS)

    rounds = max(1, (settings.jobs or 1) // CORES) if settings.engine == "ray" else 1
    more = 1 if in_folds or given else min(rounds, MAX_ROUNDS)
    slots = _slots(by_steps, more * count, in_folds, max_folds)
    folds = 1 + max(fold for _, fold in slots)
    if not given and (count, inducing) == (counts[0], wanted) and num_rows <= MAX_ROWS_WITH_GP:
        slots += tuple((kind, fold) for kind in applying if kind not in by_steps for fold in range(folds))

    members = _with_defaults(
        replace(settings, patience=None),
        inducing=inducing,
        beta=MEMBER_BETA,
        batch_size=batch_size,
        learning_rate=0.1 if in_folds else 0.05,
        restarts=1,
    )
    if members.epochs is None:
        assert members.batch_size is not None
        steps_per_epoch = math.ceil(num_rows / max(members.batch_size, 1))  # which is checked below
        members = replace(members, epochs=max(1, round(steps / steps_per_epoch)))
    config = members.train_config(num_rows)
    pilots = [max(1, round(share * config.epochs)) for share in PILOT_SHARES[folds > 1]]
    if settings.epochs is not None or not has_pilots:
        pilots = []
    return Plan(slots, folds, members.spec(num_outputs), config, tuple(dict.fromkeys(pilots)), too_short)


def _with_defaults(settings: Settings, **values: Any) -> Settings:
    """Return the settings with these values where the user gave none."""
    return replace(settings, **{name: value for name, value in values.items() if getattr(settings, name) is None})


def usual_inducing(num_rows: int) -> int:
    """Return the number of inducing points of a member: on small tables, fewer are faster and better."""
    return 64 if num_rows <= 2_000 else 96 if num_rows <= 4_000 else 128 if num_rows <= 10_000 else 160


def _seconds_for_steps(num_rows: int, time_budget: float | None) -> float:
    """Return the time for the steps of all members, in seconds of one core."""
    usual = min(MIN_SECONDS * max(1.0, num_rows / 1_000) ** GROWTH, MAX_SECONDS)
    times = [(usual, STARTING), *([] if time_budget is None else [(time_budget, ALL_STARTING)])]
    left = [((1.0 - OVERHEAD) * seconds, starting) for seconds, starting in times]
    shortest: float = min(max(seconds - starting, 0.5 * seconds) for seconds, starting in left)
    return CORES * shortest


def _slots(kinds: Sequence[str], members: int, in_folds: bool, max_folds: int | None) -> tuple[tuple[str, int], ...]:
    """Return kind and fold of each member.

    In folds, each kind needs a member in every one. With fewer members than that all are of the first kind, and each
    has a fold of its own.
    """
    if not in_folds:
        return tuple((kinds[number * len(kinds) // members], 0) for number in range(members))
    if members < FOLDS * len(kinds):
        kinds = kinds[:1]
    folds = min(members if members < 2 * FOLDS else FOLDS, max_folds or members)
    rounds = members // folds
    return tuple(
        (kinds[number // folds % len(kinds)] if number < rounds * folds else kinds[0], number % folds)
        for number in range(members)
    )


def step_seconds(batch_size: int, inducing: int) -> float:
    """Return the approximate time of a step of the default model in one thread."""
    evaluations = batch_size * (SITES + WIDTH) * inducing  # of the kernel
    matrices = MATRIX_SECONDS * inducing**2
    return STEP_SECONDS + matrices + evaluations * (KERNEL_SECONDS + PRODUCT_SECONDS * inducing)

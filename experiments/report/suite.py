"""The suite of everyday tables (`python -m benchmarks.tables`): how methods compare on the sets and folds they share.

Two methods are compared on the folds that both have, a group of methods on the sets and folds that all of them have. A
method without results on some fold or set therefore takes nothing away from the comparison of the others.
"""

import json
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from experiments.report.layout import order_names
from experiments.report.records import short_commit

OURS = "dspp"
SETS = (
    *("concrete", "energy", "airfoil", "wine", "skillcraft", "parkinsons"),
    *("diamonds", "hdb_resale", "airbnb_nyc_2019", "baja_bathymetry"),
    *("pol", "elevators", "bike", "kin40k", "protein"),
)
METHODS = (OURS, "dspp-members-1", "lightgbm", "catboost", "ngboost", "mlps", "exact-gp")
CLOSE = 0.05  # nats
Scores = Mapping[str, float]


@dataclass(frozen=True)
class Suite:
    """The scores of every fit."""

    fits: Mapping[str, Mapping[str, Mapping[int, Scores]]]  # by set, method and fold
    commits: tuple[str, ...] = ()  # that the results come from

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> "Suite":
        """Collect records of `benchmarks.tables`; sets and methods are in the order of the suite."""
        found: dict[str, dict[str, dict[int, Scores]]] = defaultdict(lambda: defaultdict(dict))
        commits = set()
        for record in records:
            commits.add(short_commit(record.get("commit")))
            numbers = {**record["metrics"], **record["seconds"], "test_rows": record["rows"]["test"]}
            scores = {name: float(value) for name, value in numbers.items()}  # infinity is text in the file
            found[str(record["set"])][str(record["method"])][int(record["fold"])] = scores
        names = [name for name in order_names(SETS, found) if name in found]
        return cls({name: dict(found[name]) for name in names}, tuple(sorted(commits)))

    @property
    def sets(self) -> tuple[str, ...]:
        """All sets with results."""
        return tuple(self.fits)

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods with results."""
        found = {method for by_method in self.fits.values() for method in by_method}
        return tuple(method for method in order_names(METHODS, found) if method in found)

    @property
    def peers(self) -> tuple[str, ...]:
        """All methods but ours and its variants in studies of settings."""
        return tuple(method for method in self.methods if method != OURS and not method.startswith(f"{OURS}["))

    def folds(self, name: str, methods: Iterable[str]) -> set[int]:
        """Return the folds of a set that all of the methods have."""
        return set.intersection(*(set(self.fits[name].get(method, ())) for method in methods))

    def means(self, name: str, methods: Sequence[str], only: Collection[int] | None = None) -> dict[str, Scores]:
        """Return the mean scores on a set over the folds that all of the methods have; empty if there is none."""
        shared = self.folds(name, methods)
        shared = shared if only is None else shared & set(only)
        if not shared:
            return {}
        return {method: mean([self.fits[name][method][fold] for fold in sorted(shared)]) for method in methods}

    def pairs(self, name: str, only: Collection[int] | None = None) -> dict[str, tuple[Scores, Scores]]:
        """Return, for each peer, our scores on a set and the peer's over the folds that both have."""
        found = {peer: self.means(name, (OURS, peer), only) for peer in self.peers}
        return {peer: (both[OURS], both[peer]) for peer, both in found.items() if both}

    def row_folds(self, name: str) -> set[int]:
        """Return the folds on which a row of a table compares methods: those for which methods × folds is largest.

        If our method has results on the set, they are folds of ours. Ties favour more methods.
        """
        folds = [set(by_fold) for by_fold in self.fits[name].values()]
        ours = set(self.fits[name].get(OURS, set.union(*folds)))
        choices: set[frozenset[int]] = set()
        for mine in folds:  # every intersection of the folds of some methods
            choices |= {choice & mine for choice in choices} | {frozenset(mine & ours)}

        def size(choice: frozenset[int]) -> tuple[int, int, list[int]]:
            methods = sum(choice <= mine for mine in folds)
            return methods * len(choice), methods, sorted(-fold for fold in choice)

        largest = max((choice for choice in choices if choice), key=size)
        return set(largest)

    def row_methods(self, name: str) -> tuple[str, ...]:
        """Return the methods with results on all of these folds."""
        shown = self.row_folds(name)
        return tuple(method for method in self.methods if shown <= set(self.fits[name].get(method, ())))


def read_suite(path: Path) -> Suite:
    """Read a results file of `benchmarks.tables`; lines that are not results are left out, no file gives no results."""
    lines = path.read_bytes().split(b"\n") if path.is_file() else []
    return Suite.of(record for line in lines if (record := _record(line)) is not None)


def _record(line: bytes) -> Mapping[str, Any] | None:
    try:
        record = json.loads(line)
        Suite.of([record])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def mean(scores: Sequence[Scores]) -> Scores:
    """Return the mean of each score that all have; of the worst row's surprise, the largest."""
    shared = [key for key in scores[0] if all(key in each for each in scores)]
    means = {key: float(np.mean([each[key] for each in scores])) for key in shared}
    if "worst_surprise" in means:
        means["worst_surprise"] = max(each["worst_surprise"] for each in scores)
    return means


def best_peer(
    pairs: Mapping[str, tuple[Scores, Scores]], score: str, ratio: bool = False
) -> tuple[str, float, float, float]:
    """Return the peer that beats us by most, our score, the peer's, and the difference (or ratio), positive if worse.

    Args:
        pairs: Our scores and those of each peer.
        score: The score, of which lower is better.
        ratio: Whether to divide instead of subtracting.
    """
    found = {peer: (_number(ours[score]), _number(theirs[score])) for peer, (ours, theirs) in pairs.items()}
    gaps = {peer: _gap(*both, ratio) for peer, both in found.items()}
    worst = max(gaps, key=lambda peer: gaps[peer])
    return worst, *found[worst], gaps[worst]


def _gap(ours: float, theirs: float, ratio: bool) -> float:
    if ours == theirs:  # also if both are infinite
        return 1.0 if ratio else 0.0
    return (ours / theirs if theirs else math.inf) if ratio else ours - theirs


def _number(value: float) -> float:
    """Return the value; what is not a number is worse than any."""
    return math.inf if math.isnan(value) else value


@dataclass(frozen=True)
class Group:
    """Methods, and the sets on which all of them have results on a common fold."""

    methods: tuple[str, ...]
    sets: tuple[str, ...]
    summary: Mapping[str, Scores]  # by method: mean ranks, wins, sets close to the best NLL, relative RMSE

    def order(self, score: str) -> list[str]:
        """Return the methods by mean rank, the best first."""
        return sorted(self.methods, key=lambda method: self.summary[method][f"{score}_rank"])


def groups(suite: Suite, methods: Collection[str]) -> list[Group]:
    """Return the groups of methods that have results on a fold of the same set, the largest group first.

    For each group, all sets count on which all of its methods have results.
    """
    wanted = {_comparable(suite, name, methods) for name in suite.sets}
    found = [_group(suite, group) for group in wanted if len(group) > 1]
    return sorted(found, key=lambda group: (-len(group.methods), group.methods))


def _comparable(suite: Suite, name: str, methods: Collection[str]) -> tuple[str, ...]:
    """Return the methods with results on a set or, if they share no fold, those that a row compares."""
    everyone = tuple(method for method in suite.methods if method in methods and method in suite.fits[name])
    if everyone and suite.folds(name, everyone):
        return everyone
    return tuple(method for method in suite.row_methods(name) if method in methods)


def _group(suite: Suite, methods: tuple[str, ...]) -> Group:
    means = {name: found for name in suite.sets if (found := suite.means(name, methods))}
    lists: dict[str, dict[str, list[float]]] = {method: defaultdict(list) for method in methods}
    for by_method in means.values():
        for score in ("nll", "crps"):
            values = np.array([_number(by_method[method][score]) for method in methods])
            for method, rank, value in zip(methods, rankdata(values), values, strict=True):
                lists[method][f"{score}_rank"].append(rank)
                lists[method][f"{score}_wins"].append(value == values.min())
                if score == "nll":
                    lists[method]["close"].append(value <= values.min() + CLOSE)
        best = min(by_method[method]["rmse"] for method in methods)
        for method in methods:
            lists[method]["log_rmse"].append(math.log(by_method[method]["rmse"] / best))
    summary = {
        method: {
            **{key: float(np.mean(each[key])) for key in ("nll_rank", "crps_rank")},
            **{key: float(np.sum(each[key])) for key in ("nll_wins", "crps_wins", "close")},
            "rmse": math.exp(np.mean(each["log_rmse"])),
        }
        for method, each in lists.items()
    }
    return Group(methods, tuple(means), summary)

"""The results as Markdown tables: scores by set, and ranks of the methods over all sets."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import rankdata

from benchmarks.tables.methods import METHODS
from benchmarks.tables.records import Record
from benchmarks.tables.sets import SETS

CLOSE = 0.05  # nats from the best NLL
TITLES = {
    "nll": "NLL",
    "crps": "CRPS",
    "rmse": "RMSE",
    "coverage90": "Coverage of 90 % intervals",
    "worst_surprise": "Surprise of the worst row, nats",
    "fit": "Seconds to fit",
    "fit_cpu": "CPU seconds to fit, comparable if the machine was busy",
}
COARSE = ("worst_surprise", "fit", "fit_cpu")  # one decimal is enough
BOLD = ("nll", "crps", "rmse")  # the best of each set
Means = dict[str, dict[str, dict[str, float]]]  # by set, method and score


def average(found: Sequence[Record]) -> tuple[Means, dict[str, int]]:
    """Return the mean scores over folds, and how many folds they are over.

    Only folds that all methods with results on a set share are used, so that methods are compared on the same rows.
    """
    by_set: dict[str, dict[str, dict[int, dict[str, float]]]] = defaultdict(lambda: defaultdict(dict))
    for record in found:
        scores = {**record["metrics"], **record["seconds"]}
        by_set[record["set"]][record["method"]][record["fold"]] = scores
    means: Means = {}
    folds: dict[str, int] = {}
    for name, by_method in sorted(by_set.items(), key=lambda item: _place(item[0], SETS)):
        shared = set.intersection(*(set(by_fold) for by_fold in by_method.values()))
        if shared:
            means[name] = {how: _mean([by_fold[f] for f in shared]) for how, by_fold in by_method.items()}
            folds[name] = len(shared)
    return means, folds


def summarise(means: Means) -> dict[str, dict[str, float]]:
    """Return, for each method, its mean ranks, wins and distance from the best over the sets it has results on."""
    lists: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for by_method in means.values():
        names = list(by_method)
        for score in ("nll", "crps"):
            values = np.array([by_method[name][score] for name in names])
            values = np.where(np.isnan(values), math.inf, values)
            for name, rank, value in zip(names, rankdata(values), values, strict=True):
                lists[name][f"{score}_rank"].append(rank)
                lists[name][f"{score}_wins"].append(value == values.min())
                if score == "nll":
                    lists[name]["close"].append(value <= values.min() + CLOSE)
        best = min(scores["rmse"] for scores in by_method.values())
        for name in names:
            lists[name]["log_rmse"].append(math.log(by_method[name]["rmse"] / best))
    return {
        name: {
            "sets": len(each["close"]),
            "nll_rank": float(np.mean(each["nll_rank"])),
            "crps_rank": float(np.mean(each["crps_rank"])),
            "nll_wins": sum(each["nll_wins"]),
            "crps_wins": sum(each["crps_wins"]),
            "close": sum(each["close"]),
            "rmse": math.exp(np.mean(each["log_rmse"])),
        }
        for name, each in lists.items()
    }


def write(found: Sequence[Record]) -> str:
    """Return the report as Markdown."""
    means, folds = average(found)
    used = {name for by_method in means.values() for name in by_method}
    methods = sorted(used, key=lambda name: (_place(name.split("[")[0], list(METHODS)), name))
    parts = ["# Everyday tables", INTRODUCTION, "## Over all sets", _overall(summarise(means), methods)]
    for score, title in TITLES.items():
        parts += [f"## {title}", _by_set(means, folds, methods, score)]
    left_out = sorted({record["set"] for record in found} - set(means))
    if left_out:
        parts.append(f"No fold is shared by all methods, so left out: {', '.join(left_out)}.")
    return "\n\n".join(parts) + "\n"


INTRODUCTION = f"""Scores on the test rows, in units standardised by the training rows; means over the folds that all \
methods of a set
share. Lower is better. Ranks, wins and relative RMSE (the geometric mean of RMSE divided by the best) are over the sets
on which a method has results, among the methods with results there. Close: NLL within {CLOSE} nat of the best."""


def _overall(summary: dict[str, dict[str, float]], methods: Sequence[str]) -> str:
    header = (
        "method",
        "sets",
        "mean rank, NLL",
        "mean rank, CRPS",
        "wins, NLL",
        "wins, CRPS",
        "close",
        "relative RMSE",
    )
    rows = []
    for name in methods:
        s = summary[name]
        counts = [f"{s[key]:.0f}" for key in ("nll_wins", "crps_wins", "close")]
        rows.append(
            [name, str(s["sets"]), f"{s['nll_rank']:.2f}", f"{s['crps_rank']:.2f}", *counts, f"{s['rmse']:.3f}"]
        )
    return _table(header, rows)


def _by_set(means: Means, folds: dict[str, int], methods: Sequence[str], score: str) -> str:
    show: Callable[[float], str] = ("{:.1f}" if score in COARSE else "{:.3f}").format
    rows = []
    for name, by_method in means.items():
        best = min(scores[score] for scores in by_method.values())
        cells = [by_method[how][score] if how in by_method else None for how in methods]
        marked = [
            "–" if cell is None else f"**{show(cell)}**" if score in BOLD and cell == best else show(cell)
            for cell in cells
        ]
        rows.append([name, str(folds[name]), *marked])
    return _table(("set", "folds", *methods), rows)


def _mean(scores: Sequence[dict[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([s[key] for s in scores])) for key in scores[0]}


def _place(name: str, order: Sequence[str]) -> int:
    return order.index(name) if name in order else len(order)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, [":---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

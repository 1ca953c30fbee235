"""The section on the suite of everyday tables: criteria, mean ranks, pairs, folds chosen on and others, all scores."""

import math
from collections.abc import Sequence
from statistics import fmean, median

from experiments.report.blocks import DASH, Block, Entry, Part, Section, Table, fixed, plural
from experiments.report.criteria import Criterion, criteria, missing_sets, verdict
from experiments.report.records import summary
from experiments.report.suite import CLOSE, OURS, Group, Suite, best_peer, groups, mean
from experiments.report.tables import plain

SCORES = {  # title and decimals
    "nll": ("NLL", 3),
    "crps": ("CRPS", 3),
    "rmse": ("RMSE", 3),
    "coverage50": ("Coverage of 50 % intervals", 3),
    "coverage90": ("Coverage of 90 % intervals", 3),
    "coverage95": ("Coverage of 95 % intervals", 3),
    "worst_surprise": ("Surprise of the worst row, nats", 1),
    "fit": ("Seconds to fit", 1),
    "fit_cpu": ("CPU seconds to fit", 1),
    "predict_per_1000": ("Seconds to predict 1,000 rows", 3),
}
LOWER_IS_BETTER = ("nll", "crps", "rmse")
NOTES = {
    **dict.fromkeys(LOWER_IS_BETTER, "Means over folds; lower is better, the best is bold."),
    "worst_surprise": "The largest of all folds.",
    "fit_cpu": "Means over folds, of the main process only: members that train in other processes are not counted.",
}
VERDICTS = {True: "met", False: "missed", None: "not run"}
PARTS = {"folds 0–2": (0, 1, 2), "folds 3–5": (3, 4, 5)}
QUESTION = (
    "`DSPPRegressor()` as a user would call it, and methods that a user might choose instead, on tables as people "
    "bring them (`python -m benchmarks.tables`)."
)
REMARK = (
    "Scores are on the test rows, in units standardised by the training rows. Two methods are compared on the folds "
    "that both have, a group of methods on the sets and folds that all of them have. Results come from commit"
)


def everyday_section(suite: Suite) -> Section | None:
    """Return the section; None without results."""
    if not suite.sets:
        return None
    found = criteria(suite)
    blocks = [Block("Criteria", tables=(_criteria(found),))] if found else []
    compared = [group for group in groups(suite, suite.methods) if not found or OURS in group.methods]
    if compared:
        blocks.append(Block("Mean ranks", tables=tuple(map(_ranks, compared))))
    if found:
        blocks.append(Block(f"{OURS} and each peer", tables=(_pairs(suite),)))
        parts = tuple(_by_part(suite, score) for score in ("nll", "crps"))
        blocks.append(Block("Folds that defaults were chosen on, and others", tables=parts))
    for score, (title, _) in SCORES.items():
        if any(score in s for m in suite.fits.values() for f in m.values() for s in f.values()):
            blocks.append(Block(title, tables=(_by_set(suite, score),), folded=score != "nll"))
    part = Part("", tuple(verdict(found, missing_sets(suite))), tuple(blocks))
    remark = f"{REMARK}{'s' if len(suite.commits) > 1 else ''} {', '.join(suite.commits)}."
    return Section("tables", "Everyday tables", QUESTION, (remark,), (part,), tuple(_csv(suite)))


def _criteria(found: Sequence[Criterion]) -> Table:
    rows = [
        (
            Entry(criterion.text),
            Entry(VERDICTS[criterion.met], bold=criterion.met is False),
            Entry(criterion.found),
            Entry("; ".join(criterion.exceptions) or DASH),
        )
        for criterion in found
    ]
    caption = (
        "On the sets with results so far. The first of a set is found peer by peer, on the folds shared with each. "
        "Coverage and surprise are over all folds that were run; the largest surprise counts."
    )
    header = ("criterion", "verdict", "found", "where not")
    return Table(f"What {OURS} must reach", header, tuple(rows), caption, words=frozenset({1, 2, 3}))


def _ranks(group: Group) -> Table:
    best = {key: min(each[key] for each in group.summary.values()) for key in ("nll_rank", "crps_rank")}
    rows = []
    for method in group.methods:
        each = group.summary[method]
        ranks = [Entry(f"{each[key]:.2f}", each[key] == lowest) for key, lowest in best.items()]
        counts = [Entry(f"{each[key]:.0f}") for key in ("nll_wins", "crps_wins", "close")]
        rows.append((Entry(method), *ranks, *counts, Entry(f"{each['rmse']:.3f}")))
    header = ("method", "mean rank, NLL", "mean rank, CRPS", "wins, NLL", "wins, CRPS", "close", "relative RMSE")
    caption = (
        f"Over the sets on which all of these methods have results: {', '.join(group.sets)}. Close: NLL within {CLOSE} "
        "nat of the best. Relative RMSE: geometric mean of the RMSE divided by the best."
    )
    title = f"{len(group.methods)} methods on {plural(len(group.sets), 'set')}"
    return Table(title, header, tuple(rows), caption)


def _pairs(suite: Suite) -> Table:
    rows = []
    for peer in suite.peers:
        shared = [both[peer] for name in suite.sets if peer in (both := suite.pairs(name))]
        if not shared:
            continue
        wins = []
        for score in ("nll", "crps"):
            gaps = [best_peer({peer: both}, score)[-1] for both in shared]
            wins.append(Entry(f"{sum(gap < 0 for gap in gaps)}–{sum(gap > 0 for gap in gaps)}"))
        nats = median(best_peer({peer: both}, "nll")[-1] for both in shared)
        ratio = math.exp(fmean(math.log(ours["rmse"] / theirs["rmse"]) for ours, theirs in shared))
        rows.append((Entry(peer), Entry(str(len(shared))), *wins, Entry(fixed(nats, sign=True)), Entry(f"{ratio:.3f}")))
    header = ("peer", "shared sets", "wins–losses, NLL", "wins–losses, CRPS", "median NLL difference", "RMSE ratio")
    caption = f"Wins, differences and ratios are those of `{OURS}`: negative differences and ratios below 1 favour it."
    return Table(f"{OURS} against each peer on the folds that both have", header, tuple(rows), caption)


def _by_part(suite: Suite, score: str) -> Table:
    """Return our score and the best peer's on the folds that defaults were chosen on, and on later ones."""
    title = SCORES[score][0]
    rows = []
    level = dict.fromkeys(PARTS, (0, 0))
    for name in suite.sets:
        row = [Entry(name)]
        for part, folds in PARTS.items():
            pairs = suite.pairs(name, folds)
            if not pairs:
                row += [Entry(DASH)] * 3
                continue
            peer, ours, theirs, gap = best_peer(pairs, score)
            row += [Entry(fixed(ours)), Entry(f"{fixed(theirs)} ({peer})"), Entry(fixed(gap, sign=True), gap <= 0)]
            level[part] = level[part][0] + (gap <= 0), level[part][1] + 1
        if any(entry.text != DASH for entry in row[1:]):
            rows.append(tuple(row))
    header = ["set"]
    for part in PARTS:
        header += [f"{OURS}, {part}", "best peer", "difference"]
    firsts = "; ".join(f"{part}, {good} of {plural(total, 'set')}" for part, (good, total) in level.items() if total)
    caption = (
        f"The best peer is the one that is furthest ahead on the folds shared with `{OURS}`; negative differences, in "
        f"bold, are in favour of `{OURS}`. First: {firsts}. Most defaults were chosen on folds 0–2 of some of the "
        "sets, the number of trees on all folds of small ones (docs/measured.md, Everyday tables)."
    )
    return Table(f"{title} on folds 0–2 and on folds 3–5", tuple(header), tuple(rows), caption)


def _by_set(suite: Suite, score: str) -> Table:
    title, decimals = SCORES[score]
    rows, partial = [], False
    for name in suite.sets:
        shown, whole = suite.row_folds(name), suite.row_methods(name)
        means = suite.means(name, whole, shown)
        best = min((each[score] for each in means.values() if score in each), default=None)
        row = [Entry(name), Entry(str(len(shown)))]
        for method in suite.methods:
            by_fold = suite.fits[name].get(method, {})
            folds = (shown & set(by_fold)) or set(by_fold)
            value = mean([by_fold[fold] for fold in sorted(folds)]).get(score) if folds else None
            text = fixed(value, decimals)
            if value is None or method in whole:
                row.append(Entry(text, score in LOWER_IS_BETTER and value is not None and value == best))
            else:
                row.append(Entry(f"({text})"))
                partial = True
        rows.append(tuple(row))
    parts = [NOTES.get(score, "Means over folds.")]
    if partial:
        parts.append("In parentheses: over other folds, and therefore not compared.")
    return Table(f"{title}, by set", ("set", "folds", *suite.methods), tuple(rows), " ".join(parts))


def _csv(suite: Suite) -> list[tuple[str, ...]]:
    """Return the tidy rows: the mean over all folds that a method has, with its standard error."""
    rows: list[tuple[str, ...]] = []
    for score in SCORES:
        for name, by_method in suite.fits.items():
            for method in (m for m in suite.methods if m in by_method):
                cell = summary(scores[score] for scores in by_method[method].values() if score in scores)
                if cell:
                    figures = (plain(cell.mean), plain(cell.error), str(cell.splits))
                    rows.append(("", score, name, method, *figures, "", "", ""))
    return rows

"""What the default must reach on the suite of everyday tables, and whether it does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from experiments.report.blocks import DASH, fixed, join_names, plural
from experiments.report.suite import CLOSE, OURS, SETS, Scores, Suite, best_peer, groups, mean

FIRST_SHARE = 0.8  # of the sets: first, or within CLOSE of the first
RMSE_RATIO = 1.03  # of the best RMSE
COVERAGE = (0.87, 0.93)  # of 90 % intervals
COVERAGE_SHARE = 0.9  # of the sets with MANY_ROWS
MANY_ROWS = 500  # test rows
SURPRISE = 12.0  # nats


@dataclass(frozen=True)
class Criterion:
    """One requirement, what was found, and the exceptions."""

    text: str
    found: str
    met: bool | None  # None: there is nothing to judge yet
    exceptions: tuple[str, ...] = ()
    extra: bool = False  # beside the criteria: not counted


def criteria(suite: Suite) -> list[Criterion]:
    """Return the criteria; none if our method has no results beside a peer's."""
    pairs = {name: found for name in suite.sets if (found := suite.pairs(name))}
    if not pairs:
        return []
    ours = {name: mean(list(suite.fits[name][OURS].values())) for name in suite.sets if OURS in suite.fits[name]}
    total = {name: sum(s["test_rows"] for s in suite.fits[name][OURS].values()) for name in ours}
    per_fold = f"90 % coverage within 87 to 93 % on 90 % of the sets with {MANY_ROWS} or more test rows per fold"
    in_all = f"for comparison: the same, for sets with {MANY_ROWS} or more in all folds together"
    return [
        _ranks(suite, "nll", "NLL"),
        _ranks(suite, "crps", "CRPS"),
        _first(pairs),
        _rmse(pairs),
        _coverage(per_fold, {name: s for name, s in ours.items() if s["test_rows"] >= MANY_ROWS}),
        _coverage(in_all, {name: s for name, s in ours.items() if total[name] >= MANY_ROWS}, extra=True),
        _surprise(ours),
    ]


def missing_sets(suite: Suite) -> list[str]:
    """Return the sets of the suite without results of our method."""
    return [name for name in SETS if OURS not in suite.fits.get(name, {})]


def _ranks(suite: Suite, score: str, title: str) -> Criterion:
    found, exceptions = [], []
    for group in groups(suite, (OURS, *suite.peers)):
        if OURS not in group.methods:
            continue
        ranks = {method: group.summary[method][f"{score}_rank"] for method in group.methods}
        where = f"{len(group.methods)} methods on {plural(len(group.sets), 'set')}"
        found.append(f"{ranks[OURS]:.2f} ({where})")
        better = [method for method in group.order(score) if ranks[method] < ranks[OURS]]
        exceptions += [f"{method} {ranks[method]:.2f} ({where})" for method in better]
    met = not exceptions if found else None
    return Criterion(f"best mean rank on {title}", "; ".join(found) or DASH, met, tuple(exceptions))


def _first(pairs: Mapping[str, Mapping[str, tuple[Scores, Scores]]]) -> Criterion:
    gaps = {name: best_peer(found, "nll") for name, found in pairs.items()}
    behind = [f"{name}: {peer} by {fixed(gap)}" for name, (peer, _, _, gap) in gaps.items() if gap > CLOSE]
    first = sum(gap <= 0 for *_, gap in gaps.values())
    close = len(gaps) - len(behind)
    return Criterion(
        f"first on NLL, or within {CLOSE} nat of the first, on {FIRST_SHARE:.0%} of the sets".replace("%", " %"),
        f"{_share(close, len(gaps))}, first on {first}",
        close >= FIRST_SHARE * len(gaps),
        tuple(behind),
    )


def _rmse(pairs: Mapping[str, Mapping[str, tuple[Scores, Scores]]]) -> Criterion:
    ratios = {name: best_peer(found, "rmse", ratio=True) for name, found in pairs.items()}
    above = [f"{name}: {gap:.3f} of {peer}'s" for name, (peer, _, _, gap) in ratios.items() if gap > RMSE_RATIO]
    text = "RMSE at most 3 % above the best on every set"
    return Criterion(text, _share(len(ratios) - len(above), len(ratios)), not above, tuple(above))


def _coverage(text: str, scores: Mapping[str, Scores], extra: bool = False) -> Criterion:
    low, high = COVERAGE
    outside = _exceptions(scores, "coverage90", lambda value: not low <= value <= high, "{:.4f}")
    inside = len(scores) - len(outside)
    met = inside >= COVERAGE_SHARE * len(scores) if scores else None
    return Criterion(text, _share(inside, len(scores)), met, outside, extra)


def _surprise(scores: Mapping[str, Scores]) -> Criterion:
    above = _exceptions(scores, "worst_surprise", lambda value: not value <= SURPRISE, "{:.1f}")
    text = f"no test row above {SURPRISE:.0f} nats of surprise"
    return Criterion(text, _share(len(scores) - len(above), len(scores)), not above, above)


def _exceptions(scores: Mapping[str, Scores], key: str, wrong: Callable[[float], bool], show: str) -> tuple[str, ...]:
    return tuple(f"{name}: {show.format(each[key])}" for name, each in scores.items() if wrong(each[key]))


def _share(good: int, total: int) -> str:
    return f"{good} of {plural(total, 'set')} ({100 * good / total:.0f} %)" if total else "no such set yet"


def verdict(found: Sequence[Criterion], missing: Sequence[str]) -> list[str]:
    """Say how many criteria are met, which are not, and where there are no results yet."""
    if not found:
        return [f"There are no results of `{OURS}` beside those of a peer yet."]
    judged = [criterion for criterion in found if criterion.met is not None and not criterion.extra]
    missed = [criterion.text for criterion in judged if not criterion.met]
    where = f"On the {len(SETS) - len(missing)} of {plural(len(SETS), 'set')} with results, " if missing else ""
    text = f"{where}`{OURS}` meets {len(judged) - len(missed)} of {len(judged)} criteria"
    lines = [f"{text}{'; missed: ' + '; '.join(missed) if missed else ''}."]
    if missing:
        lines.append(f"No results of `{OURS}` yet on {join_names(list(missing))}.")
    return lines

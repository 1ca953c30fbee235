"""The results in plain words: where DSPP is first, where it is not, and whether the paper's order holds."""

from collections.abc import Mapping, Sequence

from experiments.catalogue import EXPERIMENTS as CATALOGUE
from experiments.peers import PEERS
from experiments.protocol import canonical, read_protocol
from experiments.report import tables
from experiments.report.blocks import fixed, join_names, plural
from experiments.report.layout import HEADLINE, NLL, PROTOCOLS, Layout, Metric
from experiments.report.paper import Paper
from experiments.report.ranks import ALPHA, Ranking
from experiments.report.records import Grid, Record
from experiments.units import Unit, fit_key, list_units

Losses = Mapping[str, Mapping[str, float]]  # data set: method: loss


def what_was_run(records: Sequence[Record], layout: Layout, name: str) -> list[str]:
    """Say which part of a protocol was run, if not all of it, and which runs are not part of it."""
    if layout.name not in CATALOGUE or name not in PROTOCOLS:
        return []
    rules, experiment = read_protocol(name), CATALOGUE[layout.name]
    mine = [r for r in records if (r.experiment, r.protocol) == (layout.name, name)]
    parts: dict[str, list[str]] = {}
    others = 0
    for method in experiment.methods:
        keys = {fit_key(vars(r)): r for r in mine if r.method == method}
        sets = {r.dataset for r in keys.values()} & set(experiment.datasets)
        wanted = {u.fit_key: u for u in list_units(experiment, rules, sorted(sets), [method])}
        found = [wanted[key] for key in keys if key in wanted]
        others += len(keys) - len(found)
        shares = [_share(found, list(wanted.values()), what) for what in ("setting", "split")]
        if found and any(shares):
            parts.setdefault(" and ".join(filter(None, shares)), []).append(method)
    lines = [f"Run in part: {join_names(names)}, with {share}." for share, names in parts.items()]
    if others:
        lines.append(f"Not part of this protocol: {plural(others, 'fit')} with settings or rows changed by options.")
    return lines


def other_files(records: Sequence[Record]) -> list[str]:
    """Name the data sets whose results come from different files, as happens when folders are merged."""
    files: dict[str, set[str]] = {}
    for record in records:
        if isinstance(found := record.details.get("data"), str):
            files.setdefault(record.dataset, set()).add(found)
    return [
        f"Results on {dataset} come from different data files (sha256 {join_names(sorted(those))}), so their rows "
        "may differ: compare them with care."
        for dataset, those in files.items()
        if len(those) > 1
    ]


def _share(found: Sequence[Unit], wanted: Sequence[Unit], what: str) -> str:
    """Say how many different settings, or splits, were run; empty if all were."""
    have, all_of_them = ({canonical({what: getattr(u, what)}) for u in units} for units in (found, wanted))
    if len(have) == len(all_of_them):
        return ""
    alone = " (so none was selected)" if len(have) == 1 and what == "setting" else ""
    return f"{len(have)} of {len(all_of_them)} {what}s{alone}"


def first_place(grid: Grid, paper: Paper, layout: Layout) -> list[str]:
    """Say on how many data sets the headline is best, here and in the paper, and what beats it elsewhere."""
    own = tables.own_methods(grid.methods)
    ours = _comparable({d: tables.our_losses(grid, d, own) for d in grid.datasets}, layout)
    if not ours:
        return [f"On {grid.metric.name} there is nothing to compare {layout.label} with under this protocol yet."]
    theirs = _comparable({d: tables.paper_losses(grid, paper, layout, d, own) for d in grid.datasets}, layout)
    beside = _in_the_paper(theirs, set(ours), layout)
    name, target = grid.metric.name, grid.metric.target
    best = f"the best {name}" if target is None else f"the {name} nearest to {target:g}"
    text = f"{layout.label} has {best} on {_firsts(ours, layout)} of {plural(len(ours), 'data set')}"
    sentences = [f"{text}{beside}{_exceptions(ours, layout, grid.metric)}."]
    return sentences + _with_peers(grid, layout)


def _in_the_paper(theirs: Losses, run: set[str], layout: Layout) -> str:
    """Say how often the headline is best in the paper: on the data sets that we ran, and on all."""
    same = {dataset: found for dataset, found in theirs.items() if dataset in run}
    total = f"{_firsts(theirs, layout)} of {len(theirs)}"
    if len(same) == len(theirs):
        return f" (paper: {total})" if theirs else ""
    return f" (paper: {_firsts(same, layout)} of the same {len(same)}, {total} in total)"


def _with_peers(grid: Grid, layout: Layout) -> list[str]:
    """Say the same in comparison with the peers alone, if any were run."""
    peers = grid.present(PEERS)
    if not peers:
        return []
    against = {d: tables.our_losses(grid, d, (*layout.headlines, *peers)) for d in grid.datasets}
    compared = _comparable(against, layout)
    if not compared:
        return []
    text = f"Compared with {join_names(list(peers))} only, it is best on {_firsts(compared, layout)} of {len(compared)}"
    return [f"{text}{_exceptions(compared, layout, grid.metric)}."]


def _comparable(losses: Losses, layout: Layout) -> Losses:
    """Keep the data sets on which both a headline method and another one have a value."""
    heads = set(layout.headlines)
    return {d: found for d, found in losses.items() if heads & found.keys() and found.keys() - heads}


def _firsts(losses: Losses, layout: Layout) -> int:
    return sum(_margin(found, layout)[1] <= 0 for found in losses.values())


def _margin(found: Mapping[str, float], layout: Layout) -> tuple[str, float]:
    """Return the best other method, and by how much it beats the best headline method (negative if it is worse)."""
    head = min(loss for method, loss in found.items() if method in layout.headlines)
    loss, other = min((loss, method) for method, loss in found.items() if method not in layout.headlines)
    return other, head - loss


def _exceptions(losses: Losses, layout: Layout, metric: Metric) -> str:
    """Say where another method is better, which one, and by how much."""
    margins = {d: _margin(found, layout) for d, found in losses.items()}
    worse = [f"{d} ({other} better by {by(gap, metric)})" for d, (other, gap) in margins.items() if gap > 0]
    return f"; not on {', '.join(worse)}" if worse else ""


def by(gap: float, metric: Metric) -> str:
    """Format a difference with its unit, never as zero."""
    unit = " nat" if metric.key == "nll" else ""
    return f"less than 0.001{unit}" if gap < 0.0005 else f"{fixed(gap)}{unit}"


def same_order(grid: Grid, paper: Paper, layout: Layout) -> list[str]:
    """Say for how many pairs of methods the better one is the same as in the paper, and where it is not."""
    agreement: dict[str, tuple[int, int]] = {}
    for dataset in grid.datasets:
        ours = tables.our_losses(grid, dataset, grid.methods)
        theirs = tables.paper_losses(grid, paper, layout, dataset, grid.methods)
        agree, total = concordant(ours, theirs)
        if total:
            agreement[dataset] = agree, total
    if not agreement:
        return []
    agree, total = (sum(pair[i] for pair in agreement.values()) for i in (0, 1))
    whole = [d for d, (same, of) in agreement.items() if same == of]
    parts = [f"{d} {same} of {of}" for d, (same, of) in agreement.items() if same < of]
    text = f"The paper's order in {grid.metric.name} holds for {agree} of {plural(total, 'pair')} of methods"
    text += f" ({plural(len(agreement), 'data set')})"
    where = [f"all on {join_names(whole)}"] if whole else []
    return [f"{text}: {'; '.join([*where, ', '.join(parts)] if parts else where)}."]


def concordant(ours: Mapping[str, float], theirs: Mapping[str, float]) -> tuple[int, int]:
    """Count the pairs of methods in the same order as in the paper, and all pairs that the paper does not tie."""
    shared = [method for method in theirs if method in ours]
    pairs = [(a, b) for i, a in enumerate(shared) for b in shared[i + 1 :] if theirs[a] != theirs[b]]
    same = sum((ours[a] - ours[b]) * (theirs[a] - theirs[b]) > 0 for a, b in pairs)
    return same, len(pairs)


def rank_order(ranking: Ranking, paper: Paper, layout: Layout, metric: Metric) -> list[str]:
    """State the order of average ranks, here and in the paper, and what the tests say."""
    if len(ranking.methods) < 2:
        return []
    if not ranking.pairs:
        return ["No pair of data set and split has results for every method, so there are no average ranks yet."]
    pairs = (
        f"{plural(len(ranking.pairs), 'pair')} of data set and split ({plural(len(ranking.datasets()), 'data set')})"
    )
    sentences = [f"By average rank over the {pairs} that every method has: {', '.join(ranking.order())}."]
    theirs = {m: rank for m in ranking.methods if (rank := paper.rank(layout, metric, m)) is not None}
    if len(theirs) > 1:
        order = sorted(theirs, key=lambda method: theirs[method])
        same = order == [method for method in ranking.order() if method in theirs]
        sentences.append("The paper's order is the same." if same else f"The paper's order: {', '.join(order)}.")
    return sentences + tests(ranking)


def tests(ranking: Ranking) -> list[str]:
    """State the results of the Friedman and Nemenyi tests, and their limits."""
    if ranking.friedman is None or ranking.critical is None:
        return ["Too few methods or pairs for a Friedman test."]
    statistic, p = ranking.friedman
    shown = f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"
    differ = "the methods differ" if p < ALPHA else "the differences may be due to chance"
    sentences = [
        f"Friedman: χ² = {statistic:.2f}, {shown}: {differ}. "
        f"Nemenyi: average ranks further apart than {ranking.critical:.2f} differ at the 5 % level."
    ]
    if len(ranking.datasets()) < len(ranking.pairs):
        sentences.append("Splits of one data set are not independent, so these p-values are too small.")
    return sentences


def steps(grid: Grid, paper: Paper, layout: Layout) -> list[str]:
    """Say on how many data sets each step of the layout (a third layer, a neural network) lowers the NLL."""
    sentences = []
    for before, after, what in layout.steps:
        ours = tables.our_gains(grid, after, before)
        theirs = tables.paper_gains(paper, layout, grid.datasets, after, before)
        if ours:
            worse = [f"{d} ({by(-gain, NLL)} worse)" for d, gain in ours.items() if gain <= 0]
            beside = f" (paper: {_count_gains(theirs)} of {len(theirs)})" if theirs else ""
            text = f"{what} lowers the NLL on {_count_gains(ours)} of {plural(len(ours), 'data set')}{beside}"
            sentences.append(f"{text}{f'; not on {join_names(worse)}' if worse else ''}.")
    return sentences


def _count_gains(gains: Mapping[str, float]) -> int:
    return sum(gain > 0 for gain in gains.values())


def nats(grid: Grid, paper: Paper, layout: Layout) -> list[str]:
    """Say how many nats DSPP gains on average over each of the layout's methods."""
    found = []
    for other in layout.nats_over:
        ours = tables.our_gains(grid, HEADLINE, other)
        theirs = tables.paper_gains(paper, layout, list(ours), HEADLINE, other)
        mean, mean_theirs = tables.mean_gain(ours, list(ours)), tables.mean_gain(theirs, list(ours))
        if mean is not None:
            beside = "" if mean_theirs is None else f", paper {fixed(mean_theirs, sign=True)} on the same"
            found.append(f"{fixed(mean, sign=True)} over {other} ({plural(len(ours), 'data set')}{beside})")
    return [f"Mean gain of {HEADLINE} in nats: {'; '.join(found)}."] if found else []


def check(excess: Mapping[str, float]) -> list[str]:
    """Say on how many data sets the headline method reaches the paper's figure."""
    if not excess:
        return []
    missed = [f"{d} by {tables.format_excess(gap)} nat" for d, gap in excess.items() if gap > 0]
    met = f"{HEADLINE} reaches the paper's figure (mean + 2 standard errors + {tables.SLACK} nat) on "
    return [
        f"{met}{len(excess) - len(missed)} of {plural(len(excess), 'data set')}"
        f"{f'; missed on {join_names(missed)}' if missed else ''}."
    ]

"""What the numbers say, in plain words: where DSPP is first, where it is not, and whether the paper's order holds."""

from collections.abc import Mapping, Sequence

from experiments.catalogue import EXPERIMENTS as CATALOGUE
from experiments.peers import PEERS
from experiments.protocol import canonical, read_protocol
from experiments.report import tables
from experiments.report.blocks import fixed, listed, plural
from experiments.report.layout import HEADLINE, NLL, PROTOCOLS, Layout, Metric
from experiments.report.paper import Paper
from experiments.report.ranks import ALPHA, Ranking
from experiments.report.records import Grid, Record
from experiments.units import Unit, fit_key, list_units

Losses = Mapping[str, Mapping[str, float]]  # data set: method: loss


def what_was_run(records: Sequence[Record], layout: Layout, name: str) -> list[str]:
    """Say which part of a protocol of ours was run, where it was not all, and what was run that is not part of it."""
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
    lines = [f"Of this protocol, {listed(names)} had {share}." for share, names in parts.items()]
    if others:
        lines.append(f"{plural(others, 'fit')} had settings or rows that are not the protocol's: flags changed them.")
    return lines


def other_files(records: Sequence[Record]) -> list[str]:
    """Say of which data sets results were made from different files, as happens when folders are merged."""
    files: dict[str, set[str]] = {}
    for record in records:
        if isinstance(found := record.details.get("data"), str):
            files.setdefault(record.dataset, set()).add(found)
    return [
        f"Results on {dataset} come from different data files (sha256 {listed(sorted(those))}), so they may be of "
        "different rows: compare them with care."
        for dataset, those in files.items()
        if len(those) > 1
    ]


def _share(found: Sequence[Unit], wanted: Sequence[Unit], what: str) -> str:
    """How many different settings, or splits, were run; empty where all were."""
    have, all_of_them = ({canonical({what: getattr(u, what)}) for u in units} for units in (found, wanted))
    if len(have) == len(all_of_them):
        return ""
    alone = " (so none was chosen)" if len(have) == 1 and what == "setting" else ""
    return f"{len(have)} of {len(all_of_them)} {what}s{alone}"


def first_place(grid: Grid, paper: Paper, layout: Layout) -> list[str]:
    """Say on how many data sets the headline is first, in ours and in the paper, and who beats it where it is not."""
    own = tables.own_methods(grid.methods)
    ours = _comparable({d: tables.our_losses(grid, d, own) for d in grid.datasets}, layout)
    if not ours:
        return [f"On {grid.metric.name} there is nothing to compare {layout.label} with under this protocol yet."]
    theirs = _comparable({d: tables.paper_losses(grid, paper, layout, d, own) for d in grid.datasets}, layout)
    beside = _in_the_paper(theirs, set(ours), layout)
    how = "first" if grid.metric.target is None else f"nearest to {grid.metric.target:g}"
    text = f"{layout.label} is {how} on {grid.metric.name} on {_firsts(ours, layout)} of "
    sentences = [f"{text}{plural(len(ours), 'data set')}{beside}{_beaten(ours, layout, grid.metric)}."]
    return sentences + _with_peers(grid, layout)


def _in_the_paper(theirs: Losses, run: set[str], layout: Layout) -> str:
    """How often the paper's headline is first: on the data sets that we ran, and on all."""
    same = {dataset: found for dataset, found in theirs.items() if dataset in run}
    total = f"{_firsts(theirs, layout)} of {len(theirs)}"
    if len(same) == len(theirs):
        return f" (paper: {total})" if theirs else ""
    return f" (paper: {_firsts(same, layout)} of {len(same)} on the same, {total} in all)"


def _with_peers(grid: Grid, layout: Layout) -> list[str]:
    """The same among all methods, where peers were run."""
    peers = grid.present(PEERS)
    if not peers:
        return []
    against = {d: tables.our_losses(grid, d, (*layout.headlines, *peers)) for d in grid.datasets}
    compared = _comparable(against, layout)
    if not compared:
        return []
    text = f"Against {listed(list(peers))} alone it is ahead on {_firsts(compared, layout)} of {len(compared)}"
    return [f"{text}{_beaten(compared, layout, grid.metric)}."]


def _comparable(losses: Losses, layout: Layout) -> Losses:
    """The data sets on which both a headline method and another one have a value."""
    heads = set(layout.headlines)
    return {d: found for d, found in losses.items() if heads & found.keys() and found.keys() - heads}


def _firsts(losses: Losses, layout: Layout) -> int:
    return sum(_margin(found, layout)[1] <= 0 for found in losses.values())


def _margin(found: Mapping[str, float], layout: Layout) -> tuple[str, float]:
    """The best other method, and by how much it is better than the best headline method (negative: it is worse)."""
    head = min(loss for method, loss in found.items() if method in layout.headlines)
    loss, other = min((loss, method) for method, loss in found.items() if method not in layout.headlines)
    return other, head - loss


def _beaten(losses: Losses, layout: Layout, metric: Metric) -> str:
    """Where another method is better, which, and by how much."""
    margins = {d: _margin(found, layout) for d, found in losses.items()}
    worse = [f"{d}, where {other} is better by {by(gap, metric)}" for d, (other, gap) in margins.items() if gap > 0]
    return f"; not on {'; nor on '.join(worse)}" if worse else ""


def by(gap: float, metric: Metric) -> str:
    """Return a difference with its unit; never a bare zero."""
    unit = " nat" if metric.key == "nll" else ""
    return f"less than 0.001{unit}" if gap < 0.0005 else f"{fixed(gap)}{unit}"


def same_order(grid: Grid, paper: Paper, layout: Layout) -> list[str]:
    """Say of how many pairs of methods the better one is the same as in the paper, and where it is not."""
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
    parts = [f"{d} ({same} of {of})" for d, (same, of) in agreement.items() if same < of]
    text = f"The paper's order on {grid.metric.name} holds for {agree} of {plural(total, 'pair')} of methods"
    text += f" ({plural(len(agreement), 'data set')})"
    text += f"; for all of them on {listed(whole)}" if whole else "; on no data set for all of them"
    return [f"{text}{f'; for some only on {listed(parts)}' if parts else ''}."]


def concordant(ours: Mapping[str, float], theirs: Mapping[str, float]) -> tuple[int, int]:
    """Return how many pairs of methods stand in the same order, of those that the paper does not tie."""
    shared = [method for method in theirs if method in ours]
    pairs = [(a, b) for i, a in enumerate(shared) for b in shared[i + 1 :] if theirs[a] != theirs[b]]
    same = sum((ours[a] - ours[b]) * (theirs[a] - theirs[b]) > 0 for a, b in pairs)
    return same, len(pairs)


def rank_order(ranking: Ranking, paper: Paper, layout: Layout, metric: Metric) -> list[str]:
    """Say the order of the average ranks, the paper's beside it, and what the tests say."""
    if len(ranking.methods) < 2:
        return []
    if not ranking.pairs:
        return ["No (data set, split) pair has a result of every method, so there are no average ranks yet."]
    pairs = (
        f"{plural(len(ranking.pairs), 'pair')} of data set and split on {plural(len(ranking.datasets()), 'data set')}"
    )
    sentences = [f"By average rank over the {pairs} that every method has: {', '.join(ranking.order())}."]
    theirs = {m: rank for m in ranking.methods if (rank := paper.rank(layout, metric, m)) is not None}
    if len(theirs) > 1:
        order = sorted(theirs, key=lambda method: theirs[method])
        same = order == [method for method in ranking.order() if method in theirs]
        sentences.append("The paper's order is the same." if same else f"The paper's order: {', '.join(order)}.")
    return sentences + tests(ranking)


def tests(ranking: Ranking) -> list[str]:
    """Say what Friedman's and Nemenyi's tests say, and what they cannot know."""
    if ranking.friedman is None or ranking.critical is None:
        return ["Too few methods or pairs for a Friedman test."]
    statistic, p = ranking.friedman
    shown = f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"
    differ = "the methods differ" if p < ALPHA else "chance alone could rank them so"
    sentences = [
        f"Friedman: χ² = {statistic:.2f}, {shown}: {differ}. "
        f"Nemenyi: average ranks further apart than {ranking.critical:.2f} differ at the 5 % level."
    ]
    if len(ranking.datasets()) < len(ranking.pairs):
        sentences.append("Splits of one data set are not independent: take these p-values as too small.")
    return sentences


def steps(grid: Grid, paper: Paper, layout: Layout) -> list[str]:
    """Say for each step of the layout (a third layer, a network in front) on how many data sets it lowers the NLL."""
    sentences = []
    for before, after, what in layout.steps:
        ours = tables.our_gains(grid, after, before)
        theirs = tables.paper_gains(paper, layout, grid.datasets, after, before)
        if ours:
            worse = [f"{d} ({by(-gain, NLL)} worse)" for d, gain in ours.items() if gain <= 0]
            beside = f" (paper: {_helped(theirs)} of {len(theirs)})" if theirs else ""
            text = f"{what} lowers the NLL on {_helped(ours)} of {plural(len(ours), 'data set')}{beside}"
            sentences.append(f"{text}{f'; not on {listed(worse)}' if worse else ''}.")
    return sentences


def _helped(gains: Mapping[str, float]) -> int:
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
    """Say on how many data sets the headline method comes up to the paper's row."""
    if not excess:
        return []
    missed = [f"{d} by {tables.missed(gap)} nat" for d, gap in excess.items() if gap > 0]
    met = f"{HEADLINE} comes up to the paper's row (mean + 2 standard errors + {tables.SLACK} nat) on "
    return [
        f"{met}{len(excess) - len(missed)} of {plural(len(excess), 'data set')}"
        f"{f'; missed on {listed(missed)}' if missed else ''}."
    ]

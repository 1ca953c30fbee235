"""The tables: our results and the paper's, average ranks with tests, nats gained, and whether the paper is matched."""

from collections.abc import Mapping, Sequence

from experiments.catalogue import ENSEMBLE, OTHERS
from experiments.peers import PEERS
from experiments.report.blocks import DASH, Entry, Table, fixed, with_error
from experiments.report.layout import HEADLINE, NLL, RAW_NATS, Layout
from experiments.report.paper import Paper
from experiments.report.ranks import Ranking, signed_rank
from experiments.report.records import Grid, Record, summary

SLACK = 0.05  # nats by which our result may exceed the paper's mean + 2 standard errors
PAPER_METRICS = ("NLL", "RMSE", "CRPS", "MRMSE")
CSV_HEADER = (
    "protocol",
    "metric",
    "dataset",
    "method",
    "mean",
    "standard_error",
    "splits",
    "paper_mean",
    "paper_standard_error",
    "best",
)


def own_methods(methods: Sequence[str]) -> tuple[str, ...]:
    """Return the paper's methods and our variants of them: all but the peers and the default ensemble."""
    return tuple(method for method in methods if method not in OTHERS)


def best_of(losses: Mapping[str, float]) -> set[str]:
    """Return the best names, ties included; empty if there is nothing to compare with."""
    return {name for name, loss in losses.items() if loss == min(losses.values())} if len(losses) > 1 else set()


def our_losses(grid: Grid, dataset: str, methods: Sequence[str]) -> dict[str, float]:
    """Return the loss of each method's mean on a data set, for the methods that were run."""
    cells = {method: grid.cell(dataset, method) for method in methods}
    return {method: grid.metric.loss(cell.mean) for method, cell in cells.items() if cell is not None}


def paper_losses(grid: Grid, paper: Paper, layout: Layout, dataset: str, methods: Sequence[str]) -> dict[str, float]:
    """Return the same for the paper's means."""
    cells = {method: paper.cell(layout, grid.metric, dataset, method) for method in methods}
    return {method: cell.mean for method, cell in cells.items() if cell is not None}


def our_best(grid: Grid, dataset: str) -> set[str]:
    """Return the best of the paper's methods, with a peer that beats them all, and the ensemble if it does."""
    own = own_methods(grid.methods)
    found = best_of(our_losses(grid, dataset, own))
    for others in (PEERS, (ENSEMBLE,)):
        found |= best_of(our_losses(grid, dataset, (*own, *others))) & set(others)
    return found


def main_table(grid: Grid, paper: Paper, layout: Layout, seen: Sequence[Record] = ()) -> Table:
    """Return a table of data sets by methods: our values, and below them the paper's.

    Args:
        grid: One metric under one protocol.
        paper: The paper's cells.
        layout: The experiment.
        seen: Records of the headline method, for the columns on test rows seen in training; if empty, no such columns.
    """
    beside = layout.paper_cells is not None and grid.metric.name in PAPER_METRICS
    rows = []
    for dataset in grid.datasets:
        ours, theirs = our_best(grid, dataset), best_of(paper_losses(grid, paper, layout, dataset, grid.methods))
        row = [Entry(dataset)]
        for method in grid.methods:
            cell, other = grid.cell(dataset, method), paper.cell(layout, grid.metric, dataset, method)
            text = with_error(cell.mean, cell.error) if cell else DASH
            second = with_error(other.mean, other.error) if other else DASH
            has_second = beside and method not in OTHERS
            row.append(Entry(text, method in ours, second if has_second else "", has_second and method in theirs))
        rows.append((*row, *(_seen_entries(seen, dataset) if seen else ())))
    header = ("data set", *grid.methods, *(("seen in training", f"{seen[0].method}, other rows") if seen else ()))
    apart = frozenset(i for i, name in enumerate(header) if name in OTHERS or i > len(grid.methods))
    title = f"{grid.metric.name} ({grid.metric.unit})"
    return Table(title, header, tuple(rows), f"{grid.source}. {_how_to_read(grid, beside, bool(seen))}", apart)


def raw_units_table(grid: Grid, dataset: str) -> Table:
    """Return the NLL of every method on a data set, of the target as in the file and of the raw one.

    Args:
        grid: The NLL under one protocol.
        dataset: A data set of `RAW_NATS`.
    """
    shift = RAW_NATS[dataset]
    cells = {method: cell for method in grid.methods if (cell := grid.cell(dataset, method))}
    rows = [(Entry(name), Entry(fixed(cell.mean)), Entry(f"{cell.mean + shift:.2f}")) for name, cell in cells.items()]
    caption = (
        f"{grid.source}. The target in the file is a logarithm; of the raw values the NLL is {shift} nats higher. For "
        "comparison with tables elsewhere, which have other splits: TabPFN 1.73, TabResFlow 1.95, deep ensembles 2.83."
    )
    return Table(f"{dataset} in raw units", ("method", NLL.unit, "nats, raw y"), tuple(rows), caption)


def _how_to_read(grid: Grid, beside: bool, seen: bool) -> str:
    goal = "Lower is better" if grid.metric.target is None else f"Nearer to {grid.metric.target:g} is better"
    parts = [f"{goal}; the best of the paper's methods is bold."]
    if grid.present(PEERS):
        parts.append("A peer in bold beats them all.")
    if grid.present((ENSEMBLE,)):
        parts.append(
            f"{ENSEMBLE} is `DSPPRegressor()`, bold if it beats the paper's methods; it was also trained on the "
            "validation rows, and takes no part in ranks and tests."
        )
    if beside:
        parts.append("Second line: the paper's mean ± standard error, the best in bold.")
    elif grid.metric.name not in PAPER_METRICS:
        parts.append("The paper does not give this metric.")
    if seen:
        parts.append(
            "Seen in training: the share of test rows whose inputs occur among the training rows; next to it, the NLL "
            "of the headline method on the other rows."
        )
    if grid.failed:
        parts.append(f"Left out: {grid.failed} selected run(s) without a finite value.")
    return " ".join(parts)


def _seen_entries(records: Sequence[Record], dataset: str) -> tuple[Entry, Entry]:
    mine = [record for record in records if record.dataset == dataset]
    share = summary(v for r in mine if (v := r.metric("seen_share")) is not None)
    new = summary(v for r in mine if (v := r.metric("nll_new")) is not None)
    return (
        Entry(f"{100 * share.mean:.1f} %" if share else DASH),
        Entry(with_error(new.mean, new.error) if new else DASH),
    )


def rank_table(grid: Grid, own: Ranking, everyone: Ranking | None, paper: Paper, layout: Layout) -> Table:
    """Return average ranks among the paper's methods, the paper's own ranks, ranks with peers, and signed-rank tests.

    Args:
        grid: One metric under one protocol.
        own: The ranking without peers.
        everyone: The ranking with peers; None if there are none.
        paper: The paper's ranks.
        layout: The experiment.
    """
    rows = []
    for method in everyone.methods if everyone else own.methods:
        entries = [Entry(method), Entry(fixed(own.rank(method), 2), own.order()[:1] == [method])]
        if layout.paper_ranks:
            entries.append(Entry(fixed(paper.rank(layout, grid.metric, method), 2)))
        if everyone:
            entries.append(Entry(fixed(everyone.rank(method), 2), everyone.order()[:1] == [method]))
        rows.append((*entries, *_test_entries(grid, method)))
    header = ["method", "average rank"]
    header += ["in the paper"] if layout.paper_ranks else []
    header += ["rank with peers"] if everyone else []
    header += [f"pairs with {HEADLINE}", f"{HEADLINE} wins–loses", "signed-rank test"]
    return Table(f"Average ranks on {grid.metric.name}", tuple(header), tuple(rows), f"{grid.source}.")


def _test_entries(grid: Grid, method: str) -> tuple[Entry, ...]:
    if method == HEADLINE or not grid.present((HEADLINE,)):
        return (Entry(DASH),) * 3
    test = signed_rank(grid, HEADLINE, method)
    return Entry(str(test.pairs)), Entry(f"{test.wins}–{test.losses}"), Entry(str(test))


Gains = dict[str, float]  # nats by data set


def our_gains(grid: Grid, first: str, other: str) -> Gains:
    """Return for each data set by how many nats the first method beats the other, on the splits that both have."""
    gains = {}
    for dataset in grid.datasets:
        mine, theirs = (grid.values.get((dataset, method), {}) for method in (first, other))
        cell = summary(theirs[split] - mine[split] for split in sorted(set(mine) & set(theirs)))
        if cell:
            gains[dataset] = cell.mean
    return gains


def paper_gains(paper: Paper, layout: Layout, datasets: Sequence[str], first: str, other: str) -> Gains:
    """Return the same for the paper's means."""
    pairs = {d: [paper.cell(layout, NLL, d, method) for method in (first, other)] for d in datasets}
    return {d: theirs.mean - mine.mean for d, (mine, theirs) in pairs.items() if mine and theirs}


def mean_gain(gains: Gains, over: Sequence[str]) -> float | None:
    """Return the average over the given data sets, skipping those without a value."""
    cell = summary(gains[d] for d in over if d in gains)
    return cell.mean if cell else None


def nats_table(grid: Grid, paper: Paper, layout: Layout) -> Table | None:
    """Return the nats that DSPP gains over each of the layout's methods, ours and the paper's; None without any."""
    others = [m for m in layout.nats_over if our_gains(grid, HEADLINE, m)]
    if not others:
        return None
    ours = {m: our_gains(grid, HEADLINE, m) for m in others}
    theirs = {m: paper_gains(paper, layout, grid.datasets, HEADLINE, m) for m in others}
    shown = [d for d in grid.datasets if any(d in ours[m] or d in theirs[m] for m in others)]
    rows = [_nats_row(d, [(ours[m].get(d), theirs[m].get(d)) for m in others], layout) for d in shown]
    run = [(mean_gain(ours[m], shown), mean_gain(theirs[m], list(ours[m]))) for m in others]
    rows.append(_nats_row("average over data sets run", run, layout))
    if any(set(theirs[m]) - set(ours[m]) for m in others):
        whole = [(None, mean_gain(theirs[m], shown)) for m in others]
        rows.append(_nats_row("average over all of the paper's", whole, layout))
    beside = layout.paper_cells is not None
    header = ["data set"]
    for method in others:
        header += [f"over {method}", "paper"] if beside else [f"over {method}"]
    how = "Positive: DSPP is better. Differences are taken split by split, then averaged."
    return Table(f"Nats gained by {HEADLINE}", tuple(header), tuple(rows), f"{grid.source}. {how}")


def _nats_row(name: str, gains: Sequence[tuple[float | None, float | None]], layout: Layout) -> tuple[Entry, ...]:
    row = [Entry(name)]
    for ours, theirs in gains:
        row.append(Entry(fixed(ours, sign=True)))
        row += [Entry(fixed(theirs, sign=True))] if layout.paper_cells is not None else []
    return tuple(row)


def excess_over_paper(grid: Grid, paper: Paper, layout: Layout) -> dict[str, float]:
    """Return for each data set by how much the headline method exceeds the allowed NLL; below 0, the target is met."""
    excess = {}
    for dataset in grid.datasets:
        cell, other = grid.cell(dataset, HEADLINE), paper.cell(layout, NLL, dataset, HEADLINE)
        if cell and other:
            excess[dataset] = cell.mean - (other.mean + 2 * other.error + SLACK)
    return excess


def check_table(grid: Grid, paper: Paper, layout: Layout) -> Table | None:
    """Return whether the headline method reaches the paper's figure on each data set; None if there are none."""
    rows = []
    for dataset, excess in excess_over_paper(grid, paper, layout).items():
        cell, other = grid.cell(dataset, HEADLINE), paper.cell(layout, NLL, dataset, HEADLINE)
        assert cell is not None  # otherwise it is not in `excess_over_paper`
        assert other is not None
        allowed = other.mean + 2 * other.error + SLACK
        verdict = Entry("met") if excess <= 0 else Entry(f"missed by {format_excess(excess)} nat", bold=True)
        ours = with_error(cell.mean, cell.error)
        texts = (dataset, str(cell.splits), ours, fixed(other.mean), fixed(other.error), fixed(allowed))
        rows.append((*(Entry(text) for text in texts), verdict))
    if not rows:
        return None
    header = ("data set", "splits", "ours", "paper's mean", "paper's s.e.", "allowed", "verdict")
    how = f"Allowed: the paper's mean + 2 standard errors + {SLACK} nat."
    return Table(f"Test NLL of {HEADLINE}: ours and the paper's", header, tuple(rows), f"{grid.source}. {how}")


def format_excess(excess: float) -> str:
    """Format a positive excess, never as zero."""
    return "less than 0.001" if excess < 0.0005 else fixed(excess)


def csv_rows(grid: Grid, paper: Paper, layout: Layout) -> list[tuple[str, ...]]:
    """Return the tidy rows of one metric: every cell that has our value or the paper's."""
    rows: list[tuple[str, ...]] = []
    for dataset in grid.datasets:
        best = our_best(grid, dataset)
        for method in grid.methods:
            cell, other = grid.cell(dataset, method), paper.cell(layout, grid.metric, dataset, method)
            if cell or other:
                ours = (plain(cell.mean), plain(cell.error), str(cell.splits)) if cell else ("", "", "0")
                theirs = (plain(other.mean), plain(other.error)) if other else ("", "")
                flag = str(int(method in best)) if cell else ""
                rows.append((grid.source.protocol, grid.metric.key, dataset, method, *ours, *theirs, flag))
    return rows


def plain(value: float | None) -> str:
    """Format a number for a file: six significant digits tell runs apart and agree on every machine."""
    return "" if value is None else f"{value:.6g}"

"""One section per experiment, with one part per protocol; no table mixes protocols."""

import dataclasses
from collections.abc import Sequence

from experiments.catalogue import ENSEMBLE
from experiments.peers import PEERS
from experiments.report import figures, tables, verdicts
from experiments.report.blocks import DASH, Block, Entry, Part, Section, Table, with_error
from experiments.report.complexity import complexity_section
from experiments.report.layout import (
    CRPS,
    EXPERIMENTS,
    HEADLINE,
    METRICS,
    NLL,
    PROTOCOLS,
    RAW_NATS,
    Layout,
    Metric,
    layout_of,
    order_names,
    protocols_in_order,
)
from experiments.report.paper import Paper
from experiments.report.ranks import Ranking, ranking
from experiments.report.records import Cell, Grid, Record, grid_of, latest
from experiments.report.weights import weights_section


def sections(records: Sequence[Record], paper: Paper) -> list[Section]:
    """Return a section for every experiment that has results, the paper's first."""
    found = []
    for name in order_names((layout.name for layout in EXPERIMENTS), (record.experiment for record in records)):
        section = _section(records, layout_of(name), paper)
        if section is not None:
            found.append(section)
    return found


def _section(records: Sequence[Record], layout: Layout, paper: Paper) -> Section | None:
    if layout.name == "weights":
        return weights_section(records, layout)
    if layout.name == "complexity":
        return complexity_section(records, layout)
    parts: list[Part] = []
    rows: list[tuple[str, ...]] = []
    for protocol in protocols_in_order(r.protocol for r in records if r.experiment == layout.name and r.selected):
        grids = comparisons(records, layout, protocol)
        if grids:
            parts.append(_part(records, grids, paper, layout))
            rows += [row for grid in grids for row in tables.csv_rows(grid, paper, layout)]
    remarks = layout.remarks
    if layout.paper_cells and not paper.cells:
        remarks = ("The paper's figures were not available, so dashes are shown instead.", *remarks)
    return Section(layout.name, layout.title, layout.question, remarks, tuple(parts), tuple(rows)) if parts else None


def comparisons(records: Sequence[Record], layout: Layout, protocol: str) -> list[Grid]:
    """Return one grid for each metric that the selected runs of this experiment and protocol have."""
    mine = latest(records, layout.name, protocol)
    grids = [grid_of(mine, layout, protocol, _metric(metric, layout)) for metric in METRICS]
    return [grid for grid in grids if grid is not None]


def _metric(metric: Metric, layout: Layout) -> Metric:
    per_output = metric.key.startswith("nll") and layout.name == "multivariate"
    return dataclasses.replace(metric, unit=metric.unit.replace("nats", "nats per output")) if per_output else metric


def _part(records: Sequence[Record], grids: Sequence[Grid], paper: Paper, layout: Layout) -> Part:
    protocol = grids[0].source.protocol
    rankings = [ranking(grid, tables.own_methods(grid.methods)) for grid in grids]
    blocks = []
    for grid, own in zip(grids, rankings, strict=True):
        seen = [r for r in latest(records, layout.name, protocol) if r.method == HEADLINE] if _is_nll(grid) else []
        blocks.append(_block(grid, own, paper, layout, [r for r in seen if "seen_share" in r.metrics]))
    diagram = figures.critical_differences(list(zip(grids, rankings, strict=True)), layout)
    if diagram is not None:
        blocks.insert(1, Block("Average ranks", pictures=(diagram,)))
    curves = figures.learning_curves(latest(records, layout.name, protocol), layout, protocol)
    if curves is not None:
        blocks.append(Block("NLL against rows seen", pictures=(curves,)))
    nll = next((grid for grid in grids if _is_nll(grid)), None)
    verdict: list[str] = []
    if nll is not None:
        verdict += verdicts.what_was_run(records, layout, protocol)
        verdict += verdicts.other_files(latest(records, layout.name, protocol))
        if protocol == "paper":
            blocks = _check(nll, paper, layout) + blocks
            verdict += verdicts.check(tables.excess_over_paper(nll, paper, layout))
        verdict += verdicts.first_place(nll, paper, layout)
        verdict += verdicts.same_order(nll, paper, layout)
        verdict += verdicts.steps(nll, paper, layout)
        verdict += verdicts.nats(nll, paper, layout)
    return Part(protocol, tuple(verdict), tuple(blocks))


def _is_nll(grid: Grid) -> bool:
    return grid.metric.key == NLL.key


def _check(grid: Grid, paper: Paper, layout: Layout) -> list[Block]:
    table = tables.check_table(grid, paper, layout)
    return [Block("Comparison with the paper", tables=(table,))] if table else []


def _block(grid: Grid, own: Ranking, paper: Paper, layout: Layout, seen: Sequence[Record]) -> Block:
    ranked = [method for method in grid.methods if method != ENSEMBLE]
    everyone = ranking(grid, ranked) if grid.present(PEERS) else None
    lines = [] if _is_nll(grid) else verdicts.first_place(grid, paper, layout)  # those of the NLL are at the top
    lines += [] if _is_nll(grid) else verdicts.same_order(grid, paper, layout)
    lines += verdicts.rank_order(own, paper, layout, grid.metric)
    found = [tables.main_table(grid, paper, layout, seen)]
    if len(everyone.methods if everyone else own.methods) > 1:
        found.append(tables.rank_table(grid, own, everyone, paper, layout))
    nats = tables.nats_table(grid, paper, layout) if _is_nll(grid) else None
    found += [nats] if nats else []
    if _is_nll(grid) and layout.name == "univariate":
        found += [tables.raw_units_table(grid, dataset) for dataset in grid.datasets if dataset in RAW_NATS]
    shown = figures.dot_plot(grid, paper, layout)
    return Block(grid.metric.name, tuple(lines), tuple(found), (shown,), folded=not _is_nll(grid))


def headline(records: Sequence[Record], paper: Paper) -> Table:
    """Return the README's table: NLL and CRPS of the headline method on each data set, the paper's and the best peer's.

    Each protocol has its own column; the peers are from `quick` if it has any.
    """
    layout = layout_of("univariate")
    grids = {
        (protocol, metric.key): grid_of(latest(records, layout.name, protocol), layout, protocol, metric)
        for metric in (NLL, CRPS)
        for protocol in PROTOCOLS
    }
    nlls = [grids[protocol, NLL.key] for protocol in PROTOCOLS]
    with_peers = [p for p in reversed(PROTOCOLS) if (g := grids[p, NLL.key]) and g.present(PEERS)]
    peers = with_peers[0] if with_peers else "quick"
    found = {dataset for grid in nlls if grid for dataset in grid.datasets}
    rows = []
    for dataset in order_names(layout.datasets, found):
        texts = [dataset]
        for metric in (NLL, CRPS):
            theirs = paper.cell(layout, metric, dataset, HEADLINE)
            ours = [grid.cell(dataset, HEADLINE) if (grid := grids[p, metric.key]) else None for p in PROTOCOLS]
            texts += [with_error(theirs.mean, theirs.error) if theirs else DASH, *map(_format_cell, ours)]
            texts.append(_best_peer(grids[peers, metric.key], dataset))
        rows.append(tuple(map(Entry, texts)))
    names = ("paper", "ours, `paper` protocol", "ours, `quick`", f"best peer, `{peers}`")
    header = ("data set", *names, *(f"{CRPS.name}: {name}" for name in names))
    sources = [str(grid.source) for grid in nlls if grid] or ["no runs yet"]
    how = "Mean ± standard error over splits; a single split has no ±; a dash marks a run not done."
    title = f"Test NLL of {HEADLINE} ({NLL.unit}; lower is better), and its CRPS"
    return Table(title, header, tuple(rows), f"{how} Univariate experiment: {'; '.join(sources)}.", frozenset({4, 8}))


def _format_cell(cell: Cell | None) -> str:
    return with_error(cell.mean, cell.error) if cell else DASH


def _best_peer(grid: Grid | None, dataset: str) -> str:
    losses = tables.our_losses(grid, dataset, PEERS) if grid else {}
    if not grid or not losses:
        return DASH
    name = min(losses, key=lambda peer: losses[peer])
    return f"{_format_cell(grid.cell(dataset, name))} ({name})"

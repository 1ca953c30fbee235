"""The learned quadrature weights of QR3: the size of the leading ones over all trained DSPPs."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dspp.plots import FONT_SIZE, INK, MAIN
from experiments.report.blocks import Block, Entry, Part, Section, Table, fixed, plural, with_error
from experiments.report.drawing import heading, panels, picture
from experiments.report.layout import Layout, order_names, protocols_in_order
from experiments.report.records import Record, source_of, summary
from experiments.report.tables import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEADING = ("largest", "second", "third")
BINS = 20
COLLAPSED = 0.99  # above this, the largest weight leaves a single Normal
Fit = tuple[Record, tuple[float, ...]]  # a run and its weights, the largest first


def weights_section(records: Sequence[Record], layout: Layout) -> Section | None:
    """Return the histograms, one part per protocol; None if no run stored its weights."""
    fits = [(record, weights) for record in records if (weights := _weights(record)) is not None]
    parts: list[Part] = []
    rows: list[tuple[str, ...]] = []
    for protocol in protocols_in_order(record.protocol for record, _ in fits):
        mine = distinct_fits([fit for fit in fits if fit[0].protocol == protocol])
        parts.append(_part(mine, protocol, layout))
        rows += _csv(mine, protocol, layout)
    return Section(layout.name, layout.title, layout.question, (), tuple(parts), tuple(rows)) if parts else None


def distinct_fits(fits: Sequence[Fit]) -> list[Fit]:
    """Return the runs of the experiment `weights` or, if it has none, of every experiment, each fit once.

    One fit can serve several experiments: the same data set, split, method, protocol and setting is the same fit.
    """
    own = [fit for fit in fits if fit[0].experiment == "weights"]
    return list({_same(record): (record, weights) for record, weights in own or fits}.values())


def _same(record: Record) -> tuple[str, int, str, str, str]:
    setting = json.dumps(record.setting, sort_keys=True)
    return record.dataset, record.split, record.method, record.protocol, setting


def _weights(record: Record) -> tuple[float, ...] | None:
    """Return the sorted weights of a DSPP with QR3; None for any other record."""
    found: Any = record.details.get("weights") if record.method.startswith("DSPP-QR3") else None
    if not isinstance(found, list) or not found:
        return None
    if not all(isinstance(w, int | float) and math.isfinite(w) and 0 <= w <= 1 + 1e-6 for w in found):
        return None
    return tuple(sorted(map(float, found), reverse=True))


def _leading(fits: Sequence[Fit]) -> Mapping[str, list[float]]:
    return {name: [w[i] for _, w in fits if len(w) > i] for i, name in enumerate(LEADING)}


def _part(fits: Sequence[Fit], protocol: str, layout: Layout) -> Part:
    records = [record for record, _ in fits]
    where = "results/weights.jsonl" if records[0].experiment == "weights" else "all experiments"
    caption = f"{source_of(protocol, records)}. {plural(len(fits), 'fit')} from {where}, selected or not, each once."
    shown = picture(f"{layout.name}-{protocol}", "Leading quadrature weights", caption, partial(_draw, _leading(fits)))
    by_beta = _beta_table(fits, caption, layout)
    found = (_table(fits, caption, layout), *((by_beta,) if by_beta else ()))
    return Part(protocol, tuple(_verdict(fits)), (Block("", tables=found, pictures=(shown,)),))


def _verdict(fits: Sequence[Fit]) -> list[str]:
    largest = _leading(fits)["largest"]
    means = [f"{name} {fixed(cell.mean, 2)}" for name, values in _leading(fits).items() if (cell := summary(values))]
    collapsed = sum(weight > COLLAPSED for weight in largest)
    used = [sum(weight > 0.05 for weight in weights) for _, weights in fits]
    return [
        f"Mean leading weights over {plural(len(fits), 'trained DSPP')}: {', '.join(means)}. "
        f"{collapsed or 'None'} of them put more than {COLLAPSED} on one site (the paper reports no degenerate "
        f"weights); on average {sum(used) / len(used):.1f} sites have more than 0.05."
    ]


def _by_dataset(fits: Sequence[Fit], layout: Layout) -> dict[str, list[Fit]]:
    found = {record.dataset for record, _ in fits}
    names = [name for name in order_names(layout.datasets, found) if name in found]
    return {name: [fit for fit in fits if fit[0].dataset == name] for name in names}


def _table(fits: Sequence[Fit], caption: str, layout: Layout) -> Table:
    rows = []
    for name, mine in {**_by_dataset(fits, layout), "all": list(fits)}.items():
        cells = [summary(values) for values in _leading(mine).values()]
        texts = [with_error(cell.mean, cell.error) if cell else fixed(None) for cell in cells]
        rows.append(tuple(Entry(text) for text in (name, str(len(mine)), *texts)))
    header = ("data set", "fits", *(f"{name} weight" for name in LEADING))
    return Table("Mean leading weights", header, tuple(rows), f"{caption} Mean ± standard error over fits.")


def _beta_table(fits: Sequence[Fit], caption: str, layout: Layout) -> Table | None:
    """Return the NLL at each weight of the KL term, over splits that have all of them; None if there is only one."""
    betas = sorted({record.setting["beta"] for record, _ in fits if "beta" in record.setting})
    if len(betas) < 2:
        return None
    rows = []
    for name, mine in _by_dataset(fits, layout).items():
        found = {(record.split, record.setting.get("beta")): record.metric("nll") for record, _ in mine}
        splits = [s for s in sorted({s for s, _ in found}) if all(found.get((s, b)) is not None for b in betas)]
        if not splits:
            continue
        means = [sum(found[s, b] or 0.0 for s in splits) / len(splits) for b in betas]
        cells = [Entry(fixed(mean), bold=mean == min(means)) for mean in means]
        rows.append((Entry(name), Entry(str(len(splits))), *cells))
    header = ("data set", "splits", *(f"β = {beta:g}" for beta in betas))
    how = "Means over splits with all values of β; the lowest is bold."
    return Table("Test NLL by the weight of the KL term", header, tuple(rows), f"{caption} {how}") if rows else None


def _csv(fits: Sequence[Fit], protocol: str, layout: Layout) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for dataset, mine in _by_dataset(fits, layout).items():
        for method in sorted({record.method for record, _ in mine}):
            leading = _leading([fit for fit in mine if fit[0].method == method])
            for name, values in leading.items():
                if cell := summary(values):
                    ours = (plain(cell.mean), plain(cell.error), str(cell.splits))
                    rows.append((protocol, f"{name}_weight", dataset, method, *ours, "", "", ""))
    return rows


def _draw(leading: Mapping[str, Sequence[float]]) -> "Axes":
    from matplotlib.ticker import MaxNLocator

    figure, axes = panels(1, len(leading), 7.6, 2.6)
    for ax, (name, values) in zip(axes, leading.items(), strict=True):
        heading(ax, f"{name} weight")
        ax.hist(values, bins=BINS, range=(0.0, 1.0), color=MAIN, rwidth=0.88)
        ax.set_xlim(0, 1)
        ax.set_xticks([0, 0.25, 0.5, 0.75, 1.0], ["0", "", "0.5", "", "1"])
        ax.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    top = max(ax.get_ylim()[1] for ax in axes)
    for ax in axes:
        ax.set_ylim(0, top)
    axes[0].set_ylabel("number of fits", fontsize=FONT_SIZE, color=INK)
    figure.supxlabel("quadrature weight ω", fontsize=FONT_SIZE, color=INK)
    return axes[0]

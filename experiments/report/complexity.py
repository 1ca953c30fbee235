"""How time and memory of a training step scale with N, M, S and W, compared with the paper's formulas."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from dspp.plots import CONTRAST, FONT_SIZE, INK, MAIN
from experiments.report.blocks import DASH, Block, Entry, Part, Section, Table, fixed, join_names, plural
from experiments.report.drawing import heading, panels, picture
from experiments.report.layout import HEADLINE, Layout, order_names, protocols_in_order
from experiments.report.records import Record, source_of, summary
from experiments.report.tables import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SYMBOLS = {"N": "batch_size", "M": "inducing", "S": "sites", "W": "width"}
NAMES = {"N": "batch N (rows)", "M": "inducing points M", "S": "sites S", "W": "width W"}
MEASURES = {"step_ms": "time per step (ms)", "peak_mb": "peak memory (MB)"}
LOOKS = ((MAIN, "o", MAIN), (CONTRAST, "s", "none"))  # colour, marker, its fill: both stay visible where they overlap
MIN_SPAN = 5.0  # least ratio of top to bottom of a vertical axis
Size = tuple[float, ...]  # N, M, S, W

# From the paper's appendix on complexity; its B is our N.
FORMULAS: dict[str, tuple[str, Callable[[float, float, float, float], float]]] = {
    "step_ms": ("O(W M³ + (S + B) W M²)", lambda n, m, s, w: w * m**3 + (s + n) * w * m**2),
    "peak_mb": ("O(W M² + (S + W) M B)", lambda n, m, s, w: w * m**2 + (s + w) * m * n),
}


@dataclass(frozen=True)
class Sweep:
    """One measure of one method while one size grows and the others are fixed."""

    method: str
    symbol: str
    measure: str
    sizes: tuple[Size, ...]
    values: tuple[float, ...]

    def along(self) -> list[float]:
        """Return the values of the size that grows."""
        return [size[list(SYMBOLS).index(self.symbol)] for size in self.sizes]

    def exponent(self) -> float | None:
        """Return the slope of the least-squares line in log-log coordinates."""
        return _slope(self.along(), self.values)

    def paper_exponent(self) -> float | None:
        """Return the slope of the paper's formula, with all constants 1, over the same sizes."""
        formula = FORMULAS[self.measure][1]
        return _slope(self.along(), [formula(*size) for size in self.sizes])


def _slope(x: Sequence[float], y: Sequence[float]) -> float | None:
    if len(x) < 2:
        return None
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def complexity_section(records: Sequence[Record], layout: Layout) -> Section | None:
    """Return how time and memory scale, one part per protocol; None if nothing was measured."""
    runs = [r for r in records if r.experiment == layout.name and r.selected and _size(r) is not None]
    parts: list[Part] = []
    rows: list[tuple[str, ...]] = []
    for protocol in protocols_in_order(record.protocol for record in runs):
        own = [record for record in runs if record.protocol == protocol]
        mine = list({(r.dataset, r.method, r.split, json.dumps(r.setting, sort_keys=True)): r for r in own}.values())
        parts.append(_part(mine, protocol, layout))
        rows += _csv(mine, protocol)
    return Section(layout.name, layout.title, layout.question, (), tuple(parts), tuple(rows)) if parts else None


def _size(record: Record) -> Size | None:
    found: list[Any] = [record.setting.get(key) for key in SYMBOLS.values()]
    return tuple(map(float, found)) if all(isinstance(v, int | float) and v > 0 for v in found) else None


def _mean_by_size(records: Sequence[Record], method: str, measure: str) -> dict[Size, float]:
    """Return the mean value for each size."""
    found: dict[Size, list[float]] = {}
    for record in records:
        value, size = record.metric(measure), _size(record)
        if record.method == method and size is not None and value is not None and value > 0:
            found.setdefault(size, []).append(value)
    return {size: math.fsum(values) / len(values) for size, values in sorted(found.items())}


def sweep(records: Sequence[Record], method: str, symbol: str, measure: str) -> Sweep:
    """Return the longest series of measurements in which only one size changes."""
    place = list(SYMBOLS).index(symbol)
    groups: dict[Size, dict[Size, float]] = {}
    for size, value in _mean_by_size(records, method, measure).items():
        groups.setdefault(size[:place] + size[place + 1 :], {})[size] = value
    longest = max(groups.values(), key=len, default={})
    return Sweep(method, symbol, measure, tuple(longest), tuple(longest.values()))


def _part(records: Sequence[Record], protocol: str, layout: Layout) -> Part:
    found = {record.method for record in records}
    methods = [method for method in order_names(layout.methods, found) if method in found]
    sweeps = [sweep(records, m, symbol, measure) for measure in MEASURES for symbol in SYMBOLS for m in methods]
    source = f"{source_of(protocol, records)}."
    formulas = "; ".join(f"{MEASURES[key]}: {formula}" for key, (formula, _) in FORMULAS.items())
    caption = f"{source} Lines: power-law fits. The paper's formulas, where B is our N: {formulas}."
    shown = picture(f"{layout.name}-{protocol}", "Scaling of time and memory", caption, partial(_draw, sweeps, methods))
    growth = Block("", tables=(_exponents(sweeps, caption),), pictures=(shown,))
    raw = Block("All measurements", tables=(_raw(records, methods, source),), folded=True)
    return Part(protocol, tuple(_verdict(records, sweeps, methods)), (growth, raw))


def _verdict(records: Sequence[Record], sweeps: Sequence[Sweep], methods: Sequence[str]) -> list[str]:
    sentences = []
    for method in methods:
        mine = [s for s in sweeps if s.method == method and s.measure == "step_ms"]
        powers = [
            f"{s.symbol}^{fixed(s.exponent(), 2)} ({fixed(s.paper_exponent(), 2)})" for s in mine if len(s.sizes) > 1
        ]
        if powers:
            text = f"The time per step of {method} grows like {join_names(powers)}"
            sentences.append(f"{text}; in brackets, the exponents of the paper's formula over the same sizes.")
    base = _mean_by_size(records, HEADLINE, "step_ms")
    for other in (method for method in methods if method != HEADLINE):
        theirs = _mean_by_size(records, other, "step_ms")
        ratios = [base[size] / theirs[size] for size in base if size in theirs]
        if ratios:
            at = f"at equal sizes (median of {len(ratios)}; the paper states the same complexity)"
            sentences.append(f"A step of {HEADLINE} takes {median(ratios):.2f} times as long as one of {other} {at}.")
    return sentences


def _exponents(sweeps: Sequence[Sweep], caption: str) -> Table:
    rows = []
    for s in sweeps:
        along = s.along()
        between = f"{min(along):g} to {max(along):g}" if along else DASH
        texts = [MEASURES[s.measure], s.symbol, s.method, between, str(len(along))]
        rows.append(tuple(map(Entry, (*texts, fixed(s.exponent(), 2), fixed(s.paper_exponent(), 2)))))
    header = ("measure", "size", "method", "range", "points", "exponent", "paper's formula")
    note = "Paper's formula: its exponent over the same sizes, with all constants 1."
    return Table("Scaling exponents", header, tuple(rows), f"{caption} {note}")


def _raw(records: Sequence[Record], methods: Sequence[str], source: str) -> Table:
    rows = []
    for method in methods:
        time, memory = (_mean_by_size(records, method, measure) for measure in MEASURES)
        for size in sorted({*time, *memory}):
            numbers = (fixed(time.get(size), 1), fixed(memory.get(size), 1))
            rows.append(tuple(Entry(text) for text in (method, *(f"{v:g}" for v in size), *numbers)))
    header = ("method", *SYMBOLS, *MEASURES.values())
    return Table(plural(len(rows), "measurement"), header, tuple(rows), source)


def _csv(records: Sequence[Record], protocol: str) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for measure in MEASURES:
        for method in sorted({record.method for record in records}):
            for size in _mean_by_size(records, method, measure):
                where = "simulated " + " ".join(f"{s}={v:g}" for s, v in zip(SYMBOLS, size, strict=True))
                runs = [r for r in records if r.method == method and _size(r) == size]
                cell = summary(v for r in runs if (v := r.metric(measure)) is not None)
                assert cell is not None  # `_mean_by_size` has it
                ours = (plain(cell.mean), plain(cell.error), str(cell.splits))
                rows.append((protocol, measure, where, method, *ours, "", "", ""))
    return rows


def _draw(sweeps: Sequence[Sweep], methods: Sequence[str]) -> "Axes":
    figure, axes = panels(len(MEASURES), len(SYMBOLS), 10.0, 5.6)
    places = [(measure, symbol) for measure in MEASURES for symbol in SYMBOLS]
    for ax, (measure, symbol) in zip(axes, places, strict=True):
        mine = [s for s in sweeps if (s.measure, s.symbol) == (measure, symbol)]
        heading(ax, _powers(mine))
        for s in mine:
            _draw_sweep(ax, s, methods.index(s.method))
        _log_axes(ax, [x for s in mine for x in s.along()])
        if measure == list(MEASURES)[-1]:
            ax.set_xlabel(NAMES[symbol], fontsize=FONT_SIZE, color=INK)
        if symbol == "N":
            ax.set_ylabel(MEASURES[measure], fontsize=FONT_SIZE, color=INK)
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper left", ncols=4, frameon=False, fontsize=FONT_SIZE,
                      labelcolor=INK)  # fmt: skip
    return axes[0]


def _powers(sweeps: Sequence[Sweep]) -> str:
    """Return the exponents in the order of the legend, then the paper's."""
    fitted = [fixed(s.exponent(), 2) for s in sweeps if s.exponent() is not None]
    stated = next((s.paper_exponent() for s in sweeps if s.paper_exponent() is not None), None)
    return f"exponent {', '.join(fitted)}\npaper's formula {fixed(stated, 2)}" if fitted else "not measured"


def _draw_sweep(ax: "Axes", s: Sweep, place: int) -> None:
    colour, mark, inside = LOOKS[place % len(LOOKS)]
    x, y = np.array(s.along()), np.array(s.values)
    ax.plot(x, y, color=colour, marker=mark, markerfacecolor=inside, markersize=5, linestyle="none", label=s.method)
    if len(x) > 1:
        slope, start = np.polyfit(np.log(x), np.log(y), 1)
        ax.plot(x, np.exp(start + slope * np.log(x)), color=colour, linewidth=1.2)


def _log_axes(ax: "Axes", x: Sequence[float]) -> None:
    """Make both axes logarithmic, with ticks at the measurements and plain numbers."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if not x:
        return
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks(sorted(set(x)), [f"{v:g}" for v in sorted(set(x))], rotation=0)
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_formatter(NullFormatter())
    ax.minorticks_off()
    low, high = ax.get_ylim()
    if high < MIN_SPAN * low:  # otherwise noise looks like growth
        middle = math.sqrt(low * high)
        ax.set_ylim(middle / math.sqrt(MIN_SPAN), middle * math.sqrt(MIN_SPAN))

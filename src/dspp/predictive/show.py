"""What a notebook shows of predictive distributions: the first rows, each with its moments, quantiles and density."""

import math
from typing import Any

import torch

from dspp.notebook import ACCENT, Html, element, page, table
from dspp.numbers import number

MAX_ROWS, MAX_OUTPUTS = 5, 3
SHOWN = (0.05, 0.5, 0.95)  # quantiles
ENDS = (0.005, 0.995)  # the quantiles between which densities are drawn
WIDTH, HEIGHT = 160, 22  # of a density, in pixels


@torch.no_grad()
def describe(distribution: Any) -> Html:
    """Return a table of the first rows of each output."""
    num = len(distribution)
    rest = f" The first {MAX_ROWS} rows are shown." if num > MAX_ROWS else ""
    several = distribution.num_outputs > 1
    more = f" The first {MAX_OUTPUTS} outputs are shown." if distribution.num_outputs > MAX_OUTPUTS else ""
    outputs = f" of {distribution.num_outputs} outputs each" if several else ""
    text = f"of {num:,} row{'' if num == 1 else 's'}{outputs}.{rest}{more} The 90 % interval is shaded."
    first = distribution.rows(list(range(min(num, MAX_ROWS)))).to(torch.float64) if num else None
    shown = [] if first is None else first.outputs()[:MAX_OUTPUTS]
    tables = (_rows(one, f"Output {t}" if several else "") for t, one in enumerate(shown))
    return page(type(distribution).__name__, text, *tables)


def _rows(one: Any, title: str) -> Html:
    quantiles = one.quantile(torch.tensor([*SHOWN, *ENDS], dtype=torch.float64)).cpu()
    low, high = float(quantiles[-2].min()), float(quantiles[-1].max())
    is_drawn = math.isfinite(high - low) and high > low
    header = ["row", "mean", "std", *(f"{100 * p:g} %" for p in SHOWN)]
    rows: list[list[str]] = []
    for i, (mean, std) in enumerate(zip(one.mean.tolist(), one.std.tolist(), strict=True)):
        rows.append([str(i), *map(number, (mean, std, *quantiles[: len(SHOWN), i].tolist()))])
        if is_drawn:
            rows[-1].append(_density(one, i, (low, high), (float(quantiles[0, i]), float(quantiles[2, i]))))
    return table(rows, [*header, f"density, {number(low)} to {number(high)}"] if is_drawn else header, title)


def _density(one: Any, row: int, ends: tuple[float, float], shaded: tuple[float, float]) -> Html:
    """Return a small picture of a density; it is drawn at evenly spaced points, and more where the probability is."""
    levels = torch.linspace(0.002, 0.998, 40, dtype=torch.float64)
    places = [torch.linspace(*ends, 120, dtype=torch.float64), one.rows([row]).quantile(levels).flatten().cpu()]
    x = torch.cat([*places, torch.tensor(shaded, dtype=torch.float64)]).unique()
    x = x[(x >= ends[0]) & (x <= ends[1])]
    density = one.rows([row] * len(x)).pdf(x.to(one.mean)).cpu()
    density = torch.where(density.isfinite(), density, 0.0)
    if density.max() <= 0.0:
        return Html()
    across = WIDTH * (x - ends[0]) / (ends[1] - ends[0])
    points = [f"{a:.1f},{HEIGHT - (HEIGHT - 2) * b:.1f}" for a, b in zip(across, density / density.max(), strict=True)]
    inside = [k for k, value in enumerate(x.tolist()) if shaded[0] <= value <= shaded[1]]
    under = [f"{across[inside[k]]:.1f},{HEIGHT}" for k in (0, -1)] if inside else []
    area = [*under[:1], *(points[k] for k in inside), *under[1:]]
    return element(
        "svg",
        element("polygon", points=" ".join(area), fill=ACCENT, opacity=0.35),
        element("polyline", points=" ".join(points), fill="none", stroke=ACCENT, stroke_width=1.5),
        **{
            "width": WIDTH,
            "height": HEIGHT,
            "viewBox": f"0 0 {WIDTH} {HEIGHT}",
            "role": "img",
            "aria-label": "density",
        },
    )

"""What a notebook shows of predictive distributions: the first rows, each with its moments, quantiles and density."""

import math

import torch

from dspp.notebook import Html, curve, page, paragraph, table
from dspp.numbers import number
from dspp.predictive.base import Predictive, RealPredictive

MOST_ROWS, MOST_OUTPUTS = 5, 3
SHOWN = (0.05, 0.5, 0.95)  # quantiles
ENDS = (0.005, 0.995)  # the quantiles between which densities are drawn
POINTS, QUANTILES = 120, 40  # at which a density is drawn: evenly spaced, and more where the probability is


@torch.no_grad()
def describe(distribution: Predictive) -> Html:
    """Return a table of the first rows of each output."""
    num = len(distribution)
    rest = f" The first {MOST_ROWS} rows are shown." if num > MOST_ROWS else ""
    several = distribution.num_outputs > 1
    more = f" The first {MOST_OUTPUTS} outputs are shown." if distribution.num_outputs > MOST_OUTPUTS else ""
    outputs = f" of {distribution.num_outputs} outputs each" if several else ""
    text = f"of {num:,} row{'' if num == 1 else 's'}{outputs}.{rest}{more} The 90 % interval is shaded."
    head = paragraph(text, type(distribution).__name__)
    if not num:
        return page(head)
    shown = distribution.rows(list(range(min(num, MOST_ROWS)))).to(torch.float64).outputs()[:MOST_OUTPUTS]
    return page(head, *(_rows(one, f"Output {t}" if several else "") for t, one in enumerate(shown)))


def _rows(one: RealPredictive, title: str) -> Html:
    quantiles = one.quantile(torch.tensor([*SHOWN, *ENDS], dtype=torch.float64)).cpu()
    low, high = float(quantiles[-2].min()), float(quantiles[-1].max())
    drawn = math.isfinite(high - low) and high > low
    header = ["row", "mean", "std", *(f"{100 * p:g} %" for p in SHOWN)]
    rows: list[list[str]] = []
    for i, (mean, std) in enumerate(zip(one.mean.tolist(), one.std.tolist(), strict=True)):
        rows.append([str(i), *map(number, (mean, std, *quantiles[: len(SHOWN), i].tolist()))])
        if drawn:
            rows[-1].append(_density(one, i, (low, high), (float(quantiles[0, i]), float(quantiles[2, i]))))
    return table(rows, header, title, f"density, {number(low)} to {number(high)}" if drawn else "")


def _density(one: RealPredictive, row: int, ends: tuple[float, float], shaded: tuple[float, float]) -> Html:
    alone = one.rows([row])
    levels = torch.linspace(0.002, 0.998, QUANTILES, dtype=torch.float64)
    places = [torch.linspace(*ends, POINTS, dtype=torch.float64), alone.quantile(levels).flatten().cpu()]
    x = torch.cat([*places, torch.tensor(shaded, dtype=torch.float64)]).unique()
    x = x[(x >= ends[0]) & (x <= ends[1])]
    height = one.rows([row] * len(x)).pdf(x.to(one.mean)).cpu()
    height = torch.where(height.isfinite(), height, 0.0)
    return curve(x.tolist(), height.tolist(), shaded, ends) if height.max() > 0.0 else Html("")

"""Axes that a few extreme values do not ruin."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

FEWEST_ROWS = 50  # to tell what is extreme
HEAVY = 0.4  # the range from 1 to 99 %, as a share of the whole range, of targets with heavy tails
SKEWED = 1.0  # skewness of positive targets that are drawn on logarithmic axes

Ends = tuple[float, float]


@dataclass(frozen=True)
class Axes:
    """Whether axes are logarithmic, the ends of the horizontal and the vertical one, and a sentence that says so."""

    log: bool = False
    limits: tuple[Ends, Ends] | None = None
    note: str = ""


def choose_axes(mean: Float[np.ndarray, " N"], y: Float[np.ndarray, " N"]) -> Axes:
    """Choose the axes of predicted means and observed values.

    Values with heavy tails are those whose range from 1 to 99 % is a small share of their whole range. If they are
    nearly all positive and skewed, the axes are logarithmic, otherwise they span 98 % of the values.
    """
    both = np.concatenate([y, mean])
    if len(y) < FEWEST_ROWS:
        return Axes()
    low, high = np.quantile(both, [0.01, 0.99])
    if not 0.0 < high - low < HEAVY * np.ptp(both):
        return Axes()
    skewness = np.mean(((y - y.mean()) / max(y.std(), np.finfo(float).tiny)) ** 3)
    log = bool(low > 0.0 and skewness > SKEWED)
    limits = tuple(_log_ends(values) if log else _inner_ends(values) for values in (mean, y))
    said = (
        "The tail of the values is long, so both axes are logarithmic"
        if log
        else "A few values are extreme, so the axes span 98 % of all"
    )
    seen = [(values >= ends[0]) & (values <= ends[1]) for values, ends in zip((mean, y), limits, strict=True)]
    beyond = int((~(seen[0] & seen[1])).sum())
    rows = f"; {beyond:,} row{' is' if beyond == 1 else 's are'} outside of the figure" if beyond else ""
    return Axes(log, (limits[0], limits[1]), f" {said}{rows}.")


def _log_ends(values: Float[np.ndarray, " N"]) -> Ends:
    """Return ends around all values, except those that are not positive or far below nearly all."""
    start = max(values[values > 0.0].min(), 0.3 * np.quantile(values, 0.01))
    return float(start / 1.15), float(values.max() * 1.15)


def _inner_ends(values: Float[np.ndarray, " N"]) -> Ends:
    low, high = np.quantile(values, [0.01, 0.99])
    margin = 0.05 * (high - low) or 0.5
    return float(low - margin), float(high + margin)

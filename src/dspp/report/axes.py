"""Axes that a few extreme values do not ruin."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

FEWEST_ROWS = 50  # to tell what is extreme
HEAVY = 0.4  # the range from 1 to 99 %, as a share of the whole range, of targets with heavy tails
SKEWED = 1.0  # skewness of positive targets that are drawn on a logarithmic axis


@dataclass(frozen=True)
class Axis:
    """Whether an axis is logarithmic, its ends (None: those of the data), and a sentence that says so."""

    log: bool = False
    limits: tuple[float, float] | None = None
    note: str = ""


def choose_axis(y: Float[np.ndarray, " N"], mean: Float[np.ndarray, " N"]) -> Axis:
    """Choose the axis of observed values and predicted means.

    Values with heavy tails are those whose range from 1 to 99 % is a small share of their whole range. If they are
    nearly all positive and skewed, the axis is logarithmic, otherwise it is that of 98 % of the values.
    """
    both = np.concatenate([y, mean])
    if len(y) < FEWEST_ROWS:
        return Axis()
    low, high = np.quantile(both, [0.01, 0.99])
    if not 0.0 < high - low < HEAVY * np.ptp(both):
        return Axis()
    skewness = np.mean(((y - y.mean()) / max(y.std(), np.finfo(float).tiny)) ** 3)
    if low > 0.0 and skewness > SKEWED:
        start = max(both[both > 0.0].min(), 0.3 * low)
        limits = float(start / 1.15), float(both.max() * 1.15)
        said = "The tail of the values is long, so both axes are logarithmic"
    else:
        margin = 0.05 * (high - low)
        limits = float(low - margin), float(high + margin)
        said = "A few values are extreme, so the axes span 98 % of all"
    beyond = int(((y < limits[0]) | (y > limits[1]) | (mean < limits[0]) | (mean > limits[1])).sum())
    rows = f"; {beyond:,} row{' is' if beyond == 1 else 's are'} outside of the figure" if beyond else ""
    return Axis(low > 0.0 and skewness > SKEWED, limits, f" {said}{rows}.")

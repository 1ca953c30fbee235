"""The ranges of the numbers in a file: far wider than what training arrives at, so that only damage lies outside."""

import math
import sys

from dspp.encoding.scaling import LARGEST_SCALE
from dspp.encoding.warping import POWERS
from dspp.errors import InputError

FAR = 1e17  # standard deviations; a training row among N is at most √N from the mean
UP_TO_FAR = -FAR, FAR
FINITE = -sys.float_info.max, sys.float_info.max  # of all other numbers
POSITIVE = math.ulp(0.0), sys.float_info.max  # of inputs, which may be in any unit and have any outlier

RANGES: dict[str, tuple[float, float]] = {  # by the beginning of a name; the first that fits counts
    # tensors of members
    "layers.": UP_TO_FAR,
    "rule.": UP_TO_FAR,
    "likelihood.": (-1e10, 1e10),
    # shared tensors
    "scale_X.scale": POSITIVE,
    "scale_y.scale": (1.0 / LARGEST_SCALE, LARGEST_SCALE),
    "scale_y.mean": (-LARGEST_SCALE, LARGEST_SCALE),
    "warp.power": POWERS,
    "warp.unit": POSITIVE,
    "warp.scale": POSITIVE,
    "guard.var": (1e-6, FAR**2),
    "guard.": UP_TO_FAR,
    "trees.": UP_TO_FAR,
    # fields of the header
    "spread": (1e-3, 1e3),
    "guard": (1e-9, 0.5),
}


def check_range(name: str, low: float, high: float) -> None:
    """Raise `InputError` unless the numbers of this name, from `low` to `high`, are finite and in their range."""
    least, most = next((ends for start, ends in RANGES.items() if name.startswith(start)), FINITE)
    if not (least <= low and high <= most):  # False for NaN
        got = f"{low:.6g} to {high:.6g}" if math.isfinite(low) and math.isfinite(high) else "NaN or inf"
        raise InputError(f"{name:.100}: expected finite numbers from {least:.6g} to {most:.6g}, got {got}")

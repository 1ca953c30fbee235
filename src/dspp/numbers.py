"""Formatting of numbers and values for readers: in reports, notebooks, figures and the terminal."""

import math
import re
from collections.abc import Iterable

import numpy as np

SPACE = "\N{NO-BREAK SPACE}"  # keeps a number together at line breaks
_ZERO = re.compile(r"[0.]+(?![0-9.])")  # how a number begins that was rounded to zero
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 4) -> str:
    """Format a number with this many significant digits: 0.01235, −12.3, 12,346, 1.5 × 10⁻⁷."""
    value = float(value)
    if not math.isfinite(value):
        return "–" if math.isnan(value) else _sign("∞", value)
    mantissa, _, power = f"{abs(value):.{digits - 1}e}".partition("e")
    exponent = int(power)
    if exponent < -4 or exponent >= max(7, digits):
        return _sign(f"{_strip_zeros(mantissa)}{SPACE}×{SPACE}10{str(exponent).translate(_RAISED)}", value)
    decimals = max(0, digits - 1 - exponent)
    return _sign(_strip_zeros(f"{abs(value):,.{decimals}f}"), value)


def number_with_spread(value: float, spread: float) -> str:
    """Format a number with the decimals that show three digits of `spread`, its typical distance to others."""
    decimals = 2 - math.floor(math.log10(spread)) if spread > 0 else 0
    if not math.isfinite(value) or not 0 <= decimals <= 9 or abs(value) >= 1e12:
        return number(value)
    return _sign(f"{abs(value):,.{decimals}f}", value)


def count_epochs(count: int) -> str:
    """Return a number of epochs as text: 1 epoch, 40 epochs."""
    return f"{count} epoch{'' if count == 1 else 's'}"


def percent(share: float, decimals: int = 1) -> str:
    """Format a share as a percentage: 90.8 %."""
    return "–" if math.isnan(share) else _sign(f"{100 * abs(share):.{decimals}f}{SPACE}%", share)


def plain_percent(share: float, decimals: int = 0) -> str:
    """Format a share for the terminal, with an ordinary space and no zero after the point: 91 %, 90.8 %."""
    return f"{100 * share:.{decimals}f}".removesuffix(".0") + " %"


def cell(value: object, limit: int = 60, commas: bool = True) -> str:
    """Format a value of the user's table: fractions with 4 digits, all else as text of at most `limit` characters.

    Whole numbers have commas between thousands unless `commas` is False, as for years.
    """
    if isinstance(value, float | np.floating) and not float(value).is_integer():
        return number(float(value))  # NaN and infinite numbers, too
    if isinstance(value, float | int | np.floating | np.integer) and not isinstance(value, bool):
        return f"{int(value):{',' if commas else ''}d}".replace("-", "−")
    text = str(value)
    if value is None or text in ("", "NaT", "<NA>"):
        return "–"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def are_years(values: Iterable[object]) -> bool:
    """Return whether all values are whole numbers that look like years."""
    kinds = int | float | np.integer | np.floating
    return all(isinstance(v, kinds) and float(v).is_integer() and 1500 <= v < 2200 for v in values)


def tidy(text: str) -> str:
    """Return the text with numbers kept together with their percent signs at line breaks."""
    return text.replace(" %", f"{SPACE}%")


def _sign(text: str, value: float) -> str:
    """Return the text with a minus sign if the value is negative and was not rounded to zero."""
    return f"−{text}" if value < 0 and not _ZERO.match(text) else text


def _strip_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text

"""Formatting of numbers and values for readers."""

import math
from collections.abc import Sequence

import numpy as np

THIN = "\N{NARROW NO-BREAK SPACE}"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 4) -> str:
    """Format a number with this many significant digits: 0.01235, −12.3, 12,346, 1.5 × 10⁻⁷."""
    value = float(value)
    if not math.isfinite(value):
        return "–" if math.isnan(value) else _sign("∞", value)
    mantissa, _, power = f"{abs(value):.{digits - 1}e}".partition("e")
    exponent = int(power)
    if exponent < -4 or exponent >= max(7, digits):
        return _sign(f"{_strip_zeros(mantissa)}{THIN}×{THIN}10{str(exponent).translate(_RAISED)}", value)
    decimals = max(0, digits - 1 - exponent)
    return _sign(_strip_zeros(f"{abs(value):,.{decimals}f}"), value)


def number_with_spread(value: float, spread: float) -> str:
    """Format a number with the decimals that show three digits of `spread`, its typical distance to others."""
    decimals = 2 - math.floor(math.log10(spread)) if spread > 0 else 0
    if not 0 <= decimals <= 9 or abs(value) >= 1e12:
        return number(value)
    return _sign(f"{abs(value):,.{decimals}f}", value)


def percent(share: float, decimals: int = 1) -> str:
    """Format a share as a percentage: 90.8 %."""
    return "–" if math.isnan(share) else _sign(f"{100 * abs(share):.{decimals}f}{THIN}%", share)


def column(values: Sequence[object]) -> list[str]:
    """Format some values of a column of the user's table, all in the same way.

    Whole numbers are shown as they are, since they may be years or ids; if there are fractions among them, all numbers
    of the column are shown like any other number.
    """
    numbers = [float(value) for value in values if isinstance(value, float | np.floating)]
    fractions = any(not value.is_integer() for value in numbers)
    return [number(float(v)) if fractions and is_number(v) else cell(v) for v in values]  # type: ignore[arg-type]


def is_number(value: object) -> bool:
    """Return whether a value of the user's table is a number, NaN included."""
    return isinstance(value, int | float | np.number) and not isinstance(value, bool)


def cell(value: object, limit: int = 60) -> str:
    """Format a value of the user's table as text of at most `limit` characters; whole numbers have no fraction."""
    if isinstance(value, float | np.floating):
        return f"{value:.0f}" if float(value).is_integer() else number(float(value))
    text = str(value)
    if value is None or text in ("", "NaT", "<NA>"):
        return "–"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def tidy(text: str) -> str:
    """Return the text with numbers kept together with their percent signs at line breaks."""
    return text.replace(" %", f"{THIN}%")


def _sign(text: str, value: float) -> str:
    return f"−{text}" if value < 0 else text


def _strip_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text

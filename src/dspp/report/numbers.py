"""Numbers and values as people read them."""

import math

import numpy as np

THIN = "\N{NARROW NO-BREAK SPACE}"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 4) -> str:
    """Return a measured number with so many significant digits: 0.01235, −12.3, 12 346, 1.5 × 10⁻⁷."""
    value = float(value)
    if not math.isfinite(value):
        return "–" if math.isnan(value) else _signed("∞", value)
    mantissa, _, power = f"{abs(value):.{digits - 1}e}".partition("e")
    exponent = int(power)
    if exponent < -4 or exponent >= max(7, digits):
        return _signed(f"{_without_zeros(mantissa)}{THIN}×{THIN}10{str(exponent).translate(_RAISED)}", value)
    decimals = max(0, digits - 1 - exponent)
    return _signed(_without_zeros(f"{abs(value):,.{decimals}f}").replace(",", THIN), value)


def beside(value: float, spread: float) -> str:
    """Return a number with decimals enough to tell it from others at the distance `spread`: three digits of that."""
    decimals = 2 - math.floor(math.log10(spread)) if spread > 0 else 0
    if not 0 <= decimals <= 9 or abs(value) >= 1e12:
        return number(value)
    return _signed(f"{abs(value):,.{decimals}f}".replace(",", THIN), value)


def count(value: int) -> str:
    """Return a whole number with thin spaces between the thousands."""
    return f"{value:,}".replace(",", THIN)


def percent(share: float, decimals: int = 1) -> str:
    """Return a share as a percentage: 90.8 %."""
    return "–" if math.isnan(share) else _signed(f"{100 * abs(share):.{decimals}f}{THIN}%", share)


def cell(value: object, limit: int = 60) -> str:
    """Return a value of the user's table: measured numbers with 4 digits, all else as it is but for its length."""
    if isinstance(value, float | np.floating) and not float(value).is_integer():
        return number(float(value))
    text = f"{value:.0f}" if isinstance(value, float | np.floating) else str(value)
    if value is None or text in ("", "NaT", "<NA>"):
        return "–"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def tidy(text: str) -> str:
    """Return a sentence in which no number is cut off from its percent sign at the end of a line."""
    return text.replace(" %", f"{THIN}%")


def _signed(text: str, value: float) -> str:
    return f"−{text}" if value < 0 else text


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text

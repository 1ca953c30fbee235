"""Figures of predictions and models: each function draws into an Axes and returns it.

matplotlib is imported on first use, without pyplot: no window, no display, no change of global settings. The colours
are few and safe for colour-blind readers; the report replaces them by its light and dark themes.
"""

from dspp.plots.displays import CalibrationDisplay
from dspp.plots.models import (
    MAX_SITES,
    coverage_dots,
    effect,
    member_curves,
    ranked_bars,
    sites_and_weights,
    training_curves,
)
from dspp.plots.predictions import (
    central_coverage,
    crps_by_spread,
    density,
    fan,
    pit_histogram,
    predicted_observed,
    reliability,
)
from dspp.plots.style import CONTRAST, FAINT, FONT_SIZE, INK, MAIN, MUTED, PALETTE

__all__ = [
    "CONTRAST",
    "FAINT",
    "FONT_SIZE",
    "INK",
    "MAIN",
    "MAX_SITES",
    "MUTED",
    "PALETTE",
    "CalibrationDisplay",
    "central_coverage",
    "coverage_dots",
    "crps_by_spread",
    "density",
    "effect",
    "fan",
    "member_curves",
    "pit_histogram",
    "predicted_observed",
    "ranked_bars",
    "reliability",
    "sites_and_weights",
    "training_curves",
]

"""Outcomes: all that depends on what a target is, one file per kind.

An outcome is learned from the user's target columns, is stored in the model file, and answers every question that
depends on the kind of the target. A new kind is a class that registers itself in `OUTCOMES`, and usually a likelihood.
"""

from dspp.outcomes.base import OUTCOMES, Outcome, Panel, Wanted, find_outcome
from dspp.outcomes.positive import Positive
from dspp.outcomes.real import Real

__all__ = ["OUTCOMES", "Outcome", "Panel", "Positive", "Real", "Wanted", "find_outcome"]

"""Displays in the manner of scikit-learn: made by `from_estimator` or `from_predictions`, drawn again by `plot`."""

import io
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from dspp.errors import InputError
from dspp.pipelines import last_step
from dspp.plots.predictions import RELIABILITY_LEVELS, central_coverage, reliability
from dspp.plots.style import Vector, check_column
from dspp.table.checks import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import Collection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D


class CalibrationDisplay:
    """Whether intervals contain as many rows as they should: the counterpart of scikit-learn's `CalibrationDisplay`.

    It draws `plots.reliability`: a calibrated model follows the diagonal; above it, intervals are too wide, below it
    too narrow. To compare models, pass the `ax_` of one display to the next.

    Args:
        pit: F(y) of each row, between 0 and 1: `mixture.pit(y)`.
        estimator_name: The name in the legend; None for "observed".

    Attributes:
        pit: The argument.
        estimator_name: The argument.
        levels: The probabilities of the intervals.
        coverage: The share of rows inside, for each level.
        ax_: The Axes; this and the following exist after `plot`.
        figure_: The Figure.
        line_: The curve.
        band_: The band; None if it was not drawn.

    Example:
        >>> from dspp.plots import CalibrationDisplay
        >>> display = CalibrationDisplay([0.1, 0.3, 0.5, 0.8])
        >>> display.plot().line_.get_label()
        'observed'
    """

    ax_: "Axes"
    figure_: "Figure"
    line_: "Line2D"
    band_: "Collection | None"

    def __init__(self, pit: Array, *, estimator_name: str | None = None) -> None:
        self.pit: Vector = check_column(pit, "pit")
        self.estimator_name = estimator_name
        self.levels: Vector = RELIABILITY_LEVELS
        self.coverage: Vector = central_coverage(self.pit, self.levels)

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        y: Any,
        *,
        output: int = 0,
        name: str | None = None,
        ax: "Axes | None" = None,
        **line: Any,
    ) -> Self:
        """Draw the calibration of a fitted estimator on rows that it was not trained on.

        Args:
            estimator: A fitted estimator of `dspp`, a pipeline that ends in one, or a search such as `GridSearchCV`.
            X: The rows.
            y: Their observed targets.
            output: Which of several outputs.
            name: The name in the legend; None for that of the class.
            ax: Where to draw; None for a new Figure.
            **line: Keywords for `Axes.plot`.

        Raises:
            InputError: The estimator predicts no distributions, or X or y is not valid.
        """
        last, rows = last_step(estimator, X)
        name = type(last).__name__ if name is None else name
        return cls.from_predictions(y, last.predict_dist(rows), output=output, name=name, ax=ax, **line)

    @classmethod
    def from_predictions(
        cls,
        y: Any,
        mixture: Any,
        *,
        output: int = 0,
        name: str | None = None,
        ax: "Axes | None" = None,
        **line: Any,
    ) -> Self:
        """Draw the calibration of predictive distributions; other arguments as in `from_estimator`.

        Args:
            y: The observed targets, (N,), or (N, T), in which NaN means "not observed".
            mixture: The predictive distributions, such as `predict_dist(X)`.
            output: Which of several outputs.
            name: The name in the legend; None for "observed".
            ax: Where to draw; None for a new Figure.
            **line: Keywords for `Axes.plot`.

        Raises:
            InputError: There are no distributions or no such output, or y is not valid.
        """
        try:
            outputs = getattr(mixture, "torch", mixture).outputs()
        except AttributeError:
            raise InputError(
                f"mixture: expected predictive distributions, got {type(mixture).__name__}; pass predict_dist(X)"
            ) from None
        if not 0 <= output < len(outputs):
            raise InputError(f"output: expected a number from 0 to {len(outputs) - 1}, got {output}")
        one, observed = outputs[output], y
        if len(outputs) > 1:
            table = np.asarray(y, dtype=np.float64)
            if table.shape != (len(one), len(outputs)):
                raise InputError(f"y: expected shape {(len(one), len(outputs))}, got {table.shape}")
            seen = ~np.isnan(table[:, output])
            one, observed = one.rows(torch.from_numpy(seen)), table[seen, output]
        at = torch.from_numpy(check_column(observed, "y", len(one)))
        with torch.no_grad():
            pit = one.pit(at.to(one.mean)).cpu().double().numpy()
        return cls(pit, estimator_name=name).plot(ax, **line)

    def plot(
        self,
        ax: "Axes | None" = None,
        *,
        name: str | None = None,
        ref_line: bool = True,
        band: bool = True,
        **line: Any,
    ) -> Self:
        """Draw the display by `plots.reliability`, with its arguments; None: it is named `estimator_name`."""
        before = [] if ax is None else list(ax.collections)
        label = name or self.estimator_name or "observed"
        self.ax_ = ax = reliability(self.pit, ax=ax, name=label, ref_line=ref_line, band=band, **line)
        self.line_ = ax.lines[-1]
        drawn = [one for one in ax.collections if one not in before]
        self.band_ = drawn[0] if drawn else None
        figure = ax.get_figure(root=True)
        assert figure is not None
        self.figure_ = figure
        return self

    def _repr_html_(self) -> str | None:
        """Return the figure as SVG, for notebooks; None before `plot`."""
        if not hasattr(self, "figure_"):
            return None
        file = io.StringIO()
        self.figure_.savefig(file, format="svg")
        text = file.getvalue()
        return text[text.index("<svg") :]

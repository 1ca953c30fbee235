"""Displays in the manner of scikit-learn: made by `from_estimator` or `from_predictions`, drawn again by `plot`."""

import io
import itertools
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from scipy.stats import binom

from dspp.errors import InputError
from dspp.pipelines import last_step
from dspp.plots.predictions import central_coverage
from dspp.plots.style import CONTRAST, INK, MAIN, MUTED, Vector, check_column, house_axes, label_axes
from dspp.table.checks import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

_DIAGONAL, _CURVE = "dspp-diagonal", "dspp-coverage"  # ids of what a display has drawn, which the next one looks for
_COLOURS = (MAIN, CONTRAST, INK, MUTED)


class CalibrationDisplay:
    """Whether intervals contain as many rows as they should: the counterpart of scikit-learn's `CalibrationDisplay`.

    It draws the share of rows inside their central interval against the probability of the interval. A calibrated
    model follows the diagonal; above it, intervals are too wide, below it too narrow. The band contains 95 % of the
    shares at each level if the model is calibrated. To compare models, pass the `ax_` of one display to the next.

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
    band_: "PolyCollection | None"

    def __init__(self, pit: Array, *, estimator_name: str | None = None) -> None:
        self.pit: Vector = check_column(pit, "pit")
        self.estimator_name = estimator_name
        self.levels: Vector = np.linspace(0.0, 1.0, 101)
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
        """Draw the calibration of predictive distributions.

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
        one, observed = outputs[output], _column(y, output, len(outputs))
        if len(outputs) > 1:
            one, observed = one.rows(torch.from_numpy(~np.isnan(observed))), observed[~np.isnan(observed)]
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
        """Draw the display; the diagonal and the band are drawn once, however many displays share the Axes.

        Args:
            ax: Where to draw; None for a new Figure.
            name: The name in the legend; None for `estimator_name`.
            ref_line: Whether to draw the diagonal.
            band: Whether to draw the band.
            **line: Keywords for `Axes.plot`.
        """
        ax = house_axes(ax)
        from matplotlib.ticker import PercentFormatter

        drawn = [each.get_gid() for each in ax.lines]
        self.band_ = None
        if band and not any(each.get_gid() == _DIAGONAL for each in (*ax.lines, *ax.collections)):
            num = len(self.pit)
            lower, upper = (binom.ppf(tail, num, self.levels) / num for tail in (0.025, 0.975))
            how: dict[str, Any] = {"color": MUTED, "alpha": 0.28, "linewidth": 0, "gid": _DIAGONAL}
            self.band_ = ax.fill_between(self.levels, lower, upper, label="95 % band, if calibrated", **how)
        if ref_line and _DIAGONAL not in drawn:
            ax.plot([0.0, 1.0], [0.0, 1.0], color=INK, linewidth=1.0, linestyle=(0, (4, 2)), gid=_DIAGONAL)
        colour = next(itertools.islice(itertools.cycle(_COLOURS), drawn.count(_CURVE), None))
        label = name or self.estimator_name or "observed"
        style: dict[str, Any] = {"color": colour, "linewidth": 1.8, "label": label, "gid": _CURVE} | line
        (self.line_,) = ax.plot(self.levels, self.coverage, **style)
        ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
        for axis in (ax.xaxis, ax.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol="\N{NO-BREAK SPACE}%"))
        self.ax_ = label_axes(ax, "probability of the interval", "rows inside it")
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


def _column(y: Any, output: int, count: int) -> Vector:
    """Return the targets of one of `count` outputs."""
    if count == 1:
        return check_column(y, "y")
    table = np.asarray(y, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != count:
        raise InputError(f"y: expected shape (N, {count}), one column per output, got {table.shape}")
    return np.asarray(table[:, output])

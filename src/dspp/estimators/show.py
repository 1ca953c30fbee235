"""What a notebook shows of a fitted estimator: its scores and of which rows they are, its calibration, its settings."""

from typing import Any

from dspp.fitted import Fitted
from dspp.metrics import LEVELS, METRICS
from dspp.notebook import (
    Html,
    beside,
    bullets,
    coverage_bars,
    fold,
    page,
    paragraph,
    preformatted,
    table,
)
from dspp.numbers import number, percent
from dspp.table.messages import join_names

MOST_NAMES = 6


def describe(estimator: Any) -> Html:
    """Return the HTML of a fitted estimator."""
    fitted: Fitted = estimator.fitted_
    parts = [paragraph(_summary(estimator, fitted), type(estimator).__name__)]
    if fitted.metrics:
        parts.append(beside(_scores(fitted), *_calibration(fitted)))
    else:
        parts.append(paragraph("It has no scores, as no rows were held out; call evaluate(X, y) on new rows."))
    parts.append(fold("Settings", preformatted(repr(estimator))))
    if fitted.notes:
        count = len(fitted.notes)
        parts.append(fold(f"{count} note{'' if count == 1 else 's'}", bullets(map(str, fitted.notes)), is_open=True))
    return page(*parts)


def _summary(estimator: Any, fitted: Fitted) -> str:
    count, inputs = len(fitted.members), estimator.n_features_in_
    members = "a single model" if count == 1 else f"a mixture of {count} models"
    columns = f"{inputs} column{'' if inputs == 1 else 's'}"
    names = join_names(fitted.target_names, MOST_NAMES)
    return f"predicts {names} from {columns}: {members}, trained on {fitted.num_rows:,} rows."


def _scores(fitted: Fitted) -> Html:
    shown = {name: value for name, value in fitted.metrics.items() if name in METRICS and "fit" in METRICS[name].shown}
    rows = [
        [METRICS[name].title, percent(value) if METRICS[name].format == "percent" else number(value)]
        for name, value in shown.items()
    ]
    return table(rows, title=f"Scores on {fitted.scored}" if fitted.scored else "Scores")


def _calibration(fitted: Fitted) -> list[Html]:
    names = {level: f"coverage{100 * level:.0f}" for level in LEVELS}
    coverage = {level: fitted.metrics[name] for level, name in names.items() if name in fitted.metrics}
    title = "Share of these rows inside their interval; the mark is its probability"
    return [coverage_bars(coverage, title)] if coverage else []

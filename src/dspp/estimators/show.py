"""What a notebook shows of a fitted estimator: its scores and of which rows they are, its calibration, its settings."""

from typing import Any

from dspp.fitted import Fitted
from dspp.metrics import LEVELS, describe_scores
from dspp.notebook import ACCENT, MARK, Html, element, page, table, titled
from dspp.numbers import percent
from dspp.table.messages import join_names

MAX_NAMES = 6


def describe(estimator: Any) -> Html:
    """Return the HTML of a fitted estimator."""
    fitted: Fitted = estimator.fitted_
    count, inputs, notes = len(fitted.members), estimator.n_features_in_, fitted.notes
    members = "a single model" if count == 1 else f"a mixture of {count} models"
    columns = f"{inputs} column{'' if inputs == 1 else 's'}"
    names = join_names(fitted.target_names, MAX_NAMES)
    parts = [element("p", "It has no scores, as no rows were held out; call evaluate(X, y) on new rows.")]
    if fitted.metrics:
        parts = [element("div", _scores(fitted), *_calibration(fitted), class_="parts")]
    parts.append(element("details", element("summary", "Settings"), element("pre", repr(estimator))))
    if notes:
        title = element("summary", f"{len(notes)} note{'' if len(notes) == 1 else 's'}")
        parts.append(element("details", title, element("ul", *(element("li", str(note)) for note in notes)), open=""))
    text = f"predicts {names} from {columns}: {members}, trained on {fitted.num_rows:,} rows."
    return page(type(estimator).__name__, text, *parts)


def _scores(fitted: Fitted) -> Html:
    rows = [[title, value] for title, value, _ in describe_scores(fitted.metrics, "fit").values()]
    return element("div", table(rows, title=f"Scores on {fitted.scored}" if fitted.scored else "Scores"))


def _calibration(fitted: Fitted) -> list[Html]:
    """Return a picture of the share of rows inside their interval of each probability, which a mark shows."""
    names = {level: f"coverage{100 * level:.0f}" for level in LEVELS}
    coverage = {level: fitted.metrics[name] for level, name in names.items() if name in fitted.metrics}
    if not coverage:
        return []
    title = "Share of these rows inside their interval; the mark is its probability"
    left, length, parts = 48, 200, list[Html]()
    for k, (level, share) in enumerate(coverage.items()):
        y = 24 * k
        bar = {"x": left, "y": y + 2, "height": 12}
        parts += [
            element("text", f"{100 * level:g} %", x=left - 8, y=y + 12, text_anchor="end"),
            element("rect", **bar, width=length, fill="currentColor", opacity=0.1),
            element("rect", **bar, width=f"{length * share:.1f}", fill=ACCENT),
            element("path", d=f"M{left + length * level:.1f} {y - 1}v18", stroke=MARK, stroke_width=2),
            element("text", percent(share), x=left + length + 8, y=y + 12),
        ]
    width, height = left + length + 60, 24 * len(coverage)
    size = {"width": width, "height": height, "viewBox": f"0 0 {width} {height}"}
    return [element("div", titled(title, element("svg", *parts, **size, role="img", aria_label=title)))]

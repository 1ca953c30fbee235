"""The report of a fitted model on rows that it was not trained on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dspp import storage
from dspp.calibration import Conformal
from dspp.errors import InputError
from dspp.estimators.regressor import Regressor
from dspp.evaluate import Evaluation
from dspp.extras import require
from dspp.fitted import Fitted
from dspp.numbers import percent
from dspp.report.columns import importance_figure, permutation_importance
from dspp.report.members import describe_scored, ensemble_panels, settings_table, single_model_panels
from dspp.report.outputs import MAX_OUTPUTS, output_panels
from dspp.report.page import Page, Panel, Section, TextTable, write_page
from dspp.report.probe import Rows, table_names
from dspp.report.scores import score_cards

MAX_ROWS = 20_000  # in figures; scores use all rows
TOP_COLUMNS = 3  # of which effects are shown
MAX_INPUTS = 30  # columns beside surprises
SECTIONS = {  # in their order, each with its title and what it is about
    "scores": ("Scores", "How close the predictions are to the observed values."),
    "calibration": ("Calibration", "Whether the predicted probabilities match the observed frequencies."),
    "accuracy": ("Accuracy", "How large the errors are, and whether the model anticipates them."),
    "columns": (
        "Columns",
        "Which columns of the table matter, what they do, and whether intervals hold for all of their values.",
    ),
    "rows": ("Three typical rows", "Each prediction is a distribution, not a number."),
    "surprises": (
        "Most surprising rows",
        "The rows whose observed value has the lowest predicted density, worst first: errors in the data, or cases "
        "that the model has not learned.",
    ),
    "ensemble": ("Ensemble", "The models whose predictions are mixed, and how."),
    "inside": ("Inside the model", "How the model was trained, and what it learned."),
    "made": ("How the model was made", "Everything needed to fit the same model again."),
}


def write_model_report(
    estimator: Regressor,
    X: Any,
    y: Any,
    path: str | Path,
    *,
    title: str = "",
    rows: str = "the rows given",
    row_labels: Sequence[object] | None = None,
) -> None:
    """Write a self-contained HTML report of a fitted estimator on rows it was not trained on.

    Args:
        estimator: a fitted estimator.
        X: the rows.
        y: their observed targets.
        path: the file to write.
        title: its heading; by default made from the names of the model and its targets.
        rows: name of the rows, such as "test.csv".
        row_labels: name of each row, such as its number in a file; None for its position in X, from 0.

    Raises:
        InputError: X or y cannot be used, there is not one label per row, or the file's name does not end in .html.
        MissingExtraError: matplotlib or jinja2 is not installed.
        ModelFileError: the page cannot be written.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from dspp import PPGPRRegressor, write_model_report
        >>> X = np.random.default_rng(0).normal(size=(80, 2))
        >>> model = PPGPRRegressor(epochs=2, inducing=8).fit(X[:60], X[:60, 0])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_model_report(model, X[60:], X[60:, 0], Path(folder) / "report.html")
        ...     (Path(folder) / "report.html").stat().st_size > 50_000
        True
    """
    require("report", "a report")
    storage.check_page_name(Path(path))
    evaluation = estimator.evaluation(X, y)
    if row_labels is not None:
        if len(row_labels) != evaluation.num_rows:
            raise InputError(f"row_labels: expected {evaluation.num_rows}, one per row of X, got {len(row_labels)}")
        evaluation = replace(evaluation, table=replace(evaluation.table, label_of=row_labels.__getitem__))
    write_page(report(evaluation, rows, title), path)


def write_evaluation_report(evaluation: Evaluation, path: str | Path, rows: str) -> None:
    """Write the report of an evaluation; `rows` is the name of the rows."""
    require("report", "a report")
    write_page(report(evaluation, rows), path)


def report(evaluation: Evaluation, rows: str = "the rows given", title: str = "") -> Page:
    """Return the page about an evaluation; arguments as in `write_model_report`."""
    fitted = evaluation.fitted
    names, outputs = " and ".join(fitted.target_names), fitted.outcome.output_names
    kind = f"{fitted.members[0].spec.name.upper()} model"
    if len(fitted.members) > 1:
        kind = f"Mixture of {len(fitted.members)} models"
    what = outputs[0] if len(outputs) == 1 else f"{', '.join(outputs[:-1])} and {outputs[-1]}"
    what = what if len(outputs) <= MAX_OUTPUTS else f"{len(outputs):,} outputs"
    count = f"{evaluation.num_rows:,} row{'' if evaluation.num_rows == 1 else 's'}"
    subject = f"{count} {rows}" if rows.startswith("held out") else f"{count} of {rows}"
    if len(evaluation.parts) > 1:
        subject = f"{count} of {rows.removeprefix('held out of ')}, held out in turn"
    title_of_scores, intro = SECTIONS["scores"]
    sections = SECTIONS | {"scores": (title_of_scores, f"{intro} {describe_scored(evaluation)}".rstrip())}
    panels = _panels(evaluation)
    return Page(
        title or f"{kind} of {names}",
        [Section(name, *words, panels[name]) for name, words in sections.items() if panels[name]],
        subtitle=f"{subject}; trained on {fitted.num_rows:,} rows",
        lead=f"The model predicts the distribution of {what}. This page compares it with the observed values of "
        f"{count}.",
        verdict=evaluation.calibration.verdict(),
    )


def _panels(evaluation: Evaluation) -> dict[str, list[Panel]]:
    """Return the panels of each section."""
    fitted, outcome = evaluation.fitted, evaluation.fitted.outcome
    shown, notes = _select_rows(evaluation)
    importance, inputs = permutation_importance(evaluation), table_names(fitted, evaluation.table)
    if importance is not None and len(inputs) > MAX_INPUTS:
        inputs = [name for name in inputs if name in importance.increase]
    matter = [] if importance is None else importance.matter[:TOP_COLUMNS]
    panels = output_panels(evaluation, shown, matter, inputs[:MAX_INPUTS])
    own = [
        Panel(one.title, one.sentence, table=TextTable(one.header, one.rows))
        for one in outcome.panels(evaluation.comparison)
    ]
    panels["scores"] = [Panel(cards=score_cards(evaluation)), *panels["scores"], *own]
    if fitted.recalibration is not None:
        panels["calibration"].insert(0, Panel(text=_conformal(fitted.recalibration, fitted.target_names)))
    if importance is not None:
        first, columns = importance_figure(importance, evaluation), panels["columns"]
        together = [panel.title for panel in columns] == [""]
        panels["columns"] = (
            [Panel(figures=[first, *columns[0].figures])] if together else [Panel(figures=[first]), *columns]
        )
    panels["ensemble"], panels["inside"] = ensemble_panels(evaluation), single_model_panels(fitted)
    panels["made"] = _provenance(fitted, [*evaluation.notes, *map(str, fitted.notes), *notes])
    return panels


def _provenance(fitted: Fitted, notes: Sequence[str]) -> list[Panel]:
    if fitted.trees and fitted.outcome.tree_note:
        notes = [*notes, fitted.outcome.tree_note]
    panels = [Panel("Notes", points=notes)] if notes else []
    if fitted.encoder is not None:
        described = fitted.encoder.describe()
        header = list(dict.fromkeys(key for column in described for key in column))
        rows = [[column.get(key, "") for key in header] for column in described]
        panels.append(Panel("Columns", table=TextTable(header, rows)))
    panels.append(Panel("Settings", table=settings_table(fitted)))
    return [*panels, Panel("Versions", table=TextTable(("", "version"), list(fitted.versions.items())))]


def _select_rows(evaluation: Evaluation) -> tuple[Rows, list[str]]:
    """Return the rows to draw, for each output at most MAX_ROWS in which it was observed, evenly spaced, and notes."""
    observed, parts = evaluation.table.targets, []
    for column in observed.T:
        seen = np.flatnonzero(~np.isnan(column))
        if len(seen) > MAX_ROWS:
            seen = seen[np.linspace(0, len(seen) - 1, MAX_ROWS).astype(int)]
        parts.append(seen)
    shown, notes = np.unique(np.concatenate(parts)), []
    if any(len(part) == MAX_ROWS for part in parts) or len(observed) < evaluation.num_rows:
        some = f"{len(shown):,} of the rows, evenly spaced"
        notes.append(f"figures of single rows and of columns show {some}; scores and calibration use all rows")
    if np.isnan(observed).any():
        notes.append("figures of an output show the rows in which it was observed")
    return shown, notes


def _conformal(conformal: Conformal, names: Sequence[str]) -> str:
    """Return what recalibration does to the intervals, and what it guarantees."""
    counts = sorted(set(conformal.counts))
    rows = f"{counts[0]:,} rows" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,} rows"
    levels = (2.0 * conformal.threshold(0.9)).reshape(-1).tolist()
    finite = {name: percent(level) for name, level in zip(names, levels, strict=True) if level < 1.0}
    takes = " and ".join(text if len(names) == 1 else f"{text} ({name})" for name, text in finite.items())
    crossed = conformal.fold is not None
    span = f"{'about ' if crossed else ''}the central {takes} of the model's distribution"
    said = [f"to contain 90 % of new rows, they span {span}"] if finite else []
    why = conformal.why_infinite(0.9, names)
    said += [f"to contain 90 % of new rows, {'others' if finite else 'they'} are infinite: {why}"] if why else []
    which = ", each predicted by the members that did not see it" if crossed else " not used for training"
    sure = " At least 80 % is guaranteed for many rows, and close to 90 % is usual." if crossed else ""
    return (
        f"Intervals from predict_interval are recalibrated on {rows}{which}: {'; '.join(said)}.{sure} Figures show the "
        "model itself."
    )

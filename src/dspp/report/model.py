"""The report of a fitted model on rows that it was not trained on."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import torch
from jaxtyping import Float, Int

from dspp import storage
from dspp.calibration import Calibration, Conformal, CrossConformal
from dspp.errors import InputError
from dspp.estimators.regressor import Regressor
from dspp.evaluate import Evaluation
from dspp.extras import require
from dspp.fitted import Fitted
from dspp.members import Member
from dspp.metrics import METRICS
from dspp.report.baselines import missing_baselines, score_baselines
from dspp.report.columns import describe_columns
from dspp.report.data import MemberData, ReportData, TargetData
from dspp.report.ensemble import describe_ensemble, describe_scored
from dspp.report.page import write_report
from dspp.table.table import Table

MOST_ROWS = 20_000  # in figures; scores use all rows


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
    write_report(report_data(estimator, X, y, title=title, rows=rows, row_labels=row_labels), path)


def report_data(
    estimator: Regressor,
    X: Any,
    y: Any,
    *,
    title: str = "",
    rows: str = "the rows given",
    row_labels: Sequence[object] | None = None,
) -> ReportData:
    """Collect the content of the page; arguments as in `write_model_report`."""
    evaluation = estimator.evaluation(X, y)
    if row_labels is not None:
        if len(row_labels) != evaluation.num_rows:
            raise InputError(f"row_labels: expected {evaluation.num_rows}, one per row of X, got {len(row_labels)}")
        evaluation = replace(evaluation, table=replace(evaluation.table, label_of=row_labels.__getitem__))
    return evaluation_data(evaluation, title=title, rows=rows)


def write_evaluation_report(evaluation: Evaluation, path: str | Path, rows: str) -> None:
    """Write the report of an evaluation; `rows` is the name of the rows."""
    require("report", "a report")
    write_report(evaluation_data(evaluation, rows=rows), path)


def evaluation_data(evaluation: Evaluation, *, title: str = "", rows: str = "the rows given") -> ReportData:
    """Collect the content of the page about an evaluation."""
    fitted, observed = evaluation.fitted, evaluation.table.targets
    shown, note = _select_rows(observed, evaluation.num_rows)
    conformal, relevance = fitted.recalibration, _relevance(fitted)
    observed_values = evaluation.comparison.y.reshape(evaluation.num_rows, -1).cpu().numpy()
    targets = _targets(evaluation, shown)
    names, members = " and ".join(fitted.target_names), fitted.members
    kind = f"{members[0].spec.name.upper()} model" if len(members) == 1 else f"Mixture of {len(members)} models"
    return ReportData(
        title=title or f"{kind} of {names}",
        subtitle=f"{_subject(evaluation, rows)}; trained on {fitted.num_rows:,} rows",
        targets=targets,
        calibration=evaluation.calibration.verdict(),
        conformal=None if conformal is None else _conformal(conformal, fitted.target_names),
        scores={name: value for name, value in evaluation.scores.items() if _is_shown(name)},
        baselines=score_baselines(evaluation),
        discrete=any(few is not None for few in fitted.outcome.levels(observed_values)),
        panels=fitted.outcome.panels(evaluation.comparison),
        scored=describe_scored(evaluation),
        relevance=relevance,
        **describe_columns(evaluation, relevance, targets, shown),
        ensemble=describe_ensemble(evaluation),
        rows=_inputs(fitted, evaluation.table, shown),
        row_labels=[_label(evaluation.table.label(i)) for i in shown],
        encoding=[] if fitted.encoder is None else fitted.encoder.describe(),
        versions=fitted.versions,
        notes=[*evaluation.notes, *map(str, fitted.notes), *note, *missing_baselines(evaluation)],
        **(_only_member(members[0], fitted.num_rows) if len(members) == 1 else {"members": describe_members(fitted)}),
    )


def _subject(evaluation: Evaluation, rows: str) -> str:
    """Return which rows the report is about."""
    count = f"{evaluation.num_rows:,} row{'' if evaluation.num_rows == 1 else 's'}"
    if len(evaluation.parts) > 1:
        return f"{count} of {rows.removeprefix('held out of ')}, held out in turn"
    return f"{count} {rows}" if rows.startswith("held out") else f"{count} of {rows}"


def _label(label: object) -> str:
    return f"{label:,}" if isinstance(label, int | np.integer) else str(label)


def _is_shown(score: str) -> bool:
    return score in METRICS and "report" in METRICS[score].shown


def _select_rows(observed: Float[np.ndarray, "N T"], num_rows: int) -> tuple[np.ndarray, list[str]]:
    """Return the rows to draw, for each output at most MOST_ROWS in which it was observed, evenly spaced, and notes."""
    parts = []
    for column in observed.T:
        seen = np.flatnonzero(~np.isnan(column))
        if len(seen) > MOST_ROWS:
            seen = seen[np.linspace(0, len(seen) - 1, MOST_ROWS).astype(int)]
        parts.append(seen)
    shown, notes = np.unique(np.concatenate(parts)), []
    if any(len(part) == MOST_ROWS for part in parts) or len(observed) < num_rows:
        some = f"{len(shown):,} of the rows, evenly spaced"
        notes.append(f"figures of single rows and of columns show {some}; scores and calibration use all rows")
    if np.isnan(observed).any():
        notes.append("figures of an output show the rows in which it was observed")
    return shown, notes


def _targets(evaluation: Evaluation, shown: Int[np.ndarray, " n"]) -> list[TargetData]:
    """Return the data of each observed output: some rows of the evaluation, and the calibration on all."""
    fitted, comparison = evaluation.fitted, evaluation.comparison
    values = fitted.outcome.drawn_values(evaluation.table.targets[shown])
    if values is None:
        return []
    calibration = cast(Calibration, evaluation.calibration)  # of real outputs
    outputs = evaluation.distribution.rows(torch.from_numpy(shown)).outputs()
    at = shown if evaluation.index is None else evaluation.index[shown]
    found = []
    for whole, judged in zip(comparison.outputs, calibration.per_output or (calibration,), strict=True):
        column = values[:, whole.index]
        rows = np.flatnonzero(~np.isnan(column))
        if len(rows):
            place = whole.seen.numpy().cumsum()[at[rows]] - 1
            pit = whole.pit.double().numpy()
            name, one = fitted.outcome.output_names[whole.index], outputs[whole.index].rows(torch.from_numpy(rows))
            some = None if len(rows) == len(column) else rows
            found.append(TargetData(name, column[rows], one, some, pit[place], pit, judged))
    return found


def _conformal(conformal: Conformal | CrossConformal, names: Sequence[str]) -> str:
    """Return what recalibration does to the intervals, and what it guarantees."""
    counts = sorted(set(conformal.counts))
    rows = f"{counts[0]:,} rows" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,} rows"
    levels = (2.0 * conformal.threshold(0.9)).reshape(-1).tolist()
    finite = {name: f"{100 * level:.1f} %" for name, level in zip(names, levels, strict=True) if level < 1.0}
    takes = " and ".join(text if len(names) == 1 else f"{text} ({name})" for name, text in finite.items())
    crossed = isinstance(conformal, CrossConformal)
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


def _only_member(member: Member, num_rows: int) -> Mapping[str, Any]:
    story = {"history": member.history, "best_epoch": member.best_epoch, "settings": _settings(member, num_rows)}
    return {**story, **_sites(member)}


def describe_members(fitted: Fitted) -> list[MemberData]:
    """Return the history and settings of each member."""
    found = []
    for member, weight in zip(fitted.members, fitted.weights, strict=True):
        settings = _settings(member, fitted.num_rows)
        if len(fitted.members) > 1:
            for own in ("seed", "seconds"):  # in which all members differ
                del settings["Training"][own]
        found.append(MemberData(member.title, weight, member.seconds, member.history, settings))
    return found


def _sites(member: Member) -> Mapping[str, Any]:
    rule = member.model.rule
    if rule is None:
        return {}
    with torch.no_grad():
        sites = [rule.sites(layer).cpu().double().numpy() for layer in range(len(rule.widths))]
        return {"sites": sites, "weights": rule.log_weights().exp().cpu().double().numpy()}


def _relevance(fitted: Fitted) -> list[tuple[str, float]]:
    """Return 1/length scale of each input in the first layer, averaged over GPs and members; empty with a network."""
    models = [member.model for member in fitted.members]
    if any(model.features is not None for model in models):
        return []
    with torch.no_grad():
        each = [model.gp_layers[0].kernel.lengthscale.reciprocal().mean(0).cpu().double().numpy() for model in models]
    own = [values[: fitted.num_inputs] for values in each]  # without the prediction of trees
    relevance = np.average(own, axis=0, weights=fitted.weights)
    names = fitted.feature_names or tuple(f"x{d}" for d in range(len(relevance)))
    return list(zip(names, relevance.tolist(), strict=True))


def _settings(member: Member, num_rows: int) -> dict[str, dict[str, str]]:
    parts = member.settings | {"model": {"preset": member.spec.name} | member.settings["model"]}
    shown = {name.capitalize(): {key: _text(value) for key, value in part.items()} for name, part in parts.items()}
    shown["Training"] |= {"training rows": f"{num_rows:,}", "seconds": f"{member.seconds:.1f}"}
    return shown


def _text(setting: object) -> str:
    return "–" if setting in (None, ()) else str(setting)


def _inputs(fitted: Fitted, table: Table, shown: np.ndarray) -> dict[str, Sequence[object]]:
    part = table.take(shown)
    if part.arrow is not None:
        inputs = part.names if fitted.encoder is None else [column.name for column in fitted.encoder.columns]
        return {name: _Values(part.arrow.column(name)) for name in inputs if name in part.names}
    assert part.array is not None
    names = fitted.feature_names or tuple(f"x{d}" for d in range(part.array.shape[1]))
    return dict(zip(names, part.array.T, strict=True))


class _Values(Sequence[object]):
    """An Arrow column whose values are converted on access: of thousands of rows, ten are shown."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, index: Any) -> Any:
        return self._column[int(index)].as_py()

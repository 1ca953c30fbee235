"""Forecasts beyond the last training row, with and without the date as an input, compared with peers.

    python -m benchmarks.forecasts [--data ../shared/data] [--results results/forecasts.jsonl]

Fits what is missing in the results, one line per fit, and writes the table beside them as Markdown. The rows of the
last year or of the last months are the test rows, and chose nothing.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks import records
from benchmarks.tables.methods import METHODS, PEERS, Fit, one_thread
from benchmarks.tables.sets import Split, read_table, take
from dspp.encoding.scaling import Standardizer
from dspp.estimators import DSPPRegressor
from dspp.metrics import Comparison
from dspp.predictive import NormalMixture
from experiments.fitting import standardise_scores
from experiments.report.blocks import Table, text_table
from experiments.report.markdown import table_text
from experiments.results import Record, provenance

SCORES = ("nll", "crps", "rmse", "r2", "bias", "coverage90")


@dataclass(frozen=True)
class Forecast:
    """A table, its target, its time, and which of its rows are later than the others."""

    target: str
    time: str
    is_test: Callable[[pd.DataFrame], "pd.Series[bool]"]
    drop: tuple[str, ...] = ()


TABLES = {
    "flights": Forecast("arr_delay", "time_hour", lambda frame: frame["is_test"], ("is_test",)),
    "seattle_weather": Forecast("temp_max", "date", lambda frame: frame["date"] >= "2015-01-01"),
}


@dataclass(frozen=True)
class Rows(Split):
    """A split by time."""

    time: np.ndarray


def load(name: str, with_date: bool, folder: Path) -> Rows:
    """Return the rows of a table, with or without the column of times among the inputs."""
    forecast = TABLES[name]
    frame = read_table(name, folder).dropna(subset=forecast.target)
    later = forecast.is_test(frame).to_numpy(bool)
    y, time = frame[forecast.target].to_numpy(np.float64), frame[forecast.time].to_numpy("datetime64[us]")
    X = frame.drop(columns=[forecast.target, *forecast.drop, *([] if with_date else [forecast.time])])
    return Rows(**vars(take(X, y, np.flatnonzero(~later), np.flatnonzero(later))), time=time[~later])


def _fit_with_time(rows: Split, _: int) -> Fit:
    assert isinstance(rows, Rows)
    return Fit(DSPPRegressor().fit(rows.X, rows.y, time=rows.time).predict_dist, standardised=False)


def _fit_constant(rows: Split, _: int) -> Fit:
    def predict(frame: pd.DataFrame) -> NormalMixture:
        zeros = torch.zeros(1, len(frame), dtype=torch.float64)
        return NormalMixture(torch.zeros(1, dtype=torch.float64), zeros, zeros, torch.ones((), dtype=torch.float64))

    return Fit(predict)


FITS: dict[str, Callable[[Split, int], Fit]] = {
    "dspp, time=": _fit_with_time,
    "dspp": METHODS["dspp"],
    "LightGBM (mean + variance)": METHODS["lightgbm"],
    "CatBoost": METHODS["catboost"],
    "one Normal": _fit_constant,
}


def measure(name: str, with_date: int, method: str, folder: Path) -> Record:
    """Fit a method, and score it on the later rows in the units of the target."""
    rows = load(name, bool(with_date), folder)
    with nullcontext() if method.startswith("dspp") else one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from other libraries, and the notes on fits
        fitted = FITS[method](rows, 0)
        predicted = fitted.predict(rows.X_test)
    scale, y = Standardizer.fit(rows.y), rows.y_test
    y, unit = (scale.transform(y), float(scale.scale)) if fitted.standardised else (y, 1.0)
    scored = Comparison(predicted, y)
    in_units = {
        "nll": scored.nll(),
        "crps": scored.crps(),
        "rmse": scored.rmse(),
        "r2": scored.r2(),
        "bias": unit * float(scored.mean.cpu().numpy().mean() - y.mean()),
        "coverage90": scored.coverage(0.9),
    }
    found = standardise_scores(in_units, 1.0 / unit)
    versions = provenance(())["versions"]
    peers = {library: metadata.version(library) for library in PEERS if library in method.lower()}
    return {
        "metrics": found,
        "rows": {"train": len(rows.y), "test": len(y)},
        "seconds": {},
        "versions": versions | peers,
    }


def write(found: Sequence[Record]) -> str:
    """Return the results as Markdown."""
    lines = [
        "# Forecasts",
        "Test rows are later than all training rows (`python -m benchmarks.forecasts`). `time=` is the argument of "
        '`fit` by which the latest training rows judge the model; "date" says whether the times are an input too. '
        "Scores are in the units of the target; bias is the mean prediction minus the mean observation.",
    ]
    for name in TABLES:
        ours = [record for record in found if record["set"] == name]
        if ours:
            counts = ours[0]["rows"]
            lines += [
                f"## {name}",
                f"{counts['train']:,} training rows, {counts['test']:,} test rows",
                table_text(_table(ours)),
            ]
    commits = ", ".join(sorted({record["commit"] for record in found}))
    return "\n\n".join([*lines, f"Commits {commits}."]) + "\n"


def _table(found: Iterable[Record]) -> Table:
    ordered = sorted(found, key=lambda record: (list(FITS).index(record["method"]), -record["fold"]))
    rows = [(r["method"], "yes" if r["fold"] else "no", *_numbers(r["metrics"])) for r in ordered]
    return text_table(("method", "date", *SCORES), rows, words=(1,))


def _numbers(metrics: dict[str, float]) -> list[str]:
    return [f"{100 * metrics[s]:.1f} %" if s == "coverage90" else f"{round(metrics[s], 3) + 0.0:.3f}" for s in SCORES]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = records.parser("benchmarks.forecasts", __doc__)
    parser.add_argument("--only", default="", help="fit only methods whose names contain this")
    options = parser.parse_args(arguments)
    wanted = [(name, date, method) for name in TABLES for method in FITS for date in (1, 0) if options.only in method]
    found = records.complete(options.results, wanted, partial(measure, folder=options.data))
    options.results.with_suffix(".md").write_text(write(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

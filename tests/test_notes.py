"""Notes on a fit: one warning at the user's line, the text of `fitted_`, and what a notebook shows."""

import warnings
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import BaggingRegressor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from typer.testing import CliRunner

import dspp
from dspp import DsppWarning, PPGPRRegressor
from dspp.cli import app
from dspp.estimators.show import describe
from dspp.notes import MAX_LISTED, Note, list_notes

QUICK: dict[str, Any] = {"inducing": 4, "epochs": 1, "restarts": 1, "progress": False}
RNG = np.random.default_rng(0)
X = pd.DataFrame({"size": RNG.normal(size=40), "rooms": 3.0, "floor": 1.0})  # two columns are left out
Y = RNG.normal(size=40)


@pytest.fixture
def seen() -> Iterator[list[warnings.WarningMessage]]:
    """The warnings that Python's default filters would print."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default", DsppWarning)
        yield found


def places(found: list[warnings.WarningMessage]) -> list[str]:
    """Where warnings of notes point: lines of this file."""
    assert all(one.category is DsppWarning and one.filename == __file__ for one in found), list(map(str, found))
    return [Path(__file__).read_text().splitlines()[one.lineno - 1].strip() for one in found]


def test_a_fit_warns_once_of_all_its_notes(seen: list[warnings.WarningMessage]) -> None:
    model = PPGPRRegressor(**QUICK)
    model.fit(X, Y)  # here
    assert places(seen) == ["model.fit(X, Y)  # here"]
    assert len(model.fitted_.notes) == 2
    assert str(seen[0].message).splitlines() == [
        "this fit has 2 notes:",
        *(f"  {note}" for note in model.fitted_.notes),
    ]


def test_a_fit_without_notes_does_not_warn(seen: list[warnings.WarningMessage]) -> None:
    assert not PPGPRRegressor(**QUICK).fit(X[["size"]], Y).fitted_.notes
    assert not seen


@pytest.mark.parametrize(
    "fit",
    [
        lambda model: cross_val_score(model, X, Y, cv=3),
        lambda model: GridSearchCV(model, {"beta": [0.1, 1.0]}, cv=2).fit(X, Y),
        lambda model: cross_val_score(make_pipeline("passthrough", model), X, Y, cv=2),
        lambda model: BaggingRegressor(TransformedTargetRegressor(model), n_estimators=2).fit(X.to_numpy(), 0.0 * Y),
    ],
)
def test_scikit_learn_repeats_no_warning(fit: Any, seen: list[warnings.WarningMessage]) -> None:
    fit(PPGPRRegressor(**QUICK))
    (line,) = places(seen)
    assert line.startswith("lambda model: ")


def test_a_search_warns_of_the_notes_of_its_model(seen: list[warnings.WarningMessage]) -> None:
    result = dspp.tune(X, Y, models=["ppgpr"], trials=1, base={"inducing": 4, "epochs": 1})
    assert str(result.best_estimator.fitted_.notes[0]) in str(seen[0].message)
    assert places(seen) == ['result = dspp.tune(X, Y, models=["ppgpr"], trials=1, base={"inducing": 4, "epochs": 1})']


def test_notes_stay_with_the_model_in_silence(tmp_path: Path, seen: list[warnings.WarningMessage]) -> None:
    model = PPGPRRegressor(**QUICK).fit(X, Y)
    seen.clear()
    model.save(tmp_path / "m.dspp")
    loaded = dspp.load(tmp_path / "m.dspp")
    loaded.predict(X)
    assert not seen
    for one in (model, loaded):
        assert all(f"\n  {note}" in repr(one.fitted_) for note in model.fitted_.notes)
        assert repr(one).startswith("PPGPRRegressor(")
        assert "note" not in repr(one), "scikit-learn's own, which is Python code"


def test_a_notebook_shows_notes_without_a_click() -> None:
    model = PPGPRRegressor(**QUICK).fit(X, Y)
    for html, shown in ((describe(model), True), (describe(PPGPRRegressor(**QUICK).fit(X[["size"]], Y)), False)):
        opened = [fold for fold in ET.fromstring(html).iter("details") if fold.get("open") is not None]
        assert ["".join(fold.itertext()) for fold in opened] == shown * [
            f"2 notes{''.join(map(str, model.fitted_.notes))}"
        ]


def test_long_lists_are_cut() -> None:
    notes = [Note(f"column {i}", "is left out") for i in range(MAX_LISTED + 1_500)]
    first, *lines = list_notes(notes).split("\n")
    assert first == ""
    assert len(lines) == MAX_LISTED + 1
    assert lines[-1] == "  and 1,500 more in fitted_.notes"
    assert "more" not in list_notes(notes[:MAX_LISTED])
    assert list_notes([]) == ""


def test_the_command_line_prints_notes_and_does_not_warn(tmp_path: Path, seen: list[warnings.WarningMessage]) -> None:
    X.assign(y=Y).to_csv(tmp_path / "t.csv", index=False)
    small = ["--model", "ppgpr", "--epochs", "1", "--inducing", "4"]
    files = [str(tmp_path / "t.csv"), "--target", "y", "--out", str(tmp_path / "m.dspp")]
    done = CliRunner().invoke(app, ["fit", *files, *small], catch_exceptions=False)
    assert done.output.count("'rooms' is left out") == 1
    assert not seen

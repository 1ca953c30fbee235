"""Targets that no model can learn from are refused at once; those with few distinct values are noted."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from typer.testing import CliRunner

from dspp import InputError, PPGPRRegressor
from dspp.cli import app
from dspp.outcomes.notes import censoring_notes, target_notes
from dspp.table.discrete import is_discrete
from dspp.table.memory import attach_targets, to_table

TINY: dict[str, Any] = {"inducing": 5, "epochs": 1, "restarts": 1, "progress": False}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
WORDS = ["no", "yes", "yes"] * 20
NOT_CLASSES = "dspp predicts numbers, not classes yet"


@pytest.mark.parametrize(
    "y",
    [WORDS, np.array(WORDS), np.array(WORDS, object), pl.Series("kind", WORDS), pd.Series(WORDS, dtype="category")],
    ids=["list", "array", "objects", "polars", "categories"],
)
def test_classes_are_refused(y: Any) -> None:
    with pytest.raises(InputError, match=rf"^y: .*got 2 classes \('no', 'yes'\); {NOT_CLASSES}$"):
        PPGPRRegressor(**TINY).fit(X, y)


def test_classes_among_several_outputs_are_named() -> None:
    both = pd.DataFrame({"price": X[:, 0], "kind": WORDS})
    with pytest.raises(InputError, match=r"^y: column 'kind': expected numbers to predict, got 2 classes"):
        PPGPRRegressor(**TINY).fit(X, both)


def test_a_single_word_among_numbers_is_named_by_its_row() -> None:
    y = pd.Series([*map(str, range(59)), "many"], name="count")
    with pytest.raises(InputError, match=r"row 59.*'many'|'many' at row 59"):
        PPGPRRegressor(**TINY).fit(X, y)


def csv(path: Path, cells: Any) -> Path:
    path.write_text("a,y\n" + "".join(f"{i / 7:.3f},{cell}\n" for i, cell in enumerate(cells)))
    return path


def refused(path: Path, *more: str) -> str:
    result = CliRunner().invoke(
        app, ["fit", str(path), "--target", "y", "--out", str(path.with_suffix(".dspp")), *more]
    )
    assert (result.exit_code, result.stdout) == (2, "")
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    return str(result.stderr)


COLUMNS = {
    "classes": (WORDS, f"column 'y': expected numbers to predict, got 2 classes ('no', 'yes'); {NOT_CLASSES}"),
    "one class": (["no"] * 9, "got 1 class ('no'); dspp predicts numbers"),
    "names": ([f"house {i}" for i in range(60)], f"got text such as 'house 0'; {NOT_CLASSES}"),
    "prices": ([f'"${i},500"' for i in range(1, 60)], "got text such as '$1,500'; remove the currency and commas"),
    "a misprint": ([*range(9), "1o"], "column 'y', row 9 (line 11): expected a number, got '1o'"),
    "a constant": (
        [3] * 60,
        "column 'y': expected a target that varies, got 3 in all 60 rows; choose another --target",
    ),
    "a constant with gaps": ([3, "", 3], "got 3 in all 2 rows"),
    "one row": ([3], "column 'y': expected at least 2 rows with a target, got 1; add rows"),
    "one row with a target": ([3, "", ""], "expected at least 2 rows with a target, got 1"),
    "dates": (["2024-01-01", "2024-02-01"], "expected numbers to predict, got date32[day]; convert the column"),
    "decimal commas": (['"1,5"', '"2,5"'], "column 'y' is text such as '1,5': if the comma is the decimal mark, pass"),
}


@pytest.mark.parametrize("case", COLUMNS)
def test_the_command_line_refuses_what_cannot_be_learned(case: str, tmp_path: Path) -> None:
    cells, message = COLUMNS[case]
    assert message in refused(csv(tmp_path / "t.csv", cells))


def test_scikit_learn_s_way_is_to_fit_a_constant_or_a_single_row() -> None:
    """A fold of cross-validation may be constant; the note says what such a model is worth."""
    constant = PPGPRRegressor(**TINY).fit(X, np.full(60, 3.0))
    assert [str(note) for note in constant.fitted_.notes] == [
        "target 'y' is 3 in every row: the model can only repeat it"
    ]
    np.testing.assert_allclose(constant.predict(X), 3.0)
    assert PPGPRRegressor(**TINY).fit(X[:1], [2.0]).predict(X[:1]) == pytest.approx(2.0)


# ---------------------------------------------------------------- few distinct values

DISCRETE = {
    "wine quality": (np.arange(1599) % 6 + 3, True),
    "true or false": (np.arange(60) % 2, True),
    "half stars": (np.arange(60) % 9 / 2, True),
    "20 values in 50 rows": (np.arange(50) % 20, True),
    "20 values in 49 rows": (np.arange(49) % 20, False),
    "21 values in 400 rows": (np.arange(400) % 21, False),  # more than 5 %
    "21 values in 421 rows": (np.arange(421) % 21, True),
    "100 values in 2,001 rows": (np.arange(2_001) % 100, True),
    "101 values in 5,000 rows": (np.arange(5_000) % 101, False),
    "numbers": (X[:, 0], False),
    "no values": (np.full(60, np.nan), False),
    "2 values in a few rows": (np.array([1.0, 2.0, 1.0]), False),
}


@pytest.mark.parametrize("case", DISCRETE)
def test_targets_with_few_distinct_values(case: str) -> None:
    y, discrete = DISCRETE[case]
    y = y.astype(float)
    assert is_discrete(y) == discrete
    assert is_discrete(np.column_stack([RNG.normal(size=len(y)), y])) == discrete
    with_gaps = np.concatenate([y, np.full(1_000, np.nan)])  # which count neither as values nor as rows
    assert is_discrete(with_gaps) == discrete
    assert len(target_notes(y[:, None], ["y"])) == discrete


def test_the_note_says_which_score_to_compare() -> None:
    y = np.column_stack([np.arange(1599) % 6 + 3.0, np.arange(1599) / 7])
    assert [str(note) for note in target_notes(y, ["quality", "price"])] == [
        "target 'quality' has only 6 distinct values: NLL is not meaningful for it, since a density can be made "
        "arbitrarily high on repeated values; compare CRPS"
    ]
    model = PPGPRRegressor(**TINY).fit(X, pd.Series(np.arange(60) % 3, name="stars"))
    assert any(note.subject == "target 'stars' has only 3 distinct values" for note in model.fitted_.notes)


SURVIVAL = {"death": [0, 1, 1, 0], "age": [50, 61, 70, 42]}


@pytest.mark.parametrize(
    ("columns", "target", "y", "noted"),
    [
        (SURVIVAL, "dtime", [3.0, 9.0, 4.0, 0.0], True),
        ({"event_observed": [True, False, True, True]}, "survival days", [3.0, 9.0, 4.0, 1.0], True),
        ({"Status": [1.0, 0.0, None, 1.0]}, "tenure", [3.0, 9.0, 4.0, 1.0], True),
        (SURVIVAL, "costs", [3.0, 9.0, 4.0, 0.0], False),
        (SURVIVAL, "dtime", [-3.0, 9.0, 4.0, 0.0], False),
        ({"status": [0, 1, 2, 3]}, "dtime", [3.0, 9.0, 4.0, 0.0], False),
        ({"status": ["0", "1", "a", "b"]}, "dtime", [3.0, 9.0, 4.0, 0.0], False),
        ({"wealth": [0, 1, 1, 0]}, "dtime", [3.0, 9.0, 4.0, 0.0], False),
        ({"fustat": [0, 1, 1, 0]}, "futime", [59.0, 115.0, 421.0, 448.0], True),  # ovarian
        ({"status": [1, 2, 2, 1]}, "time", [306.0, 455.0, 1010.0, 210.0], True),  # lung
        ({"delta": [0, 1, 1, 0]}, "t", [3.0, 9.0, 4.0, 0.5], True),
        ({"event": [1, 2, 2, 1]}, "week", [20.0, 17.0, 25.0, 52.0], True),
        ({"death": [0, 1, 0, 0]}, "los", [3.0, 9.0, 4.0, 0.5], True),
        ({"censored": [0, 1, 0, 0]}, "weeks", [3.0, 9.0, 4.0, 0.5], True),
        ({"status": [0, 1, 1, 0]}, "t", [20.0, 21.5, 19.0, 20.0], False),  # a temperature, and whether a pump runs
        ({"status": [1, 2, 3, 1]}, "time", [3.0, 9.0, 4.0, 0.5], False),
        ({"status": [2, 2, 2, 2]}, "time", [3.0, 9.0, 4.0, 0.5], False),
        ({"sex": [1, 2, 2, 1]}, "time", [3.0, 9.0, 4.0, 0.5], False),
        ({"delta": [0.5, 1.0, -2.0, 0.0]}, "time", [3.0, 9.0, 4.0, 0.5], False),
        ({"delta": [0, 1, 1, 0]}, "temperature", [3.0, 9.0, 4.0, 0.5], False),
    ],
)
def test_a_note_on_times_that_may_be_censored(columns: Any, target: str, y: list[float], noted: bool) -> None:
    table = attach_targets(to_table(pd.DataFrame(columns)), pd.Series(y, name=target))
    notes = censoring_notes(table)
    assert len(notes) == noted
    if noted:
        assert repr(target) in str(notes[0])
        assert "does not model censored times yet" in str(notes[0])


def test_a_note_on_intervals_below_zero_of_targets_that_are_never_negative() -> None:
    y = np.maximum(RNG.normal(size=60), 0.0)  # half of them are 0
    notes = PPGPRRegressor(**TINY).fit(X, pd.Series(y, name="costs")).fitted_.notes
    (note,) = (note for note in notes if note.subject == "target 'costs' is never negative")
    found = re.match(r"(\d+) % of the lower ends of its 90 % intervals are, as dspp has no distribution", note.text)
    assert found is not None
    assert int(found[1]) >= 5
    shifted = PPGPRRegressor(**TINY).fit(X, pd.Series(y + 100.0, name="costs")).fitted_.notes
    assert not any("never negative" in note.subject for note in shifted)

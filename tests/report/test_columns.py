"""The report of an ensemble: held-out rows stay held out, columns are ranked, groups are judged, baselines stand by."""

import datetime
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from outline import Outline

from dspp.evaluate import Evaluation
from dspp.evaluate import evaluate as evaluate_table
from dspp.fitting import train
from dspp.metrics import Comparison
from dspp.numbers import number
from dspp.prepare import prepare
from dspp.report import columns, render, report
from dspp.report.columns import (
    Importance,
    describe_groups,
    measure_effects,
    measure_groups,
    permutation_importance,
    shuffle,
)
from dspp.report.members import describe_scored, ensemble_panels, members_table, score_kinds, settings_table
from dspp.report.outputs import choose_axes
from dspp.report.page import Page, Panel, Section, TextTable
from dspp.report.probe import Probe, Values
from dspp.report.scores import make_cards, score_baselines
from dspp.settings import Settings
from dspp.table.memory import attach_targets, to_table
from tests.members.ensembles import of_kind

RNG = np.random.default_rng(0)
NUM = 300
FRAME = pd.DataFrame(
    {
        "strong": RNG.normal(size=NUM),
        "useless": RNG.normal(size=NUM),
        "town": RNG.choice([f"town {k}" for k in range(40)], size=NUM),
        "colour": RNG.choice(["red", "green", None], size=NUM, p=[0.5, 0.3, 0.2]),
        "day": [datetime.datetime(2024, 1, 1) + datetime.timedelta(days=int(d)) for d in RNG.integers(0, 300, NUM)],
        "is_new": RNG.random(NUM) < 0.3,
        "year": RNG.integers(1990, 2020, NUM),
    }
)
Y = 100 + 30 * FRAME["strong"].to_numpy() + 8 * (FRAME["colour"] == "red") + RNG.normal(size=NUM)
TINY = {"members": 10, "inducing": 4, "width": 2, "sites": 2, "epochs": 4, "batch_size": 100, "jobs": 1}


def evaluate(y: np.ndarray, frame: pd.DataFrame = FRAME, **settings: object) -> Evaluation:
    given = Settings(**TINY | {"likelihood": "gaussian"} | settings)
    prepared = prepare(attach_targets(to_table(frame), y), given)
    evaluation = train(prepared, given)[1]
    assert evaluation is not None
    return evaluation


@pytest.fixture(scope="module")
def held_out() -> Evaluation:
    return evaluate(np.asarray(Y), conformal=True)


@pytest.fixture(scope="module")
def new_rows(held_out: Evaluation) -> Evaluation:
    return evaluate_table(held_out.fitted, held_out.table)


# ---------------------------------------------------------------- who predicts what


def test_the_members_that_held_out_a_row_predict_it_as_it_was_scored(held_out: Evaluation) -> None:
    assert {member.kind for member in held_out.fitted.members} == {"plain", "trees"}
    assert "town (mean)" in (held_out.fitted.feature_names or ())  # targets of the rows are in this input
    assert np.array_equal(np.sort(np.concatenate([index for _, index in held_out.parts])), np.arange(NUM))
    for model, index in held_out.parts:
        y = torch.from_numpy(held_out.y[index])
        again = model.predict(held_out.table.take(index)).log_prob(y)
        assert torch.equal(again, held_out.distribution.rows(torch.from_numpy(index)).log_prob(y))
    members = [member for model, _ in held_out.parts for member in model.members]
    assert len(members) == len(set(map(id, members))) == len(held_out.fitted.members)  # each in one fold only


def test_each_row_finds_its_own_model(held_out: Evaluation, new_rows: Evaluation) -> None:
    rows = np.array([7, 3, 250])
    for model, where in held_out.models(rows):
        (index,) = [index for part, index in held_out.parts if part is model]
        assert set(rows[where]) <= set(index.tolist())
    ((model, where),) = new_rows.models(rows)
    assert model is new_rows.fitted
    assert where.tolist() == [0, 1, 2]


def test_a_changed_row_is_a_row_with_another_value_in_the_users_table(new_rows: Evaluation) -> None:
    probe, donors = Probe(new_rows, np.arange(NUM)), shuffle(NUM, np.random.default_rng(1))
    for column in FRAME:
        changed = FRAME.assign(**{column: FRAME[column].to_numpy()[donors]})
        ((predicted, index),) = probe.predict(np.arange(NUM), column, donors)
        assert np.array_equal(index, np.arange(NUM))
        torch.testing.assert_close(predicted.mean, new_rows.fitted.predict(to_table(changed)).mean)


def test_every_row_gets_the_value_of_another() -> None:
    donors = shuffle(50, np.random.default_rng(0))
    assert sorted(donors) == list(range(50))
    assert (donors != np.arange(50)).all()


# ---------------------------------------------------------------- importance


@pytest.mark.parametrize("which", ["held_out", "new_rows"])
def test_columns_that_matter_come_first(which: str, request: pytest.FixtureRequest) -> None:
    found = permutation_importance(request.getfixturevalue(which))
    assert found is not None
    assert set(found.increase) == set(FRAME.columns)
    assert next(iter(found.increase)) == "strong"
    assert found.matter[0] == "strong"
    assert {len(each) for each in found.increase.values()} == {3}
    assert found.increase["strong"].mean() > 5 * abs(found.increase["useless"].mean())
    again = permutation_importance(request.getfixturevalue(which))
    assert again is not None
    assert all(np.array_equal(each, again.increase[name]) for name, each in found.increase.items())


def test_a_wide_table_is_sampled(new_rows: Evaluation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "MAX_COLUMNS", 2)
    monkeypatch.setattr(columns, "SCORE_WORK", 0)
    names = new_rows.fitted.feature_names or ()
    chosen = np.array([float("strong" in name or "useless" in name) for name in names])
    monkeypatch.setattr(columns, "relevance", lambda fitted: chosen)
    found = permutation_importance(new_rows)
    assert found is not None
    assert (set(found.increase), found.num_columns, found.num_rows) == ({"strong", "useless"}, 7, 200)
    one = replace(new_rows, table=new_rows.table.take(np.array([0])), distribution=new_rows.distribution.rows([0]))
    assert permutation_importance(one) is None


def test_what_the_repeats_do_not_bear_out_does_not_matter() -> None:
    increase = {"a": [2.0, 2.1, 1.9], "b": [0.1, -0.2, 0.2], "c": [-1.0, -1.0, -1.0]}
    found = Importance({name: np.array(each) for name, each in increase.items()}, 1.0, 9, 3)
    assert found.matter == ["a"]


# ---------------------------------------------------------------- effects and groups


def test_effects_are_fans_over_values_of_the_users_table(held_out: Evaluation) -> None:
    effects, num_rows = measure_effects(held_out, list(FRAME), [0])
    assert set(effects) == set(FRAME)
    assert num_rows == 200
    for at, quantiles in effects.values():
        assert (np.diff(quantiles, axis=1) >= 0).all()
        assert quantiles.shape == (1, 5, len(at))
    at, (quantiles,) = effects["strong"]
    assert set(at) <= set(FRAME["strong"])
    assert len(at) <= 20
    assert (np.diff(at) > 0).all()
    assert quantiles[2, -1] > quantiles[2, 0] + 2
    assert effects["colour"][0].tolist() == ["red", "green"]  # by frequency, without missing ones
    assert len(effects["town"][0]) == 10
    assert effects["is_new"][0].tolist() == ["false", "true"]
    assert effects["day"][0].dtype.kind == "M"


def test_groups_are_flagged_only_beyond_chance() -> None:
    values = np.arange(400.0)
    pit = np.tile((np.arange(100) + 0.5) / 100, 4)
    calm = measure_groups({"x": values}, pit)
    assert [(g.label, g.num_rows, g.inside, g.off) for g in calm] == [
        ("0 to 99", 100, 90, ""),
        ("100 to 199", 100, 90, ""),
        ("200 to 299", 100, 90, ""),
        ("300 to 399", 100, 90, ""),
    ]
    assert describe_groups(calm) == "None of the 4 groups differs from 90 % by more than chance explains."
    pit[:100] = np.where(np.arange(100) < 30, 0.999, 0.5)  # 70 % inside
    pit[100:200] = 0.5  # all inside
    assert [g.off for g in measure_groups({"x": values}, pit)] == ["too narrow", "too wide", "", ""]
    assert "2 of the 4 groups differ from 90 %" in describe_groups(measure_groups({"x": values}, pit))


def test_groups_of_ties_texts_times_and_missing_values() -> None:
    pit = np.full(200, 0.5)

    def labels(values: Values) -> list[tuple[str, int]]:
        return [(g.label, g.num_rows) for g in measure_groups({"x": values}, pit)]

    zeros = np.where(np.arange(200) < 150, 0.0, 1234.0)
    assert labels(zeros) == [("0", 150), ("1,234", 50)]
    ends = np.linspace(-0.04, 14.0, 200)
    assert labels(ends)[0] == ("0.0 to 3.4", 50)
    assert labels(np.ceil(ends - 0.5))[0] == ("0 to 3", 51)
    gaps = np.where(np.arange(200) < 50, np.nan, 2001.0)
    assert labels(gaps) == [("2001", 150), ("missing", 50)]
    texts = np.array(["a"] * 100 + ["b"] * 95 + ["c"] * 5)
    assert labels(texts) == [("a", 100), ("b", 95)]  # five rows tell nothing
    days = np.datetime64("2024-01-01", "us") + np.arange(200) * np.timedelta64(1, "D")
    assert labels(days)[0] == ("2024-01-01 to 2024-02-19", 50)


# ---------------------------------------------------------------- baselines and the ensemble


def test_baselines_are_one_normal_and_trees_that_did_not_see_the_row(held_out: Evaluation) -> None:
    found = score_baselines(held_out)
    normal, trees = found["one Normal for all rows"], found["boosted trees alone"]
    assert normal["rmse"] == pytest.approx(np.std(Y))
    assert normal["nll"] == pytest.approx(0.5 * np.log(2 * np.pi * np.var(Y)) + 0.5)
    assert 1.0 < trees["rmse"] < normal["rmse"]
    assert trees["r2"] == pytest.approx(1 - trees["rmse"] ** 2 / np.var(Y))
    seen = score_baselines(evaluate_table(held_out.fitted, held_out.table))["boosted trees alone"]
    assert seen["rmse"] < 0.8 * trees["rmse"]  # trees that saw the rows look better than they are


def test_a_logarithm_has_a_log_normal_baseline_and_no_trees() -> None:
    log_normal = evaluate(np.exp(0.02 * np.asarray(Y)), FRAME[["strong"]], likelihood="log-normal")
    found = score_baselines(log_normal)
    assert list(found) == ["one log-normal for all rows"]
    logs = np.log(log_normal.y)
    expected = 0.5 * np.log(2 * np.pi * np.var(logs)) + 0.5 + logs.mean()
    assert found["one log-normal for all rows"]["nll"] == pytest.approx(expected)
    notes = [point for panel in report(log_normal).sections[-1].panels for point in panel.points]
    assert "boosted trees alone are not scored: they predict the logarithm of y" in notes


def test_the_ensemble_is_described_in_plain_sentences(held_out: Evaluation, new_rows: Evaluation) -> None:
    panel = ensemble_panels(held_out)[0]
    assert panel.table is not None
    *kinds, (name, members, weight, *scores) = panel.table.rows
    assert (name, members, weight) == ("all members", "10", "100\N{NO-BREAK SPACE}%")
    assert [row[1] for row in kinds] == ["5", "5"]
    first, second = (int(row[2].split("\N{NO-BREAK SPACE}")[0]) for row in kinds)
    assert first >= second
    assert first + second in (99, 100, 101)  # rounded
    assert scores[0] == number(Comparison(held_out.distribution, held_out.y).nll())
    assert "a guard against confident errors" in panel.text
    assert "spread" in panel.text
    assert "did not see it" in describe_scored(held_out)
    assert "whole ensemble" in describe_scored(new_rows)


def test_the_page_shows_all_of_it(held_out: Evaluation) -> None:
    assert held_out.fitted.notes
    page = Outline(render(report(held_out, "held out of table.csv")))
    assert [section["id"] for section in page.all("section")] == [
        *("scores", "calibration", "accuracy", "columns", "rows", "surprises", "ensemble", "made")
    ]
    figures = [figure["id"] for figure in page.all("figure")]
    assert {"importance", "groups-0", "effects-0", "members"} <= set(figures)
    text = " ".join(page.texts)
    for part in (
        "300 rows of table.csv, held out in turn; trained on 300 rows",
        "predicted only by the members that did not see it in training",
        "one Normal for all rows",
        "boosted trees alone",
        "columns and boosted trees",
        "members 1–5",
        "members 6–10",
        "Swipe the table for more columns",
        *map(str, held_out.fitted.notes),
    ):
        assert part in text, part


def test_members_show_only_what_they_have(held_out: Evaluation) -> None:
    *others, last = held_out.fitted.members
    closed_form = of_kind(last, "gp", history=(), best_epoch=None)
    fitted = replace(held_out.fitted, members=(*others, closed_form), conformal_folds=None)
    table, settings = members_table(fitted), settings_table(fitted)
    assert table.header[-2:] == ("epochs", "last training NLL")
    assert [row[4] for row in table.rows] == ["4"] * 9 + ["–"]
    assert table.rows[-1][5] == "–"
    alone = replace(fitted, members=(closed_form,), weights=(1.0,))
    assert members_table(alone).header == ("member", "reads", "weight", "training time")
    assert settings.header[2:] == ("members 1–5", "members 6–9", "member 10")
    rows = {name: values for _, name, *values in settings.rows}
    assert [rows[name][2] for name in ("learning_rate", "batch_size", "epochs")] == ["–"] * 3
    assert (rows["learning_rate"][0], rows["inducing"][2], rows["patience"][0]) == ("0.1", "4", "–")
    panels = [Panel(table=table), Panel(table=settings)]
    texts = Outline(render(Page("x", [Section("made", "Made", "How.", panels)]))).texts
    assert not any(word in text for text in texts for word in ("nan", "None", "()"))


def test_recalibrated_intervals_do_not_stand_in_the_way(held_out: Evaluation, new_rows: Evaluation) -> None:
    assert held_out.fitted.conformal is not None
    for one in (held_out, new_rows):
        kinds = {member.title for member in one.fitted.members}
        assert all(np.isfinite(list(scores.values())).all() for scores in score_kinds(one, list(kinds)).values())


def test_rows_count_by_their_weights(new_rows: Evaluation) -> None:
    weights = np.where(np.arange(NUM) < 150, 1.0, 0.0)
    weighted = replace(new_rows, table=replace(new_rows.table, weights=weights))
    half = np.arange(150)
    alone = replace(new_rows, table=new_rows.table.take(half), distribution=new_rows.distribution.rows(half.tolist()))
    for name, scores in score_baselines(alone).items():
        assert score_baselines(weighted)[name] == pytest.approx(scores)
    assert score_kinds(weighted, [""])[""] == pytest.approx(score_kinds(alone, [""])[""])


def test_two_outputs_have_effects_and_groups_each() -> None:
    both = evaluate(np.column_stack([Y, -2 * Y]), FRAME[["strong", "colour"]], members=5)
    assert "boosted trees alone" not in score_baselines(both)
    page = Outline(render(report(both)))
    names = {f"{kind}-{k}" for kind in ("effects", "groups") for k in (0, 1)}
    assert names <= {figure["id"] for figure in page.all("figure")}
    assert "standard deviations of the targets" in " ".join(page.texts)


# ---------------------------------------------------------------- axes, cards and cells


def test_a_few_extreme_values_do_not_ruin_the_axes() -> None:
    g = np.random.default_rng(0)
    normal = g.normal(size=1_000)
    assert choose_axes(normal, normal) == (None, False, "")
    assert choose_axes(normal[:10], 1e9 * normal[:10]) == (None, False, "")  # too few to tell
    prices = np.exp(4 + g.normal(size=1_000))
    prices[:3] = 9_999.0
    limits, log, note = choose_axes(np.full(1_000, 60.0), prices)
    assert log
    assert limits is not None
    assert limits[1][1] > 9_999
    assert "both axes are logarithmic" in note
    wild = normal.copy()
    wild[:2] = 1e6, -1e6
    limits, log, note = choose_axes(normal, wild)
    assert not log
    assert limits is not None
    assert limits[1][1] < 5
    assert "98 % of all" in note
    outside = int(note.split("; ")[1].split(" rows")[0])
    assert 2 <= outside <= 40


def test_scores_of_a_discrete_target_lead_with_crps() -> None:
    scores = {"nll": 1.0, "rmse": 2.0, "crps": 3.0}
    baselines = {"one Normal for all rows": {"crps": 9.0}}
    assert [card.title for card in make_cards(scores, {}, False)] == ["NLL", "RMSE", "CRPS"]
    cards = make_cards(scores, baselines, is_discrete=True)
    assert [card.title for card in cards] == ["CRPS", "RMSE", "NLL"]
    assert "few distinct values" in cards[-1].meaning
    assert [dict(card.baselines) for card in cards] == [{"one Normal for all rows": "9"}, {}, {}]


def test_texts_are_on_the_left_and_numbers_on_the_right() -> None:
    rows = [
        ("1", "−1,234.5", "1.5\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}10⁻⁷", "86.0 % to 92.1 %", "–", "New York", "2.5 s"),
        ("2", "–", "−∞", "1 to 2", "–", "12", "1 s"),
    ]
    assert TextTable(list("abcdefg"), rows).is_text == [True, False, False, False, False, True, False]

"""The search: the best setting wins, weak ones end early, time is kept, and nothing is lost when a process dies."""

import itertools
import json
import os
import pickle
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pandas as pd
import pytest

from dspp import training
from dspp.errors import CheckpointError, InputError, TrainingDiverged, TrainingInterrupted
from dspp.estimators import ESTIMATORS, DSPPRegressor
from dspp.history import Epoch
from dspp.model import TOPOLOGIES
from dspp.prepare import prepare, split_rows
from dspp.settings import SHARED_WIDTH, Settings
from dspp.storage import lock
from dspp.table.memory import attach_targets, to_table
from dspp.tuning import TrialRecord, TuneResult, tune
from dspp.tuning import trial as module
from dspp.tuning.search import Search, share_of_time
from dspp.tuning.space import Range, Space
from dspp.tuning.study import best_file, digest

GENERATOR = np.random.default_rng(11)
X = GENERATOR.normal(size=(120, 2))
Y = 50 + 7 * np.sin(2 * X[:, 0]) + GENERATOR.normal(size=120)
X_TRAIN, Y_TRAIN, X_VAL, Y_VAL = X[:90], Y[:90], X[90:], Y[90:]
BASE = {"inducing": 8, "sites": 3, "batch_size": 45, "restarts": 1, "epochs": 8}
RATES = {"learning_rate": [1e-6, 1e-3, 0.01, 0.03, 0.1]}
SHALLOW = {"models": ("ppgpr",), "base": {"inducing": 8, "batch_size": 45, "restarts": 1, "epochs": 8}}
ENDLESS = 1e30  # a learning rate that diverges


def search(X=X, y=Y, **changes) -> TuneResult:
    return tune(X, y, **{"base": BASE, "trials": 5, **changes})


def without_time(trials: tuple[TrialRecord, ...]) -> list[TrialRecord]:
    return [replace(trial, seconds=0.0) for trial in trials]


def assert_same(one: TuneResult, other: TuneResult) -> None:
    assert without_time(one.trials) == without_time(other.trials)
    assert (one.best_params, one.best_nll) == (other.best_params, other.best_nll)
    np.testing.assert_array_equal(one.best_estimator.predict(X), other.best_estimator.predict(X))
    assert one.best_estimator.get_params() == other.best_estimator.get_params()


@pytest.fixture(scope="module")
def whole() -> TuneResult:
    """The search that others are interrupted in."""
    return search()


# ---------------------------------------------------------------- what is found


def test_the_better_setting_wins_and_is_the_model_that_its_trial_trained() -> None:
    how = {"models": ("ppgpr",), "base": SHALLOW["base"] | {"random_state": 3}}
    result = tune(X_TRAIN, Y_TRAIN, X_val=X_VAL, y_val=Y_VAL, space={"learning_rate": [1e-6, 0.05]}, **how)
    alone = ESTIMATORS["ppgpr"](members=1, **SHALLOW["base"], learning_rate=0.05, random_state=3)
    alone.fit(X_TRAIN, Y_TRAIN, X_VAL, Y_VAL)
    assert result.best_params == {"model": "ppgpr", "learning_rate": 0.05}
    assert result.best_nll == result.best_estimator.score_nll(X_VAL, Y_VAL) == alone.score_nll(X_VAL, Y_VAL)
    assert result.best_estimator.get_params() == alone.get_params()
    np.testing.assert_array_equal(result.best_estimator.predict(X_VAL), alone.predict(X_VAL))


def test_without_validation_rows_all_trials_hold_out_the_same(monkeypatch) -> None:
    seen, train = [], module.train
    monkeypatch.setattr(module, "train", lambda prepared, *a, **k: seen.append(prepared) or train(prepared, *a, **k))
    result = search(space=RATES, **SHALLOW)
    assert len(seen) == len(result.trials)
    for prepared in seen:
        assert prepared is seen[0]
    assert (seen[0].num_rows, len(seen[0].validation), len(seen[0].calibration)) == (108, 12, 0)
    val = seen[0].validation_table.row_numbers
    assert result.best_nll == result.best_estimator.score_nll(X[val], Y[val])


def test_the_default_space_begins_with_the_models_own_settings_and_never_does_worse(whole) -> None:
    own = DSPPRegressor(members=1, **BASE).fit(X, Y).fitted_
    assert whole.trials[0].params == {"model": "dspp", "layers": 2, "width": 5, "beta": 0.05}
    assert whole.trials[0].val_nll == own.metrics["nll"]
    assert whole.best_nll <= own.metrics["nll"]
    assert whole.best_nll == min(t.val_nll for t in whole.trials if t.state == "finished")


def test_several_outputs_are_scored_in_their_units() -> None:
    Y2 = np.stack([Y_TRAIN, -Y_TRAIN * 3], axis=1)
    Y2[::7, 1] = np.nan
    Y2_val = np.stack([Y_VAL, -Y_VAL * 3], axis=1)
    result = tune(X_TRAIN, Y2, X_val=X_VAL, y_val=Y2_val, space={"learning_rate": [1e-6, 0.05]}, **SHALLOW)
    assert result.best_nll == result.best_estimator.score_nll(X_VAL, Y2_val)
    weak = next(t for t in result.trials if t.params["learning_rate"] == 1e-6)
    assert weak.val_nll > result.best_nll


def test_an_output_without_validation_rows_is_no_hindrance_with_a_study_or_without(tmp_path) -> None:
    Y2, Y2_val = (np.stack([y, -y * 3], axis=1) for y in (Y_TRAIN, Y_VAL))
    Y2_val[:, 1] = np.nan
    how = {"X_val": X_VAL, "y_val": Y2_val, "space": {"learning_rate": [0.05]}, **SHALLOW}
    assert_same(search(X_TRAIN, Y2, study=tmp_path / "s", **how), search(X_TRAIN, Y2, **how))
    Y2[:, 1] = np.nan
    with pytest.raises(InputError, match=r"y: column 1: expected at least 2 observed values, got 0"):
        search(X_TRAIN, Y2, **how)


def test_a_table_of_any_kind_is_searched_and_left_alone(tmp_path) -> None:
    frame = pd.DataFrame({"a": X[:, 0], "kind": np.where(X[:, 1] > 0, "up", "down"), "b": X[:, 1]})
    frame.loc[3, "b"] = np.nan
    before, y = frame.copy(deep=True), pd.Series(Y, name="price")
    for _ in range(2):  # the second call reads the winner from its file
        result = search(frame, y, space={"learning_rate": [1e-6, 0.05]}, study=tmp_path / "s", **SHALLOW)
        assert result.best_estimator.fitted_.target_names == ("price",)
        assert result.best_estimator.predict(frame).shape == y.shape
    pd.testing.assert_frame_equal(frame, before)
    assert list(result.best_estimator.feature_names_in_) == ["a", "kind", "b"]


def test_the_table_has_the_best_first() -> None:
    def record(number: int, nll: float | None, state: str, **params: float) -> TrialRecord:
        return TrialRecord(number, params, nll, state, epochs=number, seconds=1.0)

    trials = (
        record(0, None, "failed", beta=1.0),
        record(1, 0.5, "finished", beta=0.1, width=2),
        record(2, 0.1, "pruned"),
        record(3, -0.5, "finished"),
    )
    table = TuneResult(DSPPRegressor(), {}, -0.5, trials).to_table()
    assert [row["number"] for row in table] == [3, 1, 2, 0]
    assert [row["width"] for row in table] == [None, 2, None, None]
    assert table[1] == {
        **{"number": 1, "val_nll": 0.5, "state": "finished", "epochs": 1, "seconds": 1.0, "reason": ""},
        **{"beta": 0.1, "width": 2},
    }


# ---------------------------------------------------------------- halving


def test_weak_settings_end_at_a_quarter_or_a_half_and_the_winner_is_still_the_winner() -> None:
    result = search(space=RATES, **SHALLOW)
    full = {
        rate: ESTIMATORS["ppgpr"](**SHALLOW["base"], learning_rate=rate).fit(X, Y).fitted_
        for rate in RATES["learning_rate"]
    }
    by_state = {state: [t for t in result.trials if t.state == state] for state in ("finished", "pruned", "failed")}
    assert {t.epochs for t in by_state["finished"]} == {8}
    assert by_state["pruned"]
    assert {t.epochs for t in by_state["pruned"]} <= {2, 4}
    assert not by_state["failed"]
    assert sum(t.epochs for t in result.trials) < 8 * len(full)
    assert result.best_nll == min(fitted.metrics["nll"] for fitted in full.values())
    for trial in by_state["pruned"]:  # its NLL is in the units of y: that of the best epoch so far
        fitted = full[trial.params["learning_rate"]]
        shift = np.log(fitted.outcome.scale.scale)
        best = min(e.val_nll for e in fitted.members[0].history[: trial.epochs])
        assert trial.val_nll == pytest.approx(best + shift, abs=1e-5)


@pytest.mark.parametrize("given", [True, False])
def test_the_nll_of_a_weak_setting_of_several_outputs_is_that_of_a_value_in_its_units(given) -> None:
    Y3 = np.stack([Y, 1e3 * X[:, 0], 1e-2 * X[:, 1] * Y], axis=1)
    Y3[::3, 1] = np.nan
    data = (X_TRAIN, Y3[:90], X_VAL, Y3[90:]) if given else (X, Y3, None, None)
    result = tune(*data[:2], X_val=data[2], y_val=data[3], space=RATES, trials=5, **SHALLOW)
    assert {"finished", "pruned"} == {t.state for t in result.trials}
    for trial in result.trials:
        estimator = ESTIMATORS["ppgpr"](**SHALLOW["base"], learning_rate=trial.params["learning_rate"])
        fitted = estimator.fit(*data).fitted_
        held_out = split_rows(estimator.settings(), len(X), False, ~np.isnan(Y3))[1]
        observed = ~np.isnan(Y3[90:] if given else Y3[held_out])
        joint = len(observed) * min(
            e.val_nll for e in fitted.members[0].history[: trial.epochs]
        )  # of standardised rows
        units = (observed * np.log(fitted.outcome.scale.scale)).sum()
        assert trial.val_nll == pytest.approx((joint + units) / observed.sum(), abs=1e-5)


def test_a_trial_goes_on_only_among_the_better_half() -> None:
    """Optuna's rule, replayed on the trials in the order in which they were run."""
    result = search(space=RATES, **SHALLOW)
    curves = {
        rate: [
            e.val_nll
            for e in ESTIMATORS["ppgpr"](**SHALLOW["base"], learning_rate=rate).fit(X, Y).fitted_.members[0].history
        ]
        for rate in RATES["learning_rate"]
    }
    at = {2: [], 4: []}
    for trial in result.trials:
        expected = 8
        for rung, reached in at.items():
            value = min(curves[trial.params["learning_rate"]][:rung])
            reached.append(value)
            if value > sorted(reached)[max(len(reached) // 2 - 1, 0)]:
                expected = rung
                break
        assert trial.epochs == expected


def test_nothing_is_pruned_for_one_that_came_to_nothing(monkeypatch) -> None:
    """The first trial leads by far when it diverges; held against it, no other would ever finish."""
    train = module.train

    def diverging(*args, on_epoch, **how):
        monkeypatch.setattr(module, "train", train)
        for number in range(1, 7):
            on_epoch(Epoch(number, 0.0, 0.0, -1000.0, 0.1, 0.0))
        raise TrainingDiverged("late")

    monkeypatch.setattr(module, "train", diverging)
    result = search(space=RATES, trials=3, **SHALLOW)
    assert [t.state for t in result.trials] == ["failed", "finished", "pruned"]
    assert [t.epochs for t in result.trials] == [6, 8, 2]
    assert result.trials[0].reason == "late"


# ---------------------------------------------------------------- time


def test_the_time_budget_is_kept() -> None:
    budget, slack = 2.5, 0.3  # the slack is that of a busy machine
    for _ in range(3):  # it may stand still once
        begin = time.perf_counter()
        result = search(base=BASE | {"epochs": 2000}, time_budget=budget, trials=1000)
        spent = time.perf_counter() - begin
        epoch = max(e.seconds for e in result.best_estimator.fitted_.members[0].history)
        longest = max(t.seconds for t in result.trials)
        if spent < 1.05 * budget + epoch + slack and longest < 0.25 * budget + epoch + slack:
            break
    assert 0.5 * budget < spent < 1.05 * budget + epoch + slack
    assert longest < 0.25 * budget + epoch + slack
    assert len(result.trials) > 2
    assert result.best_estimator.time_budget is None


def test_however_short_the_time_there_is_a_model() -> None:
    result = search(base=BASE | {"epochs": 2000}, time_budget=1e-3)
    assert [t.state for t in result.trials] == ["finished"]
    assert np.isfinite(result.best_estimator.predict(X)).all()


def test_how_the_time_is_shared() -> None:
    assert [share_of_time(40.0, 40.0, rounds) for rounds in (1000, 4, 2, 1)] == [10.0, 10.0, 20.0, 40.0]
    assert share_of_time(40.0, 6.0, 1000) == 6.0


@pytest.mark.parametrize("budget", [0, -1, float("nan"), float("inf")])
def test_a_time_budget_is_a_positive_number(budget) -> None:
    with pytest.raises(InputError, match="time_budget"):
        search(time_budget=budget)


# ---------------------------------------------------------------- going on


def test_a_search_goes_on_where_it_was(tmp_path, whole, monkeypatch) -> None:
    path = tmp_path / "price.study"
    first = search(trials=3, study=path)
    fits, fit = [], training.fit
    monkeypatch.setattr(training, "fit", lambda *a, **k: fits.append(1) or fit(*a, **k))
    second = search(trials=5, study=str(path))
    assert len(fits) == 2
    assert second.trials[:3] == first.trials
    assert_same(second, whole)
    assert_same(search(trials=5, study=path), whole)  # nothing left to do: all of it from the files
    assert_same(search(trials=2, study=path), whole)  # nor fewer than were done
    assert len(fits) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["price.study", "price.study.best.dspp"]


def test_a_process_that_dies_in_a_trial_costs_that_trial_only(tmp_path, whole) -> None:
    path = tmp_path / "s"
    script = f"""
        import itertools, os, sys
        import numpy as np, torch
        torch.set_num_threads(1)
        sys.path.insert(0, {str(Path(__file__).parent)!r})
        from test_tuning import search
        steps = itertools.count(1)
        # trial 0 takes 8 epochs of 3 steps; this is in the 5th epoch of trial 1, or in a later trial if that was pruned
        search(study={str(path)!r}, should_stop=lambda: next(steps) == 37 and os._exit(9))
    """
    died = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert died.returncode == 9
    with path.open("ab") as journal:
        journal.write(b'{"op_code":6,"worker_i')  # and while it wrote
    assert_same(search(study=path), whole)


def test_each_moment_of_death_leads_to_the_same_end(tmp_path) -> None:
    """Cut the journal after every line of the second trial: what a process that died there has left."""
    how = {"space": {"beta": (0.01, 1.0, "log")}, "trials": 3, **SHALLOW, "base": SHALLOW["base"] | {"epochs": 4}}
    reference = search(study=tmp_path / "s", **how)
    lines = (tmp_path / "s").read_bytes().splitlines(keepends=True)
    begin, first, second, _ = (i for i, line in enumerate(lines, 1) if b'"trials done":' in line)
    assert second - first > 8
    for count in (0, 1, begin - 1, begin, *range(first - 2, second + 1)):
        path = tmp_path / f"cut{count}"
        path.write_bytes(b"".join(lines[:count]))
        best_file(path).write_bytes(best_file(tmp_path / "s").read_bytes())  # of the whole search: maybe too good
        assert_same(search(study=path, **how), reference)


def test_a_lost_model_is_trained_again_once(tmp_path, monkeypatch) -> None:
    how = {"space": RATES, "study": tmp_path / "s", **SHALLOW}
    first = search(**how)
    file = best_file(tmp_path / "s")
    fits, fit = [], training.fit
    monkeypatch.setattr(training, "fit", lambda *a, **k: fits.append(1) or fit(*a, **k))
    for number, damage in enumerate((file.unlink, lambda: file.write_bytes(b"damaged")), 1):
        damage()
        assert_same(search(**how), first)
        assert_same(search(**how), first)
        assert len(fits) == number


def test_choices_of_any_kind_come_back_from_a_study(tmp_path) -> None:
    how = {"space": {"features": [(4, 2), (3,), None], "weight_decay": np.array([1e-3, 1e-4])}, "trials": 6, **SHALLOW}
    first = search(study=tmp_path / "s", **how)
    assert {t.params["features"] for t in first.trials} == {(4, 2), (3,), None}
    assert {t.params["weight_decay"] for t in first.trials} == {1e-3, 1e-4}
    assert_same(search(study=tmp_path / "s", **how), first)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"X": X + 1e-9}, "another table"),
        ({"y": -Y}, "another table"),
        ({"X_val": X_VAL, "y_val": Y_VAL}, "another table"),
        ({"space": {"learning_rate": [0.01, 0.02]}}, "another space or list of models"),
        ({"models": ("svgp",)}, "another space or list of models"),
        ({"base": SHALLOW["base"] | {"epochs": 2}}, "another base"),
        ({"base": SHALLOW["base"] | {"random_state": 1}}, "another seed"),
    ],
)
def test_a_study_of_something_else_is_refused(tmp_path, changes, named) -> None:
    how = {"space": RATES, "trials": 1, "study": tmp_path / "s", **SHALLOW}
    search(**how)
    before = (tmp_path / "s").read_bytes()
    with pytest.raises(InputError, match=named):
        search(**{**how, **changes})
    assert (tmp_path / "s").read_bytes() == before


@pytest.mark.parametrize(
    "content", [b"a,b\n1,2\n3,4", b"no line", b'{"op_code":99}\n{}\n', b'{"op_code":0}\n', b"\xff\xfe"]
)
def test_a_file_that_is_no_journal_is_refused_and_left_alone(tmp_path, content) -> None:
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="expected the journal of a search"):
        search(study=path, **SHALLOW)
    assert path.read_bytes() == content
    assert not best_file(path).exists()


def test_a_journal_of_somebody_elses_search_is_refused(tmp_path) -> None:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    theirs = optuna.create_study(storage=JournalStorage(JournalFileBackend(str(tmp_path / "s"))), study_name="dspp")
    theirs.tell(theirs.ask(), 1.0)
    with pytest.raises(InputError, match="created with another"):
        search(study=tmp_path / "s", **SHALLOW)


@pytest.mark.parametrize("name", ["no such folder/s", "."])
def test_a_path_that_cannot_be_written_is_named(tmp_path, name) -> None:
    with pytest.raises((CheckpointError, InputError), match="cannot"):
        search(study=tmp_path / name, **SHALLOW)


def test_one_process_at_a_time(tmp_path) -> None:
    with lock(best_file(tmp_path / "s")), pytest.raises(CheckpointError, match="another process"):
        search(study=tmp_path / "s", **SHALLOW)


def test_a_journal_is_text_and_nothing_in_it_is_unpickled(tmp_path, monkeypatch) -> None:
    def refuse(*args, **kwargs):
        raise AssertionError("unpickled")

    how = {"space": {"beta": (0.01, 1.0)}, "study": tmp_path / "s", **SHALLOW, "base": SHALLOW["base"] | {"epochs": 1}}
    search(trials=1, **how)
    monkeypatch.setattr(pickle, "loads", refuse)
    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    assert len(search(trials=2, **how).trials) == 2
    for line in (tmp_path / "s").read_text().splitlines():
        assert isinstance(json.loads(line), dict)


def test_asked_to_stop_it_says_how_to_go_on(tmp_path) -> None:
    steps = itertools.count(1)
    with pytest.raises(TrainingInterrupted, match=r"stopped in trial 2; repeat the same call to resume"):
        search(should_stop=lambda: next(steps) > 25, space=RATES, study=tmp_path / "s", **SHALLOW)
    with pytest.raises(TrainingInterrupted, match=r"pass study="):
        search(should_stop=lambda: True, space=RATES, **SHALLOW)
    assert_same(search(space=RATES, study=tmp_path / "s", **SHALLOW), search(space=RATES, **SHALLOW))


# ---------------------------------------------------------------- what is tried


def test_the_seed_decides_what_is_tried(whole) -> None:
    assert_same(search(), whole)
    other = search(base=BASE | {"random_state": 1}, trials=3)
    assert other.trials[0].params == whole.trials[0].params  # the model's own settings
    assert [t.params for t in other.trials[1:]] != [t.params for t in whole.trials[1:3]]


def test_a_small_space_is_tried_once_and_whole() -> None:
    space = {"learning_rate": [0.01, 0.1], "beta": [0.1, 1.0], "batch_size": (40, 41)}
    base = {"inducing": 5, "restarts": 1, "epochs": 1}
    result = search(space=space, models=("ppgpr",), base=base, trials=30)
    tried = [tuple(t.params[name] for name in space) for t in result.trials]
    assert sorted(tried) == sorted(itertools.product([0.01, 0.1], [0.1, 1.0], [40, 41]))
    some = search(space=space, models=("ppgpr",), base=base, trials=3)
    assert [t.params for t in some.trials] == [t.params for t in result.trials[:3]]


def suggestions(space: Space, count: int) -> list[dict]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [space.suggest(study.ask()) for _ in range(count)]


@pytest.fixture
def _quiet_optuna():
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    yield
    optuna.logging.set_verbosity(before)


@pytest.mark.usefixtures("_quiet_optuna")
def test_every_setting_of_the_default_space_holds_what_applies_to_its_model() -> None:
    deep = {name for name, kind in ESTIMATORS.items() if kind().spec().model.layers > 1}
    seen = suggestions(Space(tuple(ESTIMATORS), None, {}), 200)
    assert {params["model"] for params in seen} == set(ESTIMATORS)
    assert {params.get("topology") for params in seen} == {None, *TOPOLOGIES}
    for params in seen:
        names = {"model", "beta"}
        if params["model"] in deep:
            names |= {"layers", "width"} | ({"topology"} if params["layers"] == 3 else set())
            assert params["layers"] in (2, 3)
            assert 2 <= params["width"] <= 20
            assert isinstance(params["width"], int)
        assert params.keys() == names
        assert 0.01 <= params["beta"] <= 1


@pytest.mark.usefixtures("_quiet_optuna")
def test_ranges_are_kept() -> None:
    space = Space(("ppgpr",), {"beta": (1e-4, 1.0, "log"), "inducing": (5, 500, "log"), "learning_rate": (0.1, 1)}, {})
    seen = suggestions(space, 300)
    betas, inducing, rates = (np.array([p[name] for p in seen]) for name in ("beta", "inducing", "learning_rate"))
    assert np.mean(betas < 1e-2) == pytest.approx(0.5, abs=0.1)  # half of the decades
    assert np.mean(inducing < 50) == pytest.approx(0.5, abs=0.1)
    assert inducing.dtype.kind == "i"
    assert rates.min() >= 0.1
    assert np.mean(rates < 0.55) == pytest.approx(0.5, abs=0.1)


def test_settings_that_differ_in_what_does_not_apply_are_one() -> None:
    space = {"layers": [2, 3], "width": (2, 3), "topology": list(TOPOLOGIES), "gamma": [1.01, 1.1]}
    assert len(Space(("svgp",), space, {}).grid()) == 1
    assert len(Space(("dspp",), space, {}).grid()) == 2 + 2 * 4
    assert len(Space(("dspp", "svgp", "gamma-dgp"), space, {}).grid()) == 10 + 1 + 2 * 10
    assert Space(("dspp",), {"beta": (0.1, 1.0)}, {}).grid() is None
    assert Space(("dspp",), {"inducing": (1, 10_000)}, {}).grid() is None
    assert Range(1, 3).values() == range(1, 4)


def test_parameters_reach_the_setting_they_name() -> None:
    base = {"noise_floor": 1e-3, "layers": 3, "train_settings": {"warmup": 0.1}, "beta": None}
    space = Space(("gamma-dgp", "svgp"), {"gamma": [1.1], "weight_decay": [1e-3]}, base)
    deep = space.estimator({"model": "gamma-dgp", "gamma": 1.1, "weight_decay": 1e-3})
    assert (deep.spec().objective.gamma, deep.spec().model.noise_floor, deep.spec().model.layers) == (1.1, 1e-3, 3)
    assert (deep.train_config(100, 0).weight_decay, deep.train_config(100, 0).warmup) == (1e-3, 0.1)
    shallow = space.estimator({"model": "svgp", "weight_decay": 1e-3})
    assert shallow.spec().model.layers == 1
    assert base["train_settings"] == {"warmup": 0.1}


def test_what_base_fixes_is_not_searched() -> None:
    space = Space(("dspp",), None, {"layers": 2, "beta": 0.3, "width": None})
    assert list(space.dimensions) == ["model", "width", "topology"]
    assert space.start(1) == {"model": "dspp", "width": 5}
    assert space.start(3) == {"model": "dspp", "width": SHARED_WIDTH}
    grid = Space(("dspp",), None, {"rule": "qr2"})
    assert grid.dimensions["width"] == Range(2, 5)  # of 3^W sites
    assert grid.start(3)["width"] == 5
    assert space.estimator({"model": "dspp", "width": 4}).beta == 0.3


def test_what_base_fixes_as_a_further_setting_is_not_searched() -> None:
    space = Space(("dspp",), None, {"model_settings": {"beta": 0.3, "layers": 3}, "train_settings": {"warmup": 0.1}})
    assert list(space.dimensions) == ["model", "width", "topology"]
    assert space.start(1) == {"model": "dspp", "width": 5, "topology": "feedforward"}
    assert space.estimator({"model": "dspp", "width": 4}).spec().objective.beta == 0.3
    assert Space(("dspp",), None, {"model_settings": {"layers": 1}}).start(1).keys() == {"model", "beta"}
    assert Space(("dspp",), None, {"model_settings": {"rule": "qr2"}}).dimensions["width"] == Range(2, 5)


# ---------------------------------------------------------------- what goes wrong


def test_a_setting_that_diverges_does_not_end_the_search() -> None:
    result = search(space={"learning_rate": [ENDLESS, 0.05]}, **SHALLOW)
    failed = next(t for t in result.trials if t.params["learning_rate"] == ENDLESS)
    assert (failed.state, failed.val_nll) == ("failed", None)
    assert "learning_rate" in failed.reason
    assert result.best_params["learning_rate"] == 0.05


def test_a_setting_that_cannot_be_does_not_end_the_search() -> None:
    base = BASE | {"rule": "gauss-hermite", "layers": 2, "epochs": 2}
    result = search(space={"width": [1, 40]}, base=base)
    assert {t.params["width"]: t.state for t in result.trials} == {1: "finished", 40: "failed"}


def test_when_nothing_can_be_trained_it_says_why() -> None:
    with pytest.raises(InputError, match=r"got 2 failures.*learning_rate"):
        search(space={"learning_rate": [ENDLESS, 2 * ENDLESS]}, **SHALLOW)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"space": {"betta": (0.1, 1.0)}},
            r"space: 'betta' is not a parameter; choose from: batch_size, .*beta, .*width",
        ),
        ({"base": {"epoch": 3}}, r"base: 'epoch' is not a parameter; choose from: .*epochs"),
        ({"base": {"seed": 3}}, r"base: 'seed' cannot be set here"),
        ({"base": {"time_budget": 3}}, r"base: 'time_budget' cannot be set here"),
        ({"space": {"random_state": [0, 1]}}, r"space: 'random_state' cannot be set here"),
        ({"space": {"validation_fraction": [0.1, 0.2]}}, r"space: 'validation_fraction' cannot be set here"),
        ({"space": {"model": ["dspp"]}}, r"models=\["),
        ({"space": {"width": [2, 3]}, "base": {"width": 3}}, r"'width' is both in space and in base"),
        ({"space": {"beta": [1, 2]}, "base": {"model_settings": {"beta": 3}}}, r"'beta' is both in space and in base"),
        ({"space": {"warmup": [0, 1]}, "base": {"train_settings": {"warmup": 0}}}, r"'warmup' is both in space and in"),
        ({"space": {"beta": 0.1}}, r"beta: expected a list of choices.* got 0.1"),
        ({"space": {"kernel": "rbf"}}, r"kernel: expected a list of choices.* got 'rbf'"),
        ({"space": {"beta": []}}, r"beta: expected a list of choices.* got \[\]"),
        ({"space": {"beta": (1.0, 0.1)}}, r"expected low < high"),
        ({"space": {"beta": (0.0, 0.1, "log")}}, r"0 < low with 'log'"),
        ({"space": {"beta": (0.1, float("inf"))}}, r"expected low < high"),
        ({"models": ("dsp",)}, r"models: unknown model 'dsp'; choose from: dspp, ppgpr"),
        ({"models": ()}, r"models: expected at least one model, got none; choose from: dspp"),
        ({"trials": 0}, r"trials: expected an integer ≥ 1, got 0"),
        ({"trials": 2.5}, r"trials: expected an integer ≥ 1, got 2.5"),
        ({"X_val": X_VAL}, r"neither of X_val and y_val"),
        ({"X_val": X_VAL[:, :1], "y_val": Y_VAL}, r"X has 1 features"),
        ({"X_val": X_VAL, "y_val": Y_VAL[:3]}, r"y_val: expected 30 rows"),
        ({"base": {"validation_fraction": 0.0}}, r"expected validation rows"),
        ({"X": X[:10], "y": Y[:10]}, r"expected validation rows, got none of 10 rows"),
        ({"y": Y[:-1]}, r"expected 120 rows"),
        ({"X": [["a"]] * 120}, r"row 0, column 0"),
    ],
)
def test_what_cannot_be_used_is_named_before_anything_is_trained(monkeypatch, changes, message) -> None:
    monkeypatch.setattr(Search, "run", lambda *a: pytest.fail("a trial was begun"))
    with pytest.raises(InputError, match=message):
        search(**changes)


# ---------------------------------------------------------------- manners


def test_it_is_quiet_and_leaves_optunas_settings_alone(capfd) -> None:
    before = optuna.logging.get_verbosity()
    levels = []
    search(space=RATES, trials=2, should_stop=lambda: levels.append(optuna.logging.get_verbosity()) or False, **SHALLOW)
    assert set(levels) == {optuna.logging.ERROR} != {before}
    assert optuna.logging.get_verbosity() == before
    with pytest.raises(InputError):
        search(space={"learning_rate": [ENDLESS]}, **SHALLOW)
    assert optuna.logging.get_verbosity() == before
    assert capfd.readouterr() == ("", "")


def test_a_person_sees_the_trial_the_best_nll_and_the_time_left(capfd, monkeypatch) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    how = {"models": ("ppgpr",), "base": SHALLOW["base"] | {"progress": True}}
    result = search(space=RATES, trials=2, time_budget=60, **how)
    out, shown = capfd.readouterr()
    assert out == ""
    assert "trial 2 of 2" in shown
    assert f"best NLL {result.best_nll:+.3f}" in shown
    assert "0:00 left" in shown


def test_the_fingerprint_is_of_the_numbers() -> None:
    def fingerprint(X, y, X_val=None, y_val=None):
        validation = None if X_val is None else attach_targets(to_table(X_val), y_val)
        return digest(prepare(attach_targets(to_table(X), y), Settings(members=1), validation=validation))

    assert fingerprint(X, Y) == fingerprint(X.tolist(), list(Y))
    frame = pd.DataFrame(X, columns=["a", "b"])
    assert fingerprint(frame, Y) == fingerprint(frame.copy(), pd.Series(Y))
    different = [fingerprint(X, Y), fingerprint(X[::-1], Y), fingerprint(X, Y[::-1])]
    assert len({*different, fingerprint(X[:60], Y[:60], X[60:], Y[60:])}) == 4

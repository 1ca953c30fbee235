"""Promise 31: a group stays together and time goes forward, in every split, fold and calibration part."""

import datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import dspp
from dspp.cli.app import app
from dspp.encoding.encoder import TableEncoder
from dspp.errors import InputError
from dspp.evaluate import evaluate
from dspp.folds import NEVER, assign_folds, deal_groups, draw_groups, latest_rows
from dspp.members import run
from dspp.members import trees as grown
from dspp.members.plan import make_plan
from dspp.prepare import Prepared, prepare, split_rows
from dspp.settings import Settings
from dspp.table.memory import attach_roles, attach_targets, label_rows, to_table
from dspp.trees.fit import Boosting

N = 120
TINY: dict[str, Any] = {"inducing": 5, "width": 2, "sites": 3, "epochs": 2, "jobs": 1}
RANDOM = np.random.default_rng(5)
X = np.column_stack([np.arange(N, dtype=float), RANDOM.normal(size=N)])  # the first column tells the rows apart
Y = np.sin(X[:, 0] / 9) + X[:, 1] + 0.1 * RANDOM.normal(size=N)
BOTH = np.column_stack([Y, np.where(np.arange(N) % 3, np.nan, X[:, 1])])
GROUPS = RANDOM.integers(0, 17, N)
TIMES = RANDOM.permutation(N) // 3  # three rows at a time

Roles = dict[str, Any]
sizes = st.lists(st.integers(1, 9), min_size=2, max_size=30)


def prepared(roles: Roles, y: np.ndarray = Y, validation: Any = None, **settings: Any) -> Prepared:
    table = attach_roles(attach_targets(to_table(X), y), **roles)
    return prepare(table, Settings(**TINY | settings), validation=validation)


def rows_of(table: Any) -> np.ndarray:
    return table.array[:, 0].astype(int)


def assert_apart(one: np.ndarray, other: np.ndarray, groups: np.ndarray = GROUPS) -> None:
    assert len(one)
    assert len(other)
    assert not set(groups[one]) & set(groups[other])


# ---------------------------------------------------------------- folds and parts


@given(sizes, st.integers(1, 9), st.integers(0, 99))
def test_a_group_has_one_fold(counts: list[int], folds: int, seed: int) -> None:
    groups = np.random.default_rng(seed).permutation(np.repeat(7 * np.arange(len(counts)), counts))
    fold = assign_folds(len(groups), min(folds, len(counts)), seed, groups)
    pairs = set(zip(groups.tolist(), fold.tolist(), strict=True))
    assert len(pairs) == len(counts)
    if folds > 1:
        assert set(fold) == set(range(min(folds, len(counts))))
    else:
        assert set(fold) == {NEVER, 0}
        held_out = max(1, round(0.1 * len(groups)))
        assert (fold == 0).sum() <= max(held_out, min(counts))
    assert np.array_equal(fold, assign_folds(len(groups), min(folds, len(counts)), seed, groups))


def test_folds_of_groups_are_of_nearly_equal_size_and_random() -> None:
    groups = np.repeat(np.arange(60), np.arange(60) % 7 + 1)
    found = [deal_groups(groups, 5, seed) for seed in range(9)]
    for fold in found:
        assert np.ptp(np.bincount(fold)) <= 2
    assert len({fold.tobytes() for fold in found}) == 9


@given(st.lists(st.integers(0, 12), min_size=2, max_size=60), st.integers(1, 30))
def test_the_latest_rows_are_later_than_all_others(times: list[int], count: int) -> None:
    keys = np.array(times)
    if len(set(times)) == 1:
        with pytest.raises(InputError, match="expected at least 2 different times"):
            latest_rows(keys, count)
        return
    held = latest_rows(keys, count)
    assert held.any()
    assert not held.all()
    assert keys[held].min() > keys[~held].max()
    others = [(keys >= cut).sum() for cut in set(times) if (keys >= cut).sum() < len(keys)]
    assert abs(held.sum() - count) == min(abs(other - count) for other in others), "no other cut is nearer"


@pytest.mark.parametrize("y", [Y, BOTH], ids=["one output", "two outputs"])
@pytest.mark.parametrize("seed", range(5))
def test_a_single_model_holds_out_groups(seed: int, y: np.ndarray) -> None:
    made = prepared({"groups": GROUPS}, y, members=1, conformal=True, random_state=seed)
    assert made.table is not None
    assert len(made.train) + len(made.validation) + len(made.calibration) == N
    validation, calibration = rows_of(made.validation_table), rows_of(made.calibration_table)
    training = np.setdiff1d(np.arange(N), [*validation, *calibration])
    for one, other in ((training, validation), (training, calibration), (validation, calibration)):
        assert_apart(one, other)
    assert len(validation) <= 0.1 * N
    assert len(calibration) <= 0.1 * N


@pytest.mark.parametrize("y", [Y, BOTH], ids=["one output", "two outputs"])
def test_a_single_model_holds_out_the_latest_rows(y: np.ndarray) -> None:
    made = prepared({"times": TIMES}, y, members=1, conformal=True)
    validation, calibration = rows_of(made.validation_table), rows_of(made.calibration_table)
    training = np.setdiff1d(np.arange(N), [*validation, *calibration])
    assert (len(training), len(validation), len(calibration)) == (96, 12, 12)
    assert TIMES[training].max() < TIMES[validation].min()
    assert TIMES[validation].max() < TIMES[calibration].min()


def test_rows_of_a_rare_output_move_to_the_training_rows_with_their_group() -> None:
    y = np.column_stack([Y, np.full(N, np.nan)])
    for seed in range(20):
        validation = split_rows(Settings(random_state=seed), N, False, None, GROUPS)[1]
        y[:, 1] = np.nan
        y[validation[:2], 1] = 1.0
        parts = split_rows(Settings(random_state=seed), N, False, ~np.isnan(y), GROUPS)
        assert np.isfinite(y[parts[0], 1]).sum() >= 2
        assert not set(GROUPS[parts[0]]) & set(GROUPS[parts[1]])
    late = np.argsort(TIMES)[-2:]
    y[:, 1] = np.nan
    y[late, 1] = 1.0
    with pytest.raises(InputError, match="observed values of every output before the rows held out"):
        split_rows(Settings(), N, False, ~np.isnan(y), None, TIMES)


def test_nothing_is_held_out_of_small_tables_or_on_request() -> None:
    for settings, count in ((Settings(validation_fraction=0.0), N), (Settings(), 19)):
        for roles in ({"groups": np.zeros(count, int)}, {"times": np.zeros(count)}):
            assert [len(part) for part in split_rows(settings, count, False, None, **roles)] == [count, 0, 0]


# ---------------------------------------------------------------- what members and their trees are trained on


class Seen:
    """Records on which rows each member and each fit of trees is trained, and for which rows it then predicts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.members: list[tuple[np.ndarray, np.ndarray]] = []
        self.trees: list[tuple[np.ndarray, np.ndarray]] = []
        self.stop_early: list[bool] = []
        part_rows, boost, fit = run.part_rows, Boosting.fit, grown.cross_fit
        self.fold: Any = None

        def rows_of_member(*task: Any) -> Any:
            given = part_rows(*task)
            self.members.append(tuple(self._numbers(part.x[:, 0].numpy()) for part in given))
            return given

        def record(X: Any, fold: Any, **how: Any) -> Any:
            self.x = X[:, 0]
            return fit(X, np.arange(len(X), dtype=float), fold, **how)  # targets that tell the rows apart

        def recording_boost(how: Any, X: Any, y: Any, weights: Any) -> Any:
            self.stop_early.append(how.stop_early)
            return Recording(boost(how, X, y, weights), y.astype(int), self)

        monkeypatch.setattr(run, "part_rows", rows_of_member)
        monkeypatch.setattr(grown, "cross_fit", lambda X, y, fold, **how: record(X, fold, **how))
        monkeypatch.setattr(Boosting, "fit", recording_boost)

    def _numbers(self, standardised: np.ndarray) -> np.ndarray:
        scale = X[:, 0].std()
        return np.rint(standardised * scale + X[:, 0].mean()).astype(int)

    def predicted(self, trained: np.ndarray, x: np.ndarray) -> None:
        self.trees.append((trained, self._numbers(x)))


class Recording:
    """Trees that record for which rows they predict."""

    def __init__(self, trees: Any, trained: np.ndarray, seen: Seen) -> None:
        self._trees, self._trained, self._seen = trees, trained, seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trees, name)

    def first(self, count: int) -> Any:
        return self

    def predict(self, rows: np.ndarray) -> Any:
        self._seen.predicted(self._trained, rows[:, 0])
        return self._trees.predict(rows)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


@pytest.mark.parametrize("case", ["folds", "few groups", "one part"])
def test_members_and_trees_hold_out_groups(seen: Seen, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    groups = GROUPS % 3 if case == "few groups" else GROUPS
    if case == "one part":
        monkeypatch.setattr("dspp.members.plan.MAX_ROWS_IN_FOLDS", 100)
    model = dspp.DSPPRegressor(**TINY).fit(X, Y, groups=groups)
    folds = {"folds": 5, "few groups": 3, "one part": 1}[case]
    assert len({held_out.tobytes() for _, held_out in seen.members}) == folds
    for training, held_out in seen.members:
        assert_apart(training, held_out, groups)
        assert len(training) + len(held_out) == N
    out_of_sample = [(trained, asked) for trained, asked in seen.trees if len(trained) < N]
    assert len(out_of_sample) >= 2 * folds
    for trained, asked in out_of_sample:
        assert_apart(trained, asked, groups)
    assert not any(seen.stop_early), "which would split groups"
    assert "trees" in {kind for kind, _ in make_plan(Settings(), N, kinds=("plain", "trees"), max_folds=folds).slots}
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize("case", ["spans", "few times", "one part"])
def test_the_latest_rows_judge_members_trained_on_earlier_ones(
    seen: Seen, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if case == "one part":
        monkeypatch.setattr("dspp.members.plan.MAX_ROWS_IN_FOLDS", 100)
    times = TIMES // 14 if case == "few times" else TIMES
    model = dspp.DSPPRegressor(**TINY).fit(X, Y, time=times)
    held_out = {tuple(np.sort(rows)) for _, rows in seen.members}
    assert len(held_out) == {"spans": 5, "few times": 3, "one part": 1}[case]
    judged = max(held_out, key=lambda rows: times[list(rows)].min())
    assert len(judged) in {"spans": [24], "few times": [36], "one part": [12]}[case]
    for rows in held_out:
        others = np.setdiff1d(np.arange(N), rows)
        assert not set(times[list(rows)]) & set(times[others]), "rows of the same time stay together"
    training = next(training for training, rows in seen.members if tuple(np.sort(rows)) == judged)
    latest = np.array(judged)
    assert times[training].max() < times[latest].min()
    asked_late = [trained for trained, asked in seen.trees if len(trained) < N and set(asked) == set(latest)]
    assert asked_late
    for trained in asked_late:
        assert times[trained].max() < times[latest].min(), "no later row trains for an earlier one that judges"
    fitted = model.fitted_
    which = "that no member was trained on" if case == "one part" else "that are the latest, predicted by the members"
    assert fitted.scored.startswith(f"{len(judged)} rows {which}")
    judge = evaluate(fitted, attach_targets(to_table(X[latest]), Y[latest]))
    assert len(judge.table) == len(judged)


def test_validation_rows_that_are_given_leave_all_groups_to_training(seen: Seen) -> None:
    new = attach_targets(to_table(X[:10] + np.array([1000.0, 0.0])), Y[:10])
    made = prepared({"groups": GROUPS}, validation=new)
    assert made.split.inner is not None
    assert made.split.fold.tolist() == [NEVER] * N + [0] * 10
    by_group = {(g, f) for g, f in zip(GROUPS.tolist(), made.split.inner[:N].tolist(), strict=True)}
    assert len(by_group) == len(set(GROUPS))
    assert len(set(made.split.inner[:N])) == 5


def test_means_of_categories_and_the_choice_of_likelihood_keep_groups_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    levels = [f"level {k % 40}" for k in range(N)]
    frame = to_table(pd.DataFrame({"a": X[:, 0], "many": levels}))
    table = attach_roles(attach_targets(frame, np.exp(Y)), groups=GROUPS)
    folds: list[np.ndarray] = []

    def recording_score(X: Any, y: Any, weights: Any, fold: np.ndarray, limits: dict[str, Any]) -> float:
        assert not limits["stop_early"]
        folds.append(fold)
        return 0.0

    monkeypatch.setattr("dspp.outcomes.choice.score_by_trees", recording_score)
    many = prepare(table, Settings(**TINY))
    assert len(folds) == 2
    assert len(set(zip(GROUPS.tolist(), folds[0].tolist(), strict=True))) == len(set(GROUPS))
    assert isinstance(many.means, partial)
    assert many.means.keywords["inner"].tolist() == many.split.fold.tolist()
    seen: list[np.ndarray] = []
    cross_fit_means = TableEncoder.cross_fit_means

    def recording_means(encoder: Any, columns: Any, y: Any, inner: np.ndarray, *more: Any) -> Any:
        seen.append(inner)
        return cross_fit_means(encoder, columns, y, inner, *more)

    monkeypatch.setattr(TableEncoder, "cross_fit_means", recording_means)
    one = prepare(table, Settings(**TINY, members=1))
    groups = np.delete(GROUPS, rows_of_frame(one.validation_table))
    assert len(set(zip(groups.tolist(), seen[0].tolist(), strict=True))) == len(set(groups))
    assert len(set(seen[0])) == 5


def rows_of_frame(table: Any) -> np.ndarray:
    return np.asarray(table.arrow.column("a")).astype(int)


def test_two_groups_leave_no_rows_for_trees() -> None:
    made = prepared({"groups": GROUPS % 2})
    size = made.plan(Settings(**TINY))
    assert size.folds == 2
    assert {kind for kind, _ in size.slots} == {"plain"}
    assert "trees" in {kind for kind, _ in prepared({"groups": GROUPS % 3}).plan(Settings(**TINY)).slots}


def test_folds_without_groups_are_what_they_were() -> None:
    made, usual = prepared({}), make_plan(Settings(), N, kinds=("plain", "trees", "gp"))
    assert made.split.inner is None
    np.testing.assert_array_equal(made.split.fold, assign_folds(N, 5, 0))
    assert made.plan(Settings()).slots == usual.slots


# ---------------------------------------------------------------- labels and times of all kinds


DAYS = [datetime.date(2024, 1, 1) + datetime.timedelta(days=int(t)) for t in TIMES]
KINDS_OF_TIMES = {
    "integers": TIMES,
    "floats": TIMES / 7,
    "list": TIMES.tolist(),
    "datetime64": np.array(DAYS, "datetime64[ns]"),
    "dates": DAYS,
    "text": [day.isoformat() for day in DAYS],
    "numbers as text": [str(t) for t in TIMES],
    "pandas": pd.Series(pd.to_datetime(DAYS), name="day"),
    "pandas with a time zone": pd.Series(pd.to_datetime(DAYS).tz_localize("Europe/Paris")),
    "polars": pl.Series("day", DAYS),
    "arrow": pa.table({"day": DAYS}),
}


@pytest.mark.parametrize("times", KINDS_OF_TIMES.values(), ids=KINDS_OF_TIMES.keys())
def test_times_of_all_kinds(times: Any) -> None:
    table = attach_roles(to_table(X), times=times)
    assert table.times is not None
    np.testing.assert_array_equal(np.unique(table.times, return_inverse=True)[1], TIMES)


KINDS_OF_GROUPS = {
    "integers": GROUPS,
    "text": [f"patient {g}" for g in GROUPS],
    "pandas categories": pd.Series([f"p{g}" for g in GROUPS], dtype="category"),
    "floats": GROUPS / 3,
    "dates": [datetime.date(2024, 1, 1) + datetime.timedelta(days=int(g)) for g in GROUPS],
    "booleans": GROUPS > 7,
    "a column": GROUPS.reshape(-1, 1),
}


@pytest.mark.parametrize("groups", KINDS_OF_GROUPS.values(), ids=KINDS_OF_GROUPS.keys())
def test_groups_of_all_kinds(groups: Any) -> None:
    table = attach_roles(to_table(X), groups=groups)
    assert table.groups is not None
    expected = GROUPS > 7 if np.asarray(groups).dtype == bool else GROUPS
    assert len(set(zip(table.groups.tolist(), expected.tolist(), strict=True))) == len(set(expected.tolist()))


BAD: dict[str, tuple[Roles, str]] = {
    "too few": ({"groups": GROUPS[1:]}, "groups: expected 120 values, one per row of X, got 119"),
    "two columns": ({"time": X}, "time: expected 120 values, one per row of X, got 120 rows of 2 columns"),
    "a number": ({"time": 3}, "time: expected one value per row, got 3"),
    "no group": ({"groups": [None, *["a"] * (N - 1)]}, "row 0: expected a group in every row, got none"),
    "NaN": ({"time": np.where(np.arange(N) == 4, np.nan, TIMES)}, "row 4: expected a time in every row, got none"),
    "inf": ({"time": np.where(np.arange(N) == 4, np.inf, TIMES)}, "row 4: expected a finite number, got inf"),
    "words": ({"time": ["2024-01-01"] * 5 + ["soon"] * (N - 5)}, "row 5: expected a date or time .*, got 'soon'"),
    "flags": ({"time": GROUPS > 7}, "expected dates, timestamps or numbers, got bool"),
    "mixed": ({"groups": np.array([1, "a", *GROUPS[2:]], object)}, "groups: expected one value per row"),
    "both": ({"groups": GROUPS, "time": TIMES}, "expected groups or times, got both"),
    "one group": ({"groups": np.zeros(N)}, "expected at least 2 different groups, .*, got 1; leave the groups out"),
    "one time": ({"time": np.zeros(N)}, "expected at least 2 different times, .*, got 1; leave the time out"),
}


@pytest.mark.parametrize(("roles", "problem"), BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("count", [1, "auto"])
def test_what_cannot_be_used_is_refused(roles: Roles, problem: str, count: int | str) -> None:
    with pytest.raises(InputError, match=problem):
        dspp.DSPPRegressor(**TINY, members=count).fit(X, Y, **roles)


def test_too_few_groups_to_hold_out_two_parts() -> None:
    with pytest.raises(InputError, match=r"expected at least 3 different groups, .*, got 2"):
        dspp.DSPPRegressor(**TINY, members=1, conformal=True).fit(X, Y, groups=GROUPS % 2)
    assert draw_groups(GROUPS % 2, 1, 0).sum() == min(np.bincount(GROUPS % 2)), "the smaller of two groups is held out"


# ---------------------------------------------------------------- the command line


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("roles") / "train.csv"
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": Y, "who": [f"p{g}" for g in GROUPS], "day": DAYS}).to_csv(
        path, index=False
    )
    return path


QUICK = ["--inducing", "5", "--width", "2", "--sites", "3", "--epochs", "2"]


def fit(table: Path, *words: str, ok: bool = True) -> str:
    out = table.with_name("m.dspp")
    words = ("fit", str(table), "--target", "y", "--out", str(out), "--overwrite", *QUICK, *words)
    result = CliRunner().invoke(app, words)
    assert (result.exit_code == 0) == ok, result.output
    return result.output


@pytest.mark.parametrize(
    ("words", "inputs", "made"),
    [
        (["--group", "who"], ["a", "b", "day"], {"groups": GROUPS}),
        (["--time", "day"], ["a", "b", "who", "day"], {"times": DAYS}),
        (["--time", "day", "--drop", "day"], ["a", "b", "who"], {"times": DAYS}),
    ],
)
@pytest.mark.parametrize("count", ["1", "auto"])
def test_the_command_line_splits_the_same_way(
    table: Path, words: list[str], inputs: list[str], made: Roles, count: str
) -> None:
    output = fit(table, *words, "--members", count)
    model = dspp.load(table.with_name("m.dspp"))
    assert list(model.feature_names_in_) == inputs
    members_wanted = int(count) if count == "1" else count
    expected = prepared(made, members=members_wanted)
    judging = expected.split.fold == 0 if "times" in made else expected.split.fold != NEVER
    held_out = len(expected.validation) if count == "1" else np.count_nonzero(judging)
    assert f"cores on {held_out} rows" in output  # of validation rows, out of fold, or the latest


WRONG: list[tuple[list[str], str]] = [
    (["--group", "wo"], "expected a column 'wo' (--group); did you mean 'who'?"),
    (["--time", "who"], "expected a date or time"),
    (["--group", "who", "--time", "day"], "expected --group or --time, got both"),
    (["--group", "y"], "column 'y' is both --target and --group"),
]


@pytest.mark.parametrize(("words", "problem"), WRONG)
def test_the_command_line_says_what_is_wrong(table: Path, words: list[str], problem: str) -> None:
    assert problem in " ".join(fit(table, *words, ok=False).split())


def test_columns_of_a_table_become_roles() -> None:
    frame = to_table(pd.DataFrame({"a": X[:, 0], "who": GROUPS, "w": Y - Y.min(), "y": Y}))
    found = label_rows(frame, ["y"], weight="w", group="who")
    assert found.names == ("a",)
    assert found.groups is not None
    assert found.weights is not None
    np.testing.assert_allclose(found.weights[found.weights > 0].mean(), 1.0)
    taken = found.take(np.array([3, 1]))
    assert taken.groups is not None
    assert taken.groups.tolist() == found.groups[[3, 1]].tolist()

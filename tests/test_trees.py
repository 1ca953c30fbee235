"""Boosted trees: the same as scikit-learn's, independent of batches, blind to their own targets, safe from a file."""

import ast
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.ensemble import HistGradientBoostingRegressor

import dspp.trees
from dspp import storage
from dspp.codec import pack, unpack
from dspp.errors import DsppError, InputError, TrainingInterrupted
from dspp.trees import Trees, cross_fit, crossfit, ensemble, fit_trees
from dspp.trees.ensemble import LEAVES, MAX_TREES, NODES
from dspp.trees.fit import BINS, MAX_COLUMNS, MIN_ROWS, Boosting, bin_columns, choose_columns, choose_cuts, convert


def table(num_rows: int = 300, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Inputs with many values, few values and one value; targets with an interaction and noise."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(size=(num_rows, 2)), rng.integers(0, 4, num_rows), np.full(num_rows, 7.0)])
    return X, np.sin(3 * X[:, 0]) * X[:, 2] + X[:, 1] ** 2 + rng.normal(scale=0.1, size=num_rows)


@pytest.fixture(scope="module")
def trees() -> Trees:
    return fit_trees(*table(), max_rounds=100)


# ---------------------------------------------------------------- prediction


@pytest.mark.parametrize("leaves", [2, 5, LEAVES])
def test_converted_trees_predict_as_scikit_learn_does(leaves: int) -> None:
    X, y = table(400)
    model = HistGradientBoostingRegressor(max_iter=30, max_leaf_nodes=leaves, min_samples_leaf=3, random_state=0)
    converted = convert(model.fit(X, y), X)
    at = converted.threshold[converted.left_leaves != 0][:100]
    rows = [X, table(400, seed=1)[0]]
    for d in range(X.shape[1]):  # on each side of thresholds, and exactly there
        for column in (at, np.nextafter(at, -np.inf), np.nextafter(at, np.inf)):
            rows.append(X[: len(at)].copy())
            rows[-1][:, d] = column
    for R in rows:
        np.testing.assert_allclose(converted.predict(R), model.predict(R), rtol=0, atol=1e-6)


def test_a_walk_from_node_to_node_agrees(trees: Trees) -> None:
    """The slow, obvious way: among the leaves that are left, each node of the tree decides for all below it."""
    X = table(20, seed=1)[0]
    for x, predicted in zip(X, trees.predict(X), strict=True):
        total = trees.base
        for t in range(len(trees)):
            leaves = set(range(LEAVES))
            for j in range(NODES):
                if x[trees.feature[t, j]] > trees.threshold[t, j]:
                    leaves -= {leaf for leaf in range(LEAVES) if trees.left_leaves[t, j] >> leaf & 1}
            total += trees.value[t, min(leaves)]
        assert predicted == pytest.approx(total, abs=1e-9)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 9, 33, 100])
def test_predictions_do_not_depend_on_batches(trees: Trees, count: int) -> None:
    few = trees.first(count)
    X = table(1_200, seed=1)[0]
    together = few.predict(X)
    for size in (1, 2, 3, 13, 500, 777):
        apart = np.concatenate([few.predict(X[i : i + size]) for i in range(0, len(X), size)])
        np.testing.assert_array_equal(apart, together)
    np.testing.assert_array_equal(few.predict(np.asfortranarray(X)), together)
    np.testing.assert_array_equal(few.predict(X[::-1])[::-1], together)
    assert few.predict(X[:0]).shape == (0,)


def test_rounding_the_training_rows_to_float32_changes_no_branch(trees: Trees) -> None:
    X, _ = table()
    np.testing.assert_array_equal(trees.predict(X.astype(np.float32)), trees.predict(X))


def test_prediction_checks_its_columns(trees: Trees) -> None:
    with pytest.raises(InputError, match="5 features"):
        trees.predict(np.zeros((2, 5)))
    with pytest.raises(InputError, match="2-D"):
        trees.predict(np.zeros(4))


def test_blocks_of_trees_add_up(trees: Trees, monkeypatch: pytest.MonkeyPatch) -> None:
    X, whole = table(seed=2)[0], trees.predict(table(seed=2)[0])
    monkeypatch.setattr(ensemble, "BLOCK", 7)  # 100 trees: the last block is smaller
    np.testing.assert_allclose(replace(trees).predict(X), whole, rtol=1e-12)


# ---------------------------------------------------------------- fits


def test_trees_learn_and_repeat(trees: Trees) -> None:
    X, y = table(seed=1)
    assert np.std(trees.predict(X) - y) < 0.35 * np.std(y)
    again = fit_trees(*table(), max_rounds=100)
    np.testing.assert_array_equal(again.predict(X), trees.predict(X))


def test_large_tables_stop_early_and_repeat() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2_500, 2))
    noise = rng.normal(size=2_500)
    a, b, other = (fit_trees(X, noise, seed=seed) for seed in (3, 3, 4))
    assert len(a) < 50, "there is nothing to learn"
    np.testing.assert_array_equal(a.predict(X), b.predict(X))
    assert not np.array_equal(a.predict(X), other.predict(X))
    assert len(fit_trees(X, X[:, 0] * X[:, 1], max_rounds=40)) == 40


def test_weights() -> None:
    X, y = table()
    w = np.random.default_rng(2).integers(0, 3, len(y)).astype(float)
    weighted = fit_trees(X, y, weights=w, max_rounds=5).predict(X)
    np.testing.assert_array_equal(fit_trees(X, y, weights=4 * w, max_rounds=5).predict(X), weighted)
    y[w == 0] = X[w == 0, 0] = 1e6
    np.testing.assert_array_equal(fit_trees(X, y, weights=w, max_rounds=5).predict(table()[0]), weighted)
    np.testing.assert_array_equal(
        fit_trees(X[w > 0], y[w > 0], weights=w[w > 0], max_rounds=5).predict(table()[0]), weighted
    )
    assert not np.array_equal(fit_trees(X[w > 0], y[w > 0], max_rounds=5).predict(table()[0]), weighted)


def test_max_rows_limits_the_rows_in_use() -> None:
    X, y = table()
    boosting, weights = Boosting(max_rounds=5, max_rows=100), np.ones(300)
    binned = bin_columns(X, weights, 0)
    few = boosting.fit(binned, y, weights)
    others = [boosting.fit(binned, np.where(np.arange(300) == i, 9.0, y), weights) for i in range(8)]
    changed = [not np.array_equal(other.value, few.value) for other in others]
    assert 0 < sum(changed) < 8, "about a third of the rows is in use"


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e100])
def test_the_unit_of_the_target_does_not_matter(trees: Trees, scale: float) -> None:
    X, y = table()
    np.testing.assert_allclose(
        fit_trees(X, scale * y, max_rounds=100).predict(X), scale * trees.predict(X), rtol=1e-6, atol=1e-6 * scale
    )


@pytest.mark.parametrize("rows", [1, MIN_ROWS - 1, MIN_ROWS, 50])
def test_few_rows_and_constant_targets(rows: int) -> None:
    X, y = table(rows)
    predicted = fit_trees(X, y).predict(X)
    assert np.isfinite(predicted).all()
    if rows < MIN_ROWS:
        np.testing.assert_allclose(predicted, y.mean())
    np.testing.assert_array_equal(fit_trees(X, np.full(rows, 3.0)).predict(X), 3.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.ones((300, 2))}, "one column"),
        ({"y": np.ones(299)}, "300 rows"),
        ({"X": np.full((300, 4), np.nan)}, "finite"),
        ({"weights": -np.ones(300)}, "≥ 0"),
        ({"weights": np.zeros(300)}, "not all 0"),
        ({"max_rounds": 0}, "max_rounds"),
        ({"max_rounds": MAX_TREES + 1}, "max_rounds"),
    ],
)
def test_wrong_arguments(change: dict[str, object], message: str) -> None:
    X, y = table()
    arguments = {"X": X, "y": y} | change
    with pytest.raises(InputError, match=message):
        fit_trees(**arguments)
    with pytest.raises(InputError, match=message):
        cross_fit(**arguments, fold=np.arange(300) % 5)


def test_a_fit_can_be_stopped_before_each_tree() -> None:
    X, y = table()
    calls: list[int] = []
    binned, weights = bin_columns(X, np.ones(len(X)), 0), np.ones(len(X))
    polled = Boosting(max_rounds=10, should_stop=lambda: bool(calls.append(1))).fit(binned, y, weights)
    assert len(calls) == 10
    np.testing.assert_array_equal(polled.predict(X), fit_trees(X, y, max_rounds=10).predict(X))
    calls.clear()
    with pytest.raises(TrainingInterrupted, match="trees"):
        cross_fit(X, y, np.arange(len(X)) % 5, should_stop=lambda: calls.append(1) or len(calls) == 3)
    assert len(calls) == 3


def test_a_wide_table_is_fitted_to_the_columns_that_say_most(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 1_000))
    X[:, 900] = rng.integers(0, 2, 600)
    y = np.sin(3 * X[:, 700]) + X[:, 900] + 0.1 * rng.normal(size=600)
    widths: list[int] = []
    fit = HistGradientBoostingRegressor.fit
    monkeypatch.setattr(
        HistGradientBoostingRegressor,
        "fit",
        lambda self, X, *a, **k: widths.append(X.shape[1]) or fit(self, X, *a, **k),
    )
    trees = fit_trees(X[:400], y[:400], max_rounds=30)
    assert widths == [MAX_COLUMNS]
    assert trees.num_features == 1_000
    assert np.mean((y[400:] - trees.predict(X[400:])) ** 2) < 0.3 * np.var(y[400:])


def test_a_table_of_usual_width_is_fitted_to_all_columns() -> None:
    y = np.random.default_rng(0).normal(size=50)
    codes = np.zeros((50, MAX_COLUMNS), np.uint8)
    np.testing.assert_array_equal(choose_columns(codes, y, np.ones(50)), np.arange(MAX_COLUMNS))


def test_other_internals_of_scikit_learn_are_an_error() -> None:
    X, y = table()
    model = HistGradientBoostingRegressor(max_iter=3, max_leaf_nodes=8).fit(X, y)
    private = {name: getattr(model, name) for name in ("_predictors", "_baseline_prediction", "n_features_in_")}
    assert len(convert(SimpleNamespace(predict=model.predict, **private), X)) == 3
    for name in private:
        others = {key: value for key, value in private.items() if key != name}
        with pytest.raises(DsppError, match=rf"1\.6 to 1\.9, got AttributeError: .*{name!r}"):
            convert(SimpleNamespace(predict=model.predict, **others), X)
    nodes = model._predictors[1][0].nodes
    model._predictors[1][0].nodes = nodes[[name for name in nodes.dtype.names if name != "num_threshold"]]
    with pytest.raises(DsppError, match="fields"):
        convert(model, X)
    other = nodes.copy()
    other["left"], other["right"] = nodes["right"], nodes["left"]  # another order of nodes
    model._predictors[1][0].nodes = other
    with pytest.raises(DsppError, match="other predictions"):
        convert(model, X)


@given(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=40), st.integers(1, 20))
def test_cuts_lie_between_values(values: list[float], repeats: int) -> None:
    x = np.array(values * repeats)
    cuts = choose_cuts(x)
    bins = np.searchsorted(cuts, np.unique(x))
    assert (np.diff(cuts) > 0).all()
    assert (np.diff(bins) <= 1).all(), "no bin is empty"


def test_a_row_on_a_cut_is_in_the_bin_below() -> None:
    """As x ≤ threshold is in the left branch."""
    X = np.array([[0.0], [1.0], [2.0], [0.5], [1.5]])
    binned = bin_columns(X, np.array([1.0, 1.0, 1.0, 0.0, 0.0]), seed=0)
    assert binned.cuts[0].tolist() == [0.5, 1.5]
    assert binned.codes[:, 0].tolist() == [0, 1, 2, 0, 1]


def test_bins_of_a_continuous_column_are_of_equal_size() -> None:
    x = np.random.default_rng(0).normal(size=25_500)
    sizes = np.bincount(np.searchsorted(choose_cuts(x), x))
    assert len(sizes) == BINS
    assert abs(sizes - 100).max() <= 1


# ---------------------------------------------------------------- cross-fitting

FOLDS = {
    "5 folds": np.arange(120) % 5,
    "5 folds, some never held out": np.arange(120) % 7 - 2,
    "2 folds": np.arange(120) % 2,
    "3 folds, some never held out": np.arange(120) % 4 - 1,
    "a single model": np.where(np.arange(120) < 30, 0, -1),
    "nothing held out": np.full(120, -1),
}


@pytest.mark.parametrize("name", FOLDS)
def test_an_out_of_fold_prediction_never_saw_its_target(name: str) -> None:
    """Promise 29, for every member and not only the one that holds the row out."""
    X, y = table(120)
    fold = np.where(FOLDS[name] < 0, -1, FOLDS[name])
    before = cross_fit(X, y, fold, max_rounds=3)
    for i in (0, 50):
        other = y.copy()
        other[i] += 10.0
        after = cross_fit(X, other, fold, max_rounds=3)
        np.testing.assert_array_equal(after.columns[:, i], before.columns[:, i])
        assert not np.array_equal(after.all_rows.predict(X), before.all_rows.predict(X))
        same = [np.array_equal(after.columns[k], column) for k, column in enumerate(before.columns)]
        if fold[i] >= 0:
            assert same[fold[i]], "the targets that a member holds out are nowhere in its column"
        assert sum(same) <= 1, "the others learn from it"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("5 folds", 16),
        ("5 folds, some never held out", 16),
        ("2 folds", 13),
        ("a single model", 7),
        ("nothing held out", 6),
    ],
)
def test_the_number_of_fits(name: str, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = table(120)
    sizes = []

    def count(how: Boosting, binned: object, y: np.ndarray, weights: object) -> Trees:
        sizes.append(len(y))
        return few

    few = fit_trees(X[:19], y[:19])
    monkeypatch.setattr(Boosting, "fit", count)
    cross_fit(X, y, np.where(FOLDS[name] < 0, -1, FOLDS[name]))
    assert len(sizes) == expected
    assert max(sizes) == 120
    assert min(sizes) > 40


@pytest.mark.parametrize(("seconds", "per_tree"), [(10.0, 0.01), (10.0, 0.002), (10.0, 0.001), (100.0, 1e-5)])
def test_all_fits_end_in_time_whatever_the_machine(
    seconds: float, per_tree: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first guess of the pace may be wrong by any factor; from the second fit on it is measured."""
    X, y = table(120)
    clock, rounds = [0.0], []

    def grow(how: Boosting, binned: object, y: np.ndarray, weights: object) -> Trees:
        clock[0] += per_tree * how.max_rounds * len(y) / 90  # rows of the first fit
        rounds.append(how.max_rounds)
        return few

    few = fit_trees(X[:19], y[:19])
    monkeypatch.setattr(Boosting, "fit", grow)
    cross_fit(X, y, np.where(np.arange(120) < 30, 0, -1), seconds_left=lambda: seconds - clock[0])
    guess = 90 * crossfit.TREE_SECONDS + X.shape[1] * crossfit.COLUMN_SECONDS
    first = min(MAX_TREES, max(crossfit.MIN_TREES, int(seconds / (7 * guess))))
    assert rounds[0] == first
    assert min(rounds) >= crossfit.MIN_TREES
    assert clock[0] <= max(seconds, per_tree * (first + 6 * crossfit.MIN_TREES))
    if per_tree == 0.001:  # enough for all
        assert rounds == [MAX_TREES] * 7


@pytest.mark.parametrize(("folds", "seconds"), [(1, 10.0), (5, 40.0)])
def test_a_machine_that_slows_down_shortens_all_fits_alike(
    folds: int, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees for new rows are fitted last: with fewer rounds than the others, they would mislead the members."""
    X, y = table(300)
    fold = np.where(np.arange(300) < 60, 0, -1) if folds == 1 else np.arange(300) % folds
    clock, fit = [0.0], Boosting.fit

    def grow(*given: Any) -> Trees:
        trees = fit(*given)
        clock[0] += 1.0 if clock[0] < 3.0 else 4.0  # the fourth fit and those after it take longer
        return trees

    monkeypatch.setattr(Boosting, "fit", grow)
    short = cross_fit(X, y, fold, seconds_left=lambda: seconds - clock[0])
    monkeypatch.setattr(Boosting, "fit", fit)
    rounds = len(short.all_rows)
    assert crossfit.MIN_TREES <= rounds < 200  # which is how many they have without a limit
    assert {len(trees) for trees in short.without_fold} == {rounds}
    alike = cross_fit(X, y, fold, max_rounds=rounds)
    np.testing.assert_array_equal(short.columns, alike.columns)
    np.testing.assert_array_equal(short.all_rows.predict(X), alike.all_rows.predict(X))


def test_few_trees_learn_faster() -> None:
    X, y = table(3_000)
    fold = np.where(np.arange(3_000) < 1_000, 0, -1)
    hurried = cross_fit(X, y, fold, seconds_left=lambda: 0.01)
    slow = cross_fit(X, y, fold, max_rounds=crossfit.MIN_TREES)
    assert len(hurried.all_rows) == len(slow.all_rows) == crossfit.MIN_TREES
    errors = [np.square(y - fitted.columns[0])[fold == 0].mean() for fitted in (hurried, slow)]
    assert errors[0] < 0.5 * errors[1]


def test_held_out_rows_have_the_predictions_of_trees_of_the_training_rows() -> None:
    X, y = table()
    X = np.round(X, 1)  # few values, so that cuts between them do not depend on the rows
    held = np.arange(300) >= 200
    fitted = cross_fit(X, y, np.where(held, 0, -1), max_rounds=20)
    inside = held & (np.abs(X[:, :2]) < 1).all(1)
    np.testing.assert_allclose(
        fitted.columns[0][inside], fit_trees(X[~held], y[~held], max_rounds=20).predict(X[inside]), rtol=1e-9
    )
    np.testing.assert_array_equal(fitted.all_rows.predict(X), fit_trees(X, y, max_rounds=20).predict(X))


def test_groups_stay_together_in_inner_folds_of_ones_own() -> None:
    X, y = table(120)
    group = np.arange(120) // 10
    before = cross_fit(X, y, np.full(120, -1), inner=group % 3, max_rounds=5)
    y[group == 4] += 5.0
    after = cross_fit(X, y, np.full(120, -1), inner=group % 3, max_rounds=5)
    np.testing.assert_array_equal(after.columns[0][group == 4], before.columns[0][group == 4])


@pytest.mark.parametrize(
    ("fold", "message"),
    [
        (np.zeros(300), "integers"),
        (np.zeros(299, int), "300 integers"),
        (np.full(300, -2), "from -1"),
        (np.arange(300) % 2 * 2, "gaps"),
        (np.full(300, 10**12), "gaps"),
        (np.zeros(300, int), "training rows"),
    ],
)
def test_wrong_folds(fold: np.ndarray, message: str) -> None:
    with pytest.raises(InputError, match=message):
        cross_fit(*table(), fold)


# ---------------------------------------------------------------- files


def test_tensors_restore_the_same_bits(trees: Trees, tmp_path: Path) -> None:
    X = table(seed=1)[0]
    for some in (trees, trees.first(0)):
        storage.write(tmp_path / "trees", *pack(some), InputError)
        tensors, header = storage.read(tmp_path / "trees", InputError)
        restored = unpack(Trees, tensors, header)
        np.testing.assert_array_equal(restored.predict(X), some.predict(X))


def restored(tensors: dict[str, torch.Tensor], base: float = 0.0) -> Trees:
    return unpack(Trees, tensors, {"base": base, "num_features": 4})


NAMES = ("feature", "threshold", "left_leaves", "value")
NUMBERS = st.one_of(
    st.integers(-(2**31), 2**31 - 1),
    st.floats(),
    st.sampled_from([0, -1, 3, 4, 2**31 - 1, 1e308, -1e308, np.inf, np.nan]),
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 10**6), NUMBERS), min_size=1, max_size=6), st.floats())
def test_changed_numbers_are_refused_or_harmless(
    trees: Trees, changes: list[tuple[str, int, float]], base: float
) -> None:
    tensors = {name: tensor.clone() for name, tensor in pack(trees.first(5))[0].items()}
    for name, place, number in changes:
        flat = tensors[name].reshape(-1)
        whole = not flat.is_floating_point()
        flat[place % len(flat)] = int(np.clip(np.nan_to_num(number), -(2**31), 2**31 - 1)) if whole else number
    try:
        changed = restored(tensors, base)
    except InputError:
        return
    assert np.isfinite(changed.predict(table(30)[0])).all()


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 40))
def test_arrays_of_random_numbers_are_harmless(seed: int, num_trees: int) -> None:
    rng = np.random.default_rng(seed)
    arrays = {
        "feature": rng.integers(0, 4, (num_trees, NODES), dtype=np.int32),
        "threshold": rng.normal(size=(num_trees, NODES)),
        "left_leaves": rng.integers(0, 2**31, (num_trees, NODES), dtype=np.int32),
        "value": rng.normal(size=(num_trees, LEAVES)),
    }
    arrays["left_leaves"][0] = 2**31 - 1  # all but the last leaf
    trees = restored({name: torch.from_numpy(array) for name, array in arrays.items()})
    predicted = trees.predict(np.array([[-9.0] * 4, [9.0] * 4, [0.0] * 4]))
    bound = np.abs(arrays["value"]).max(1).sum()
    assert (np.abs(predicted) <= bound * (1 + 1e-9)).all()
    assert trees.first(1).predict(np.full((1, 4), 9.0)) == arrays["value"][0, -1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"feature": torch.full((100, NODES), 4, dtype=torch.int32)}, "columns"),
        ({"left_leaves": torch.full((100, NODES), -1, dtype=torch.int32)}, "masks"),
        ({"threshold": torch.full((100, NODES), torch.inf, dtype=torch.float64)}, "finite"),
        ({"value": torch.full((100, LEAVES), 1e307, dtype=torch.float64)}, "finite numbers from -1e"),
    ],
)
def test_damaged_tensors_are_refused(trees: Trees, change: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(InputError, match=message):
        restored(pack(trees)[0] | change)


def test_there_is_a_limit_to_the_number_of_trees(trees: Trees) -> None:
    many = {name: tensor.repeat(11, 1) for name, tensor in pack(trees)[0].items()}
    with pytest.raises(InputError, match=f"at most {MAX_TREES} trees, got 1100"):
        restored(many)


def test_prediction_needs_little() -> None:
    """What the files of the package import at their top: nothing of scikit-learn, and little of dspp."""
    allowed = {"collections", "dataclasses", "functools", "typing", "numpy", "torch", "jaxtyping"}
    for path in Path(dspp.trees.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in names:
                own = name.startswith("dspp.trees") or name in ("dspp.codec", "dspp.errors", "dspp.table.checks")
                assert own or name.split(".")[0] in allowed, f"{path.name} imports {name}"

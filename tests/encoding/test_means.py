"""Categories with many levels: the mean target of each level, and which rows it is the mean of while models train."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

import dspp
from dspp import storage
from dspp.codec import pack, unpack
from dspp.config import TrainConfig
from dspp.encoding import means as limits
from dspp.encoding.columns import MAX_LEVELS, MAX_TEXT
from dspp.encoding.encoder import TableEncoder
from dspp.encoding.means import PRIOR_ROWS, MeanCategory, cross_fit_means, levels_with_means, smoothed_means
from dspp.encoding.scaling import Standardizer
from dspp.errors import InputError
from dspp.fitting import train
from dspp.folds import Split
from dspp.members.base import Task
from dspp.members.run import part_rows
from dspp.prepare import prepare, split_rows
from dspp.prepare.split import inner_folds
from dspp.presets import preset
from dspp.settings import Settings
from dspp.table.memory import attach_targets, to_table
from dspp.training.rows import Rows
from dspp.trees import assign_inner, cross_fit

RNG = np.random.default_rng(5)
SHOPS = np.array([f"shop {k:02}" for k in range(60)])
EFFECT = RNG.normal(size=60)


def shops(num_rows: int, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """A table in which half of the variance is due to 60 shops; and its targets."""
    rng = np.random.default_rng(seed)
    which, x = rng.integers(0, 60, num_rows), rng.normal(size=num_rows)
    y = 100 + 20 * EFFECT[which] + 20 * x + 2 * rng.normal(size=num_rows)
    return pd.DataFrame({"shop": SHOPS[which], "x": x}), y


def levels_of(num_rows: int = 300) -> tuple[pa.Table, np.ndarray]:
    X, y = shops(num_rows)
    return pa.Table.from_pandas(X), ((y - y.mean()) / y.std())[:, None]


def means_of(num_rows: int = 120, y: np.ndarray | None = None, fold: np.ndarray | None = None) -> partial[Any]:
    """Two categories and two outputs, some of them not observed."""
    rng = np.random.default_rng(1)
    codes = rng.integers(-1, 5, num_rows), rng.integers(0, 9, num_rows)
    fold = np.arange(num_rows) % 5 if fold is None else fold
    scale = Standardizer(np.full(4, 0.1), np.full(4, 2.0))
    y = targets(num_rows) if y is None else y
    inner, features = assign_inner(fold, 0), [2, 3, 5, 6]
    return partial(cross_fit_means, codes=codes, y=y, inner=inner, features=features, scale=scale.transform)


def targets(num_rows: int) -> np.ndarray:
    rng = np.random.default_rng(2)
    y = rng.normal(size=(num_rows, 2))
    y[rng.random((num_rows, 2)) < 0.1] = np.nan
    return y


# ---------------------------------------------------------------- the encoding


def test_a_level_has_its_smoothed_mean() -> None:
    words = [f"level {i:02}" for i in range(25)] * 3 + ["level 00", "level 24", None]
    encoder = TableEncoder.fit(pa.table({"c": words}), y=np.arange(78.0)[:, None])
    assert isinstance(encoder.columns[0], MeanCategory)
    assert encoder.feature_names == ("c (mean)", "c is missing")
    out = encoder.transform(pa.table({"c": ["level 00", "level 07", " level 23 ", "new", None]}))
    expected = [(0 + 25 + 50 + 75) / (4 + 10), (7 + 32 + 57) / 13, (23 + 48 + 73) / 13, 0, 0]
    np.testing.assert_allclose(out[:, 0], expected, rtol=1e-15)
    np.testing.assert_array_equal(out[:, 1], [0, 0, 0, 0, 1])


def test_each_output_has_its_own_means() -> None:
    table, y = levels_of()
    both = np.column_stack([y[:, 0], np.where(np.arange(300) < 100, np.nan, 3 * y[:, 0])])
    encoder = TableEncoder.fit(table, y=both)
    assert encoder.feature_names == ("shop (mean 1)", "shop (mean 2)", "x")
    out = encoder.transform(table)
    np.testing.assert_array_equal(out[:, 0], TableEncoder.fit(table, y=y).transform(table)[:, 0])
    at = (np.array(table["shop"]) == "shop 11") & (np.arange(300) >= 100)
    assert out[np.argmax(at), 1] == pytest.approx(3 * y[at].sum() / (at.sum() + PRIOR_ROWS))


def test_few_levels_need_no_means() -> None:
    table = pa.table({"c": [f"level {i}" for i in range(20)] * 3, "id": [f"{i}" for i in range(60)]})
    assert TableEncoder.fit(table, y=np.arange(60.0)[:, None]) == TableEncoder.fit(table)


def test_the_encoding_is_stored_exactly() -> None:
    table, y = levels_of()
    encoder = TableEncoder.fit(table, y=y)
    again = unpack(TableEncoder, {}, json.loads(json.dumps(pack(encoder)[1], allow_nan=False)))
    assert again == encoder
    assert again.transform(table).tobytes() == encoder.transform(table).tobytes()
    parts = [encoder.transform(batch) for batch in table.to_batches(max_chunksize=7)]
    assert np.concatenate(parts).tobytes() == encoder.transform(table).tobytes()
    chunked = pa.concat_tables([table[:100], table[100:]])
    assert TableEncoder.fit(chunked, y=y) == encoder
    assert encoder.describe()[0]["description"] == "the mean target of each of 60 levels"


@pytest.mark.parametrize(
    "change",
    [
        {"means": [0.0] * 59},
        {"means": []},
        {"levels": []},
        {"levels": ["a"] * 60},
        {"levels": [f"{i}" for i in range(limits.MAX_MEANS + 1)], "means": [0.0] * (limits.MAX_MEANS + 1)},
        {"levels": ["x" * (MAX_TEXT + 1), *SHOPS[1:]]},
    ],
    ids=str,
)
def test_damaged_means_are_refused(change: dict[str, Any]) -> None:
    table, y = levels_of()
    values = pack(TableEncoder.fit(table, y=y))[1]
    values["columns"][0] |= change
    with pytest.raises(InputError, match="damaged"):
        unpack(TableEncoder, {}, values)


def test_a_file_can_hold_all_levels_that_are_kept() -> None:
    many = [f"{i}" for i in range(10_000)]
    assert levels_with_means(many, 1, 1) == many[: limits.MAX_MEANS]
    assert len(levels_with_means(many, 100, 1)) == limits.MAX_NUMBERS // 200
    assert len(levels_with_means(many, 10_000, 99)) == 1
    kept = levels_with_means(["ü" * 1_000 + level for level in many], 2, 1)
    assert len(json.dumps(kept)) < 1.1 * limits.MAX_BYTES / 2
    assert len(kept) > 50
    assert levels_with_means([*many[:30], "x" * (MAX_TEXT + 1), "y"], 1, 1) == [*many[:30], "y"]


@pytest.mark.parametrize(("columns", "outputs", "text"), [(1, 1, ""), (20, 1, "ü" * 500), (20, 8, "x")])
def test_a_model_file_can_hold_the_largest_encodings(columns: int, outputs: int, text: str) -> None:
    words = [f"{text}{i}" for i in range(6_000)] * 3
    y = RNG.normal(size=(len(words), outputs))
    encoder = TableEncoder.fit(pa.table({f"c{k}": words for k in range(columns)}), y=y)
    header = json.dumps(pack(encoder)[1])
    assert len(json.dumps(header)) < storage.MAX_HEADER_BYTES / 2
    assert storage.count_values(header.encode()) < storage.MAX_HEADER_VALUES / 2
    kept = len(encoder.columns[0].levels)  # type: ignore[attr-defined]
    assert f"the mean target of each of {kept:,} levels" in str(encoder.notes[0])


# ---------------------------------------------------------------- cross-fitting


def slow_means(left_out: np.ndarray, codes: Any, y: np.ndarray, inner: np.ndarray) -> np.ndarray:
    """Row by row: the rows of the same level that are neither left out nor in the row's own inner fold."""
    rows = []
    for i in range(len(left_out)):
        row = []
        for code in codes:
            for t in range(y.shape[1]):
                total, count = 0.0, 0
                for r in range(len(left_out)):
                    hidden = left_out[r] or (not left_out[i] and inner[r] == inner[i])
                    if not hidden and code[r] == code[i] >= 0 and not np.isnan(y[r, t]):
                        total, count = total + y[r, t], count + 1
                row.append((total / (count + PRIOR_ROWS) - 0.1) / 2.0)
        rows.append(row)
    return np.array(rows)


FOLDS = {
    "5 folds": np.arange(120) % 5,
    "2 folds": np.arange(120) % 2,
    "6 folds, some rows never held out": np.arange(120) % 8 - 2,
    "one part": np.where(np.arange(120) < 30, 0, -1),
}


@pytest.mark.parametrize("name", FOLDS)
def test_cross_fitted_means_agree_with_the_slow_way(name: str) -> None:
    fold = np.maximum(FOLDS[name], -1)
    means = means_of(fold=fold)
    X, given = RNG.normal(size=(120, 8)), {name: means.keywords[name] for name in ("codes", "y", "inner")}
    for k in range(-2, fold.max() + 1):  # -2: nothing is left out
        inserted, levels = means(X, fold == k)
        np.testing.assert_allclose(inserted[:, [2, 3, 5, 6]], slow_means(fold == k, **given), rtol=1e-12, atol=1e-15)
        np.testing.assert_array_equal(inserted[:, [0, 1, 4, 7]], X[:, [0, 1, 4, 7]])
        rows, code = np.flatnonzero(fold == k), given["codes"][1]  # which has no unknown levels
        np.testing.assert_array_equal(inserted[rows, 5:7], (levels[1][code[rows]] - 0.1) / 2.0)


@pytest.mark.parametrize("name", FOLDS)
def test_means_and_trees_that_read_them_never_saw_the_target_of_their_row(name: str) -> None:
    """Promise 29: for every member and not only the one that holds the row out."""
    fold, X = np.maximum(FOLDS[name], -1), RNG.normal(size=(120, 8))
    y = np.nan_to_num(targets(120))

    def columns(y: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
        means = means_of(y=y, fold=fold)
        trees = cross_fit(
            means(X, np.zeros(120, bool))[0],
            y[:, 0],
            fold,
            max_rounds=5,
            X_without=lambda out: means(X, out)[0],
        )
        return [means(X, fold == k)[0] for k in range(fold.max() + 1)], trees.columns

    before = columns(y)
    for i in (0, 50):
        other = y.copy()
        other[i] += 10.0
        after = columns(other)
        for k in range(fold.max() + 1):
            np.testing.assert_array_equal(after[0][k][i], before[0][k][i])
            np.testing.assert_array_equal(after[1][k, i], before[1][k, i])
            if fold[i] == k:
                np.testing.assert_array_equal(after[0][k], before[0][k])
                np.testing.assert_array_equal(after[1][k], before[1][k])
            else:
                assert not np.array_equal(after[0][k], before[0][k]), "or the means learn from no row"


def test_what_a_member_reads_does_not_depend_on_the_targets_it_holds_out() -> None:
    """Promise 29, in the rows that training gets."""
    fold = np.arange(120) % 5
    X, y = RNG.normal(size=(120, 8)), np.nan_to_num(targets(120))

    def rows(y: np.ndarray, k: int) -> tuple[Rows, Rows]:
        rows = Rows(torch.from_numpy(X), torch.from_numpy(y))
        task = Task(0, "plain", k, preset("dspp"), TrainConfig())
        return part_rows(task, rows, Split(fold, None, 120), means_of(y=y))

    other = y.copy()
    other[[0, 5]] += 10.0  # both in fold 0
    for part, same in zip(rows(other, 0), rows(y, 0), strict=True):
        assert torch.equal(part.x, same.x)
    assert not torch.equal(rows(other, 1)[0].x, rows(y, 1)[0].x)


# ---------------------------------------------------------------- fits


def test_a_single_model_trains_on_cross_fitted_means() -> None:
    X, y = shops(400)
    made = prepare(attach_targets(to_table(X), y), Settings(members=1, conformal=True))
    assert made.encoder is not None
    assert isinstance(made.train, Rows)
    at = made.encoder.feature_names.index("shop (mean)")
    (column,) = [c for c in made.encoder.columns if isinstance(c, MeanCategory)]
    assert made.means is None
    value = dict(zip(column.levels, column.means, strict=True))

    def mean_of(rows: Rows) -> np.ndarray:
        return rows.x.numpy()[:, at] * made.scale_X.scale[at] + made.scale_X.mean[at]

    for held_out, table in ((made.validation, made.validation_table), (made.calibration, made.calibration_table)):
        assert table.arrow is not None
        expected = [value.get(name, 0.0) for name in table.arrow["shop"].to_pylist()]
        np.testing.assert_allclose(mean_of(held_out), expected, atol=1e-12)
    # A row's own target is in the mean of all rows, but not in the one that it is trained with.
    z = made.train.y.numpy()[:, 0]
    code = {level: number for number, level in enumerate(column.levels)}
    index = split_rows(Settings(members=1, conformal=True), 400, False)[0]
    first = np.array([code[name] == 0 for name in X["shop"].iloc[index]])  # rows of the most frequent shop
    assert first.sum() > 5
    inner = assign_inner(np.full(len(z), -1), 0)
    for i in np.flatnonzero(first):
        others = first & (inner != inner[i])
        assert mean_of(made.train)[i] == pytest.approx(z[others].sum() / (others.sum() + PRIOR_ROWS), abs=1e-12)


@pytest.mark.parametrize("given", [False, True], ids=["folds", "validation rows"])
def test_members_read_means_without_the_rows_they_hold_out(given: bool) -> None:
    X, y = shops(200)
    validation = attach_targets(to_table(X[:50]), y[:50]) if given else None
    made = prepare(attach_targets(to_table(X), y), Settings(members=5), validation=validation)
    assert (made.means is None) == given
    if made.means is not None:
        assert isinstance(made.means, partial)
        np.testing.assert_array_equal(made.means.keywords["inner"], made.split.fold)
        assert isinstance(made.train, Rows)
        again, _ = made.means(made.train.x.numpy(), np.zeros(200, bool))
        np.testing.assert_array_equal(again, made.train.x.numpy())


def test_held_out_rows_are_encoded_without_their_own_targets() -> None:
    """The models of an evaluation, each with an encoder of its own, predict what its members predicted in training."""
    X, y = shops(120)
    table = attach_targets(to_table(X), y)
    settings = Settings(members=10, inducing=4, epochs=1, layers=1, restarts=1, jobs=1, likelihood="gaussian")
    made = prepare(table, settings)
    fitted, evaluation = train(made, settings)
    assert evaluation is not None
    assert len(evaluation.parts) == 5
    for model, index in evaluation.parts:
        assert model.encoder != fitted.encoder
        again = model.predict(table.take(index)).mean
        torch.testing.assert_close(again, evaluation.distribution.mean[index], rtol=1e-6, atol=1e-6)
        with_own = replace(model, encoder=fitted.encoder).predict(table.take(index)).mean
        assert (with_own - again).abs().max() > 1e-3, "or the test could not fail"


def test_groups_stay_together_in_the_means_of_a_single_model() -> None:
    X, y = shops(200)
    group = np.arange(200) // 10
    table = replace(attach_targets(to_table(X), y), groups=group)
    inner = inner_folds(prepare(table, Settings(members=1, validation_fraction=0.0)).split, 200, 0)
    assert len(np.unique(inner)) == 5
    assert all(np.ptp(inner[group == g]) == 0 for g in range(20))


def test_the_mean_target_of_rare_levels_is_learned() -> None:
    X, y = shops(600)
    new, truth = shops(300, seed=1)
    model = dspp.PPGPRRegressor(inducing=32, epochs=100, restarts=1).fit(X, y)
    rare = ~new["shop"].isin(model.fitted_.encoder.columns[0].levels[:MAX_LEVELS])
    assert rare.sum() > 100
    residual = (model.predict(new) - truth)[rare]
    assert residual.std() < 0.7 * (truth - 20 * new["x"])[rare].std(), "lumped, they would have the same prediction"


def test_an_ensemble_with_trees_is_saved_with_its_means(tmp_path: Path) -> None:
    X, y = shops(120)
    model = dspp.DSPPRegressor(members=10, inducing=4, epochs=1, layers=1, restarts=1, jobs=1).fit(X, y)
    model.save(tmp_path / "m")
    assert dspp.load(tmp_path / "m").predict(X).tobytes() == model.predict(X).tobytes()
    told = "column 'shop': it has 54 levels: one input is the mean target of each of 54 levels"
    assert told in map(str, model.fitted_.notes)


def test_levels_that_were_not_seen_have_mean_zero() -> None:
    assert smoothed_means(np.array([-1]), np.array([[1.0]]), 2).tolist() == [[0.0]] * 3

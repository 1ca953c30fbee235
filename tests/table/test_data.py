"""What enters the library: bad tables are refused by place, good ones are scaled, split and batched."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from dspp.batches import batch_indices, derive_seed
from dspp.encoding.scaling import Standardizer
from dspp.errors import InputError
from dspp.table.checks import check_width, check_X, check_y
from dspp.table.split import split

SIZE = st.integers(1, 6)
NOT_FINITE = st.sampled_from([np.nan, np.inf, -np.inf])


# ---------------------------------------------------------------- checks


@pytest.mark.parametrize(
    "table",
    [
        [[1, 2], [3, 4]],
        ((1.0, 2.0), (3.0, 4.0)),
        np.array([[1, 2], [3, 4]], dtype=np.uint8),
        np.asfortranarray([[1.0, 2.0], [3.0, 4.0]], dtype=np.float32),
        np.matrix([[1, 2], [3, 4]]),
        np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]]),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.bfloat16, requires_grad=True),
        [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])],
    ],
    ids=lambda table: type(table).__name__,
)
def test_every_kind_of_table_becomes_the_same_float64_array(table: Any) -> None:
    X = check_X(table)
    assert type(X) is np.ndarray
    assert X.dtype == np.float64
    assert X.flags.c_contiguous
    assert X.tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_booleans_are_numbers() -> None:
    assert check_X([[True, False]]).tolist() == [[1.0, 0.0]]
    assert check_y(torch.tensor([True, False]), 2).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_the_result_shares_no_memory_with_the_input(convert: Callable[[Any], Any]) -> None:
    X, y = np.array([[1.0, 2.0]]), np.array([3.0])
    checked_X, checked_y = check_X(convert(X)), check_y(convert(y), 1)
    checked_X[:], checked_y[:] = -1.0, -1.0
    assert X.tolist() == [[1.0, 2.0]]
    assert y.tolist() == [3.0]


@settings(max_examples=100, deadline=None)
@given(rows=SIZE, columns=SIZE, data=st.data(), as_tensor=st.booleans())
def test_the_first_bad_cell_is_named_and_bad_cells_are_counted(
    rows: int, columns: int, data: st.DataObject, as_tensor: bool
) -> None:
    cells = st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1))
    bad = data.draw(st.sets(cells, min_size=1))
    X = np.ones((rows, columns))
    for cell in bad:
        X[cell] = data.draw(NOT_FINITE)
    row, column = min(bad)
    value = "NaN" if np.isnan(X[row, column]) else str(X[row, column])
    before = X.tobytes()
    with pytest.raises(InputError) as caught:
        check_X(torch.from_numpy(X) if as_tensor else X, name="inputs")
    assert f"inputs: expected finite numbers, got {value} at row {row}, column {column} " in str(caught.value)
    assert f"({len(bad)} NaN or inf in total)" in str(caught.value)
    assert X.tobytes() == before


@settings(max_examples=60, deadline=None)
@given(rows=SIZE, columns=SIZE, data=st.data(), text=st.text(alphabet="abcxyz", min_size=1, max_size=99))
def test_the_first_cell_that_is_no_number_is_named(rows: int, columns: int, data: st.DataObject, text: str) -> None:
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    cell = data.draw(st.sampled_from([text, None, {}, 10**400]))
    X = np.full((rows, columns), 1.5, dtype=object)
    X[row, column] = cell
    with pytest.raises(InputError, match=rf"got dtype object with .* at row {row}, column {column};") as caught:
        check_X(X)
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        (None, "got None"),
        (3.0, r"expected an array, got 3\.0"),
        ("abc", "expected an array, got 'abc'"),
        ({"a": [1.0]}, "expected an array, got {"),
        ([1.0, 2.0], r"2-D table .* got 1-D of shape \(2,\)\. Reshape your data"),
        (np.ones((2, 2, 2)), r"got 3-D of shape \(2, 2, 2\)"),
        (torch.ones(2, 2, 2), r"got 3-D of shape \(2, 2, 2\)"),
        (np.ones((0, 3)), r"0 sample\(s\) \(shape=\(0, 3\)\)"),
        (np.ones((3, 0)), r"0 feature\(s\) \(shape=\(3, 0\)\)"),
        ([[1.0, 2.0], [3.0]], "rows of equal length"),
        ([[1.0, "two"]], r"got dtype <U\d+ with .*'two'.* at row 0, column 1"),
        ([["1", "2"]], r"read as numbers; convert it with X\.astype\(float\)"),
        (np.array([[1.0, 2.0]], dtype=object), r"dtype object whose cells can be read as numbers"),
        (np.array([["2020-01-01"]], dtype="datetime64[D]"), r"datetime64\[D\] with .* at row 0, column 0"),
        (np.array([[1]], dtype="timedelta64[s]"), r"timedelta64\[s\] with .* at row 0, column 0"),
        ([[1.0, 2j]], "Complex data not supported"),
        (pl.LazyFrame({"a": [1.0]}), r"call \.collect\(\) first"),
        ({"a": [1.0]}, r"convert it with pandas\.DataFrame"),
        ([{"a": 1.0}], r"got a list of dicts; convert it with pandas\.DataFrame\(X\)"),
        (zip([1.0], [2.0], strict=True), r"convert it with list\("),
        (Path("train.csv"), r"read a file first, as with pandas\.read_csv"),
        ([[1.0, None]], "got dtype object with None at row 0, column 1; remove this row or fill in the missing value"),
        (torch.ones(1, 1, dtype=torch.complex64), "Complex data not supported"),
        (csr_array(np.eye(2)), "got a sparse one"),
        (torch.eye(2).to_sparse(), "got a sparse one"),
        (torch.ones(1, 1, device="meta"), "cannot convert"),
        (np.ma.masked_array([[1.0, 2.0]], mask=[[False, True]]), r"got NaN at row 0, column 1 \(1 NaN"),
        (np.array([["1e4000"]]).astype(np.longdouble), "got inf at row 0, column 0"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_table_of_finite_numbers_is_refused(table: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        check_X(table)


@pytest.mark.parametrize(
    ("targets", "complaint"),
    [
        (None, "got None"),
        (1.0, r"expected an array, got 1\.0"),
        (np.ones((3, 1, 1)), r"got 3-D of shape \(3, 1, 1\)"),
        ([1.0, 2.0], r"expected 3 rows, as many as in X, got 2"),
        ([[1.0] * 3], r"expected 3 rows, as many as in X, got 1"),
        ([], r"0 sample\(s\)"),
        (np.ones((3, 0)), r"0 feature\(s\)"),
        ([1.0, np.nan, -np.inf], r"got NaN at row 1 \(2 NaN or inf"),
        ([[1.0, 2.0], [3.0, np.inf], [5.0, 6.0]], r"got inf at row 1, column 1 \(1 NaN or inf"),
        (["a", "b", "c"], r"^y: expected numbers to predict, got text such as 'a'; dspp predicts numbers, not classes"),
        ([1j, 2, 3], "Complex data not supported"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_targets_that_do_not_fit_are_refused(targets: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        check_y(targets, 3)


def test_targets_keep_their_shape() -> None:
    assert check_y([1, 2, 3], 3).shape == (3,)
    assert check_y([[1], [2], [3]], 3).shape == (3, 1)
    assert check_y(np.ones((3, 4)), 3).shape == (3, 4)


NAN = np.nan


@pytest.mark.parametrize(
    "targets",
    [
        [[1.0, NAN], [NAN, 4.0], [5.0, 6.0]],
        torch.tensor([[1.0, NAN], [NAN, 4.0], [5.0, 6.0]]),
        np.ma.masked_array([[1, 2], [3, 4], [5, 6]], mask=[[0, 1], [1, 0], [0, 0]]),
    ],
    ids=["lists", "tensor", "masked"],
)
def test_targets_may_be_partly_observed(targets: Any) -> None:
    y = check_y(targets, 3, missing=True)
    assert type(y) is np.ndarray
    np.testing.assert_array_equal(y, [[1.0, NAN], [NAN, 4.0], [5.0, 6.0]])
    with pytest.raises(InputError, match=r"got NaN at row 0, column 1 \(2 NaN or inf in total\)"):
        check_y(targets, 3)


@pytest.mark.parametrize(
    ("targets", "complaint"),
    [
        ([1.0, NAN, 3.0], r"y: expected finite numbers, got NaN at row 1 \(1 NaN"),
        ([[1.0], [NAN], [3.0]], r"one observed output in each row, got none in row 1 \(1 such rows in total\); drop"),
        ([[NAN, NAN], [1.0, 2.0], [NAN, NAN]], r"got none in row 0 \(2 such rows in total\); drop these rows"),
        (
            [[1.0, NAN], [2.0, -np.inf], [3.0, 4.0]],
            r"or NaN where not observed, got -inf at row 1, column 1 \(1",
        ),
        ([["a", "b"]] * 3, r"^y: expected numbers to predict, got 2 classes \('a', 'b'\); dspp predicts numbers, not"),
        ([["a", "1"]] * 3, r"'a'.* at row 0, column 0;"),
        ([[1.0, NAN]] * 2, "expected 3 rows"),
    ],
)
def test_targets_with_nothing_to_learn_from_are_refused(targets: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        check_y(targets, 3, missing=True)


def test_partly_observed_targets_are_copied() -> None:
    y = np.array([[1.0, NAN], [2.0, 3.0]])
    check_y(y, 2, missing=True)[:] = -1.0
    np.testing.assert_array_equal(y, [[1.0, NAN], [2.0, 3.0]])


def test_another_number_of_columns_is_refused() -> None:
    check_width(np.ones((2, 3)), 3)
    with pytest.raises(InputError, match="X has 3 features, but the model is expecting 4 features"):
        check_width(np.ones((2, 3)), 4)


# ---------------------------------------------------------------- scaling


@pytest.mark.parametrize("offset", [0.0, -1.0, 1e8, -1e8])
@pytest.mark.parametrize("spread", [1e-12, 1.0, 1e12, 1e200])
@pytest.mark.parametrize("shape", [(50, 3), (50,)])
def test_scaling_and_back(offset: float, spread: float, shape: tuple[int, ...]) -> None:
    array = spread * (offset + np.random.default_rng(0).standard_normal(shape))
    scaler = Standardizer.fit(array)
    assert scaler.mean.shape == scaler.scale.shape == shape[1:]
    scaled = scaler.transform(array)
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-7)
    np.testing.assert_allclose(scaled.std(axis=0), 1.0, rtol=1e-12)
    np.testing.assert_allclose(scaled * scaler.scale + scaler.mean, array, rtol=1e-12)


def test_the_statistics_are_those_of_the_rows_given() -> None:
    scaler = Standardizer.fit(np.array([[1.0, 10.0], [3.0, 10.5]]))
    assert scaler.mean.tolist() == [2.0, 10.25]
    assert scaler.scale.tolist() == [1.0, 0.25]
    assert scaler.transform(np.array([[4.0, 10.0]])).tolist() == [[2.0, -1.0]]
    assert (np.array([[2.0, -1.0]]) * scaler.scale + scaler.mean).tolist() == [[4.0, 10.0]]


@pytest.mark.parametrize("value", [0.0, 0.1, -1e8, 1e12, 1e-12, 1e-300, 1e300])
@pytest.mark.parametrize("rows", [1, 7, 300_000])
def test_a_constant_column_has_scale_one(value: float, rows: int) -> None:
    scaler = Standardizer.fit(np.full((rows, 2), value))
    assert scaler.scale.tolist() == [1.0, 1.0]
    np.testing.assert_allclose(scaler.mean, value, rtol=1e-15)


@pytest.mark.parametrize("unit", [1e-12, 1.0, 1e12])
def test_rounding_is_no_spread_but_a_small_spread_is(unit: float) -> None:
    rounding = np.array([0.1 + 0.2, 0.3, 0.3, 0.1 + 0.2])
    assert Standardizer.fit(unit * rounding).scale == 1.0
    assert Standardizer.fit(unit * np.nextafter([1e8, 1e8], [0, 1e9])).scale == 1.0
    small = 1e8 + np.array([0.0, 2e-6])
    np.testing.assert_allclose(Standardizer.fit(unit * small).scale, unit * 1e-6, rtol=0.02)


def test_the_mean_of_a_long_column_keeps_its_digits() -> None:
    column = 1e8 + np.random.default_rng(0).standard_normal(300_000)
    mean = Standardizer.fit(np.stack([column, column], axis=1)).mean
    np.testing.assert_allclose(mean, math.fsum(column) / len(column), rtol=3e-16)


def test_scaling_changes_neither_its_input_nor_itself() -> None:
    array = np.random.default_rng(0).standard_normal((5, 2))
    before = array.copy()
    scaler = Standardizer.fit(array)
    scaler.transform(array)
    assert array.tobytes() == before.tobytes()
    with pytest.raises(AttributeError):
        scaler.mean = before  # type: ignore[misc]


# ---------------------------------------------------------------- split


@settings(max_examples=100, deadline=None)
@given(num_rows=st.integers(20, 500), seed=st.integers(0, 2**64 - 1))
def test_a_split_is_disjoint_and_complete(num_rows: int, seed: int) -> None:
    parts = split(num_rows, seed=seed)
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(num_rows))
    for part, share in zip(parts, (15, 3, 2), strict=True):
        assert abs(len(part) - num_rows * share / 20) <= 1


def test_the_seed_decides_the_split() -> None:
    first, again, other = split(1000, seed=3), split(1000, seed=3), split(1000, seed=4)
    assert [len(part) for part in first] == [750, 150, 100]
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert len(np.intersect1d(first[2], other[2])) < 30  # 10 of 100 by chance
    assert first[0][:5].tolist() != sorted(first[0])[:5]


def test_parts_of_any_number() -> None:
    assert [len(part) for part in split(10, parts=(1,))] == [10]
    assert [len(part) for part in split(10, parts=(0.7, 0.3))] == [7, 3]


@pytest.mark.parametrize("num_rows", [0, 1, 2])
def test_too_few_rows_to_split(num_rows: int) -> None:
    with pytest.raises(InputError, match=rf"got {num_rows}, .* at least 10 rows"):
        split(num_rows)


@pytest.mark.parametrize("parts", [(), (1, 0), (1, -1), (1, np.nan), (np.inf, 1)])
def test_parts_must_be_positive(parts: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="positive numbers"):
        split(100, parts=parts)


# ---------------------------------------------------------------- batches and seeds


@settings(max_examples=200, deadline=None)
@given(num_rows=st.integers(1, 400), batch_size=st.integers(1, 500), epoch=st.integers(0, 10**6))
def test_batches_hold_every_row_once_and_are_balanced(num_rows: int, batch_size: int, epoch: int) -> None:
    batches = batch_indices(num_rows, batch_size, seed=1, epoch=epoch)
    assert torch.equal(torch.cat(batches).sort().values, torch.arange(num_rows))
    sizes = [len(batch) for batch in batches]
    assert len(batches) == int(np.ceil(num_rows / batch_size))
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1
    assert all(batch.dtype == torch.int64 for batch in batches)


def test_batches_are_a_pure_function_of_seed_and_epoch() -> None:
    first = torch.cat(batch_indices(1000, 100, seed=5, epoch=2))
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert torch.equal(first, torch.cat(batch_indices(1000, 100, seed=5, epoch=2)))
    assert torch.equal(state, torch.get_rng_state())  # the caller's generator is left alone
    others = [batch_indices(1000, 100, seed, epoch) for seed, epoch in [(5, 3), (6, 2), (2, 5), (5, 0)]]
    for other in others:  # unrelated permutations agree at one place of 1000 on average
        assert (torch.cat(other) == first).sum() < 10


def test_batches_are_shuffled_across_their_borders() -> None:
    first = batch_indices(1000, 100, seed=0, epoch=0)[0]
    assert 300 < first.double().mean() < 700
    assert first.max() > 800
    assert first.min() < 200


@pytest.mark.parametrize(("num_rows", "batch_size"), [(0, 10), (10, 0), (10, -1)])
def test_empty_batches_are_refused(num_rows: int, batch_size: int) -> None:
    with pytest.raises(InputError, match=f"got {num_rows} and {batch_size}"):
        batch_indices(num_rows, batch_size, seed=0, epoch=0)


def test_seeds_differ_where_words_differ() -> None:
    words = [
        (0,),
        (0, 0),
        (0, 0, 0),
        (1,),
        (1, 0),
        (0, 1),
        (2**32,),
        (2**32, 0),
        (2**64 - 1,),
        (2**32 - 1,) * 2,
    ]
    seeds = [derive_seed(*each) for each in words]
    assert len(set(seeds)) == len(words)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds == [derive_seed(*each) for each in words]


def test_seeds_use_all_their_bits() -> None:
    seeds = [derive_seed(word) for word in range(2000)]
    ones = np.array([[seed >> bit & 1 for bit in range(63)] for seed in seeds]).mean(0)
    assert np.all(np.abs(ones - 0.5) < 0.06)  # 5 standard errors


@pytest.mark.parametrize("words", [(), (-1,), (2**64,), (0.5,), ("1",)])
def test_a_seed_that_is_none_is_refused(words: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="seed: expected integers"):
        derive_seed(*words)

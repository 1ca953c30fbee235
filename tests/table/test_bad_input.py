"""Promise 14: a thousand bad inputs, and each gets one clear error that says where it is bad."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from dspp import InputError, PPGPRRegressor
from dspp.estimators import ESTIMATORS, Regressor

SHARES = {"array": 240, "frame": 240, "target": 200, "no table": 140, "columns": 100, "no target": 80}
QUICK = {"members": 1, "inducing": 4, "epochs": 1, "restarts": 1}
N = 24
RNG = np.random.default_rng(14)
X, Y, PAIR = RNG.normal(size=(N, 3)), RNG.normal(size=N), RNG.normal(size=(N, 2))
NAMES = ["east", "north", "up"]
HOUSES: dict[str, list[Any]] = {
    "size": RNG.normal(50.0, 9.0, N).tolist(),
    "rooms": RNG.integers(1, 7, N).tolist(),
    "colour": RNG.choice(["red", "green", "blue"], N).tolist(),
    "sold": [pd.Timestamp("2024-01-01") + pd.Timedelta(int(hours), "h") for hours in RNG.integers(0, 9_000, N)],
    "garden": (RNG.random(N) < 0.5).tolist(),
}
NOT_FINITE = [np.nan, np.inf, -np.inf]
NO_NUMBERS = ["red", "", b"red", {"a": 1}, [1.0], {1}, 1 + 2j, object(), pd.Interval(0, 1), np.datetime64("2024-01-01")]
NO_NUMBERS += [np.timedelta64(3, "s"), pd.Timestamp("2024-01-01"), 10**400]

ROWS, PLACES = st.integers(0, N - 1), st.tuples(st.integers(0, N - 1), st.integers(0, 2))
METHODS: dict[str, Callable[[Regressor, Any, Any], Any]] = {
    "fit": lambda model, X, y: PPGPRRegressor(**QUICK).fit(X, y),
    "predict": lambda model, X, y: model.predict(X),
    "predict_dist": lambda model, X, y: model.predict_dist(X),
    "evaluate": lambda model, X, y: model.evaluate(X, y),
}
LATER = sorted(METHODS.keys() - {"fit"})


@pytest.fixture(scope="module")
def plain() -> Regressor:
    return PPGPRRegressor(**QUICK).fit(X, Y)


@pytest.fixture(scope="module")
def pair() -> Regressor:
    return PPGPRRegressor(**QUICK).fit(X, PAIR)


@pytest.fixture(scope="module")
def houses() -> Regressor:
    return PPGPRRegressor(**QUICK).fit(pd.DataFrame(HOUSES), Y)


def refusal(method: str, model: Regressor, X: Any, y: Any = Y) -> str:
    """The message of the `InputError` that this call must raise; no other error may stand behind it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # scikit-learn's, about names that are there or are not
        with pytest.raises(InputError) as caught:
            METHODS[method](model, X, y)
    error, message = caught.value, str(caught.value)
    assert error.__context__ is None or error.__suppress_context__
    assert not re.search(r'Traceback|File "|Error\b|Exception|inhomogeneous', message), message
    assert 10 < len(message) < 1000
    return message


def every(kind: str, cases: st.SearchStrategy[Any], check: Callable[[Any], None]) -> None:
    """Check as many different cases as this kind has of the thousand, the same in every run."""
    done = []

    @settings(max_examples=SHARES[kind], derandomize=True, deadline=None, database=None)
    @given(cases)
    def each(case: Any) -> None:
        check(case)
        done.append(case)

    each()
    assert len(done) >= SHARES[kind]


def test_they_are_a_thousand() -> None:
    assert sum(SHARES.values()) == 1000


# ---------------------------------------------------------------- one bad cell


def put(table: np.ndarray, place: tuple[int, ...], value: object) -> np.ndarray:
    """A copy with one other cell; of objects, unless the value is a float."""
    changed = table.astype(np.float64 if isinstance(value, float) else object)
    cell = np.empty((), dtype=object)
    cell[()] = value
    changed[place] = value if isinstance(value, float) else cell  # a list must stay one
    return changed


def polars_column(values: list[Any]) -> pl.Series:
    """Of a type where all have one, else of Python objects."""
    if len({type(value) for value in values if value is not None}) > 1:
        return pl.Series(values=values, dtype=pl.Object)
    return pl.Series(values=values)


def polars_frame(columns: dict[str, list[Any]]) -> pl.DataFrame:
    return pl.DataFrame([polars_column(values).alias(name) for name, values in columns.items()])


def columns_of(table: np.ndarray) -> dict[str, list[Any]]:
    return dict(zip(NAMES, table.T.tolist(), strict=True))


NUMBERED: dict[str, Callable[[np.ndarray], Any]] = {
    "numpy": lambda table: table,
    "list": lambda table: table.tolist(),
    "tuple of arrays": lambda table: tuple(table),
    "pandas without names": pd.DataFrame,
    "tensor": torch.tensor,
}
NAMED: dict[str, Callable[[np.ndarray], Any]] = {
    "pandas": lambda table: pd.DataFrame(table, columns=NAMES),
    "polars": lambda table: polars_frame(columns_of(table)),
    "arrow": lambda table: pa.table(columns_of(table)),
}


def test_a_bad_cell_of_numbers(plain: Regressor) -> None:
    def check(case: tuple[str, str, tuple[int, int], Any]) -> None:
        method, library, (i, j), value = case
        X_bad = (NUMBERED | NAMED)[library](put(X, (i, j), value))
        message = refusal(method, plain, X_bad)
        named = f"X: column {NAMES[j]!r}, row {i}: "
        assert message.startswith(named) if library in NAMED else f"at row {i}, column {j}" in message, message

    floats, objects = st.sampled_from(NOT_FINITE), st.sampled_from([None, *NO_NUMBERS])
    methods, later = st.sampled_from(list(METHODS)), st.sampled_from(LATER)
    objected = ["numpy", "list", "tuple of arrays", "pandas without names"]
    every(
        "array",
        st.tuples(methods, st.sampled_from(list(NUMBERED)), PLACES, floats)
        | st.tuples(methods, st.sampled_from(objected), PLACES, objects)
        | st.tuples(later, st.sampled_from(list(NAMED)), PLACES, floats)
        | st.tuples(methods, st.sampled_from(list(NAMED)), PLACES, st.sampled_from([np.inf, -np.inf]))
        | st.tuples(methods, st.sampled_from(["pandas", "polars"]), PLACES, st.sampled_from(NO_NUMBERS)),
        check,
    )


def frame(library: str, columns: dict[str, list[Any]]) -> Any:
    if library == "pandas":
        mixed = {name for name, values in columns.items() if len({type(v) for v in values}) > 1}
        return pd.DataFrame({n: pd.Series(v, dtype=object if n in mixed else None) for n, v in columns.items()})
    return polars_frame(columns) if library == "polars" else pa.table(columns)


def with_cell(name: str, row: int, value: Any, kind: Callable[[Any], Any] = lambda cell: cell) -> dict[str, list[Any]]:
    """The houses with one other cell, and the rest of its column turned into another kind."""
    values = [kind(cell) for cell in HOUSES[name]]
    values[row] = value
    return HOUSES | {name: values}


ODD = {  # of each column what is of no other kind than the rest of it, but cannot be used: fill, and kind of the rest
    "size": [(np.inf, float), (-np.inf, float), (np.nan, float), (None, float), ("much", str), ("1,5", str)],
    "rooms": [(None, int), ("many", str), ("", str), (np.inf, float)],
    "colour": [(None, str), ("  ", str)],
    "sold": [(None, lambda cell: cell), ("soon", str), ("2024-13-01", str), (None, str)],
    "garden": [(None, bool), (2, int), (0.5, float), ("perhaps", str), (np.inf, float)],
}
ALWAYS_BAD = (np.inf, -np.inf)  # also in training, where None is a missing value and text a category


def test_a_bad_cell_of_a_frame(houses: Regressor) -> None:
    def check(case: tuple[str, str, str, int, Any, Any]) -> None:
        method, library, name, row, value, kind = case
        message = refusal(method, houses, frame(library, with_cell(name, row, value, kind)))
        assert message.startswith(f"X: column {name!r}, row {row}: "), message

    libraries = st.sampled_from(["pandas", "polars", "arrow"])
    odd = [(name, *pair) for name, pairs in ODD.items() for pair in pairs]
    always = [case for case in odd if case[1] in ALWAYS_BAD]
    mixed = [(name, value) for name in HOUSES for value in ({"a": 1}, [1.0], b"x", 1 + 2j, object(), pd.Interval(0, 1))]
    mixed += [("size", "much"), ("rooms", "many"), ("colour", 3.5), ("colour", True), ("sold", 7), ("garden", "no")]

    def same(cell: Any) -> Any:
        return cell

    def case(methods: list[str], libraries: st.SearchStrategy[str], cells: list[Any]) -> st.SearchStrategy[Any]:
        built = st.tuples(st.sampled_from(methods), libraries, st.sampled_from(cells), ROWS)
        return built.map(lambda c: (c[0], c[1], c[2][0], c[3], c[2][1], c[2][2] if len(c[2]) > 2 else same))

    every(
        "frame",
        case(LATER, libraries, odd)
        | case(["fit"], libraries, always)
        | case(list(METHODS), st.sampled_from(["pandas", "polars"]), mixed),
        check,
    )


def test_an_inf_is_named_by_its_row_wherever_the_rows_are_split_to() -> None:
    for row in range(N):
        for conformal in (False, True):
            model = PPGPRRegressor(**QUICK, conformal=conformal)
            with pytest.raises(InputError, match=f"^X: column 'size', row {row}: expected a finite number, got inf"):
                model.fit(frame("pandas", with_cell("size", row, np.inf)), Y)
    with pytest.raises(InputError, match=r"^X_val: column 'size', row 3: expected a finite number, got inf"):
        model.fit(pd.DataFrame(HOUSES), Y, frame("arrow", with_cell("size", 3, np.inf)), Y)


# ---------------------------------------------------------------- one bad target

ONE: dict[str, Callable[[np.ndarray], Any]] = {
    "numpy": lambda y: y,
    "column": lambda y: y[:, None],
    "list": lambda y: y.tolist(),
    "tensor": torch.tensor,
    "pandas": lambda y: pd.Series(y, name="price"),
    "pandas without a name": pd.Series,
    "polars": lambda y: polars_column(y.tolist()).alias("price"),
    "arrow": lambda y: pa.array(y.tolist()),
    "frame": lambda y: pd.DataFrame({"price": y}),
    "arrow table": lambda y: pa.table({"price": y.tolist()}),
}
SEVERAL: dict[str, Callable[[np.ndarray], Any]] = {
    "numpy": lambda y: y,
    "list": lambda y: y.tolist(),
    "tensor": torch.tensor,
    "pandas": lambda y: pd.DataFrame(y, columns=["price", "days"]),
    "polars": lambda y: pl.DataFrame({"price": y[:, 0].tolist(), "days": y[:, 1].tolist()}),
    "arrow": lambda y: pa.table({"price": y[:, 0].tolist(), "days": y[:, 1].tolist()}),
}


def test_a_bad_target(plain: Regressor, pair: Regressor) -> None:
    def check(case: tuple[str, bool, str, tuple[int, int], Any]) -> None:
        method, several, library, (row, output), value = case
        if several:
            y, model = SEVERAL[library](put(PAIR, (row, output), value)), pair
        else:
            y, model = ONE[library](put(Y, (row,), value)), plain
        message = refusal(method, model, X, y)
        assert re.match(rf"y: .*\brow {row}\b", message), message
        if several:
            assert f"column {output}" in message or f"column {('price', 'days')[output]!r}" in message, message

    methods, places = st.sampled_from(["fit", "evaluate"]), st.tuples(ROWS, st.integers(0, 1))
    objected = ["numpy", "column", "list", "pandas", "pandas without a name", "polars", "frame"]
    no_numbers = st.sampled_from(NO_NUMBERS[:-1])  # polars cannot hold 10⁴⁰⁰
    every(
        "target",
        st.tuples(methods, st.just(False), st.sampled_from(list(ONE)), places, st.sampled_from(NOT_FINITE))
        | st.tuples(methods, st.just(False), st.sampled_from(objected), places, no_numbers)
        | st.tuples(methods, st.just(True), st.sampled_from(list(SEVERAL)), places, st.sampled_from([np.inf, -np.inf]))
        | st.tuples(methods, st.just(True), st.sampled_from(["numpy", "list", "pandas"]), places, no_numbers),
        check,
    )


# ---------------------------------------------------------------- no table at all


def ragged(i: int) -> list[list[float]]:
    return [row if k != i % N else row[: 1 + i % 2] for k, row in enumerate(X.tolist())]


NO_TABLE: dict[str, Callable[[int], Any]] = {
    "none": lambda i: None,
    "number": lambda i: float(i),
    "0-d": lambda i: np.array(i),
    "1-d": lambda i: np.arange(1.0, i + 1.0),
    "3-d": lambda i: np.zeros((N, 3, i)),
    "4-d": lambda i: torch.zeros(N, 3, 1, i),
    "string": lambda i: "a" * i,
    "bytes": lambda i: b"a" * i,
    "set": lambda i: set(range(i)),
    "dict": lambda i: {"a": list(range(i))},
    "generator": lambda i: (row for row in X[:i]),
    "iterator": lambda i: iter(X[:i]),
    "range": lambda i: range(i),
    "function": lambda i: lambda: X[:i],
    "class": lambda i: np.ndarray,
    "series": lambda i: pd.Series(np.arange(1.0, i + 1.0)),
    "arrow column": lambda i: pa.array(np.arange(float(i))),
    "lazy polars": lambda i: pl.LazyFrame({"a": list(range(i))}),
    "ragged": ragged,
    "ragged arrays": lambda i: [np.array(row) for row in ragged(i)],
    "no rows": lambda i: np.empty((0, i)),
    "no columns": lambda i: np.empty((i, 0)),
    "empty list": lambda i: [[]] * (i - 1),
    "no rows of a frame": lambda i: frame(["pandas", "polars", "arrow"][i % 3], {name: [] for name in HOUSES}),
    "no columns of a frame": lambda i: pd.DataFrame(index=range(i)),
    "sparse": lambda i: (sparse.csr_array, sparse.coo_matrix, sparse.csc_array)[i % 3](X[:i]),
    "sparse tensor": lambda i: torch.tensor(X[:i]).to_sparse(),
    "no memory": lambda i: torch.zeros(i, 3, device="meta"),
    "complex": lambda i: X[:i] + 1j,
    "complex tensor": lambda i: torch.tensor(X[:i] + 1j),
    "text": lambda i: X[:i].astype(str),
    "bytes of numbers": lambda i: X[:i].astype("S"),
    "dates": lambda i: X[:i].astype("datetime64[s]"),
    "durations": lambda i: X[:i].astype("timedelta64[s]"),
    "records": lambda i: np.zeros((i, 3), dtype=[("a", float)]),
    "masked": lambda i: np.ma.masked_array(X[:i], mask=X[:i] < 9.0),
    "objects": lambda i: np.full((i, 3), object()),
    "intervals": lambda i: pd.DataFrame(dict.fromkeys(NAMES, pd.interval_range(0, i))),
    "lists": lambda i: pd.DataFrame(dict.fromkeys(NAMES, [[1.0]] * i)),
    "structs": lambda i: pa.table(dict.fromkeys(NAMES, [{"a": 1.0}] * i)),
    "binary": lambda i: pl.DataFrame(dict.fromkeys(NAMES, [b"1"] * i)),
    "complex columns": lambda i: pd.DataFrame(dict.fromkeys(NAMES, [1j] * i)),
}


def test_what_is_no_table(plain: Regressor, houses: Regressor) -> None:
    def check(case: tuple[str, str, bool, int]) -> None:
        method, kind, framed, size = case
        if kind.startswith("no rows") and method.startswith("predict"):
            method = "evaluate"  # no rows are predicted as no rows
        message = refusal(method, houses if framed else plain, NO_TABLE[kind](size), Y[:size])
        assert message.startswith(("X", "The feature names should match")), message
        if kind.startswith("ragged"):
            assert f"row {size % N} " in message, message

    every(
        "no table",
        st.tuples(st.sampled_from(list(METHODS)), st.sampled_from(list(NO_TABLE)), st.booleans(), st.integers(1, N)),
        check,
    )


# ---------------------------------------------------------------- other columns than in training


def test_other_columns_than_in_training(plain: Regressor, houses: Regressor) -> None:
    def check(case: tuple[str, str, str, str, int]) -> None:
        method, change, library, name, width = case
        if change == "width":
            X_bad = np.ones((N, width))
            assert f"X has {width} features" in refusal(method, plain, X_bad)
            assert f"X has {width + 1} features" in refusal(method, houses, np.ones((N, width + 1)))
            return
        columns = dict(HOUSES)
        if change == "twice":
            other = next(iter(columns.keys() - {name}))
            whole = pd.DataFrame(columns).rename(columns={other: name})
            X_bad = whole if library != "arrow" else pa.table(list(columns.values()), list(whole.columns))
        else:
            values = columns.pop(name)
            columns |= {name + "s": values} if change == "renamed" else {}
            X_bad = frame(library, columns)
        assert name in refusal(method, houses, X_bad)

    later, libraries = st.sampled_from(LATER), st.sampled_from(["pandas", "polars", "arrow"])
    changes = st.sampled_from(["renamed", "missing", "twice", "width"])
    widths = st.integers(5, 400) | st.integers(1, 2)
    every("columns", st.tuples(later, changes, libraries, st.sampled_from(list(HOUSES)), widths), check)


def test_mixed_names_and_columns_twice_are_refused_in_training_too() -> None:
    model = PPGPRRegressor(**QUICK)
    assert "'size' more than once" in refusal("fit", model, pd.DataFrame(X, columns=["size", "size", "up"]))
    assert "got 7 among strings" in refusal("fit", model, pd.DataFrame(X, columns=["size", 7, "up"]))


# ---------------------------------------------------------------- no targets

NO_TARGET: dict[str, Callable[[int], Any]] = {
    "none": lambda i: None,
    "number": lambda i: float(i),
    "string": lambda i: "a" * i,
    "set": lambda i: set(range(i)),
    "dict": lambda i: {"a": list(range(i))},
    "generator": lambda i: (value for value in Y),
    "texts": lambda i: ["a"] * N,
    "numbers as text": lambda i: Y.astype(str),
    "dates": lambda i: pd.Series(pd.date_range("2024-01-01", periods=N), name="day"),
    "dates of numpy": lambda i: np.full(N, np.datetime64("2024-01-01")),
    "categories": lambda i: pd.Series(["u"] * N, dtype="category", name="level"),
    "complex": lambda i: Y + 1j,
    "3-d": lambda i: np.zeros((N, 1, i)),
    "all missing": lambda i: np.full(N, np.nan),
    "everything missing": lambda i: np.full((N, i), np.nan),
    "one row for many": lambda i: Y[:1],
    "fewer rows": lambda i: Y[: i - 1],
    "more rows": lambda i: np.concatenate([Y, Y[:i]]),
    "fewer rows of a frame": lambda i: pl.DataFrame({"price": Y[: max(i - 1, 1)]}),
    "no outputs": lambda i: np.empty((N, 0)),
    "ragged": lambda i: ragged(i - 1),
    "sparse": lambda i: sparse.csr_array(PAIR),
    "the same name twice": lambda i: pd.DataFrame(PAIR, columns=["price", "price"]),
    "lists": lambda i: pd.Series([[1.0]] * N, name="price"),
}


def test_what_is_no_target(plain: Regressor, pair: Regressor) -> None:
    def check(case: tuple[str, str, bool, int]) -> None:
        method, kind, several, size = case
        assert re.search(r"\by\b", refusal(method, pair if several else plain, X, NO_TARGET[kind](size)))

    kinds = st.sampled_from(list(NO_TARGET))
    every("no target", st.tuples(st.sampled_from(["fit", "evaluate"]), kinds, st.booleans(), st.integers(1, N)), check)


def test_an_output_without_values_cannot_be_learned(pair: Regressor) -> None:
    y = np.column_stack([PAIR[:, 0], np.full(N, np.nan)])
    assert "column 1" in refusal("fit", pair, X, y)
    assert np.isfinite(pair.evaluate(X, y)["nll"]), "but the other can be scored"


def test_another_number_of_outputs_than_in_training(plain: Regressor, pair: Regressor) -> None:
    assert "y: expected shape (24,), as predicted, got (24, 2)" in refusal("evaluate", plain, X, PAIR)
    assert "y: expected shape (24, 2), as predicted, got (24,)" in refusal("evaluate", pair, X, Y)


# ---------------------------------------------------------------- one row is enough


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("library", ["numpy", "pandas"])
def test_one_row_is_a_table(name: str, library: str) -> None:
    whole: Any = pd.DataFrame(HOUSES) if library == "pandas" else X
    model = ESTIMATORS[name](**QUICK).fit(whole[:1], Y[:1])
    for rows in (whole[:1], whole[5:6], whole):
        mean, std = model.predict(rows, return_std=True)
        assert np.isfinite(mean).all()
        assert np.isfinite(std).all()
        assert (np.asarray(std) > 0).all()

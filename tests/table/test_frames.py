"""Data frames of pandas, polars and Arrow: the same table whatever the library, and nothing of the user's changed."""

import datetime
import decimal
import multiprocessing
import sys
from collections.abc import Callable

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dspp.errors import InputError
from dspp.table import arrays
from dspp.table.frames import frame_like, has_string_names, is_frame, to_arrow
from dspp.table.messages import Place

HERE = Place("X", "a")
VALUES = {"a": [1.0, 2.5], "b": ["x", None]}
FRAMES = {
    "pandas": pd.DataFrame(VALUES),
    "polars": pl.DataFrame(VALUES),
    "table": pa.table(VALUES),
    "batch": pa.record_batch(VALUES),
}


class Foreign:
    """A frame of a library nobody has heard of."""

    columns = ("a", "b")

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.table(VALUES).__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize("frame", [*FRAMES.values(), Foreign()], ids=[*FRAMES, "foreign"])
def test_every_library_gives_the_same_table(frame: object) -> None:
    assert is_frame(frame)
    assert has_string_names(frame)
    assert to_arrow(frame).to_pydict() == VALUES


@pytest.mark.parametrize(
    "thing",
    [
        np.zeros((2, 2)),
        torch.zeros(2),
        [[1]],
        {"a": [1]},
        None,
        "a",
        pd.Index([1]),
        pa.chunked_array([[1]]),
        pa.array([1]),
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_what_has_no_columns_with_names_is_no_frame(thing: object) -> None:
    assert not is_frame(thing)
    with pytest.raises(InputError, match=rf"y: expected a data frame, got {type(thing).__name__}"):
        to_arrow(thing, "y")


def test_a_series_is_a_frame_of_one_column() -> None:
    for series in (pd.Series([1, 2], name="t"), pl.Series("t", [1, 2])):
        assert is_frame(series)
        assert to_arrow(series, "y").to_pydict() == {"t": [1, 2]}
    for series in (pd.Series([1, 2]), pl.Series([1, 2]), pd.Series([1, 2], name=0)):
        assert to_arrow(series, "y").to_pydict() == {"y": [1, 2]}


def test_looking_at_anything_imports_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("pandas", "polars"):
        monkeypatch.delitem(sys.modules, library)
    assert not is_frame(np.zeros(3))
    assert is_frame(FRAMES["table"])
    assert is_frame(FRAMES["polars"])  # as anything else that exports itself to Arrow
    assert not {"pandas", "polars"} & set(sys.modules)


# ---------------------------------------------------------------- names


def test_names() -> None:
    assert not has_string_names(pd.DataFrame([[1, 2]]))
    assert not has_string_names(pd.Series([1]))
    with pytest.raises(InputError, match="got 1 among strings"):
        has_string_names(pd.DataFrame([[1, 2]], columns=["a", 1]))
    with pytest.raises(InputError, match=r"X: expected column names to be strings, got 0, 1;"):
        to_arrow(pd.DataFrame([[1, 2]]))
    levels = pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("size", "mean"), ("size", "max")]))
    with pytest.raises(
        InputError, match=r"got several levels as in \('size', 'mean'\); flatten the columns: X.columns = \["
    ):
        has_string_names(levels)
    levels.columns = ["_".join(map(str, names)) for names in levels.columns]  # as it says
    assert has_string_names(levels)
    assert not has_string_names(pd.Series([1], name=("size", "mean")))
    with pytest.raises(InputError, match="got 'a' more than once"):
        to_arrow(pd.DataFrame([[1, 2, 3]], columns=["a", "b", "a"]))
    with pytest.raises(InputError, match="got 'a' more than once"):
        to_arrow(pa.table([[1], [2]], names=["a", "a"]))
    with pytest.raises(InputError, match=r"0 feature\(s\)"):
        to_arrow(pd.DataFrame(index=[1, 2]))


# ---------------------------------------------------------------- columns of pandas


def test_columns_of_pandas_keep_their_types() -> None:
    frame = pd.DataFrame(
        {
            "category": pd.Categorical(["u", "v", None]),
            "zoned": pd.date_range("2024-01-01", periods=3, tz="Europe/Berlin"),
            "nullable": pd.array([1, None, 3], dtype="Int64"),
            "flags": pd.array([True, None, False], dtype="boolean"),
            "text": pd.Series(["x", np.nan, None], dtype=object),
            "money": pd.Series([decimal.Decimal("1.5"), None, decimal.Decimal(2)], dtype=object),
            "sparse": pd.arrays.SparseArray([0.0, 0.0, 1.0]),
            "bins": pd.cut([1.0, 2.0, 3.0], [0, 2, 4]),
        }
    ).set_index(pd.Index([5, 6, 7]))
    table = to_arrow(frame)
    assert table.column_names == list(frame.columns)  # no index
    assert pa.types.is_dictionary(table.schema.field("category").type)
    assert table.schema.field("zoned").type.tz == "Europe/Berlin"
    assert table.column("nullable").to_pylist() == [1, None, 3]
    assert table.column("flags").to_pylist() == [True, None, False]
    assert table.column("text").to_pylist() == ["x", None, None]
    assert table.column("money").to_pylist() == [decimal.Decimal("1.5"), None, 2]
    assert table.column("sparse").to_pylist() == [0.0, 0.0, 1.0]
    assert table.column("bins").to_pylist() == ["(0, 2]", "(0, 2]", "(2, 4]"]


@pytest.mark.parametrize(
    ("values", "row", "odd"),
    [
        ([1, "x", None], 1, r"int as in most rows, got 'x' \(str\)"),
        ([None, "x", np.nan, 2.5], 3, r"str as in most rows, got 2.5 \(float\)"),
        ([1, 2.5, True], 2, r"True \(bool\)"),
        (["a", b"b"], 1, r"b'b' \(bytes\)"),
        ([datetime.date(2024, 1, 1), "2024-01-02"], 1, r"date as in most rows, got '2024-01-02' \(str\)"),
    ],
)
def test_mixed_columns_are_refused_with_the_row(values: list[object], row: int, odd: str) -> None:
    frame = pd.DataFrame({"fine": 1.0, "a": pd.Series(values, dtype=object)})
    with pytest.raises(InputError, match=rf"^X: column 'a', row {row}: expected .*{odd}"):
        to_arrow(frame)


@pytest.mark.parametrize("kind", [lambda time: time, pd.Timestamp])
def test_times_with_and_without_a_zone_are_not_mixed_in_silence(kind: Callable[[datetime.datetime], object]) -> None:
    naive = datetime.datetime(2024, 1, 1)
    times = [None, *map(kind, [naive, naive, naive.replace(tzinfo=datetime.UTC)])]
    for frame in (
        pd.DataFrame({"a": pd.Series([pd.NaT, *times[1:]], dtype=object)}),
        pl.DataFrame({"a": pl.Series(times, dtype=pl.Object)}),
    ):
        problem = (
            "expected times all with a time zone or all without, got '2024-01-01 00:00:00[+]00:00' after '2024-01-01"
        )
        with pytest.raises(InputError, match=f"^X: column 'a', row 3: {problem}"):
            to_arrow(frame)
        assert to_arrow(frame[:3]).num_rows == 3


def test_values_that_arrow_cannot_hold_are_named() -> None:
    with pytest.raises(InputError, match=r"^X: column 'a': expected real numbers, got complex"):
        to_arrow(pd.DataFrame({"a": [1 + 2j]}))
    values = [None, 3, 2**70]
    for frame in (
        pd.DataFrame({"a": pd.Series(values, dtype=object)}),
        pl.DataFrame({"a": pl.Series(values, dtype=pl.Object)}),
    ):
        with pytest.raises(InputError, match=rf"^X: column 'a', row 2: cannot convert {2**70}"):
            to_arrow(frame)


def test_a_polars_frame_is_converted_in_a_forked_process_too() -> None:
    def convert() -> None:
        assert to_arrow(FRAMES["polars"]).to_pydict() == VALUES
        frame_like(FRAMES["polars"], {"a": np.zeros(2)})

    convert()  # may start threads, which a fork leaves behind
    child = multiprocessing.get_context("fork").Process(target=convert)
    child.start()
    child.join(30)
    child.kill()
    assert child.exitcode == 0


def test_objects_in_polars_are_taken_by_value() -> None:
    frame = pl.DataFrame({"a": pl.Series([1, None, 2.5], dtype=pl.Object), "b": ["x", "y", None]})
    assert to_arrow(frame).to_pydict() == {"a": [1, None, 2.5], "b": ["x", "y", None]}
    frame = pl.DataFrame({"a": pl.Series(["x", 1.0, 2.5], dtype=pl.Object)})
    with pytest.raises(InputError, match=r"^X: column 'a', row 0: expected float as in most rows, got 'x' \(str\)"):
        to_arrow(frame)


def test_numbers_of_different_types_may_mix() -> None:
    assert to_arrow(pd.DataFrame({"a": pd.Series([1, 2.5, np.int64(3)], dtype=object)})).to_pydict() == {
        "a": [1, 2.5, 3]
    }


@given(st.lists(st.none() | st.integers(-5, 5) | st.text(max_size=2) | st.floats() | st.booleans(), max_size=6))
def test_any_object_column_is_converted_or_refused_and_never_changed(values: list[object]) -> None:
    frame = pd.DataFrame({"a": pd.Series(values, dtype=object)})
    before = frame.copy(deep=True)
    try:
        assert to_arrow(frame).num_rows == len(values)
    except InputError as problem:
        assert "column 'a'" in str(problem)  # noqa: PT017 - both ends are allowed
    pd.testing.assert_frame_equal(frame, before)


# ---------------------------------------------------------------- and back


@pytest.mark.parametrize("kind", FRAMES)
def test_frames_come_back_in_the_library_they_came_from(kind: str) -> None:
    columns = {"mean": np.array([0.5, 1.5]), "std": np.array([1.0, 2.0])}
    frame = frame_like(FRAMES[kind], columns)
    assert isinstance(frame, {"pandas": pd.DataFrame, "polars": pl.DataFrame}.get(kind, pa.Table))
    assert to_arrow(frame).to_pydict() == {"mean": [0.5, 1.5], "std": [1.0, 2.0]}


def test_pandas_keeps_its_index_and_shares_no_memory() -> None:
    X = pd.DataFrame({"a": [1, 2]}, index=pd.Index(["r", "s"], name="id"))
    values = np.array([0.5, 1.5])
    for like in (X, X["a"]):
        frame = frame_like(like, {"mean": values})
        assert frame.index.equals(X.index)
        assert frame.index.name == "id"
        assert frame["mean"].tolist() == [0.5, 1.5]
        frame.iloc[0, 0] = 9.0
        assert values[0] == 0.5


# ---------------------------------------------------------------- columns as numpy arrays


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([1, None, 3]), [1, np.nan, 3]),
        (pa.array([2**63 - 1]), [2.0**63]),
        (pa.array([2**64 - 1], pa.uint64()), [2.0**64]),
        (pa.array([1.5, None], pa.float16()), [1.5, np.nan]),
        (pa.array([decimal.Decimal("1.25")]), [1.25]),
        (pa.array([True, False, None]), [1, 0, np.nan]),
        (pa.array([1500, None], pa.duration("ms")), [1.5, np.nan]),
        (pa.array([" 1.5 ", "NA", "-2e3", None, ""]), [1.5, np.nan, -2000, np.nan, np.nan]),
        (pa.array(["1", "2"], pa.large_string()), [1, 2]),
        (pa.array(["1", "2"], pa.string_view()), [1, 2]),
        (pa.array([3, 4, 3]).dictionary_encode(), [3, 4, 3]),
        (pa.nulls(2), [np.nan, np.nan]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "",
)
def test_numbers(array: pa.Array, expected: list[float]) -> None:
    np.testing.assert_array_equal(arrays.numbers(array, HERE), np.array(expected, dtype=np.float64))


@given(st.lists(st.sampled_from(["1", "2.5", "NA"]), max_size=40), st.integers(0, 40))
def test_the_first_cell_that_is_no_number_is_named(cells: list[str], position: int) -> None:
    position = min(position, len(cells))
    text = pa.array([*cells[:position], "1,5", *cells[position:], "x"])
    with pytest.raises(InputError, match=rf"^X: column 'a', row {position + 7}: expected a number, got '1,5'$"):
        arrays.numbers(text, Place("X", "a", 7))


def test_moments_are_microseconds_in_utc_however_they_come() -> None:
    micros = 1_704_106_800_000_000  # 2024-01-01 11:00 UTC
    moment = datetime.datetime(2024, 1, 1, 11, tzinfo=datetime.UTC)
    for array in (
        pa.array([moment, None], pa.timestamp("s", "Europe/Berlin")),
        pa.array([moment.replace(tzinfo=None), None], pa.timestamp("ns")),
        pa.array(["2024-01-01T12:00:00+01:00", None]),
        pa.array(["2024-01-01 11:00", "?"]),
        pa.array(["2024-01-01 11:00:00.000000001", ""]),
        pa.array([moment, None], pa.timestamp("ms", "UTC")).dictionary_encode(),
    ):
        values, missing = arrays.datetimes(array, HERE)
        assert values[0] == micros, array.type
        assert missing.tolist() == [False, True]
    midnight = micros - 11 * 3_600_000_000
    for kind in (pa.date32(), pa.date64()):
        assert arrays.datetimes(pa.array([datetime.date(2024, 1, 1)], kind), HERE)[0][0] == midnight
    for array in (pa.array([datetime.time(0, 30)]), pa.array(["00:30"])):
        assert arrays.datetimes(array, HERE)[0].tolist() == [1_800_000_000]


def test_errors_of_moments() -> None:
    with pytest.raises(InputError, match=r"row 2: expected a date or time such as .*, got '31.1.2024'"):
        arrays.datetimes(pa.array(["2024-01-01", None, "31.1.2024", "x"]), HERE)
    with pytest.raises(InputError, match="expected dates or times, got int64"):
        arrays.datetimes(pa.array([1]), HERE)
    with pytest.raises(InputError, match="within the range of timestamps"):
        arrays.datetimes(pa.array([2**62], pa.timestamp("s")), HERE)


def test_booleans() -> None:
    for array in (pa.array([True, False, None]), pa.array([1, 0, None]), pa.array(["TRUE", "false", "NA"])):
        np.testing.assert_array_equal(arrays.booleans(array, HERE), [1, 0, np.nan])
    with pytest.raises(InputError, match="row 1: expected true or false, got 2"):
        arrays.booleans(pa.array([1, 2]), HERE)
    with pytest.raises(InputError, match="row 0: expected true or false, got 'yes'"):
        arrays.booleans(pa.array(["yes"]), HERE)


def test_texts() -> None:
    for array in (
        pa.array([" 1", "2 ", "", None]),
        pa.array([1, 2, None, None]),
        pa.array([1.0, 2.0, np.nan, None]),
        pa.array([1, 2, None, None]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([1, 0, 2, None]), pa.array(["2", "1 ", ""])),
        pa.array([1, 2, None, None]).dictionary_encode().slice(0, 4),
    ):
        assert arrays.texts(array, HERE).to_pylist() == ["1", "2", None, None]
    for array in (pa.array([[1]]), pa.array([b"x"]), pa.array([b"x"], pa.binary(1))):
        with pytest.raises(InputError, match="expected text or other categories"):
            arrays.texts(array, HERE)

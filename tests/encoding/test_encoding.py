"""The encoder of tables: what each kind of column becomes, what is refused, and the laws that hold for any table."""

import datetime
import json
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dspp.codec import pack, unpack
from dspp.encoding.columns import MAX_LEVELS, MAX_TEXT
from dspp.encoding.encoder import MAX_COLUMNS, TableEncoder, reading_types
from dspp.errors import InputError
from dspp.table import arrays
from dspp.table.arrays import BLOCK, MISSING
from dspp.table.files import open_table, write_table
from dspp.table.frames import to_arrow
from dspp.table.messages import Place

TWO_DAYS = [datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 2)]


def fit(**columns: Any) -> TableEncoder:
    return TableEncoder.fit(pa.table(columns))


def encoded(encoder: TableEncoder, **columns: Any) -> np.ndarray:
    return encoder.transform(pa.table(columns))


# ---------------------------------------------------------------- what says that a value is missing


@pytest.mark.parametrize("mark", MISSING)
def test_marks_of_missing_values_mean_the_same_wherever_they_come_from(mark: str, tmp_path: Path) -> None:
    cells = ["FR", f" {mark} ", "DE", mark, "none", "FR"]
    (tmp_path / "t.csv").write_text("c,x\n" + "".join(f"{cell},{i}\n" for i, cell in enumerate(cells)))
    plain = pa.table({"c": cells, "x": range(len(cells))})
    write_table(tmp_path / "t.parquet", plain.to_batches(), plain.schema)
    tables = {
        "csv": open_table(tmp_path / "t.csv").read().arrow,
        "parquet": open_table(tmp_path / "t.parquet").read().arrow,
        "arrow": plain,
        "dictionary": plain.set_column(0, "c", plain["c"].dictionary_encode()),
        "pandas": to_arrow(pd.DataFrame({"c": cells, "x": range(6)})),
        "pandas category": to_arrow(pd.DataFrame({"c": pd.Categorical(cells), "x": range(6)})),
        "polars": to_arrow(pl.DataFrame({"c": cells, "x": range(6)})),
    }
    expected = TableEncoder.fit(tables["csv"])
    assert expected.feature_names == ("c=FR", "c=DE", "c=none", "c=(missing)", "x")
    for name, table in tables.items():
        encoder = TableEncoder.fit(table)
        assert encoder == expected, name
        np.testing.assert_array_equal(encoder.transform(table)[:, 3], [0, 1, 0, 1, 0, 0], name)


# ---------------------------------------------------------------- numbers


def test_numbers_stay_as_they_are() -> None:
    values = [1.5, -2.0, 1e300]
    encoder = fit(a=values, n=[2**60, 1, 2])
    assert encoder.feature_names == encoder.column_names == ("a", "n")
    out = encoded(encoder, a=values, n=[2**60, 1, 2])
    np.testing.assert_array_equal(out, np.column_stack([values, [2.0**60, 1, 2]]))
    assert out.dtype == np.float64
    assert out.flags.c_contiguous


def test_missing_numbers_are_the_median_and_marked() -> None:
    encoder = fit(age=[1.0, None, 4.0, np.nan, 10.0, 5.0])
    assert encoder.feature_names == ("age", "age is missing")
    out = encoded(encoder, age=[None, 7.0, np.nan])
    np.testing.assert_array_equal(out, [[4.5, 1], [7, 0], [4.5, 1]])  # the median of 1, 4, 5, 10


def test_the_median_of_huge_numbers_is_finite() -> None:
    assert encoded(fit(a=[1.7e308, 1.6e308, None]), a=[None])[0, 0] == pytest.approx(1.65e308)


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ([1.0, 2.0], [1.0, None]),
        ([1, 2], [1, np.nan]),
        ([True, False], [True, None]),
        (["a", "b"], ["a", None]),
        (TWO_DAYS, [*TWO_DAYS[:1], None]),
    ],
    ids=["null", "nan", "boolean", "category", "datetime"],
)
def test_a_value_missing_where_training_had_none_is_refused(train: list[Any], test: list[Any]) -> None:
    encoder = fit(fine=[1, 2], age=train)
    table = pa.table({"fine": [1, 2], "age": test})
    with pytest.raises(
        InputError, match=r"^X: column 'age', row 1: expected a value, as in all training rows, got none"
    ):
        encoder.transform(table)
    with pytest.raises(
        InputError,
        match=r"^test.csv: column 'age', row 1001: .*fill it in, train on rows with missing values, or "
        r"predict with missing='impute' \(--missing impute\)$",
    ):
        encoder.transform(table, Place("test.csv", first_row=1000))


def test_imputed_values_are_medians_unknown_levels_and_halves() -> None:
    many = [f"level {i}" for i in range(25)] * 2
    train = {
        "number": np.arange(50.0),
        "date": pa.array([datetime.datetime(2024, 1, 1) + datetime.timedelta(hours=12 * i) for i in range(50)]),
        "flag": [True, False] * 25,
        "pair": ["a", "b"] * 25,
        "three": (["a", "b", "c"] * 17)[:50],
        "many": many,
        "gaps": [1.0, 2.0, None, 4.0, 5.0] * 10,
    }
    blank = pa.table({name: pa.array([None], pa.array(values).type) for name, values in train.items()})
    out = fit(**train).transform(blank, impute=True)[0]
    names = fit(**train).feature_names
    found = dict(zip(names, out, strict=True))
    assert found["number"] == 24.5
    assert found["date (days)"] == 12.25
    assert found["flag"] == found["pair=b"] == 0.5
    assert [found[f"three={level}"] for level in "abc"] == [0, 0, 0]
    assert [found[name] for name in names if name.startswith("many=")] == [0] * MAX_LEVELS + [
        1
    ]  # the last is "(other)"
    assert (found["gaps"], found["gaps is missing"]) == (3.0, 1.0)
    encoder = TableEncoder.fit(pa.table(train), y=np.arange(50.0)[:, None])
    assert dict(zip(encoder.feature_names, encoder.transform(blank, impute=True)[0], strict=True))["many (mean)"] == 0
    assert encoder.columns_with_gaps(encoder.parse(blank)) == set(train) - {"gaps"}
    full = pa.table(train)
    assert encoder.transform(full, impute=True).tobytes() == encoder.transform(full).tobytes()
    with pytest.raises(InputError, match="column 'number', row 0: expected a finite number, got inf"):
        encoder.transform(pa.table(train | {"number": [np.inf] * 50}), impute=True)


def test_infinite_numbers_are_refused_in_training_and_later() -> None:
    with pytest.raises(InputError, match="column 'a', row 1: expected a finite number, got -inf"):
        fit(a=[1.0, -np.inf, np.inf])
    with pytest.raises(InputError, match="column 'a', row 2: expected a finite number, got inf"):
        encoded(fit(a=[1.0, 2.0, None]), a=[1.0, None, np.inf])


def test_a_row_beyond_the_first_block_has_its_own_number() -> None:
    values = np.arange(3 * BLOCK, dtype=np.float64)
    encoder = fit(a=values)
    values[2 * BLOCK + 5] = np.nan
    with pytest.raises(InputError, match=rf"row {2 * BLOCK + 5}:"):
        encoded(encoder, a=values)


# ---------------------------------------------------------------- booleans and categories


def test_booleans() -> None:
    np.testing.assert_array_equal(encoded(fit(b=[True, False]), b=[True, False]), [[1], [0]])
    encoder = fit(b=[True, None, False])
    assert encoder.feature_names == ("b", "b is missing")
    np.testing.assert_array_equal(encoded(encoder, b=[None, 1, 0]), [[0, 1], [1, 0], [0, 0]])


def test_levels_stand_by_frequency_then_name() -> None:
    encoder = fit(colour=["red", "blue", "green", "blue", "green", "teal"])
    assert encoder.feature_names == ("colour=blue", "colour=green", "colour=red", "colour=teal")
    np.testing.assert_array_equal(
        encoded(encoder, colour=["red", "blue", "pink"]), [[0, 0, 1, 0], [1, 0, 0, 0], [0] * 4]
    )


def test_two_levels_share_a_column() -> None:
    encoder = fit(sex=["m", "f", "f"])
    assert encoder.feature_names == ("sex=m",)
    np.testing.assert_array_equal(encoded(encoder, sex=["f", "m", "x"]), [[0], [1], [0.5]])


def test_missing_is_a_level_if_training_had_it() -> None:
    encoder = fit(c=["a", None, "b", "a"])
    assert encoder.feature_names == ("c=a", "c=b", "c=(missing)")
    np.testing.assert_array_equal(encoded(encoder, c=["b", None, "x"]), [[0, 1, 0], [0, 0, 1], [0, 0, 0]])


def test_rare_levels_share_a_column() -> None:
    common = [f"level {i:02}" for i in range(MAX_LEVELS)] * 3
    encoder = fit(c=[*common, "rare 1", "rare 2", None])
    assert len(encoder.feature_names) == MAX_LEVELS + 2
    assert encoder.feature_names[-2:] == ("c=(other)", "c=(missing)")
    out = encoded(encoder, c=["rare 1", "never seen", None, "level 03"])
    assert out.argmax(1).tolist() == [MAX_LEVELS, MAX_LEVELS, MAX_LEVELS + 1, 3]
    assert out.sum(1).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("levels", [["a", "b"], [1, 2], [True, False]], ids=["text", "integers", "booleans"])
def test_categories_of_any_library_are_compared_by_their_text(levels: list[Any]) -> None:
    values = [*levels, levels[0]]
    encoder = TableEncoder.fit(to_arrow(pd.DataFrame({"c": pd.Categorical(values)})))
    assert encoder.describe()[0]["kind"] == "category"
    for arrived in (
        pd.DataFrame({"c": values}),
        pd.DataFrame({"c": pd.Categorical(values[::-1])[::-1]}),
        pl.DataFrame({"c": values}),
    ):
        np.testing.assert_array_equal(encoder.transform(to_arrow(arrived)), [[0], [1], [0]])


def test_categories_of_polars() -> None:
    for kind in (pl.Categorical, pl.Enum(["b", "a"]), pl.String):
        encoder = TableEncoder.fit(to_arrow(pl.DataFrame({"c": pl.Series(["a", "b", "a"], dtype=kind)})))
        assert encoder.feature_names == ("c=b",)
        assert encoder.notes == ()


# ---------------------------------------------------------------- dates


def test_dates_are_days_since_the_first_and_the_cycles_that_vary() -> None:
    days = [datetime.date(2024, 1, d) for d in range(1, 8)]  # Monday to Sunday
    encoder = fit(when=pa.array(days[::-1]))
    assert encoder.feature_names == ("when (days)", "when: weekday, sin", "when: weekday, cos")
    angle = 2 * np.pi * np.arange(7) / 7
    expected = np.column_stack([range(7), np.sin(angle), np.cos(angle)])
    np.testing.assert_allclose(encoded(encoder, when=days), expected, atol=1e-15)


def test_which_cycles_a_column_of_times_has() -> None:
    def cycles(*moments: str) -> set[str]:
        names = fit(t=pa.array(moments).cast(pa.timestamp("s"))).feature_names
        return {name.split(": ")[1].split(",")[0] for name in names[1:]}

    assert cycles("2024-01-01 06:00", "2024-01-02 06:00") == set()
    assert cycles("2024-01-01 06:00", "2024-01-02 18:00") == {"hour"}
    assert cycles("2024-01-01", "2024-01-02", "2024-01-07") == {"weekday"}
    assert cycles("2024-01-01", "2024-12-02") == {"day of year"}  # 336 days, both Mondays


def test_a_cycle_that_the_rows_do_not_cover_once_is_no_input() -> None:
    """Its values ahead would be extrapolated: ten months tell nothing of the season of the next two."""

    def num_features(*moments: str) -> int:
        return len(fit(t=pa.array(moments).cast(pa.timestamp("s"))).feature_names)

    assert num_features("2024-01-01 06:00", "2024-01-01 18:00") == 1
    assert num_features("2024-01-01", "2024-01-02", "2024-01-03") == 1
    assert num_features("2013-01-01", "2013-10-29") == 1


def test_days_stand_still_outside_of_the_range_seen_in_training() -> None:
    encoder = fit(t=pa.array([datetime.date(2024, 1, 3), datetime.date(2024, 1, 6)]))
    out = encoded(encoder, t=[datetime.date(y, m, d) for y, m, d in [(2023, 1, 1), (2024, 1, 5), (2030, 1, 1)]])
    assert out[:, 0].tolist() == [0.0, 2.0, 3.0]
    assert unpack(TableEncoder, {}, json.loads(json.dumps(pack(encoder)[1]))) == encoder


def test_the_hour_goes_round() -> None:
    encoder = fit(t=pa.array(["2024-01-01 00:00", "2024-01-02 12:00"]).cast(pa.timestamp("s")))
    out = encoded(encoder, t=["2024-01-01 06:00", "2024-01-02 06:00", "2024-01-01 18:00"])
    np.testing.assert_allclose(out[:, 1:], [[1, 0], [1, 0], [-1, 0]], atol=1e-12)
    np.testing.assert_allclose(out[:, 0], [0.25, 1.25, 0.75])


def test_missing_dates() -> None:
    encoder = fit(t=pa.array(["2024-01-01", "2024-01-02", "2024-01-10", None]).cast(pa.date32()))
    assert encoder.feature_names[-1] == "t is missing"
    np.testing.assert_array_equal(encoded(encoder, t=pa.array([None], pa.date32())), [[1.0, 0, 0, 1]])


def test_moments_are_the_same_in_every_zone_and_type() -> None:
    moments = pd.date_range("2024-01-01 05:00", periods=200, freq="31h", tz="UTC")
    encoder = TableEncoder.fit(to_arrow(pd.DataFrame({"t": moments})))
    expected = encoder.transform(to_arrow(pd.DataFrame({"t": moments})))
    for same in (
        pd.DataFrame({"t": moments.tz_convert("Asia/Kolkata")}),
        pd.DataFrame({"t": moments.strftime("%Y-%m-%d %H:%M:%SZ")}),
        pl.DataFrame({"t": moments.tz_convert("Asia/Kolkata")}),
    ):
        np.testing.assert_array_equal(encoder.transform(to_arrow(same)), expected)
    naive = moments.tz_localize(None)
    clock = TableEncoder.fit(to_arrow(pd.DataFrame({"t": naive})))
    for same in (
        pd.DataFrame({"t": naive.strftime("%Y-%m-%dT%H:%M:%S")}),
        pl.DataFrame({"t": naive.to_numpy()}),
    ):
        np.testing.assert_array_equal(clock.transform(to_arrow(same)), expected)


ZONED = pa.array(
    [datetime.datetime(2024, 1, d, d, tzinfo=datetime.UTC) for d in range(1, 9)], pa.timestamp("us", "UTC")
)
NAIVE = ZONED.cast(pa.timestamp("us"))


@pytest.mark.parametrize("as_text", [False, True])
def test_times_with_and_without_a_zone_are_not_mixed_up(as_text: bool) -> None:
    zoned, naive = (t.cast(pa.string()) if as_text else t for t in (ZONED, NAIVE))
    of_zoned, of_naive = fit(t=zoned), fit(t=naive)
    for encoder, same, other, advice in (
        (of_zoned, ZONED, NAIVE, r"with a time zone, as in training, got none; add it, as in .dt.tz_localize\('UTC'\)"),
        (of_naive, NAIVE, ZONED, "without a time zone, as in training, got some with one; convert them to the clock"),
    ):
        for again in (encoder, unpack(TableEncoder, {}, json.loads(json.dumps(pack(encoder)[1])))):
            assert len(encoded(again, t=same)) == len(encoded(again, t=same.cast(pa.string()))) == 8
            for wrong in (other, other.cast(pa.string())):
                with pytest.raises(InputError, match=f"^X: column 't': expected times {advice}"):
                    encoded(again, t=wrong)


def test_text_with_and_without_a_zone_is_no_time_and_says_so() -> None:
    mixed = [*NAIVE.cast(pa.string()).to_pylist(), *ZONED.cast(pa.string()).to_pylist()]
    assert "some of its times have a time zone and others have none" in str(fit(t=mixed, x=range(16)).notes[0])
    with pytest.raises(
        InputError, match=r"row 8: expected a date or time in the format of the rows before, got .*zone"
    ):
        encoded(fit(t=NAIVE), t=mixed)


def test_times_of_day_and_lengths_of_time() -> None:
    clock = [datetime.time(6), datetime.time(18), datetime.time(0)]
    encoder = fit(clock=pa.array(clock), took=pa.array([1500, 500, 0], pa.duration("ms")))
    assert encoder.feature_names == ("clock (days)", "clock: hour, sin", "clock: hour, cos", "took")
    out = encoded(encoder, clock=["06:00", "18:00:00", "00:00"], took=[1.5, 0.5, 0])
    np.testing.assert_allclose(out, [[0.25, 1, 0, 1.5], [0.75, -1, 0, 0.5], [0, 0, 1, 0]], atol=1e-12)


def test_years_and_months_as_text_are_numbers() -> None:
    words = ["61 years 04 months", "63 years", "1 Year, 1 month", "8 months", " 2years 6months ", None]
    encoder = fit(lease=words)
    assert encoder.feature_names == ("lease (years)", "lease is missing")
    assert "durations" in str(encoder.notes[0])
    expected = [61 + 4 / 12, 63, 1 + 1 / 12, 8 / 12, 2.5, 2.5]
    np.testing.assert_allclose(encoded(encoder, lease=words)[:, 0], expected)
    assert unpack(TableEncoder, {}, json.loads(json.dumps(pack(encoder)[1]))) == encoder
    with pytest.raises(InputError, match="column 'lease', row 1: expected a duration such as '61 years 4 months', got"):
        encoded(encoder, lease=["61 years", "61 years or so"])
    with pytest.raises(InputError, match="row 0: expected a value, as in all training rows, got none"):
        encoded(fit(lease=words[:5]), lease=[None, "1 year"])
    assert encoded(fit(lease=words[:5]), lease=["1 year"]).tolist() == [[1.0]]


@pytest.mark.parametrize("words", [["1 year", "a year"], ["1 year", ","], ["years", "months"], ["1 year", "1 yr"]])
def test_text_with_other_words_is_no_duration(words: list[str]) -> None:
    assert fit(c=words).describe()[0]["kind"] == "category"


# ---------------------------------------------------------------- columns that are left out


def test_columns_without_information_are_left_out_with_a_note() -> None:
    names = [f"id {i}" for i in range(30)]
    table = {"a": range(30), "empty": pa.nulls(30), "nan": [np.nan] * 30, "same": [7] * 30, "word": ["x"] * 30}
    table |= {"id": names, "flag": [True] * 30, "day": [datetime.date(2024, 1, 1)] * 30, "void": [""] * 30}
    encoder = fit(**table)
    assert encoder.feature_names == encoder.column_names == ("a",)
    assert len(encoder.notes) == 8
    for name, reason in {
        "empty": "no values",
        "nan": "no values",
        "same": "the same value",
        "void": "no values",
    }.items():
        assert any(f"column {name!r} is left out" in str(note) and reason in str(note) for note in encoder.notes)
    assert "column 'id' is left out: it is text with 30 different values in 30 rows" in map(str, encoder.notes)
    assert encoder.describe()[1] == {"column": "empty", "kind": "left out", "description": "has no values"}
    np.testing.assert_array_equal(encoded(encoder, a=[1, 2]), [[1], [2]])  # the others are not needed


def test_text_with_many_levels_is_kept_if_they_repeat() -> None:
    assert len(fit(c=[f"level {i}" for i in range(21)] * 2).feature_names) == MAX_LEVELS + 1  # exactly half
    assert len(fit(c=[f"level {i}" for i in range(20)]).feature_names) == 20  # not more than 20


def test_nothing_to_learn_from() -> None:
    with pytest.raises(
        InputError,
        match="expected at least one informative column, got none: column 'a' is left out: it has the same value",
    ):
        fit(a=[1, 1])
    with pytest.raises(InputError, match="expected at least 1 row, got 0"):
        fit(a=pa.array([], pa.float64()))


@pytest.mark.parametrize("values", [[[1]], [{"b": 1}], [b"x"]], ids=["list", "struct", "binary"])
def test_columns_that_cannot_be_encoded_are_refused(values: list[Any]) -> None:
    with pytest.raises(
        InputError, match=r"^X: column 'a': expected numbers, text, dates or Booleans, got (list|struct|binary)"
    ):
        fit(a=values)


@pytest.mark.parametrize(
    ("values", "note"),
    [
        (["1", "2", "1"], "numbers as text"),
        ([*map(str, range(40)), "n.a. yet"], "most of its values are numbers, but not 'n.a. yet'"),
        (["1,5", "2,5", "3"], "numbers with commas"),
        (["2024-01-01", "2024-01-02"], "dates as text, read as dates"),
        (["31.01.2024", "1.2.2024"], "look like dates; write them as 2024-01-31"),
        (["1/31/24 6:30 PM", "12/01/23 11:00 AM"], "look like dates"),
        (["1.5%", "2.5 %"], "numbers with a currency or unit"),
        (["$1,500", "-$2,500.50"], "numbers with a currency or unit"),
        (["80 EUR", "90 EUR"], "numbers with a currency or unit"),
    ],
)
def test_text_that_is_something_else_is_noted(values: list[str], note: str) -> None:
    assert note in str(fit(c=values, a=range(len(values))).notes[0])
    assert fit(c=["red", "blue"]).notes == ()
    assert fit(c=["B 12", "12th street"]).notes == ()


@pytest.mark.parametrize(
    "texts", [["2024-01-01", None, "2024-03-05", "2024-01-01"], ["08:30:00", "17:00:00", "", "08:30:00"]]
)
def test_dates_as_text_are_encoded_as_dates(texts: list[str | None]) -> None:
    text = pa.array(texts, pa.string())
    dates = arrays.parse_datetimes(text, Place("X", "t"))
    encoder, expected = fit(t=text), fit(t=dates)
    assert encoder.columns == expected.columns
    np.testing.assert_array_equal(encoded(encoder, t=text), encoded(expected, t=dates))
    pieces = pa.chunked_array([text[row : row + 1] for row in range(len(text))])
    assert fit(t=pieces).columns == expected.columns
    with pytest.raises(InputError, match=r"column 't', row 0: expected a date or time such as 2024-01-31.*'soon'"):
        encoded(encoder, t=["soon"])


@pytest.mark.parametrize("name", ["__index_level_0__", "Unnamed: 0"])
def test_the_index_of_a_data_frame_is_no_input(name: str) -> None:
    encoder = fit(**{name: [0, 1, 2], "a": [1.0, 3.0, 2.0]})
    assert encoder.feature_names == ("a",)
    assert str(encoder.notes[0]).startswith(f"column {name!r} is left out: it is the index of a data frame; rename it")
    np.testing.assert_array_equal(encoded(encoder, a=[5.0]), [[5.0]])  # new rows need not have it


# ---------------------------------------------------------------- columns that arrive otherwise than in training


def test_columns_are_found_by_name() -> None:
    encoder = fit(first=[1, 2], second=["a", "b"])
    np.testing.assert_array_equal(encoded(encoder, extra=[[0]], second=["b"], first=[5]), [[5, 1]])
    with pytest.raises(InputError, match=r"^X: expected a column 'second', got none; did you mean 'secnd'\?$"):
        encoded(encoder, first=[1], secnd=["a"])
    with pytest.raises(InputError, match="expected a column 'first', got none; pass every column"):
        encoded(encoder, second=["a"], zzz=[1])
    with pytest.raises(InputError, match="got 'first' more than once"):
        encoder.transform(pa.table([[1], [2], ["a"]], names=["first", "first", "second"]))


def test_values_may_come_in_another_type() -> None:
    encoder = fit(n=[1, 2], b=[True, False], c=["1", "2"], t=TWO_DAYS)
    expected = encoded(encoder, n=[1.0], b=[True], c=["1"], t=TWO_DAYS[:1])
    np.testing.assert_array_equal(encoded(encoder, n=["1"], b=[1], c=[1], t=["2024-01-01"]), expected)
    np.testing.assert_array_equal(encoded(encoder, n=[1], b=["true"], c=[1.0], t=[datetime.date(2024, 1, 1)]), expected)
    typed = pa.table({"n": [1], "b": [1], "c": ["1"], "t": TWO_DAYS[:1]}).cast(pa.schema(encoder.arrow_types()))
    np.testing.assert_array_equal(encoder.transform(typed), expected)


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("n", ["1", "two"], "row 1: expected a number, got 'two'"),
        ("n", TWO_DAYS, "expected numbers, got timestamp"),
        ("b", [0, 2], "row 1: expected true or false, got 2"),
        ("t", ["2024-01-01", "later"], "row 1: expected a date or time such as .*, got 'later'"),
        ("t", [1, 2], "expected dates or times, got int64"),
        ("c", [[1], [2]], "expected text.*got list"),
    ],
)
def test_values_of_another_kind_are_refused(column: str, value: list[Any], message: str) -> None:
    fine: dict[str, Any] = {"n": [1, 2], "b": [True, False], "c": ["1", "2"], "t": TWO_DAYS}
    with pytest.raises(InputError, match=f"^X: column '{column}'.*{message}"):
        encoded(fit(**fine), **fine | {column: value})


# ---------------------------------------------------------------- laws

TEXT = st.text(st.characters(codec="utf-8"), max_size=3)
KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.float64(): st.floats(allow_infinity=False),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(),
    pa.string(): TEXT,
    pa.dictionary(pa.int32(), pa.string()): TEXT,
    pa.timestamp("us"): st.datetimes(),
    pa.date32(): st.dates(),
    pa.null(): st.none(),
    pa.time64("us"): st.times(),
    pa.duration("us"): st.timedeltas(datetime.timedelta(-(10**8)), datetime.timedelta(10**8)),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    rows = draw(st.integers(2, 12))
    kinds = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=5))
    columns = {}
    for i, kind in enumerate(kinds):
        value = KINDS[kind] if draw(st.booleans()) else st.none() | KINDS[kind]
        columns[f"column {i}"] = pa.array(draw(st.lists(value, min_size=rows, max_size=rows)), kind)
    return pa.table({"row": pa.array(range(rows)), **columns})


@settings(deadline=None, max_examples=60)
@given(tables(), st.randoms(use_true_random=False), st.integers(1, 5))
@example(pa.table({"t": [datetime.datetime(1, 1, 1), datetime.datetime(9999, 12, 31), None]}), None, 2)
def test_laws_of_any_table(table: pa.Table, random: Any, size: int) -> None:
    before = table.to_pylist()
    encoder = TableEncoder.fit(table)
    whole = encoder.transform(table)

    assert repr(table.to_pylist()) == repr(before)
    assert whole.shape == (table.num_rows, len(encoder.feature_names))
    assert np.isfinite(whole).all()
    assert len(encoder.describe()) == table.num_columns

    again = unpack(TableEncoder, {}, json.loads(json.dumps(pack(encoder)[1], allow_nan=False)))
    assert again == encoder
    assert again.transform(table).tobytes() == whole.tobytes()

    names = list(table.column_names)
    if random is not None:
        random.shuffle(names)
    assert encoder.transform(table.select(names)).tobytes() == whole.tobytes()

    parts = [encoder.transform(batch) for batch in table.to_batches(max_chunksize=size)]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    chunked = pa.concat_tables([table[:size], table[size:]])
    assert TableEncoder.fit(chunked) == encoder
    assert encoder.transform(chunked).tobytes() == whole.tobytes()


def test_blocks_do_not_show() -> None:
    rows = 2 * BLOCK + 100
    rng = np.random.default_rng(0)
    moments = np.datetime64("2024-01-01", "s") + np.arange(rows) * 997
    table = pa.table({"a": rng.normal(size=rows), "c": rng.choice(["x", "y", "z"], rows), "t": moments})
    encoder = TableEncoder.fit(table)
    whole = encoder.transform(table)
    parts = [encoder.transform(batch) for batch in table.to_batches(max_chunksize=1_001)]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    assert encoder.transform(table[:0]).shape == (0, len(encoder.feature_names))


def test_numbers_cost_little_more_than_copying_them() -> None:
    columns = [np.random.default_rng(i).normal(size=200_000) for i in range(20)]
    table = pa.table(columns, names=[f"c{i}" for i in range(20)])
    encoder = TableEncoder.fit(table)

    def best(work: Callable[[], object]) -> float:
        return min(timeit.repeat(work, number=1, repeat=7))

    assert best(lambda: encoder.transform(table)) < 4 * best(lambda: np.column_stack(columns))  # about 1 when alone


def test_every_library_gives_the_same_numbers() -> None:
    columns = {"n": [1.5, None, 2.0, 3.0], "c": ["u", "v", "w", "u"], "b": [True, False, True, True]}
    encoder = TableEncoder.fit(pa.table(columns))
    expected = encoder.transform(pa.table(columns))
    for frame in (pd.DataFrame(columns), pd.DataFrame(columns).convert_dtypes(), pl.DataFrame(columns)):
        assert TableEncoder.fit(to_arrow(frame)) == encoder
        np.testing.assert_array_equal(encoder.transform(to_arrow(frame)), expected)


# ---------------------------------------------------------------- hostile files


def good() -> dict[str, Any]:
    return pack(fit(n=[1, None, 3], c=["a", "b", "c"], b=[True, False, None], t=[*TWO_DAYS, None], k=[1, 1, 1]))[1]


BAD: dict[str, list[Any]] = {  # of the right type, which `dspp.codec` checks
    "name": ["x" * (MAX_TEXT + 1), "\ud800"],
    "fill": [float("nan"), 10**400],
    "levels": [[], ["a", "a"], ["\udfff"], [f"{i}" for i in range(65)]],
    "origin": [2**70],
    "cycles": [["minute"], ["hour", "hour"]],
    "reason": ["x" * (MAX_TEXT + 1)],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in BAD.items() for value in values])
def test_every_field_is_checked(field: str, value: Any) -> None:
    place = next(i for i, column in enumerate(good()["columns"]) if field in column)
    damaged = good()
    damaged["columns"][place][field] = value
    with pytest.raises(InputError, match="damaged"):
        unpack(TableEncoder, {}, damaged)


def test_the_structure_is_checked() -> None:
    columns = good()["columns"]
    for change in (
        {"columns": []},
        {"columns": [*columns, columns[0]]},
        {"columns": [{**columns[0], "name": str(i)} for i in range(MAX_COLUMNS + 1)]},
        {"notes": ["note"] * (2 * MAX_COLUMNS + 1)},
        {"columns": columns[-1:]},  # nothing but a column that is left out
    ):
        with pytest.raises(InputError):
            unpack(TableEncoder, {}, good() | change)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None, max_examples=150)
@given(JSON, st.data())
def test_anything_else_is_refused_or_works(value: Any, data: st.DataObject) -> None:
    values = good()
    column = data.draw(st.sampled_from(values["columns"]))
    column[data.draw(st.sampled_from(sorted(column)))] = value
    try:
        encoder = unpack(TableEncoder, {}, values)
    except InputError:
        return
    known = {"number": 1.0, "boolean": True, "category": "a", "datetime": TWO_DAYS[0]}
    kinds = {column["column"]: column["kind"] for column in encoder.describe()}
    table = pa.table({name: [known[kinds[name]]] for name in encoder.column_names})
    table = table.cast(pa.schema(encoder.arrow_types()))  # with a time zone if `zoned` was changed
    assert np.isfinite(encoder.transform(table)).all()


def test_a_table_may_not_be_too_wide() -> None:
    table = pa.table([[0, 1]] * (MAX_COLUMNS + 1), names=[str(i) for i in range(MAX_COLUMNS + 1)])
    with pytest.raises(InputError, match="expected at most 10,000 columns, got 10,001"):
        TableEncoder.fit(table)


def test_marking_learns_from_other_rows_which_columns_have_gaps_and_nothing_else() -> None:
    train = pa.table({"a": [1.0, 2.0, 4.0], "b": ["x", "y", "x"], "c": [True, False, True], "d": [1, 1, 1]})
    encoder = TableEncoder.fit(train)
    whole = pa.table({"a": [9.0, 9.0], "b": ["x", "x"], "c": [True, True], "d": [1, 1]})
    assert encoder.allow_missing_in(encoder.parse(whole)) == encoder
    gaps = pa.table({"a": [9.0, None], "b": ["x", None], "c": [True, True], "d": [1, None]})
    marked = encoder.allow_missing_in(encoder.parse(gaps))
    assert marked.feature_names == ("a", "a is missing", "b=x", "b=y", "b=(missing)", "c")
    np.testing.assert_array_equal(marked.transform(gaps), [[9, 0, 1, 0, 0, 1], [2, 1, 0, 0, 1, 1]])


def test_types_for_reading_are_known_before_there_is_an_encoder() -> None:
    table = pa.table(
        {
            "n": [1, 2],
            "d": pa.array([1, 2], pa.decimal128(5, 2)),
            "b": [True, False],
            "s": ["x", "y"],
            "c": pa.array([1, 2]).dictionary_encode(),
            "t": TWO_DAYS,
            "z": ZONED[:2].cast(pa.timestamp("ns", "Asia/Kolkata")),
            "clock": [datetime.time(1), datetime.time(2)],
        }
    )
    empty = pa.field("empty", pa.null())
    assert reading_types(table.schema.append(empty)) == TableEncoder.fit(table).arrow_types()


def test_a_column_of_very_long_text_is_left_out_with_a_reason() -> None:
    encoder = fit(c=["a" * (MAX_TEXT + 1), "b"] * 3, x=[1, 2, 3, 4, 5, 6])
    assert encoder.column_names == ("x",)
    assert [str(note) for note in encoder.notes] == [
        "column 'c' is left out: it is text of more than 10,000 characters"
    ]
    assert fit(c=["a" * MAX_TEXT, "b"] * 3).column_names == ("c",)

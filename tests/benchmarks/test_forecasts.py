"""Forecasts and short budgets: rows are split by time, and the tables say what was measured."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import budgets, forecasts
from dspp.errors import InputError

SCORES = {"nll": 1.0, "crps": 0.5, "rmse": 2.0, "r2": 0.25, "bias": -0.125, "coverage90": 0.914}


def record(name: str, method: str, fold: int, **more: object) -> dict[str, object]:
    rows, seconds = {"train": 1_000, "test": 200}, {"fit": 12.3}
    return {"set": name, "method": method, "fold": fold, "metrics": SCORES, "rows": rows, "seconds": seconds} | more


def test_test_rows_are_later_than_all_others(tmp_path: Path) -> None:
    days = pd.date_range("2014-12-20", periods=30)
    (tmp_path / "tables").mkdir()
    frame = pd.DataFrame({"date": days, "temp_max": np.arange(30.0), "wind": 1.0})
    frame.to_parquet(tmp_path / "tables" / "seattle_weather.parquet")
    for with_date in (True, False):
        rows = forecasts.load("seattle_weather", with_date, tmp_path)
        assert (len(rows.y), len(rows.y_test)) == (12, 18)
        assert list(rows.X.columns) == (["date", "wind"] if with_date else ["wind"])
        assert rows.time.max() < np.datetime64("2015-01-01")
    with pytest.raises(InputError, match=r"flights\.parquet does not exist"):
        forecasts.load("flights", True, tmp_path)


def test_the_tables_say_what_was_measured() -> None:
    text = forecasts.write([record("flights", "CatBoost", 0, commit="abc"), record("flights", "dspp", 1, commit="abc")])
    assert "| dspp" in text.split("CatBoost")[0], "methods have a fixed order"
    assert "91.4 %" in text
    assert "seattle" not in text
    made = [record("diamonds", f"dspp[{s} s]", 0, commit="abc", settings={"time_budget": s}) for s in (60, 5)]
    text = budgets.write(made, [record("diamonds", "lightgbm", 0), record("diamonds", "mlps", 0)])
    assert text.index("dspp, 5 s") < text.index("dspp, 60 s") < text.index("lightgbm")
    assert "mlps" not in text

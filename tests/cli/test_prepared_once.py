"""One `dspp fit` encodes every row once and predicts the validation rows once, whatever is made of them."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import dspp.prepare
from dspp.cli import app
from dspp.encoding.encoder import TableEncoder
from dspp.fitted import Fitted

TINY = ["--members", "1", "--inducing", "6", "--width", "2", "--epochs", "2", "--restarts", "1"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x, town = rng.normal(size=100), rng.choice(["Oslo", "Rome", "Paris"], 100)
    pq.write_table(pa.table({"x": x, "town": town, "y": x + (town == "Rome")}), tmp_path / "t.parquet")
    return tmp_path / "t.parquet"


def test_rows_are_encoded_once_and_validation_rows_predicted_once(table: Path) -> None:
    encoded, predicted = [], []
    encode, predict_standardised = TableEncoder.encode, Fitted.predict_standardised

    def count_encoded(encoder: TableEncoder, parsed: Any, num_rows: int, *more: Any) -> Any:
        encoded.append(num_rows)
        return encode(encoder, parsed, num_rows, *more)

    def count_predicted(fitted: Fitted, X: Any) -> Any:
        predicted.append(len(X))
        return predict_standardised(fitted, X)

    words = ["fit", str(table), "--target", "y", "--out", str(table.parent / "m.dspp"), *TINY]
    with (
        patch.object(TableEncoder, "encode", count_encoded),
        patch.object(Fitted, "predict_standardised", count_predicted),
    ):
        result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "Scores on 10 rows" in result.stdout
    assert sorted(encoded) == [10, 90]
    assert predicted == [10]


def test_a_report_encodes_only_the_rows_it_changes_again(table: Path) -> None:
    encoded, encode = [], TableEncoder.encode

    def count_encoded(encoder: TableEncoder, parsed: Any, num_rows: int, *more: Any) -> Any:
        encoded.append(num_rows)
        return encode(encoder, parsed, num_rows, *more)

    words = ["fit", str(table), "--target", "y", "--out", str(table.parent / "m.dspp"), *TINY]
    with patch.object(TableEncoder, "encode", count_encoded):
        CliRunner().invoke(app, [*words, "--report", str(table.parent / "r.html")], catch_exceptions=False)
    assert encoded.count(90) == 1


def test_a_search_prepares_its_table_once(table: Path) -> None:
    calls, prepare = [], dspp.prepare.prepare

    def count(*given: Any, **named: Any) -> Any:
        calls.append(1)
        return prepare(*given, **named)

    words = ["tune", str(table), "--target", "y", "--out", str(table.parent / "m.dspp"), "--trials", "2"]
    with patch.object(dspp.prepare, "prepare", count):
        more = ["--inducing", "6", "--epochs", "2", "--restarts", "1", "--layers", "2"]
        result = CliRunner().invoke(app, [*words, *more], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert "Best of 2 settings" in result.stdout
    assert len(calls) == 1

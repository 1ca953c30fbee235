"""Each value of a table is cleaned, parsed and encoded once, in a fit and in a prediction, whoever asks for it."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dspp
from dspp.cli import app
from dspp.encoding.columns import Category, Column, Number
from dspp.encoding.datetimes import Datetime
from dspp.encoding.encoder import TableEncoder
from dspp.encoding.means import MeanCategory
from dspp.table import arrays

ROWS = 600
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "size": RNG.normal(size=ROWS),
        "town": RNG.choice(["Oslo", "Rome", "Pisa"], ROWS),
        "shop": RNG.choice([f"shop {k}" for k in range(40)], ROWS),  # many levels: means of the target
        "day": pd.date_range("2024-01-01", periods=ROWS, freq="h"),
    }
)
Y = FRAME["size"].to_numpy() + (FRAME["town"] == "Rome").to_numpy() + 0.1 * RNG.normal(size=ROWS)
TINY = {"inducing": 4, "epochs": 1, "layers": 1, "jobs": 1, "members": 2, "progress": False}


class Counts:
    """Cells of text that were cleaned, and by column the rows that were parsed and encoded."""

    def __init__(self) -> None:
        self.cleaned, self.parsed, self.encoded = 0, Counter[str](), Counter[str]()


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    found, clean, encode = Counts(), arrays.clean, TableEncoder.encode

    def count_cleaned(text: Any) -> Any:
        found.cleaned += len(text)
        return clean(text)

    def count_parsed(kind: type[Column]) -> Callable[..., Any]:
        parse = kind.parse

        def counting(column: Any, values: Any, place: Any) -> Any:
            found.parsed[column.name] += len(values)
            return parse(column, values, place)

        return counting

    def count_encoded(encoder: TableEncoder, parsed: Any, num_rows: int, *more: Any) -> Any:
        found.encoded.update(dict.fromkeys(encoder.column_names, num_rows))
        return encode(encoder, parsed, num_rows, *more)

    monkeypatch.setattr(arrays, "clean", count_cleaned)
    for kind in (Number, Category, MeanCategory, Datetime):
        monkeypatch.setattr(kind, "parse", count_parsed(kind))
    monkeypatch.setattr(TableEncoder, "encode", count_encoded)
    return found


def each(rows: int) -> Counter[str]:
    return Counter(dict.fromkeys(FRAME.columns, rows))


LEVELS = 3 + 40  # of the two columns of text; a dictionary is cleaned whenever it is read


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("positive", [False, True])
def test_a_fit_parses_and_encodes_each_value_once(counts: Counts, members: int, positive: bool) -> None:
    """Whether a log-normal wins makes no difference, unless a column has means of the target."""
    y = np.exp(2 * Y) if positive else Y
    frame = FRAME.drop(columns="shop") if positive else FRAME
    model = dspp.DSPPRegressor(**TINY | {"members": members}).fit(frame, y)
    if members > 1:
        assert model.fitted_.outcome.likelihood == ("log-normal" if positive else "gaussian")
    assert counts.parsed == Counter(dict.fromkeys(frame.columns, ROWS))
    assert counts.encoded == counts.parsed
    assert counts.cleaned < len({"town", "shop"} & set(frame)) * ROWS + 6 * LEVELS


def test_a_prediction_parses_and_encodes_each_value_once(counts: Counts) -> None:
    model = dspp.DSPPRegressor(**TINY).fit(FRAME, Y)
    for ask in (model.predict, model.predict_table, lambda X: model.predict_interval(X, [0.5, 0.9])):
        counts.__init__()  # type: ignore[misc]
        ask(FRAME)
        assert counts.parsed == counts.encoded == each(ROWS)
        assert counts.cleaned == 2 * ROWS


def test_the_command_line_parses_and_encodes_each_value_once(counts: Counts, tmp_path: Path) -> None:
    FRAME.assign(y=Y).to_parquet(tmp_path / "t.parquet")
    dspp.DSPPRegressor(**TINY).fit(FRAME, Y).save(tmp_path / "m.dspp")
    for words in (["predict", "m.dspp", "t.parquet", "--out", "p.csv", "--batch-rows", "250"], ["evaluate", "m.dspp"]):
        counts.__init__()  # type: ignore[misc]
        given = [words[0], *(str(tmp_path / word) if "." in word else word for word in words[1:])]
        given += [str(tmp_path / "t.parquet")] if words[0] == "evaluate" else []
        result = CliRunner().invoke(app, given, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        assert counts.parsed == counts.encoded == each(ROWS)
        assert counts.cleaned == 2 * ROWS

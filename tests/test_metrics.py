"""The registry of metrics: what it promises of every score, and that a user's own is shown wherever scores are."""

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import dspp
from dspp import DSPPRegressor
from dspp.cli import app
from dspp.cli.show import score_table
from dspp.errors import InputError
from dspp.metrics import LEVELS, METRICS, PAPER, Comparison, Metric, evaluate, have_several_outputs
from dspp.predictive import NormalMixture
from dspp.report.scores import make_cards, score_cards

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = np.sin(X[:, 0]) + 0.1 * RNG.normal(size=60)
BOTH = np.column_stack([Y, -Y])
ORDER = ["nll", "rmse", "crps", "coverage90", "r2", "coverage50", "coverage80", "coverage95"]
ORDER += ["width50", "width80", "width90", "width95", "pit_ks", "pit_pvalue"]


def tiny(y: np.ndarray) -> Any:
    return DSPPRegressor(members=1, inducing=4, width=2, sites=2, epochs=1, restarts=1, progress=False).fit(X, y)


def scored(model: Any, X: np.ndarray, y: np.ndarray) -> tuple[Any, np.ndarray]:
    found = model.evaluation(X, y)
    return found.distribution, found.y


@pytest.fixture(scope="module")
def one() -> Any:
    return tiny(Y)


@pytest.fixture(scope="module")
def two() -> Any:
    return tiny(BOTH)


def test_names_and_order_of_scores_stay(one: Any, two: Any) -> None:
    assert list(one.evaluate(X, Y)) == ORDER
    assert list(two.evaluate(X, BOTH)) == [*ORDER[:4], "mrmse", *ORDER[4:]]
    assert list(evaluate(*scored(one, X, Y))) == ["nll", "rmse", "crps", "coverage90"]
    assert list(evaluate(*scored(two, X, BOTH))) == list(PAPER)
    assert have_several_outputs(two.evaluate(X, BOTH))
    assert not have_several_outputs(one.evaluate(X, Y))


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_says_what_it_is_in_a_sentence(name: str) -> None:
    metric = METRICS[name]
    assert metric.title
    for several in (False, True):
        assert re.fullmatch(r"[A-Z].*(better|best|negative|ideal|bad|coverage)\.", metric.sentence(several)), name
        assert len(metric.sentence(several)) <= 110


def test_every_level_is_scored() -> None:
    for level in LEVELS:
        assert METRICS[f"coverage{100 * level:.0f}"].target == level
        assert f"width{100 * level:.0f}" in METRICS


def test_what_is_expensive_is_computed_once(one: Any) -> None:
    mixture, y = scored(one, X, Y)
    calls = []

    def counted(name: str) -> Any:
        method = getattr(NormalMixture, name)
        return patch.object(NormalMixture, name, lambda *args: (calls.append(name), method(*args))[1])

    with counted("cdf"), counted("quantile"):
        Comparison(mixture, y).scores()
    assert sorted(calls) == ["cdf", "quantile"]


def test_unknown_metrics_are_refused(one: Any) -> None:
    with pytest.raises(InputError, match=r"unknown metric 'nonsense'; choose one of: .*rmse"):
        Comparison(*scored(one, X, Y)).scores(["nll", "nonsense"])


# ---------------------------------------------------------------- a metric of one's own

MAE = Metric(
    "MAE", lambda rows: (rows.mean - rows.y).abs().nanmean().item(), "Mean absolute error; lower is better.", "Of both."
)


def test_a_metric_of_ones_own_is_shown_wherever_scores_are(one: Any, two: Any, tmp_path: Path) -> None:
    model, table = tmp_path / "model.dspp", tmp_path / "test.csv"
    one.save(model)
    np.savetxt(table, np.column_stack([X, Y]), delimiter=",", header="x0,x1,y", comments="", fmt="%.17g")
    expected = float(np.abs(one.predict(X) - Y).mean())
    with METRICS.temporarily("mae", MAE):
        scores = one.evaluate(X, Y)
        assert list(scores) == [*ORDER, "mae"]
        assert scores["mae"] == pytest.approx(expected)
        assert two.evaluate(X, BOTH)["mae"] == pytest.approx(np.abs(two.predict(X) - BOTH).mean())
        assert tiny(Y).fitted_.metrics.keys() == scores.keys()  # of the validation rows

        card = score_cards(one.evaluation(X, Y))[-1]
        assert (card.title, card.meaning) == ("MAE", "Mean absolute error; lower is better.")
        assert score_cards(two.evaluation(X, BOTH))[-1].meaning == "Of both."
        dspp.write_model_report(one, X, Y, tmp_path / "page.html")
        assert "Mean absolute error; lower is better." in (tmp_path / "page.html").read_text()

        shown = CliRunner().invoke(app, ["evaluate", str(model), str(table)], catch_exceptions=False)
        assert re.search(r"MAE +[0-9.]+ +Mean absolute error; lower is better\.", shown.stdout)
        found = CliRunner().invoke(app, ["evaluate", str(model), str(table), "--json"], catch_exceptions=False)
        assert json.loads(found.stdout)["mae"] == pytest.approx(expected)
    assert "mae" not in one.evaluate(X, Y)


def test_scores_that_no_metric_explains_are_shown_by_name() -> None:
    """Those of a model file, say, whose metric is not registered here."""
    nll, mae = make_cards({"mae": 0.5, "nll": 1.0}, {}, is_discrete=False)
    assert (nll.title, nll.value, bool(nll.meaning)) == ("NLL", "1", True)
    assert (mae.title, mae.value, mae.meaning) == ("mae", "0.5", "")
    _, table = score_table("Scores", {"mae": 0.5, "nll": 1.0, "width50": 2.0}, "evaluate")
    assert list(table.columns[0].cells) == ["NLL", "mae"]


@pytest.mark.parametrize(("value", "text"), [(0.3, "0.3"), (1e-5, "< 0.0001")])
def test_p_values_have_a_format_of_their_own(value: float, text: str) -> None:
    metric = Metric("p", lambda rows: value, format="p-value")
    with METRICS.temporarily("p", metric):
        assert metric.text(value) == text


def test_a_metric_of_several_outputs_is_left_out_for_one(one: Any, two: Any) -> None:
    with METRICS.temporarily("spread", Metric("Spread", lambda rows: 1.0, targets="several outputs")):
        assert "spread" not in one.evaluate(X, Y)
        assert two.evaluate(X, BOTH)["spread"] == 1.0


def test_scores_of_float32_are_computed_in_float64(one: Any) -> None:
    mixture, y = scored(one, X, Y)
    short = mixture.to(torch.float32)
    assert Comparison(short, y).scores() == Comparison(short.to(torch.float64), y).scores()

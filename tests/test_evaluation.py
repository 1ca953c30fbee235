"""Evaluation in batches, in bounded memory, and recognition of rows that a model was trained on."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dspp import DSPPRegressor, evaluate, load, write_model_report
from dspp.cli import app
from dspp.fitted import Fitted
from dspp.metrics import METRICS, Comparison, Metric
from dspp.report.model import report as report_on
from dspp.seen import MAX_HASHES, Recogniser, choose_hashes, hash_rows
from dspp.table.memory import attach_targets, to_table

SMALL: dict[str, Any] = {"inducing": 6, "width": 2, "sites": 3, "epochs": 2, "jobs": 1, "progress": False}
BATCH, KEPT = 16, 32


def table(rows: int, seed: int = 0, target: Callable[[np.ndarray], np.ndarray] = np.asarray) -> pa.Table:
    """Numbers, text and gaps in the inputs, a target and weights."""
    g = np.random.default_rng(seed)
    size, town = g.uniform(size=rows), g.choice(["Oslo", "Rome"], rows)
    y = target(3.0 * size + (town == "Rome") + 0.3 * g.normal(size=rows))
    return pa.table(
        {"size": pa.array(size, mask=g.random(rows) < 0.1), "town": town, "w": g.uniform(size=rows), "y": y}
    )


def features(rows: pa.Table) -> pa.Table:
    return rows.select(["size", "town"])


def trained(target: Callable[[np.ndarray], np.ndarray] = np.asarray, **more: Any) -> Any:
    rows = table(90, target=target)
    return DSPPRegressor(**SMALL | more).fit(features(rows), rows["y"].to_numpy())


@pytest.fixture(scope="module")
def model() -> Any:
    return trained(members=4, conformal=True)


def in_batches(patch: pytest.MonkeyPatch) -> list[int]:
    """Score 16 rows at once and keep 32; return a list that numbers of rows are added to as they are predicted."""
    sizes: list[int] = []
    distribution = Fitted.distribution

    def counted(self: Fitted, X: Any, *place: Any) -> Any:
        sizes.append(len(X))
        return distribution(self, X, *place)

    patch.setattr(evaluate, "SCORED_ROWS", BATCH)
    patch.setattr(evaluate, "SAMPLE_ROWS", KEPT)
    patch.setattr(Fitted, "distribution", counted)
    return sizes


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("kind", ["numbers", "few values", "weights", "two outputs", "recalibrated"])
def test_batches_change_no_score_and_hold_no_more_rows(
    kind: str, model: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounded = np.round if kind == "few values" else np.asarray
    rows = table(200, seed=1, target=rounded)
    X, y = features(rows), rows["y"].to_numpy()
    weights = rows["w"].to_numpy() if kind == "weights" else None
    if kind == "two outputs":
        y = np.column_stack([y, np.where(np.arange(200) % 3, -y, np.nan)])
        small = table(90)["y"].to_numpy()
        model = DSPPRegressor(members=1, **SMALL).fit(features(table(90)), np.column_stack([small, -small]))
    elif kind != "recalibrated":
        model = trained(rounded, members=1)
    whole = model.evaluation(X, y, weights)
    assert (whole.index, whole.num_rows) == (None, 200)
    expected, verdict = whole.scores, whole.calibration
    sizes = in_batches(monkeypatch)
    found = model.evaluation(X, y, weights)
    assert not sizes or (max(sizes) <= BATCH and len(sizes) == 13)  # recalibration predicts in another way
    assert found.scores == pytest.approx(expected, rel=1e-9)
    assert found.calibration.verdict() == verdict.verdict()
    assert found.calibration.recalibrated == verdict.recalibrated
    assert (verdict.recalibrated is None) == (kind != "recalibrated")
    assert found.num_rows == 200
    assert KEPT / 2 <= len(found.table) == len(found.distribution) == len(found.y) <= KEPT
    assert found.index.tolist() == found.table.row_numbers.tolist() == list(range(0, 200, 8))
    np.testing.assert_array_equal(found.y, whole.y[found.index])
    np.testing.assert_allclose(found.distribution.mean, whole.distribution.mean[found.index], rtol=1e-9)

    labels = [f"row {n}" for n in range(200)]
    write_model_report(model, X, y, tmp_path / "labels.html", row_labels=labels)
    named = set(re.findall(r"row \d+(?=<)", (tmp_path / "labels.html").read_text()))
    assert named <= set(labels[::8]), "of the rows that were kept"
    assert len(named) >= 10
    shown = report_on(found)
    assert any(
        "25 of the rows, evenly spaced; scores and calibration use all rows" in note
        for panel in shown.sections[-1].panels
        for note in panel.points
    )
    assert shown.subtitle.startswith("200 rows of ")

    if kind != "two outputs":
        model.save(tmp_path / "m.dspp")
        pq.write_table(
            rows.select(["size", "town", *(["w"] if weights is not None else []), "y"]), tmp_path / "t.parquet"
        )
        more = ["--weight", "w"] if weights is not None else []
        path, report = str(tmp_path / "t.parquet"), tmp_path / "r.html"
        words = ["evaluate", str(tmp_path / "m.dspp"), path, "--json", "--report", str(report), *more]
        result = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
        assert {name: result[name] for name in found.scores} == found.scores, "to the bit, as without batches"
        assert (result["rows"], result["verdict"]) == (200, found.calibration.verdict())
        assert "evenly spaced; scores and calibration use all rows" in report.read_text()


def test_a_single_score_of_batches_needs_no_others(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = table(100, seed=1)
    X, y = features(rows), rows["y"].to_numpy()
    expected = model.score_nll(X, y)
    in_batches(monkeypatch)
    monkeypatch.setattr(Comparison, "widths_by_row", property(lambda self: pytest.fail("widths were computed")))
    monkeypatch.setattr(Comparison, "crps_by_row", property(lambda self: pytest.fail("the CRPS was computed")))
    assert model.score_nll(X, y) == pytest.approx(expected, rel=1e-12)


def test_a_metric_that_needs_distributions_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, one = table(100, seed=1), trained(members=1)
    in_batches(monkeypatch)
    X, y = features(rows), rows["y"].to_numpy()
    with METRICS.temporarily("spread", Metric("Spread", lambda rows: rows.mixture.std.mean().item())):
        assert one.evaluate(X, y)["spread"] == pytest.approx(one.predict(X, return_std=True)[1].mean())


def test_batches_without_targets_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, one = table(100, seed=1), trained(members=1)
    y = rows["y"].to_numpy().copy()
    y[20:70] = np.nan
    lines = [
        "size,town,y",
        *(
            f"{s or ''},{t},{'' if np.isnan(v) else v}"
            for s, t, v in zip(rows["size"].to_pylist(), rows["town"].to_pylist(), y, strict=True)
        ),
    ]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    one.save(tmp_path / "m.dspp")
    in_batches(monkeypatch)
    words = ["evaluate", str(tmp_path / "m.dspp"), str(tmp_path / "t.csv"), "--json"]
    found = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    seen = ~np.isnan(y)
    expected = one.evaluate(features(rows.filter(pa.array(seen))), y[seen])
    assert found["rows"] == 50
    assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-9)
    assert "50 rows without a target left out" in found["warnings"]


# ---------------------------------------------------------------- rows of training


def test_rows_of_training_are_recognised(model: Any, tmp_path: Path) -> None:
    rows, new = table(90), table(90, seed=1)
    model.save(tmp_path / "m.dspp")
    again = load(tmp_path / "m.dspp")
    np.testing.assert_array_equal(again.fitted_.seen_rows, model.fitted_.seen_rows)

    def said(rows: pa.Table, by: Any = again) -> str:
        return by.calibration(features(rows), rows["y"].to_numpy()).verdict()

    assert said(rows).endswith(
        "The model was trained on these rows, so this is optimistic; score new rows with dspp evaluate."
    )
    assert "The model was trained on these rows" in said(rows.slice(40, 10))
    assert "trained on" not in said(new)
    mixed = pa.concat_tables([rows.slice(0, 30), new.slice(0, 60)])
    assert "The model was trained on about 33 % of these rows" in said(mixed)
    earlier = load(tmp_path / "m.dspp")
    earlier.fitted_ = replace(earlier.fitted_, seen_rows=None)
    assert "trained on" not in said(rows, earlier), "a file of an earlier version does not tell"


def test_a_few_of_many_hashes_recognise_rows() -> None:
    g = np.random.default_rng(0)
    X, y = g.normal(size=(50_000, 3)), g.normal(size=(50_000, 1))
    hashes = hash_rows(X, y, None)
    kept = choose_hashes(hashes)
    assert kept is not None
    assert len(kept) == MAX_HASHES
    other = hash_rows(X + 1e-3, y, None)
    for rows, share in ((hashes[:5_000], 1.0), (np.concatenate([hashes[:5_000], other[:5_000]]), 0.5), (other, 0.0)):
        recogniser = Recogniser(kept)
        for part in np.array_split(rows, 7):
            recogniser.count(part)
        assert recogniser.known / recogniser.comparable == pytest.approx(share, abs=0.15)
        assert bool(recogniser.caveat()) == (share > 0.0)
    assert choose_hashes(hash_rows(X.round(), (y > 0).astype(float), None)) is None, "new rows would equal them"
    np.testing.assert_array_equal(hash_rows(-0.0 * X, y, None), hash_rows(0.0 * X, y, None))


def test_targets_are_part_of_a_row() -> None:
    rows = attach_targets(to_table(np.zeros((4, 1))), np.arange(4.0))
    assert rows.array is not None
    assert len(np.unique(hash_rows(rows.array, rows.targets, None))) == 4

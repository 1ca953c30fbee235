"""What notebooks show: numbers and pictures of estimators and distributions, with the user's text escaped."""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_html_repr

from dspp import DSPPRegressor, load, notebook
from dspp.numbers import number, percent
from dspp.plots import CalibrationDisplay
from dspp.predictive import Distribution, NormalMixture, StudentTMixture

SCRIPT, IMAGE = "<script>alert(1)</script>", '"><img src=x onerror="alert(2)"> & price'
QUICK: dict[str, Any] = {"members": 2, "inducing": 6, "epochs": 2, "jobs": 1, "progress": False}
N = 60
RNG = np.random.default_rng(0)
X = pd.DataFrame(RNG.normal(size=(N, 2)), columns=[SCRIPT, "age"]).assign(**{"<b>name": [f"<i>{i}" for i in range(N)]})
Y = pd.Series(RNG.normal(size=N) + X[SCRIPT], name=IMAGE)


@pytest.fixture(scope="module")
def fitted() -> DSPPRegressor:
    return DSPPRegressor(**QUICK).fit(X, Y)


def parse(html: str | None) -> ET.Element:
    """The elements of a piece of HTML, which must be closed and nested as in XML."""
    assert html is not None
    return ET.fromstring(html)


def cells(table: ET.Element) -> list[list[str]]:
    return [["".join(cell.itertext()) for cell in row] for row in table.iter("tr")]


# ---------------------------------------------------------------- estimators


def test_an_estimator_shows_the_diagram_of_scikit_learn_before_fit() -> None:
    shown, theirs = DSPPRegressor(**QUICK)._repr_html_(), estimator_html_repr(DSPPRegressor(**QUICK))
    assert "sk-container" in shown
    assert "dspp-html" not in shown
    assert abs(len(shown) - len(theirs)) < 20  # each has a number of its own


def test_a_fitted_estimator_shows_scores_and_of_which_rows_they_are(fitted: DSPPRegressor) -> None:
    page = parse(fitted._repr_html_())
    whole = "".join(page.itertext())
    assert f"DSPPRegressor predicts {IMAGE!r} from 3 columns: a mixture of " in whole
    assert f"Scores on {fitted.fitted_.scored}" in whole
    assert "out of fold" in whole
    (table,) = page.iter("table")
    rows = dict(cells(table))
    assert rows["NLL"] == number(fitted.fitted_.metrics["nll"])
    assert rows["90 % coverage"] == percent(fitted.fitted_.metrics["coverage90"])
    assert {"RMSE", "CRPS"} <= rows.keys()
    details = {str(d[0].text): "".join(d[1].itertext()) for d in page.iter("details")}
    assert details["Settings"] == repr(fitted)
    count = len(fitted.fitted_.notes)
    notes = details[f"{count} note{'' if count == 1 else 's'}"]
    assert all(str(note) in notes for note in fitted.fitted_.notes)


def test_the_picture_shows_the_coverage(fitted: DSPPRegressor) -> None:
    (picture,) = parse(fitted._repr_html_()).iter("svg")
    widths = [float(r.get("width", 0)) for r in picture.iter("rect") if r.get("fill") == notebook.ACCENT]
    shares = [fitted.fitted_.metrics[f"coverage{level}"] for level in (50, 80, 90, 95)]
    assert widths == pytest.approx([200 * share for share in shares], abs=0.05)


def test_hostile_names_stay_text(fitted: DSPPRegressor) -> None:
    settings = clone(fitted).set_params(checkpoint=SCRIPT)
    settings.fitted_, settings.n_features_in_ = fitted.fitted_, 3
    for html in (fitted._repr_html_(), settings._repr_html_()):
        page = parse(html)
        assert not {element.tag for element in page.iter()} & {"script", "img", "b", "i"}
        assert not [name for element in page.iter() for name in element.keys() if name.startswith("on")]  # noqa: SIM118
        assert SCRIPT not in html
    assert SCRIPT in "".join(page.itertext()), "the checkpoint is among the settings"


def test_a_loaded_estimator_shows_the_same(fitted: DSPPRegressor, tmp_path: Path) -> None:
    fitted.save(tmp_path / "m.dspp")
    loaded = load(tmp_path / "m.dspp")
    (table,), (again,) = (parse(one._repr_html_()).iter("table") for one in (fitted, loaded))
    assert cells(table) == cells(again)


def test_a_model_without_scores_says_so() -> None:
    model = DSPPRegressor(**QUICK | {"members": 1}, validation_fraction=0.0).fit(X[["age"]], Y)
    page = parse(model._repr_html_())
    assert "It has no scores, as no rows were held out" in "".join(page.itertext())
    assert "from 1 column: a single model" in "".join(page.itertext())
    assert not list(page.iter("svg"))


def test_the_setting_of_scikit_learn_is_respected(fitted: DSPPRegressor) -> None:
    assert fitted._repr_mimebundle_() == {"text/plain": repr(fitted), "text/html": fitted._repr_html_()}
    with sklearn.config_context(display="text"):
        assert not hasattr(fitted, "_repr_html_")
        assert fitted._repr_mimebundle_() == {"text/plain": repr(fitted)}


def test_a_pipeline_shows_the_diagram_of_scikit_learn(fitted: DSPPRegressor) -> None:
    shown = make_pipeline(fitted)._repr_html_()
    assert "sk-container" in shown
    assert "dspp-html" not in shown


# ---------------------------------------------------------------- distributions


def mixture(num: int) -> NormalMixture:
    mean = torch.arange(2.0 * num, dtype=torch.float64).reshape(2, num)
    return NormalMixture(
        torch.full((2,), 0.5).double().log(), mean, torch.full((2, num), 0.5).double(), torch.tensor(0.1).double()
    )


def test_a_distribution_shows_its_first_rows() -> None:
    one = mixture(1_200)
    page = parse(Distribution(one)._repr_html_())
    assert "NormalMixture of 1,200 rows. The first 5 rows are shown." in "".join(page.itertext())
    (table,) = page.iter("table")
    header, *rows = cells(table)
    assert header[:-1] == ["row", "mean", "std", "5 %", "50 %", "95 %"]
    assert len(rows) == 5
    for i, row in enumerate(rows):
        quantiles = one.quantile(torch.tensor([0.05, 0.5, 0.95]).double())[:, i].tolist()
        expected = [number(v) for v in (float(one.mean[i]), float(one.std[i]), *quantiles)]
        assert row[:-1] == [str(i), *expected]


def test_the_curve_is_the_density_and_the_shade_is_the_interval() -> None:
    one = mixture(3)
    for i, picture in enumerate(parse(Distribution(one)._repr_html_()).iter("svg")):
        low, high = (float(v) for v in (one.quantile(0.005).min(), one.quantile(0.995).max()))
        points = [tuple(map(float, p.split(","))) for p in picture.find("polyline").get("points", "").split()]  # type: ignore[union-attr]
        x, y = np.transpose(points)
        values = torch.from_numpy(low + (high - low) * x / 160)
        density = one.rows([i] * len(values)).log_prob(values).exp().numpy()
        np.testing.assert_allclose((22 - y) / 20, density / density.max(), atol=0.02)
        shaded = [float(p.split(",")[0]) for p in picture.find("polygon").get("points", "").split()]  # type: ignore[union-attr]
        ends = [(float(end[i]) - low) / (high - low) * 160 for end in one.interval(0.9)]
        assert [min(shaded), max(shaded)] == pytest.approx(ends, abs=0.06)


def test_distributions_of_every_kind_show_themselves(fitted: DSPPRegressor) -> None:
    several = DSPPRegressor(**QUICK | {"members": 1}).fit(X, np.column_stack([Y, -Y, Y, Y])).predict_dist(X)
    page = parse(several._repr_html_())
    assert "of 60 rows of 4 outputs each" in "".join(page.itertext())
    assert "The first 3 outputs are shown." in "".join(page.itertext())
    assert len(list(page.iter("table"))) == 3
    heavy = StudentTMixture(torch.zeros(1), torch.zeros(1, 2), torch.tensor(0.3), torch.tensor(3.0))
    assert len(list(parse(Distribution(heavy)._repr_html_()).iter("svg"))) == 2
    positive = DSPPRegressor(**QUICK, likelihood="log-normal").fit(X, np.exp(Y)).predict_dist(X)
    assert len(list(parse(positive._repr_html_()).iter("svg"))) == 5
    assert "of 1 row." in "".join(parse(positive[3]._repr_html_()).itertext())
    assert "of 0 rows." in "".join(parse(positive[:0]._repr_html_()).itertext())


def test_a_distribution_that_cannot_be_drawn_is_a_table() -> None:
    broken = NormalMixture(torch.zeros(1), torch.tensor([[torch.inf]]), torch.ones(1, 1), torch.tensor(0.1))
    page = parse(Distribution(broken)._repr_html_())
    assert not list(page.iter("svg"))
    assert cells(next(page.iter("table")))[1][1] == "∞"


def test_nothing_else_needs_to_be_installed(fitted: DSPPRegressor, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "jinja2", "markupsafe"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "<svg" in fitted._repr_html_()
    assert "<svg" in fitted.predict_dist(X)._repr_html_()


# ---------------------------------------------------------------- displays


def test_a_display_shows_its_figure() -> None:
    display = CalibrationDisplay(RNG.uniform(size=50), estimator_name=SCRIPT)
    assert display._repr_html_() is None
    shown = display.plot()._repr_html_()
    assert shown is not None
    assert shown.startswith("<svg")
    assert "<script" not in shown

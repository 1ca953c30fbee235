"""The report: complete, honest about what is missing, self-contained, the same every time, and fine in a browser."""

import html
import json
import math
import os
import re
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from outline import Outline

from dspp import DSPPRegressor, plots
from dspp.calibration import Calibration, chance_bounds
from dspp.errors import ModelFileError
from dspp.estimators import Regressor
from dspp.evaluate import Evaluation
from dspp.metrics import LEVELS
from dspp.numbers import SPACE, are_years, cell, number, number_with_spread, percent, tidy
from dspp.report import outputs, page, render, report, write_page
from dspp.report.members import layer_weights
from dspp.report.outputs import coverage_table
from dspp.report.page import Page, Panel, Section, TextTable
from dspp.report.scores import make_cards

NASTY, EMOJI, DOLLARS = "<script>alert(1)</script>", "🌡️ temp", '$ & $ "#0b66a8" id="x" %'
SECTIONS = ["scores", "calibration", "accuracy", "columns", "rows", "surprises", "inside", "made"]
ONE_OUTPUT = ["reliability-0", "pit-0", "observed-0", "spread-0"]
QUICK: dict[str, Any] = {"members": 1, "inducing": 6, "width": 2, "sites": 2, "epochs": 4, "progress": False}


def rows(num: int = 300, seed: int = 0) -> tuple[pd.DataFrame, pd.Series]:
    """A table with names made to break the page, and a target."""
    g = np.random.default_rng(seed)
    level = g.integers(0, 5, num)
    X = pd.DataFrame({NASTY: [f"{NASTY}{k}" for k in level], EMOJI: g.normal(size=num), DOLLARS: g.normal(size=num)})
    y = 3.0 * X[EMOJI] + 2.0 * level + X[DOLLARS] + 0.3 * g.normal(size=num)
    return X, y.rename("distance")


@pytest.fixture(scope="module")
def model() -> Regressor:
    return DSPPRegressor(**QUICK, layers=2).fit(*rows())


@pytest.fixture(scope="module")
def two() -> Regressor:
    X, y = rows(60)
    return DSPPRegressor(**QUICK).fit(X, pd.DataFrame({"east": y, "north <b>": -y}))


@pytest.fixture(scope="module")
def evaluation(model: Regressor) -> Evaluation:
    return replace(model.evaluation(*rows(seed=1)), notes=(f"A note with {NASTY}.",))


@pytest.fixture(scope="module")
def text(evaluation: Evaluation) -> str:
    return render(report(evaluation, "arm.csv", f"Arm & {NASTY}"))


@pytest.fixture(scope="module")
def outline(text: str) -> Outline:
    return Outline(text)


def table_of(shown: Page, section: str) -> TextTable:
    """The first table of a section."""
    (found,) = [one for one in shown.sections if one.name == section]
    return next(panel.table for panel in found.panels if panel.table is not None)


# ---------------------------------------------------------------- the page


def test_every_section_and_figure_is_there(outline: Outline) -> None:
    assert [section["id"] for section in outline.all("section")] == SECTIONS
    columns = ["importance", "groups-0", "effects-0"]
    figures = [*ONE_OUTPUT, *columns, "density-0", "training", "sites-0"]
    assert [figure["id"] for figure in outline.all("figure")] == figures
    assert len(outline.all("figcaption")) == len(figures)
    assert not outline.open


def test_every_drawing_tells_what_it_shows(outline: Outline) -> None:
    drawings = outline.all("svg")
    assert len(drawings) == 14  # 10 figures, one of them of three rows and one of three columns
    assert all(svg["role"] == "img" and len(svg["aria-label"] or "") > 20 for svg in drawings)


def test_links_inside_the_page_lead_somewhere_and_ids_are_unique(text: str, outline: Outline) -> None:
    ids = [attributes["id"] for _, attributes in outline.tags if attributes.get("id")]
    assert len(ids) == len(set(ids))
    links = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))
    assert links
    assert links <= set(ids)


def test_what_the_user_wrote_is_text_and_nothing_else(text: str, outline: Outline) -> None:
    assert not outline.all("script")
    assert "alert(1)" in "".join(outline.texts)
    said = [said.strip() for said in outline.texts]
    for name in (NASTY, EMOJI, DOLLARS):
        assert said.count(name) >= 3, name  # in a figure, the surprises and the columns, letter by letter
    assert f"Arm & {NASTY}" in said


def test_the_page_needs_nothing_from_outside(text: str, outline: Outline) -> None:
    assert not re.search(r"https?:|//[a-z]|\bsrc=|@import|<link|<img|<iframe|javascript:", text)
    assert not [t for t, a in outline.tags for key in a if key.startswith("on")]
    (policy,) = [m["content"] for m in outline.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"


def test_figures_wear_the_colours_and_the_font_of_the_page(text: str, outline: Outline) -> None:
    body = text[text.index("</style>") :]
    drawings = "".join(re.findall(r"<svg.*?</svg>", body, flags=re.DOTALL))
    styles = "".join(re.findall(r'style="([^"]*)"', drawings))
    assert not re.findall(r"#[0-9a-f]{3,6}\b|rgb", styles)
    assert set(re.findall(r"var\(--(\w+)\)", styles)) == set(plots.PALETTE)
    assert "font-family" not in styles
    style = text[: text.index("</style>")]
    for name, code in plots.PALETTE.items():
        assert f"--{name}: {code};" in style  # light is as `dspp.plots` draws
        assert style.count(f"--{name}:") == 2  # and there is a dark one
    assert "prefers-color-scheme: dark" in style
    assert "@media print" in style


def test_the_same_data_give_the_same_bytes_whatever_the_users_settings(evaluation: Evaluation, text: str) -> None:
    settings = {"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path", "lines.linewidth": 9}
    with matplotlib.rc_context(settings):
        assert render(report(evaluation, "arm.csv", f"Arm & {NASTY}")) == text
        assert matplotlib.rcParams["font.size"] == 30


def test_a_page_shows_what_it_has_and_nothing_else() -> None:
    bare = Outline(render(Page("Nothing")))
    assert not bare.all("section")
    assert not bare.all("nav")
    assert "Nothing" in bare.texts
    one = Outline(render(Page("x", [Section("made", "Made", "How.", [Panel(points=["Look out."])])])))
    assert [section["id"] for section in one.all("section")] == ["made"]
    assert not one.all("figure")
    assert not one.all("table")


def test_a_single_layer_has_no_sites() -> None:
    shallow = DSPPRegressor(**QUICK, layers=1).fit(*rows(60))
    figures = [figure["id"] for figure in Outline(render(report(shallow.evaluation(*rows(60))))).all("figure")]
    assert "training" in figures
    assert "sites-0" not in figures


def test_several_outputs_have_their_own_figures_and_a_table_of_all(
    two: Regressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert outputs.MAX_OUTPUTS == 6
    X, y = rows(60, seed=1)
    evaluation = two.evaluation(X, np.column_stack([y, -y]))
    made = Outline(render(report(evaluation)))
    figures = [figure["id"] for figure in made.all("figure")]
    assert [name for name in figures if name in (*ONE_OUTPUT, "reliability-1", "density-1")] == [
        *("reliability-0", "pit-0", "reliability-1", "observed-0", "spread-0", "density-1")
    ]
    monkeypatch.setattr(outputs, "MAX_OUTPUTS", 1)
    made = Outline(render(report(evaluation)))
    assert "reliability-1" not in [figure["id"] for figure in made.all("figure")]
    said = [said.strip() for said in made.texts]
    assert said.count("east") >= 5  # the headings and the table
    assert "north <b>" in said
    assert "The first 1 outputs are shown in full below." in said


def test_a_page_of_100_000_rows_is_small_and_soon_there(model: Regressor) -> None:
    evaluation = model.evaluation(*rows(100_000))
    start = time.process_time()
    text = render(report(evaluation))
    assert time.process_time() - start < 5.0
    assert len(text.encode()) < 1_500_000
    assert "The figure shows 2,000 of 20,000 rows, evenly spaced." in text


def test_one_row_is_enough(model: Regressor) -> None:
    made = Outline(render(report(model.evaluation(*rows(1)))))
    assert [s["id"] for s in made.all("section")] == [name for name in SECTIONS if name != "columns"]


# ---------------------------------------------------------------- files


def test_writing_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    shown = Page("Line\n🌡️")
    write_page(shown, path)
    assert path.read_text(encoding="utf-8") == render(shown)
    assert os.listdir(tmp_path) == ["report.html"]
    with pytest.raises(ModelFileError, match=re.escape(str(tmp_path / "none" / "report.html"))):
        write_page(shown, tmp_path / "none" / "report.html")


def test_templates_are_part_of_the_package() -> None:
    assert {file.name for file in page.FOLDER.iterdir()} >= {"page.html", "page.css"}


# ---------------------------------------------------------------- tables and numbers


def test_scores_are_explained_in_order_and_unknown_ones_shown_as_they_are() -> None:
    scores = {"mystery": 3.0, "width90": 12345.6, "coverage90": 0.908, "nll": -1.30294, "rmse": 1.0}
    cards = make_cards(scores, {}, is_discrete=False)
    assert [(card.title, card.value) for card in cards] == [
        ("NLL", "−1.303"),
        ("RMSE", "1"),
        ("90 % coverage", f"90.8{SPACE}%"),
        ("90 % width", "12,346"),
        ("mystery", "3"),
    ]
    assert [bool(card.meaning) for card in cards] == [True, True, True, True, False]


def judged(pit: np.ndarray) -> Calibration:
    coverage = {level: float(np.mean(np.abs(pit - 0.5) <= level / 2)) for level in LEVELS}
    return Calibration(len(pit), len(pit), coverage, dict.fromkeys(LEVELS, 1.0), 0.01, 0.5)


def test_coverage_verdicts_follow_chance() -> None:
    def verdicts(pit: np.ndarray) -> list[str]:
        return [row[-1] for row in coverage_table(judged(pit)).rows]

    even = (np.arange(1_000) + 0.5) / 1_000
    assert verdicts(even) == ["calibrated"] * 4
    assert verdicts(0.5 + (even - 0.5) * 0.8) == ["too wide"] * 4
    assert verdicts(np.clip(0.5 + (even - 0.5) * 1.3, 0, 1)) == ["too narrow"] * 4


@pytest.mark.parametrize("rows", [10, 30, 35, 36, 50, 82, 300])
def test_the_table_calls_a_level_calibrated_only_where_the_verdict_does(rows: int) -> None:
    for inside in range(rows + 1):
        share = inside / rows
        found = Calibration(rows, rows, dict.fromkeys(LEVELS, share), dict.fromkeys(LEVELS, 1.0), 0.01, 0.5)
        (row,) = [row for row in coverage_table(found).rows if row[0] == f"90{SPACE}%"]
        assert row[-1] in found.verdict().replace("Too", "too"), found.verdict()


def test_a_coverage_outside_of_chance_is_not_rounded_into_it() -> None:
    low, _ = chance_bounds(4_855, 0.9)
    inside = math.ceil(low * 4_855) - 1  # the most rows that are too few
    found = judged(np.where(np.arange(4_855) < inside, 0.5, 0.0))
    (row,) = [row for row in coverage_table(found).rows if row[0] == f"90{SPACE}%"]
    assert row[-1] == "too narrow"
    assert row[1] != row[2].split(" to ")[0]


def test_surprises_are_the_rows_of_least_density_with_their_inputs(evaluation: Evaluation) -> None:
    labels = [f"r{i}" for i in range(300)]
    table = table_of(
        report(replace(evaluation, table=replace(evaluation.table, label_of=labels.__getitem__))), "surprises"
    )
    one, y = evaluation.distribution, evaluation.y
    order = np.argsort(one.log_prob(y).numpy())[:10]
    assert [row[0] for row in table.rows] == [f"r{i}" for i in order]
    assert [row[4] for row in table.rows] == [rows(seed=1)[0][NASTY][i] for i in order]
    assert table.header == ("row", "observed", "predicted median", "90 % interval", NASTY, EMOJI, DOLLARS)
    low, high = (float(end[int(order[0])]) for end in one.interval(0.9))
    shown = [number_with_spread(value, high - low) for value in (low, high, y[order[0]])]
    assert table.rows[0][3].split(" to ") == shown[:2]
    assert table.rows[0][1] == shown[2]


def test_of_many_inputs_those_tried_for_importance_are_shown_in_their_own_order() -> None:
    X = np.random.default_rng(0).normal(size=(60, 40))
    wide = DSPPRegressor(**QUICK).fit(X, X[:, 20])
    header = table_of(report(wide.evaluation(X, X[:, 20])), "surprises").header
    names = [int(name.removeprefix("x")) for name in header[4:]]
    assert len(names) == 30
    assert names == sorted(names)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0"),
        (0.012345, "0.01235"),
        (-12.3, "−12.3"),
        (999.96, "1,000"),
        (12345.6, "12,346"),
        (1e-4, "0.0001"),
        (1.5e-7, f"1.5{SPACE}×{SPACE}10⁻⁷"),
        (-2.34567e9, f"−2.346{SPACE}×{SPACE}10⁹"),
        (9_999_999.9, f"1{SPACE}×{SPACE}10⁷"),
        (5e-324, f"4.941{SPACE}×{SPACE}10⁻³²⁴"),
        (1.7976931348623157e308, f"1.798{SPACE}×{SPACE}10³⁰⁸"),
        (float("nan"), "–"),
        (float("-inf"), "−∞"),
    ],
)
def test_numbers_are_for_people(value: float, shown: str) -> None:
    assert number(value) == shown


def test_other_texts_are_for_people() -> None:
    assert number_with_spread(101325.24, 0.3) == "101,325.240"
    assert number_with_spread(-1.53, 0.27) == "−1.530"
    assert number_with_spread(5.0, 0.0) == "5"
    assert percent(0.9077) == f"90.8{SPACE}%"
    assert [cell(v) for v in (3912, -3912.0, True, np.float32(0.5), "x" * 99, None, float("nan"))] == [
        "3,912",
        "−3,912",
        "True",
        "0.5",
        "x" * 59 + "…",
        "–",
        "–",
    ]
    assert cell(2024, commas=False) == "2024"
    assert are_years([2024, 1999.0, np.int64(1812)])
    assert not are_years([2024, 12.0])
    assert not are_years([2024, 2001.5])
    assert not are_years(["2024"])
    assert tidy("90 % of 3") == f"90{SPACE}% of 3"


def test_no_number_is_a_negative_zero() -> None:
    assert [number_with_spread(value, 14.0) for value in (-0.01, -0.06)] == ["0.0", "−0.1"]
    assert [percent(value, 0) for value in (-0.001, -0.4)] == [f"0{SPACE}%", f"−40{SPACE}%"]
    assert [number(-0.0), cell(-0.0), number(-1e-300)] == ["0", "0", f"−1{SPACE}×{SPACE}10⁻³⁰⁰"]
    assert number_with_spread(float("nan"), 0.1) == "–"


def test_the_weights_of_a_grid_are_summed_over_the_other_layers() -> None:
    weights = np.arange(1.0, 7.0) / 21  # component = 3 · (site of layer 1) + (site of layer 2)
    first, second = layer_weights([2, 3], weights)
    np.testing.assert_allclose(first, [6 / 21, 15 / 21])
    np.testing.assert_allclose(second, [5 / 21, 7 / 21, 9 / 21])


# ---------------------------------------------------------------- in a browser

# Runs in the outer page of the test: the report itself has no scripts. Frames of a given width stand for devices,
# since a headless window cannot be narrower than 500 pixels.
MEASURE = """
<script>
addEventListener("load", () => {
  const result = {};
  for (const frame of document.querySelectorAll("iframe")) {
    const doc = frame.contentDocument, root = doc.documentElement;
    const size = (node) => { const r = node.getBoundingClientRect(); return [r.left, r.right, r.width, r.height]; };
    result[frame.id] = {
      inner: frame.contentWindow.innerWidth,
      scroll: root.scrollWidth,
      sections: [...doc.querySelectorAll("section")].map((node) => node.id),
      figures: Object.fromEntries([...doc.querySelectorAll("figure")].map((node) => [node.id, size(node)])),
      drawings: [...doc.querySelectorAll("svg")].map(size),
      text: [...doc.querySelectorAll("svg text")].map((node) => node.getBoundingClientRect().height),
      colours: [getComputedStyle(doc.body).backgroundColor,
                getComputedStyle(doc.querySelector("svg text")).fill,
                getComputedStyle(doc.querySelector("svg text")).fontFamily,
                getComputedStyle(doc.body).fontFamily],
    };
  }
  document.body.textContent = "RESULT" + JSON.stringify(result) + "END";
});
</script>
"""
WIDTHS = {"desktop": 1200, "tablet": 768, "phone": 390, "small": 360}


def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None and os.environ.get("CI"):
        pytest.fail("no chromium found, and CI is set: run `make chromium` first")
    if found is None:
        pytest.skip("no chromium found; `make chromium` installs it")
    return found


def open_in_browser(text: str, folder: Path, *options: str) -> tuple[dict[str, Any], str]:
    """What the page measures in frames of each width, and what the browser wrote into its log."""
    source = html.escape(text)
    frames = "".join(
        f'<iframe id="{i}" style="width:{w}px;height:900px;border:0" srcdoc="{source}"></iframe>'
        for i, w in WIDTHS.items()
    )
    (folder / "outer.html").write_text(f"<!doctype html><meta charset=utf-8><body>{frames}{MEASURE}", encoding="utf-8")
    command = [chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", *options]
    command += [f"--user-data-dir={folder / 'profile'}", "--dump-dom", (folder / "outer.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    match = re.search("RESULT(.*?)END", done.stdout, flags=re.DOTALL)
    assert match, done.stderr[-2000:]
    return json.loads(html.unescape(match[1])), done.stderr


def console(log: str) -> list[str]:
    return [entry for entry in log.splitlines() if "CONSOLE" in entry]


@pytest.mark.browser
def test_the_console_is_read_and_the_policy_of_the_page_stops_scripts(text: str, tmp_path: Path) -> None:
    broken = text.replace("</main>", "<script>document.title = 'ran'</script></main>")
    _, log = open_in_browser(broken, tmp_path)
    assert any("Content Security Policy" in entry for entry in console(log))


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_in_a_browser(text: str, tmp_path: Path, dark: bool) -> None:
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    measured, log = open_in_browser(text, tmp_path, scheme)
    assert console(log) == []
    for device, width in WIDTHS.items():
        seen = measured[device]
        assert seen["inner"] == width
        assert seen["scroll"] <= width, f"{device}: the page scrolls sideways"
        assert seen["sections"] == SECTIONS
        assert len(seen["figures"]) == 10
        assert len(seen["drawings"]) == 14
        for left, right, wide, high in [*seen["figures"].values(), *seen["drawings"]]:
            assert wide > 150, device
            assert high > 60, device
            assert left >= 0, device
            assert right <= width, device
        assert min(seen["text"]) >= 8, f"{device}: text of figures is too small to read"
        paper, ink, figure_font, page_font = seen["colours"]
        assert paper == ("rgb(17, 21, 27)" if dark else "rgb(255, 255, 255)")
        assert ink == ("rgb(164, 175, 189)" if dark else "rgb(91, 102, 117)")
        assert figure_font == page_font

"""The report: complete, honest about what is missing, self-contained, the same every time, and fine in a browser."""

import dataclasses
import html
import json
import math
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import numpy as np
import pytest
import torch
from outline import Outline

from dspp import plots
from dspp.calibration import Calibration, chance_bounds
from dspp.errors import InputError, ModelFileError
from dspp.metrics import LEVELS
from dspp.numbers import SPACE, are_years, cell, number, number_with_spread, percent, tidy
from dspp.predictive import NormalMixture
from dspp.report import ReportData, TargetData, page, render, tables, write_report

NASTY, EMOJI, DOLLARS = "<script>alert(1)</script>", "🌡️ temp", '$ & $ "#0b66a8" id="x" %'
SECTIONS = ["scores", "calibration", "accuracy", "rows", "surprises", "inside", "made"]


def target(name: str = "distance", num: int = 300, seed: int = 0) -> TargetData:
    g = torch.Generator().manual_seed(seed)
    weights = torch.tensor([0.7, 0.3], dtype=torch.float64).log()
    mean = torch.randn(1, num, generator=g, dtype=torch.float64) + torch.tensor([[0.0], [0.5]]).double()
    var = torch.rand(2, num, generator=g, dtype=torch.float64) + 0.01
    mixture = NormalMixture(weights, mean, var, torch.tensor(0.05).double())
    return TargetData(name, mixture.sample(1, g)[0].numpy(), mixture)


def report(**changes: Any) -> ReportData:
    """A report with everything in it, and names made to break it."""
    one = target()
    names = [NASTY, EMOJI, DOLLARS]
    everything: dict[str, Any] = {
        "title": f"Arm & {NASTY}",
        "subtitle": "arm.csv, 300 test rows",
        "targets": [one],
        "calibration": "The 90 % intervals held 90 % of the outcomes.",
        "conformal": "Intervals were widened by conformal calibration.",
        "scores": {"nll": 1.2345678, "coverage90": 0.9, "width90": 12345.6, "pit_pvalue": 1e-9, "mystery": 3.0},
        "history": [SimpleNamespace(number=i, train_nll=1 / i, val_nll=2 / i, learning_rate=0.1) for i in range(1, 6)],
        "best_epoch": 4,
        "sites": [np.array([[0.1, 1.0], [-1.0, 0.4]])],
        "weights": np.array([0.7, 0.3]),
        "relevance": [(name, 1.0 / (i + 1)) for i, name in enumerate(names)],
        "rows": {name: [f"{name}{i}" if name == NASTY else i for i in range(300)] for name in names},
        "encoding": [{"column": name, "kind": "number", "how": "standardised"} for name in names],
        "settings": {"Model": {"layers": "2"}, "Empty": {}},
        "versions": {"dspp": "0.1.0"},
        "notes": [f"A note with {NASTY}."],
    }
    return ReportData(**everything | changes)


@pytest.fixture(scope="module")
def text() -> str:
    return render(report())


@pytest.fixture(scope="module")
def outline(text: str) -> Outline:
    return Outline(text)


# ---------------------------------------------------------------- the page


def test_every_section_and_figure_is_there(outline: Outline) -> None:
    assert [section["id"] for section in outline.all("section")] == SECTIONS
    figures = ["reliability-0", "pit-0", "observed-0", "spread-0", "density-0", "training", "sites-0", "relevance"]
    assert [figure["id"] for figure in outline.all("figure")] == figures
    assert len(outline.all("figcaption")) == len(figures)
    assert not outline.open


def test_every_drawing_tells_what_it_shows(outline: Outline) -> None:
    drawings = outline.all("svg")
    assert len(drawings) == 10  # 8 figures, one of them of three rows
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


def test_the_same_data_give_the_same_bytes_whatever_the_users_settings(text: str) -> None:
    settings = {"font.size": 30, "axes.facecolor": "red", "svg.fonttype": "path", "lines.linewidth": 9}
    with matplotlib.rc_context(settings):
        assert render(report()) == text
        assert matplotlib.rcParams["font.size"] == 30


def test_without_data_a_section_is_left_out() -> None:
    bare = Outline(render(ReportData(title="Nothing")))
    assert not bare.all("section")
    assert not bare.all("nav")
    assert "Nothing" in bare.texts


@pytest.mark.parametrize(
    ("parts", "sections"),
    [
        ({"scores": {"nll": 1.0}}, ["scores"]),
        ({"relevance": [("a", 1.0)]}, ["inside"]),
        ({"notes": ["Look out."]}, ["made"]),
        ({"settings": {"Empty": {}}}, []),
    ],
)
def test_a_part_alone_makes_its_section_alone(parts: dict[str, Any], sections: list[str]) -> None:
    made = Outline(render(ReportData(title="x", **parts)))
    assert [section["id"] for section in made.all("section")] == sections
    assert all(len(made.all(tag)) <= 1 for tag in ("figure", "table"))


def test_a_single_layer_has_no_sites(text: str) -> None:
    shown = [p.name for p in page._inside(report(sites=(), weights=None)).blocks[0].pictures]
    assert shown == ["training", "relevance"]


def test_several_outputs_have_their_own_figures_and_a_table_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    assert page.MAX_OUTPUTS == 6
    monkeypatch.setattr(page, "MAX_OUTPUTS", 1)
    outputs = [target("east", 40), target("north <b>", 40, seed=1)]
    made = Outline(render(ReportData(title="x", targets=outputs)))
    assert [f["id"] for f in made.all("figure")] == ["reliability-0", "pit-0", "observed-0", "spread-0", "density-0"]
    said = [said.strip() for said in made.texts]
    assert said.count("east") >= 5  # the headings and the table
    assert "north <b>" in said
    assert "The first 1 outputs are shown in full below." in said
    monkeypatch.setattr(page, "MAX_OUTPUTS", 2)
    both = page._outputs(ReportData(title="x", targets=outputs))
    assert [(head, key) for _, head, key in both] == [("east", "0"), ("north <b>", "1")]


def test_a_page_of_100_000_rows_is_small_and_soon_there() -> None:
    num, start = 100_000, time.process_time()
    big = report(targets=[target(num=num)], rows={"a": np.arange(num)})
    text = render(big)
    assert time.process_time() - start < 5.0
    assert len(text.encode()) < 1_500_000
    assert "The figure shows 2,000 of 100,000 rows, evenly spaced." in text


def test_one_row_is_enough() -> None:
    made = Outline(render(ReportData(title="x", targets=[target(num=1)])))
    assert [s["id"] for s in made.all("section")] == ["calibration", "accuracy", "rows", "surprises"]


# ---------------------------------------------------------------- files


def test_writing_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    data = ReportData(title="Line\n🌡️")
    write_report(data, path)
    assert path.read_text(encoding="utf-8") == render(data)
    assert os.listdir(tmp_path) == ["report.html"]
    with pytest.raises(ModelFileError, match=re.escape(str(tmp_path / "none" / "report.html"))):
        write_report(data, tmp_path / "none" / "report.html")


def test_templates_are_part_of_the_package() -> None:
    assert {file.name for file in page.FOLDER.iterdir()} >= {"page.html", "page.css"}


# ---------------------------------------------------------------- tables and numbers


def test_scores_are_explained_in_order_and_unknown_ones_shown_as_they_are() -> None:
    cards = tables.score_cards({"mystery": 3.0, "width90": 12345.6, "coverage90": 0.908, "nll": -1.30294, "rmse": 1.0})
    assert [(card.name, card.value) for card in cards] == [
        ("NLL", "−1.303"),
        ("RMSE", "1"),
        ("90 % coverage", f"90.8{SPACE}%"),
        ("90 % width", "12,346"),
        ("mystery", "3"),
    ]
    assert [bool(card.meaning) for card in cards] == [True, True, True, True, False]


def test_coverage_verdicts_follow_chance() -> None:
    one = target(num=1_000)

    def verdicts(pit: np.ndarray) -> list[str]:
        judged = dataclasses.replace(one)
        judged.__dict__["pit"] = pit
        return [row[-1] for row in tables.coverage_table(judged).rows]

    even = (np.arange(1_000) + 0.5) / 1_000
    assert verdicts(even) == ["calibrated"] * 4
    assert verdicts(0.5 + (even - 0.5) * 0.8) == ["too wide"] * 4
    assert verdicts(np.clip(0.5 + (even - 0.5) * 1.3, 0, 1)) == ["too narrow"] * 4


@pytest.mark.parametrize("rows", [10, 30, 35, 36, 50, 82, 300])
def test_the_table_calls_a_level_calibrated_only_where_the_verdict_does(rows: int) -> None:
    one = target(num=rows)
    for inside in range(rows + 1):
        share = inside / rows
        found = Calibration(rows, rows, dict.fromkeys(LEVELS, share), dict.fromkeys(LEVELS, 1.0), 0.01, 0.5)
        judged = dataclasses.replace(one, calibration=found)
        (row,) = [row for row in tables.coverage_table(judged).rows if row[0] == f"90{SPACE}%"]
        assert row[-1] in found.verdict().replace("Too", "too"), found.verdict()


def test_a_coverage_outside_of_chance_is_not_rounded_into_it() -> None:
    one = dataclasses.replace(target(num=4_855))
    low, _ = chance_bounds(4_855, 0.9)
    inside = math.ceil(low * 4_855) - 1  # the most rows that are too few
    one.__dict__["pit"] = np.where(np.arange(4_855) < inside, 0.5, 0.0)
    (row,) = [row for row in tables.coverage_table(one).rows if row[0] == f"90{SPACE}%"]
    assert row[-1] == "too narrow"
    assert row[1] != row[2].split(" to ")[0]


def test_surprises_are_the_rows_of_least_density_with_their_inputs() -> None:
    one = target(num=50)
    data = ReportData(
        title="x",
        targets=[one],
        rows={"a": list(range(50)), "row": ["same name"] * 50},
        row_labels=[f"r{i}" for i in range(50)],
    )
    table = tables.surprises(one, data)
    order = np.argsort(one.log_density)[:10]
    assert [row[0] for row in table.rows] == [f"r{i}" for i in order]
    assert [row[4] for row in table.rows] == [str(i) for i in order]
    assert table.header == ("row", "observed", "predicted median", "90 % interval", "a", "row")
    low, high = one.mixture.interval(0.9)
    worst = int(order[0])
    shown = [float(end.replace("−", "-")) for end in table.rows[0][3].split(" to ")]
    assert shown == pytest.approx([float(low[worst]), float(high[worst])], abs=0.01)
    assert float(table.rows[0][1].replace("−", "-")) == pytest.approx(one.y[worst], abs=0.01)


def test_of_many_inputs_the_most_relevant_are_shown_in_their_own_order() -> None:
    names = [f"c{i}" for i in range(40)]
    data = ReportData(
        title="x",
        targets=[target(num=3)],
        rows={name: [0, 0, 0] for name in names},
        relevance=[(name, float(i)) for i, name in enumerate(names)],
    )
    assert tables.surprises(data.targets[0], data).header[4:] == tuple(names[10:])


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
    first, second = ReportData(title="x", sites=[np.zeros((2, 1)), np.zeros((3, 1))], weights=weights).layer_weights()
    np.testing.assert_allclose(first, [6 / 21, 15 / 21])
    np.testing.assert_allclose(second, [5 / 21, 7 / 21, 9 / 21])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"targets": [target("a", 3), target("b", 4)]}, "b: expected 3 rows, as in other parts, got 4"),
        ({"targets": [target("a", 3)], "rows": {"x": [1]}}, r"rows\['x'\]: expected 3 rows.* got 1"),
        ({"targets": [target("a", 3)], "row_labels": [1]}, r"row_labels: expected 3 rows.* got 1"),
        ({"sites": [np.zeros((2, 1))], "weights": np.ones(3) / 3}, "weights: expected one per component"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ReportData(title="x", **parts)


def test_targets_are_checked_and_not_changed() -> None:
    one = target(num=3)
    y = one.y.copy()
    kept = TargetData("a", y, one.mixture)
    assert kept.y is not y
    with pytest.raises(InputError, match="y of a: expected finite numbers"):
        TargetData("a", np.array([1.0, np.nan, 2.0]), one.mixture)
    with pytest.raises(InputError, match="y of a"):
        TargetData("a", np.zeros((3, 2)), one.mixture)


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
def test_the_console_is_read_and_the_policy_of_the_page_stops_scripts(tmp_path: Path) -> None:
    bare = render(ReportData(title="x", relevance=[("a", 1.0)]))
    broken = bare.replace("</main>", "<script>document.title = 'ran'</script></main>")
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
        assert len(seen["figures"]) == 8
        assert len(seen["drawings"]) == 10
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

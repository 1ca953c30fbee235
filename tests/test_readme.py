"""The README's Python runs as it stands there (on fewer rows and epochs), and its map names what there is."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dspp

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_the_ten_lines_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"size": rng.normal(size=60), "town": rng.choice(["Ghent", "Namur"], 60)})
    table.assign(price=2 * table["size"] + rng.normal(size=60)).to_csv("train.csv", index=False)
    pd.read_csv("train.csv")[:20].to_csv("test.csv", index=False)
    table[:9].to_csv("new.csv", index=False)
    (block,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    names = {}
    exec(block.replace("DSPPRegressor()", "DSPPRegressor(epochs=3, inducing=10, restarts=1)"), names)
    assert names["mixture"].num_rows == 9
    assert Path("report.html").stat().st_size > 50_000
    np.testing.assert_array_equal(dspp.load("model.dspp").predict(table), names["model"].predict(table))


@pytest.mark.parametrize(
    "page",
    ["README.md", "CONTRIBUTING.md", "docs/decisions.md", "docs/measured.md", "docs/production.md", "docs/scale.md"],
)  # Sphinx checks the links of all pages
def test_every_file_and_heading_that_is_linked_to_is_there(page):
    file = ROOT / page
    for link, heading in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", file.read_text()):
        target = file.parent / link if link else file
        assert target.exists(), link
        titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if heading else []
        assert not heading or heading in [title.lower().replace(" ", "-") for title in titles], heading


def test_every_preset_is_in_the_table():
    from dspp import PRESETS

    page = (ROOT / "docs" / "guide" / "models.md").read_text()
    for name in PRESETS:
        assert f"| `{name}` |" in page, name


LONG_NAMES = {"airbnb": "airbnb_nyc_2019", "baja": "baja_bathymetry"}


def test_the_table_of_results_is_that_of_the_records():
    records = [json.loads(line) for line in (ROOT / "results" / "tables.jsonl").read_text().splitlines()]
    rows = re.findall(r"^\| (\w+) \(([\d,]+)\) \| (.*) \|$", TEXT, re.MULTILINE)
    assert len(rows) == 15
    for name, count, cells in rows:
        here = [r for r in records if r["set"] == LONG_NAMES.get(name, name) and r["fold"] < 3]
        ours = [r for r in here if r["method"] == "dspp"]
        assert {f"{r['rows']['train']:,}" for r in ours} & {count}, name
        shown = [cell.strip() for cell in cells.split("|")]
        for score, ours_shown, peer_shown in (("nll", *shown[:2]), ("crps", *shown[2:])):
            means = {}
            for method in {r["method"] for r in here if "[" not in r["method"]}:
                found = [r["metrics"][score] for r in here if r["method"] == method]
                if len(found) == len(ours):
                    means[method] = f"{np.mean(found):.3f}".replace("-", "−")
            assert ours_shown.strip("*") == means.pop("dspp"), (name, score)
            peer, method = re.fullmatch(r"\**([−\d.]+)\** \((.*)\)", peer_shown).groups()
            best = min(means.values(), key=lambda text: float(text.replace("−", "-")))
            assert peer == best == means[method.lower().replace(" ", "-")], (name, score)


def test_the_functions_on_the_way_of_a_row_are_there():
    page = (ROOT / "docs" / "project.md").read_text()
    source = "\n".join(path.read_text() for path in (ROOT / "src" / "dspp").rglob("*.py"))
    steps = re.findall(r"^\d+\. .*$", page, re.MULTILINE)
    assert len(steps) == 20
    for name in re.findall(r"`([\w.]+)`", " ".join(steps)):
        assert re.search(rf"(def|class) {name.rsplit('.', 1)[-1]}\b", source), name

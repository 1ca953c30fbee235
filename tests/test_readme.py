"""The README's Python runs as it stands there (on fewer rows and epochs), and its map names what there is."""

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


def test_the_headline_table_is_the_reports():
    for row in (ROOT / "results" / "report" / "headline.md").read_text().splitlines():
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        if row.startswith("|") and any(cell != "–" for cell in cells[2:5]):
            assert row in TEXT, row

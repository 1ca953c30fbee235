"""The shell commands of README, CONTRIBUTING and the documentation run: those of dspp itself, in this process.

Commands that install or need several machines are only checked: that make has the target, and that options exist.
"""

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import experiments.cli
from dspp.cli.app import app
from dspp.likelihoods import LIKELIHOODS
from dspp.quadrature import RULES

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(?:sh|bash|console)\n(.*?)^```", re.DOTALL | re.MULTILINE)
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [file for file in FILES if "_build" not in file.parts and BLOCK.search(file.read_text())]
SMALL = ["--inducing", "8", "--epochs", "2"]
NOT_RUN = (
    "source ",
    "python3 -m venv",
    ".venv/bin/pip install",
    ".venv/bin/dspp demo",
    "dspp demo",
    "ray start",
    "pip install",
)


def commands(page):
    """Return the commands of a page, one per line, without comments."""
    text = "".join(BLOCK.findall(page.read_text())).replace("\\\n", " ")
    lines = [line.split("  # ")[0].strip() for line in re.sub(r"\s#\s", "  # ", text).splitlines()]
    return [line for line in lines if line]


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with the files that commands name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"size": rng.normal(size=80), "town": rng.choice(["Ghent", "Namur"], 80)})
    table["price"] = np.exp(0.3 * table["size"] + 0.1 * rng.normal(size=80))
    table.to_csv("train.csv", index=False)
    table.to_csv("test.csv", index=False)
    table.drop(columns="price").to_csv("new.csv", index=False)
    table.rename(columns={"price": "y"}).to_csv("table.csv", index=False)
    table.rename(columns={"price": "y"}).to_parquet("table.parquet")
    Path("table").mkdir()
    Path("cache").mkdir()
    table.rename(columns={"price": "y"}).to_parquet("table/part-0.parquet")
    Path("myrules.py").write_text(_code(ROOT / "CONTRIBUTING.md", "RULES.register", "python"))
    imports = "import copy\nimport torch\nfrom torch import nn\nfrom torch.nn.functional import softplus\n"
    tutorial = ROOT / "docs" / "tutorials" / "own-parts.md"
    Path("myparts.py").write_text(imports + _code(tutorial, "LIKELIHOODS.register", r"\{code-cell\}"))
    kept = [(registry, dict(registry._parts)) for registry in (RULES, LIKELIHOODS)]
    yield
    for registry, parts in kept:  # pages register parts of their own
        registry._parts.clear()
        registry._parts.update(parts)
    for name in ("myrules", "myparts"):
        sys.modules.pop(name, None)


def _code(page, containing, language):
    blocks = re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return next(block for block in blocks if containing in block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_run(page, workplace):
    for line in commands(page):
        if line.startswith(NOT_RUN):
            continue
        result = _run(line)
        assert result is None or result.exit_code == 0, f"{line}\n{result.output}"


def _run(line: str) -> Any:
    words = shlex.split(line)
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), line
        return None
    if words[:3] == ["python", "-m", "experiments"]:
        return _check_experiment(words[3:])
    assert words[0] == "dspp", f"expected a command of dspp, or one in NOT_RUN, got {line}"
    if words[1] in ("fit", "tune"):
        words += [*SMALL, "--overwrite"]
    if words[1] == "fit":
        words += ["--members", "2", "--jobs", "1"] if "--rule" not in words else ["--members", "1"]
    if "--engine" in words:  # Ray's own test is tests/experiments/test_ray.py
        del words[words.index("--engine") : words.index("--engine") + 4]
        words[words.index("--trials") + 1] = "2"
    return CliRunner().invoke(app, words[1:], catch_exceptions=False)


def _check_experiment(words: list[str]) -> Any:
    """Run `list`; of the others, which take hours or rewrite the report, check the names of options."""
    if words[0] == "list":
        return CliRunner().invoke(experiments.cli.app, words, catch_exceptions=False)
    help_text = CliRunner().invoke(experiments.cli.app, [words[0], "--help"], env={"COLUMNS": "200"}).output
    missing = [word for word in words if word.startswith("--") and word not in help_text]
    assert not missing
    return None

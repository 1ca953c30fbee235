"""The examples of the documentation run: those of the public names, and the Python of every page.

Tutorials are run by `make docs`, the blocks of README.md and CONTRIBUTING.md by their own tests.
"""

import doctest
import re
import sys
import warnings
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import dspp
from dspp.likelihoods import LIKELIHOODS
from dspp.quadrature import RULES

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "_ext"))
from public_names import has_example, missing_library, public_docstring, public_names  # noqa: E402 - after its path

BLOCK = re.compile(r"^```python(?: needs=(\w+))?\n(.*?)^```", re.DOTALL | re.MULTILINE)
REGISTRIES = (RULES, LIKELIHOODS)
FLAGS = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (ROOT / "docs").rglob("*.md")
    if "_build" not in page.parts and "tutorials" not in page.parts and BLOCK.search(page.read_text())
)
SMALL = {"epochs": 2, "inducing": 8}  # pages show the defaults, which train for longer,
FEW = {"members": 2, "jobs": 1}  # and more members


@pytest.mark.parametrize("name", public_names())
def test_every_public_name_has_an_example_that_runs(name, tmp_path, monkeypatch):
    if library := missing_library(name):
        pytest.skip(f"{library} is not installed; `make docs` installs it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    assert has_example(name), f"{name} has no example"
    test = doctest.DocTestParser().get_doctest(public_docstring(name), {}, name, None, 0)
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    report = []
    with warnings.catch_warnings():
        if name.startswith("dspp.mlflow."):
            warnings.simplefilter("ignore")  # those of libraries that we do not choose
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)


def test_every_public_name_is_in_the_reference():
    assert not {f"dspp.{name}" for name in dspp.__all__} - set(public_names())


def test_the_reference_lists_the_figures_and_scores_of_its_modules():
    assert {
        "dspp.metrics.nll",
        "dspp.plots.fan",
        "dspp.mlflow.log_model",
        "dspp.scorers.evaluate",
        "dspp.skpro.DSPPProbaRegressor",
    } <= set(public_names())


def test_links_into_the_report_exist():
    page = (ROOT / "results" / "report" / "index.html").read_text()
    links = re.findall(r'href="report/index.html#([^"]*)"', (ROOT / "docs" / "reproduction.md").read_text())
    assert links
    assert all(f'id="{link}"' in page for link in links)


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """A folder with the files that the pages name, and estimators and searches that take a moment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"size": rng.normal(size=120), "town": rng.choice(["Ghent", "Namur"], 120)})
    table["price"] = np.exp(0.3 * table["size"] + 0.1 * rng.normal(size=120))
    table["rent"] = 0.01 * table["price"] + 0.001 * rng.normal(size=120)
    table["seller"] = rng.integers(12, size=120)
    table["sold"] = pd.date_range("2024-01-01", periods=120, freq="D")
    plain = table[["size", "town", "price"]]
    plain.to_csv("train.csv", index=False)
    plain[:50].to_csv("test.csv", index=False)
    plain[:9].drop(columns="price").to_csv("new.csv", index=False)
    Path("table").mkdir()
    plain.rename(columns={"price": "y"}).to_parquet("table/part-0.parquet")
    for name in [name for name in dspp.__all__ if name.endswith("Regressor")]:
        monkeypatch.setattr(dspp, name, partial(_small, getattr(dspp, name)))
    monkeypatch.setattr(dspp, "tune", partial(_small_search, dspp.tune))
    X, y = plain.drop(columns="price"), plain["price"]
    dspp.DSPPRegressor(members=1).fit(X, y).save("model.dspp")
    return {"table": table, "rows": X[:9], "X": X, "y": y, "X_new": X[:9], "X_test": X[:50], "y_test": y[:50]}


def _small(kind, **params):
    return kind(**SMALL | FEW | params)


def _small_search(tune, X, y, **how):
    return tune(X, y, **{"trials": 2} | how | {"base": SMALL | how.get("base", {})})


@pytest.mark.parametrize("page", PAGES)
def test_the_python_of_a_page_runs(page, workplace):
    names = {"dspp": dspp, "np": np, "pd": pd, "torch": torch, **workplace}
    kept = [(registry, dict(registry._parts)) for registry in REGISTRIES]
    try:
        _run_blocks(page, names)
    finally:  # a page may register parts of its own
        for registry, parts in kept:
            registry._parts.clear()
            registry._parts.update(parts)


def _run_blocks(page, names):
    for number, (needs, block) in enumerate(BLOCK.findall((ROOT / page).read_text())):
        if needs and find_spec(needs) is None:
            continue  # an extra; `make test-integrations` installs it
        with warnings.catch_warnings():
            if needs:
                warnings.simplefilter("ignore")  # those of libraries that we do not choose
            exec(compile(block, f"{page}, block {number}", "exec"), names)

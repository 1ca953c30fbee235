"""Without the libraries of the extras everything but figures, reports and searches works, and one line says what to
install."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import dspp
from dspp import DSPPRegressor, InputError, plots
from dspp.cli import app, demo
from dspp.engines import run_all
from dspp.extras import EXTRAS, MissingExtraError, is_installed, require
from dspp.predictive import NormalMixture

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
QUICK = {"members": 1, "inducing": 6, "epochs": 2, "restarts": 1, "progress": False}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = X[:, 0] + 0.1 * RNG.normal(size=60)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `pip install dspp`: the libraries of the extras cannot be imported."""
    for name in {name for names in EXTRAS.values() for name in names}:
        for loaded in [loaded for loaded in sys.modules if loaded.split(".")[0] == name]:
            monkeypatch.delitem(sys.modules, loaded)
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "train.csv"
    np.savetxt(path, np.column_stack([X, Y]), delimiter=",", header="a,b,y", comments="")
    return path


def message(extra: str) -> str:
    names = " and ".join(EXTRAS[extra])
    verb = "is" if len(EXTRAS[extra]) == 1 else "are"
    return f"needs {names}, which {verb} not installed; run pip install 'dspp[{extra}]'"


BESIDE_MLFLOW = {"pandas", "alembic", "sqlalchemy"}  # which it can do without, but not with a local database


def test_mlflow_comes_with_what_the_database_of_the_guide_needs() -> None:
    assert "sqlite:///" in (ROOT / "docs" / "guide" / "integrations.md").read_text()
    names = {re.split(r"[<>=]", line)[0] for line in PROJECT["optional-dependencies"]["mlflow"]}
    assert names >= BESIDE_MLFLOW


def test_the_modules_of_the_extras_are_those_that_pip_installs() -> None:
    optional = PROJECT["optional-dependencies"]

    def installed(extra: str) -> set[str]:
        found: set[str] = set()
        for line in optional[extra]:
            inner = re.fullmatch(r"dspp\[(.+)\]", line)
            found |= set().union(*map(installed, inner[1].split(","))) if inner else {re.split(r"[<>=]", line)[0]}
        return {name.removesuffix("-skinny") for name in found} - BESIDE_MLFLOW

    assert {extra: set(names) for extra, names in EXTRAS.items()} == {extra: installed(extra) for extra in EXTRAS}
    assert installed("all") == {name for names in EXTRAS.values() for name in names} - {"skpro"}  # an older pandas
    always = {re.split(r"[<>=]", line)[0] for line in PROJECT["dependencies"]}
    assert not always & installed("all")


def test_the_extras_of_the_installed_package_are_those_of_the_project() -> None:
    found = {extra for line in requires("dspp") or [] for extra in re.findall(r"extra == ['\"]([a-z]+)['\"]", line)}
    assert found == set(PROJECT["optional-dependencies"]), "run make: pyproject.toml has changed since pip read it"


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_error_is_one_line_that_names_the_extra(extra: str, bare: None) -> None:
    assert not is_installed(extra)
    with pytest.raises(MissingExtraError, match=re.escape(f"this {message(extra)}")) as caught:
        require(extra, "this")
    assert isinstance(caught.value, InputError)
    assert isinstance(caught.value, ImportError)
    assert "\n" not in str(caught.value)


def test_only_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    require("plot", "a figure")
    with pytest.raises(MissingExtraError, match="a report needs jinja2, which is not installed"):
        require("report", "a report")


def test_every_name_can_be_imported(bare: None) -> None:
    """`from dspp import *` too: what needs an extra says so when it is called."""
    for name in dspp.__all__:
        assert getattr(dspp, name) is not None


def test_figures_reports_searches_and_engines_name_their_extra(bare: None, tmp_path: Path) -> None:
    model = DSPPRegressor(**QUICK).fit(X, Y)
    mixture = model.predict_dist(X)
    assert isinstance(mixture.torch, NormalMixture)
    epochs = model.fitted_.members[0].history
    for draw in (
        lambda: mixture.plot_density(0),
        lambda: mixture.plot_fan(X[:, 0]),
        lambda: mixture.plot_pit(Y),
        lambda: mixture.plot_reliability(Y),
        lambda: plots.training_curves(epochs),
        lambda: plots.member_curves([epochs], ["plain"], [1.0]),
        lambda: plots.coverage_dots(["a"], np.array([1]), np.array([2]), [False]),
    ):
        with pytest.raises(MissingExtraError, match=re.escape(f"a figure {message('plot')}")):
            draw()
    with pytest.raises(MissingExtraError, match=re.escape(f"a report {message('report')}")):
        dspp.write_model_report(model, X, Y, tmp_path / "report.html")
    with pytest.raises(MissingExtraError, match=re.escape(f"a search for settings {message('tune')}")):
        dspp.tune(X, Y, trials=1)
    with pytest.raises(MissingExtraError, match=re.escape(f"engine='ray' {message('ray')}")):
        next(run_all(abs, [1], engine="ray"))


def test_commands_name_the_extra_before_they_begin(bare: None, table: Path, tmp_path: Path) -> None:
    out, run = tmp_path / "m.dspp", CliRunner()
    fit = ["fit", str(table), "--target", "y", "--out", str(out), "--epochs", "1", "--members", "1", "--inducing", "6"]
    for words, what in (
        (["--report", str(tmp_path / "r.html")], f"--report {message('report')}"),
        (["--tune"], f"a search for settings {message('tune')}"),
    ):
        done = run.invoke(app, [*fit, *words])
        assert done.exit_code == 2
        assert done.output == f"dspp: {what}\n"
        assert not out.exists()
    assert run.invoke(app, fit).exit_code == 0
    evaluate = ["evaluate", str(out), str(table)]
    done = run.invoke(app, [*evaluate, "--report", str(tmp_path / "r.html")])
    assert done.output == f"dspp: --report {message('report')}\n"
    assert run.invoke(app, evaluate).exit_code == 0
    done = run.invoke(app, ["predict", str(out), str(table), "--out", str(tmp_path / "p.csv")])
    assert done.exit_code == 0, done.output


def test_the_engine_is_looked_for_before_the_search_begins(
    monkeypatch: pytest.MonkeyPatch, table: Path, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    search = ["tune", str(table), "--target", "y", "--out", str(tmp_path / "m.dspp"), "--engine", "ray"]
    done = CliRunner().invoke(app, search)
    assert (done.exit_code, done.output) == (2, f"dspp: --engine ray {message('ray')}\n")


def test_the_demo_leaves_the_report_out(bare: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "ROWS", 300)
    folder = tmp_path / "demo"
    folder.mkdir()
    (folder / "report.html").write_text("of an earlier demo")
    done = CliRunner().invoke(app, ["demo", "--folder", str(folder), "--epochs", "1", "--overwrite"])
    assert done.exit_code == 0, done.output
    assert "note: no report was written, as matplotlib or jinja2 is not installed" in done.output
    assert "run pip install 'dspp[report]'" in done.output
    assert not (folder / "report.html").exists()
    assert (folder / "predictions.csv").exists()


LOADED = """
import json, sys
import numpy as np, dspp
X = np.random.default_rng(0).normal(size=(40, 2))
model = dspp.DSPPRegressor(members=2, inducing=6, epochs=1, jobs=1, progress=False).fit(X, X[:, 0])
model.save(sys.argv[1])
dspp.load(sys.argv[1]).predict_interval(X)
print(json.dumps([name for name in sys.argv[2:] if name in sys.modules]))
"""


def test_a_fit_imports_no_extra(tmp_path: Path) -> None:
    names = sorted({name for names in EXTRAS.values() for name in names} - {"jinja2"})  # torch may import jinja2
    command = [sys.executable, "-c", LOADED, str(tmp_path / "m.dspp"), *names]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []


# ---------------------------------------------------------------- the release


def test_a_public_ci_calls_targets_that_exist() -> None:
    targets = re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (called,) = re.findall(r"target: \[(.+)\]", (ROOT / ".github" / "workflows" / "ci.yml").read_text())
    words = re.findall(r"[a-z-]+", called)
    assert {"test", "demo", "test-oldest", "docs", "dist"} == set(words) <= set(targets)


def test_the_oldest_versions_are_the_bounds_of_the_project() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "release.oldest"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = set(done.stdout.split())
    least = [line.partition(",")[0] for line in PROJECT["dependencies"]]
    bounds = {line.replace(">=", "==") for line in least if not line.startswith("torch")}
    assert found >= bounds | {"torch==2.13.0"}
    assert {re.split("==", line)[0] for line in found} >= {"matplotlib", "jinja2", "optuna", "pandas", "polars"}


def test_the_version_stands_in_one_place() -> None:
    version = PROJECT["version"]
    assert dspp.__version__ == version, "run make: pyproject.toml has changed since pip read it"
    assert re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1] == version  # type: ignore[index]
    assert re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1] == version  # type: ignore[index]
    assert CliRunner().invoke(app, ["--version"]).output == f"dspp {version}\n"
    for path in (ROOT / "src").rglob("*.py"):
        assert f'"{version}"' not in path.read_text(), f"{path}: read the version from the metadata of the package"

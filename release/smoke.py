"""What `pip install dspp` alone must do, run in a clean environment: fit, predict, save, load and the command line."""

import csv
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np

import dspp
from dspp.gp import native

ROWS = 400


def main() -> None:
    """Run all checks in the current folder."""
    home = Path(dspp.__file__).parent
    assert Path(sys.prefix) in home.parents, f"expected the installed package, got {home}"
    assert (home / "py.typed").is_file()
    assert dspp.__version__ == version("dspp")
    for name in dspp.__all__:
        assert getattr(dspp, name) is not None
    use_in_python()
    use_in_a_shell()
    if shutil.which("g++"):
        assert native.load() is not None, "moments.cpp could not be compiled"
    print(f"dspp {dspp.__version__} fits, predicts, saves and loads on Python {sys.version.split()[0]}")


def simulate() -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets whose noise grows with the second input."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(ROWS, 2))
    return X, np.sin(2.0 * X[:, 0]) + np.exp(X[:, 1] - 2.0) * rng.normal(size=ROWS)


def use_in_python() -> None:
    """Fit, predict, save and load."""
    X, y = simulate()
    model = dspp.DSPPRegressor(members=2, inducing=24, epochs=40, progress=False).fit(X[:300], y[:300])
    assert model.score(X[300:], y[300:]) > 0.5, "the model should have learned something"
    assert model.predict_interval(X[300:], 0.9).shape == (100, 2)
    model.save("python.dspp")
    loaded = dspp.load("python.dspp")
    assert np.array_equal(loaded.predict_dist(X).std, model.predict_dist(X).std)
    refused = ""
    try:
        model.predict_dist(X).plot_density(0)
    except ImportError as problem:
        refused = str(problem)
    assert refused.endswith("run pip install 'dspp[plot]'"), refused


def use_in_a_shell() -> None:
    """Fit, predict and evaluate a table with text, a date and empty cells."""
    X, y = simulate()
    with Path("small.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["size", "age", "town", "sold", "price"])
        for i, (a, b) in enumerate(X):
            town = "" if i % 9 == 0 else ("Ghent", "Namur", "Liège")[i % 3]
            writer.writerow([f"{a:.4f}", f"{b:.4f}", town, f"2024-0{1 + i % 9}-15", f"{y[i]:.4f}"])
    quick = ("--members", "1", "--inducing", "16", "--epochs", "10")
    run("fit", "small.csv", "--target", "price", "--out", "shell.dspp", *quick)
    run("predict", "shell.dspp", "small.csv", "--out", "predictions.csv", "--quantiles", "0.05,0.95")
    with Path("predictions.csv").open(encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    assert header[-4:] == ["price_mean", "price_std", "price_q0.05", "price_q0.95"], header
    assert len(rows) == ROWS
    run("evaluate", "shell.dspp", "small.csv")
    assert dspp.__version__ in run("info", "shell.dspp")
    refused = run("fit", "small.csv", "--target", "price", "--out", "x.dspp", "--report", "r.html", code=2)
    assert refused.endswith("run pip install 'dspp[report]'\n"), refused


def run(*words: str, code: int = 0) -> str:
    """Run a command of `dspp` and return what it printed."""
    command = [str(Path(sys.executable).with_name("dspp")), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{words}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


if __name__ == "__main__":
    main()

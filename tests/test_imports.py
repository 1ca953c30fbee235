"""What a process imports: to predict, nothing that trains, searches, draws or reports; to begin, nothing slow."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dspp import PPGPRRegressor

FORBIDDEN = ("training", "prepare", "fitting", "tuning", "plots", "report", "experiments", "optuna", "matplotlib")
LOAD = """
import json, sys
import numpy as np
import dspp
dspp.load(sys.argv[1]).predict_interval(np.zeros((3, 2)))
print(json.dumps(sorted(sys.modules)))
"""
PREDICT = """
import json, sys
import dspp.cli
try:
    dspp.cli.app(["predict", sys.argv[1], sys.argv[2], "--out", sys.argv[3], "--interval", "0.9"])
except SystemExit as done:
    assert not done.code
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize("program", [LOAD, PREDICT])
def test_predicting_imports_nothing_that_trains_searches_draws_or_reports(program: str, tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(30, 2))
    model = PPGPRRegressor(inducing=4, epochs=1, restarts=1, progress=False).fit(X, X[:, 0])
    model.save(tmp_path / "m.dspp")
    (tmp_path / "new.csv").write_text("a,b\n1,2\n3,4\n")
    command = [sys.executable, "-c", program, *(str(tmp_path / name) for name in ("m.dspp", "new.csv", "p.csv"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout.splitlines()[-1])
    assert "dspp.fitted" in modules, "or it did not predict"
    found = [name for name in modules if name.removeprefix("dspp.").split(".")[0] in FORBIDDEN]
    assert not found


FIRST = """
import json, sys
import torch, sklearn.base
before = set(sys.modules)
import dspp
dspp.DSPPRegressor()
print(json.dumps(sorted(set(sys.modules) - before)))
"""
SLOW = (
    "pyarrow.dataset",
    "pyarrow.parquet",
    "scipy.stats",
    "optuna",
    "matplotlib",
    "rich",
    "typer",
    "joblib",
    "jinja2",
    "mlflow",
    "skpro",
    "dspp.mlflow",
    "dspp.skpro",
)


def test_the_first_estimator_imports_nothing_slow() -> None:
    """Beyond what torch and scikit-learn import themselves: it is to take under 0.8 s more than these."""
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout)
    assert "dspp.estimators" in modules
    slow = [name for name in modules if any(f"{name}.".startswith(f"{other}.") for other in SLOW)]
    unneeded = [name for name in modules if name.removeprefix("dspp.").split(".")[0] in FORBIDDEN]
    assert not slow + unneeded


def test_scorers_are_an_attribute_without_an_import_of_their_own() -> None:
    program = "import sys, dspp; assert 'dspp.scorers' not in sys.modules; print(dspp.scorers.neg_crps.metric)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "crps\n"

"""The tests that take minutes: `make test-long`."""

import hashlib
import subprocess
import sys
import time

import pandas as pd
import pytest
import torch
from scipy import stats

from dspp import DSPPRegressor, Rows, TrainConfig, fit, preset
from dspp.encoding.scaling import Standardizer
from dspp.simulation import RobotArm
from experiments import data as datasets

pytestmark = pytest.mark.long


def _arm(rows):
    data = RobotArm(rows, seed=1)
    return Standardizer.fit(data.X).transform(data.X), Standardizer.fit(data.y).transform(data.y)


def test_calibrated_on_its_own_samples():
    """Promise 7: the PIT of what a trained model itself draws is uniform, and 90 % of it lies in the 90 % interval."""
    X, y = _arm(3000)
    model = fit(preset("dspp", inducing=100), Rows.of(X, y), config=TrainConfig(epochs=10, restarts=1)).model
    mixture = model.predictor()(torch.tensor(X[:1000]).float())
    draws = mixture.sample(100, torch.Generator().manual_seed(0))
    pit = torch.cat([mixture.pit(row) for row in draws])
    assert stats.kstest(pit.numpy(), "uniform").pvalue > 0.01
    inside = ((pit > 0.05) & (pit < 0.95)).double().mean().item()
    assert inside == pytest.approx(0.9, abs=0.005)


def test_same_seed_same_bits_on_two_threads():
    """Promise 18 at a size at which products are shared between threads."""
    X, y = _arm(4000)
    config = TrainConfig(epochs=2, batch_size=1000, restarts=2, threads=2)
    hashes = set()
    for _ in range(3):
        weights = fit(preset("dspp", inducing=200), Rows.of(X, y), config=config).model.state_dict()
        hashes.add(hashlib.sha256(b"".join(v.numpy().tobytes() for v in weights.values())).hexdigest())
    assert len(hashes) == 1


@pytest.mark.parametrize("name", ["pol", "elevators", "bike", "kin40k", "protein"])
def test_default_runs_need_no_more_jitter_than_configured(name):
    """Promise 12, with the settings a user gets."""
    try:
        data = datasets.load(name)
    except datasets.DataMissing as missing:
        pytest.skip(str(missing))
    rows = slice(5000)
    model = DSPPRegressor(epochs=3, time_budget=300.0, progress=False).fit(data.X[rows], data.y[rows])
    assert all(member.model.jitter_increases == 0 for member in model.fitted_.members)


@pytest.mark.parametrize(("rows", "seconds"), [(1_000, 10), (50_000, 20), (120_000, 30)])
def test_a_time_budget_covers_everything(rows, seconds, tmp_path):
    """From the start of the command to the report, on a machine with nothing else to do; text columns take trees."""
    data = RobotArm(rows, seed=1)
    table = pd.DataFrame(data.X).rename(columns="x{}".format).assign(y=data.y.ravel())
    table["town"] = [f"town {k % 30}" for k in range(rows)]
    table.to_parquet(tmp_path / "table.parquet")
    files = ["table.parquet", "--target", "y", "--out", "m.dspp", "--report", "m.html"]
    begin = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", "dspp", "fit", *files, "--time-budget", f"{seconds}s"], cwd=tmp_path, check=True
    )
    assert time.monotonic() - begin < 1.15 * seconds

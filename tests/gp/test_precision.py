"""Promise 13: float32 is honest. A trained model gives nearly the same NLL in float64."""

import copy

import numpy as np
import pytest
import torch

from dspp.config import TrainConfig
from dspp.encoding.scaling import Standardizer
from dspp.presets import preset
from dspp.simulation import RobotArm
from dspp.training import Rows, fit


@pytest.mark.parametrize("name", ["dspp", "svgp", "dgp"])
def test_float32_and_float64_agree_on_trained_parameters(name):
    data = RobotArm(2400, seed=3)
    X, y = Standardizer.fit(data.X).transform(data.X), Standardizer.fit(data.y).transform(data.y)
    config = TrainConfig(epochs=12, batch_size=200, restarts=1, threads=1)
    model = fit(preset(name, inducing=100), Rows.of(X[:2000], y[:2000]), config=config).model
    precise = copy.deepcopy(model).double()
    rows, targets = torch.tensor(X[2000:]), torch.tensor(y[2000:])
    nll = -model.predictor()(rows.float()).log_prob(targets.float()).double().mean()
    precise_nll = -precise.predictor()(rows).log_prob(targets).mean()
    assert precise_nll < 1.2, "it has learned something, so that the comparison means something"
    assert abs(nll - precise_nll) <= 1e-3


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("far", "dtype", "warned"), [(100, "float32", True), (100, "float64", False), (0, "float32", False)]
)
def test_distances_that_cancel_in_float32_are_reported(far, dtype, warned, seed):
    """Two tight clusters, `far` times as far apart as each is wide, and length scales of a cluster's size.

    Steps are short: a point that moves by a length scale per step leaves its rows, and then no distance matters.
    """
    random = np.random.default_rng(0)
    X = random.normal(size=(2000, 2))
    X[:1000] += far
    y = np.sin(3 * X[:, 0]) + 0.1 * random.normal(size=2000)
    X, y = Standardizer.fit(X).transform(X), Standardizer.fit(y).transform(y)
    spec = preset("ppgpr", inducing=100, lengthscale=1 / max(far, 1), dtype=dtype)
    config = TrainConfig(epochs=60, restarts=1, threads=1, learning_rate=3e-4, seed=seed)
    notes = fit(spec, Rows.of(X, y), config=config).notes
    assert [note for note in notes if 'use dtype="float64"' in note] == (list(notes) if warned else [])
    assert bool(notes) == warned

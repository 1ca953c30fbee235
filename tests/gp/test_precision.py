"""Promise 13: float32 is honest. A trained model gives nearly the same NLL in float64."""

import copy

import pytest
import torch

from dspp.config import TrainConfig
from dspp.encoding.scaling import Standardizer
from dspp.presets import preset
from dspp.simulation import robot_arm
from dspp.training import fit


@pytest.mark.parametrize("name", ["dspp", "svgp", "dgp"])
def test_float32_and_float64_agree_on_trained_parameters(name):
    data = robot_arm(2400, seed=3)
    X, y = Standardizer.fit(data.X).transform(data.X), Standardizer.fit(data.y).transform(data.y)
    config = TrainConfig(epochs=12, batch_size=200, restarts=1, threads=1)
    model = fit(preset(name, inducing=100), X[:2000], y[:2000], config=config).model
    precise = copy.deepcopy(model).double()
    rows, targets = torch.tensor(X[2000:]), torch.tensor(y[2000:])
    nll = -model.predictor()(rows.float()).log_prob(targets.float()).double().mean()
    precise_nll = -precise.predictor()(rows).log_prob(targets).mean()
    assert precise_nll < 1.2, "it has learned something, so that the comparison means something"
    assert abs(nll - precise_nll) <= 1e-3

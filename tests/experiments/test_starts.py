"""The study of starts along the directions in which y varies: it finds them, and the linear mean starts there."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from test_experiments import data_folder  # noqa: F401 - a fixture

from dspp.config import TrainConfig
from dspp.gp.means import MEANS
from dspp.presets import preset
from dspp.simulation import RobotArm
from dspp.training import Rows, fit
from experiments import starts


def test_the_directions_are_those_along_which_a_function_varies() -> None:
    X = np.random.default_rng(0).normal(size=(500, 4))
    first, second = np.array([3.0, 0, 4, 0]) / 5, np.array([0, 1.0, 0, 0])
    directions, shares = starts.leading_directions(lambda X: np.sin(2 * X @ first) + 0.3 * X @ second, X)
    assert abs(directions[:, 0] @ first) > 0.998
    assert abs(directions[:, 1] @ second) > 0.998
    assert shares[0] > 0.9
    assert shares[2:] == pytest.approx(0, abs=1e-12)
    assert shares.sum() == pytest.approx(1)


def test_the_mean_starts_along_the_directions_with_unit_variance() -> None:
    directions = np.linalg.qr(np.random.default_rng(1).normal(size=(5, 5)))[0]
    mean = starts.mean_along(directions)(5, 2)
    x = torch.randn(400, 5, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 2, 3, 4, 5])
    mean.start(x, torch.Generator())
    outputs = mean(x.unsqueeze(0))[0]
    assert outputs.std(0, correction=0).tolist() == pytest.approx([1, 1], rel=1e-5)
    weights = mean.weight.detach().double().numpy()
    cosines = (weights / np.linalg.norm(weights, axis=0)).T @ directions[:, :2]
    assert cosines == pytest.approx(np.eye(2), abs=1e-6)


def test_the_directions_of_a_seed_are_those_of_a_fit_with_it() -> None:
    """A tiny learning rate leaves the weights where they start."""
    arm = RobotArm(60)
    spec, config = preset("dspp", inducing=8, width=2), TrainConfig(epochs=1, seed=5, learning_rate=1e-9)
    trained = (
        fit(spec, Rows.of(arm.X, arm.y), config=config, progress=False).model.layers[0].mean.weight.detach().numpy()
    )
    assert starts.seed_directions(spec, arm.X, 5) == pytest.approx(trained, abs=1e-5)
    assert starts.seed_directions(spec, arm.X, 4) != pytest.approx(trained, abs=0.1)


def test_the_study_writes_one_record_per_seed(data_folder: Path, tmp_path: Path) -> None:  # noqa: F811
    starts.main("kin40k", width=2, epochs=1, seeds=2, data=data_folder, results=tmp_path)
    records = [json.loads(line) for line in (tmp_path / "univariate.jsonl").read_text().splitlines()]
    assert [record["setting"]["seed"] for record in records] == [0, 1]
    assert {record["setting"]["hidden_mean"] for record in records} == {starts.NAME}
    assert len({record["metrics"]["nll"] for record in records}) == 2
    assert starts.NAME not in MEANS


def test_the_study_can_start_like_another_seed(data_folder: Path, tmp_path: Path) -> None:  # noqa: F811
    starts.main("kin40k", width=2, epochs=1, seeds=1, like=3, first=7, data=data_folder, results=tmp_path)
    (record,) = [json.loads(line) for line in (tmp_path / "univariate.jsonl").read_text().splitlines()]
    assert (record["setting"]["seed"], record["setting"]["hidden_mean"]) == (7, "like-seed-3")

"""Boosted trees as peers: near the truth on data whose truth is known, under the floor, the same for the same seed."""

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dspp.errors import InputError
from dspp.metrics import nll
from dspp.predictive import NormalMixture
from experiments import peers
from experiments.peers import PEERS, RECIPES, fit_peer

FLOOR = 1e-4
SHORT = {"rounds": 30, "rate": 0.3, "leaves": 8}


def installed(name: str) -> object:
    absent = importlib.util.find_spec(RECIPES[name].module) is None
    return pytest.param(name, marks=pytest.mark.skipif(absent, reason=f"{name} is absent: `make experiments`"))


each_peer = pytest.mark.parametrize("name", [installed(name) for name in PEERS])


def simulated(num: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, targets whose noise grows along the second input, and the -log density of the truth."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (num, 3))
    std = 0.2 * np.exp(X[:, 1])
    noise = std * rng.standard_normal(num)
    return X, np.sin(3 * X[:, 0]) + noise, 0.5 * np.log(2 * np.pi * std**2) + 0.5 * (noise / std) ** 2


def quick_fit(name: str, seed: int = 0, floor: float = FLOOR, rows: int = 300) -> tuple[peers.Peer, np.ndarray]:
    X, y, _ = simulated(rows, 0)
    cut = rows * 2 // 3
    peer = fit_peer(name, X[:cut], y[:cut], X[cut:], y[cut:], floor=floor, seed=seed, setting=SHORT)
    return peer, X[cut:]


@each_peer
def test_is_near_the_truth_where_the_noise_depends_on_the_input(name, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    X, y, _ = simulated(3000, 0)
    X_val, y_val, _ = simulated(800, 1)
    X_test, y_test, truth = simulated(2000, 2)
    peer = fit_peer(name, X, y, X_val, y_val, floor=FLOOR, seed=0, setting={"leaves": 16, "rounds": 120, "rate": 0.1})
    predicted = peer.predict(X_test)
    assert 0 < nll(predicted, y_test) - truth.mean() < 0.15
    assert np.corrcoef(predicted.component_var[0].log(), X_test[:, 1])[0, 1] > 0.9  # the truth is linear in it
    assert 1 <= peer.details["rounds"] <= 120
    assert capfd.readouterr() == ("", "")
    assert list(Path(tmp_path).iterdir()) == []


@each_peer
def test_one_normal_a_row_in_float64(name):
    peer, X = quick_fit(name)
    mixture = peer.predict(X)
    assert isinstance(mixture, NormalMixture)
    assert (mixture.num_components, mixture.num_rows) == (1, len(X))
    assert {field.dtype for field in vars(mixture).values()} == {torch.float64}
    mean, var = peer.moments(X)
    torch.testing.assert_close(mixture.mean, torch.from_numpy(mean), rtol=0, atol=0)
    torch.testing.assert_close(mixture.component_var[0], torch.from_numpy(var), rtol=0, atol=0)


@each_peer
def test_the_floor_is_exact(name):
    """A floor inside the range of the variances: those below it are at it, the others are as the trees say."""
    peer, X = quick_fit(name)
    var = torch.from_numpy(peer.moments(X)[1])
    floor = var.quantile(0.6).item()
    floored = replace(peer, floor=floor).predict(X).component_var[0]
    assert var.min() < floor < var.max()
    assert floored.min().item() == floor
    assert torch.equal(floored, var.clamp(min=floor))


@each_peer
def test_targets_without_noise_end_at_the_floor(name):
    """Two distinct targets that an input tells apart: an unfloored density would grow without limit."""
    X = np.random.default_rng(0).uniform(-1, 1, (400, 2))
    y = np.sign(X[:, 0])
    peer = fit_peer(name, X[:300], y[:300], X[300:], y[300:], floor=FLOOR, seed=0, setting={"leaves": 8, "rounds": 100})
    var = peer.predict(X).component_var
    assert var.min().item() == FLOOR
    assert nll(peer.predict(X), y) >= 0.5 * math.log(2 * math.pi * FLOOR)  # of a hit at the floor


@each_peer
def test_same_seed_same_numbers(name):
    first, X = quick_fit(name, seed=3)
    again, _ = quick_fit(name, seed=3)
    other, _ = quick_fit(name, seed=4)
    assert first.details == again.details
    for a, b in zip(first.moments(X), again.moments(X), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not np.array_equal(first.moments(X)[0], other.moments(X)[0])


@each_peer
def test_leaves_alone_what_it_is_given(name):
    X, y, _ = simulated(300, 0)
    given = [X[:200], y[:200], X[200:], y[200:]]
    before = [array.copy() for array in given]
    setting = dict(SHORT)
    fit_peer(name, *given, floor=FLOOR, seed=0, setting=setting).predict(given[2])
    for array, copy in zip(given, before, strict=True):
        np.testing.assert_array_equal(array, copy)
        assert array.flags.writeable
    assert setting == SHORT


@each_peer
def test_settings_have_an_effect(name):
    X, y, _ = simulated(300, 0)
    given = (X[:200], y[:200], X[200:], y[200:])

    def details(**setting):
        return fit_peer(name, *given, floor=FLOOR, seed=0, setting=setting).details

    own = details(rounds=3, rate=0.2, leaves=8)
    assert (own["rounds"], own["rate"], own["leaves"]) == (3, 0.2, 8)
    assert own == details(rounds=3, rate=0.2, depth=3, noise_floor=FLOOR, split_by="rows")


def test_an_absent_library_says_how_to_get_it(monkeypatch):
    X, y, _ = simulated(20, 0)
    for name in PEERS:
        monkeypatch.setitem(__import__("sys").modules, RECIPES[name].module, None)
        with pytest.raises(InputError, match=f"{name} is not installed.*make experiments"):
            fit_peer(name, X, y, X, y, floor=FLOOR, seed=0, setting={})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "XGBoost"}, "choose from: NGBoost, CatBoost, LightGBM"),
        ({"floor": 0.0}, "floor: expected a variance > 0, such as 1e-4, got 0.0"),
        ({"floor": math.nan}, "floor: expected a variance > 0, such as 1e-4, got nan"),
        ({"setting": {"round": 5}}, "no setting 'round'"),
        ({"setting": {"rounds": 0}}, "rounds >= 1"),
        ({"setting": {"rate": -0.1}}, "rate > 0"),
        ({"setting": {"leaves": 1}}, "leaves >= 2"),
        ({"y": np.zeros((20, 2))}, "one output"),
        ({"y": np.zeros(3)}, "at least 5 rows"),
    ],
)
def test_refuses_what_it_cannot_use(changes, message):
    X, y, _ = simulated(20, 0)
    given = {"name": "LightGBM", "X": X, "y": y, "X_val": X, "y_val": y, "floor": FLOOR, "seed": 0, "setting": {}}
    with pytest.raises(InputError, match=message):
        fit_peer(**{**given, **changes})

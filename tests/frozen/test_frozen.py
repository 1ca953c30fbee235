"""What the code before the redesign computed: splits, encodings, parameters, predictions, a whole fit.

Recorded by record.py at commit 120ad9b. Splits and encodings agree exactly, numbers to 1e-12 relative in float64 and to
1e-6 in float32. tests/data is edited only where an issue changes what is computed; places.py says where the code has
moved to.
"""

import json
from pathlib import Path

import cases
import numpy as np
import places
import pytest
import torch
from cases import CONFIG, MODELS, OUTPUTS, RESUMED, X_NEW, Y_NEW, X, Y, digest, scores, spec, table
from safetensors.torch import load_file

import dspp

DATA = Path(__file__).parents[1] / "data"
TOLERANCE = {"float64": 1e-12, "float32": 1e-6}
SOLVED = 3e-11  # quantiles were recorded by a solver that stopped at |F(x) − p| ≤ 1e-11; today's is exact to 1e-15


def assert_same(got, expected, dtype="float64", least=0.0):
    """max |got − expected| ≤ tolerance · max |expected|."""
    got, expected = (torch.as_tensor(np.asarray(v)).double() for v in (got, expected))
    assert got.shape == expected.shape
    assert bool(torch.isfinite(got).all())
    gap, scale = (got - expected).abs().max().item(), expected.abs().max().item()
    assert gap <= max(TOLERANCE[dtype], least) * max(scale, 1e-300), f"differs by {gap:.3g} of {scale:.3g}"


def under(tensors, prefix):
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


@pytest.fixture(scope="module")
def parameters():
    return load_file(DATA / "parameters.safetensors")


@pytest.fixture(scope="module")
def predictions():
    return load_file(DATA / "predictions.safetensors")


@pytest.fixture(scope="module")
def splits():
    return json.loads((DATA / "splits.json").read_text())


def summary(index):
    index = np.asarray(index, dtype=np.int64)
    return [len(index), index[:5].tolist(), digest(index)]


@pytest.mark.parametrize(("num_rows", "seed"), cases.SPLITS)
def test_splits(splits, num_rows, seed):
    assert [summary(p) for p in places.split(num_rows, (15, 3, 2), seed)] == splits[f"paper {num_rows} {seed}"]
    for given in (False, True):
        for conformal in (False, True):
            parts = places.held_out(num_rows, seed, given, conformal)
            assert [summary(p) for p in parts] == splits[f"memory {num_rows} {seed} {given} {conformal}"]


@pytest.mark.parametrize("given", cases.BATCHES)
def test_batches(splits, given):
    assert [summary(p.numpy()) for p in places.batch_indices(*given)] == splits[f"batches {given}"]


def test_encoding():
    frozen = json.loads((DATA / "encoding.json").read_text())
    train, new, names = places.encode(table(300, 4), table(50, 5))
    assert list(names) == frozen["names"]
    assert (digest(train), digest(new)) == (frozen["train"], frozen["new"])
    assert places.encoder_json(table(300, 4)) == frozen["json"]


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("name", MODELS)
def test_parameters_after_20_steps(parameters, name, outputs):
    frozen = under(parameters, f"{name}/{outputs}/")
    result = dspp.fit(spec(name), dspp.Rows.of(X, Y[outputs]), config=CONFIG)
    found = {places.frozen_name(n): v for n, v in result.model.state_dict().items()}
    assert_same([epoch.train_nll for epoch in result.history], frozen.pop("history"))
    assert found.keys() == frozen.keys()
    for key, value in found.items():
        assert_same(value.detach(), frozen[key])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("name", MODELS)
def test_predictions_of_stored_parameters(parameters, predictions, name, outputs, dtype):
    own = under(parameters, f"{name}/{outputs}/")
    del own["history"]
    predictor = places.predictor_of(spec(name, dtype), X, None if outputs == 1 else outputs, own)
    found = scores(predictor(X_NEW), Y_NEW[outputs])
    frozen = under(predictions, f"{name}/{outputs}/{dtype}/")
    assert found.keys() == frozen.keys()
    for key, value in found.items():
        assert_same(value, frozen[key], dtype, least=SOLVED if key == "quantile" else 0.0)


def test_a_whole_fit():
    frozen = load_file(DATA / "resumed.safetensors")
    result = dspp.fit(spec("dspp"), dspp.Rows.of(X, Y[1]), dspp.Rows.of(X_NEW, Y_NEW[1]), config=RESUMED)
    assert result.best_epoch == int(frozen.pop("best_epoch"))
    assert_same(result.restart_nll, frozen.pop("restart_nll"))
    history = [[e.objective, e.train_nll, e.val_nll, e.learning_rate] for e in result.history]
    assert_same(history, frozen.pop("history"))
    found = {places.frozen_name(n): v for n, v in result.model.state_dict().items()}
    assert found.keys() == frozen.keys()
    for key, value in found.items():
        assert_same(value.detach(), frozen[key])

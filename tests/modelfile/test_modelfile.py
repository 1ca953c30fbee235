"""The model file: what is saved comes back to the last bit, and whatever the bytes, loading is harmless."""

import contextlib
import gzip
import io
import json
import math
import os
import pickle
import random
import re
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import safetensors.torch
import torch
from torch import nn

from dspp import storage
from dspp.calibration import Conformal
from dspp.codec import pack
from dspp.config import TrainConfig
from dspp.encoding.encoder import TableEncoder
from dspp.encoding.scaling import Standardizer
from dspp.errors import InputError, ModelFileError, NumericalError
from dspp.fitted import Fitted
from dspp.history import Epoch
from dspp.members import Dspp
from dspp.model import TOPOLOGIES, build
from dspp.modelfile import file as container
from dspp.modelfile import load, save
from dspp.modelfile import weights as limits
from dspp.modelfile.weights import skeleton
from dspp.notes import Note
from dspp.outcomes import Positive, Real, find_outcome
from dspp.presets import PRESETS, Spec, preset
from dspp.quadrature import RULES
from dspp.table.messages import Place
from dspp.table.table import Table
from dspp.training import Rows, fit

GENERATOR = np.random.default_rng(5)
X = GENERATOR.normal(size=(40, 3)) * [1.0, 30.0, 0.01] + [1e3, 0.0, 5.0]
Y = 1e4 + 50 * np.sin(X[:, 0] - 1e3) * X[:, 1] / 30 + GENERATOR.normal(size=40)
Y3 = np.stack([Y, -2 * Y, X[:, 2]], axis=1)
QUICK = TrainConfig(epochs=1, batch_size=40, restarts=1)
TINY = {"inducing": 5, "width": 2, "sites": 3, "test_sites": 4}
HUGE = 10**9


def spec_of(name: str = "dspp", **changes) -> Spec:
    extra = {"features": (4, 2)} if name.startswith("nn+") else {}
    return preset(name, **{**TINY, **extra, **changes})


def fitted_of(spec: Spec, y=Y, features: nn.Module | None = None, **changes) -> Fitted:
    scale_X, columns = Standardizer.fit(X), y.reshape(len(y), -1)
    names = ("y",) if y.ndim == 1 else ("y", "z", "w")
    kind, likelihood = find_outcome("auto", spec.model.likelihood, is_named=True)
    outcome = kind(names, likelihood).fit(columns, Place("y"))
    rows, targets = scale_X.transform(X), outcome.encode(columns, Place("y"))
    result = fit(spec, Rows.of(rows, targets), config=QUICK, features=features)
    history = (*result.history, Epoch(2, math.nan, math.inf, 0.25, 1e-300, 0.1))
    fitted = Fitted(
        members=(Dspp(spec, QUICK, result.model, history, 2, result.seconds),),
        weights=(1.0,),
        scale_X=scale_X,
        outcome=outcome,
        encoder=None,
        feature_names=("a", "b", "ç"),
        metrics={"nll": 0.1 + 0.2, "crps": math.nan},
        notes=(Note("", "a note, “quoted”"),),
        versions={"dspp": "0.1.0", "torch": torch.__version__},
        conformal=None,
        num_rows=40,
    )
    return replace(fitted, **changes)


def with_member(fitted: Fitted, **changes) -> Fitted:
    """The same with other parts of its only member."""
    return replace(fitted, members=(replace(fitted.members[0], **changes),))


@pytest.fixture(scope="module")
def tiny() -> Fitted:
    fitted = fitted_of(spec_of())
    scores = Conformal.fit(fitted.distribution(X), Y).scores[:, None]
    return replace(fitted, conformal=scores, input_range=np.stack([X.min(0), X.max(0)]))


@pytest.fixture(scope="module")
def good(tiny, tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("good") / "model.dspp"
    save(tiny, path)
    return path.read_bytes()


def bits(mixture) -> dict[str, bytes]:
    return {f.name: getattr(mixture, f.name).numpy().tobytes() for f in fields(mixture)}


def assert_round_trip(fitted: Fitted, path: Path, features: nn.Module | None = None) -> Fitted:
    """Same predictions, same weights, same story; and the file of what was loaded is the same file."""
    save(fitted, path)
    loaded = load(path, features)
    assert bits(loaded.distribution(X)) == bits(fitted.distribution(X))
    before, after = fitted.members[0].model.state_dict(), loaded.members[0].model.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)
    grads = {name: p.requires_grad for name, p in fitted.members[0].model.named_parameters()}
    assert grads == {name: p.requires_grad for name, p in loaded.members[0].model.named_parameters()}
    for name in ("feature_names", "target_names", "num_outputs", "notes", "seconds"):
        assert getattr(loaded, name) == getattr(fitted, name), name
    for name in ("spec", "train", "best_epoch", "seconds"):
        assert getattr(loaded.members[0], name) == getattr(fitted.members[0], name), name
    assert (loaded.num_inputs, loaded.num_outputs) == (fitted.num_inputs, fitted.num_outputs)
    assert (loaded.versions, loaded.num_rows) == (fitted.versions, fitted.num_rows)
    again = path.with_suffix(".again")
    save(loaded, again)
    assert again.read_bytes() == path.read_bytes()
    return loaded


# ---------------------------------------------------------------- the structure without values


def structure(model) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in model.state_dict().items()}


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("rule", RULES)
def test_a_skeleton_is_what_build_makes_without_values(rule, topology):
    config = spec_of(rule=rule, topology=topology, layers=3, dtype="float64", features=(4, 2)).model
    built = build(config, torch.tensor(X), 2)
    bare = skeleton(config, 3, 2, [5, 5, 5])
    assert structure(bare) == structure(built)
    assert all(value.is_meta for value in bare.state_dict().values())
    assert [layer.name for layer in bare.gp_layers] == [layer.name for layer in built.gp_layers]
    assert (bare.num_inputs, bare.topology, type(bare.likelihood)) == (3, built.topology, type(built.likelihood))


def test_a_skeleton_of_fewer_points_and_of_a_mean_basis():
    config = spec_of("od-svgp", inducing=30).model  # asks for 90 points of the mean basis; there are 40 rows
    built = build(config, torch.tensor(X).float())
    assert structure(skeleton(config, 3, 1, [30], [40])) == structure(built)
    for sizes in ([30], []), ([], [40]), ([30, 30], [40]), ([30], [0]):
        with pytest.raises(InputError, match="inducing points"):
            skeleton(config, 3, 1, *sizes)


@pytest.mark.parametrize(
    "changes",
    [
        {"inducing": HUGE},
        {"width": HUGE},
        {"sites": HUGE},
        {"rule": "monte-carlo", "test_sites": HUGE},
        {"features": (HUGE, HUGE)},
    ],
    ids=str,
)
def test_no_size_makes_a_skeleton_large(changes):
    bare = skeleton(spec_of(**changes).model, 3, 1, [changes.get("inducing", 5)] * 2)
    assert all(value.is_meta for value in bare.state_dict().values())
    assert max(max(value.shape, default=0) for value in bare.state_dict().values()) == HUGE


@pytest.mark.parametrize(
    "changes",
    [
        {"rule": "qr1", "sites": 1, "width": HUGE},
        {"rule": "qr2", "sites": 100, "width": HUGE},
        {"rule": "gauss-hermite", "sites": HUGE},
        {"layers": HUGE},
    ],
    ids=str,
)
def test_what_a_skeleton_would_have_to_count_out_is_refused(changes):
    with pytest.raises(InputError):
        skeleton(spec_of(**changes).model, 3, 1, [5, 5])


def test_a_skeleton_copies_the_users_module(tmp_path):
    own = nn.Sequential(nn.Linear(3, 7), nn.Tanh())
    bare = skeleton(spec_of(dtype="float64").model, 3, 1, [5, 5], features=own)
    assert own[0].weight.dtype == torch.float32
    assert own.training
    assert bare.features[0].weight.dtype == torch.float64
    assert bare.gp_layers[0].inducing_points.shape == (2, 5, 7)
    with pytest.raises(InputError, match="4 columns"):
        skeleton(spec_of().model, 4, 1, [5, 5], features=own)


# ---------------------------------------------------------------- the user's units


@pytest.mark.parametrize("y", [Y, Y3], ids=["one", "three"])
def test_the_distribution_is_in_the_users_units(y):
    """The density of y is that of the standardised y over the scales; means and variances go the same way."""
    fitted = fitted_of(spec_of(dtype="float64"), y)
    inner = fitted.members[0].model.predictor()(fitted.scale_X.transform(X))
    outer = fitted.distribution(X)
    scale = fitted.outcome.scale
    jacobian = math.log(math.prod(scale.scale))
    expected = inner.log_prob(torch.tensor(scale.transform(y.reshape(len(y), -1)).reshape(y.shape))) - jacobian
    torch.testing.assert_close(outer.log_prob(torch.tensor(y)), expected, rtol=1e-9, atol=1e-8)
    mean = (inner.mean.reshape(len(y), -1).numpy() * scale.scale + scale.mean).reshape(y.shape)
    np.testing.assert_allclose(outer.mean.numpy(), mean, rtol=1e-12)
    assert outer.mean.dtype == torch.float64


def test_the_distribution_refuses_other_tables(tiny):
    for table, message in ((X[:, :1], "expecting 3 features"), (X[0], "2-D"), (X * np.nan, "NaN")):
        with pytest.raises(InputError, match=message):
            tiny.distribution(table)
    with pytest.raises(InputError, match="inf"):
        tiny.distribution(np.full((1, 3), -1.7e308))
    assert tiny.members[0].predictor is tiny.members[0].predictor


# ---------------------------------------------------------------- round trips (promise 26)


@pytest.mark.parametrize("y", [Y, Y3], ids=["one", "three"])
@pytest.mark.parametrize("name", [prefix + name for name in PRESETS for prefix in ("", "nn+")])
def test_every_preset_comes_back_to_the_last_bit(name, y, tmp_path):
    assert_round_trip(fitted_of(spec_of(name), y), tmp_path / "m.dspp")


@pytest.mark.parametrize(
    "changes",
    [
        *({"rule": rule, "dtype": dtype} for rule in RULES for dtype in ("float32", "float64")),
        *({"topology": topology, "layers": 3} for topology in TOPOLOGIES),
        {"rule": "qr2", "sites": 1, "layers": 3},  # has tensors without elements
        {"inducing": 100},  # there are 40 rows
        {"kernel": "rbf", "hidden_mean": "zero", "top_mean": "linear", "covariance": "full", "noise_floor": 0.0},
    ],
    ids=str,
)
def test_every_dial_comes_back_to_the_last_bit(changes, tmp_path):
    loaded = assert_round_trip(fitted_of(spec_of(**changes)), tmp_path / "m.dspp")
    assert loaded.members[0].model.num_inputs == 3
    assert loaded.members[0].model.likelihood.noise_floor == loaded.members[0].spec.model.noise_floor


def test_the_story_comes_back(tiny, tmp_path):
    tiny.members[0].model.gp_layers[1].jitter_increases = 7
    loaded = assert_round_trip(replace(tiny, notes=(Note("a", "x"), Note("", "y"))), tmp_path / "m.dspp")
    tiny.members[0].model.gp_layers[1].jitter_increases = 0
    assert loaded.members[0].model.jitter_increases == 7
    assert loaded.members[0].history[0] == tiny.members[0].history[0]
    assert repr(loaded.members[0].history[1]) == repr(Epoch(2, math.nan, math.inf, 0.25, 1e-300, 0.1))
    assert loaded.metrics["nll"] == 0.1 + 0.2
    assert math.isnan(loaded.metrics["crps"])
    assert torch.equal(loaded.conformal, tiny.conformal)
    assert not loaded.members[0].model.training
    few = fitted_of(spec_of(inducing=100))
    assert "expected 100 inducing points" in few.members[0].model.notes[0]
    assert assert_round_trip(few, tmp_path / "few.dspp").members[0].model.notes == few.members[0].model.notes


def test_an_encoder_comes_back(tmp_path):
    numbers = [None if i == 3 else float(i) for i in range(40)]
    table = pa.table({"size": numbers, "colour": ["red", "green", "blue", "red"] * 10})
    encoder = TableEncoder.fit(table)
    rows = encoder.transform(table)
    scale, scale_y = Standardizer.fit(rows), Standardizer.fit(Y)
    result = fit(spec_of(), Rows.of(scale.transform(rows), scale_y.transform(Y)), config=QUICK)
    fitted = replace(
        with_member(fitted_of(spec_of()), model=result.model),
        scale_X=scale,
        encoder=encoder,
        feature_names=encoder.feature_names,
    )
    save(fitted, tmp_path / "m.dspp")
    loaded = load(tmp_path / "m.dspp")
    assert np.array_equal(loaded.encoder.transform(table), rows)
    assert loaded.feature_names == encoder.feature_names
    assert bits(loaded.distribution(rows)) == bits(fitted.distribution(rows))
    data = (tmp_path / "m.dspp").read_bytes()
    for change in (
        lambda h: h.update(encoder=pack(TableEncoder.fit(table.select(["size"])))[1]),
        lambda h: h.update(encoder={"columns": "all"}),
        lambda h: h.update(encoder=[]),
    ):
        (tmp_path / "bad.dspp").write_bytes(with_header(data, change))
        with pytest.raises(ModelFileError):
            load(tmp_path / "bad.dspp")


def own_module(size: int = 6) -> nn.Module:
    return nn.Sequential(nn.Linear(3, size), nn.BatchNorm1d(size), nn.Tanh(), nn.Linear(size, 2))


@pytest.mark.parametrize("name", ["dspp", "nn+dspp"])
def test_a_module_of_the_users_is_needed_again(name, tmp_path):
    """Also where the config describes a network that the module took the place of."""
    path = tmp_path / "m.dspp"
    fitted = fitted_of(spec_of(name), features=own_module())
    module = own_module()
    untouched = {k: v.clone() for k, v in module.state_dict().items()}
    save(fitted, path)
    assert bits(load(path, module).distribution(X)) == bits(fitted.distribution(X))
    assert all(torch.equal(module.state_dict()[k], v) for k, v in untouched.items())
    with pytest.raises(ModelFileError, match=r"not its code.*load\(path, features=module\)"):
        load(path)
    with pytest.raises(ModelFileError, match=r"features\.0\.weight: expected .*\(9, 3\), got .*\(6, 3\)"):
        load(path, own_module(9))
    with pytest.raises(ModelFileError, match="cannot take a row of 3 columns"):
        load(path, nn.Linear(4, 2))


def test_a_module_is_refused_where_there_was_none(tiny, tmp_path):
    save(tiny, tmp_path / "m.dspp")
    with pytest.raises(ModelFileError, match="without `features`"):
        load(tmp_path / "m.dspp", own_module())


def test_only_what_can_be_loaded_is_saved(tiny, tmp_path):
    """A model that its spec does not describe, or that cannot predict, is refused before the old file is touched."""
    path = tmp_path / "m.dspp"
    path.write_bytes(b"old")
    other = fitted_of(spec_of(width=1))
    broken = fitted_of(spec_of())
    with torch.no_grad():
        broken.members[0].model.gp_layers[0].inducing_points[0, 0, 0] = math.nan
    cases = [
        (with_member(tiny, model=other.members[0].model), "inducing_points"),
        (with_member(tiny, spec=spec_of(dtype="float64")), "float32"),
        (replace(tiny, feature_names=("a",)), "feature_names: expected 3, got 1"),
        (replace(tiny, outcome=replace(tiny.outcome, names=("a", "b"))), "outcome.scale: expected one mean per"),
        (with_member(tiny, best_epoch=17), "17"),
        (with_member(tiny, seconds=math.nan), "seconds: expected float"),
        (replace(tiny, conformal=torch.tensor([[0.3], [0.1]], dtype=torch.float64)), "out of order"),
        (
            replace(tiny, outcome=Real(("y",), "gaussian", Standardizer(np.zeros(1), np.zeros(1)))),
            "outcome.scale.scale",
        ),
        (replace(tiny, notes=(Note("", "x" * 9_000_000),)), "header"),
        (broken, "NaN"),
    ]
    for fitted, message in cases:
        with pytest.raises(ModelFileError, match=message):
            save(fitted, path)
        assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["m.dspp"]
    with pytest.raises(ModelFileError, match="no-folder"):
        save(tiny, tmp_path / "no-folder" / "m.dspp")


# ---------------------------------------------------------------- files taken apart


def apart(data: bytes) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """The safetensors header, ours inside it, and the numbers."""
    end = 8 + struct.unpack("<Q", data[:8])[0]
    outer = json.loads(data[8:end])
    inner = json.loads(outer["__metadata__"]["dspp"])
    del inner["digest"]
    return outer, inner, data[end:]


def together(outer: dict[str, Any], inner: Any, body: bytes, text: str | None = None) -> bytes:
    """A file with a digest that matches: otherwise every change would be refused for that reason."""
    text = json.dumps(inner) if text is None else text
    with contextlib.suppress(Exception):  # without a digest where the tensors or the header cannot be read
        digest = storage.digest(safetensors.torch.load(framed({**outer, "__metadata__": {}}, body)), json.loads(text))
        text = f'{text.rstrip()[:-1]}, "digest": "{digest}"}}'
    return framed({**outer, "__metadata__": {"dspp": text}}, body)


def framed(outer: dict[str, Any], body: bytes) -> bytes:
    head = json.dumps(outer).encode()
    return struct.pack("<Q", len(head)) + head + body


def with_header(data: bytes, change: Callable[[dict[str, Any]], Any]) -> bytes:
    outer, inner, body = apart(data)
    change(inner)
    return together(outer, inner, body)


def with_tensors(data: bytes, tensors: dict[str, torch.Tensor | None]) -> bytes:
    """The file with some tensors replaced, or (None) left out; safetensors' own checks pass."""
    outer, inner, body = apart(data)
    parts, new = [], {}
    for name, entry in outer.items():
        if name != "__metadata__" and name not in tensors:
            parts.append((name, entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])]))
    codes = {torch.float32: "F32", torch.float64: "F64", torch.int64: "I64", torch.float16: "F16", torch.bool: "BOOL"}
    for name, value in tensors.items():
        if value is not None:
            parts.append((name, codes[value.dtype], list(value.shape), value.contiguous().numpy().tobytes()))
    body = b""
    for name, dtype, shape, content in parts:
        new[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(content)]}
        body += content
    return together(new, inner, body)


def refusal(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(ModelFileError) as caught:
        load(path)
    message = str(caught.value)
    assert str(path) in message
    assert len(message) < 1000
    return message


def test_one_loaded_model_serves_several_threads(good, tiny, tmp_path):
    (tmp_path / "m").write_bytes(good)
    loaded, expected = load(tmp_path / "m"), tiny.distribution(X)
    with ThreadPoolExecutor(8) as pool:
        for mixture in pool.map(loaded.distribution, [X] * 40):
            assert bits(mixture) == bits(expected)


def test_taking_apart_and_putting_together_changes_nothing(good, tiny, tmp_path):
    (tmp_path / "m").write_bytes(together(*apart(good)))
    assert bits(load(tmp_path / "m").distribution(X)) == bits(tiny.distribution(X))
    (tmp_path / "m").write_bytes(with_tensors(good, {}))
    assert bits(load(tmp_path / "m").distribution(X)) == bits(tiny.distribution(X))


def test_a_flipped_bit_never_changes_a_prediction(good, tiny, tmp_path):
    """Most would leave a file that is still a model, and a wrong one: refused, unless nothing hangs on the bit."""
    choose, path, refused = random.Random(0), tmp_path / "m", 0
    for place in (choose.randrange(8, len(good)) for _ in range(200)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1 << choose.randrange(8)]) + good[place + 1 :])
        try:
            loaded = load(path)
        except ModelFileError:
            refused += 1
        else:
            assert bits(loaded.distribution(X)) == bits(tiny.distribution(X))
    assert refused > 190
    outer, _, body = apart(good)
    place = len(good) - len(body) + outer["outcome.scale.mean"]["data_offsets"][0]
    damaged = good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :]
    assert "is damaged: its hash does not match; use another copy of it" in refusal(path, damaged)


def without_digest(data: bytes, **changes: Any) -> bytes:
    outer, inner, body = apart(data)
    return framed({**outer, "__metadata__": {"dspp": json.dumps(inner | changes)}}, body)


def test_a_file_without_a_hash_is_refused(good, tmp_path):
    message = refusal(tmp_path / "m", without_digest(good))
    assert "is damaged: its hash is missing; use another copy of it" in message
    refusal(tmp_path / "m", without_digest(good, digest=None))


def test_another_format_says_what_to_do(good, tmp_path):
    message = refusal(tmp_path / "m", with_header(good, lambda h: h.update(version=2)))
    assert "was written by a later dspp (format 2, this reads 1); upgrade dspp" in message
    message = refusal(tmp_path / "m", with_header(good, lambda h: h.update(version=0)))
    assert "was written by an earlier dspp (format 0, this reads 1); fit the model again" in message


def test_unknown_fields_are_ignored_and_missing_ones_are_not(good, tiny, tmp_path):
    (tmp_path / "m").write_bytes(with_header(good, lambda h: h.update(colour="blue")))
    assert bits(load(tmp_path / "m").distribution(X)) == bits(tiny.distribution(X))
    for name in apart(good)[1]:
        refusal(tmp_path / "m", with_header(good, lambda h, name=name: h.pop(name)))
    message = refusal(
        tmp_path / "m", with_header(good, lambda h: h["members"][0]["spec"]["model"].update(colour="blue"))
    )
    assert "ModelConfig: unknown setting 'colour'" in message


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("layers", HUGE, "1000000000 layers"),
        ("width", HUGE, "ModelConfig.width"),
        ("inducing", HUGE, "ModelConfig.inducing"),
        ("mean_inducing", HUGE, "ModelConfig.mean_inducing"),
        ("sites", HUGE, "ModelConfig.sites"),
        ("test_sites", HUGE, "ModelConfig.test_sites"),
        ("features", [HUGE], "ModelConfig.features"),
        ("features", [HUGE, HUGE], "ModelConfig.features"),
        ("features", [1] * 100_000, "100000 feature sizes"),
        ("features", [-1], "ModelConfig.features"),
        ("layers", 3, "layers.1.inducing_points"),
        ("layers", 1, "layers.0.inducing_points"),
        ("width", 10_000_000, r"expected shape \(10000000, M, D\)"),
        ("inducing", 4, "M from 1 to 4"),
        ("mean_inducing", 5, "mean_points"),
        ("sites", 10_000_000, "rule.raw_log"),
        ("features", [10_000_000, 10_000_000], "features"),
        ("layers", -1, "at least 1"),
        ("width", "2", "expected int"),
        ("width", 2.0, "expected int"),
        ("width", 10**4000, "ModelConfig.width"),
        ("noise", math.inf, "finite"),
        ("noise", 10**4000, "noise"),
        ("noise", math.nan, "expected float"),
        ("noise", 0.0, "noise_floor"),
        ("kernel", "matern72", "unknown kernel 'matern72'"),
        ("rule", "qr9", "unknown rule"),
        ("rule", ["qr3"], "ModelConfig.rule"),
        ("rule", "qr1", "rule.raw"),
        ("covariance", "full", r"q\.root"),
        ("dtype", "float64", "float32"),
        ("dtype", "object", "ModelConfig.dtype"),
        ("likelihood", "poisson", "unknown likelihood"),
    ],
    ids=lambda v: str(v)[:20],
)
def test_a_config_that_the_tensors_do_not_bear_out(field, value, message, good, tmp_path):
    data = with_header(good, lambda h: h["members"][0]["spec"]["model"].update({field: value}))
    path = tmp_path / "m"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=message):
        load(path)


def test_powers_of_a_width_are_not_computed(good, tmp_path):
    """100^(10^7) has twenty million digits."""
    change = {"rule": "qr1", "sites": 100, "width": 10_000_000}
    refusal(tmp_path / "m", with_header(good, lambda h: h["members"][0]["spec"]["model"].update(change)))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("members.0.model.layers.0.q.mean", None, "missing"),
        ("members.0.model.layers.0.q.mean", torch.zeros(2, 5, dtype=torch.float64), "got torch.float64"),
        ("members.0.model.layers.0.q.mean", torch.zeros(2, 5, dtype=torch.float16), "got torch.float16"),
        ("members.0.model.layers.0.q.mean", torch.zeros(5, 2), r"\(5, 2\)"),
        ("members.0.model.layers.0.q.mean", torch.full((2, 5), math.nan), "NaN"),
        ("members.0.model.layers.0.q.mean", torch.tensor([[0.0] * 5, [0.0] * 4 + [-math.inf]]), "inf"),
        ("members.0.model.layers.0.q.mean", torch.zeros(2, 5, dtype=torch.bool), "bool"),
        ("members.0.model.layers.0.inducing_points", torch.zeros(2, 5, 4), "raw_lengthscale|inducing_points"),
        ("members.0.model.layers.0.inducing_points", torch.zeros(2, 0, 3), "M from 1"),
        ("members.0.model.layers.0.inducing_points", torch.zeros(10**7, 5, 0), "expected"),
        ("members.0.model.layers.0.kernel.raw_lengthscale", torch.full((2, 3), -3e38), "raw_lengthscale"),
        ("members.0.model.layers.0.kernel.raw_lengthscale", torch.full((2, 3), -1e4), "layer 1 of 2"),
        ("members.0.model.likelihood.raw_noise", torch.full((1,), 1e11), "raw_noise: .* to 1e\\+10, got 1e\\+11"),
        ("members.0.model.extra", torch.zeros(1), "not a tensor of this model"),
        ("extra", torch.zeros(1), "not a tensor of this file"),
        ("scale_X.mean", None, "scale_X"),
        ("scale_X.mean", torch.zeros(3), "float64"),
        ("scale_X.scale", torch.zeros(3, dtype=torch.float64), "scale_X.scale.* got 0 to 0"),
        ("scale_X.scale", -torch.ones(3, dtype=torch.float64), "scale_X.scale.* got -1 to -1"),
        ("scale_X.scale", torch.full((3,), 1e-300, dtype=torch.float64), "input_range: column '0'"),
        ("outcome.scale.scale", torch.tensor([1e-151], dtype=torch.float64), "outcome.scale.* from 1e-150 to 1e\\+150"),
        ("outcome.scale.scale", torch.tensor([1e151], dtype=torch.float64), "outcome.scale.* from 1e-150 to 1e\\+150"),
        ("outcome.scale.mean", torch.tensor([-1e151], dtype=torch.float64), "outcome.scale"),
        ("input_range", torch.tensor([[1.0] * 3, [0.0] * 3], dtype=torch.float64), "input_range"),
        ("input_range", torch.tensor([[-1e308] * 3, [0.0] * 3], dtype=torch.float64), "input_range: column '0'"),
        ("scale_X.scale", torch.ones(4, dtype=torch.float64), "scale_X"),
        ("outcome.scale.scale", torch.tensor(1.0, dtype=torch.float64), "outcome.scale"),
        ("outcome.scale.mean", torch.tensor([math.inf], dtype=torch.float64), "inf"),
        ("conformal", torch.zeros(3, 2, dtype=torch.float64), "conformal"),
        ("conformal", torch.zeros(0, dtype=torch.float64), "conformal"),
        ("conformal", torch.tensor(0.1, dtype=torch.float64), "scores|conformal"),
        ("conformal", torch.tensor([[0.2], [0.7]], dtype=torch.float64), "scores"),
        ("conformal", torch.tensor([[0.2], [0.3]]), "conformal: expected float64"),
    ],
    ids=lambda v: str(v)[:30] if isinstance(v, str) else "",
)
def test_a_wrong_tensor_is_named(name, value, message, good, tmp_path):
    path = tmp_path / "m"
    path.write_bytes(with_tensors(good, {name: value}))
    with pytest.raises(ModelFileError, match=message):
        load(path)


def test_there_is_a_limit_to_calibration_rows(good, tmp_path, monkeypatch):
    monkeypatch.setattr(container, "MAX_SCORES", 39)
    assert "at most 39 scores" in refusal(tmp_path / "m", good)


CANNOT_BE_FACTORISED = {"members.0.model.layers.0.kernel.raw_lengthscale": torch.full((2, 3), -1e4)}


def test_kernel_matrices_that_cannot_be_factorised_do_not_load(good, tmp_path):
    message = refusal(tmp_path / "m", with_tensors(good, CANNOT_BE_FACTORISED))
    assert "layer 1 of 2" in message
    assert "learning rate" not in message


def test_what_is_too_large_to_try_is_left_to_the_first_prediction(good, tmp_path, monkeypatch):
    (tmp_path / "m").write_bytes(with_tensors(good, CANNOT_BE_FACTORISED))
    monkeypatch.setattr(limits, "MAX_FACTORISED", 10)
    with pytest.raises(NumericalError, match="layer 1 of 2") as caught:
        load(tmp_path / "m").distribution(X)
    assert_names_the_file(caught.value, tmp_path / "m")


def assert_names_the_file(error: NumericalError, path: Path) -> None:
    assert str(error).startswith(f"{path} cannot predict")
    assert "the model is damaged" in str(error)
    assert "learning rate" not in str(error)


def test_a_prediction_that_is_not_finite_is_an_error(good, tiny, tmp_path):
    """Found in the layers, where training has other advice, or in the result; named by file where there is one."""
    weights = {
        "members.0.model.layers.1.kernel.raw_outputscale": torch.full((1,), 1e17),
        "members.0.model.layers.1.q.root": torch.full((1, 5), 1e17),
    }
    (tmp_path / "m").write_bytes(with_tensors(good, weights))
    with pytest.raises(NumericalError, match="layer 2 of 2") as caught:
        load(tmp_path / "m").distribution(X)
    assert_names_the_file(caught.value, tmp_path / "m")
    steep = replace(tiny, outcome=Positive(("y",), "log-normal", Standardizer(np.zeros(1), np.full(1, 1e4))))
    with pytest.raises(NumericalError, match=r"the model cannot predict X: the prediction of row \d+ is not finite"):
        steep.distribution(X)
    save(with_member(steep, spec=spec_of(likelihood="log-normal")), tmp_path / "m")
    with pytest.raises(NumericalError, match="is not finite") as caught:
        load(tmp_path / "m").predictions(Table("X", array=X, numbers=np.arange(1000, 1000 + len(X))), interval=0.9)
    assert_names_the_file(caught.value, tmp_path / "m")
    assert int(re.search(r"row (\d+)", str(caught.value)).group(1)) >= 1000


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h["members"][0]["model"].update(num_inputs=HUGE),
        lambda h: h["members"][0]["model"].update(num_inputs=-3),
        lambda h: h["outcome"].update(names=["y"] * 100_000),
        lambda h: h["outcome"].update(names=[]),
        lambda h: h["outcome"].update(names=[True]),
        lambda h: h["members"][0]["model"].update(has_own_features="none"),
        lambda h: h["members"][0]["model"].update(has_own_features=True),
        lambda h: h.update(version=True),
        lambda h: h.update(version=-1),
        lambda h: h.update(version="1"),
        lambda h: h.update(format="dspp-checkpoint"),
        lambda h: h.update(feature_names=["a"]),
        lambda h: h["outcome"].update(names=None),
        lambda h: h["members"][0].update(history={}),
        lambda h: h["members"][0].update(history=[[]]),
        lambda h: h["members"][0]["history"][0].pop("seconds"),
        lambda h: h["members"][0]["history"][0].update(number=None),
        lambda h: h["members"][0]["history"][0].update(objective="0.1"),
        lambda h: h["members"][0].update(best_epoch=9),
        lambda h: h.update(metrics={"nll": "low"}),
        lambda h: h.update(metrics={"nll": 10**4000}),
        lambda h: h.update(notes="none"),
        lambda h: h.update(versions={"dspp": 1}),
        lambda h: h["members"][0].update(seconds=math.inf),
        lambda h: h["members"][0]["model"].update(jitter_increases=[0]),
        lambda h: h["members"][0]["model"].update(jitter_increases=[0, -1]),
        lambda h: h.update(num_rows="40"),
        lambda h: h["members"][0].update(spec=[]),
        lambda h: h["members"][0]["spec"].pop("objective"),
        lambda h: h["members"][0]["train"].update(epochs=0),
        lambda h: h["members"][0]["train"].update(milestones=[[1]]),
        lambda h: h["members"][0]["train"].update(learning_rate=math.inf),
    ],
)
def test_a_wrong_header_is_refused(change, good, tmp_path):
    refusal(tmp_path / "m", with_header(good, change))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        '"dspp-model"',
        "{",
        "[" * 100_000,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
        '{"format": "dspp-model", "version": 1}',
        '{"format": "dspp-model", "version": 1, "spec": ' + "[" * 900 + "]" * 900 + "}",
        '{"version": ' + "9" * 5000 + "}",
        "{} " * 10,
        "[" + "{}," * 300_000 + "{}]",
    ],
    ids=lambda t: t[:20],
)
def test_a_header_that_is_no_header(text, good, tmp_path):
    outer, _, body = apart(good)
    refusal(tmp_path / "m", together(outer, None, body, text=text))


def test_a_key_given_twice_cannot_hide_a_lie(good, tiny, tmp_path):
    """The last one counts, for every reader: the checks see what the model is made of."""
    outer, inner, body = apart(good)
    text = json.dumps(inner)
    twice = text.replace('"width": 2', '"width": 1000000000, "width": 2', 1)
    (tmp_path / "m").write_bytes(together(outer, None, body, text=twice))
    assert bits(load(tmp_path / "m").distribution(X)) == bits(tiny.distribution(X))
    refusal(tmp_path / "m", together(outer, None, body, text=text.replace('"width": 2', '"width": 2, "width": 3', 1)))
    head = json.dumps({**outer, "__metadata__": {"dspp": text}})
    name = "members.0.model.layers.0.q.mean"
    lie = json.dumps({name: {**outer[name], "shape": [HUGE, HUGE]}})[1:-1]
    for double in (f"{{{lie},{head[1:]}", f"{head[:-1]},{lie}}}"):
        (tmp_path / "m").write_bytes(struct.pack("<Q", len(double)) + double.encode() + body)
        with contextlib.suppress(ModelFileError):
            assert bits(load(tmp_path / "m").distribution(X)) == bits(tiny.distribution(X))


# ---------------------------------------------------------------- files of other kinds (promise 24)


class _Canary:
    """Sings when it is unpickled."""

    def __init__(self, song: Path) -> None:
        self.song = song

    def __reduce__(self):
        return os.mkdir, (str(self.song),)


def zipped(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


def foreign_files(song: Path) -> dict[str, bytes]:
    canary = pickle.dumps(_Canary(song))
    torch_zip, torch_old = io.BytesIO(), io.BytesIO()
    torch.save(_Canary(song), torch_zip)
    torch.save(_Canary(song), torch_old, _use_new_zipfile_serialization=False)
    array = io.BytesIO()
    np.save(array, np.array([_Canary(song)], dtype=object), allow_pickle=True)
    png = Path(__file__).parents[2] / "docs" / "report.png"
    return {
        "pickle": canary,
        "torch zip": torch_zip.getvalue(),
        "torch, old": torch_old.getvalue(),
        "numpy": array.getvalue(),
        "pickle as the header": struct.pack("<Q", len(canary)) + canary,
        "gzip": gzip.compress(canary),
        "gzip bomb": gzip.compress(bytes(20_000_000)),
        "zip bomb": zipped("model.dspp", bytes(20_000_000)),
        "png": png.read_bytes(),
        "python": b"import os\nos.mkdir('song')\n",
        "zeros": bytes(10_000),
        "ones": b"\xff" * 10_000,
        "empty": b"",
        "short": b"\x01\x02",
    }


def test_the_canary_can_sing(tmp_path):
    pickle.loads(foreign_files(tmp_path / "song")["pickle"])
    assert (tmp_path / "song").exists()


def test_files_of_other_kinds_run_nothing(tmp_path):
    for data in foreign_files(tmp_path / "song").values():
        refusal(tmp_path / "model.dspp", data)
    assert not (tmp_path / "song").exists()


def test_what_is_no_file_is_named(tmp_path):
    with pytest.raises(ModelFileError, match="folder"):
        load(tmp_path)
    with pytest.raises(ModelFileError, match="does not exist"):
        load(tmp_path / "none.dspp")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ModelFileError, match="loop"):
        load(tmp_path / "loop")


# ---------------------------------------------------------------- hostile bytes (promise 25)

VALUES = [
    *(0, -1, 1, 2, 3, 5, HUGE, 10**18, 2**63, 10**30, -HUGE, 0.5, -0.0, 1e308, math.nan, math.inf, "5", "", "qr1"),
    *("dspp-model", "float64", "full", "monte-carlo", None, True, [], {}, [HUGE], [1, 2], [[]], {"a": 1}, "x" * 3000),
]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from places(value[key])


def edit(values: Any, rng: np.random.Generator) -> None:
    """Replace or remove something, anywhere."""
    everywhere = list(places(values))
    for _ in range(rng.integers(1, 3)):
        container, key = everywhere[rng.integers(len(everywhere))]
        with contextlib.suppress(KeyError, IndexError):  # removed before
            if isinstance(container, dict) and rng.random() < 0.2:
                del container[key]
            else:
                container[key] = VALUES[rng.integers(len(VALUES))]


def flip_bits(data: bytes, rng: np.random.Generator, start: int = 0, end: int | None = None) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.integers(1, 20)):
        changed[rng.integers(start, end or len(data))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def flip_header_bits(data: bytes, rng: np.random.Generator) -> bytes:
    return flip_bits(data, rng, 0, 8 + struct.unpack("<Q", data[:8])[0])


def cut(data: bytes, rng: np.random.Generator) -> bytes:
    a, b = sorted(rng.integers(0, len(data), 2))
    return [data[:a], data[b:], data[:a] + data[b:], data[:b] + data[a:]][rng.integers(4)]


def lie_about_length(data: bytes, rng: np.random.Generator) -> bytes:
    length = [0, 1, 2**32, 2**63, 2**64 - 1, len(data), int(rng.integers(len(data)))][rng.integers(7)]
    return struct.pack("<Q", length) + data[8:]


def edit_settings(data: bytes, rng: np.random.Generator) -> bytes:
    return with_header(data, lambda header: edit(header, rng))


def edit_entries(data: bytes, rng: np.random.Generator) -> bytes:
    """Lies about tensors: shapes, dtypes, offsets that overlap or leave the file, tensors missing or exchanged."""
    outer, inner, body = apart(data)
    names = [name for name in outer if name != "__metadata__"]
    a, b = (names[i] for i in rng.integers(len(names), size=2))
    kind = rng.integers(4)
    if kind == 0:
        outer[a]["data_offsets"] = outer[b]["data_offsets"]
    elif kind == 1:
        outer[a], outer[b] = outer[b], outer[a]
    elif kind == 2:
        outer[a]["dtype"] = ["F64", "F16", "BF16", "I32", "BOOL", "F8_E4M3", "C64", "X", 5][rng.integers(9)]
    else:
        entries = {name: outer[name] for name in names}
        edit(entries, rng)
        outer = entries
    return together(outer, inner, body)


def spoil_numbers(data: bytes, rng: np.random.Generator) -> bytes:
    """NaN, inf, huge and tiny numbers among the weights, with a header that is right."""
    outer, inner, body = apart(data)
    content = bytearray(body)
    patterns = [b"\x00\x00\xc0\x7f", b"\x00\x00\x80\xff", b"\xff\xff\x7f\x7f", b"\x01\x00\x00\x00", b"\xff\xff\xff\xff"]
    for _ in range(rng.integers(1, 4)):
        at = 4 * int(rng.integers(len(body) // 4))
        content[at : at + 4] = patterns[rng.integers(len(patterns))]
    return together(outer, inner, bytes(content))


NUMBERS = {  # by type: how they are packed, and some that are odd
    "F32": ("<f", [0.0, 1e-40, 3e38, -3e38, 1e30, -1e30, 1e17, -1e5, 1e5, math.nan, math.inf]),
    "F64": ("<d", [0.0, 5e-324, 1e-300, 1e308, -1e308, 1e300, -1e30, 1e30, 1e17, 1e5, -1e5, math.nan, -math.inf]),
    "I32": ("<i", [0, -1, 5, 2**31 - 1]),
    "I64": ("<q", [0, -1, 7, 2**62]),
}


def replace_numbers(data: bytes, rng: np.random.Generator) -> bytes:
    """Odd numbers in their own types, so that small tensors, such as scales, are as likely to change as large ones."""
    outer, inner, body = apart(data)
    names = [name for name in outer if name != "__metadata__" and len(range(*outer[name]["data_offsets"]))]
    content = bytearray(body)
    for name in rng.choice(names, rng.integers(1, 4)):
        code, values = NUMBERS[outer[name]["dtype"]]
        first, end = outer[name]["data_offsets"]
        at = rng.choice(range(first, end, struct.calcsize(code)))
        struct.pack_into(code, content, at, values[rng.integers(len(values))])
    return together(outer, inner, bytes(content))


MUTATIONS = [
    *(flip_bits, flip_header_bits, cut, lie_about_length, edit_settings, edit_entries),
    *(spoil_numbers, replace_numbers),
]


def survive(data: bytes, path: Path, count: int, seed: int, rows: np.ndarray = X) -> dict[str, list[bool]]:
    """Try `count` mutants, half of those of bits with a digest that matches; return which loaded, by mutation."""
    outcomes: dict[str, list[bool]] = {mutation.__name__: [] for mutation in MUTATIONS}
    for i in range(count):
        rng = np.random.default_rng([seed, i])
        mutate = MUTATIONS[i % len(MUTATIONS)]
        mutant = mutate(data, rng)
        with contextlib.suppress(Exception):  # what cannot be taken apart has no digest
            mutant = together(*apart(mutant)) if rng.random() < 0.5 else mutant
        path.write_bytes(mutant)
        outcomes[mutate.__name__].append(is_harmless(path, rows, renamed=mutate is edit_settings))
    return outcomes


def is_harmless(path: Path, rows: np.ndarray, renamed: bool) -> bool:
    """Whether a file loads; every other end than finite predictions must be an error that names it.

    Args:
        path: The file.
        rows: To predict.
        renamed: Whether it may be a model of other columns.
    """
    loaded = problem = None
    try:
        loaded = load(path)
        columns = loaded.predictions(Table("X", array=rows), (0.05, 0.5, 0.95), 0.8)
    except (ModelFileError, NumericalError, InputError) as error:
        problem = error
    if loaded is None:
        assert isinstance(problem, ModelFileError)
        assert str(path) in str(problem)
    elif isinstance(problem, NumericalError):
        assert_names_the_file(problem, path)
    elif problem is not None:
        assert renamed
    else:
        unknown = ("_lower", "_upper") if loaded.why_infinite(0.8) else ()
        assert all(np.isfinite(values).all() for name, values in columns.items() if not name.endswith(unknown))
    return loaded is not None


@pytest.fixture(scope="module")
def with_everything(tmp_path_factory) -> bytes:
    """A file with features, three outputs, a mean basis and an encoder: more to go wrong in."""
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "c": X[:, 2]})
    path = tmp_path_factory.mktemp("more") / "m.dspp"
    encoder = TableEncoder.fit(table)
    ends = np.stack([X.min(0), X.max(0)])
    save(fitted_of(spec_of("nn+dspp", mean_inducing=4), Y3, encoder=encoder, input_range=ends), path)
    return path.read_bytes()


def test_500_mutants_are_harmless(good, with_everything, tmp_path):
    outcomes = survive(good, tmp_path / "m", 400, seed=1)
    more = survive(with_everything, tmp_path / "m", 160, seed=2)
    loaded = {name: sum(outcomes[name] + more[name]) for name in outcomes}
    tried = {name: len(outcomes[name] + more[name]) for name in outcomes}
    assert sum(tried.values()) >= 500
    assert loaded["cut"] == loaded["lie_about_length"] == 0, loaded
    assert sum(loaded.values()) < 0.25 * sum(tried.values()), "most lies are found out"
    assert loaded["edit_settings"] > 0, "some change nothing that matters; if none loaded, the edits would be too crude"


@pytest.mark.long
def test_10_000_mutants_are_harmless(good, with_everything, tmp_path):
    survive(good, tmp_path / "m", 6000, seed=3)
    survive(with_everything, tmp_path / "m", 4000, seed=4)


# ---------------------------------------------------------------- memory (promise 25)

MEASURE = """
import os, resource, sys, time
import torch
torch.set_num_threads(1)
from dspp.errors import ModelFileError
from dspp.modelfile import load

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

load(sys.argv[1])  # what is loaded on first use does not count
for path in sys.argv[2:]:
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
        before, begin = peak(), time.perf_counter()
        try:
            load(path)
            what = "loaded"
        except ModelFileError:
            what = "refused"
        except BaseException as problem:
            what = type(problem).__name__
        os.write(into, f"{what} {peak() - before} {time.perf_counter() - begin}".encode())
        os._exit(0)
    os.close(into)
    print(os.read(out, 1000).decode() or "died 0 0", flush=True)
    os.waitpid(child, 0)
"""


def lists_in_disguise(good: bytes) -> bytes:
    """As many objects as fit into a header, with the brackets that open them escaped."""
    outer, _, body = apart(good)
    outer["__metadata__"] = {"dspp": "@"}
    escaped = "[" + r"\u007B\"\":0}," * 550_000 + "0]"
    head = json.dumps(outer).replace("@", escaped).encode()
    return struct.pack("<Q", len(head)) + head + body


def worst_files(good: bytes) -> dict[str, bytes]:
    """The files that would take most: by what they claim, by what they hold, by what parsing makes of them."""
    outer, _, body = apart(good)
    many = {f"members.0.model.{i}": torch.zeros(0) for i in range(10_000)}
    deep = {"features": [1] * 980}
    scores = torch.linspace(0, 0.5, 4_000_000, dtype=torch.float64)[:, None]
    points = {"members.0.model.layers.0.inducing_points": torch.zeros(2, 1_000_000, 3)}
    return {
        "M": with_header(good, lambda h: h["members"][0]["spec"]["model"].update(inducing=HUGE)),
        "all sizes": with_header(
            good, lambda h: h["members"][0]["spec"]["model"].update(dict.fromkeys(limits.SIZES, HUGE))
        ),
        "full, M of a million": with_tensors(
            with_header(good, lambda h: h["members"][0]["spec"]["model"].update(covariance="full", inducing=1_000_000)),
            points,
        ),
        "empty but wide": with_tensors(good, {"members.0.model.layers.0.inducing_points": torch.zeros(10**7, 5, 0)}),
        "10,000 tensors": with_tensors(good, many),
        "980 feature layers": with_tensors(
            with_header(good, lambda h: h["members"][0]["spec"]["model"].update(deep)), dict(list(many.items())[:4_900])
        ),
        "4 million scores": with_tensors(good, {"conformal": scores}),
        "notes": with_header(good, lambda h: h.update(notes=[{"subject": "", "text": "n"}] * 100_000)),
        "history": with_header(good, lambda h: h["members"][0].update(history=[{"a": 1}] * 130_000)),
        "wide text": with_header(good, lambda h: h.update(notes=[{"subject": "", "text": "\U0001f600" * 300_000}])),
        "lists in disguise": lists_in_disguise(good),
        "100 members of one": with_header(good, lambda h: h.update(members=h["members"] * 100, weights=[0.01] * 100)),
        "50 MB of header": struct.pack("<Q", 50_000_000) + b'{"a":' + b"[" * 49_999_995,
        "long list": together(outer, None, body, text="[" + "1e9," * 1_900_000 + "0]"),
    }


def largest_tried(tmp_path: Path) -> bytes:
    """A model just below the size up to which `load` factorises."""
    rows = np.random.default_rng(0).normal(size=(770, 2))
    spec = preset("svgp", inducing=770)
    model = build(spec.model, torch.tensor(rows).float())
    assert limits.cheap_to_factorise([model])
    scale = Standardizer.fit(rows)
    fitted = replace(with_member(fitted_of(spec_of()), spec=spec, model=model), scale_X=scale, feature_names=None)
    save(fitted, tmp_path / "largest")
    return (tmp_path / "largest").read_bytes()


def most_members(tmp_path: Path) -> bytes:
    """As many members as there may be, which `load` factorises all."""
    fitted = fitted_of(spec_of())
    assert limits.cheap_to_factorise([fitted.members[0].model] * container.MAX_MEMBERS)
    count = container.MAX_MEMBERS
    save(replace(fitted, members=fitted.members * count, weights=(1 / count,) * count), tmp_path / "most")
    return (tmp_path / "most").read_bytes()


def test_no_file_takes_more_than_twice_its_size_and_100_mb(good, tmp_path):
    files = {
        **worst_files(good),
        "largest tried": largest_tried(tmp_path),
        "most members": most_members(tmp_path),
    }
    paths = [tmp_path / f"file-{i}" for i in range(len(files))]
    (tmp_path / "good").write_bytes(good)
    for path, data in zip(paths, files.values(), strict=True):
        path.write_bytes(data)
    command = [sys.executable, "-c", MEASURE, str(tmp_path / "good"), *map(str, paths)]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == len(files), run.stdout + run.stderr
    for (name, data), line in zip(files.items(), lines, strict=True):
        what, grown, seconds = line.split()
        expected = (
            "loaded"
            if name in ("4 million scores", "notes", "wide text", "largest tried", "most members")
            else "refused"
        )
        assert what == expected, (name, line)
        assert int(grown) <= 2 * len(data) + 100_000_000, (name, len(data), line)
        assert float(seconds) < 10, (name, line)
    for path in paths:
        path.unlink()


def test_the_limits_of_the_header_leave_room():
    """A table of 5,000 columns, each with a name of 40 letters, fits."""
    columns = [{"name": "c" * 40, "kind": "number", "missing": False, "fill": 0.123456789012345678}] * 5000
    text = json.dumps({"encoder": columns, "feature_names": ["c" * 40] * 5000})
    assert len(json.dumps(text)) < storage.MAX_HEADER_BYTES / 2
    assert storage.count_values(text.encode()) < storage.MAX_HEADER_VALUES / 2


def test_loading_does_not_wait_for_torch_s_compiler(tmp_path):
    paths = []
    for name, outputs in (("dspp", 1), ("svgp", 2), ("dgp", 1), ("od-svgp", 1)):
        spec = preset(name, inducing=4)
        model = build(spec.model, torch.randn(20, 2, generator=torch.Generator().manual_seed(0)), outputs)
        scale_X, scale_y = (
            Standardizer(np.zeros(2), np.ones(2)),
            Standardizer(*(np.full(outputs, v) for v in (0.0, 1.0))),
        )
        names = ("y",) if outputs == 1 else ("a", "b")
        changes = {
            "scale_X": scale_X,
            "outcome": Real(names, "gaussian", scale_y),
            "feature_names": None,
        }
        fitted = replace(with_member(fitted_of(spec_of()), spec=spec, model=model), **changes)
        paths.append(str(tmp_path / name))
        save(fitted, paths[-1])
    code = "import sys\nfrom dspp.modelfile import load\nfor p in sys.argv[1:]: load(p)\nprint('sympy' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True)
    assert run.stdout == "False\n", run.stderr

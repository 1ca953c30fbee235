"""Ensembles in files: the same bits after loading, and nothing but a ModelFileError whatever a file claims."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dspp import DSPPRegressor, modelfile
from dspp.codec import pack
from dspp.errors import InputError, ModelFileError
from dspp.estimators import load
from dspp.guard import Guard
from tests.members.ensembles import TINY, X, Y, bits
from tests.modelfile.test_modelfile import MUTATIONS, apart, survive, with_header, with_tensors

F64 = torch.float64
MASKS = torch.zeros(1, 31, dtype=torch.int64)


@pytest.fixture(scope="module")
def model(two_folds: None) -> DSPPRegressor:
    estimator = DSPPRegressor(**TINY).fit(X, Y)
    estimator.fitted_ = replace(estimator.fitted_, variance_scale=1.3)
    return estimator


@pytest.fixture(scope="module")
def saved(model: DSPPRegressor, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "m.dspp"
    model.save(path)
    return path.read_bytes()


def test_predictions_are_the_same_bits_after_loading(model: DSPPRegressor, saved: bytes, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(saved)
    loaded = load(tmp_path / "m")
    before, after = model.fitted_, loaded.fitted_
    assert bits(loaded.fitted_.distribution(X)) == bits(model.fitted_.distribution(X))
    assert (after.weights, after.variance_scale, after.scored, after.metrics) == (
        *(before.weights, before.variance_scale, before.scored, before.metrics),
    )
    assert [member.kind for member in after.members] == [member.kind for member in before.members]
    assert after.guard is not None
    assert before.guard is not None
    assert after.guard.weight == before.guard.weight
    for name in ("log_weights", "mean", "var"):
        assert torch.equal(getattr(after.guard, name), getattr(before.guard, name))
    assert len(after.trees) == len(before.trees) == 1
    for name, value in pack(before.trees[0])[0].items():
        assert torch.equal(pack(after.trees[0])[0][name], value)
    assert loaded.get_params()["members"] == "auto"
    modelfile.save(after, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == saved


def test_corrections_change_predictions(model: DSPPRegressor) -> None:
    """So that the bits above say something about each of them."""
    fitted = model.fitted_
    assert fitted.guard is not None
    trees = tuple(replace(one, base=one.base + 1.0) for one in fitted.trees)
    heavier = replace(fitted.guard, weight=2 * fitted.guard.weight)
    for changed in (replace(fitted, variance_scale=1.0), replace(fitted, guard=heavier), replace(fitted, trees=trees)):
        assert bits(changed.distribution(X)) != bits(fitted.distribution(X))


HEADERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{
        f"variance_scale {value!r}": lambda h, value=value: h.update(variance_scale=value)
        for value in (0, 0.0, -1.0, math.nan, math.inf, -math.inf, 10**400, 1e-400, 1e-4, 1e4, "1", None, True, [1.0])
    },
    **{
        f"guard {value!r}": lambda h, value=value: h.update(guard=value)
        for value in (0, 1, 0.0, 1.0, 0.9, -0.1, 1.1, math.nan, math.inf, 10**400, "0.01", True, {})
    },
    **{
        f"trees {value!r}": lambda h, value=value: h.update(trees=value)
        for value in (None, 1, "yes", {}, False, [], [{}], [None])
    },
    **{
        f"kind {value!r}": lambda h, value=value: h["members"][0].update(kind=value)
        for value in ("", "tree", None, 3, ["plain"], "trees")
    },
    "trees member is plain": lambda h: h["members"][2].update(kind="plain"),
    "scored": lambda h: h.update(scored=3),
    **{
        f"no {name}": lambda h, name=name: h.pop(name)
        for name in ("variance_scale", "guard", "trees", "scored", "weights")
    },
}


@pytest.mark.parametrize("change", HEADERS.values(), ids=HEADERS.keys())
def test_headers_that_cannot_be_true(change: Callable[[dict[str, Any]], Any], saved: bytes, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(with_header(saved, change))
    with pytest.raises(ModelFileError):
        modelfile.load(tmp_path / "m")


def tensors_of(saved: bytes, prefix: str) -> list[str]:
    return [name for name in apart(saved)[0] if name.startswith(prefix)]


TENSORS: dict[str, dict[str, torch.Tensor | None]] = {
    "guard of float32": {"guard.mean": torch.zeros(4, 1)},
    "guard of integers": {"guard.mean": torch.zeros(4, 1, dtype=torch.int64)},
    "guard of a scalar": {"guard.log_weights": torch.tensor(0.0, dtype=F64)},
    "guard without components": {
        "guard.log_weights": torch.zeros(0, dtype=F64),
        "guard.mean": torch.zeros(0, 1, dtype=F64),
        "guard.var": torch.ones(0, 1, dtype=F64),
    },
    "guard of many components": {
        "guard.log_weights": torch.full((1000,), -math.log(1000), dtype=F64),
        "guard.mean": torch.zeros(1000, 1, dtype=F64),
        "guard.var": torch.ones(1000, 1, dtype=F64),
    },
    "guard of two outputs": {"guard.mean": torch.zeros(4, 2, dtype=F64), "guard.var": torch.ones(4, 2, dtype=F64)},
    "weights of the guard that sum to two": {"guard.log_weights": torch.full((4,), math.log(0.5), dtype=F64)},
    "an unknown tensor of the guard": {"guard.more": torch.zeros(1, dtype=F64)},
    "an unknown tensor of the trees": {"trees.0.more": torch.zeros(1, dtype=F64)},
    "columns of trees as floats": {"trees.0.feature": torch.zeros(3, 31, dtype=F64)},
    "masks of trees as int64": {"trees.0.left_leaves": MASKS},
    "thresholds of one tree": {"trees.0.threshold": torch.zeros(1, 31, dtype=F64)},
    "values of a scalar": {"trees.0.value": torch.tensor(1.0, dtype=F64)},
    "base of a vector": {"trees.0.base": torch.zeros(2, dtype=F64)},
    "base NaN": {"trees.0.base": torch.tensor(math.nan, dtype=F64)},
    "base far from all targets": {"trees.0.base": torch.tensor(1e20, dtype=F64)},
}


@pytest.mark.parametrize("tensors", TENSORS.values(), ids=TENSORS.keys())
def test_tensors_that_cannot_be_true(tensors: dict[str, torch.Tensor | None], saved: bytes, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(with_tensors(saved, tensors))
    with pytest.raises(ModelFileError):
        modelfile.load(tmp_path / "m")


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 0.0, -1.0, 1e-9, 1e40])
def test_variances_of_the_guard_are_positive(wrong: float, model: DSPPRegressor, saved: bytes, tmp_path: Path) -> None:
    assert model.fitted_.guard is not None
    var = model.fitted_.guard.var.clone()
    var[0] = wrong
    (tmp_path / "m").write_bytes(with_tensors(saved, {"guard.var": var}))
    with pytest.raises(ModelFileError):
        modelfile.load(tmp_path / "m")


def test_mutants_are_harmless(saved: bytes, tmp_path: Path) -> None:
    """Promise 25, for guard, trees, warp and several members too."""
    outcomes = survive(saved, tmp_path / "m", 30 * len(MUTATIONS), seed=5, rows=X)
    assert 0 < sum(map(sum, outcomes.values())) < 0.3 * sum(map(len, outcomes.values())), outcomes


@pytest.mark.long
def test_4_000_mutants_are_harmless(saved: bytes, tmp_path: Path) -> None:
    survive(saved, tmp_path / "m", 4_000, seed=6, rows=X)


@pytest.mark.parametrize(
    "params",
    [{"missing": "5"}, {"missing": None}, {"random_state": "full"}],
    ids=str,
)
def test_parameters_that_predictions_read_are_checked(params: dict[str, Any], saved: bytes, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(with_header(saved, lambda h: h["params"].update(params)))
    with pytest.raises(ModelFileError, match="m is damaged"):
        load(tmp_path / "m")


@pytest.mark.parametrize("prefix", ["guard.", "trees."])
def test_the_header_and_the_tensors_agree(prefix: str, saved: bytes, tmp_path: Path) -> None:
    """A flag without tensors, tensors without the flag, and each tensor missing alone."""
    names = tensors_of(saved, prefix)
    assert len(names) >= 3
    cases = [with_tensors(saved, dict.fromkeys(names)), *(with_tensors(saved, {name: None}) for name in names)]
    without: dict[str, Any] = {"guard.": {"guard": None}, "trees.": {"trees": []}}[prefix]

    def plain(header: dict[str, Any]) -> None:
        header.update(without)

    cases.append(with_header(saved, plain))
    for data in cases:
        (tmp_path / "m").write_bytes(data)
        with pytest.raises(ModelFileError):
            modelfile.load(tmp_path / "m")


def test_trees_that_nobody_reads_are_refused(two_folds: None, saved: bytes, tmp_path: Path) -> None:
    DSPPRegressor(**TINY, members=2).fit(X, Y).save(tmp_path / "m")
    data = (tmp_path / "m").read_bytes()
    modelfile.load(tmp_path / "m")
    (tmp_path / "m").write_bytes(with_tensors(data, {"trees.base": torch.zeros((), dtype=F64)}))
    with pytest.raises(ModelFileError, match="not a tensor of this file"):
        modelfile.load(tmp_path / "m")


@pytest.mark.parametrize("members", [None, 3, "ab", {}, [3], [[]]])
def test_members_of_another_form_are_refused(members: Any, saved: bytes, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(with_header(saved, lambda header: header.update(members=members)))
    with pytest.raises(ModelFileError):
        modelfile.load(tmp_path / "m")


def test_objects_check_themselves_too(model: DSPPRegressor) -> None:
    fitted = model.fitted_
    assert fitted.guard is not None
    for weight in (0.0, 1.0, -0.5, math.nan):
        with pytest.raises(InputError, match="guard"):
            replace(fitted.guard, weight=weight)
    for variance_scale in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="variance_scale"):
            replace(fitted, variance_scale=variance_scale)
    with pytest.raises(InputError, match="trees"):
        replace(fitted, trees=())
    with pytest.raises(InputError, match="guard"):
        Guard(0.1, fitted.guard.log_weights, fitted.guard.mean[:1], fitted.guard.var)

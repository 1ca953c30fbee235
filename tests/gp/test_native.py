"""Compiled moments and gradients are torch's up to rounding, and torch's are used where there is no compiled code."""

import dataclasses
import pickle
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dspp.gp import conditional as hot_path
from dspp.gp import native
from dspp.gp.conditional import Frozen, conditional
from dspp.gp.kernels import KERNELS, RBF, Matern52, available
from dspp.gp.linalg import factorise

compiled = pytest.mark.skipif(native.load() is None, reason="there is no C++ compiler")


@pytest.fixture
def fresh() -> Iterator[None]:
    """Look for the compiled code anew, in this test and after it."""
    native.load.cache_clear()
    yield
    native.load.cache_clear()


def frozen(kind: str = "matern52", M: int = 40, D: int = 3, full: bool = False) -> Frozen:
    g = torch.Generator().manual_seed(M + D)
    z, m = torch.randn(2, M, D, generator=g) / D**0.5, torch.randn(2, M, generator=g)
    C = 0.5 + torch.rand(2, M, generator=g)  # S on both sides of 1
    if full:
        C = torch.diag_embed(C) + 0.1 * torch.randn(2, M, M, generator=g).tril()
    t2 = KERNELS[kind].factor * (z.unsqueeze(-2) - z.unsqueeze(-3)).double().square().sum(-1)
    solved = factorise(KERNELS[kind].value(t2), 1e-3, "here")
    scaled = z * KERNELS[kind].factor ** 0.5
    return Frozen.make(KERNELS[kind], scaled, solved.inverse_root.float(), m, C, solved.jitter.float())


def rows(R: int, D: int = 3) -> torch.Tensor:
    return 2 * torch.randn(2, R, D, generator=torch.Generator().manual_seed(R))


@compiled
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("M", "D", "R"), [(1, 1, 1), (5, 2, 11), (16, 70, 12), (100, 8, 333), (300, 3, 500)])
@pytest.mark.parametrize("kind", KERNELS)
def test_compiled_moments_are_those_of_torch(kind: str, M: int, D: int, R: int, full: bool) -> None:
    points = frozen(kind, M, D, full)
    assert points.packed is not None
    x = rows(R, D)
    for got, want in zip(points.moments(x), dataclasses.replace(points, packed=None).moments(x), strict=True):
        assert torch.allclose(got, want, rtol=1e-4, atol=2e-4), (got - want).abs().max()


@compiled
def test_compiled_moments_are_as_exact_as_those_of_torch() -> None:
    points, x = frozen(M=300), rows(500)
    exact = Frozen(
        **{
            field.name: value.double() if isinstance(value, torch.Tensor) else value
            for field in dataclasses.fields(points)
            for value in [getattr(points, field.name)]
        }
        | {"packed": None}
    ).moments(x.double())
    fast, slow = points.moments(x), dataclasses.replace(points, packed=None).moments(x)
    for i in (0, 1):
        assert (fast[i] - exact[i]).abs().max() < 2 * (slow[i] - exact[i]).abs().max() + 1e-6


def gradients(
    kind: str, R: int, M: int, D: int, full: bool, dtype: torch.dtype, **needs: bool
) -> dict[str, torch.Tensor]:
    """Moments of `conditional`, and gradients of a function of them that no sign or factor leaves as it is."""
    g = torch.Generator().manual_seed(R + M)
    values = {
        "x": 2 * torch.randn(2, R, D, generator=g),
        "z": torch.randn(2, M, D, generator=g),
        "m": torch.randn(2, M, generator=g),
        "C": 0.5 + torch.rand(2, M, generator=g),
    }
    if full:
        values["C"] = torch.diag_embed(values["C"]) + 0.1 * torch.randn(2, M, M, generator=g).tril()
    leaves = {name: value.to(dtype).requires_grad_(needs.get(name, True)) for name, value in values.items()}
    z64 = leaves["z"].double()
    K = KERNELS[kind].value((z64.unsqueeze(-2) - z64.unsqueeze(-3)).square().sum(-1))
    solved = factorise(K, 1e-2, "here")
    given = (solved.inverse_root.to(dtype), leaves["m"], leaves["C"], solved.jitter.to(dtype))
    mean, var = conditional(KERNELS[kind], leaves["x"], leaves["z"], K, *given)
    weights = torch.randn(2, 2, R, generator=g).to(dtype)
    (weights[0] * mean.sin() + weights[1] * var).sum().backward()
    found = {"mean": mean.detach(), "var": var.detach()}
    return found | {f"d{name}": leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


@compiled
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(("R", "M", "D"), [(1, 1, 1), (13, 5, 2), (96, 32, 3), (97, 40, 9), (700, 300, 4)])
@pytest.mark.parametrize("kind", KERNELS)
def test_compiled_gradients_are_as_exact_as_those_of_torch(
    kind: str, R: int, M: int, D: int, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast = gradients(kind, R, M, D, full, torch.float32)
    exact = gradients(kind, R, M, D, full, torch.float64)
    monkeypatch.setattr(hot_path, "available", lambda *_: False)
    slow = gradients(kind, R, M, D, full, torch.float32)
    assert fast.keys() == exact.keys() == {"mean", "var", "dx", "dz", "dm", "dC"}
    for name, want in exact.items():
        allowed = 3 * (slow[name] - want).norm() + 1e-5 * want.norm()
        assert (fast[name] - want).norm() <= allowed, name


@compiled
@pytest.mark.parametrize("full", [False, True])
def test_gradients_have_the_same_bits_on_any_number_of_threads(full: bool) -> None:
    case = ("matern52", 700, 100, 4, full, torch.float32)
    expected = gradients(*case)
    for threads in (2, 3):
        torch.set_num_threads(threads)
        try:
            found = gradients(*case)
        finally:
            torch.set_num_threads(1)
        for name in ("mean", "var", "dx", "dm"):  # others include products by torch
            assert torch.equal(found[name], expected[name]), name


@compiled
def test_rows_that_need_no_gradient_get_none_and_change_no_other() -> None:
    case = ("matern52", 50, 40, 3, False, torch.float32)
    expected, found = gradients(*case), gradients(*case, x=False)
    del expected["dx"]
    assert found.keys() == expected.keys()
    for name, want in expected.items():
        assert torch.equal(found[name], want), name


@compiled
def test_a_graph_can_be_used_twice_and_others_may_wait_meanwhile() -> None:
    def start(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        points = frozen()
        x = (rows(30) + seed).requires_grad_()
        eye = torch.eye(40).expand(2, 40, 40)
        mean, var = conditional(
            Matern52, x, points.z[:, :40], eye, eye, points.m[:, :40], points.m[:, :40], points.jitter
        )
        return x, mean.sum() + var.square().sum()

    graphs = [start(seed) for seed in range(4)]
    first = [torch.autograd.grad(value, x, retain_graph=True)[0] for x, value in graphs]
    again = [torch.autograd.grad(value, x)[0] for x, value in reversed(graphs)]
    for one, two in zip(first, reversed(again), strict=True):
        assert torch.equal(one, two)
    with torch.no_grad():
        assert start(0)[1] == graphs[0][1]


@pytest.mark.parametrize("M", [1, 5, 40, 100, 300])
@pytest.mark.parametrize(("lowest", "triangular"), [(0.1, True), (0.6, True), (0.9, False), (1.0, True)])
def test_a_full_covariance_that_training_has_narrowed_needs_a_triangle(lowest: float, triangular: bool, M: int) -> None:
    """Roots of S from `lowest` to 1.2, or S = 1; with few of them above 1, half of the product is skipped."""
    g = torch.Generator().manual_seed(M)
    z, m, x = torch.randn(2, M, 3, generator=g), torch.randn(2, M, generator=g), rows(50)
    roots = torch.linspace(lowest, 1.2, M) if lowest < 1 else torch.ones(M)
    U = torch.linalg.qr(torch.randn(2, M, M, generator=g)).Q
    S = U @ torch.diag_embed(roots.square()) @ U.mT
    C = torch.linalg.cholesky(S.double()).float()
    K = Matern52.value((z.unsqueeze(-2) - z.unsqueeze(-3)).double().square().sum(-1))
    solved = factorise(K, 1e-3, "here")
    points = Frozen.make(Matern52, z, solved.inverse_root.float(), m, C, solved.jitter.float())
    assert points.triangular == triangular or M < 40
    exact = hot_path.plain(Matern52, x.double(), z.double(), K, m.double(), (C @ C.mT).double(), solved.jitter)
    for packed in (points.packed, None):
        mean, var = dataclasses.replace(points, packed=packed).moments(x)
        assert torch.allclose(mean.double(), exact[0], atol=3e-4), (mean - exact[0]).abs().max()
        assert torch.allclose(var.double(), exact[1], atol=1e-4), (var - exact[1]).abs().max()


@compiled
def test_far_away_rows_have_the_prior() -> None:
    mean, var = frozen().moments(rows(5) + 1e4)
    assert mean.abs().max() < 1e-20
    assert torch.allclose(var, torch.full_like(var, 1.001))


@compiled
def test_nan_stays_nan() -> None:
    x = rows(30)
    x[0, 7, 1] = torch.nan
    for kind in KERNELS:
        bad = torch.stack(frozen(kind).moments(x)).isnan()
        assert bad[:, 0, 7].all()
        assert bad.sum() == 2


@compiled
@pytest.mark.parametrize("full", [False, True])
def test_a_row_has_the_same_bits_wherever_it_is(full: bool) -> None:
    points, x = frozen(M=100, full=full), rows(3000)
    whole = points.moments(x)
    for part in (slice(0, 1), slice(1, 14), slice(700, 1999), slice(2990, 3000)):
        for got, want in zip(points.moments(x[:, part]), whole, strict=True):
            assert torch.equal(got, want[:, part])


@compiled
def test_points_packed_elsewhere_are_computed_by_torch() -> None:
    points, x = frozen(), rows(20)
    assert points.packed is not None
    foreign = dataclasses.replace(points, packed=dataclasses.replace(points.packed, width=7))
    for got, want in zip(foreign.moments(x), dataclasses.replace(points, packed=None).moments(x), strict=True):
        assert torch.equal(got, want)
    for got, want in zip(pickle.loads(pickle.dumps(points)).moments(x), points.moments(x), strict=True):
        assert torch.equal(got, want)


def test_other_kernels_and_dtypes_are_computed_by_torch() -> None:
    class Mine(RBF):
        """A kernel of one's own."""

    z = torch.zeros(1, 16, 2)
    assert not available(Mine, z)
    assert not available(Matern52, z.double())
    assert available(Matern52, z) == (native.load() is not None)


@pytest.mark.parametrize("case", ["switched off", "no compiler", "broken compiler", "open folder", "no folder"])
def test_without_compiled_code_torch_predicts(
    case: str, fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if case == "switched off":
        monkeypatch.setenv("DSPP_COMPILE", "0")
    elif case == "no compiler":
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
    elif case == "broken compiler":
        monkeypatch.setenv("CXX", "false")
    elif case == "open folder":
        (tmp_path / "dspp").mkdir()
        (tmp_path / "dspp").chmod(0o777)
    else:
        (tmp_path / "dspp").touch()
    points = frozen()
    assert points.packed is None
    assert points.moments(rows(5))[0].isfinite().all()
    assert not list(tmp_path.glob("dspp/*"))


@compiled
def test_the_code_is_compiled_once(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("g++") is None:
        pytest.skip("the code comes from the cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls: list[list[str]] = []
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: (calls.append(command), run(command, **options)))
    for _ in range(2):
        native.load.cache_clear()
        assert frozen().packed is not None
    assert len(calls) == 1
    assert len(list((tmp_path / "dspp").iterdir())) == 1

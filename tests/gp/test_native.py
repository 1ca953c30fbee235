"""Compiled predictions are torch's up to rounding, and torch's are used wherever there is no compiled code."""

import dataclasses
import pickle
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dspp.gp import native
from dspp.gp.conditional import Frozen
from dspp.gp.kernels import KERNELS, RBF, Matern52
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
    foreign = dataclasses.replace(points, packed=dataclasses.replace(points.packed, panel_rows=7))
    for got, want in zip(foreign.moments(x), dataclasses.replace(points, packed=None).moments(x), strict=True):
        assert torch.equal(got, want)
    for got, want in zip(pickle.loads(pickle.dumps(points)).moments(x), points.moments(x), strict=True):
        assert torch.equal(got, want)


def test_other_kernels_and_dtypes_are_computed_by_torch() -> None:
    class Mine(RBF):
        """A kernel of one's own."""

    z, B, v = torch.zeros(1, 16, 2), torch.eye(16).expand(1, 16, 16), torch.ones(1, 16)
    assert native.pack(Mine, z, B, v, v, True) is None
    assert native.pack(Matern52, z.double(), B.double(), v.double(), v.double(), True) is None


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

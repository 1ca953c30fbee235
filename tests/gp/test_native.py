"""Compiled moments and gradients are torch's up to rounding, and torch's are used where there is no compiled code."""

import dataclasses
import hashlib
import os
import pickle
import select
import shutil
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import reference as ref
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
    exact = ref.conditional(Matern52, x.double(), z.double(), K, m.double(), (C @ C.mT).double(), solved.jitter)
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


@pytest.mark.parametrize(
    "case", ["switched off", "no compiler", "broken compiler", "open folder", "open parent", "no folder", "no home"]
)
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
    elif case == "open parent":
        tmp_path.chmod(0o777)
    elif case == "no folder":
        (tmp_path / "dspp").touch()
    else:
        monkeypatch.chdir(tmp_path)  # to which relative folders would lead
        monkeypatch.setenv("XDG_CACHE_HOME", "here")
        monkeypatch.setenv("HOME", "")
    points = frozen()
    assert points.packed is None
    assert points.moments(rows(5))[0].isfinite().all()
    assert {path.suffix for path in tmp_path.rglob("dspp/*")} <= {".failed"}


@compiled
def test_the_code_is_compiled_once(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("g++") is None:
        pytest.skip("the code comes from the cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calls: list[str] = []
    start, sync, replace = subprocess.Popen, os.fsync, os.replace

    def popen(command: list[str], **options: Any) -> Any:
        calls.extend(["compile"] * ("-o" in command))
        return start(command, **options)

    monkeypatch.setattr(subprocess, "Popen", popen)
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append("sync"), sync(file)))
    monkeypatch.setattr(os, "replace", lambda *paths: (calls.append("rename"), replace(*paths)))
    for _ in range(2):
        native.load.cache_clear()
        assert frozen().packed is not None
    assert calls == ["compile", "sync", "rename"]
    (path,) = (tmp_path / "dspp").iterdir()
    assert path.stem.endswith(hashlib.sha256(path.read_bytes()).hexdigest())


@dataclasses.dataclass
class Cache:
    """A cache folder, and a compiler that copies what is compiled already, which takes no time."""

    folder: Path
    compiler: Path

    @property
    def library(self) -> Path:
        (path,) = self.folder.glob("*.so")
        return path

    @property
    def product(self) -> Path:
        return self.compiler.with_name("product")

    @property
    def compilations(self) -> int:
        return len(self.compiler.with_name("calls").read_text())

    def load(self) -> bool:
        """Look for the compiled code as a new process does, and predict."""
        native.load.cache_clear()
        points = frozen()
        assert points.moments(rows(5))[0].isfinite().all()
        return points.packed is not None

    def install(self, command: str) -> None:
        """Let the compiler do this, for a path `$2`."""
        start = 'cd "${0%/*}"\nprintf x >>calls\nwhile [ "$1" != -o ]; do shift; done'
        self.compiler.write_text(f"#!/bin/sh\n{start}\n{command}\n")
        self.compiler.chmod(0o700)


@pytest.fixture
def cache(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache folder with a library that was compiled once."""
    library = native.load()
    assert library is not None
    cache = Cache(tmp_path / "home" / "dspp", tmp_path / "compiler")
    shutil.copy(library._name, cache.product)
    cache.install('cp product "$2"')
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CXX", str(cache.compiler))
    assert cache.load()
    assert cache.compilations == 1
    return cache


def replace_by_link(path: Path) -> None:
    path.symlink_to(path.rename(path.with_name("elsewhere")))


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


@compiled
@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: os.truncate(path, 40_000), id="cut off"),
        pytest.param(lambda path: os.truncate(path, 0), id="empty"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:4096].ljust(path.stat().st_size, b"\0")), id="0"),
        pytest.param(lambda path: path.chmod(0o720), id="of the group"),
        pytest.param(lambda path: path.chmod(0o777), id="of all"),
        pytest.param(replace_by_link, id="link"),
        pytest.param(replace_by_pipe, id="pipe"),
    ],
)
def test_a_library_that_cannot_be_trusted_is_compiled_again_and_not_loaded(
    damage: Callable[[Path], object], cache: Cache, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dspp")
    shutil.copy(cache.library, copy := cache.product.with_name("copy"))
    copy.replace(cache.library)  # the file itself is part of this process, and cutting it would end both
    damage(cache.library)
    assert cache.load()
    assert cache.load()
    assert cache.compilations == 2
    assert caplog.text.count("compiling again") == 1
    found = cache.library.lstat()
    assert (found.st_size, stat.S_IMODE(found.st_mode)) == (cache.product.stat().st_size, 0o700)


@compiled
def test_a_library_of_another_user_is_not_loaded(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    true = os.fstat
    monkeypatch.setattr(os, "fstat", lambda file: os.stat_result((*true(file)[:4], os.getuid() + 1, *true(file)[5:10])))
    assert not cache.load()


@compiled
def test_a_library_is_private_whatever_the_umask(cache: Cache) -> None:
    cache.library.unlink()
    before = os.umask(0)
    try:
        assert cache.load()
        assert cache.load()
    finally:
        os.umask(before)
    assert cache.compilations == 2


@compiled
def test_a_library_without_the_functions_is_compiled_again_once(cache: Cache) -> None:
    empty = cache.product.with_name("empty")
    command = [shutil.which("g++") or "c++", "-shared", "-fPIC", "-x", "c++", "/dev/null", "-o", str(empty)]
    subprocess.run(command, check=True)
    digest = hashlib.sha256(empty.read_bytes()).hexdigest()
    old = cache.library
    shutil.copy(empty, old.with_stem(f"{old.stem.rpartition('-')[0]}-{digest}"))
    old.unlink()
    assert cache.load()
    assert cache.compilations == 2
    cache.library.unlink()
    cache.install('cp empty "$2"')
    assert not cache.load()
    assert not cache.load()
    assert cache.compilations == 3


@compiled
def test_a_compiler_that_hangs_is_ended_with_its_children_and_remembered(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dspp")
    monkeypatch.setattr(native, "MAX_SECONDS", 1)
    cache.library.unlink()
    os.mkfifo(cache.compiler.with_name("pipe"))
    pipe = os.open(cache.compiler.with_name("pipe"), os.O_RDONLY | os.O_NONBLOCK)
    cache.install("(echo started; sleep 300) >pipe &\nwait")
    assert not cache.load()
    assert os.read(pipe, 99) == b"started\n"
    assert select.select([pipe], [], [], 60)[0], "a process that the compiler had started is still there"
    assert os.read(pipe, 99) == b""  # nobody is left who could write
    os.close(pipe)

    assert not cache.load()
    assert cache.compilations == 2
    assert "timed out after 1 seconds (within the last hour; delete " in caplog.records[-1].message

    (memory,) = cache.folder.iterdir()
    os.utime(memory, (0, 0))
    assert not cache.load()
    assert cache.compilations == 3
    cache.install('cp product "$2"')
    assert cache.load()
    assert cache.compilations == 4


ARM = """processor       : 0
BogoMIPS        : {mips}
Features        : {features}
CPU implementer : 0x41
CPU architecture: 8
CPU variant     : 0x3
CPU part        : {part}
CPU revision    : 1
"""


def test_machines_differ_on_arm_too() -> None:
    def describe(mips: str = "243.75", features: str = "fp asimd", part: str = "0xd0c") -> str:
        return native._describe_processor(ARM.format(mips=mips, features=features, part=part))

    assert describe() == describe(mips="50.0") != ""
    assert len({describe(), describe(features="fp asimd sve"), describe(part="0xd40")}) == 3

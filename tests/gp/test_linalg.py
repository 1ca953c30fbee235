"""Compiled matrices of the inducing points are torch's up to rounding, whatever their size."""

import pytest
import torch

from dspp.errors import NumericalError
from dspp.gp import linalg, native
from dspp.gp.kernels import COMPILED, ARDKernel, KernelKind, Matern52, compiled_matrix
from dspp.gp.linalg import FULL, LOWER, UPPER, factorise, transposed_product, transposed_root

pytestmark = pytest.mark.skipif(native.load() is None, reason="there is no C++ compiler")
SIZES = [1, 5, 12, 13, 48, 100, 300]
SHAPES = FULL, LOWER, UPPER


def points(M: int, W: int = 2, D: int = 3) -> torch.Tensor:
    return torch.randn(W, M, D, generator=torch.Generator().manual_seed(M))


def matrix(M: int, shape: int, seed: int) -> torch.Tensor:
    full = torch.randn(2, M, M, generator=torch.Generator().manual_seed(seed))
    return {FULL: full, LOWER: full.tril(), UPPER: full.triu()}[shape]


@pytest.mark.parametrize("M", SIZES)
@pytest.mark.parametrize("kind", COMPILED)
def test_kernel_matrix(kind: type[KernelKind], M: int) -> None:
    z = points(M)
    K, slope = compiled_matrix(z, kind)
    t2 = (z.double().unsqueeze(-2) - z.double().unsqueeze(-3)).square().sum(-1)
    want_K, want_slope = torch.empty_like(t2), torch.empty_like(t2)
    kind.fill(t2, want_K, want_slope)
    assert (K - want_K).abs().max() < 1e-15
    assert torch.allclose(slope.double(), want_slope, rtol=1e-6, atol=1e-7)
    assert torch.equal(K, K.mT)


def test_far_points_and_nan() -> None:
    z = points(40)
    z[0, 3] = 1e6
    z[1, 7, 0] = torch.nan
    K, _ = compiled_matrix(z, Matern52)
    assert K[0].isfinite().all()
    assert 0 <= K[0, 3, :3].max() < 1e-25
    assert K[1, 7].isnan().all()
    with pytest.raises(NumericalError, match="NaN"):
        factorise(K, 1e-5, "here", compiled=True)


@pytest.mark.parametrize("jitter", [1e-2, 1e-5, 1e-8])
@pytest.mark.parametrize("M", SIZES)
def test_inverse_root_is_as_exact_as_that_of_torch(M: int, jitter: float) -> None:
    K = ARDKernel("matern52", 2, 3).exact_matrix(points(M)).detach()
    exact = K + jitter * torch.eye(M, dtype=torch.float64)
    errors = []
    for compiled in (True, False):
        found = factorise(K, jitter, "here", compiled)
        B = found.inverse_root
        assert torch.equal(B, B.tril())
        assert found.jitter_increases == 0
        errors.append((B @ exact @ B.mT - torch.eye(M)).abs().max())
    assert errors[0] <= 3 * errors[1] + 1e-14


def test_a_matrix_without_a_root_gets_more_jitter_and_the_others_do_not() -> None:
    z = points(60, W=3)
    z[1] = z[1, :1]  # one point sixty times
    K = ARDKernel("rbf", 3, 3).exact_matrix(z).detach()
    K[1] -= 1e-6 * torch.eye(60, dtype=torch.float64)
    found, want = (factorise(K, 1e-7, "here", compiled) for compiled in (True, False))
    assert found.jitter_increases == want.jitter_increases > 0
    assert torch.equal(found.jitter, want.jitter)
    assert torch.allclose(found.inverse_root, want.inverse_root, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("y", SHAPES)
@pytest.mark.parametrize("x", SHAPES)
@pytest.mark.parametrize("M", SIZES)
def test_products(M: int, x: int, y: int, lower: bool) -> None:
    X, Y = matrix(M, x, 1), matrix(M, y, 2)
    found, want = transposed_product(X, Y, x, y, lower), X.double().mT @ Y.double()
    if lower:
        found, want = found.tril(), want.tril()
    assert (found - want).abs().max() < 1e-6 * M**0.5 * 5


@pytest.mark.parametrize("M", [5, 100])
def test_kernel_gradient(M: int, monkeypatch: pytest.MonkeyPatch) -> None:
    B, dAAt = matrix(M, LOWER, 3), matrix(M, FULL, 4)
    found, exact = linalg.kernel_gradient(B, dAAt), linalg.kernel_gradient(B.double(), dAAt.double())
    monkeypatch.setattr(linalg, "compiles_products", lambda _: False)
    assert (found - exact).norm() <= 2 * (linalg.kernel_gradient(B, dAAt) - exact).norm() + 1e-6 * exact.norm()


def test_no_bit_depends_on_the_number_of_threads() -> None:
    def compute() -> list[torch.Tensor]:
        K, slope = compiled_matrix(points(100, W=3), Matern52)
        B = factorise(K, 1e-5, "here", compiled=True).inverse_root
        return [K, slope, B, linalg.kernel_gradient(B.float(), slope)]

    expected = compute()
    for threads in (2, 3):
        torch.set_num_threads(threads)
        try:
            found = compute()
        finally:
            torch.set_num_threads(1)
        assert all(map(torch.equal, found, expected))


def test_the_transposed_root_is_lower_triangular_and_exact():
    root = torch.randn(2, 7, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    A = root @ root.mT
    R = transposed_root(A, 1e-9)
    assert R is not None
    assert torch.equal(R, R.tril())
    torch.testing.assert_close(R.mT @ R, A + 1e-9 * torch.eye(7, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    A[1, 0, 0] = -1.0  # one matrix of the stack is not positive definite
    assert transposed_root(A, 1e-9) is None

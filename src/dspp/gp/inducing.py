"""q(u): the whitened Gaussian at the inducing points, its KL divergence, and the initial inducing points."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dspp.errors import InputError

START_ROWS = 20_000  # at most so many rows initialise a model: more do not move 300 centres
_SMALL = 1e-30  # keeps log S finite if S underflows to 0


class WhitenedGaussian(nn.Module):
    """q(v) = N(m, S) for W GPs in the basis v = L⁻¹ u, where the prior is N(0, 1); S = C Cᵀ.

    C is diagonal (`root` is (W, M)) or lower triangular (`root` is (W, M, M)). Starts at the prior.
    """

    def __init__(self, width: int, num_inducing: int, full: bool) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(width, num_inducing, dtype=torch.float32))
        root = torch.ones(width, num_inducing, dtype=torch.float32)
        self.root = nn.Parameter(torch.diag_embed(root) if full else root)

    @property
    def full(self) -> bool:
        """Whether S is a full matrix."""
        return self.root.dim() == 3

    def kl(self) -> Float[Tensor, ""]:
        """Return Σ_w KL(N(m, S) | N(0, 1)) = ½ Σ_w (|m|² + tr S − M − log det S)."""
        C = self.root.tril() if self.full else self.root
        diagonal = C.diagonal(dim1=-2, dim2=-1) if self.full else C
        log_det = diagonal.square().clamp_min(_SMALL).log().sum()
        return 0.5 * (self.mean.square().sum() + C.square().sum() - self.mean.numel() - log_det)


def start_rows(x: Float[Tensor, "N D"], num_points: int, generator: torch.Generator) -> Float[Tensor, "K D"]:
    """Draw at most START_ROWS rows, with at least `num_points` distinct ones among them if x has as many."""
    if len(x) <= START_ROWS:
        return x
    rows = x[torch.randperm(len(x), generator=generator)[:START_ROWS]]
    if len(torch.unique(rows, dim=0)) < num_points:
        distinct: Tensor = torch.unique(x, dim=0)
        rows = distinct[torch.randperm(len(distinct), generator=generator)[:START_ROWS]]
    return rows


def kmeans_points(x: Float[Tensor, "N D"], num_points: int, generator: torch.Generator) -> Float[Tensor, "M D"]:
    """Return k-means centres of the rows, as initial inducing points.

    There are never more centres than distinct rows, so the result may be shorter than `num_points`.
    """
    if num_points < 1:
        raise InputError(f"expected at least 1 inducing point, got {num_points}; pass inducing >= 1")
    rows = x.detach().to("cpu", torch.float64)
    distinct: Tensor = torch.unique(rows, dim=0)
    if len(distinct) <= num_points:
        return distinct.to(x)
    from sklearn.cluster import KMeans, MiniBatchKMeans  # imported here so that loading a model stays fast
    from threadpoolctl import threadpool_limits

    seed = int(torch.randint(2**31 - 1, (1,), generator=generator))
    fit = MiniBatchKMeans if len(rows) > 10 * num_points else KMeans
    with threadpool_limits(1, user_api="openmp"):  # with more, the order of sums and thus the last bits vary
        centres = fit(num_points, n_init=1, random_state=seed).fit(rows.numpy()).cluster_centers_
    return torch.as_tensor(centres).to(x)

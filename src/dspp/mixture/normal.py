"""The mixture of one output: density, cdf, quantiles, CRPS, figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.distributions import MixtureSameFamily, Normal

from dspp.data.checks import Table, check_y
from dspp.errors import InputError
from dspp.mixture import maths
from dspp.mixture.base import Mixture

if TYPE_CHECKING:  # drawing is asked for rarely; matplotlib is slow to import
    from matplotlib.axes import Axes


@final
@dataclass(frozen=True, eq=False)
class NormalMixture(Mixture):
    """p(y_n) = Σ_s ω_s N(y_n | μ_sn, v_sn + σ²): one output.

    The cdf, quantiles and CRPS are computed and returned in float64: a probability near 1 needs the digits.

    Attributes:
        log_weights: log ω, with Σ_s ω_s = 1.
        component_mean: μ, the mean of each component.
        latent_var: v, the variance of the latent function alone.
        noise_var: σ², the variance of the observation noise: a scalar, or one a row.

    Raises:
        InputError: The shapes do not fit, or the weights do not sum to one.
        NumericalError: The variance of a component is not positive.
    """

    latent_var: Float[Tensor, "S N"]
    noise_var: Float[Tensor, " *N"]

    def __post_init__(self) -> None:
        if self.noise_var.shape == (1,):  # as a module of one output keeps it
            object.__setattr__(self, "noise_var", self.noise_var.squeeze(0))
        maths.check_components(self.log_weights, self.component_mean, self.latent_var, self.noise_var, "S, N")
        maths.check_variance(self.component_var)

    @property
    def component_var(self) -> Float[Tensor, "S N"]:
        """The variance of each component: v + σ²."""
        return self.latent_var + self.noise_var

    def component_log_prob(self, y: Table) -> Float[Tensor, "S N"]:
        """Return log N(y_n | μ_sn, v_sn + σ²), without the weights."""
        y = maths.checked_targets(y, self.component_mean)
        return maths.normal_log_prob(y, self.component_mean, self.component_var)

    def expected_log_lik(self, y: Table) -> Float[Tensor, "S N"]:
        """Return E[log N(y_n | f, σ²)] over f ~ N(μ_sn, v_sn), the data term of the ELBO."""
        y = maths.checked_targets(y, self.component_mean)
        return maths.expected_normal_log_prob(y, self.component_mean, self.latent_var, self.noise_var)

    def cdf(self, y: Table) -> Float[Tensor, " *K N"]:
        """Return P(Y_n <= y_n) for one value a row, (N,), or for K values a row, (K, N)."""
        y = maths.checked_targets(y, self.component_mean, many=True)
        weights, mean, var = self._in_float64()
        elements = len(weights) * y.shape[:-1].numel()
        return maths.over_row_chunks(partial(maths.mixture_cdf, weights), elements, y.double(), mean, var.sqrt())

    def pit(self, y: Table) -> Float[Tensor, " N"]:
        """Return the probability integral transform F(y_n), uniform where the mixture is the truth."""
        y = maths.checked_targets(y, self.component_mean)
        return self.cdf(y)

    @torch.no_grad()
    def quantile(self, p: float | Float[Tensor, " *K"]) -> Float[Tensor, " *K N"]:
        """Return x with |F(x) − p| <= 1e-8, or as near as float64 allows, for one p or for K of them."""
        wanted = torch.as_tensor(p, dtype=torch.float64, device=self.component_mean.device)
        if wanted.ndim > 1 or not bool(((wanted > 0.0) & (wanted < 1.0)).all()):
            raise InputError(f"got p = {p}, expected one number or K, all inside (0, 1); leave out 0 and 1")
        weights, mean, var = self._in_float64()
        solve = partial(maths.mixture_quantile, weights, wanted.reshape(-1, 1))
        solution = maths.over_row_chunks(solve, len(weights) * wanted.numel(), mean, var.sqrt())
        return solution.reshape(*wanted.shape, self.num_rows)

    def interval(self, coverage: float) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """Return (lower, upper) of the central interval that holds `coverage` of the probability."""
        if not 0.0 < coverage < 1.0:
            raise InputError(f"got coverage {coverage}, expected a number inside (0, 1), such as 0.9")
        return self.quantile(0.5 - 0.5 * coverage), self.quantile(0.5 + 0.5 * coverage)

    def sample(self, num: int, generator: Generator | None = None) -> Float[Tensor, "num N"]:
        """Draw `num` independent values for each row, reproducibly from `generator`; not differentiable."""
        which, normal = self._draw(num, generator)
        mean, std = self.component_mean.detach(), self.component_var.detach().sqrt()
        return mean.gather(0, which) + std.gather(0, which) * normal

    def crps(self, y: Table) -> Float[Tensor, " N"]:
        """Return the continuous ranked probability score ∫ (F(x) − 1{y_n <= x})² dx, in the units of y."""
        y = maths.checked_targets(y, self.component_mean)
        weights, mean, var = self._in_float64()
        return maths.over_row_chunks(partial(maths.mixture_crps, weights), len(weights), y.double(), mean, var)

    def to_torch(self) -> MixtureSameFamily:
        """Return the same distribution for `torch.distributions`, of batch shape (N,), gradients included."""
        components = Normal(self.component_mean.T, self.component_var.sqrt().T)  # (N, S)
        return MixtureSameFamily(self._categorical(), components)

    def affine(self, shift: float | Float[Tensor, ""], scale: float | Float[Tensor, ""]) -> "NormalMixture":
        """Return the distribution of shift + scale·y, exactly; in float32 a large shift swallows digits."""
        a, b = maths.shift_and_scale(shift, scale, self.component_mean)
        mean, b2 = a + b * self.component_mean, b.square()
        return NormalMixture(self.log_weights, mean, b2 * self.latent_var, b2 * self.noise_var)

    def plot_density(self, row: int = 0, y: float | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draw the density of one row and, where it is known, what was observed."""
        from dspp import plots

        return plots.density(self, row, y=y, ax=ax)

    def plot_fan(
        self, x: Table, y: Table | None = None, ax: "Axes | None" = None, levels: Sequence[float] = (0.5, 0.8, 0.95)
    ) -> "Axes":
        """Draw the median and central intervals of every row against one input `x`."""
        from dspp import plots

        return plots.fan(self, x, y=y, ax=ax, levels=levels)

    def plot_pit(self, y: Table, ax: "Axes | None" = None) -> "Axes":
        """Draw the histogram of F(y_n): flat where the mixture is the truth."""
        from dspp import plots

        return plots.pit_histogram(self._pit_array(y), ax=ax)

    def plot_reliability(self, y: Table, ax: "Axes | None" = None) -> "Axes":
        """Draw how much each central interval holds against how much it promises."""
        from dspp import plots

        return plots.reliability(self._pit_array(y), ax=ax)

    def _pit_array(self, y: Table) -> Float[np.ndarray, " N"]:
        observed = torch.from_numpy(check_y(y, self.num_rows)).to(self.component_mean.device)
        array: Float[np.ndarray, " N"] = self.pit(observed).detach().cpu().numpy()
        return array

    def _in_float64(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the weights, means and variances of the components."""
        exact = self.to(torch.float64)
        return exact.weights, exact.component_mean, exact.component_var

"""Rules: how uncertainty crosses a hidden layer.

A rule replaces q(g|x) = Π_w N(μ_w, σ_w²) of a hidden layer by weighted points g = μ + ξ σ (paper, section 3.2). It
defines the sites ξ (G, W) of each hidden layer and the log weights of the mixture at the top. There are two ways to
combine sites with the components of the layer below:

* aligned (QR3, Monte Carlo): component s takes site s in every layer, giving S components whatever the depth;
* grid (Gauss–Hermite, QR1, QR2): the sites are all S^W combinations, and every layer multiplies the components.

A new rule is one class with `sites` and `log_weights`; see CONTRIBUTING.md.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from dspp.errors import InputError, NumericalError
from dspp.registry import Registry

RULES: Registry[type["Rule"]] = Registry("rule")
MAX_COMPONENTS = 1024
MAX_GRID_SITES = 100  # per dimension of a grid
START_DTYPE = torch.float32  # of initial values, whatever torch's default, so that the same seed gives the same model
MAX_GRID_WIDTH = 10_000  # hidden GPs of a grid; with 2 or more sites MAX_COMPONENTS is far lower


class Rule(nn.Module, ABC):
    """Sites and weights for the hidden layers of one model.

    Args:
        widths: The width W of each hidden layer.
        num_sites: S, the number of sites (for grids: per dimension).
        num_test_sites: For rules that sample, the number of samples in prediction.
        generator: The source of random initial values.

    Example:
        >>> import torch
        >>> from dspp.quadrature import Rule
        >>> class Ends(Rule):  # μ − σ and μ + σ, with equal weights; @RULES.register("ends") would name it
        ...     def start(self, generator):
        ...         pass
        ...     def sites(self, layer):
        ...         return torch.tensor([[-1.0], [1.0]]).expand(2, self.widths[layer])
        ...     def log_weights(self, sampling=False):
        ...         return torch.tensor([0.5, 0.5]).log()
        >>> rule = Ends(widths=[3], num_sites=2)
        >>> rule.expand(0, torch.zeros(1, 5, 3), torch.ones(1, 5, 3)).shape  # from one component to S = 2
        torch.Size([2, 5, 3])
    """

    grid: ClassVar[bool] = False

    def __init__(
        self,
        widths: Sequence[int],
        num_sites: int,
        num_test_sites: int = 32,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if num_sites < 1 or num_test_sites < 1:
            raise InputError(
                f"expected at least 1 site, got {num_sites} ({num_test_sites} to predict); pass sites >= 1"
            )
        self.widths, self.num_sites, self.num_test_sites = tuple(widths), num_sites, num_test_sites
        if self.grid:
            _check_grid(type(self).__name__, num_sites, self.widths)
        self.start(generator or torch.Generator().manual_seed(0))

    @abstractmethod
    def start(self, generator: torch.Generator) -> None:
        """Create the parameters (or buffers) with their initial values."""

    @abstractmethod
    def sites(self, layer: int) -> Float[Tensor, "G W"]:
        """Return ξ of hidden layer `layer`."""

    @abstractmethod
    def log_weights(self, sampling: bool = False) -> Float[Tensor, " S"]:
        """Return the log weight of each component at the top; the weights sum to 1."""

    def expand(
        self,
        layer: int,
        mean: Float[Tensor, "S N W"],
        std: Float[Tensor, "S N W"],
        noise: torch.Generator | None = None,
    ) -> Float[Tensor, "S_next N W"]:
        """Return μ + ξ σ for every component (eqs. 18, 22 and 23); rules that sample draw ξ from `noise` if given."""
        sites = self.sites(layer)
        if self.grid:
            return (mean.unsqueeze(1) + sites[:, None, :] * std.unsqueeze(1)).flatten(0, 1)
        return mean + sites[:, None, :] * std

    @torch.no_grad()
    def prune(self, min_weight: float) -> "Rule":
        """Return the same rule as a fixed list of sites, without components of weight below `min_weight`."""
        if not self._can_be_listed:
            return copy.deepcopy(self)
        keep = self.heavy_components(min_weight)
        sites = [self.sites(i)[keep] for i in range(len(self.widths))]
        return FixedSites(sites, torch.log_softmax(self.log_weights()[keep], 0))

    @torch.no_grad()
    def heavy_components(self, min_weight: float) -> Bool[Tensor, " S"]:
        """Return which components `prune` keeps: those of at least `min_weight`, and the heaviest.

        Raises:
            NumericalError: A weight is NaN.
        """
        log_weights = self.log_weights()
        if bool(log_weights.isnan().any()):
            raise NumericalError(f"the weights of the rule {type(self).__name__} are not finite; fit the model again")
        if not self._can_be_listed:
            return torch.ones_like(log_weights, dtype=torch.bool)
        heavy: Tensor = log_weights >= np.log(max(min_weight, 1e-300))
        return heavy | (log_weights == log_weights.max())

    @property
    def _can_be_listed(self) -> bool:
        if type(self).expand not in (Rule.expand, MonteCarlo.expand):
            return False  # the rule crosses a layer in its own way
        return not (self.grid and len(self.widths) > 1)  # a list would repeat work in the layers between the grids

    @property
    def num_components(self) -> int | None:
        """S of the mixture at the top; None if it differs between training and prediction."""
        count = len(self.log_weights())
        return count if len(self.log_weights(sampling=True)) == count else None


def _check_grid(name: str, num_sites: int, widths: tuple[int, ...]) -> None:
    if num_sites > MAX_GRID_SITES:
        raise InputError(
            f"{name} expected at most {MAX_GRID_SITES} sites per dimension, got {num_sites}; more have weights too "
            "small for float64: use the rule 'qr3' (QR3)"
        )
    if sum(widths) > MAX_GRID_WIDTH:  # checked before computing S^W, which would take forever
        raise InputError(f"{name} expected at most {MAX_GRID_WIDTH} hidden GPs, got {sum(widths)}; use the rule 'qr3'")
    components = num_sites ** sum(widths)
    if components > MAX_COMPONENTS:
        raise InputError(
            f"{name} expected at most {MAX_COMPONENTS} components, got {components} with {num_sites} sites and hidden "
            f"widths {list(widths)}; use fewer sites or narrower layers, or the rule 'qr3' (QR3), which has as many "
            "components as sites"
        )


def _grid_points(columns: Float[Tensor, "S W"]) -> Float[Tensor, "G W"]:
    """Return all combinations of one entry per column: (S^W, W), the last column varying fastest."""
    return torch.cartesian_prod(*columns.unbind(1)).reshape(-1, columns.shape[1])


def _gauss_hermite(num_sites: int) -> tuple[Tensor, Tensor]:
    """Return sites and weights, exact up to degree 2S − 1 under N(0, 1); for S = 3: −√3, 0, √3 and 1/6, 2/3, 1/6."""
    sites, weights = np.polynomial.hermite_e.hermegauss(num_sites)
    return torch.tensor(sites), torch.tensor(weights / weights.sum())


def _sum_grids(log_weights: Sequence[Tensor]) -> Tensor:
    """Return the log weights of a product of grids, the last layer varying fastest, as in `Rule.expand`."""
    total = log_weights[0]
    for extra in log_weights[1:]:
        total = (total[:, None] + extra[None, :]).flatten()
    return total


class FixedSites(Rule):
    """A fixed list of sites and weights, which `prune` makes for predictions."""

    def __init__(self, sites: Sequence[Float[Tensor, "S W"]], log_weights: Float[Tensor, " S"]) -> None:
        self._given = (list(sites), log_weights)
        super().__init__([s.shape[1] for s in sites], len(log_weights))

    def start(self, generator: torch.Generator) -> None:
        for i, sites in enumerate(self._given[0]):
            self.register_buffer(f"sites_{i}", sites.detach().clone())
        self.register_buffer("logs", self._given[1].detach().clone())

    def sites(self, layer: int) -> Float[Tensor, "G W"]:
        return self.get_buffer(f"sites_{layer}")

    def log_weights(self, sampling: bool = False) -> Float[Tensor, " S"]:
        return self.get_buffer("logs")


@RULES.register("gauss-hermite")
class GaussHermite(Rule):
    """The fixed grid of eqs. 18 to 20: nothing is learned.

    Example:
        >>> from dspp.quadrature import GaussHermite
        >>> rule = GaussHermite(widths=[1], num_sites=3)
        >>> [round(weight, 3) for weight in rule.log_weights().exp().tolist()]
        [0.167, 0.667, 0.167]
    """

    grid = True

    def start(self, generator: torch.Generator) -> None:
        """Store the one-dimensional sites and the logs of the product weights."""
        sites, weights = _gauss_hermite(self.num_sites)
        self.register_buffer("one_dimension", sites)  # in float64 until the model is cast to its dtype
        self.register_buffer("logs", _sum_grids([weights.log()] * sum(self.widths)))

    def sites(self, layer: int) -> Float[Tensor, "G W"]:
        return _grid_points(self.get_buffer("one_dimension")[:, None].expand(-1, self.widths[layer]))

    def log_weights(self, sampling: bool = False) -> Float[Tensor, " S"]:
        return self.get_buffer("logs")


class _LearnedGrid(Rule):
    """What QR1 and QR2 share: learned sites ξ_w (S, W) per layer, one free weight per grid point (eq. 22)."""

    grid = True

    def start(self, generator: torch.Generator) -> None:
        """Start with the sites and product weights of Gauss–Hermite."""
        sites, weights = _gauss_hermite(self.num_sites)
        self.raw_sites = nn.ParameterList(
            [self._free(sites.to(START_DTYPE)[:, None].repeat(1, width)) for width in self.widths]
        )
        self.raw_log_weights = nn.ParameterList(
            [_sum_grids([weights.log()] * width).to(START_DTYPE) for width in self.widths]
        )

    def _free(self, sites: Float[Tensor, "S W"]) -> Tensor:
        return sites

    def columns(self, layer: int) -> Float[Tensor, "S W"]:
        """Return the sites of each dimension, before they are combined."""
        columns: Tensor = self.raw_sites[layer]
        return columns

    def sites(self, layer: int) -> Float[Tensor, "G W"]:
        return _grid_points(self.columns(layer))

    def log_weights(self, sampling: bool = False) -> Float[Tensor, " S"]:
        """Return a softmax over the grid of each layer; weights of several layers are multiplied."""
        return _sum_grids([torch.log_softmax(raw, 0) for raw in self.raw_log_weights])


@RULES.register("qr1")
class QR1(_LearnedGrid):
    """Learned sites on a grid, learned weights over the whole grid (eq. 22).

    Example:
        >>> from dspp.quadrature import QR1
        >>> rule = QR1(widths=[2], num_sites=3)
        >>> rule.sites(0).shape, rule.log_weights().shape  # a grid of 3² points, each with its weight
        (torch.Size([9, 2]), torch.Size([9]))
    """


@RULES.register("qr2")
class QR2(_LearnedGrid):
    """QR1 with ξ_w^(s) = −ξ_w^(S+1−s) by construction: only the positive half is a parameter; an odd middle is 0.

    Example:
        >>> from dspp.quadrature import QR2
        >>> rule = QR2(widths=[1], num_sites=3)
        >>> [round(site, 3) for site in rule.sites(0).flatten().tolist()]
        [-1.732, 0.0, 1.732]
    """

    def _free(self, sites: Float[Tensor, "S W"]) -> Tensor:
        return sites[(self.num_sites + 1) // 2 :]

    def columns(self, layer: int) -> Float[Tensor, "S W"]:
        """Return the reversed negative half, 0 if S is odd, and the half."""
        half = self.raw_sites[layer]
        middle = half.new_zeros(self.num_sites % 2, half.shape[1])
        return torch.cat([-half.flip(0), middle, half])


@RULES.register("qr3")
class QR3(Rule):
    """S learned sites, aligned across the W GPs and across layers, with S learned weights (eq. 23).

    Starts with standard Normal sites and equal weights, so that no component is favoured before training.

    Example:
        >>> from dspp.quadrature import QR3
        >>> rule = QR3(widths=[5], num_sites=10)
        >>> rule.sites(0).shape, rule.log_weights().shape  # as many components as sites
        (torch.Size([10, 5]), torch.Size([10]))
    """

    def start(self, generator: torch.Generator) -> None:
        self.raw_sites = nn.ParameterList(
            [torch.randn(self.num_sites, width, generator=generator, dtype=START_DTYPE) for width in self.widths]
        )
        self.raw_log_weights = nn.Parameter(torch.zeros(self.num_sites, dtype=START_DTYPE))

    def sites(self, layer: int) -> Float[Tensor, "G W"]:
        sites: Tensor = self.raw_sites[layer]
        return sites

    def log_weights(self, sampling: bool = False) -> Float[Tensor, " S"]:
        return torch.log_softmax(self.raw_log_weights, 0)


@RULES.register("monte-carlo")
class MonteCarlo(Rule):
    """Samples instead of sites: fresh ones for every row and step in training, fixed ones in prediction.

    The samples for prediction are drawn once and shared by all rows: each row's mixture is as good an estimate of
    eq. 15, and predictions do not depend on the batch and are reproducible.

    Example:
        >>> from dspp.quadrature import MonteCarlo
        >>> rule = MonteCarlo(widths=[5], num_sites=10, num_test_sites=32)
        >>> len(rule.log_weights(sampling=True)), len(rule.log_weights())  # samples in training and in prediction
        (10, 32)
    """

    def start(self, generator: torch.Generator) -> None:
        for i, width in enumerate(self.widths):
            sites = torch.randn(self.num_test_sites, width, generator=generator, dtype=START_DTYPE)
            self.register_buffer(f"test_sites_{i}", sites)

    def sites(self, layer: int) -> Float[Tensor, "G W"]:
        return self.get_buffer(f"test_sites_{layer}")

    def log_weights(self, sampling: bool = False) -> Float[Tensor, " S"]:
        """Return equal weights, of S_train components while sampling and of S_test otherwise."""
        count = self.num_sites if sampling else self.num_test_sites
        return self.sites(0).new_full((count,), -float(np.log(count)))

    def expand(
        self,
        layer: int,
        mean: Float[Tensor, "S N W"],
        std: Float[Tensor, "S N W"],
        noise: torch.Generator | None = None,
    ) -> Float[Tensor, "S_next N W"]:
        """Return μ + ε σ, in training with independent ε ~ N(0, 1) for every sample, row and GP."""
        if noise is None:
            return super().expand(layer, mean, std)
        shape = (self.num_sites, *mean.shape[1:])
        return mean + torch.randn(shape, generator=noise, dtype=mean.dtype, device=mean.device) * std

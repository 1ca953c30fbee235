"""GPyTorch models of the same shape as ours, with the same parameters.

Used by the benchmarks and by the parity tests. GPyTorch adds its jitter to both k(x, x) and K_ZZ, as we do (a nugget);
ours is relative to the output scale, so the copy multiplies by it.
"""

from __future__ import annotations

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.means import ConstantMean, LinearMean
from gpytorch.models import ApproximateGP
from gpytorch.models.deep_gps import DeepGP, DeepGPLayer
from gpytorch.models.deep_gps.dspp import DSPP, DSPPLayer
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    DeltaVariationalDistribution,
    MeanFieldVariationalDistribution,
    OrthogonallyDecoupledVariationalStrategy,
    VariationalStrategy,
)
from torch import Tensor

from dspp.config import ModelConfig
from dspp.gp.layer import GPLayer
from dspp.gp.means import LinearMean as OurLinearMean
from dspp.model import Model

KERNELS = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}


def _kernel(kind: str, D: int, batch: torch.Size) -> gpytorch.kernels.Kernel:
    if kind == "rbf":
        base = gpytorch.kernels.RBFKernel(ard_num_dims=D, batch_shape=batch)
    else:
        base = gpytorch.kernels.MaternKernel(nu=KERNELS[kind], ard_num_dims=D, batch_shape=batch)
    return gpytorch.kernels.ScaleKernel(base, batch_shape=batch)


def _strategy(module, points: Tensor, full: bool, jitter: float | None):
    kind = CholeskyVariationalDistribution if full else MeanFieldVariationalDistribution
    q = kind(points.shape[-2], batch_shape=points.shape[:-2])
    return VariationalStrategy(module, points, q, learn_inducing_locations=True, jitter_val=jitter)


class _PriorMixin:
    def forward(self, x: Tensor) -> MultivariateNormal:
        return MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def _add_prior(self, kernel: str, linear: bool, D: int, batch: torch.Size) -> None:
        self.mean_module = LinearMean(D, batch_shape=batch) if linear else ConstantMean(batch_shape=batch)
        self.covar_module = _kernel(kernel, D, batch)


class PeerGP(_PriorMixin, ApproximateGP):
    """One layer: SVGP or PPGPR; orthogonally decoupled if `mean_points` are given."""

    def __init__(self, points: Tensor, kernel: str, full: bool, jitter: float | None = None, mean_points=None):
        strategy = _strategy(self, points, full, jitter)
        if mean_points is not None:
            delta = DeltaVariationalDistribution(mean_points.shape[-2])
            strategy = OrthogonallyDecoupledVariationalStrategy(strategy, mean_points, delta, jitter_val=jitter)
        super().__init__(strategy)
        self._add_prior(kernel, False, points.shape[-1], torch.Size())
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()


class PeerDSPPLayer(_PriorMixin, DSPPLayer):
    def __init__(self, points: Tensor, kernel: str, linear: bool, sites: int, width: int | None, jitter=None):
        D = points.shape[-1]
        points = points if width is None else points.expand(width, *points.shape).clone()
        super().__init__(_strategy(self, points, False, jitter), D, width, num_quad_sites=sites)
        self._add_prior(kernel, linear, D, points.shape[:-2])


class PeerDSPP(DSPP):
    """A DSPP with QR3 of any depth, feedforward."""

    def __init__(self, layer_points: list[Tensor], width: int, sites: int, kernel: str, jitters=None):
        super().__init__(sites)
        jitters = jitters or [None] * len(layer_points)
        last = len(layer_points) - 1
        self.stack = torch.nn.ModuleList(
            [
                PeerDSPPLayer(points, kernel, i < last, sites, width if i < last else None, jitters[i])
                for i, points in enumerate(layer_points)
            ]
        )
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

    def forward(self, x: Tensor):
        for layer in self.stack:
            x = layer(x)
        return x


class PeerDGPLayer(_PriorMixin, DeepGPLayer):
    def __init__(self, points: Tensor, kernel: str, linear: bool, width: int | None):
        D = points.shape[-1]
        points = points if width is None else points.expand(width, *points.shape).clone()
        super().__init__(_strategy(self, points, True, None), D, width)
        self._add_prior(kernel, linear, D, points.shape[:-2])


class PeerDGP(DeepGP):
    """A doubly stochastic deep GP, feedforward."""

    def __init__(self, layer_points: list[Tensor], width: int, kernel: str):
        super().__init__()
        last = len(layer_points) - 1
        self.stack = torch.nn.ModuleList(
            [
                PeerDGPLayer(points, kernel, i < last, width if i < last else None)
                for i, points in enumerate(layer_points)
            ]
        )
        self.likelihood = gpytorch.likelihoods.GaussianLikelihood()

    def forward(self, x: Tensor):
        for layer in self.stack:
            x = layer(x)
        return x


def peer_of(model: Model, config: ModelConfig, mirror_jitter: bool = True) -> torch.nn.Module:
    """Return the GPyTorch model with our parameters and dtype, and with our jitter or its own."""
    dtype = model.likelihood.raw_noise.dtype
    points = [layer.inducing_points.detach()[0] for layer in model.gp_layers]
    scales = [layer.kernel.outputscale.detach() for layer in model.gp_layers]
    jitters = [config.jitter * (s.unsqueeze(-1) if len(s) > 1 else float(s)) for s in scales]
    if not mirror_jitter:
        jitters = [None] * len(scales)
    if config.layers == 1:
        mean_points = model.gp_layers[0].mean_points
        mean_points = None if mean_points is None else mean_points.detach()[0]
        peer = PeerGP(points[0], config.kernel, config.covariance == "full", jitters[0], mean_points)
    elif config.covariance == "full":
        peer = PeerDGP(points, config.width, config.kernel)
    else:
        peer = PeerDSPP(points, config.width, config.sites, config.kernel, jitters)
    peer.to(dtype)
    floor = gpytorch.constraints.GreaterThan(config.noise_floor)
    peer.likelihood.noise_covar.register_constraint("raw_noise", floor)
    copy_parameters(model, peer)
    return peer


@torch.no_grad()
def copy_parameters(model: Model, peer: torch.nn.Module) -> None:
    """Copy our parameters to the peer."""
    stack = getattr(peer, "stack", [peer])
    for ours, theirs in zip(model.gp_layers, stack, strict=True):
        _copy_layer(ours, theirs)
    peer.likelihood.noise = model.likelihood.noise_var
    if isinstance(peer, DSPP):
        peer.raw_quad_weights.copy_(model.rule.log_weights())
        for i, layer in enumerate(stack[1:]):
            layer.quad_sites.copy_(model.rule.sites(i))


def _copy_layer(ours: GPLayer, theirs: torch.nn.Module) -> None:
    strategy = theirs.variational_strategy
    if ours.mean_points is not None:
        strategy.inducing_points.copy_(ours.mean_points[0])
        strategy._variational_distribution.variational_mean.copy_(ours.mean_coefficients[0])
        strategy.variational_params_initialized.fill_(1)
        strategy = strategy.base_variational_strategy
    q = strategy._variational_distribution
    batch = q.variational_mean.dim() > 1
    pick = (lambda t: t) if batch else (lambda t: t[0])
    strategy.inducing_points.copy_(pick(ours.inducing_points))
    q.variational_mean.copy_(pick(ours.q.mean))
    root = q.chol_variational_covar if ours.q.full else q._variational_stddev
    root.copy_(pick(ours.q.root))
    strategy.variational_params_initialized.fill_(1)
    theirs.covar_module.base_kernel.lengthscale = pick(ours.kernel.lengthscale.unsqueeze(-2))
    theirs.covar_module.outputscale = pick(ours.kernel.outputscale)
    if isinstance(ours.mean, OurLinearMean):
        theirs.mean_module.weights.copy_(ours.mean.weight.mT.unsqueeze(-1))
        theirs.mean_module.bias.copy_(ours.mean.bias.unsqueeze(-1))
    else:
        theirs.mean_module.constant.copy_(pick(ours.mean.constant))

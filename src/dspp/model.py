"""The composition: features? -> [layer -> rule]* -> layer -> latent mixture -> likelihood -> predictive distribution.

Every model of the paper is this machine with other parts (`presets.py`). `Model.forward` returns the latent mixture;
the likelihood turns it into the predictive distribution, which the objective scores in training and which the user
gets: one and the same.
"""

import copy
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dspp.config import ModelConfig
from dspp.errors import InputError
from dspp.features import feature_network
from dspp.gp.conditional import TILE
from dspp.gp.inducing import kmeans_points, start_rows
from dspp.gp.kernels import ARDKernel
from dspp.gp.layer import GPLayer
from dspp.gp.means import MEANS
from dspp.likelihoods import LIKELIHOODS, Likelihood
from dspp.predictive import LatentMixture, Predictive
from dspp.quadrature import RULES, Noise, Rule
from dspp.registry import Registry
from dspp.table.checks import Array, check_width, check_X

log = logging.getLogger("dspp")
MIN_WEIGHT = 1e-30  # of a component, to be computed in predictions

Reader = Callable[[Tensor, Tensor], Tensor]  # (h from the layer below, the model's inputs x) -> what a layer reads


def _hidden(h: Tensor, x: Tensor) -> Tensor:
    return h


def _inputs(h: Tensor, x: Tensor) -> Tensor:
    return x


def _both(h: Tensor, x: Tensor) -> Tensor:
    return torch.cat([h, x.expand(len(h), -1, -1)], dim=-1)


@dataclass(frozen=True)
class Topology:
    """What the hidden layers after the first read (appendix A.4)."""

    mean: Reader
    kernel: Reader


TOPOLOGIES: Registry[Topology] = Registry("topology")
TOPOLOGIES.register("feedforward")(Topology(mean=_hidden, kernel=_hidden))
TOPOLOGIES.register("mean-from-input")(Topology(mean=_inputs, kernel=_hidden))
TOPOLOGIES.register("mean-from-both")(Topology(mean=_both, kernel=_hidden))
TOPOLOGIES.register("all-from-both")(Topology(mean=_both, kernel=_both))
FEEDFORWARD = TOPOLOGIES["feedforward"]


class Model(nn.Module):
    """Layers of GPs, a rule between them, a likelihood on top, and features in front.

    Args:
        layers: the GP layers, the top one last.
        rule: how uncertainty crosses the hidden layers; None for a single layer.
        likelihood: what turns the top layer's GPs into a predictive distribution.
        features: any module (N, D) -> (N, D'), trained with the rest.
        topology: what the hidden layers after the first read.
        notes: what was noticed while the model was built, for the user.
        num_inputs: D, so that a table of another width can be refused with a clear message; None: not checked.
    """

    def __init__(
        self,
        layers: Sequence[GPLayer],
        rule: Rule | None,
        likelihood: Likelihood,
        features: nn.Module | None = None,
        topology: Topology = FEEDFORWARD,
        notes: Sequence[str] = (),
        num_inputs: int | None = None,
    ) -> None:
        super().__init__()
        if (rule is None) != (len(layers) == 1):
            raise InputError(f"got {len(layers)} layers and rule {rule}; a rule is for models of 2 layers or more")
        self.layers, self.rule, self.likelihood = nn.ModuleList(layers), rule, likelihood
        self.features, self.topology, self.notes, self.num_inputs = features, topology, tuple(notes), num_inputs

    def forward(
        self, x: Float[Tensor, "N D"], noise_seed: int | None = None, place: tuple[int, int | None] = (0, None)
    ) -> LatentMixture:
        """The latent functions at each row, as a mixture; `likelihood` makes it the predictive distribution.

        Args:
            x: the rows.
            noise_seed: makes a rule that samples draw fresh samples (training); None: its fixed ones (prediction).
            place: where the first row stands in a batch that is spread over several processes, and the batch's rows.
        """
        noise = None if noise_seed is None else Noise(torch.Generator(x.device).manual_seed(noise_seed), *place)
        inputs = (x if self.features is None else self.features(x)).unsqueeze(0)  # (1, N, D)
        h = inputs
        for i, layer in enumerate(self.layers):
            mean, var = layer(*layer_inputs(self.topology, i, len(self.layers), h, inputs))  # (S, N, W)
            if self.rule is not None and i < len(self.layers) - 1:
                h = self.rule.expand(i, mean, var.sqrt(), noise)  # g = μ + ξ σ
        log_weights = mean.new_zeros(1) if self.rule is None else self.rule.log_weights(noise is not None)
        return LatentMixture(log_weights, mean, var)

    def kl(self) -> Float[Tensor, ""]:
        """Σ KL(q(u) | p(u)) over every GP."""
        return torch.stack([layer.kl() for layer in self.gp_layers]).sum()

    @property
    def gp_layers(self) -> list[GPLayer]:
        """The GP layers, typed."""
        return [layer for layer in self.layers if isinstance(layer, GPLayer)]

    @property
    def jitter_climbs(self) -> int:
        """How often a Cholesky factorisation needed more jitter than configured, so far."""
        return sum(layer.climbs for layer in self.gp_layers)

    def predictor(self, min_weight: float = MIN_WEIGHT) -> "Predictor":
        """A frozen copy for predictions, much faster than calling the model."""
        return Predictor(self, min_weight)


class Predictor:
    """A frozen copy of a model that keeps L⁻¹ and everything else that does not depend on x.

    Components that weigh less than `min_weight` are not computed; the default is so small because far from all others a
    light component can be all there is. Predictions do not depend on how rows are batched, but for rounding.
    """

    BATCH_ROWS = 20_000  # rows times components handled at a time

    def __init__(self, model: Model, min_weight: float = MIN_WEIGHT) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        if model.rule is not None:
            self.model.rule = model.rule.pruned(min_weight)
            self.model.likelihood = self.model.likelihood.pruned(model.rule.kept(min_weight))
        for layer in self.model.gp_layers:
            layer.cache(True)

    @property
    def num_components(self) -> int:
        """Components computed for each row."""
        return 1 if self.model.rule is None else len(self.model.rule.log_weights())

    @torch.no_grad()
    def __call__(self, X: Array) -> Predictive:
        """The predictive distribution of each row of X (N, D): an array, a tensor or nested lists, standardised.

        Raises:
            InputError: X is not a table of finite numbers with the columns the model was trained on.
        """
        rows = self._rows(X)
        step = max(1, self.BATCH_ROWS // self.num_components // TILE) * TILE
        padded = nn.functional.pad(rows, (0, 0, 0, -len(rows) % TILE))
        first, *rest = (self.model.likelihood(self.model(part)) for part in padded.split(step))
        whole: Predictive = type(first).concat([first, *rest]) if rest else first
        return whole.rows(slice(len(rows))) if len(padded) > len(rows) else whole

    def _rows(self, X: Array) -> Float[Tensor, "N D"]:
        checked = check_X(X)
        if self.model.num_inputs is not None:
            check_width(checked, self.model.num_inputs)
        return torch.from_numpy(checked).to(self.model.gp_layers[0].inducing_points)


def build(
    config: ModelConfig,
    x: Float[Tensor, "N D"],
    num_outputs: int = 1,
    seed: int = 0,
    features: nn.Module | None = None,
) -> Model:
    """A model at its starting values, for training rows `x` (standardised).

    Args:
        config: what to build.
        x: the training rows; inducing points and linear means start from them.
        num_outputs: T.
        seed: of the starting values.
        features: a module of your own in front, instead of the network that `config.features` describes.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):  # nn.Linear draws from the global generator
        torch.manual_seed(seed)
        if features is None and config.features:
            features = feature_network(x.shape[1], config.features)
    dtype = getattr(torch, config.dtype)
    rows = start_rows(x.detach().to("cpu", dtype), config.inducing, generator)
    h = inputs = _start_inputs(rows, features)
    layers: list[GPLayer] = []
    notes: list[str] = []
    for i, width in enumerate(layer_widths(config, num_outputs)):
        kernel_rows, mean_rows = layer_inputs(TOPOLOGIES[config.topology], i, config.layers, h, inputs)
        layers.append(_start_layer(config, i, width, kernel_rows[0], mean_rows[0], generator, notes).to(dtype))
        h = _propagate(layers[-1], kernel_rows, mean_rows, generator)
    model = compose(config, layers, num_outputs, x.shape[1], generator, features, notes)
    for note in notes:
        log.info(note)
    return model.to(x.device, dtype)


def layer_widths(config: ModelConfig, num_outputs: int) -> list[int]:
    """W of each layer; that of the top one is L, the number of latent functions."""
    return [config.width] * (config.layers - 1) + [LIKELIHOODS[config.likelihood].num_latents(num_outputs)]


def layer_inputs(topology: Topology, index: int, num_layers: int, h: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """What the kernels and the means of layer `index` read, of `h` from the layer below and the model's inputs."""
    read = FEEDFORWARD if index in (0, num_layers - 1) else topology
    return read.kernel(h, inputs), read.mean(h, inputs)


def _start_inputs(rows: Float[Tensor, "N D"], features: nn.Module | None) -> Float[Tensor, "1 N D"]:
    """What the first layer will see of the rows."""
    if features is None:
        return rows.unsqueeze(0)
    with torch.no_grad():  # in training mode, so that batch normalisation sees the rows
        inputs: Tensor = features.to(rows).train(len(rows) > 1)(rows)
    return inputs.unsqueeze(0)


def _start_layer(
    config: ModelConfig,
    index: int,
    width: int,
    kernel_rows: Float[Tensor, "N D"],
    mean_rows: Float[Tensor, "N E"],
    generator: torch.Generator,
    notes: list[str],
) -> GPLayer:
    """One layer, started on the rows that its kernels and its means will read."""
    points = kmeans_points(kernel_rows, config.inducing, generator)
    mean_points = kmeans_points(kernel_rows, config.mean_inducing, generator) if config.mean_inducing else None
    for what, asked, found in (
        ("inducing points", config.inducing, points),
        ("points of the mean", config.mean_inducing, mean_points),
    ):
        if found is not None and len(found) < asked:
            notes.append(
                f"{_name(config, index)}: {asked} {what} were asked for, but there are only {len(found)} distinct "
                f"rows; using {len(found)}"
            )
    layer = plain_layer(config, index, width, mean_rows.shape[1], points, mean_points)
    layer.mean.start(mean_rows, generator)
    return layer


def plain_layer(
    config: ModelConfig,
    index: int,
    width: int,
    mean_inputs: int,
    points: Float[Tensor, "M D"],
    mean_points: Float[Tensor, "P D"] | None,
) -> GPLayer:
    """One layer with its inducing points at `points`, everything else at values that do not depend on the rows."""
    top = index == config.layers - 1
    mean = MEANS[config.top_mean if top else config.hidden_mean](mean_inputs, width)
    D = points.shape[1]
    kernel = ARDKernel(config.kernel, width, D, config.lengthscale or 0.5 * D**0.5)
    full, name = config.covariance == "full", _name(config, index)
    return GPLayer(mean, kernel, points, full=full, jitter=config.jitter, mean_points=mean_points, name=name)


def _name(config: ModelConfig, index: int) -> str:
    return f"layer {index + 1} of {config.layers}"


@torch.no_grad()
def _propagate(layer: GPLayer, x: Tensor, mean_x: Tensor, generator: torch.Generator) -> Float[Tensor, "1 N W"]:
    """What the next layer starts on: means, or draws where all means are equal (a layer without a linear mean)."""
    mean: Tensor
    mean, var = layer(x, mean_x)
    if torch.equal(mean, mean[:, :1].expand_as(mean)):
        mean = mean + var.sqrt() * torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
    return mean


def compose(
    config: ModelConfig,
    layers: Sequence[GPLayer],
    num_outputs: int,
    num_inputs: int,
    generator: torch.Generator,
    features: nn.Module | None = None,
    notes: Sequence[str] = (),
) -> Model:
    """The layers with their rule and their likelihood."""
    *hidden, _ = layer_widths(config, num_outputs)
    rule = _rule(config, hidden, generator) if hidden else None
    num_components = None if rule is None else rule.num_components
    likelihood = LIKELIHOODS[config.likelihood](num_outputs, config, num_components, generator)
    return Model(layers, rule, likelihood, features, TOPOLOGIES[config.topology], notes, num_inputs)


def _rule(config: ModelConfig, widths: Sequence[int], generator: torch.Generator) -> Rule:
    return RULES[config.rule](widths, config.sites, config.test_sites, generator)

"""The composition: features? -> [layer -> rule]* -> layer -> latent mixture -> likelihood -> predictive distribution.

Every model of the paper is this composition with different parts (`presets.py`). `Model.forward` returns the latent
mixture; the likelihood turns it into the predictive distribution, which the objective scores in training and which
users get.
"""

import copy
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from dspp.config import ModelConfig
from dspp.errors import InputError
from dspp.features import FeatureNetwork
from dspp.gp.conditional import TILE
from dspp.gp.inducing import kmeans_points, start_rows
from dspp.gp.kernels import ARDKernel
from dspp.gp.layer import GPLayer
from dspp.gp.means import MEANS
from dspp.gp.threads import num_threads, run
from dspp.likelihoods import LIKELIHOODS, Likelihood
from dspp.predictive import LatentMixture, Predictive
from dspp.quadrature import RULES, Rule
from dspp.registry import Registry
from dspp.table.checks import Array, check_width, check_X

log = logging.getLogger("dspp")
MIN_WEIGHT = 1e-30  # lighter components are skipped in predictions

Reader = Callable[[Tensor, Tensor], Tensor]  # (h from the layer below, the model's inputs x) -> inputs of a layer


def _hidden(h: Tensor, x: Tensor) -> Tensor:
    return h


def _inputs(h: Tensor, x: Tensor) -> Tensor:
    return x


def _both(h: Tensor, x: Tensor) -> Tensor:
    return torch.cat([h, x.expand(len(h), -1, -1)], dim=-1)


@dataclass(frozen=True)
class Topology:
    """The inputs of the hidden layers after the first (appendix A.4).

    Example:
        >>> from dspp import DSPPRegressor
        >>> from dspp.model import TOPOLOGIES
        >>> sorted(TOPOLOGIES)
        ['all-from-both', 'feedforward', 'mean-from-both', 'mean-from-input']
        >>> DSPPRegressor(layers=3, topology="all-from-both").spec().model.topology
        'all-from-both'
    """

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
        likelihood: turns the top layer's GPs into a predictive distribution.
        features: any module (N, D) -> (N, D'), trained with the rest.
        topology: the inputs of the hidden layers after the first.
        notes: notes from building the model, for the user.
        num_inputs: D, to check the width of tables; None for no check.

    Example:
        >>> import torch
        >>> from dspp import ModelConfig, build
        >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        >>> model = build(ModelConfig(inducing=8, width=2, sites=4), x)
        >>> latent = model(x[:5])  # of S = 4 components, N = 5 rows, L = 1 latent function
        >>> latent.mean.shape
        torch.Size([4, 5, 1])
        >>> model.likelihood(latent)
        NormalMixture(N=5, S=4, mean 0)
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
            raise InputError(
                f"expected a rule for 2 or more layers and none for 1, got {len(layers)} layers and rule {rule}"
            )
        self.skip = layers[-1].mean.reads_inputs
        self.layers, self.rule, self.likelihood = nn.ModuleList(layers), rule, likelihood
        self.features, self.topology, self.notes, self.num_inputs = features, topology, tuple(notes), num_inputs

    def forward(self, x: Float[Tensor, "N D"], noise_seed: int | None = None) -> LatentMixture:
        """Return the mixture of the latent functions at each row; `likelihood` makes it a predictive distribution.

        Args:
            x: the rows.
            noise_seed: seed of fresh samples for a rule that samples (training); None for its fixed ones (prediction).
        """
        noise = None if noise_seed is None else torch.Generator(x.device).manual_seed(noise_seed)
        inputs = (x if self.features is None else self.features(x)).unsqueeze(0)  # (1, N, D)
        h = inputs
        for i, layer in enumerate(self.layers):
            mean, var = layer(*layer_inputs(self.topology, i, len(self.layers), h, inputs, self.skip))  # (S, N, W)
            if self.rule is not None and i < len(self.layers) - 1:
                h = self.rule.expand(i, mean, var.sqrt(), noise)  # g = μ + ξ σ
        log_weights = mean.new_zeros(1) if self.rule is None else self.rule.log_weights(noise is not None)
        return LatentMixture(log_weights, mean, var)

    def kl(self) -> Float[Tensor, ""]:
        """Return Σ KL(q(u) | p(u)) over all GPs."""
        return torch.stack([layer.kl() for layer in self.gp_layers]).sum()

    @property
    def gp_layers(self) -> list[GPLayer]:
        """The GP layers."""
        return [layer for layer in self.layers if isinstance(layer, GPLayer)]

    @property
    def jitter_increases(self) -> int:
        """Number of times a Cholesky factorisation needed more jitter than configured."""
        return sum(layer.jitter_increases for layer in self.gp_layers)

    def predictor(self, min_weight: float = MIN_WEIGHT) -> "Predictor":
        """Return a frozen copy for predictions, much faster than calling the model."""
        return Predictor(self, min_weight)


class Predictor:
    """A frozen copy of a model that caches L⁻¹ and everything else that does not depend on x.

    Components lighter than `min_weight` are skipped; the default is tiny because far from all others even a light
    component dominates. Predictions do not depend on how rows are batched, except for rounding. Without compiled
    code, each thread takes whole parts of the rows through all layers.

    Example:
        >>> import torch
        >>> from dspp import ModelConfig, build
        >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        >>> predictor = build(ModelConfig(inducing=8, width=2, sites=4), x).predictor()
        >>> predictor(x[:5]).std.shape
        torch.Size([5])
    """

    BATCH_ROWS = 20_000  # rows times components per part

    def __init__(self, model: Model, min_weight: float = MIN_WEIGHT) -> None:
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        if model.rule is not None:
            self.model.rule = model.rule.prune(min_weight)
            self.model.likelihood = self.model.likelihood.prune(model.rule.heavy_components(min_weight))
        for layer in self.model.gp_layers:
            layer.cache(True)

    @property
    def num_components(self) -> int:
        """Components computed per row."""
        return 1 if self.model.rule is None else len(self.model.rule.log_weights())

    def __call__(self, X: Array) -> Predictive:
        """Return the predictive distribution of each row of X (N, D), standardised: array, tensor or nested lists.

        Raises:
            InputError: X is not a table of finite numbers with the columns that the model was trained on.
        """
        checked = check_X(X, may_be_empty=True)
        if self.model.num_inputs is not None:
            check_width(checked, self.model.num_inputs)
        return self.predict(checked)

    @torch.no_grad()
    def predict(self, X: Float[np.ndarray, "N D"] | Float[Tensor, "N D"]) -> Predictive:
        """Return the predictive distribution of rows that have been checked."""
        threads, rows = num_threads(), torch.as_tensor(X).to(self.model.gp_layers[0].inducing_points)
        tiles = max(1, math.ceil(len(rows) / TILE))  # no rows are none of a whole tile
        padded = nn.functional.pad(rows, (0, 0, 0, tiles * TILE - len(rows)))
        compiled = all(layer.compiled for layer in self.model.gp_layers)  # such code has threads of its own
        workers = 1 if compiled else threads
        tasks = [partial(self._predict, part) for part in padded.split(self._part_rows(len(padded), workers))]
        first, *rest = [task() for task in tasks] if compiled else run(tasks)
        whole: Predictive = type(first).concat([first, *rest]) if rest else first
        return whole.rows(slice(len(rows))) if len(padded) > len(rows) else whole

    def _predict(self, rows: Float[Tensor, "N D"]) -> Predictive:
        predictive: Predictive = self.model.likelihood(self.model(rows))
        return predictive

    def _part_rows(self, count: int, workers: int) -> int:
        """Return the rows per part: whole tiles, and as many parts for each worker."""
        largest = max(1, self.BATCH_ROWS // self.num_components // TILE) * TILE
        parts = math.ceil(count / (largest * workers)) * workers
        return math.ceil(count / (parts * TILE)) * TILE


def build(
    config: ModelConfig,
    x: Float[Tensor, "N D"],
    num_outputs: int = 1,
    seed: int = 0,
    features: nn.Module | None = None,
) -> Model:
    """Return a model with initial values for the standardised training rows `x`.

    Args:
        config: settings of the model.
        x: the training rows, which initialise inducing points and linear means.
        num_outputs: T.
        seed: seed of the initial values.
        features: a custom module in front, instead of the network that `config.features` describes.

    Example:
        >>> import torch
        >>> from dspp import ModelConfig, build
        >>> x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
        >>> model = build(ModelConfig(layers=1, inducing=8), x)  # not trained yet; `fit` builds and trains
        >>> model.layers[0].inducing_points.shape  # (W, M, D)
        torch.Size([1, 8, 3])
    """
    generator = torch.Generator().manual_seed(seed)
    dtype = getattr(torch, config.dtype)
    rows = start_rows(x.detach().to("cpu", dtype), config.inducing, generator)
    with torch.random.fork_rng(devices=[]):  # nn.Linear and dropout draw from the global generator
        torch.manual_seed(seed)
        if features is None and config.features:
            features = FeatureNetwork(x.shape[1], config.features)
        inputs = rows.unsqueeze(0)
        if features is not None:
            with torch.no_grad():  # in training mode, so that batch normalisation uses the rows
                inputs = features.to(rows).train(len(rows) > 1)(rows).unsqueeze(0)
    notes: list[str] = []

    def make_layer(index: int, width: int, kernel_rows: Tensor, mean_rows: Tensor) -> tuple[GPLayer, Tensor]:
        layer = _start_layer(config, index, width, kernel_rows[0], mean_rows[0], generator, notes).to(dtype)
        return layer, _propagate(layer, kernel_rows, mean_rows, generator)

    layers = stack_layers(config, inputs, num_outputs, make_layer)
    model = compose(config, layers, num_outputs, x.shape[1], generator, features, notes)
    for note in notes:
        log.info(note)
    return model.to(x.device, dtype)


def layer_widths(config: ModelConfig, num_outputs: int) -> list[int]:
    """Return W of each layer; that of the top layer is L, the number of latent functions."""
    return [config.width] * (config.layers - 1) + [LIKELIHOODS[config.likelihood].num_latents(num_outputs)]


def stack_layers(
    config: ModelConfig,
    inputs: Float[Tensor, "1 N D"],
    num_outputs: int,
    make_layer: Callable[[int, int, Tensor, Tensor], tuple[GPLayer, Tensor]],
) -> list[GPLayer]:
    """Return the layers on these inputs of the first.

    `make_layer` returns a layer and its outputs, given its index, its width, and the inputs of its kernels and means.
    """
    topology, skip = TOPOLOGIES[config.topology], MEANS[config.top_mean].reads_inputs
    h, layers = inputs, []
    for i, width in enumerate(layer_widths(config, num_outputs)):
        layer, h = make_layer(i, width, *layer_inputs(topology, i, config.layers, h, inputs, skip))
        layers.append(layer)
    return layers


def layer_inputs(
    topology: Topology, index: int, num_layers: int, h: Tensor, inputs: Tensor, skip: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the inputs of the kernels and the means of layer `index`, given `h` from the layer below.

    With `skip` the mean of the top layer reads the inputs of the model.
    """
    top = index == num_layers - 1
    read = FEEDFORWARD if index == 0 or top else topology
    return read.kernel(h, inputs), inputs if top and skip else read.mean(h, inputs)


def _start_layer(
    config: ModelConfig,
    index: int,
    width: int,
    kernel_rows: Float[Tensor, "N D"],
    mean_rows: Float[Tensor, "N E"],
    generator: torch.Generator,
    notes: list[str],
) -> GPLayer:
    """Return one layer, initialised on the rows that its kernels and its means read."""
    points = kmeans_points(kernel_rows, config.inducing, generator)
    mean_points = kmeans_points(kernel_rows, config.mean_inducing, generator) if config.mean_inducing else None
    layer = plain_layer(config, index, width, mean_rows.shape[1], points, mean_points)
    for what, asked, found in (
        ("inducing points", config.inducing, points),
        ("points of the mean", config.mean_inducing, mean_points),
    ):
        if found is not None and len(found) < asked:
            notes.append(
                f"{layer.name}: expected {asked} {what}, but there are only {len(found)} distinct rows; "
                f"using {len(found)}"
            )
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
    """Return one layer with inducing points `points` and all else at values that do not depend on the rows."""
    top = index == config.layers - 1
    mean = MEANS[config.top_mean if top else config.hidden_mean](mean_inputs, width)
    D = points.shape[1]
    kernel = ARDKernel(config.kernel, width, D, config.lengthscale or 0.5 * D**0.5)
    full, name = config.covariance == "full", f"layer {index + 1} of {config.layers}"
    return GPLayer(mean, kernel, points, full=full, jitter=config.jitter, mean_points=mean_points, name=name)


@torch.no_grad()
def _propagate(layer: GPLayer, x: Tensor, mean_x: Tensor, generator: torch.Generator) -> Float[Tensor, "1 N W"]:
    """Return the rows that initialise the next layer: means, or draws if all means are equal (no linear mean)."""
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
    """Return a model of these layers, with the rule and the likelihood of the config."""
    *hidden, _ = layer_widths(config, num_outputs)
    rule = RULES[config.rule](hidden, config.sites, config.test_sites, generator) if hidden else None
    num_components = None if rule is None else rule.num_components
    likelihood = LIKELIHOODS[config.likelihood](num_outputs, config, num_components, generator)
    return Model(layers, rule, likelihood, features, TOPOLOGIES[config.topology], notes, num_inputs)

"""Models in a file: their weights, on the structure that their settings describe, made without values first."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dspp.codec import FAR, FINITE, Converter, Range, Tensors, check_range, pack, unpack
from dspp.config import ModelConfig
from dspp.errors import InputError
from dspp.features import FeatureNetwork
from dspp.gp.layer import GPLayer
from dspp.members import Member
from dspp.model import Model, compose, layer_widths, plain_layer, stack_layers

# No larger model can be trained.
MAX_SIZE = 10_000_000
# Σ W M² up to which kernel matrices are factorised as a test, and the number of weights, likewise.
MAX_FACTORISED = 600_000
MAX_COPIED = 2_000_000
# Columns of predictions of boosted trees that a model may read beside its own.
MAX_TREES_READ = 100
SIZES = ("width", "inducing", "mean_inducing", "sites", "test_sites")
# By the beginning of a name; other weights are finite. Training arrives nowhere near the ends.
RANGES = {"layers.": FAR, "rule.": FAR, "likelihood.": Range(-1e10, 1e10)}


@dataclass(frozen=True)
class Described:
    """What is stored of a model beside its weights and settings."""

    num_inputs: int
    has_own_features: bool  # a custom module in front, whose code is not stored
    notes: tuple[str, ...]
    jitter_increases: tuple[int, ...]  # increases of the jitter, per layer


def model_converter(num_inputs: int, num_outputs: int, features: nn.Module | None) -> Converter:
    """Return how models are stored: their weights as tensors, and what else is not in their settings.

    Args:
        num_inputs: D, the number of encoded columns; some models also read predictions of trees.
        num_outputs: T.
        features: the custom features module, if the models have one.
    """

    def restore(plain: Any, weights: Tensors, member: Mapping[str, Any]) -> Model:
        described, config = unpack(Described, {}, plain), member["spec"].model
        inputs = described.num_inputs
        if not num_inputs <= inputs <= num_inputs + MAX_TREES_READ:
            raise InputError(f"Described.num_inputs: expected {num_inputs}, or a few more, got {str(inputs)[:30]}")
        _check_sizes(config, len(weights))
        widths = layer_widths(config, num_outputs)
        inducing = _num_points(weights, "inducing_points", widths, config.inducing)
        means = _num_points(weights, "mean_points", widths, config.mean_inducing) if config.mean_inducing else ()
        own = features if described.has_own_features else None
        model = skeleton(config, inputs, num_outputs, inducing, means, own)
        _check_weights(weights, model.state_dict())
        model.load_state_dict(weights, assign=True)
        model.notes = described.notes
        if len(described.jitter_increases) != len(model.gp_layers) or min(described.jitter_increases) < 0:
            raise InputError(
                f"Described.jitter_increases: expected one count per layer, got {str(described.jitter_increases)[:50]}"
            )
        for layer, count in zip(model.gp_layers, described.jitter_increases, strict=True):
            layer.jitter_increases = count
        return model.eval()

    return Converter(_pack, restore)


def _pack(model: Model, member: Member) -> tuple[dict[str, Any], Tensors]:
    jitter_increases = tuple(layer.jitter_increases for layer in model.gp_layers)
    described = Described(model.num_inputs or 1, has_own_features(member), tuple(model.notes), jitter_increases)
    return pack(described)[1], {name: value.detach().cpu() for name, value in model.state_dict().items()}


def has_own_features(member: Member) -> bool:
    """Return whether the model has a custom features module, which the config does not describe."""
    features, sizes = member.model.features, member.spec.model.features
    return features is not None and not (isinstance(features, FeatureNetwork) and features.sizes == sizes)


def _check_sizes(config: ModelConfig, num_tensors: int) -> None:
    """Refuse sizes that no file can hold, before anything is allocated or raised to a power."""
    if 5 * max(config.layers, len(config.features)) > num_tensors:  # each has at least 5
        raise InputError(
            f"expected at least 5 tensors per layer, got {config.layers} layers and {len(config.features)} feature "
            f"sizes in {num_tensors} tensors"
        )
    sizes = [(name, getattr(config, name)) for name in SIZES] + [("features", size) for size in config.features]
    for name, size in sizes:
        if size > MAX_SIZE or (name == "features" and size < 1):
            raise InputError(f"ModelConfig.{name}: expected 1 to {MAX_SIZE}, got {str(size)[:30]}")


def _num_points(weights: Tensors, name: str, widths: list[int], most: int) -> list[int]:
    """Return M of each layer, from its points (W, M, D); less than in the config if there were fewer distinct rows."""
    shapes = [tuple(weights.get(f"layers.{i}.{name}", torch.empty(0)).shape) for i in range(len(widths))]
    for i, (shape, W) in enumerate(zip(shapes, widths, strict=True)):
        if len(shape) != 3 or shape[0] != W or not 1 <= shape[1] <= most or shape[2] < 1:
            raise InputError(f"layers.{i}.{name}: expected shape ({W}, M, D) with M from 1 to {most}, got {shape}")
    return [shape[1] for shape in shapes]


def _check_weights(weights: Tensors, expected: Mapping[str, Tensor]) -> None:
    """Check names, types, shapes and ranges of the weights of a model."""
    for name in sorted(weights.keys() ^ expected.keys()):
        raise InputError(f"{name:.100}: {'not a tensor of this model' if name in weights else 'the tensor is missing'}")
    for name, wanted in expected.items():
        got = weights[name]
        if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
            raise InputError(
                f"{name}: expected {wanted.dtype} of shape {tuple(wanted.shape)}, got {got.dtype} of {tuple(got.shape)}"
            )
        if got.is_floating_point() and got.numel():
            bounds = next((ends for start, ends in RANGES.items() if name.startswith(start)), FINITE)
            check_range(name, bounds, *map(float, got.aminmax()))


def cheap_to_factorise(models: Sequence[Model]) -> bool:
    """Return whether predictors of these models are cheap enough to create just as a test."""
    elements = 0
    for layer in (layer for model in models for layer in model.gp_layers):
        W, M, _ = layer.inducing_points.shape
        P = 0 if layer.mean_points is None else layer.mean_points.shape[1]
        elements += W * (M + P) ** 2
    numbers = sum(p.numel() for model in models for p in model.parameters())
    return elements <= MAX_FACTORISED and numbers <= MAX_COPIED


# ---------------------------------------------------------------- the structure without values


def skeleton(
    config: ModelConfig,
    num_inputs: int,
    num_outputs: int,
    inducing: Sequence[int],
    mean_inducing: Sequence[int] = (),
    features: nn.Module | None = None,
) -> Model:
    """Return a model with the structure that `build` creates, on the meta device, so that no size costs memory.

    Args:
        config: settings of the model.
        num_inputs: D.
        num_outputs: T.
        inducing: M of each layer, less than `config.inducing` if there were fewer distinct rows.
        mean_inducing: the same for the mean bases, if the config has them.
        features: a custom module in front; a copy is taken, including its values.

    Raises:
        InputError: the sizes do not match the config.
        RuntimeError: from torch, if a tensor would have 2⁶³ bytes or more.
    """
    for sizes, needed in ((inducing, config.layers), (mean_inducing, config.layers if config.mean_inducing else 0)):
        if len(sizes) != needed or min(sizes, default=1) < 1:
            raise InputError(f"inducing points: expected {needed} numbers >= 1, got {str(sizes)[:50]}")
    dtype = getattr(torch, config.dtype)
    if features is not None:
        features = copy.deepcopy(features).to("cpu", dtype).eval()
    front = num_inputs if features is None else _num_features(features, torch.zeros(1, num_inputs, dtype=dtype))

    def make_layer(index: int, width: int, kernel_rows: Tensor, mean_rows: Tensor) -> tuple[GPLayer, Tensor]:
        D, E = kernel_rows.shape[-1], mean_rows.shape[-1]
        mean_points = torch.empty(mean_inducing[index], D) if mean_inducing else None
        layer = plain_layer(config, index, width, E, torch.empty(inducing[index], D), mean_points)
        return layer, torch.empty(1, 1, width)

    with torch.device("meta"), _RealNumbers():
        if features is None and config.features:
            features, front = FeatureNetwork(num_inputs, config.features).to(dtype), config.features[-1]
        layers = stack_layers(config, torch.empty(1, 1, front), num_outputs, make_layer)
        model = compose(config, layers, num_outputs, num_inputs, torch.Generator()).to("meta", dtype)
    model.features = features
    return model


@torch.no_grad()
def _num_features(features: nn.Module, row: Float[Tensor, "1 D"]) -> int:
    """Return the number of outputs of a custom module."""
    try:
        return int(features(row).shape[-1])
    except Exception as problem:  # whatever the user's code raises
        raise InputError(
            f"the features module cannot take a row of {row.shape[-1]} columns ({type(problem).__name__}: {problem}); "
            "pass the module that the model was trained with"
        ) from problem


# Functions that create initial values, and the shapes of their results. On the meta device these would import torch's
# compiler and sympy: 2 seconds and 90 MB.
_MAKERS: dict[Callable[..., Any], Callable[..., Sequence[int]]] = {
    torch.randn: lambda *size, **_: size[0] if isinstance(size[0], Sequence) else size,
    torch.eye: lambda size, **_: (size, size),
    torch.diag_embed: lambda tensor: (*tensor.shape, tensor.shape[-1]),
    torch.log_softmax: lambda tensor, *_: tensor.shape,
    Tensor.clone: lambda tensor: tensor.shape,
}


class _RealNumbers(TorchFunctionMode):
    """Inside `torch.device("meta")`, lets `torch.tensor(...)` keep its values: initial values need numbers."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Run `torch.tensor` on the CPU, and create only shapes otherwise."""
        kwargs = kwargs or {}
        if func is torch.tensor:
            return func(*args, **{"device": "cpu", **kwargs})
        on_cpu = any(isinstance(arg, Tensor) and not arg.is_meta for arg in args)
        if func in _MAKERS and not on_cpu:
            like = args[0] if isinstance(args[0], Tensor) else None
            return torch.empty(
                _MAKERS[func](*args, **kwargs), dtype=kwargs.get("dtype") if like is None else like.dtype
            )
        return func(*args, **kwargs)

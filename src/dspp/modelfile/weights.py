"""Models in a file: their weights, on the structure that their settings describe."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dspp.codec import FAR, FINITE, Converter, Range, Tensors, check_range, pack, unpack
from dspp.config import ModelConfig
from dspp.errors import InputError
from dspp.features import feature_network
from dspp.members import Member
from dspp.model import Model, layer_widths
from dspp.modelfile.skeleton import skeleton

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
    climbs: tuple[int, ...]  # increases of the jitter, per layer


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
        if len(described.climbs) != len(model.gp_layers) or min(described.climbs) < 0:
            raise InputError(f"Described.climbs: expected one count per layer, got {str(described.climbs)[:50]}")
        for layer, count in zip(model.gp_layers, described.climbs, strict=True):
            layer.climbs = count
        return model.eval()

    return Converter(_pack, restore)


def _pack(model: Model, member: Member) -> tuple[dict[str, Any], Tensors]:
    climbs = tuple(layer.climbs for layer in model.gp_layers)
    described = Described(model.num_inputs or 1, has_own_features(member), tuple(model.notes), climbs)
    return pack(described)[1], {name: value.detach().cpu() for name, value in model.state_dict().items()}


def has_own_features(member: Member) -> bool:
    """Return whether the model has a custom features module, which the config does not describe."""
    features, sizes = member.model.features, member.spec.model.features
    if features is None or not sizes:
        return features is not None
    with torch.device("meta"):
        described = feature_network(member.model.num_inputs or 1, sizes)
    types = [type(module) for module in described.modules()]
    return types != [type(module) for module in features.modules()] or repr(described) != repr(features)


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

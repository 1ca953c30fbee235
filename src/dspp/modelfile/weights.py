"""The tensors: weights of models and other numbers of a `Fitted`, validated when read."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from dspp.calibration import Conformal, CrossConformal
from dspp.config import ModelConfig
from dspp.encoding.scaling import Standardizer, standardise
from dspp.encoding.warping import Warp
from dspp.errors import InputError
from dspp.features import feature_network
from dspp.fitted import Fitted
from dspp.guard import Guard
from dspp.members import Member
from dspp.model import Model, layer_widths
from dspp.modelfile.header import get, one_of
from dspp.modelfile.ranges import check_range
from dspp.modelfile.skeleton import skeleton
from dspp.seen import MOST_HASHES, Hashes
from dspp.table.messages import Place
from dspp.trees import Trees

MAX_TENSORS = 5_000  # each may need a module
MAX_MEMBERS = 100
MAX_SIZE = 10_000_000  # of the counts in a config; no larger model can be trained
MAX_GUARD = 100  # components of the guard
MAX_SCORES = 10_000_000  # calibration scores
MAX_FACTORISED = 600_000  # Σ W M² up to which kernel matrices are factorised as a test
MAX_COPIED = 2_000_000  # number of weights, likewise
SIZES = ("width", "inducing", "mean_inducing", "sites", "test_sites")
GUARD = ("log_weights", "mean", "var")
WARP = ("centre", "unit", "power", "mean", "scale")
SHARED = ("guard.", "trees.", "warp.")  # prefixes of tensors that belong to no member
SCALES = ("scale_X.mean", "scale_X.scale", "scale_y.mean", "scale_y.scale")
MEMBER = re.compile(r"members\.\d+\.model\.")  # prefix of tensors of a member
OTHERS = (*SCALES, "input_range", "seen_rows", "conformal", "conformal_folds")

Tensors = dict[str, Tensor]


def write_tensors(fitted: Fitted) -> Tensors:
    """Return all tensors that predictions need."""
    tensors = {
        f"members.{k}.model.{name}": value.detach().cpu()
        for k, member in enumerate(fitted.members)
        for name, value in member.model.state_dict().items()
    }
    for name, scale in (("scale_X", fitted.scale_X), ("scale_y", fitted.outcome.scale)):
        tensors |= {f"{name}.mean": torch.tensor(scale.mean), f"{name}.scale": torch.tensor(scale.scale)}
    if fitted.scale_X.warp is not None:
        tensors |= {f"warp.{name}": torch.tensor(getattr(fitted.scale_X.warp, name)) for name in WARP}
    if fitted.input_range is not None:
        tensors["input_range"] = torch.tensor(fitted.input_range)
    if fitted.seen_rows is not None:
        tensors["seen_rows"] = torch.tensor(fitted.seen_rows)
    if fitted.guard is not None:
        tensors |= {f"guard.{name}": getattr(fitted.guard, name) for name in GUARD}
    if fitted.trees is not None:
        tensors |= {f"trees.{name}": value for name, value in fitted.trees.tensors().items()}
    if fitted.conformal is not None:
        tensors["conformal"] = fitted.conformal.detach().cpu()
    if fitted.conformal_folds is not None:
        tensors["conformal_folds"] = fitted.conformal_folds.cpu()
    return tensors


def has_own_features(member: Member, num_inputs: int) -> bool:
    """Return whether the model has a custom features module, which the config does not describe."""
    features, sizes = member.model.features, member.spec.model.features
    if features is None or not sizes:
        return features is not None
    with torch.device("meta"):
        described = feature_network(num_inputs, sizes)
    types = [type(module) for module in described.modules()]
    return types != [type(module) for module in features.modules()] or repr(described) != repr(features)


def check_tensors(tensors: Tensors) -> None:
    """Check the number of tensors, their names, and the range of their numbers (without a copy)."""
    if len(tensors) > MAX_TENSORS:
        raise InputError(f"expected at most {MAX_TENSORS} tensors, got {len(tensors)}")
    for name, value in tensors.items():
        if not name.startswith(("members.", *SHARED)) and name not in OTHERS:
            raise InputError(f"{name:.100}: not a tensor of a model file")
        if value.is_floating_point() and value.numel():
            check_range(MEMBER.sub("", name), *map(float, value.aminmax()))


def split_members(tensors: Tensors, count: int) -> list[Tensors]:
    """Return the weights of each member by name, for the number of members in the header."""
    if not 1 <= count <= MAX_MEMBERS:
        raise InputError(f"members: expected 1 to {MAX_MEMBERS}, got {count}")
    prefixes = {f"members.{k}.model.": Tensors() for k in range(count)}
    for name in tensors:
        if name in OTHERS or name.startswith(SHARED):
            continue
        prefix = name[: name.find(".model.") + len(".model.")]
        if prefix not in prefixes:
            raise InputError(f"{name:.100}: not a tensor of this model, whose members are numbered 0 to {count - 1}")
        prefixes[prefix][name.removeprefix(prefix)] = tensors[name]
    return list(prefixes.values())


def read_model(
    config: ModelConfig, weights: Tensors, values: Mapping[str, Any], size: tuple[int, int], features: nn.Module | None
) -> Model:
    """Return the model of `config` with the weights of the file, which must match exactly.

    Args:
        config: settings of the model.
        weights: its weights by name.
        values: the member's part of the header.
        size: D and T.
        features: the custom features module, if the model has one.
    """
    own = one_of(get(values, "features", str), ("config", "custom")) == "custom"
    _check_sizes(config, len(weights))
    D, T = size
    widths = layer_widths(config, T)
    inducing = _num_points(weights, "inducing_points", widths, config.inducing)
    mean_inducing = _num_points(weights, "mean_points", widths, config.mean_inducing) if config.mean_inducing else ()
    model = skeleton(config, D, T, inducing, mean_inducing, features if own else None)
    _check_weights(weights, model.state_dict())
    model.load_state_dict(weights, assign=True)
    _restore_history(model, values)
    return model.eval()


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
    for name in sorted(weights.keys() ^ expected.keys()):
        raise InputError(f"{name:.100}: {'not a tensor of this model' if name in weights else 'the tensor is missing'}")
    for name, wanted in expected.items():
        got = weights[name]
        if (got.shape, got.dtype) != (wanted.shape, wanted.dtype):
            raise InputError(
                f"{name}: expected {wanted.dtype} of shape {tuple(wanted.shape)}, got {got.dtype} of {tuple(got.shape)}"
            )


def _restore_history(model: Model, values: Mapping[str, Any]) -> None:
    model.notes = tuple(get(values, "model_notes", list[str]))
    climbs = get(values, "jitter_climbs", list[int])
    if len(climbs) != len(model.gp_layers) or min(climbs) < 0:
        raise InputError(f"jitter_climbs: expected one count per layer, got {str(climbs)[:50]}")
    for layer, count in zip(model.gp_layers, climbs, strict=True):
        layer.climbs = count


def read_scale(tensors: Tensors, name: str, shape: tuple[int, ...]) -> Standardizer:
    """Return mean and scale of the columns."""
    none = torch.empty(0)
    mean, scale = (tensors.get(f"{name}.{part}", none) for part in ("mean", "scale"))
    if not all(part.dtype == torch.float64 and part.shape == shape and part.numel() for part in (mean, scale)):
        raise InputError(f"{name}: expected a mean and a scale of shape {shape} in float64")
    return Standardizer(mean.numpy(), scale.numpy())


def read_warp(tensors: Tensors, num_inputs: int) -> Warp | None:
    """Return the warp of the inputs, if there is one."""
    found = _shared_tensors(tensors, "warp.", True)
    if not found:
        return None
    parts = [found.get(name, torch.empty(0)) for name in WARP]
    fit = all(part.dtype == torch.float64 and part.shape == (num_inputs,) for part in parts)
    if found.keys() != set(WARP) or not fit:
        raise InputError(f"warp: expected {', '.join(WARP)} of shape ({num_inputs},) in float64")
    return Warp(*(part.numpy() for part in parts))


def read_input_range(tensors: Tensors, scale: Standardizer) -> Float[np.ndarray, "2 D"] | None:
    """Return the range of each encoded column, which must fit the scale; None in files that do not store it."""
    if "input_range" not in tensors:
        return None
    ends, num_inputs = tensors["input_range"], len(scale.mean)
    if ends.dtype != torch.float64 or tuple(ends.shape) != (2, num_inputs) or bool((ends[0] > ends[1]).any()):
        raise InputError(f"input_range: expected float64 ranges of {num_inputs} columns, got others")
    standardise(ends.numpy(), scale, "float32", None, Place("input_range"))
    return np.asarray(ends.numpy())


def read_seen_rows(tensors: Tensors) -> Hashes | None:
    """Return the hashes of training rows; None in files that do not store them."""
    if "seen_rows" not in tensors:
        return None
    hashes = tensors["seen_rows"]
    fit = hashes.dtype == torch.int64 and hashes.ndim == 1 and 1 <= len(hashes) <= MOST_HASHES
    if not fit or bool((hashes.diff() <= 0).any()):
        raise InputError(f"seen_rows: expected up to {MOST_HASHES} numbers in ascending order, got others")
    return np.asarray(hashes.numpy())


def read_guard(tensors: Tensors, weight: float | None, num_outputs: int) -> Guard | None:
    """Return the guard of this weight, or None without a weight."""
    found = _shared_tensors(tensors, "guard.", weight is not None)
    if weight is None:
        return None
    check_range("guard", float(weight), float(weight))
    for name in found.keys() - set(GUARD):
        raise InputError(f"guard.{name:.100}: not a tensor of a guard")
    parts = [found.get(name, torch.empty(0)) for name in GUARD]
    count = parts[0].numel()
    shapes = [(count,), (count, num_outputs), (count, num_outputs)]
    fit = all(
        part.dtype == torch.float64 and tuple(part.shape) == shape for part, shape in zip(parts, shapes, strict=True)
    )
    if not fit or not 1 <= count <= MAX_GUARD or abs(float(parts[0].exp().sum()) - 1.0) > 1e-6:
        raise InputError(f"guard: expected 1 to {MAX_GUARD} components of {num_outputs} outputs whose weights sum to 1")
    return Guard(float(weight), *parts)


def read_trees(tensors: Tensors, exist: bool, num_inputs: int) -> Trees | None:
    """Return the boosted trees, if they exist."""
    found = _shared_tensors(tensors, "trees.", exist)
    return Trees.from_tensors(found, num_inputs) if exist else None


def _shared_tensors(tensors: Tensors, prefix: str, expected: bool) -> Tensors:
    """Return the tensors with this prefix, without it; none may be there unless the header says so."""
    found = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    if found and not expected:
        raise InputError(f"{prefix}{next(iter(found)):.100}: not a tensor of this model, as its header says")
    return found


def read_scores(tensors: Tensors, num_outputs: int) -> tuple[Tensor | None, Tensor | None]:
    """Return the calibration scores, one column per output, and their folds, if they have any."""
    scores, folds = tensors.get("conformal"), tensors.get("conformal_folds")
    if scores is None:
        if folds is not None:
            raise InputError("conformal_folds: expected none without scores in conformal")
        return None, None
    if tuple(scores.shape[1:]) != (num_outputs,) or not 1 <= scores.numel() <= MAX_SCORES:
        expected = f"(n, {num_outputs}) with at most {MAX_SCORES} scores"
        raise InputError(f"conformal: expected shape {expected}, got {tuple(scores.shape)}")
    if folds is None:
        return Conformal(scores).scores, None
    if not bool((folds < MAX_MEMBERS).all()):  # folds that no member held out are refused by `Fitted`
        raise InputError(f"conformal_folds: expected folds below {MAX_MEMBERS}, got {folds.max().item()}")
    return CrossConformal(scores, folds).scores, folds


def cheap_to_factorise(models: Sequence[Model]) -> bool:
    """Return whether predictors of these models are cheap enough to create just as a test."""
    elements = 0
    for layer in (layer for model in models for layer in model.gp_layers):
        W, M, _ = layer.inducing_points.shape
        P = 0 if layer.mean_points is None else layer.mean_points.shape[1]
        elements += W * (M + P) ** 2
    numbers = sum(p.numel() for model in models for p in model.parameters())
    return elements <= MAX_FACTORISED and numbers <= MAX_COPIED

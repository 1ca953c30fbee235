"""The structure of a model without values: what a file's weights must fit, made before any of them is read."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from dspp.config import ModelConfig
from dspp.errors import InputError
from dspp.features import feature_network
from dspp.gp.layer import GPLayer
from dspp.model import TOPOLOGIES, Model, compose, layer_inputs, layer_widths, plain_layer


def skeleton(
    config: ModelConfig,
    num_inputs: int,
    num_outputs: int,
    inducing: Sequence[int],
    mean_inducing: Sequence[int] = (),
    features: nn.Module | None = None,
) -> Model:
    """The structure that `build` gives a model, without values: on the meta device, so that no size costs memory.

    Args:
        config: what to build.
        num_inputs: D.
        num_outputs: T.
        inducing: M of each layer, which is less than `config.inducing` where there were fewer distinct rows.
        mean_inducing: the same for the mean bases, where the config has them.
        features: a module of your own in front; a copy of it is taken, values and all.

    Raises:
        InputError: the sizes do not fit the config.
        RuntimeError: of torch, where a tensor would have 2⁶³ bytes or more.
    """
    for sizes, needed in ((inducing, config.layers), (mean_inducing, config.layers if config.mean_inducing else 0)):
        if len(sizes) != needed or min(sizes, default=1) < 1:
            raise InputError(f"got {str(sizes)[:50]} inducing points, expected {needed} numbers of at least 1")
    dtype = getattr(torch, config.dtype)
    if features is not None:
        features = copy.deepcopy(features).to("cpu", dtype).eval()
    front = num_inputs if features is None else _num_features(features, torch.zeros(1, num_inputs, dtype=dtype))
    with torch.device("meta"), _NumbersHaveValues():
        if features is None and config.features:
            features, front = feature_network(num_inputs, config.features).to(dtype), config.features[-1]
        layers = _bare_layers(config, front, num_outputs, inducing, mean_inducing)
        model = compose(config, layers, num_outputs, num_inputs, torch.Generator()).to("meta", dtype)
    model.features = features
    return model


def _bare_layers(
    config: ModelConfig, front: int, num_outputs: int, inducing: Sequence[int], mean_inducing: Sequence[int]
) -> list[GPLayer]:
    """The layers on `front` inputs, without values."""
    h = inputs = torch.empty(1, 1, front)
    layers: list[GPLayer] = []
    for i, width in enumerate(layer_widths(config, num_outputs)):
        kernel_row, mean_row = layer_inputs(TOPOLOGIES[config.topology], i, config.layers, h, inputs)
        D = kernel_row.shape[-1]
        mean_points = torch.empty(mean_inducing[i], D) if mean_inducing else None
        layers.append(plain_layer(config, i, width, mean_row.shape[-1], torch.empty(inducing[i], D), mean_points))
        h = torch.empty(1, 1, width)
    return layers


@torch.no_grad()
def _num_features(features: nn.Module, row: Float[Tensor, "1 D"]) -> int:
    """How many numbers a module of the user's makes of a row."""
    try:
        return int(features(row).shape[-1])
    except Exception as problem:  # whatever the user's code raises
        raise InputError(
            f"the module given as features cannot take a row of {row.shape[-1]} columns "
            f"({type(problem).__name__}: {problem}); give the module that the model was trained with"
        ) from problem


# What makes starting values, and the shape of what it makes. On the meta device these would import torch's compiler and
# sympy: 2 seconds and 90 MB.
_MAKERS: dict[Callable[..., Any], Callable[..., Sequence[int]]] = {
    torch.randn: lambda *size, **_: size[0] if isinstance(size[0], Sequence) else size,
    torch.eye: lambda size, **_: (size, size),
    torch.diag_embed: lambda tensor: (*tensor.shape, tensor.shape[-1]),
    torch.log_softmax: lambda tensor, *_: tensor.shape,
    Tensor.clone: lambda tensor: tensor.shape,
}


class _NumbersHaveValues(TorchFunctionMode):
    """Inside `torch.device("meta")`, `torch.tensor(...)` still holds what it is given: starting values need numbers."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Send `torch.tensor` to the CPU; make nothing but shapes otherwise."""
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

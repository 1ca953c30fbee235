"""The structure of a model without values, which the weights of a file must match."""

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
from dspp.gp.means import MEANS
from dspp.model import TOPOLOGIES, Model, compose, layer_inputs, layer_widths, plain_layer


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
    with torch.device("meta"), _RealNumbers():
        if features is None and config.features:
            features, front = feature_network(num_inputs, config.features).to(dtype), config.features[-1]
        layers = _bare_layers(config, front, num_outputs, inducing, mean_inducing)
        model = compose(config, layers, num_outputs, num_inputs, torch.Generator()).to("meta", dtype)
    model.features = features
    return model


def _bare_layers(
    config: ModelConfig, front: int, num_outputs: int, inducing: Sequence[int], mean_inducing: Sequence[int]
) -> list[GPLayer]:
    """Return the layers on `front` inputs, without values."""
    h = inputs = torch.empty(1, 1, front)
    layers: list[GPLayer] = []
    for i, width in enumerate(layer_widths(config, num_outputs)):
        kernel_row, mean_row = layer_inputs(
            TOPOLOGIES[config.topology], i, config.layers, h, inputs, MEANS[config.top_mean].reads_inputs
        )
        D = kernel_row.shape[-1]
        mean_points = torch.empty(mean_inducing[i], D) if mean_inducing else None
        layers.append(plain_layer(config, i, width, mean_row.shape[-1], torch.empty(inducing[i], D), mean_points))
        h = torch.empty(1, 1, width)
    return layers


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

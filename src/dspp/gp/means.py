"""Mean functions of a layer: (S, N, D) -> (S, N, W)."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from dspp.registry import Registry

MEANS: Registry[type["Mean"]] = Registry("mean")


class Mean(nn.Module, ABC):
    """W mean functions of D inputs.

    Attributes:
        reads_inputs: whether a top layer with this mean gives it the inputs of the model, not those of the layer.
    """

    reads_inputs = False

    def __init__(self, num_inputs: int, width: int) -> None:
        super().__init__()
        self.num_inputs, self.width = num_inputs, width

    @abstractmethod
    def forward(self, x: Float[Tensor, "S N D"]) -> Float[Tensor, "S N W"]:
        """Return the mean at each row; an axis S or N that it does not depend on may have size 1."""

    def start(self, x: Float[Tensor, "N D"], generator: torch.Generator) -> None:
        """Initialise parameters from the rows the layer reads."""


@MEANS.register("zero")
class ZeroMean(Mean):
    """Zero."""

    def forward(self, x: Float[Tensor, "S N D"]) -> Float[Tensor, "S N W"]:
        return x.new_zeros(1, 1, self.width)


@MEANS.register("constant")
class ConstantMean(Mean):
    """A learned constant for each GP."""

    def __init__(self, num_inputs: int, width: int) -> None:
        super().__init__(num_inputs, width)
        self.constant = nn.Parameter(torch.zeros(width, dtype=torch.float32))

    def forward(self, x: Float[Tensor, "S N D"]) -> Float[Tensor, "S N W"]:
        return self.constant.expand(1, 1, -1)


@MEANS.register("linear")
class LinearMean(Mean):
    """Learned weights and a bias for each GP: x w + b.

    Initialised along random directions, each scaled so that x w has unit variance over the training rows: hidden units
    then have scale 1 whatever the number of inputs and their correlations. (With the usual randn they grow like √D.)
    """

    def __init__(self, num_inputs: int, width: int) -> None:
        super().__init__(num_inputs, width)
        self.weight = nn.Parameter(torch.zeros(num_inputs, width, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(width, dtype=torch.float32))

    def forward(self, x: Float[Tensor, "S N D"]) -> Float[Tensor, "S N W"]:
        return x @ self.weight + self.bias

    @torch.no_grad()
    def start(self, x: Float[Tensor, "N D"], generator: torch.Generator) -> None:
        """Draw the directions and scale them to unit variance over `x`."""
        directions = torch.randn(self.weight.shape, generator=generator, dtype=torch.float64)
        spread = (x.to("cpu", torch.float64) @ directions).std(0, correction=0)
        self.weight.copy_(directions / torch.where(spread > 1e-6, spread, float(self.num_inputs) ** 0.5))


@MEANS.register("last-input")
class LastInputMean(Mean):
    """A constant for each GP and, for the first, the last input of the model, which is itself a prediction of y.

    The first GP thus describes what that prediction gets wrong: its mean is b + a x_D, where a starts at 1.
    """

    reads_inputs = True

    def __init__(self, num_inputs: int, width: int) -> None:
        super().__init__(num_inputs, width)
        self.constant = nn.Parameter(torch.zeros(width, dtype=torch.float32))
        self.slope = nn.Parameter(torch.ones((), dtype=torch.float32))

    def forward(self, x: Float[Tensor, "S N D"]) -> Float[Tensor, "S N W"]:
        """Return b + a x_D for the first GP, b for the others."""
        return self.constant + nn.functional.pad(self.slope * x[..., -1:], (0, self.width - 1))

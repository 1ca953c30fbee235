"""Adam (Kingma & Ba 2015) on torch's fused kernel, with the same numbers as `torch.optim.Adam(fused=True)`.

The class of torch imports its compiler on first use, which takes one to three seconds in every process, and spends
about a millisecond per step on bookkeeping: a tenth of a step on a small table.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

BETAS, EPSILON = (0.9, 0.999), 1e-8

Moments = dict[int, dict[str, Tensor]]  # "step", "exp_avg" and "exp_avg_sq" of each parameter, by number


class Adam:
    """Adam on groups of parameters.

    Args:
        groups: "params" and "weight_decay" of each group; parameters are numbered in this order.
        rate: The learning rate.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], rate: float) -> None:
        self.param_groups = [{"weight_decay": 0.0, "lr": rate, **group} for group in groups]
        self.moments: Moments = {}

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters, by number."""
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def zero_grad(self) -> None:
        """Clear the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update all parameters that have a gradient."""
        number = 0
        for group in self.param_groups:
            alike: dict[tuple[torch.device, torch.dtype], list[tuple[Tensor, ...]]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    kept = self.moments.setdefault(number, {}) or self._start(number, parameter)
                    parts = (parameter, parameter.grad, kept["exp_avg"], kept["exp_avg_sq"], kept["step"])
                    alike.setdefault((parameter.device, parameter.dtype), []).append(parts)
                number += 1
            for found in alike.values():
                parameters, gradients, means, squares, steps = (list(parts) for parts in zip(*found, strict=True))
                torch._foreach_add_(steps, 1)
                torch._fused_adam_(
                    parameters,
                    gradients,
                    means,
                    squares,
                    [],
                    steps,
                    lr=group["lr"],
                    beta1=BETAS[0],
                    beta2=BETAS[1],
                    weight_decay=group["weight_decay"],
                    eps=EPSILON,
                    amsgrad=False,
                    maximize=False,
                )

    def _start(self, number: int, parameter: Tensor) -> dict[str, Tensor]:
        self.moments[number] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        return self.moments[number]

    def load(self, moments: Moments) -> None:
        """Continue from these moments, of which copies are kept.

        Raises:
            ValueError: They belong to other parameters.
        """
        parameters = self.parameters
        for number, kept in moments.items():
            if not 0 <= number < len(parameters) or kept["exp_avg"].shape != parameters[number].shape:
                raise ValueError(f"parameter {number}: the moments of the optimiser belong to another model")
        self.moments = {
            number: {
                name: value.to(
                    parameters[number].device, value.dtype if name == "step" else parameters[number].dtype, copy=True
                )
                for name, value in kept.items()
            }
            for number, kept in moments.items()
        }

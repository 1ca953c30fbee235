"""Adam (Kingma & Ba 2015) on torch's fused kernel, with the same numbers as `torch.optim.Adam(fused=True)`.

The class of torch imports its compiler on first use, which takes one to three seconds in every process, and spends
about a millisecond per step on bookkeeping: a tenth of a step on a small table.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

BETAS, EPSILON = (0.9, 0.999), 1e-8


class Adam:
    """Adam for a model, with weight decay on its feature network only (appendix A.5).

    Attributes:
        moments: The number of steps and the moments of each parameter, by names such as `layers.0.q.mean.exp_avg`.
    """

    def __init__(self, model: nn.Module, weight_decay: float) -> None:
        self.parameters = list(model.parameters())
        self.moments: dict[str, Tensor] = {}
        self._groups: dict[float, dict[str, nn.Parameter]] = {}  # by weight decay, then by name
        for name, parameter in model.named_parameters():
            decay = weight_decay if name.startswith("features.") else 0.0
            self._groups.setdefault(decay, {})[name] = parameter
            self.moments[f"{name}.step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            self.moments[f"{name}.exp_avg"] = torch.zeros_like(parameter)
            self.moments[f"{name}.exp_avg_sq"] = torch.zeros_like(parameter)

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Update all parameters that have a gradient."""
        for decay, group in self._groups.items():
            gradients = {name: parameter.grad for name, parameter in group.items() if parameter.grad is not None}
            if not gradients:
                continue
            steps = [self.moments[f"{name}.step"] for name in gradients]
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                [group[name] for name in gradients],
                list(gradients.values()),
                [self.moments[f"{name}.exp_avg"] for name in gradients],
                [self.moments[f"{name}.exp_avg_sq"] for name in gradients],
                [],
                steps,
                lr=rate,
                beta1=BETAS[0],
                beta2=BETAS[1],
                weight_decay=decay,
                eps=EPSILON,
                amsgrad=False,
                maximize=False,
            )

    def load(self, moments: Mapping[str, Tensor]) -> None:
        """Continue from these moments, of which copies are kept.

        Raises:
            ValueError: They belong to other parameters.
        """
        if {name: part.shape for name, part in moments.items()} != {n: part.shape for n, part in self.moments.items()}:
            raise ValueError("the moments of the optimiser belong to another model")
        for name, part in self.moments.items():
            part.copy_(moments[name])

"""Classes by sigma points, Σ_s ω_s softmax(μ_s + ξ_s σ_s): in the role of a file of `likelihoods/`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dspp.likelihoods import LIKELIHOODS, Likelihood


@dataclass(frozen=True, eq=False)
class Classes:
    """P(class) of each row; observed classes are numbers from 0, (N,) or (N, 1)."""

    log_probabilities: Tensor  # (N, K)

    num_outputs: ClassVar[int] = 1
    num_components: ClassVar[int] = 1

    @property
    def num_rows(self) -> int:
        return len(self.log_probabilities)

    def __len__(self) -> int:
        return self.num_rows

    @property
    def probabilities(self) -> Tensor:
        return self.log_probabilities.exp()

    @property
    def finite(self) -> Tensor:
        return (self.log_probabilities.logsumexp(1).abs() < 1e-4) & ~self.log_probabilities.isnan().any(1)

    def log_prob(self, y: Any) -> Tensor:
        codes = torch.as_tensor(y).to(self.log_probabilities.device).reshape(-1, 1).long()
        return self.log_probabilities.gather(1, codes).squeeze(1)

    def pdf(self, y: Any) -> Tensor:
        return self.log_prob(y).exp()

    def sample(self, num: int, generator: torch.Generator | None = None) -> Tensor:
        return torch.multinomial(self.probabilities, num, replacement=True, generator=generator).T

    def outputs(self) -> list[Any]:
        return []  # none is a real number

    def rows(self, index: Any) -> "Classes":
        return Classes(self.log_probabilities[index])

    @classmethod
    def concat(cls, parts: Sequence["Classes"]) -> "Classes":
        return cls(torch.cat([part.log_probabilities for part in parts]))

    @classmethod
    def mix(cls, parts: Sequence["Classes"], weights: Sequence[float]) -> "Classes":
        kept = [part.log_probabilities + math.log(w) for part, w in zip(parts, weights, strict=True) if w > 0.0]
        return cls(torch.logsumexp(torch.stack(kept), dim=0))

    def widen(self, factor: float, floor: float = 0.0) -> "Classes":
        """A temperature: a wider logit is one divided by a standard deviation."""
        return Classes((self.log_probabilities / math.sqrt(factor)).log_softmax(1))

    def approach_standard(self, share: Tensor) -> "Classes":
        uniform = -math.log(self.log_probabilities.shape[1])
        both = torch.log1p(-share)[:, None] + self.log_probabilities, (share.log() + uniform)[:, None]
        return Classes(torch.logaddexp(*torch.broadcast_tensors(*both)))

    def to(self, dtype: Any = None, device: Any = None) -> "Classes":
        return Classes(self.log_probabilities.to(device=device, dtype=dtype))

    def to_html(self) -> str:
        return f"<p>{len(self)} rows of {self.log_probabilities.shape[1]} classes</p>"


@LIKELIHOODS.register("categorical")
class Categorical(Likelihood):
    """K classes; the sites ξ are aligned with the components, as those of hidden layers."""

    outcome: ClassVar[str] = "labels"

    def __init__(self, num_outputs: int, config: Any, num_components: int | None = None, generator: Any = None) -> None:
        super().__init__(num_outputs, config, num_components, generator)
        self.aligned = num_components is not None
        start = torch.randn(num_components or 5, num_outputs, generator=generator, dtype=torch.float32)
        self.sites = nn.Parameter(start)

    def forward(self, latent: Any) -> Classes:
        mean, std, log_weights = latent.mean, latent.var.sqrt(), latent.log_weights  # (S, N, K)
        f = mean + self.sites[:, None] * std if self.aligned else mean + self.sites[:, None, None] * std
        if not self.aligned:  # each component with each site
            log_weights = (log_weights - math.log(len(self.sites))).repeat(len(self.sites))
            f = f.flatten(0, 1)
        log_weights = log_weights.log_softmax(0)
        return Classes(torch.logsumexp(log_weights[:, None, None] + f.log_softmax(-1), dim=0))

    def conditional_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return f.log_softmax(-1).gather(-1, y.long().expand(*f.shape[:-1], 1)).squeeze(-1)

    def log_power_integral(self, f: Tensor, gamma: float) -> Tensor:
        return (gamma * f.log_softmax(-1)).logsumexp(-1)

    def prune(self, keep: Tensor) -> "Categorical":
        if self.aligned:
            self.sites = nn.Parameter(self.sites.detach()[keep])
        return self

"""The seam holds for what comes next: classes, sketched here, need no change outside their own likelihood.

Neither is part of the package. Targets are as an outcome would encode them: 0 or 1, (N, 1); or one-hot, (N, C).
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.special import ndtr

import dspp
from dspp.likelihoods import LIKELIHOODS, Likelihood
from dspp.objectives import OBJECTIVES
from dspp.predictive import LatentMixture
from dspp.predictive.maths import normal_cdf


@dataclass(frozen=True)
class Probabilities:
    """P(class) of each row: what a classifier's user would get."""

    probabilities: Tensor  # (N, C)

    def log_prob(self, y: Tensor) -> Tensor:
        """One-hot classes (N, C), or (N, 1) of 0 and 1."""
        chosen = torch.cat([1 - y, y], dim=1) if y.shape[1] == 1 else y
        return (chosen * self.probabilities.log()).sum(-1)

    def rows(self, index) -> "Probabilities":
        return Probabilities(self.probabilities[index])

    @classmethod
    def concat(cls, parts) -> "Probabilities":
        return cls(torch.cat([part.probabilities for part in parts]))


class Bernoulli(Likelihood):
    """Two classes by a probit: P(y = 1) = Σ_s ω_s Φ(μ_s / √(1 + v_s)), in closed form."""

    @classmethod
    def num_latents(cls, num_outputs: int) -> int:
        return 1

    def forward(self, latent: LatentMixture) -> Probabilities:
        z = (latent.mean / (1.0 + latent.var).sqrt()).squeeze(-1)
        return Probabilities(torch.stack([latent.weights @ normal_cdf(-z), latent.weights @ normal_cdf(z)], dim=-1))

    def conditional_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        sign = 2.0 * y - 1.0
        return torch.special.log_ndtr(sign * f).squeeze(-1)

    def log_power_integral(self, f: Tensor, gamma: float) -> Tensor:
        return torch.logaddexp(*(gamma * torch.special.log_ndtr(sign * f.squeeze(-1)) for sign in (-1, 1)))


class Categorical(Likelihood):
    """C classes: sigma points at the top, Σ_s ω_s softmax(μ_s + ξ_s σ_s), lined up with the components."""

    def __init__(self, num_outputs, config, num_components=None, generator=None) -> None:
        super().__init__(num_outputs, config, num_components, generator)
        self.aligned = num_components is not None
        self.sites = nn.Parameter(torch.randn(num_components or 5, num_outputs, generator=generator))

    def forward(self, latent: LatentMixture) -> Probabilities:
        mean, std = latent.mean, latent.var.sqrt()  # (S, N, C)
        if self.aligned:
            f, weights = mean + self.sites[:, None] * std, latent.weights
        else:
            f = (mean.unsqueeze(1) + self.sites[:, None] * std.unsqueeze(1)).flatten(0, 1)
            weights = latent.weights.repeat_interleave(len(self.sites)) / len(self.sites)
        return Probabilities(torch.einsum("s,snc->nc", weights, f.softmax(-1)))

    def conditional_log_prob(self, f: Tensor, y: Tensor) -> Tensor:
        return (y * f.log_softmax(-1)).sum(-1)

    def log_power_integral(self, f: Tensor, gamma: float) -> Tensor:
        return (gamma * f.log_softmax(-1)).logsumexp(-1)

    def prune(self, keep: Tensor) -> "Categorical":
        if self.aligned:
            self.sites = nn.Parameter(self.sites.detach()[keep])
        return self


@pytest.fixture(autouse=True)
def registered():
    with LIKELIHOODS.temporarily("bernoulli", Bernoulli), LIKELIHOODS.temporarily("categorical", Categorical):
        yield


GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(300, 2))
TWO = (np.sin(2 * X[:, 0]) + 0.3 * GENERATOR.normal(size=300) > 0).astype(float)
THREE = np.eye(3)[np.digitize(X[:, 0] + 0.2 * GENERATOR.normal(size=300), [-0.5, 0.5])]
QUICK = dspp.TrainConfig(epochs=8, batch_size=50, restarts=1)
SMALL = {"inducing": 12, "width": 2, "sites": 3, "test_sites": 4}


@pytest.mark.parametrize(("name", "y"), [("bernoulli", TWO), ("categorical", THREE)], ids=["bernoulli", "categorical"])
@pytest.mark.parametrize("preset", ["dspp", "ppgpr", "dgp", "svgp", "gamma-dgp"])
def test_classes_train_through_the_same_seam(preset: str, name: str, y: np.ndarray) -> None:
    spec = dspp.preset(preset, likelihood=name, **SMALL)
    result = dspp.fit(spec, dspp.Rows.of(X[:200], y[:200]), dspp.Rows.of(X[200:], y[200:]), config=QUICK)
    predictive = result.model.predictor()(X[200:])
    probabilities = predictive.probabilities
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(100), rtol=0, atol=1e-5)
    classes = y[200:] if y.ndim == 1 else y[200:].argmax(1)
    assert (probabilities.argmax(1).numpy() == classes).mean() > 0.75
    chance = np.log(2 if y.ndim == 1 else 3)
    assert min(epoch.val_nll for epoch in result.history) < 0.8 * chance


def test_objectives_integrate_over_the_latents_of_any_likelihood() -> None:
    """The ELBO is below the log of the average (Jensen), and both are negative for classes."""
    latent = LatentMixture(torch.tensor([0.4, 0.6]).log(), torch.randn(2, 5, 1), torch.rand(2, 5, 1))
    likelihood, y = Bernoulli(1, dspp.ModelConfig()), torch.tensor([[0.0], [1.0], [1.0], [0.0], [1.0]])
    values = {name: OBJECTIVES[name](likelihood, latent, y, torch.zeros(()), 5).item() for name in OBJECTIVES}
    assert values["elbo"] < values["predictive"] < 0
    exact = latent.weights @ ndtr(((2 * y - 1) * latent.mean / (1 + latent.var).sqrt()).squeeze(-1))
    assert values["predictive"] == pytest.approx(exact.log().mean().item(), abs=1e-5)
